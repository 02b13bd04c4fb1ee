"""What a manifest says: one frozen object per generation, and the small records in it.

Types and ranges stand here and are checked when bytes are decoded; what must hold between fields
stands in `_manifest_invariants`. Records that come in lists are arrays on the store, because a
manifest may name 100,000 segments; records that come once are objects, because people read them.

A new member is one of an object, has a default that means "as before", and is left out while it has
it (`omit_defaults`); with another value the manifest is one of format version 2. Arrays do not grow:
what is new about their records stands in a member of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import is_
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct, structs

from reef.types import LSN_MAX, NAME_BYTES_MAX, SLOT_MAX, U32_MAX

# Patterns are searched for, not matched, and `$` would let a newline through: hence ^ and \Z.
ULID_PATTERN = r"[0-7][0-9A-HJKMNP-TV-Z]{25}"
OWNER_PATTERN = r"[a-z0-9-]{1,40}"

MANIFEST_VERSION_MAX = 2
"""1 has no optional members; 2 has those that are in it."""
GRACE_MS_DEFAULT = 15 * 60 * 1000
PARALLEL_WRITES_MAX = 64
"""What any writer of this format may have in flight, whatever the settings of this Reef allow."""

U32 = Annotated[int, Meta(ge=0, le=U32_MAX)]
Count = Annotated[int, Meta(ge=0, le=LSN_MAX)]
Positive = Annotated[int, Meta(ge=1, le=LSN_MAX)]
Lsn = Annotated[int, Meta(ge=1, le=LSN_MAX)]
LsnOrZero = Annotated[int, Meta(ge=0, le=LSN_MAX)]
Slot = Annotated[int, Meta(ge=1, le=SLOT_MAX)]
SlotOrZero = Annotated[int, Meta(ge=0, le=SLOT_MAX)]
Generation = Annotated[int, Meta(ge=1, le=LSN_MAX)]
Epoch = Annotated[int, Meta(ge=0, le=LSN_MAX)]
Micros = Annotated[int, Meta(ge=0, le=LSN_MAX)]
Level = Annotated[int, Meta(ge=0, le=255)]

Ulid = Annotated[str, Meta(pattern=rf"^{ULID_PATTERN}\Z")]
SegmentId = Annotated[str, Meta(pattern=rf"^{ULID_PATTERN}(?:-{OWNER_PATTERN})?\Z")]
# e<digits> is how a segment names the epoch of the writer that flushed it.
IntentId = Annotated[str, Meta(pattern=rf"^(?!e[0-9]+\Z){OWNER_PATTERN}\Z")]
SnapshotId = Annotated[
    str, Meta(pattern=rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_BYTES_MAX - 1}}}\Z")
]
JobKind = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}\Z")]
Nonce = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Fingerprint = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Text = Annotated[str, Meta(min_length=1, max_length=256)]

_Record = TypeVar("_Record")

State = Literal["live", "dropped", "aborted"]
LsnPolicy = Literal["packed", "caller"]


def schema_fingerprint(schema: bytes) -> str:
    """Return the hex of the first 16 bytes of the SHA-256 of an Arrow IPC schema's bytes."""
    return hashlib.sha256(schema).hexdigest()[:32]


