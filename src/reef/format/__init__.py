"""The on-store formats: bytes ↔ objects, pure, no I/O. `docs/formats/` has the byte grammars.

Log object     encode_log, decode_log, seal_log, SealedLog (parts and checksum), log_checksum, log_key;
               LogObject, LogRecord, LogKind, Prev (the valid object before it)
Manifest       encode_manifest, decode_manifest, manifest_checksum, manifest_key, parse_manifest_key;
               Manifest, SegmentRef, DedupRef, Snapshot, Pin, Intent, Origin, Retention, Collection,
               Boundary, Copied, ShortenedGrace, PendingDelete, SkippedSlot, WalAnchor, Lease, EndedWriter,
               LsnPolicy, PARALLEL_WRITES_MAX, GRACE_MS_DEFAULT; new_records: those that a base has not
Dedup window   encode_dedup, decode_dedup, dedup_checksum, dedup_key;
               DedupWindow, DedupEntry (a request), DedupStream (how far a source has come)
Segment        SegmentWriter, SegmentOptions, SegmentOrigin, segment_key; decode_segment, decode_tail,
               tail_length, check_preamble, decode_framed (a block without its index); SegmentTail, Section,
               Footer, Merged (what a compaction put into it), slots_of, joined_slots, ulid_number,
               pack_numbers; BlockPlace, BlockPlaces, Bloom, hash_key, hash_keys, bounds_of,
               ordered_columns
Rows           KEY, LSN, TOMBSTONE, SEGMENT_COLUMNS; log_schema, segment_schema, vector_columns,
               decode_schema, decode_stream, schema_fingerprint, field_id, with_field_id;
               owned, owned_rows, OwnedRows, SingleRows: rows on memory that no caller has
Damage         Unreadable: why an object cannot be read, as a value; damaged_checksum names a damaged object by the checksum of all its bytes

Decoders raise IncompleteError, CorruptError or FormatVersionError, whatever the bytes, and nothing
else. Encoders raise InvariantError before a wrong byte could be written.
"""

from reef.format._block_index import BlockPlace, BlockPlaces, bounds_of, ordered_columns
from reef.format._bloom import Bloom, hash_key, hash_keys
from reef.format._dedup import (
    DedupEntry,
    DedupStream,
    DedupWindow,
    decode_dedup,
    dedup_checksum,
    dedup_key,
    encode_dedup,
)
from reef.format._frame import Unreadable, damaged_checksum
from reef.format._log_model import LogKind, LogObject, LogRecord, Prev
from reef.format._log_object import (
    SealedLog,
    decode_log,
    encode_log,
    log_checksum,
    log_key,
    seal_log,
)
from reef.format._manifest import (
    decode_manifest,
    encode_manifest,
    manifest_checksum,
    manifest_key,
    parse_manifest_key,
)
from reef.format._manifest_model import (
    GRACE_MS_DEFAULT,
    PARALLEL_WRITES_MAX,
    Boundary,
    Collection,
    Copied,
    DedupRef,
    EndedWriter,
    Intent,
    Lease,
    LsnPolicy,
    Manifest,
    Origin,
    PendingDelete,
    Pin,
    Retention,
    SegmentRef,
    ShortenedGrace,
    SkippedSlot,
    Snapshot,
    WalAnchor,
    new_records,
    schema_fingerprint,
)
from reef.format._owned import OwnedRows, SingleRows, owned, owned_rows
from reef.format._row_stream import (
    KEY,
    LSN,
    SEGMENT_COLUMNS,
    TOMBSTONE,
    decode_schema,
    decode_stream,
    field_id,
    log_schema,
    segment_schema,
    with_field_id,
)
from reef.format._segment_block import decode_framed
from reef.format._segment_model import (
    Footer,
    Merged,
    Section,
    SegmentOptions,
    SegmentOrigin,
    joined_slots,
    pack_numbers,
    segment_key,
    slots_of,
    ulid_number,
    vector_columns,
)
from reef.format._segment_reader import (
    SegmentTail,
    check_preamble,
    decode_segment,
    decode_tail,
    tail_length,
)
from reef.format._segment_writer import SegmentWriter

__all__ = [
    "GRACE_MS_DEFAULT",
    "KEY",
    "LSN",
    "PARALLEL_WRITES_MAX",
    "SEGMENT_COLUMNS",
    "TOMBSTONE",
    "BlockPlace",
    "BlockPlaces",
    "Bloom",
    "Boundary",
    "Collection",
    "Copied",
    "DedupEntry",
    "DedupRef",
    "DedupStream",
    "DedupWindow",
    "EndedWriter",
    "Footer",
    "Intent",
    "Lease",
    "LogKind",
    "LogObject",
    "LogRecord",
    "LsnPolicy",
    "Manifest",
    "Merged",
    "Origin",
    "OwnedRows",
    "PendingDelete",
    "Pin",
    "Prev",
    "Retention",
    "SealedLog",
    "Section",
    "SegmentOptions",
    "SegmentOrigin",
    "SegmentRef",
    "SegmentTail",
    "SegmentWriter",
    "ShortenedGrace",
    "SingleRows",
    "SkippedSlot",
    "Snapshot",
    "Unreadable",
    "WalAnchor",
    "bounds_of",
    "check_preamble",
    "damaged_checksum",
    "decode_dedup",
    "decode_framed",
    "decode_log",
    "decode_manifest",
    "decode_schema",
    "decode_segment",
    "decode_stream",
    "decode_tail",
    "dedup_checksum",
    "dedup_key",
    "encode_dedup",
    "encode_log",
    "encode_manifest",
    "field_id",
    "hash_key",
    "hash_keys",
    "joined_slots",
    "log_checksum",
    "log_key",
    "log_schema",
    "manifest_checksum",
    "manifest_key",
    "new_records",
    "ordered_columns",
    "owned",
    "owned_rows",
    "pack_numbers",
    "parse_manifest_key",
    "schema_fingerprint",
    "seal_log",
    "segment_key",
    "segment_schema",
    "slots_of",
    "tail_length",
    "ulid_number",
    "vector_columns",
    "with_field_id",
]
