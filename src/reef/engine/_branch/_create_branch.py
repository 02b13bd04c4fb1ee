"""Making a branch: a namespace whose first manifest names what another one has at one LSN.

1. Load the branch's head: there must be none, or one of a life that has ended. Replay the parent's
   log up to that LSN, to be sure that it is there, and look through the rest for a newer schema.
2. Pin the parent.                                  crash: a pin that nothing stands on; collecting the
3. Pin every other namespace whose objects the             parent puts "aborted" where the branch would
   parent's pinned manifest names.                         begin, and only then takes the pin out
4. Upload what the parent's log has up to that LSN  crash: that, and orphans under the branch's prefix
   as level-0 segments of the branch.
5. Publish the branch's first generation:           crash: done
   the only visible step.

Invariants:

- The branch is built from the generation that holds its pin: nothing that it names can be collected.
- The branch begins at the generation behind the head of step 1, or not at all: the first to publish
  it, another maker or a collection that gave this one up, wins for good.
- Pins are taken back only when it is certain that the branch did not begin; if it is not, collection
  finds out.
- The branch has the newest schema of its parent, whatever its LSN: what was dropped is not shown
  again, and no number of a column that the parent has given out is given out anew.
- The number of PUTs does not depend on the data: one for each namespace that is pinned, one for the log
  (more only where it attaches segments), one for the branch. Nobody is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import pyarrow as pa

from reef.context import Context
from reef.engine._commit._flush import FlushPlan, write_flush
from reef.engine._holes import check_end
from reef.engine._open_namespace import check_whole
from reef.engine._tail import Tail
from reef.errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
)
from reef.format import LogKind, Manifest, SegmentRef, WalAnchor
from reef.log import ChainPoint, LogEntry, LogReader
from reef.manifest import (
    BranchPoint,
    Head,
    ManifestChain,
    add_pin,
    begin_branch,
    no_namespace,
    release_pins,
    share_pin,
)
from reef.types import new_nonce, split_namespace


class Branch(NamedTuple):
    """A branch, for people."""

    name: str
    namespace: str
    """The namespace of the branch: the name of its root, @ and its own."""
    parent: str | None
    """The namespace that it was made from; None: it was detached."""
    lsn: int | None
    """The version at which it left its parent."""
    generation: int
    """The newest of its manifests."""
    last_applied_lsn: int
    """The newest version that its segments reflect."""
    expires_at_us: int
    """When collection may drop it, by the store's clock, in microseconds since 1970; 0 is never."""

    @staticmethod
    def of(manifest: Manifest) -> Branch:
        """Return the branch that this head describes."""
        origin = manifest.origin
        return Branch(
            split_namespace(manifest.namespace)[1] or "",
            manifest.namespace,
            None if origin is None else origin.namespace,
            None if origin is None else origin.lsn,
            manifest.generation,
            manifest.last_applied_lsn,
            0 if origin is None else origin.expires_at_us,
        )


def create_branch(
    context: Context,
    parent: str,
    child: str,
    lsn: int | None = None,
    *,
    born: int | None = None,
    ttl_s: float | None = None,
    expires_at_us: int = 0,
) -> Branch:
    """Make `child` a branch of `parent` at `lsn`; None: at the newest version that is durable.

    `born` is the life of the parent that is meant, if not any. The branch expires after `ttl_s`, or
    at `expires_at_us`, by the store's clock; else never. Raises AlreadyExistsError,
    NotFoundError if there is no such parent, RetentionError below its floor, InvalidInputError beyond
    its newest version, NotWrittenError if a collection aborted it (retry),
    OutcomeUnknownError, UnavailableError, CorruptError.
    """
    chain = context.chain(child)
    old = _check_free(chain.load(), child)
    making = _Making(context, parent, child, new_nonce(context.rng).hex())
    try:
        point, segments = making.prepare(0 if old is None else old.writer_epoch, lsn, born)
        if ttl_s is not None:
            expires_at_us = making.now_us + round(ttl_s * 1_000_000)
        return Branch.of(_publish(chain, old, point, segments, expires_at_us).manifest)
    except OutcomeUnknownError:
        raise
    except ReefError as error:
        if not _may_have_begun(error):
            making.take_back()
        raise