# gc=False: these hold only str, bytes, int and None, so no cycle can pass through them, and
# Python's collector need not walk 100,000 of them.
class SegmentRef(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A live segment: what a read plan needs to know before it opens the file."""

    id: SegmentId
    """A ULID, then "-" and its owner where it has one: an intent's id, or e<writer epoch>."""
    level: Level
    rows: Positive
    """Rows in the file, tombstones included."""
    tombstones: Count
    key_min: bytes
    key_max: bytes
    lsn_min: Lsn
    lsn_max: Lsn
    size: Positive
    """Bytes of the whole file."""
    footer_length: Annotated[int, Meta(ge=1, le=U32_MAX)]
    """Bytes to read from the end of the file to plan a read."""
    checksum: U32
    version: Lsn | None = None
    """The version of every row, whatever the file says: it was attached by the log."""
    namespace: str = ""
    """Whose prefix holds the file; "" is this namespace's own."""
    clip_lsn: Lsn | None = None
    """The greatest LSN visible through this reference."""
    clip_key_min: bytes | None = None
    """The least key visible (inclusive)."""
    clip_key_max: bytes | None = None
    """The key at which visibility ends (exclusive)."""


class Snapshot(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A generation and an LSN that stay readable until the snapshot expires or is removed."""

    id: SnapshotId
    generation: Generation
    lsn: LsnOrZero
    expires_at_us: Micros
    """By the store's clock; 0 is never."""


class Pin(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A snapshot without expiry that a branch stands on."""

    generation: Generation
    lsn: LsnOrZero
    child: str
    nonce: Nonce


class Intent(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A pipeline job that may publish; its unreferenced segments are spared while it stands."""

    id: IntentId
    kind: JobKind
    author: Text
    opened_at_us: Micros
    generation: Generation
    """The generation that registered it."""


class SkippedSlot(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A damaged log object that every reader passes over, by name."""

    slot: Slot
    checksum: U32
    """`damaged_checksum` of its bytes as they were found."""


class PendingDelete(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """An object that nothing live names any more."""

    key: str
    """From the root of the bucket, under this namespace's own prefix."""
    since_generation: Generation
    """The first generation that does not name it; its age is that generation's on the store."""


class WalAnchor(Struct, frozen=True, forbid_unknown_fields=True):
    """The last valid log object below `wal_floor`, which the chain goes on from."""

    slot: SlotOrZero
    """0: there is none yet."""
    checksum: U32
    """`log_checksum` of it."""
    epoch: Epoch


class DedupRef(Struct, frozen=True, forbid_unknown_fields=True):
    """The dedup window that holds at this generation."""

    id: Ulid
    size: Positive
    checksum: U32


class Lease(Struct, frozen=True, forbid_unknown_fields=True):
    """Who opened the namespace for writing last. For people: the epoch is what fences."""

    holder: Text
    host: Text
    opened_at_us: Micros


class EndedWriter(Struct, frozen=True, forbid_unknown_fields=True):
    """A writer that was closed with nothing unknown: no request of its epoch is on the way."""

    epoch: Epoch
    slot: Slot
    """The first slot that it left absent."""


class Retention(Struct, frozen=True, forbid_unknown_fields=True):
    """How far back reads may go."""

    floor_lsn: LsnOrZero
    pitr_window_ms: Count | None
    """None: no window."""


class Boundary(Struct, frozen=True, forbid_unknown_fields=True):
    """The first slot and generation that collection has not been allowed to delete."""

    slot: Slot
    generation: Generation


class ShortenedGrace(Struct, frozen=True, forbid_unknown_fields=True):
    """A longer grace period, which readers of the generations before go on relying on."""

    from_ms: Count
    since_generation: Generation
    """The first generation with the shorter one; its age is that of its object on the store."""


class Collection(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What garbage collection has to remember."""

    pending: tuple[PendingDelete, ...]
    boundary: Boundary
    grace_ms: Count
    """How long what nothing names any more stays; readers rely on it."""
    shortened: ShortenedGrace | None = None
    """None: no generation that may still be known promised more."""


class Origin(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a branch left its parent."""

    namespace: str
    generation: Generation
    lsn: LsnOrZero
    head: WalAnchor
    """The parent's last valid log object at that point: the branch's first one names it as its
    `prev`. The epoch is the parent's; a branch counts its own."""
    nonce: Nonce
    """Of the pins that this life of the branch stands on."""
    expires_at_us: Micros = 0
    """When the branch may be dropped, by the store's clock; 0 is never."""


class Copied(Struct, frozen=True, forbid_unknown_fields=True):
    """What came from another bucket, where the Last-Modified of its objects says nothing of their age."""

    last_slot: SlotOrZero
    """Slots up to here are those of the source, whether their objects came along or not."""
    newest_us: Micros
    """The latest `created_at_us` of what was copied: of these log objects, those that the copied
    segments have folded, and the generation copied."""
    born: Generation
    """The generation with which the life of the source began."""
    generation: Generation
    """That of the source which was copied."""
    writer_epoch: Epoch
    """That of the source. A greater one in the same manifest: the copy was opened for writing since,
    and takes no further copy."""
    lsn: LsnOrZero
    """The version that was copied. A later copy does not go back behind it."""


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One generation of a namespace. The order of the fields is their order on the store."""

    namespace: str
    generation: Generation
    state: State
    born: Generation
    """The generation at which this life began: 1, or that which went on from a dropped one."""
    author: Text
    nonce: Nonce
    """Tells this author's object from another's at the same key; found once in the bytes."""
    created_at_us: Micros
    predecessor_checksum: U32 | None
    """`manifest_checksum` of the generation before, or of `repaired_from`; None for generation 1."""
    repaired_from: Generation | None
    """Set by repair: the generation that this one goes on from, those between being damaged."""
    origin: Origin | None
    lsn_policy: LsnPolicy
    max_parallel_writes: Annotated[int, Meta(ge=1, le=PARALLEL_WRITES_MAX)]
    writer_epoch: Epoch
    compactor_epoch: Epoch
    lease: Lease | None
    ended: EndedWriter | None = None
    """Of epoch `writer_epoch`: the next writer needs no fence. Of the epoch below: the writer that
    opened needed none. None, or of any other: not known to have ended."""
    wal_floor: Slot
    """The first slot that is not folded into segments."""
    wal_anchor: WalAnchor
    wal_last_seen: SlotOrZero
    last_applied_lsn: LsnOrZero
    """The newest LSN that the segments reflect."""
    dedup: DedupRef | None
    retention: Retention
    schema: bytes
    """An Arrow IPC schema message of columns with stable ids, or b"" before there is one."""
    schema_fingerprint: Fingerprint
    skipped_slots: tuple[SkippedSlot, ...]
    intents: tuple[Intent, ...]
    pins: tuple[Pin, ...]
    snapshots: tuple[Snapshot, ...]
    gc: Collection
    segments: tuple[SegmentRef, ...]
    followed: tuple[Generation, ...] = ()
    """Generations of snapshots behind which all of the log is kept: somebody reads the snapshot
    first, and then what was committed after it."""
    copied: Copied | None = None
    """None: the whole log was written here."""

    @classmethod
    def first(
        cls,
        namespace: str,
        *,
        author: str,
        nonce: str,
        created_at_us: int,
        lsn_policy: LsnPolicy = "packed",
        max_parallel_writes: int = 1,
        grace_ms: int = GRACE_MS_DEFAULT,
    ) -> Manifest:
        """Return generation 1 of an empty namespace that no writer has opened yet."""
        return cls(
            namespace=namespace,
            generation=1,
            state="live",
            born=1,
            author=author,
            nonce=nonce,
            created_at_us=created_at_us,
            predecessor_checksum=None,
            repaired_from=None,
            origin=None,
            lsn_policy=lsn_policy,
            max_parallel_writes=max_parallel_writes,
            writer_epoch=0,
            compactor_epoch=0,
            lease=None,
            wal_floor=1,
            wal_anchor=WalAnchor(slot=0, checksum=0, epoch=0),
            wal_last_seen=0,
            last_applied_lsn=0,
            dedup=None,
            retention=Retention(floor_lsn=0, pitr_window_ms=None),
            schema=b"",
            schema_fingerprint=schema_fingerprint(b""),
            skipped_slots=(),
            intents=(),
            pins=(),
            snapshots=(),
            gc=Collection(pending=(), boundary=Boundary(slot=1, generation=1), grace_ms=grace_ms),
            segments=(),
        )


def _optional(record: type[Struct]) -> tuple[tuple[str, object], ...]:
    return tuple((f.name, f.default) for f in structs.fields(record) if not f.required)


_OPTIONAL: dict[type, tuple[tuple[str, object], ...]] = {
    record: _optional(record)
    for record in (Manifest, Collection, Retention, Boundary, Origin, WalAnchor, DedupRef, Lease)
}


def new_records(before: Sequence[_Record], after: Sequence[_Record]) -> list[_Record]:
    """Return which records of `after` are not the very objects of `before`, which were checked."""
    if len(before) <= len(after) and all(map(is_, before, after)):
        return list(after[len(before) :])
    known = set(map(id, before))
    return [record for record in after if id(record) not in known]


def format_version(manifest: Manifest) -> int:
    """Return the least version that has all members that `manifest` uses."""
    parts = (manifest.gc, manifest.retention, manifest.origin, manifest.lease, manifest.dedup)
    for part in (manifest, manifest.wal_anchor, manifest.gc.boundary, *parts):
        for name, default in _OPTIONAL.get(type(part), ()):
            if getattr(part, name) != default:
                return 2
    return 1
