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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import pyarrow as pa

from reef.errors import InvariantError
from reef.format._bloom import BITS_PER_KEY_DEFAULT
from reef.format._frame import HEAD_BYTES, SEGMENT_MAGIC, head
from reef.format._manifest_model import (
    U32,
    Count,
    Level,
    Lsn,
    Micros,
    Positive,
    SegmentId,
    SegmentRef,
    Slot,
)
from reef.types import LSN_MAX, check_namespace, check_object_key, unpack_lsn

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

ULID_BYTES = 16
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

Text = Annotated[str, msgspec.Meta(max_length=256)]


class Section(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A named part of the tail: where its frame starts, and what its bytes sum to."""

    name: Text
    offset: Positive
    length: U32
    checksum: U32


class Merged(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a compaction put into a segment: without any manifest, this tells what it stands for."""

    key_start: bytes
    """From this key on it stands for its inputs, and for what those stood for."""
    key_end: bytes
    """Exclusive."""
    slots: tuple[tuple[Slot, Slot], ...]
    """The log slots that its inputs were folded from, or attached by: first and last, in order."""
    is_whole: bool
    """Whether those of all inputs were known."""
    before: bytes
    """The ULIDs of the segments that its inputs had replaced, 16 bytes each: see `Footer.replaced_numbers`."""
    is_short: bool
    """Whether there are more of those than it names."""


def pack_numbers(ulids: Iterable[int]) -> bytes:
    """Return ULIDs as `Merged.before` holds them."""
    return b"".join(number.to_bytes(ULID_BYTES, "big") for number in ulids)


def ulid_number(id: str) -> int:
    """Return the ULID that a segment id begins with, as a number."""
    number = 0
    for letter in id[:26]:
        number = number << 5 | _CROCKFORD.index(letter)
    return number


class Footer(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
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
    merged: Merged | None = None
    """Of an output of a compaction: what it stands for."""

    def replaced_numbers(self) -> set[int]:
        """Return `ulid_number` of all segments whose rows it took over, directly or not."""
        before = b"" if self.merged is None else self.merged.before
        starts = range(0, len(before) - ULID_BYTES + 1, ULID_BYTES)
        packed = {int.from_bytes(before[at : at + ULID_BYTES], "big") for at in starts}
        return packed.union(map(ulid_number, self.replaced_segments))


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
    merged: Merged | None = None


def slots_of(
    footer: Footer, ref: SegmentRef, *, is_packed: bool
) -> tuple[tuple[int, int], ...] | None:
    """Return the log slots that the rows which a reference shows come from; None: they are not known.

    An attached segment is of the slot that its version names, and a clip at a version ends at one.
    Where callers give the versions, both are unknown.
    """
    spans: tuple[tuple[int, int], ...]
    if ref.version is not None:
        spans = (((slot := unpack_lsn(ref.version)[0]), slot),)
    elif footer.merged is not None:
        if not footer.merged.is_whole:
            return None
        spans = footer.merged.slots
    elif footer.replaced_slots is not None:
        spans = (footer.replaced_slots,)
    else:
        return None
    if not is_packed and (ref.version, ref.clip_lsn) != (None, None):
        return None
    end = LSN_MAX if ref.clip_lsn is None else unpack_lsn(ref.clip_lsn)[0]
    return tuple((first, min(last, end)) for first, last in spans if first <= end)


def joined_slots(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return ranges of slots in order, those that touch as one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return tuple(joined)


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
