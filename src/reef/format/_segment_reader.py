"""Reading a segment: its tail first, then the blocks that a plan asks for.

Nothing here does I/O: `decode_tail` takes the bytes that one ranged GET brought, and tells which
ranges to fetch next; `decode_rows` and `decode_column` take those.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.errors import CorruptError, IncompleteError, InvalidInputError
from reef.format._arrow_limits import RawRoom
from reef.format._block_index import (
    BOUND_BYTES_MAX,
    COLUMN_INDEX_SCHEMA,
    BlockPlace,
    BlockPlaces,
    BlockRanges,
    row_index_schema,
)
from reef.format._bloom import BLOCK_BYTES, Bloom
from reef.format._frame import HEAD_BYTES, SEGMENT_MAGIC, check_head, crc32c
from reef.format._manifest_model import SegmentRef
from reef.format._row_stream import (
    SEGMENT_COLUMNS,
    decode_schema,
    decode_stream,
    nulls_problem,
    schema_problem,
)
from reef.format._segment_block import BLOCK_BYTES_MIN, decode_block
from reef.format._segment_model import (
    BLOOM,
    COLUMN_INDEX,
    FRAME,
    PREAMBLE_BYTES,
    ROW_INDEX,
    SEAL,
    TRAILER,
    TRAILER_BYTES,
    Footer,
    Section,
    split_schema,
)
from reef.types import KEY_BYTES_MAX

RunAll = Callable[
    [Callable[[int], list[pa.RecordBatch]], Iterable[int]], Iterable[list[pa.RecordBatch]]
]
_RUN = 16

_footer_decoder = msgspec.msgpack.Decoder(Footer)


@dataclass(frozen=True)
class SegmentTail:
    """What one ranged GET tells of a segment: all that is needed to plan a read."""

    key: str
    size: int
    checksum: int
    """Of the footer: what the manifest names."""
    footer: Footer
    schema: pa.Schema
    bloom: Bloom
    row_index: pa.RecordBatch
    row_places: BlockPlaces
    column_places: Mapping[str, BlockPlaces]
    """For each wide column."""

    @cached_property
    def ranges(self) -> BlockRanges:
        """What the row index says of the rows in each block."""
        return BlockRanges(*(self.row_index[name].to_pylist() for name in BlockRanges._fields))

    @cached_property
    def _narrow(self) -> pa.Schema:
        return split_schema(self.schema, self.footer.wide)[0]

    def blocks_of(self, start: bytes, end: bytes | None) -> range:
        """Return the numbers of the row blocks that may hold keys from `start` up to `end`.

        `end` is exclusive; None is past every key.
        """
        key_first = self.ranges.key_first
        first = bisect_left(self.ranges.key_last, start)
        last = len(key_first) if end is None else bisect_left(key_first, end)
        return range(first, max(first, last))

    def decode_rows(self, block: int, data: bytes) -> pa.RecordBatch:
        """Return the narrow columns of row block `block` from its bytes, frame included."""
        place = self.row_places[block]
        rows = decode_block(pa.py_buffer(data), place, self._narrow, self.key)
        self.check_rows(block, rows)
        return rows

    def check_rows(self, block: int, rows: pa.RecordBatch) -> None:
        """Raise unless `rows` can be those of row block `block`, by what the index says of it."""
        problem = nulls_problem(rows.columns[: len(SEGMENT_COLUMNS)], SEGMENT_COLUMNS)
        if not problem:
            keys, lsns = rows.column(0), rows.column(1).to_numpy()
            found = (
                keys[0].as_py(),
                keys[-1].as_py(),
                int(lsns.min()),
                int(lsns.max()),
                rows.column(2).true_count,
            )
            said = tuple(column[block] for column in self.ranges)
            problem = "" if found == said else f"{found}, where the index says {said}"
        if problem:
            offset = self.row_places[block].offset
            raise CorruptError(self.key, offset, "the rows of its index", problem)

    def decode_column(self, column: str, block: int, data: bytes) -> pa.Array:
        """Return the values of block `block` of a wide column from its bytes, frame included."""
        schema = pa.schema([self.schema.field(column)])
        place = self.column_places[column][block]
        return decode_block(pa.py_buffer(data), place, schema, self.key).column(0)


def tail_length(data: bytes, *, key: str = "", size: int) -> int:
    """Return how long the tail is, from the last bytes of a segment of `size` bytes.

    For reading a segment that no manifest describes. Raises like `decode_tail`.
    """
    _, _, length, _ = _decode_trailer(data, key, size)
    return length


def decode_tail(
    data: bytes, *, key: str = "", size: int, ref: SegmentRef | None = None
) -> SegmentTail:
    """Return what the tail of a segment of `size` bytes says, every check made.

    `data` is exactly the tail; `ref` is what a manifest says of the segment. Raises IncompleteError,
    CorruptError, FormatVersionError.
    """
    footer_bytes, checksum, length, start = _decode_trailer(data, key, size)
    if len(data) != length:
        raise CorruptError(key, start, f"a tail of {length} bytes", f"{len(data)}")
    end = length - TRAILER_BYTES
    at = end - footer_bytes - -footer_bytes % 8
    if at < 0:
        raise CorruptError(key, start, f"a footer of {footer_bytes} bytes", f"{end} bytes for it")
    footer = _decode_footer(data[at:end], footer_bytes, checksum, key, start + at)
    schema = _decode_schema(footer, key, start + at)
    inner = [section for section in footer.sections if section.offset >= start]
    sections = _decode_sections(pa.py_buffer(data).slice(0, at), inner, key, start)
    narrow, _ = split_schema(schema, footer.wide)
    index_schema = row_index_schema(narrow)
    room = RawRoom(_index_bytes_max(size, len(index_schema)))
    row_index = _decode_index(sections, ROW_INDEX, index_schema, key, start, room)
    column_index = _decode_index(sections, COLUMN_INDEX, COLUMN_INDEX_SCHEMA, key, start, room)
    tail = SegmentTail(
        key=key,
        size=size,
        checksum=checksum,
        footer=footer,
        schema=schema,
        bloom=_decode_bloom(sections, key, start),
        row_index=row_index,
        row_places=BlockPlaces(row_index),
        column_places={
            name: BlockPlaces(column_index.filter(pc.equal(column_index["column"], number)))
            for number, name in enumerate(footer.wide)
        },
    )
    outer = [section for section in footer.sections if section.offset < start]
    problem = _tail_problem(tail, column_index.num_rows, outer, start) or _ref_problem(tail, ref)
    if problem:
        raise CorruptError(key, start, "a tail that agrees with itself and its manifest", problem)
    return tail


def check_preamble(data: bytes, *, key: str = "") -> None:
    """Raise unless `data` begins like a segment."""
    check_head(data, SEGMENT_MAGIC, key)
    if len(data) < PREAMBLE_BYTES:
        raise IncompleteError(key, len(data), "a preamble", "the end")
    if any(data[HEAD_BYTES:PREAMBLE_BYTES]):
        raise CorruptError(key, HEAD_BYTES, "zeros", repr(data[HEAD_BYTES:PREAMBLE_BYTES]))


def decode_segment(
    data: bytes | pa.Buffer,
    *,
    key: str = "",
    columns: Sequence[str] | None = None,
    run_all: RunAll = map,
) -> tuple[SegmentTail, pa.Table]:
    """Return the tail and the rows of a whole segment, every block checked.

    `columns` chooses the columns to decode, in their order; blocks of others are not touched.
    `run_all` is `map`, or that of an executor, to decode zstd on its threads. lz4 and plain blocks
    come at the speed of memory, where threads only get into each other's way.
    """
    whole = pa.py_buffer(data)
    size = whole.size
    check_preamble(whole.slice(0, min(size, PREAMBLE_BYTES)).to_pybytes(), key=key)
    end = whole.slice(max(0, size - TRAILER_BYTES)).to_pybytes()
    length = tail_length(end, key=key, size=size)
    tail = decode_tail(whole.slice(size - length).to_pybytes(), key=key, size=size)
    outer = [section for section in tail.footer.sections if section.offset < size - length]
    for section in outer:
        body = whole.slice(section.offset, _framed_bytes(section))
        _decode_sections(body, [section], key, section.offset, all_of_tail=False)
    names = tail.schema.names if columns is None else list(columns)
    if not set(names) <= set(tail.schema.names):
        raise InvalidInputError.of("columns", names, f"some of {', '.join(tail.schema.names)}")
    narrow, wide = split_schema(tail.schema, tail.footer.wide)
    found: dict[str, pa.ChunkedArray] = {}
    groups = [(narrow, tail.row_places), *zip(wide, tail.column_places.values(), strict=True)]
    for schema, places in groups:
        if set(names) & set(schema.names):
            decode = partial(_decode_run, whole, list(places), schema, key)
            starts = range(0, len(places), _RUN)
            runs = run_all(decode, starts) if tail.footer.codec == "zstd" else map(decode, starts)
            batches = [batch for run in runs for batch in run]
            if places is tail.row_places:
                for block, batch in enumerate(batches):
                    tail.check_rows(block, batch)
            table = pa.Table.from_batches(batches, schema)
            found.update(zip(schema.names, table.columns, strict=True))
    schema = pa.schema([tail.schema.field(name) for name in names])
    return tail, pa.Table.from_arrays([found[name] for name in names], schema=schema)


def _decode_trailer(data: bytes, key: str, size: int) -> tuple[int, int, int, int]:
    """Return footer length, footer checksum, tail length, and where in the file the tail starts."""
    if len(data) < TRAILER_BYTES or size < PREAMBLE_BYTES + TRAILER_BYTES or len(data) > size:
        raise IncompleteError(key, 0, "a segment with its trailer", f"{min(len(data), size)} bytes")
    at = len(data) - TRAILER_BYTES
    trailer = data[at : at + TRAILER.size]
    checksum, zeros, magic = SEAL.unpack_from(data, at + TRAILER.size)
    if magic != SEGMENT_MAGIC:
        raise IncompleteError(key, size - 8, f"the closing magic {SEGMENT_MAGIC!r}", repr(magic))
    if crc32c(trailer) != checksum or any(zeros):
        got = f"{crc32c(trailer):08x} and {zeros!r}"
        raise CorruptError(key, size - TRAILER_BYTES, f"crc32c {checksum:08x} of the trailer", got)
    footer_bytes, footer_checksum, length, said = TRAILER.unpack(trailer)
    if said != size or not TRAILER_BYTES < length <= size - PREAMBLE_BYTES:
        raise CorruptError(key, size - TRAILER_BYTES, f"{said} bytes, {length} of tail", f"{size}")
    return footer_bytes, footer_checksum, length, size - length


def _decode_footer(data: bytes, length: int, checksum: int, key: str, offset: int) -> Footer:
    footer = data[:length]
    if crc32c(footer) != checksum:
        raise CorruptError(
            key, offset, f"crc32c {checksum:08x} of the footer", f"{crc32c(footer):08x}"
        )
    if any(data[length:]):
        raise CorruptError(key, offset + length, "zeros after the footer", repr(data[length:]))
    try:
        return _footer_decoder.decode(footer)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptError(key, offset, "a footer", str(error)) from error


def _decode_schema(footer: Footer, key: str, offset: int) -> pa.Schema:
    schema = decode_schema(pa.py_buffer(footer.schema), key, offset)
    problem = schema_problem(schema, SEGMENT_COLUMNS)
    wide = set(footer.wide)
    if not problem and (len(wide) != len(footer.wide) or not wide <= set(schema.names[3:])):
        problem = f"wide columns {footer.wide}"
    if problem:
        raise CorruptError(key, offset, "a segment's schema", problem)
    return schema


def _framed_bytes(section: Section) -> int:
    return FRAME.size + section.length + -section.length % 8


def _decode_sections(
    data: pa.Buffer, sections: Sequence[Section], key: str, start: int, *, all_of_tail: bool = True
) -> Mapping[str, pa.Buffer]:
    """Return the sections' bytes by name; they fill `data`, which starts at `start` in the file."""
    found: dict[str, pa.Buffer] = {}
    at = 0
    for section in sections:
        body_at = at + FRAME.size
        end = at + _framed_bytes(section)
        if section.offset != start + at or end > data.size or section.name in found:
            raise CorruptError(key, start + at, f"section {section.name!r}", "another layout")
        body = data.slice(body_at, section.length)
        frame = FRAME.unpack(data.slice(at, FRAME.size))
        got = (section.length, crc32c(body))
        if not frame == got == (section.length, section.checksum):
            raise CorruptError(
                key, start + at, f"crc32c {section.checksum:08x} of {section.name}", f"{got[1]:08x}"
            )
        if any(memoryview(data)[body_at + section.length : end]):
            raise CorruptError(key, start + body_at + section.length, "zeros", "something else")
        found[section.name] = body
        at = end
    wanted = {BLOOM, ROW_INDEX, COLUMN_INDEX} if all_of_tail else set()
    if at != data.size or not wanted <= found.keys():
        raise CorruptError(key, start + at, "all sections up to the footer", f"{sorted(found)}")
    return found


