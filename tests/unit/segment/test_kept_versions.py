"""Which versions a compaction keeps."""

from __future__ import annotations

import pyarrow as pa
import pytest

from reef.segment import keep_versions
from tests.support.engine.versions import History, ordered, rows_of, segment_batch

V = b"v"


def kept(
    history: History,
    *,
    floor: int,
    points: tuple[int, ...] = (),
    is_bottom: bool = False,
    rows_per_batch: int = 100,
) -> list[tuple[bytes, int]]:
    """Return the versions that stay, whatever the batches they come in."""
    versions = ordered(history)
    batches = [
        segment_batch(history, versions[i : i + rows_per_batch])
        for i in range(0, len(versions), rows_per_batch)
    ]
    out = keep_versions(batches, floor_lsn=floor, points=points, is_bottom=is_bottom)
    return [(row[0], row[1]) for row in rows_of(out)]  # type: ignore[misc]


def test_every_version_above_the_floor_stays_and_the_one_that_the_floor_sees() -> None:
    history: History = {b"a": {1: V, 4: V, 6: V, 9: V}, b"b": {2: V, 3: V}, b"c": {8: V}}
    assert kept(history, floor=5) == [(b"a", 9), (b"a", 6), (b"a", 4), (b"b", 3), (b"c", 8)]


def test_each_point_keeps_what_it_sees() -> None:
    history: History = {b"a": {1: V, 3: V, 5: V, 7: V, 9: V}}
    assert kept(history, floor=9, points=(4, 7)) == [(b"a", 9), (b"a", 7), (b"a", 3)]
    assert kept(history, floor=9, points=(0,)) == [(b"a", 9)]
    assert kept(history, floor=9, points=(8, 7)) == [(b"a", 9), (b"a", 7)]


def test_points_above_the_floor_change_nothing() -> None:
    history: History = {b"a": {1: V, 3: V, 5: V, 7: V}}
    assert kept(history, floor=4, points=(5, 6, 100)) == kept(history, floor=4)


def test_without_a_floor_everything_stays() -> None:
    history: History = {b"a": {1: V, 2: None, 3: V}, b"b": {1: None}}
    assert kept(history, floor=0, is_bottom=True) == ordered(history)


@pytest.mark.parametrize(
    ("versions", "points", "expected"),
    [
        pytest.param({3: None}, (), [], id="alone"),
        pytest.param({1: V, 3: None}, (), [], id="what it hid is dropped"),
        pytest.param({1: V, 3: None}, (2,), [3, 1], id="a snapshot sees what it hides"),
        pytest.param({1: V, 3: None}, (3,), [], id="a snapshot sees the tombstone itself"),
        pytest.param({3: None, 4: V}, (), [4], id="a newer version stays"),
        pytest.param({3: None, 4: V}, (3,), [4], id="a snapshot saw nothing"),
        pytest.param({1: V, 2: None, 3: V, 4: None}, (3,), [4, 3], id="the old one of two goes"),
        pytest.param({2: None, 4: None}, (3,), [], id="both go: nothing is below the upper one"),
        pytest.param({1: V, 2: None, 4: None}, (1, 3), [4, 2, 1], id="both stay"),
        pytest.param({12: None}, (), [12], id="above the floor it is history"),
        pytest.param({8: None, 12: None}, (), [12], id="one above and one below the floor"),
        pytest.param({8: None, 12: V}, (), [12], id="a value above the floor"),
    ],
)
def test_a_tombstone_goes_when_nothing_is_left_to_hide(
    versions: dict[int, bytes | None], points: tuple[int, ...], expected: list[int]
) -> None:
    # The neighbours must not matter, nor where batches end.
    history: History = {b"a": {5: V}, b"b": versions, b"c": {6: V}}
    everything = [(b"a", 5), *((b"b", lsn) for lsn in expected), (b"c", 6)]
    for rows_per_batch in (1, 2, 3, 100):
        assert (
            kept(
                history,
                floor=10,
                points=points,
                is_bottom=True,
                rows_per_batch=rows_per_batch,
            )
            == everything
        )


def test_a_tombstone_stays_while_an_older_run_may_hold_its_key() -> None:
    assert kept({b"a": {3: None}}, floor=10, is_bottom=False) == [(b"a", 3)]


def test_the_last_tombstones_of_the_last_batch_go() -> None:
    history: History = {b"a": {1: V}, b"b": {1: None}, b"c": {2: None, 4: None}}
    assert kept(history, floor=9, points=(2,), is_bottom=True, rows_per_batch=2) == [(b"a", 1)]


def test_what_stays_whole_is_not_copied() -> None:
    history: History = {b"a": {1: V}, b"b": {2: V}}
    batch = segment_batch(history, ordered(history))
    out = list(keep_versions([batch], floor_lsn=5, points=(), is_bottom=True))
    assert [b.column(3).buffers()[2].address for b in out] == [batch.column(3).buffers()[2].address]


def test_a_table_is_taken_too_and_empty_batches_are_left_out() -> None:
    history: History = {b"a": {1: None}, b"b": {2: V}}
    table = pa.table(segment_batch(history, ordered(history)))
    out = list(keep_versions(table, floor_lsn=5, points=(), is_bottom=True))
    assert [batch.num_rows for batch in out] == [1]
    empty = segment_batch(history, [])
    assert list(keep_versions([empty, empty], floor_lsn=5, points=(), is_bottom=True)) == []


def test_the_greatest_floor_keeps_the_newest() -> None:
    assert kept({b"a": {1: V, 2**63 - 1: V}}, floor=2**63 - 1) == [(b"a", 2**63 - 1)]
    assert kept({b"a": {1: V, 5: V}}, floor=2**63 - 1) == [(b"a", 5)]


def test_very_many_versions_of_a_key_through_many_batches() -> None:
    history: History = {b"a": {lsn: V if lsn % 5 else None for lsn in range(1, 5001)}, b"b": {1: V}}
    points = tuple(range(100, 4000, 250))
    expected = [
        *(lsn for lsn in range(5000, 4500, -1)),
        *sorted({max(v for v in history[b"a"] if v <= p) for p in (*points, 4500)}, reverse=True),
    ]
    # 4500 and every point are tombstones; nothing is below the lowest of them.
    got = kept(history, floor=4500, points=points, is_bottom=True, rows_per_batch=7)
    above = [lsn for lsn in expected if lsn > 4500]
    assert got == [*((b"a", lsn) for lsn in above), (b"b", 1)]
    held = kept(history, floor=4500, points=(*points, 99), is_bottom=True, rows_per_batch=7)
    assert held == [*((b"a", lsn) for lsn in [*expected, 99]), (b"b", 1)]
