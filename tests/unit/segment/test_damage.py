"""Reads of segments that are damaged or gone, and the cache on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from reef.clock import SystemClock
from reef.errors import CorruptError, DamagedError, NotFoundError
from reef.metrics import Metrics
from reef.segment import DiskCache
from reef.store import MemoryStore
from reef.testing import Fault
from reef.types import LSN_MAX
from tests.support.engine.segments import (
    WIDE,
    Bench,
    keys_of,
    scanned,
    shown,
    value_of,
    write,
)

# Damage, and objects that are gone.


def test_a_damaged_tail_or_block_is_read_again_once(bench: Bench) -> None:
    ref = write(bench.store, keys_of(300))
    for nth in (1, 2):
        source = bench.open(ref)
        bench.faults.arm(Fault("flipped_bit", on="get_range", nth=nth))
        assert shown(source.get(b"key-00123", LSN_MAX)) == (5, b"key-00123@5")
        assert bench.requests() == 3
        bench.faults.disarm()
    assert [fired.kind for fired in bench.faults.fired] == ["flipped_bit"] * 2


def test_what_stays_damaged_is_an_error_that_names_the_object(bench: Bench) -> None:
    ref = write(bench.store, keys_of(300))
    for nth in (1, 2):
        source = bench.open(ref)
        bench.faults.arm(Fault("flipped_bit", on="get_range", nth=nth, times=2))
        with pytest.raises(DamagedError, match=ref.id):
            source.get(b"key-00123", LSN_MAX)
        assert bench.requests() == nth + 1
        bench.faults.disarm()
        assert source.get(b"key-00123", LSN_MAX) is not None  # nothing damaged was kept


@pytest.mark.parametrize("capacity_bytes", [0, 1 << 24])
@pytest.mark.parametrize("columns", [["value"], ["vector"]])
def test_a_scan_reads_damaged_blocks_again_once(
    bench: Bench, capacity_bytes: int, columns: list[str]
) -> None:
    rows = keys_of(300)
    ref = write(bench.store, rows, schema=WIDE)
    source = bench.open(ref, capacity_bytes=capacity_bytes)
    bench.faults.arm(Fault("flipped_bit", on="get_range", nth=2))
    found = source.batches(b"", None, columns=columns, reverse=False, lsn=LSN_MAX)
    assert sum(batch.num_rows for batch in found) == 300
    assert len(bench.faults.fired) == 1
    source = bench.open(ref, capacity_bytes=capacity_bytes)
    bench.faults.arm(Fault("flipped_bit", on="get_range", nth=2, times=0))
    with pytest.raises(CorruptError, match=ref.id):
        list(source.batches(b"", None, columns=columns, reverse=False, lsn=LSN_MAX))


def test_a_short_answer_is_asked_for_again_once(bench: Bench) -> None:
    rows = keys_of(300)
    ref = write(bench.store, rows)
    for nth in (1, 2):
        bench.faults.arm(Fault("short_read", on="get_range", nth=nth))
        assert scanned(bench.open(ref)) == rows
    bench.faults.arm(Fault("short_read", on="get_range", times=2))
    with pytest.raises(DamagedError, match=ref.id):
        bench.open(ref).get(b"key-00123", LSN_MAX)


def test_a_tail_that_contradicts_its_manifest_is_damage(bench: Bench) -> None:
    ref = write(bench.store, keys_of(300))
    wrong = msgspec.structs.replace(ref, rows=301)
    with pytest.raises(CorruptError, match="manifest says"):
        bench.open(wrong).get(b"key-00123", LSN_MAX)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_missing_object_is_not_a_missing_key(bench: Bench, concurrency: int) -> None:
    ref = write(bench.store, keys_of(300), schema=WIDE)
    bench.store.concurrency = concurrency
    source = bench.open(ref)
    source.get(b"key-00000", LSN_MAX)  # its tail stays in the cache
    bench.store.delete(source.object_key)
    for sources in (source, bench.reader().open(ref)):
        with pytest.raises(NotFoundError, match=ref.id):
            sources.get(b"key-00200", LSN_MAX)
        with pytest.raises(NotFoundError, match=ref.id):
            sources.get_many([b"key-00200", b"key-00250"], LSN_MAX)
        for reverse in (False, True):
            with pytest.raises(NotFoundError, match=ref.id):
                list(sources.batches(b"", None, columns=None, reverse=reverse, lsn=LSN_MAX))
    with pytest.raises(NotFoundError, match=ref.id):
        bench.reader().prefetch_tails([ref])


# The cache on disk.


def open_disk(folder: Path, metrics: Metrics) -> DiskCache:
    return DiskCache(folder, 1 << 24, metrics=metrics, clock=SystemClock())


def test_what_is_on_disk_is_not_fetched_again(bench: Bench, tmp_path: Path) -> None:
    rows = keys_of(300)
    ref = write(bench.store, rows, schema=WIDE)
    source = bench.open(ref, disk=open_disk(tmp_path, bench.metrics))
    keys = [key for key, _, _ in rows]
    expected = [shown(found) for found in source.get_many(keys, LSN_MAX)]
    assert bench.requests() > 0
    # Another process: its memory is empty.
    again = bench.open(ref, disk=open_disk(tmp_path, bench.metrics))
    assert [shown(found) for found in again.get_many(keys, LSN_MAX)] == expected
    assert again.get(keys[7], LSN_MAX) is not None
    large = bench.open(ref, disk=open_disk(tmp_path, bench.metrics), capacity_bytes=0)
    assert scanned(large) == rows
    assert bench.requests() == 0
    assert bench.counted('reef_cache_hits_total{cache="disk"}') > 0


def test_a_large_scan_leaves_the_disk_alone(bench: Bench, tmp_path: Path) -> None:
    ref = write(bench.store, keys_of(300))
    disk = open_disk(tmp_path, bench.metrics)
    scanned(bench.open(ref, disk=disk, capacity_bytes=0))
    assert len(disk) == 1  # the tail


class NotingDisk(DiskCache):
    """Remembers what things are called."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.names: list[str] = []

    def put(self, name: str, data: pa.Buffer) -> None:
        self.names.append(name)
        super().put(name, data)


def test_damage_on_disk_is_mended_from_the_store(bench: Bench, tmp_path: Path) -> None:
    ref = write(bench.store, keys_of(300))
    disk = NotingDisk(tmp_path, 1 << 24, metrics=bench.metrics, clock=SystemClock())
    bench.open(ref, disk=disk).get(b"key-00123", LSN_MAX)
    assert len(disk.names) == 2
    # Whole by the file's own checksum, and yet not what the segment holds.
    for name in [*disk.names]:
        data = disk.get(name)
        assert data is not None
        disk.put(name, pa.py_buffer(bytes([data[0] ^ 1]) + data.slice(1).to_pybytes()))
    again = bench.open(ref, disk=disk)
    assert shown(again.get(b"key-00123", LSN_MAX)) == (5, b"key-00123@5")
    assert bench.requests() == 2
    assert len(disk) == 0  # what was wrong is gone


def test_a_bucket_of_the_same_address_is_another_bucket(tmp_path: Path) -> None:
    metrics = Metrics()
    for lsn in (3, 4):  # the same id, the same key, other bytes
        bench = Bench(MemoryStore())
        ref = write(bench.store, [(b"a", lsn, False)])
        disk = open_disk(tmp_path, metrics)
        source = bench.open(ref, disk=disk)
        assert shown(source.get(b"a", LSN_MAX)) == (lsn, value_of(b"a", lsn))
    assert len(disk) == 4  # nothing was taken for damage