@dataclass
class _Making:
    """A branch in the making, and the pins that it has put."""

    context: Context
    parent: str
    child: str
    nonce: str

    def __post_init__(self) -> None:
        self._pinned: list[ManifestChain] = []

    @property
    def now_us(self) -> int:
        """The store's time, as the PUT of the latest pin has shown it."""
        return self._pinned[-1].estimated_now_us

    def prepare(
        self, epoch: int, lsn: int | None, born: int | None
    ) -> tuple[BranchPoint, tuple[SegmentRef, ...]]:
        """Pin what the branch will name, upload the unfolded rows; return its first content."""
        # First: a pin promises that the log reaches its version.
        replayed = self._replayed(lsn, born)
        manifest = self._pin(replayed.lsn, replayed.manifest.born)
        if not replayed.moves_to(manifest):
            replayed = _Replayed(self.context, manifest, replayed.lsn)
        point = replayed.point(self.nonce)
        for owner in sorted({ref.namespace for ref in point.segments()} - {self.parent}):
            self._share(owner, manifest)
        return point, replayed.upload(self.context, self.child, epoch, point)

    def _replayed(self, lsn: int | None, born: int | None) -> _Replayed:
        chain = self.context.chain(self.parent)
        manifest = self._live(chain.load(), born)
        while True:
            found: _Replayed | ReefError
            try:
                found = _Replayed(self.context, manifest, lsn)
                replay, head = found.tail.replay, chain.head
                assert head is not None
                if check_end(self.context, chain, head, replay.reach, replay.ahead):
                    manifest = self._live(chain.head, born)
                    continue
            except (CorruptError, InvalidInputError) as error:
                found = error
            if isinstance(found, _Replayed) and not chain.is_out_of_touch:
                return found
            # An absent slot may have been folded and collected since the head was read. If nothing
            # was folded since, it is really absent.
            before, manifest = manifest, self._live(chain.load(), born)
            if manifest.wal_floor == before.wal_floor:
                if isinstance(found, _Replayed):
                    return found
                raise found

    def _live(self, head: Head | None, born: int | None) -> Manifest:
        if head is None or head.manifest.state != "live":
            raise self._no_parent()
        if born not in (None, head.manifest.born):
            raise self._no_parent()
        return head.manifest

    def take_back(self) -> None:
        """Remove the pins, as far as the store answers; collection removes the rest."""
        for chain in reversed(self._pinned):
            try:
                chain.publish(self._without_pin)
            except ReefError:
                return

    def _pin(self, lsn: int, born: int) -> Manifest:
        def pinned(head: Head | None) -> Manifest:
            if head is None or head.manifest.born != born:
                raise self._no_parent()
            return add_pin(head.manifest, lsn=lsn, child=self.child, nonce=self.nonce)

        chain = self.context.chain(self.parent)
        published = chain.publish(pinned)
        self._pinned.append(chain)
        return published.manifest

    def _share(self, owner: str, parent: Manifest) -> None:
        def pinned(head: Head | None) -> Manifest:
            if head is None:
                raise CorruptError(
                    f"namespaces/{owner}/manifest/",
                    0,
                    "the manifests of a pinned namespace",
                    "none",
                )
            return share_pin(head.manifest, parent, child=self.child, nonce=self.nonce)

        chain = self.context.chain(owner)
        chain.publish(pinned)
        self._pinned.append(chain)

    def _without_pin(self, head: Head | None) -> Manifest | None:
        if head is None:
            return None
        released = release_pins(head.manifest, {(self.child, self.nonce)})
        return None if released is head.manifest else released

    def _no_parent(self) -> NotFoundError:
        return NotFoundError(
            f"{no_namespace(self.context.store.url, self.parent)}: there is nothing to branch"
        )


