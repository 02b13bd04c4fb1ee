"""Writing a segment: sorted batches in, parts of the file out, in bounded memory.

Invariants, checked before bytes leave: rows are sorted by key, then by version from new to old,
with no version twice; the bytes of every block are under a checksum that the index repeats. Memory
holds one block's worth of rows, at most `stripe_bytes` of finished column blocks, 8 bytes a key, and
at the end the filter and the indexes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.errors import InvariantError
from reef.format._block_index import (
    COLUMN_INDEX_SCHEMA,
    bounds_of,
    ordered_columns,
    row_index_schema,
)
from reef.format._bloom import Hashes, build_bloom, hash_keys
from reef.format._frame import SEGMENT_MAGIC, crc32c
from reef.format._manifest_model import SegmentRef
from reef.format._row_stream import (
    KEY,
    LSN,
    SEGMENT_COLUMNS,
    TOMBSTONE,
    batch_problem,
    check_valid,
    encode_rows,
    schema_problem,
)
from reef.format._segment_block import Block, BlockEncoder
from reef.format._segment_model import (
    BLOOM,
    COLUMN_INDEX,
    FRAME,
    PREAMBLE,
    ROW_INDEX,
    SEAL,
    TRAILER,
    TRAILER_BYTES,
    Footer,
    Section,
    SegmentOptions,
    SegmentOrigin,
    split_schema,
    vector_columns,
)

Part: TypeAlias = bytes | pa.Buffer


class SegmentWriter:
    """Turns sorted batches into the parts of one segment file. Use `parts`, then `ref`."""

    def __init__(
        self,
        schema: pa.Schema,
        origin: SegmentOrigin,
        options: SegmentOptions | None = None,
        *,
        indexes: Callable[[], Mapping[str, bytes]] = dict,
    ) -> None:
        """Write rows of `schema`.

        `indexes` is called after the last row and gives named sections that lie before the tail,
        to be read only by those who look for them.
        """
        problem = schema_problem(schema, SEGMENT_COLUMNS)
        if problem:
            raise InvariantError(f"segment {origin.id} would have {problem}")
        self._schema = schema
        self._origin = origin
        self._options = options or SegmentOptions()
        _check_origin(origin, self._options)
        self._indexes = indexes
        wide = self._options.wide
        self._wide = vector_columns(schema) if wide is None else wide
        narrow, columns = split_schema(schema, self._wide)
        codec = self._options.codec
        self._rows = _BlockCutter(narrow, self._options.row_block_bytes, codec)
        self._columns = [
            _BlockCutter(column, self._options.column_block_bytes, codec) for column in columns
        ]
        self._index = _RowIndex(narrow)
        self._column_index: list[tuple[int, ...]] = []
        self._waiting: list[tuple[int, Block]] = []
        self._stripe_bytes = 0
        self._hashes: list[Hashes] = []
        self._last: tuple[bytes, int] | None = None
        self._size = 0
        self._ref: SegmentRef | None = None

    def parts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Part]:
        """Yield the file's bytes, part by part, as `batches` come in. Call it once.

        Raises InvariantError if the rows are not sorted, or if there are none.
        """
        yield self._place(PREAMBLE)
        for batch in batches:
            for piece in _stripe_slices(batch, self._options.stripe_bytes):
                yield from self._add(piece)
        yield from self._drain(last=True)
        if not self._hashes:
            raise InvariantError(f"segment {self._origin.id} would have no rows")
        yield from self._finish()

    @property
    def ref(self) -> SegmentRef:
        """What a manifest says of the finished segment."""
        if self._ref is None:
            raise InvariantError(f"segment {self._origin.id} is not finished")
        return self._ref

    def _add(self, batch: pa.RecordBatch) -> Iterator[Part]:
        self._check(batch)
        hashes = hash_keys(batch.column(KEY))
        self._hashes.append(hashes[np.append(True, hashes[1:] != hashes[:-1])])
        self._rows.add(batch.select(self._rows.schema.names))
        for cutter in self._columns:
            cutter.add(batch.select(cutter.schema.names))
        self._stripe_bytes += batch.nbytes
        yield from self._drain(last=False)

    def _drain(self, *, last: bool) -> Iterator[Part]:
        """Let finished row blocks out, and column blocks when a stripe of them is waiting."""
        for block, batch in self._rows.cut(last=last):
            self._index.add(batch, block.place(self._size))
            yield from map(self._place, block.parts)
        # A small wide column, too, goes out with its stripe: its slices keep whole batches alive.
        full = last or self._stripe_bytes >= self._options.stripe_bytes
        for column, cutter in enumerate(self._columns):
            for block, _ in cutter.cut(last=full):
                self._waiting.append((column, block))
        if full:
            for column, block in self._waiting:
                self._column_index.append((column, *block.place(self._size)))
                yield from map(self._place, block.parts)
            self._waiting, self._stripe_bytes = [], 0

    def _finish(self) -> Iterator[Part]:
        codec = self._options.codec
        columns = sorted(self._column_index)
        column_index = pa.record_batch(
            [pa.array(c, pa.int64()) for c in zip(*columns, strict=True)]
            or [pa.array([], pa.int64())] * len(COLUMN_INDEX_SCHEMA),
            schema=COLUMN_INDEX_SCHEMA,
        )
        row_index = self._index.batch()
        bloom = build_bloom(self._hashes, self._options.bloom_bits_per_key)
        sections: list[Section] = []
        for name, data in self._indexes().items():
            yield from self._place_section(name, data, sections)
        start = self._size
        yield from self._place_section(BLOOM, bloom, sections)
        yield from self._place_section(ROW_INDEX, encode_rows(row_index, codec), sections)
        yield from self._place_section(COLUMN_INDEX, encode_rows(column_index, codec), sections)
        sums = _sums(row_index)
        footer = msgspec.msgpack.encode(
            Footer(
                **vars(self._origin),
                **sums,
                codec=codec,
                schema=self._schema.serialize().to_pybytes(),
                wide=self._wide,
                sections=tuple(sections),
            )
        )
        msgspec.msgpack.decode(footer, type=Footer)  # what we write, we must be able to read
        padding = bytes(-len(footer) % 8)
        size = self._size + len(footer) + len(padding) + TRAILER_BYTES
        checksum = crc32c(footer)
        trailer = TRAILER.pack(len(footer), checksum, size - start, size)
        seal = SEAL.pack(crc32c(trailer), bytes(4), SEGMENT_MAGIC)
        yield self._place(footer + padding + trailer + seal)
        self._ref = SegmentRef(
            id=self._origin.id,
            level=self._origin.level,
            **sums,
            size=size,
            footer_length=size - start,
            checksum=checksum,
        )

    def _check(self, batch: pa.RecordBatch) -> None:
        """Raise unless `batch` goes on where the last one ended, sorted."""
        if batch.schema != self._schema:
            raise InvariantError(f"segment {self._origin.id}: a batch has another schema")
        problem = batch_problem(batch, SEGMENT_COLUMNS) or self._order_problem(batch)
        if problem:
            raise InvariantError(f"segment {self._origin.id} would have {problem}")
        check_valid(batch)

    def _order_problem(self, batch: pa.RecordBatch) -> str:
        keys, lsns = batch.column(KEY), batch.column(LSN)
        if pc.min(lsns).as_py() < 1:
            return "a version below 1"
        before, after = keys.slice(0, len(keys) - 1), keys.slice(1)
        newer = pc.greater(lsns.slice(0, len(keys) - 1), lsns.slice(1))
        in_order = pc.or_(pc.less(before, after), pc.and_(pc.equal(before, after), newer))
        if not pc.all(in_order, min_count=0).as_py():
            return "rows that are not sorted by key, newest version first"
        first, last = (keys[0].as_py(), -lsns[0].as_py()), (keys[-1].as_py(), -lsns[-1].as_py())
        if self._last is not None and first <= self._last:
            return "a batch that does not sort after the one before"
        self._last = last
        return ""

    def _place_section(self, name: str, body: Part, sections: list[Section]) -> Iterator[Part]:
        if any(section.name == name for section in sections):
            raise InvariantError(f"segment {self._origin.id} would have two sections {name!r}")
        sections.append(Section(name, self._size, len(body), crc32c(body)))
        yield self._place(FRAME.pack(len(body), sections[-1].checksum))
        yield self._place(body)
        yield self._place(bytes(-len(body) % 8))

    def _place(self, part: Part) -> Part:
        self._size += len(part)
        return part


def _check_origin(origin: SegmentOrigin, options: SegmentOptions) -> None:
    """Raise InvariantError now rather than after everything but the footer was written."""
    if options.codec not in ("lz4", "zstd"):
        raise InvariantError(f"codec {options.codec!r} is neither lz4 nor zstd")
    sizes = (options.row_block_bytes, options.column_block_bytes, options.stripe_bytes)
    if min(*sizes, options.bloom_bits_per_key) < 1:
        raise InvariantError(f"segment {origin.id}: {options} has a size below 1")
    rows = Footer(
        **vars(origin),
        codec=options.codec,
        schema=b"",
        wide=(),
        rows=1,
        tombstones=0,
        key_min=b"",
        key_max=b"",
        lsn_min=1,
        lsn_max=1,
        sections=(),
    )
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(rows), type=Footer)
    except (msgspec.MsgspecError, ValueError, OverflowError, TypeError) as error:
        raise InvariantError(f"segment {origin.id!r}: {error}") from error


def _stripe_slices(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield `batch` in slices of at most about `most_bytes`, which share its memory."""
    if batch.num_rows:
        step = max(1, batch.num_rows * most_bytes // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


class _BlockCutter:
    """Gathers the rows of some columns and cuts them into blocks of about so many bytes."""

    def __init__(self, schema: pa.Schema, block_bytes: int, codec: str) -> None:
        self.schema = schema
        self._block_bytes = block_bytes
        self._encoder = BlockEncoder(schema, codec)
        self._pending: deque[pa.RecordBatch] = deque()
        self._pending_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        # Under our own schema: the batch's may have other metadata, and so another length.
        self._pending.append(pa.RecordBatch.from_arrays(batch.columns, schema=self.schema))
        self._pending_bytes += batch.nbytes

    def cut(self, *, last: bool) -> Iterator[tuple[Block, pa.RecordBatch]]:
        """Yield the blocks that are full, and their rows; with `last`, everything."""
        while self._pending_bytes >= self._block_bytes or (last and self._pending):
            batch = self._take()
            yield self._encoder.encode(batch), batch

    def _take(self) -> pa.RecordBatch:
        """Return the rows of the next block; those of one batch are sliced, not copied."""
        taken: list[pa.RecordBatch] = []
        room = self._block_bytes
        while self._pending and room > 0:
            batch = self._pending.popleft()
            size = max(1, batch.nbytes)
            rows = max(1, room * batch.num_rows // size)
            # By the average; but one long row among short ones must not swell its block.
            while rows > 1 and batch.slice(0, rows).nbytes > 2 * self._block_bytes:
                rows //= 2
            if rows < batch.num_rows:
                self._pending.appendleft(batch.slice(rows))
                batch, size = batch.slice(0, rows), room
            taken.append(batch)
            room -= size
        self._pending_bytes = sum(batch.nbytes for batch in self._pending)
        return pa.concat_batches(taken) if len(taken) > 1 else taken[0]


class _RowIndex:
    """Gathers what the row index says."""

    def __init__(self, narrow: pa.Schema) -> None:
        self._schema = row_index_schema(narrow)
        self._ordered = [field.name for field in ordered_columns(narrow)]
        self._lines: list[tuple[object, ...]] = []

    def add(self, batch: pa.RecordBatch, place: tuple[int, ...]) -> None:
        keys, lsns = batch.column(KEY), pc.min_max(batch.column(LSN))
        bounds = [value for name in self._ordered for value in bounds_of(batch.column(name))]
        self._lines.append(
            (
                keys[0].as_py(),
                keys[-1].as_py(),
                lsns["min"].as_py(),
                lsns["max"].as_py(),
                pc.sum(batch.column(TOMBSTONE)).as_py(),
                *place,
                *bounds,
            )
        )

    def batch(self) -> pa.RecordBatch:
        columns = zip(*self._lines, strict=True)
        return pa.record_batch(
            [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)],
            schema=self._schema,
        )


def _sums(index: pa.RecordBatch) -> dict[str, Any]:
    """Return what a row index says of the segment as a whole: fields of its footer, and of its reference."""
    return {
        "rows": pc.sum(index["rows"]).as_py(),
        "tombstones": pc.sum(index["tombstones"]).as_py(),
        "key_min": index["key_first"][0].as_py(),
        "key_max": index["key_last"][-1].as_py(),
        "lsn_min": pc.min(index["lsn_min"]).as_py(),
        "lsn_max": pc.max(index["lsn_max"]).as_py(),
    }