def _decode_bloom(sections: Mapping[str, pa.Buffer], key: str, offset: int) -> Bloom:
    data = sections[BLOOM]
    if data.size < BLOCK_BYTES or data.size % BLOCK_BYTES:
        raise CorruptError(
            key, offset, f"a filter in blocks of {BLOCK_BYTES}", f"{data.size} bytes"
        )
    return Bloom(data.to_pybytes())


def _index_bytes_max(size: int, columns: int) -> int:
    """Return the most that the indexes of a segment of `size` bytes take, uncompressed.

    That is a row for each block that fits into it: two keys, numbers, and bounds of columns.
    """
    row_bytes = 2 * KEY_BYTES_MAX + columns * (BOUND_BYTES_MAX + 16) + 64
    return (size // BLOCK_BYTES_MIN + 1) * row_bytes + 64 * columns


def _decode_index(
    sections: Mapping[str, pa.Buffer],
    name: str,
    schema: pa.Schema,
    key: str,
    offset: int,
    room: RawRoom,
) -> pa.RecordBatch:
    index = decode_stream(sections[name], key, offset, room)
    if index.schema != schema:
        raise CorruptError(key, offset, f"the schema of the {name}", str(index.schema)[:200])
    if any(index[field.name].null_count for field in schema if not field.nullable):
        raise CorruptError(key, offset, f"a {name} without nulls", "nulls")
    return index


def _decode_run(
    whole: pa.Buffer, places: Sequence[BlockPlace], schema: pa.Schema, key: str, start: int
) -> list[pa.RecordBatch]:
    """Return the rows of the blocks from number `start` on, as many as a thread takes at a time."""
    return [
        decode_block(whole.slice(place.offset, place.length), place, schema, key)
        for place in places[start : start + _RUN]
    ]


def _ref_problem(tail: SegmentTail, ref: SegmentRef | None) -> str:
    """Return where a manifest says something else of the segment, or ""."""
    if ref is None:
        return ""
    footer = tail.footer
    found = (footer.id, tail.size, tail.checksum, footer.rows, footer.key_min, footer.key_max)
    said = (ref.id, ref.size, ref.checksum, ref.rows, ref.key_min, ref.key_max)
    return "" if found == said else f"{found}, where the manifest says {said}"


def _tail_problem(
    tail: SegmentTail, column_blocks: int, outer: Sequence[Section], start: int
) -> str:
    """Return where indexes and footer disagree, or ""."""
    footer, index = tail.footer, tail.row_index
    places = [tail.row_places, *tail.column_places.values()]
    if sum(map(len, places)) != len(tail.row_places) + column_blocks:
        return "blocks of columns that there are not"
    for some in places:
        problem = some.problem(footer.rows)
        if problem:
            return problem
    lengths = np.concatenate([some.length for some in places])
    if (lengths < BLOCK_BYTES_MIN).any():
        return "an empty block"
    lengths = np.append(lengths, [_framed_bytes(section) for section in outer])
    offsets = np.concatenate([some.offset for some in places])
    offsets = np.append(offsets, [section.offset for section in outer])
    ends = offsets + lengths
    order = np.argsort(offsets)
    if offsets[order[0]] != PREAMBLE_BYTES or ends[order[-1]] != start:
        return "blocks that do not reach from the preamble to the tail"
    if (ends[order[:-1]] != offsets[order[1:]]).any():
        return "blocks with gaps between them"
    first, last = index["key_first"], index["key_last"]
    if not pc.all(pc.less_equal(first, last)).as_py():
        return "a block whose first key is above its last"
    if (
        len(first) > 1
        and not pc.all(pc.less_equal(last.slice(0, len(last) - 1), first.slice(1))).as_py()
    ):
        return "blocks whose keys overlap"
    said = (footer.key_min, footer.key_max, footer.lsn_min, footer.lsn_max, footer.tombstones)
    found = (
        first[0].as_py(),
        last[-1].as_py(),
        pc.min(index["lsn_min"]).as_py(),
        pc.max(index["lsn_max"]).as_py(),
        pc.sum(index["tombstones"]).as_py(),
    )
    return "" if said == found else f"{said} in the footer and {found} in the index"