class _Replayed:
    """The unfolded log of a manifest: its rows up to a version and no further, its newest schema."""

    def __init__(self, context: Context, manifest: Manifest, lsn: int | None) -> None:
        """Read it; None: to its end. Raises InvalidInputError if it does not reach the version."""
        self.manifest = manifest
        self.tail = Tail(manifest)
        self.lsn = self.tail.lsn if lsn is None else lsn
        self.head: ChainPoint = self.tail.replay.point
        self.slot_last = manifest.wal_floor - 1
        self._schema = self.tail.schema
        is_past = lsn is not None and lsn < manifest.last_applied_lsn
        reader = LogReader(context.store, manifest.namespace, manifest.lsn_policy)
        parallel = manifest.max_parallel_writes
        entries = reader.read(
            self.tail.replay, last_known=manifest.wal_last_seen, parallel=parallel
        )
        for entry in entries:
            upto = None if is_past else _upto(entry, lsn)
            if upto is None:
                is_past = True
                self.tail.schema = _schema_of(entry) or self.tail.schema
                continue
            self.tail.apply(upto)
            self.head, self.slot_last = self.tail.replay.point, entry.slot
        check_whole(manifest, self.tail)
        if lsn is not None and lsn > self.tail.lsn and not is_past:
            raise InvalidInputError.of(
                "lsn", lsn, f"a number up to {self.tail.lsn}, the newest version"
            )
        if lsn is None:
            self.lsn = self.tail.lsn

    def moves_to(self, manifest: Manifest) -> bool:
        """Use a later manifest if nothing was folded meanwhile; return whether that is so."""
        is_same = (manifest.born, manifest.wal_floor) == (
            self.manifest.born,
            self.manifest.wal_floor,
        )
        if is_same:
            self.manifest = manifest
        return is_same

    def point(self, nonce: str) -> BranchPoint:
        """Return the chain point at which a branch at this version begins."""
        head = WalAnchor(slot=self.head.slot, checksum=self.head.checksum, epoch=self.head.epoch)
        schema = self.manifest.schema
        if self.tail.schema is not None and self.tail.schema is not self._schema:
            schema = self.tail.schema.serialize().to_pybytes()
        return BranchPoint(
            parent=self.manifest,
            lsn=self.lsn,
            slot_last=self.slot_last,
            head=head,
            schema=schema,
            nonce=nonce,
        )

    def upload(
        self, context: Context, child: str, epoch: int, point: BranchPoint
    ) -> tuple[SegmentRef, ...]:
        """Write the rows as segments of the branch; return them, and what the log attached.

        Their ids end in the epoch of the branch's old head: until a writer opens the branch, or it is
        aborted, a collection of what was there before spares them.
        """
        plan = FlushPlan(
            slot_first=self.manifest.wal_floor,
            slot_last=self.slot_last,
            anchor=point.head,
            lsn=self.lsn,
            schema=self.tail.schema,
            skipped=(),
            attached=self.tail.attached,
            memtable=self.tail.memtable,
            window=None,
            is_packed=self.manifest.lsn_policy == "packed",
        )
        if self.slot_last < self.manifest.wal_floor:
            return ()
        written = write_flush(context, child, epoch, plan).segments
        attached = len(plan.attached)
        return (*written[attached:], *point.share(written[:attached]))


def _upto(entry: LogEntry, lsn: int | None) -> LogEntry | None:
    """Return what an object has up to a version; None if all of it comes later."""
    log = entry.log
    if lsn is None or not entry.is_valid or log.kind is LogKind.FENCE or log.lsn_last <= lsn:
        return entry
    if log.lsn_first > lsn:
        return None
    records = tuple(record for record in log.records if record.lsn <= lsn)
    return LogEntry(
        entry.slot, msgspec.structs.replace(log, records=records), entry.checksum, entry.size, True
    )


def _schema_of(entry: LogEntry) -> pa.Schema | None:
    """Return the schema that an object sets, or None. A schema is alone in its object."""
    return entry.log.records[0].schema if entry.is_valid and entry.log.records else None


def _check_free(head: Head | None, child: str) -> Manifest | None:
    if head is None:
        return None
    if head.damaged:
        raise CorruptError(
            f"namespaces/{child}/manifest/",
            0,
            "a readable head, or none",
            f"damage above generation {head.generation}; run `reef repair`",
        )
    if head.manifest.state == "live":
        raise _exists(child)
    return head.manifest


def _publish(
    chain: ManifestChain,
    old: Manifest | None,
    point: BranchPoint,
    segments: tuple[SegmentRef, ...],
    expires_at_us: int,
) -> Head:
    fresh = chain.first(point.parent.gc.grace_ms)

    def begun(head: Head | None) -> Manifest:
        if (head and head.generation) != (old and old.generation):
            assert head is not None
            if head.manifest.state == "live":
                raise _exists(chain.namespace)
            raise NotWrittenError(
                f"making {chain.namespace!r} took so long that garbage collection aborted it; nothing "
                "was branched: retry"
            )
        return begin_branch(point, fresh, old, segments, expires_at_us=expires_at_us)

    return chain.publish(begun)


def _may_have_begun(error: ReefError) -> bool:
    """Return whether the branch may exist, or appear later, in spite of an error."""
    # `publish` says "unknown" where it does not know, and "corrupt" of one's own damaged object.
    return isinstance(error, OutcomeUnknownError | CorruptError)


def _exists(child: str) -> AlreadyExistsError:
    return AlreadyExistsError(f"{child!r} exists: drop it, or give the branch another name")
