r"""What a segment file is made of.

    segment = head, u32 zero, block*, tail
    head    = magic "RFSEG1\0\0", format version u32
    block   = length u32, crc32c u32 of what follows, codec u8, padding u8, u16 zero,
              raw length u32, body, so many zeros as padding says: to a multiple of 8
    body    = an Arrow IPC record-batch message, compressed as a whole unless codec is 0
    tail    = filter section, row index section, column index section, footer, zeros to 8, trailer
    section = length u32, crc32c u32, bytes, zeros to 8
    trailer = footer length u32, crc32c of the footer u32, tail length u64, object bytes u64,
              crc32c u32 of these 24 bytes, u32 zero, magic

Row blocks hold the narrow columns, sorted by key, then by version from new to old. A wide column
(a vector, a page) lies in column blocks of its own, cut where it suits its size, so that a scan of
attributes never reads it. Blocks are found through the indexes only, so their order is free: the
writer emits runs of row blocks, then the column blocks of the same rows. The footer names the
sections, so that others (filter, vector and text indexes) can be added beside these three.

The checksum of a segment is that of its footer, which holds the sections' checksums, which hold
those of the blocks: one ranged GET of the tail vouches for the whole file's structure, and each
block read vouches for itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import pyarrow as pa

from reef.errors import InvariantError
from reef.format._bloom import BITS_PER_KEY_DEFAULT
from reef.format._frame import HEAD_BYTES, SEGMENT_MAGIC, head
from reef.format._manifest_model import U32, Count, Level, Lsn, Micros, Positive, SegmentId, Slot
from reef.types import check_namespace, check_object_key

FRAME = struct.Struct("<II")
TRAILER = struct.Struct("<IIQQ")
SEAL = struct.Struct("<I4s8s")
TRAILER_BYTES = TRAILER.size + SEAL.size
PREAMBLE = head(SEGMENT_MAGIC) + bytes(4)
PREAMBLE_BYTES = HEAD_BYTES + 4

ROW_BLOCK_BYTES_DEFAULT = 256 << 10
COLUMN_BLOCK_BYTES_DEFAULT = 1 << 20
STRIPE_BYTES_DEFAULT = 32 << 20

BLOOM = "bloom"
ROW_INDEX = "row-index"
COLUMN_INDEX = "column-index"

Text = Annotated[str, msgspec.Meta(max_length=256)]


class Section(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A named part of the tail: where its frame starts, and what its bytes sum to."""

    name: Text
    offset: Positive
    length: U32
    checksum: U32


class Footer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a segment says of itself."""

    id: SegmentId
    namespace: Text
    level: Level
    author: Text
    created_at_us: Micros
    codec: Literal["lz4", "zstd"]
    schema: bytes
    """The Arrow IPC schema of its rows, system columns first."""
    wide: tuple[str, ...]
    """The columns that lie in column blocks."""
    rows: Positive
    tombstones: Count
    key_min: bytes
    key_max: bytes
    lsn_min: Lsn
    lsn_max: Lsn
    replaced_segments: tuple[SegmentId, ...]
    """The segments whose rows it took over: a rebuild must not bring them back beside it."""
    replaced_slots: tuple[Slot, Slot] | None
    """The first and the last log slot that it folded."""
    part: tuple[Positive, Positive]
    """Which of how many outputs of its job it is: only all of them together replace anything."""
    sections: tuple[Section, ...]


@dataclass(frozen=True, kw_only=True)
class SegmentOptions:
    """How a segment is written."""

    codec: Literal["lz4", "zstd"] = "lz4"
    """zstd only where a compaction was asked for it."""
    wide: tuple[str, ...] | None = None
    """None: every column of vectors."""
    row_block_bytes: int = ROW_BLOCK_BYTES_DEFAULT
    column_block_bytes: int = COLUMN_BLOCK_BYTES_DEFAULT
    stripe_bytes: int = STRIPE_BYTES_DEFAULT
    """After so many bytes of rows, the column blocks that wait in memory go out."""
    bloom_bits_per_key: int = BITS_PER_KEY_DEFAULT


@dataclass(frozen=True, kw_only=True)
class SegmentOrigin:
    """Where a segment comes from: what its footer records beside the rows."""

    id: str
    namespace: str
    level: int
    author: str
    created_at_us: int
    replaced_segments: tuple[str, ...] = ()
    replaced_slots: tuple[int, int] | None = None
    part: tuple[int, int] = (1, 1)


def segment_key(namespace: str, id: str) -> str:
    """Return the key of segment `id` of `namespace`."""
    return check_object_key(f"namespaces/{check_namespace(namespace)}/segments/{id}.seg")


def vector_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns of `schema` that hold vectors."""
    return tuple(
        field.name
        for field in schema
        if pa.types.is_fixed_size_list(field.type) and pa.types.is_floating(field.type.value_type)
    )


def split_schema(schema: pa.Schema, wide: tuple[str, ...]) -> tuple[pa.Schema, list[pa.Schema]]:
    """Return the schema of the row blocks, and one for each wide column."""
    if len(set(wide)) != len(wide) or not set(wide) <= set(schema.names[3:]):
        raise InvariantError(f"wide columns {wide} are not columns of the segment, each once")
    narrow = pa.schema([field for field in schema if field.name not in wide])
    return narrow, [pa.schema([schema.field(name)]) for name in wide]
