"""Which keys other sources may have newer versions of, against asking each of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from reef.engine import Cover
from tests.support.call_counts import calls_of

keys = st.sampled_from([b"", b"\0", b"a", b"a\0", b"aa", b"b", b"b\0", b"c", b"\xff", b"\xff\xff"])


class Range(NamedTuple):
    """A source, as far as a cover looks at it."""

    key_min: bytes
    key_max: bytes
    lsn_min: int
    lsn_max: int


ranges = st.builds(
    lambda low, high, lsn, more: Range(low, high, lsn, lsn + more),
    keys,
    keys,  # a clip may leave nothing between
    st.integers(1, 9),
    st.integers(0, 5),
)


@given(st.lists(ranges, min_size=1, max_size=8), st.data(), st.integers(1, 12))
def test_it_says_what_asking_every_source_does(
    given: list[Range], data: st.DataObject, lsn: int
) -> None:
    sources: list[Any] = [Range(*one) for one in given]  # each another object
    own = data.draw(st.integers(0, len(sources) - 1))
    asked = sorted(data.draw(st.lists(keys, min_size=1, max_size=20)))
    found = Cover(sources, lsn).newest_elsewhere(sources[own], pa.array(asked, pa.binary()))
    assert found.tolist() == [
        max(
            (
                other.lsn_max
                for number, other in enumerate(sources)
                if number != own and other.lsn_min <= lsn and other.key_min <= key <= other.key_max
            ),
            default=0,
        )
        for key in asked
    ]


def test_to_ask_for_every_source_is_not_to_ask_every_pair() -> None:
    def work(count: int) -> int:
        sources: list[Any] = [
            Range(b"%05d" % i, b"%05d" % (i + count), i + 1, i + 1) for i in range(count)
        ]

        def ask() -> None:
            cover = Cover(sources, count)
            for source in sources:
                cover.newest_elsewhere(source, pa.array([source.key_min, source.key_max]))

        return calls_of(ask)

    few, many = work(50), work(200)
    assert many < 6 * few
