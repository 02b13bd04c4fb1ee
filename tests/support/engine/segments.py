"""A bucket with segments, its requests counted and its faults at hand: what tests of reads share."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from reef.format import (
    KEY,
    LSN,
    TOMBSTONE,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    segment_schema,
)
from reef.metrics import Metrics
from reef.segment import (
    BlockCache,
    DiskCache,
    RowVersion,
    SegmentReader,
    SegmentSource,
    write_segment,
)
from reef.store import MemoryStore, Store
from reef.testing import CountingStore, FaultyStore, WrapperStore
from reef.types import LSN_MAX
from tests.support.waiting import DEADLINE_SECONDS

SCHEMA = segment_schema([pa.field("value", pa.binary()), pa.field("number", pa.int64())])
WIDE = segment_schema(
    [
        pa.field("value", pa.binary()),
        pa.field("vector", pa.list_(pa.float32(), 4)),
        pa.field("number", pa.int64()),
    ]
)
ID = "01J9ZQ3V5N8W2X4Y6Z7A8B9C0{}"

Row = tuple[bytes, int, bool]


def row_batch(rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Return sorted rows whose values tell where they come from; tombstones have none."""
    columns: dict[str, Any] = {
        KEY: [key for key, _, _ in rows],
        LSN: [lsn for _, lsn, _ in rows],
        TOMBSTONE: [dead for _, _, dead in rows],
        "value": [None if dead else value_of(key, lsn) for key, lsn, dead in rows],
        "number": [None if dead else lsn * 10 for _, lsn, dead in rows],
        "vector": [None if dead else vector_of(lsn) for _, lsn, dead in rows],
    }
    return pa.record_batch([pa.array(columns[f.name], f.type) for f in schema], schema=schema)


def value_of(key: bytes, lsn: int) -> bytes:
    return b"%s@%d" % (key, lsn)


def vector_of(lsn: int) -> list[float]:
    return [lsn, -lsn, lsn / 2, 0.5]


def keys_of(count: int) -> list[Row]:
    return [(b"key-%05d" % i, i % 7 + 1, False) for i in range(count)]


def write(
    store: Store,
    rows: Sequence[Row],
    *,
    number: int = 0,
    schema: pa.Schema = SCHEMA,
    row_block_bytes: int = 500,
    column_block_bytes: int = 300,
    namespace: str = "n",
) -> SegmentRef:
    origin = SegmentOrigin(
        id=ID.format("ABCDEFGHJK"[number]) if number < 10 else f"{number:026}",
        namespace=namespace,
        level=0,
        author="test",
        created_at_us=1,
    )
    options = SegmentOptions(row_block_bytes=row_block_bytes, column_block_bytes=column_block_bytes)
    return write_segment(store, namespace, schema, origin, options, [row_batch(rows, schema)])


class MeetingStore(WrapperStore):
    """Lets requests for ranges go on only when `together` of them are under way at once."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.together = 1

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if self.together > 1:
            self._barrier.wait(DEADLINE_SECONDS)
        return super().get_range(key, start, length)

    def expect(self, together: int) -> None:
        self.together = together
        self._barrier = threading.Barrier(together)
        self.concurrency = together


class Bench:
    """A bucket, its requests counted, and readers on it with caches of their own."""

    def __init__(self, inner: Store | None = None) -> None:
        self.faults = FaultyStore(inner or MemoryStore())
        self.meeting = MeetingStore(self.faults)
        self.store = CountingStore(self.meeting)
        self.store.merge_gap_bytes = 0
        self.metrics = Metrics()
        self.cache: BlockCache

    def reader(
        self, capacity_bytes: int = 1 << 24, disk: DiskCache | None = None, namespace: str = "n"
    ) -> SegmentReader:
        self.cache = BlockCache(capacity_bytes, metrics=self.metrics)
        return SegmentReader(
            self.store, namespace, cache=self.cache, disk=disk, metrics=self.metrics
        )

    def open(self, ref: SegmentRef, **how: Any) -> SegmentSource:
        self.store.reset()
        return self.reader(**how).open(ref)

    def expect(self, together: int) -> None:
        """Let requests wait for each other from now on; those that stay alone fail."""
        self.meeting.expect(together)
        self.store.concurrency = together

    def requests(self) -> int:
        return self.store.reset().total

    def counted(self, name: str) -> float:
        self.cache.publish()
        value = self.metrics.snapshot().get(name, 0)
        assert isinstance(value, (int, float))
        return value


def shown(found: RowVersion | None) -> tuple[int, bytes | None] | None:
    """Return the version and the value of what was found; None as value is a tombstone."""
    if found is None:
        return None
    value = found.batch.column("value")[found.row].as_py()
    assert (value is None) == found.tombstone
    return found.lsn, value


def scanned(source: SegmentSource, **how: Any) -> list[Row]:
    asked = {"start": b"", "end": None, "columns": None, "reverse": False, "lsn": LSN_MAX} | how
    found = source.batches(asked.pop("start"), asked.pop("end"), **asked)
    return [row for batch in found for row in rows_in(batch)]


def rows_in(batch: pa.RecordBatch) -> list[Row]:
    assert batch.num_rows
    columns = [batch.column(i).to_pylist() for i in range(3)]
    if "value" in batch.schema.names:
        expected = [
            None if dead else value_of(key, lsn) for key, lsn, dead in zip(*columns, strict=True)
        ]
        assert batch.column("value").to_pylist() == expected
    return list(zip(*columns, strict=True))
