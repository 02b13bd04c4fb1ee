"""Which numbers are missing is told from those that are there, whatever lies between."""

from __future__ import annotations

import pytest

from reef.log import absent

FAR = 2**43


@pytest.mark.parametrize(
    ("numbers", "first", "end", "missing"),
    [
        ((), 1, 1, []),
        ((), 1, 4, [range(1, 4)]),
        ((1, 2, 3), 1, 4, []),
        ((2,), 1, 4, [range(1, 2), range(3, 4)]),
        ((1, 2, 9), 5, 9, [range(5, 9)]),
        ((1, 2, 5, 9, 12), 2, 10, [range(3, 5), range(6, 9)]),
        ((3, FAR), 2, FAR, [range(2, 3), range(4, FAR)]),
    ],
)
def test_what_is_missing(
    numbers: tuple[int, ...], first: int, end: int, missing: list[range]
) -> None:
    assert absent(numbers, first, end) == missing
