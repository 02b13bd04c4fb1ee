"""A scan in pieces: key ranges of about equal size, and the batches of one of them. Without Spark.

Cuts are made where segments and, in large ones, blocks begin: from the manifest, and one ranged GET
for each large segment. A range is read by a merge of all sources that have keys in it, so that the
newest version of each key comes out however the ranges lie; where one segment alone has rows, its
blocks pass through. Filters read by `StoredRows`, which leaves out blocks that cannot match.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.documents.filter import Where, parse_filter
from reef.documents.query import StoredRows
from reef.documents.types import Schema
from reef.errors import InvalidInputError, NotFoundError, SnapshotExpiredError
from reef.format import KEY
from reef.segment import SegmentSource
from reef.spark.source._read_version import OpenVersion, ReadVersion, open_version, version_expired
from reef.spark.source._spark_columns import Column, spark_batch

PARTITION_BYTES_MIN = 1 << 20
_TAILS_MAX = 256
_PIECES = 16  # a large segment is cut this much finer than partitions are


@dataclass(frozen=True)
class ScanRange:
    """Keys from `start` up to `end` (exclusive; None is past every key)."""

    start: bytes
    end: bytes | None


@dataclass(frozen=True)
class PushedFilters:
    """What filters ask of rows: keys from `start` up to `end`, and a filter of documents."""

    start: bytes = b""
    end: bytes | None = None
    where: tuple[Any, ...] | None = None

    @staticmethod
    def of(where: Where, schema: Schema) -> PushedFilters:
        """Return what a filter of documents asks. Raises InvalidInputError."""
        filter = parse_filter(where, schema)
        return PushedFilters(*filter.key_range(), filter.where)


@dataclass(frozen=True)
class Scan:
    """A scan: a version, columns, and a filter."""

    version: ReadVersion
    columns: tuple[Column, ...]
    pushed: PushedFilters
    batch_bytes: int

    @property
    def stored(self) -> list[str]:
        """The stored columns, without the key."""
        return [column.stored for column in self.columns if column.stored != KEY]


def schema_of(version: ReadVersion) -> Schema:
    """Return the attributes of documents at a version."""
    arrow = version.columns
    return Schema.EMPTY if arrow is None else Schema.from_arrow(arrow)


def pushed_where(where: str | None, version: ReadVersion) -> PushedFilters:
    """Return what the option `where` asks of the rows. Raises InvalidInputError."""
    if where is None:
        return PushedFilters()
    if version.face != "documents":
        raise InvalidInputError(
            "where is for documents, and the namespace holds keys and values: leave it out"
        )
    return PushedFilters.of(where, schema_of(version))


def plan_scan(scan: Scan, *, partition_bytes: int, min_partitions: int) -> list[ScanRange]:
    """Return the ranges to read a scan by, none if nothing can match.

    They are of about the same size, at most about `partition_bytes` as stored, and smaller, down to
    1 MiB, if that makes them a multiple of `min_partitions`: then nobody waits for the last of them.
    """
    low, high = scan.pushed.start, scan.pushed.end
    if high is not None and low >= high:
        return []
    opened = open_version(scan.version)
    sources = [source for source in opened.segments() if _is_inside(source, scan)]
    whole = [(source.key_min, source.ref.size) for source in sources]

    def share(weights: Sequence[tuple[bytes, int]]) -> int:
        total = sum(size for _, size in weights)
        rounds = max(1, -(-total // (partition_bytes * min_partitions)))
        least = min(PARTITION_BYTES_MIN, partition_bytes)
        return max(least, -(-total // (rounds * min_partitions)))

    try:
        weights = _weights(opened, sources, scan, share(whole) // 2)
    except NotFoundError:  # a segment is gone: the read itself finds out whether that matters
        weights = whole
    inside = sorted(
        weight for weight in weights if low <= weight[0] and not _is_at(weight[0], high)
    )
    edges = [low, *_cuts(inside, low, share(inside))]
    return [ScanRange(start, end) for start, end in zip(edges, [*edges[1:], high], strict=True)]


def _is_at(key: bytes, end: bytes | None) -> bool:
    return end is not None and key >= end


def _is_inside(source: SegmentSource, scan: Scan) -> bool:
    low, high = scan.pushed.start, scan.pushed.end
    is_old = source.lsn_min <= scan.version.lsn
    return is_old and source.key_max >= low and not _is_at(source.key_min, high)


def _cuts(weights: Sequence[tuple[bytes, int]], low: bytes, most: int) -> Iterator[bytes]:
    """Yield keys above `low` between which about `most` bytes lie."""
    so_far, last = 0, low
    for key, size in weights:
        if key > last and so_far + size // 2 > most:
            yield key
            # What one range has too much or too little is made good by the next: or it would add up
            # to one more, of next to nothing, at the end.
            so_far, last = min(so_far - most, most // 2), key
        so_far += size


def _weights(
    opened: OpenVersion, sources: Sequence[SegmentSource], scan: Scan, large_bytes: int
) -> list[tuple[bytes, int]]:
    """Return where rows lie: keys, and about how many bytes are to be read from each on."""
    by_size = sorted(sources, key=lambda source: source.ref.size, reverse=True)
    large = [source for source in by_size[:_TAILS_MAX] if source.ref.size > large_bytes]
    opened.prefetch(large)
    weights = [(source.key_min, source.ref.size) for source in by_size[len(large) :]]
    for source in large:
        weights += _blocks(source, scan, large_bytes)
    return weights


def _blocks(source: SegmentSource, scan: Scan, large_bytes: int) -> list[tuple[bytes, int]]:
    """Return the same within one segment, by its block index; blocks that cannot match weigh nothing."""
    found: list[tuple[pa.RecordBatch, npt.NDArray[np.bool_]]] = []
    may_match = None
    if scan.pushed.where is not None:
        may_match = parse_filter(scan.pushed.where, schema_of(scan.version)).prune

    def look(index: pa.RecordBatch, names: Collection[str]) -> npt.NDArray[np.bool_]:
        nothing = np.zeros(index.num_rows, np.bool_)
        found.append((index, ~nothing if may_match is None else may_match(index, names)))
        return nothing

    low, high = scan.pushed.start, scan.pushed.end
    rows = source.batches(low, high, columns=(), reverse=False, lsn=scan.version.lsn, prune=look)
    assert next(rows, None) is None
    if not found:
        return []
    index, worth = found[0]
    wide = sum(c.type.dimension * 4 for c in scan.columns if c.type is not None)
    sizes = np.where(worth, index["length"].to_numpy() + wide * index["rows"].to_numpy(), 0)
    step = max(1, large_bytes // _PIECES)
    piece = np.cumsum(sizes) // step
    first = np.flatnonzero(np.diff(piece, prepend=-1))
    keys = index["key_first"].take(pa.array(first)).to_pylist()
    return list(zip(keys, np.add.reduceat(sizes, first).tolist(), strict=True))


def read_range(scan: Scan, keys: ScanRange, layout: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range as batches of exactly `layout`, which has a field for each column.

    Raises SnapshotExpiredError if the version is gone, UnavailableError, CorruptError.
    """
    try:
        for rows in _resized(_stored_batches(scan, keys), scan.batch_bytes):
            yield spark_batch(rows, scan.columns, layout)
    except SnapshotExpiredError as error:
        raise version_expired(scan.version, error) from error


def _stored_batches(scan: Scan, keys: ScanRange) -> Iterator[pa.RecordBatch]:
    view = open_version(scan.version).view()
    if scan.version.face != "documents":
        return view.scan(start=keys.start, end=keys.end, columns=scan.stored, ordered=False)
    schema = schema_of(scan.version)
    where = scan.pushed.where
    filter = None if where is None else parse_filter(where, schema)
    rows = StoredRows(view, schema, filter)
    return rows.batches(scan.stored, start=keys.start, end=keys.end, ordered=False)


def _resized(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of about `most_bytes`: each costs Spark time, however small it is."""
    some: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if some and not some[0].schema.equals(batch.schema):
            yield _one_batch(some)
            some, size = [], 0
        some.append(batch)
        size += pa.ipc.get_record_batch_size(batch)
        if size >= most_bytes // 2:  # the next piece is about as large as this one
            yield _one_batch(some)
            some, size = [], 0
    if some:
        yield _one_batch(some)


def _one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
