"""How work is spread over the tasks of a session."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reef.spark._spread import balanced_parts


@given(st.lists(st.integers(0, 1 << 40), max_size=200), st.integers(1, 40))
def test_spread_gives_every_place_once_in_few_even_parts(weights: list[int], most: int) -> None:
    parts = balanced_parts(weights, most)
    assert sorted(place for part in parts for place in part) == [*range(len(weights))]
    assert len(parts) == min(most, len(weights))
    assert all(parts)
    loads = [sum(weights[place] + 1 for place in part) for part in parts]
    assert loads == sorted(loads, reverse=True)
    if loads:  # longest first is never worse than the mean and the heaviest together
        assert loads[0] <= sum(loads) / len(loads) + max(weights) + 1


def test_one_heavy_descriptor_has_a_part_of_its_own() -> None:
    assert balanced_parts([1, 1, 100, 1, 1, 1], 3)[0] == [2]
