"""Histories of keys as plain dicts, and the same as Arrow rows: what reads are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from reef.format import log_schema, segment_schema
from reef.segment import RowSource, RowVersion, merge

History = dict[bytes, dict[int, bytes | None]]
"""For each key its versions: by LSN the value, or None for a tombstone."""

VALUE = pa.field("value", pa.binary())
SEGMENT_SCHEMA = segment_schema([VALUE])
LOG_SCHEMA = log_schema([VALUE])


def log_batch(rows: dict[bytes, bytes | None]) -> pa.RecordBatch:
    """Return a log batch that puts or, where the value is None, deletes keys."""
    return pa.record_batch(
        [
            pa.array(list(rows), pa.binary()),
            pa.array([value is None for value in rows.values()], pa.bool_()),
            pa.array(list(rows.values()), pa.binary()),
        ],
        schema=LOG_SCHEMA,
    )


def ordered(history: History, *, reverse: bool = False) -> list[tuple[bytes, int]]:
    """Return all versions in the order of sources."""
    return [
        (key, lsn)
        for key in sorted(history, reverse=reverse)
        for lsn in sorted(history[key], reverse=True)
    ]


def segment_batch(history: History, versions: Sequence[tuple[bytes, int]]) -> pa.RecordBatch:
    """Return some versions as rows of a segment."""
    values = [history[key][lsn] for key, lsn in versions]
    return pa.record_batch(
        [
            pa.array([key for key, _ in versions], pa.binary()),
            pa.array([lsn for _, lsn in versions], pa.int64()),
            pa.array([value is None for value in values], pa.bool_()),
            pa.array(values, pa.binary()),
        ],
        schema=SEGMENT_SCHEMA,
    )


def newest(history: History, key: bytes, lsn: int) -> tuple[int, bytes | None] | None:
    """Return the newest version of `key` at or below `lsn`."""
    lsns = [version for version in history.get(key, {}) if version <= lsn]
    return (max(lsns), history[key][max(lsns)]) if lsns else None


def visible(
    history: History,
    lsn: int,
    start: bytes = b"",
    end: bytes | None = None,
    *,
    reverse: bool = False,
) -> list[tuple[bytes, int, bytes]]:
    """Return what a scan at `lsn` shows."""
    inside = [key for key in history if start <= key and (end is None or key < end)]
    found = []
    for key in sorted(inside, reverse=reverse):
        version = newest(history, key, lsn)
        if version and version[1] is not None:
            found.append((key, version[0], version[1]))
    return found


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[tuple[object, ...]]:
    """Return the rows of batches as tuples."""
    return [
        row
        for batch in batches
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


def told(found: RowVersion | None) -> tuple[int, bytes | None] | None:
    """Return what `newest` would, of what a source found."""
    if found is None:
        return None
    value = found.batch.column("value")[found.row].as_py()
    assert found.tombstone == (value is None)
    return found.lsn, value


class ArraySource:
    """A RowSource of a history, in batches cut wherever a test wants them. Notes what is asked."""

    def __init__(self, history: History, rows_per_batch: int = 3) -> None:
        versions = ordered(history)
        self.history = history
        self.rows_per_batch = rows_per_batch
        self.lsn_min = min((lsn for _, lsn in versions), default=1)
        self.lsn_max = max((lsn for _, lsn in versions), default=1)
        self.key_min = min(history, default=b"")
        self.key_max = max(history, default=b"")
        self.asked: list[bytes] = []
        self.batches_given = 0

    def get(self, key: bytes, lsn: int) -> RowVersion | None:
        self.asked.append(key)
        version = newest(self.history, key, lsn)
        if version is None:
            return None
        batch = segment_batch(self.history, [(key, version[0])])
        return RowVersion(version[0], version[1] is None, batch, 0)

    def get_many(self, keys: Sequence[bytes], lsn: int) -> list[RowVersion | None]:
        return [self.get(key, lsn) for key in keys]

    def batches(
        self,
        start: bytes,
        end: bytes | None,
        *,
        columns: Sequence[str] | None,
        reverse: bool,
        lsn: int,
    ) -> Iterator[pa.RecordBatch]:
        versions = [
            version
            for version in ordered(self.history, reverse=reverse)
            if start <= version[0] and (end is None or version[0] < end)
        ]
        wanted = [VALUE.name] if columns is None else [c for c in columns if c == VALUE.name]
        for first in range(0, len(versions), self.rows_per_batch):
            self.batches_given += 1
            batch = segment_batch(self.history, versions[first : first + self.rows_per_batch])
            yield batch.select([*batch.schema.names[:3], *wanted])


def scan(
    *sources: RowSource,
    start: bytes = b"",
    end: bytes | None = None,
    lsn: int = 100,
    columns: Sequence[str] | None = None,
    reverse: bool = False,
    batch_bytes: int = 1 << 20,
    schema: pa.Schema | None = None,
    ordered: bool = True,
    passed: Callable[[bytes], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Merge the sources, by default all keys at version 100."""
    return merge(
        sources,
        start=start,
        end=end,
        lsn=lsn,
        columns=columns,
        reverse=reverse,
        batch_bytes=batch_bytes,
        schema=schema,
        ordered=ordered,
        passed=passed,
    )
