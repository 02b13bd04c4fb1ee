"""Ranges that lie near each other share a request; every byte asked for comes back."""

from __future__ import annotations

import contextlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.errors import InvalidInputError
from reef.store import MemoryStore
from reef.store._byte_ranges import MERGED_BYTES_MAX, check_range, cut_range, merge_ranges
from reef.testing import CountingStore
from tests.support.waiting import DEADLINE_SECONDS

RANGES = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), max_size=30)
GAPS = st.integers(0, 40)
MOST = st.one_of(st.integers(1, 120), st.just(MERGED_BYTES_MAX))


def test_nothing_asked_is_nothing_fetched() -> None:
    assert merge_ranges([], 10) == ([], [])


@pytest.mark.parametrize(
    ("ranges", "gap", "fetched"),
    [
        ([(0, 10), (10, 5)], 0, [(0, 15)]),  # side by side
        ([(0, 10), (11, 5)], 0, [(0, 10), (11, 5)]),
        ([(0, 10), (11, 5)], 1, [(0, 16)]),  # exactly the gap
        ([(0, 10), (12, 5)], 1, [(0, 10), (12, 5)]),  # one more than the gap
        ([(0, 100), (10, 5)], 0, [(0, 100)]),  # one inside the other
        ([(10, 5), (0, 100), (98, 9)], 0, [(0, 107)]),  # in any order
        ([(7, 3), (7, 3)], 0, [(7, 3)]),  # twice the same
    ],
)
def test_merged_at_most_gap_apart(
    ranges: list[tuple[int, int]], gap: int, fetched: list[tuple[int, int]]
) -> None:
    assert merge_ranges(ranges, gap)[0] == fetched


@pytest.mark.parametrize(
    ("ranges", "fetched"),
    [
        ([(0, 10), (12, 8)], [(0, 20)]),  # exactly as much as may be
        ([(0, 10), (12, 9)], [(0, 10), (12, 9)]),
        ([(0, 10), (10, 11)], [(0, 10), (10, 11)]),
        ([(0, 50)], [(0, 50)]),  # larger by itself
        ([(0, 50), (10, 20), (48, 2)], [(0, 50)]),  # inside it: nothing grows
        ([(0, 5), (0, 50)], [(0, 50)]),
        ([(0, 50), (45, 10), (50, 5)], [(0, 50), (50, 5)]),
        ([(0, 15), (5, 15), (10, 15)], [(0, 20), (20, 5)]),  # what overlaps is fetched once
    ],
)
def test_no_request_grows_beyond_the_bound(
    ranges: list[tuple[int, int]], fetched: list[tuple[int, int]]
) -> None:
    assert merge_ranges(ranges, 2, most=20)[0] == fetched


def test_the_bound_is_16_mib() -> None:
    half = 8 << 20
    assert merge_ranges([(0, half), (half, half)], 0)[0] == [(0, 2 * half)]
    assert len(merge_ranges([(0, half), (half, half + 1)], 0)[0]) == 2


@given(RANGES, GAPS, MOST)
def test_every_byte_asked_for_is_delivered_in_the_order_asked(
    ranges: list[tuple[int, int]], gap: int, most: int
) -> None:
    data = bytes(i * 37 % 251 for i in range(400))
    merged, places = merge_ranges(ranges, gap, most)
    chunks = [data[start : start + length] for start, length in merged]
    delivered = [cut_range(chunks, place) for place in places]
    assert delivered == [data[start : start + length] for start, length in ranges]


@given(RANGES, GAPS, MOST)
def test_fetched_ranges_are_disjoint_and_apart_unless_too_much_together(
    ranges: list[tuple[int, int]], gap: int, most: int
) -> None:
    merged, _ = merge_ranges(ranges, gap, most)
    for (start, length), (following, more) in itertools.pairwise(merged):
        assert following >= start + length
        assert following - (start + length) > gap or following + more - start > most


@given(RANGES, GAPS, MOST)
def test_only_a_range_that_was_asked_for_exceeds_the_bound(
    ranges: list[tuple[int, int]], gap: int, most: int
) -> None:
    for start, length in merge_ranges(ranges, gap, most)[0]:
        assert length <= most or any(
            first <= start and start + length <= first + asked for first, asked in ranges
        )


@given(RANGES, GAPS, MOST)
def test_nothing_is_fetched_but_what_was_asked_for_and_small_gaps(
    ranges: list[tuple[int, int]], gap: int, most: int
) -> None:
    merged, _ = merge_ranges(ranges, gap, most)
    asked = {byte for start, length in ranges for byte in range(start, start + length)}
    for start, length in merged:
        assert start in asked
        assert start + length - 1 in asked
        unasked = 0
        for byte in range(start, start + length):
            unasked = 0 if byte in asked else unasked + 1
            assert unasked <= gap


@pytest.mark.parametrize("bad", [(-1, 1), (0, 0), (0, -1), (5, -5)])
def test_an_impossible_range_is_refused_by_name(bad: tuple[int, int]) -> None:
    with pytest.raises(InvalidInputError, match="range = "):
        check_range(*bad)
    with pytest.raises(InvalidInputError, match="range = "):
        merge_ranges([(0, 1), bad], 0)


@given(RANGES, GAPS)
def test_get_ranges_gives_the_bytes_with_one_request_per_merged_range(
    ranges: list[tuple[int, int]], gap: int
) -> None:
    data = bytes(i * 37 % 251 for i in range(400))
    inner = MemoryStore()
    inner.put_if_absent("k", data)
    inner.merge_gap_bytes = gap
    store = CountingStore(inner)
    got = store.get_ranges("k", ranges)
    assert list(got) == [data[start : start + length] for start, length in ranges]
    merged, _ = merge_ranges(ranges, gap)
    assert store.counts.requests.get("get_range", 0) == len(merged)
    assert store.counts.bytes.get("get_range", 0) == sum(length for _, length in merged)


def test_threads_that_read_ranges_first_at_once_share_one_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two pools would mean twice the concurrency that was asked for."""
    made = []
    all_came, second_came = threading.Barrier(8), threading.Barrier(2)

    class Slow(ThreadPoolExecutor):
        def __init__(self, *args: int, **kwargs: str) -> None:
            made.append(self)
            with contextlib.suppress(threading.BrokenBarrierError):
                second_came.wait(0.2)  # in vain, if it is as it should be
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr("reef.store._base.ThreadPoolExecutor", Slow)
    store = MemoryStore()
    store.put_if_absent("k", bytes(100))
    store.concurrency, store.merge_gap_bytes = 4, 0

    def read() -> None:
        all_came.wait(DEADLINE_SECONDS)
        store.get_ranges("k", [(0, 1), (50, 1)])

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    store.close()
