"""Copying a namespace to another bucket while it is written to.

1. Take a snapshot of the source.                    crash: it expires after six hours
2. Copy segments and the dedup window, and check     crash: objects that nothing names; the next copy
   each at the destination.                                 goes on behind them
   A later copy whose source has another writer, or  crash: a copy of what the segments hold,
   has collected log that the destination lacks:            without all of the log below
   publish the epoch and what is folded.
3. Copy the log.                                     crash: a later copy has some of the new versions
4. Publish the manifest at the destination.          crash: done
5. Release the snapshot.

Invariants:

- The manifest comes last, and names nothing that was not read back from the destination and found
  whole, by this copy or by an earlier one that was published.
- Objects are copied byte by byte. A segment of another namespace (a branch shares its parent's), or
  one whose newer versions a clip hides, is written anew: a copy stands by itself, and holds nothing
  that its source does not show.
- The log is copied up to one slot, so a copy is a version of its source, never a mixture of two.
- Where a manifest is there already, everybody who opens the destination reads on behind it. So the log
  grows there as it does under a writer: in order, with no more in flight, nothing behind an absent slot,
  and what an object attaches is there first.
- Who writes, who works and what stands on it (lease, intents, pins) stays behind.
- A destination that was opened for writing, or folded or compacted by itself, is refused: two
  histories cannot be joined. So is a copy of another namespace of that name, whose log differs.

A later copy brings what is missing, and names it in the next generation. What the source does not name
any more waits in the destination's `gc.pending`, for its own collection.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain as chained
from typing import TypeAlias

import msgspec

from reef.engine import (
    Context,
    Reader,
    Time,
    create_branch,
    drop_namespace,
    face_of,
    newest_manifest,
    open_for_reading,
)
from reef.errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    StalePlanError,
    UnavailableError,
    UnreadableError,
)
from reef.format import (
    Boundary,
    Collection,
    Copied,
    Manifest,
    PendingDelete,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    Snapshot,
    decode_log,
    dedup_checksum,
    dedup_key,
    log_key,
    segment_key,
)
from reef.jobs._progress import PassProgress, Watch
from reef.log import list_slots
from reef.manifest import Head, ManifestChain, release_snapshot, renew, set_grace
from reef.segment import check_segment, merge_versions, versions_schema, write_segment
from reef.settings import parse_time
from reef.store import Store
from reef.threads import for_each
from reef.types import namespace_of, new_nonce, new_ulid, split_namespace

_PART_BYTES = 8 << 20
_LANES_MAX = 8
_HOLD_S = 6 * 3600.0
_RENEW_S = 3600.0
_ROUNDS_MAX = 5

_Step: TypeAlias = tuple[int, Callable[[], None]]
_Work: TypeAlias = list[_Step]
"""Objects to bring: the bytes of each, and what does it."""

_replace = msgspec.structs.replace


@dataclass(frozen=True)
class CopyResult:
    """What a copy did."""

    namespace: str
    lsn: int
    """The version that the destination has."""
    generation: int
    """Of the destination."""
    objects: int
    """How many were copied or written anew; the others were there."""
    bytes: int
    is_changed: bool = True
    """False: the destination had that version already."""


def copy_namespace(
    source: Context,
    target: Context,
    namespace: str,
    *,
    lsn: int | None = None,
    time: Time | None = None,
    watch: Watch | None = None,
) -> CopyResult:
    """Copy a namespace to the bucket of `target`, or bring an earlier copy up to date.

    What is copied is the version at `lsn`, or as of `time`, or the newest. Safe beside its writer, its
    jobs, its collection and other copies; stopped at any point, it is simply called again. Raises
    NotFoundError, RetentionError for an LSN below the floor, InvalidInputError for a destination that
    is no copy of it, or was written to, CorruptError for damage on either side, UnavailableError,
    OutcomeUnknownError.
    """
    chain = target.chain(namespace)
    with contextlib.ExitStack() as stack:
        past = _past_version(source, namespace, lsn, time)
        held = namespace if past is None else _hold_past(source, namespace, past, stack)
        hold = stack.enter_context(_Hold(source, namespace, held))
        _check_destination(_head(chain), hold)
        return _Copying(source, target, hold, chain, watch).run()


def _head(chain: ManifestChain) -> Head | None:
    """Return the head of the destination; None if it has no manifest, only what a copy has brought."""
    return chain.load() if chain.generations() else None


def _past_version(
    context: Context, namespace: str, lsn: int | None, time: Time | None
) -> int | None:
    if lsn is not None and time is not None:
        raise InvalidInputError("lsn and time are both given: give at most one")
    if time is None:
        return lsn
    reader = _reader(context, namespace)
    try:
        return reader.version_by_time(parse_time("time", time)).lsn
    finally:
        reader.close()


def _as_root(branch: Manifest, root: Manifest) -> Manifest:
    """Return the manifest of a branch as one of the namespace that it was made from for this copy."""
    if branch.namespace == root.namespace or branch.origin is None:
        return branch
    return _replace(
        branch,
        wal_anchor=branch.origin.head,
        writer_epoch=root.writer_epoch,
        compactor_epoch=root.compactor_epoch,
    )


def _reader(context: Context, namespace: str) -> Reader:
    return open_for_reading(context, namespace, face_of(newest_manifest(context, namespace)))


def _hold_past(context: Context, namespace: str, lsn: int, stack: contextlib.ExitStack) -> str:
    """Make a branch of a past version, until it is copied; return its namespace."""
    name = f"copy-{new_nonce(context.rng).hex()[:16]}"
    branch = create_branch(
        context, namespace, namespace_of(split_namespace(namespace)[0], name), lsn, ttl_s=_HOLD_S
    )
    stack.callback(drop_namespace, context, branch.namespace)
    return branch.namespace


class _Hold:
    """A version of the source, which a snapshot keeps readable while it is copied."""

    def __init__(self, context: Context, copied: str, namespace: str) -> None:
        """Hold the newest version of `namespace`: the one that is `copied`, or a branch of it."""
        self.namespace = namespace
        self._chain = context.chain(namespace)
        self._clock = context.clock
        self.id = f"copy-{new_nonce(context.rng).hex()[:16]}"
        self._lock = threading.Lock()
        reader = _reader(context, namespace)
        try:
            self.lsn = reader.newest_lsn()
            slot_last = reader.tail.replay.next_slot - 1
            attached, skipped = reader.tail.attached, reader.tail.skipped
            # With the log, it stands on a generation of its own, and not on one of an older epoch.
            held = reader.snapshot(_HOLD_S, id=self.id, keeps_log=True).snapshot
        finally:
            reader.close()
        self._renewed_at = self._clock.monotonic()
        manifest = self._chain.at(held.generation).manifest
        # Not earlier: a branch goes on from the epochs that its parent had.
        self.root = manifest if namespace == copied else newest_manifest(context, copied)
        self.manifest = _as_root(manifest, self.root)
        # A damaged object that a fence skips is copied as it is.
        self.skipped = {one.slot for one in (*self.manifest.skipped_slots, *skipped)}
        # Folded since: then the segments have it, and what they attach.
        self.slot_last = max(slot_last, self.manifest.wal_floor - 1)
        named = {ref.id for ref in self.manifest.segments}
        self.attached = tuple(ref for ref in attached if ref.id not in named)
        self.lsn = max(self.lsn, self.manifest.last_applied_lsn)

    def __enter__(self) -> _Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def keep(self) -> None:
        """Renew the snapshot if it is due. Raises NotFoundError if it expired all the same."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._renewed_at > _RENEW_S:
                renew(self._chain, id=self.id, ttl_s=_HOLD_S)
                self._renewed_at = now

    def boundary(self) -> int:
        """Return the first slot that collection of the source has not been allowed to delete."""
        head = self._chain.load()
        assert head is not None, "a namespace that was read has a manifest"
        return head.manifest.gc.boundary.slot

    def _release(self) -> None:
        def released(head: Head | None) -> Manifest | None:
            if head is None or all(one.id != self.id for one in head.manifest.snapshots):
                return None
            return release_snapshot(head.manifest, self.id)

        if self._chain.load() is not None:
            self._chain.publish(released)


def _check_destination(head: Head | None, hold: _Hold) -> None:
    """Raise InvalidInputError unless a copy of the source may be published on `head`."""
    if head is None:
        return
    there, copied = head.manifest, head.manifest.copied
    what = f"the namespace {there.namespace!r} at the destination"
    instead = "copy into an empty bucket or folder"
    if there.state != "live" or copied is None:
        raise InvalidInputError(f"{what} is not a copy: {instead}")
    if there.writer_epoch != copied.writer_epoch:
        raise InvalidInputError(
            f"{what} was opened for writing since it was copied, so it has a history of its own: "
            f"{instead}"
        )
    if copied.born != hold.root.born or there.last_applied_lsn > hold.lsn:
        raise InvalidInputError(f"{what} is a copy of another namespace of that name: {instead}")
    if copied.lsn > hold.lsn or copied.last_slot > hold.slot_last:
        raise InvalidInputError(
            f"{what} is further on: it has LSN {copied.lsn} and the log up to slot "
            f"{copied.last_slot}, and what is to be copied has LSN {hold.lsn} and ends at slot "
            f"{hold.slot_last}: copy a later version, or {instead}"
        )
    waiting = {one.key for one in there.gc.pending}
    again = {segment_key(there.namespace, ref.id) for ref in hold.manifest.segments}
    if hold.manifest.dedup is not None:
        again.add(dedup_key(there.namespace, hold.manifest.dedup.id))
    if there.wal_floor > hold.manifest.wal_floor or not waiting.isdisjoint(again):
        raise InvalidInputError(
            f"{what} was folded or compacted since it was copied, or is a copy of a past version that "
            f"the source has not folded yet: {instead}, or flush the source first. Leave a copy to "
            "`reef gc` alone until it is written to"
        )


class _Copying:
    """One copy: the objects that the destination lacks, and its next manifest."""

    def __init__(
        self,
        source: Context,
        target: Context,
        hold: _Hold,
        chain: ManifestChain,
        watch: Watch | None,
    ) -> None:
        self._source, self._target = source, target
        self._hold = hold
        self._chain = chain
        self._watch = watch
        self._namespace = chain.namespace
        self._readers = source.segments(hold.namespace)
        self._slots = list_slots(source.store, hold.namespace)
        self._lock = threading.Lock()
        self._slot_last, self._lsn = hold.slot_last, hold.lsn
        """How far the manifest goes that is published next."""
        self._is_begun = False
        """Whether the newest generation was published before the log."""
        self._newest_us = hold.manifest.created_at_us
        self._written: dict[SegmentRef, SegmentRef | None] = {}
        """What each segment of the source is called at the destination; None: it shows no row."""
        self._objects = self._bytes = 0

    def run(self) -> CopyResult:
        before = head = _head(self._chain)
        self._check_history(head)
        self._check_end()
        for _ in range(_ROUNDS_MAX):
            head = self._bring(head)
            if not any(self._work(head)):
                break
            # Collection of the destination took something that was not named yet.
        else:
            raise UnavailableError(
                f"what was copied of {self._namespace!r} was collected at the destination "
                f"{_ROUNDS_MAX} times before it was named; run the copy again"
            )
        return CopyResult(
            self._namespace,
            self._hold.lsn,
            head.generation,
            self._objects,
            self._bytes,
            is_changed=before is None or before.generation != head.generation,
        )

    def _check_history(self, head: Head | None) -> None:
        """Raise InvalidInputError if the log at the destination is not the source's, as far as it goes.

        Each object names the one before it, so the newest that both have tells.
        """
        if head is None or head.manifest.copied is None:
            return
        last, there = (
            head.manifest.copied.last_slot,
            list_slots(self._target.store, self._namespace),
        )
        common = [slot for slot in self._slots if slot <= last and slot in there]
        if common:
            self._copy_log(max(common), log_key(self._namespace, max(common)))

    def _check_end(self) -> None:
        """Raise InvalidInputError if the log there goes on: it would become part of this copy."""
        newest = max(list_slots(self._target.store, self._namespace), default=0)
        if newest > self._slot_last:
            raise InvalidInputError(
                f"{log_key(self._namespace, newest)} at the destination is of a newer version than "
                f"the one to copy, whose log ends at slot {self._slot_last}: an earlier copy brought "
                "it and did not end. Copy the newest version, or copy into an empty bucket or folder"
            )

    def _bring(self, head: Head | None) -> Head:
        """Bring what the destination lacks, and name it; return the head after that."""
        content, log = self._work(head)
        bringing = self._bringing([*content, *(step for _, step in log)])
        self._do(content, bringing)
        if head is None:
            self._do([step for _, step in log], bringing)
            return self._publish(head)
        m, there = self._hold.manifest, head.manifest
        last_slot = 0 if there.copied is None else there.copied.last_slot
        if there.writer_epoch < m.writer_epoch or self._is_broken(last_slot, m.wal_floor):
            self._slot_last, self._lsn = m.wal_floor - 1, m.last_applied_lsn
            head = self._publish(head)
            self._slot_last, self._lsn = self._hold.slot_last, self._hold.lsn
            self._is_begun = True
        floor, parallel = head.manifest.wal_floor, head.manifest.max_parallel_writes
        self._do([step for slot, step in log if slot < floor], bringing)
        unfolded = [step for slot, step in log if slot >= floor]
        for at in range(0, len(unfolded), parallel):
            self._do(unfolded[at : at + parallel], bringing)
        head = self._publish(head)
        self._is_begun = False
        return head

    def _is_broken(self, last_slot: int, floor: int) -> bool:
        """Return whether the source has collected log behind `last_slot` that is folded by now."""
        between = sum(last_slot < slot < floor for slot in self._slots)
        return between < floor - 1 - last_slot

    def _work(self, head: Head | None) -> tuple[_Work, list[tuple[int, _Step]]]:
        """Return what the destination lacks, and of the log, by slot."""
        named = {} if head is None else {ref.id: ref for ref in head.manifest.segments}
        prefix = f"namespaces/{self._namespace}/"
        there = {meta.key: meta.size for meta in self._target.store.list(prefix)}
        work: _Work = []
        copied = None if head is None else head.manifest.copied
        if copied is not None and copied.last_slot == self._hold.slot_last:
            named.update((ref.id, ref) for ref in self._hold.attached)  # by the log that came along
        for ref in (*self._hold.manifest.segments, *self._hold.attached):
            work += self._segment_work(ref, named, there)
        return [*work, *self._window_work(head, there)], [*self._log_work(head, there)]

    def _bringing(self, work: _Work) -> Callable[[int], None]:
        """Return what is called with the size of each object of `work` that was brought."""
        total = sum(size for size, _ in work)
        done = done_bytes = 0

        def note(size: int) -> None:
            nonlocal done, done_bytes
            with self._lock:
                done, done_bytes = done + 1, done_bytes + size
                seen = PassProgress(
                    tasks_done=done,
                    tasks=len(work),
                    bytes_done=done_bytes,
                    bytes=total,
                    rows=0,
                    namespaces=0,
                )
            if self._watch is not None:
                self._watch(seen)

        self._objects += len(work)
        self._bytes += total
        return note

    def _do(self, work: _Work, done: Callable[[int], None]) -> None:
        def run(item: _Step) -> None:
            size, copy = item
            self._hold.keep()
            copy()
            done(size)

        width = min(_LANES_MAX, max(self._source.store.concurrency, self._target.store.concurrency))
        for_each(work, run, width=width, threads=self._target.threads)

    # Segments.

    def _segment_work(
        self, ref: SegmentRef, named: Mapping[str, SegmentRef], there: Mapping[str, int]
    ) -> Iterator[_Step]:
        """Yield what is to be done for a segment of the source, if anything."""
        owner = ""
        copied: SegmentRef | None = _replace(ref, namespace="", clip_lsn=None)
        if not self._is_plain(ref):
            owner = _owner_of(ref, self._hold.namespace)
            copied = next((one for one in named.values() if one.id.endswith(f"-{owner}")), None)
        if copied is not None:
            self._written[ref] = copied
            key = segment_key(self._namespace, copied.id)
            is_there = there.get(key) == copied.size
            if is_there and copied.id in named:
                return
            if not owner:
                yield ref.size, partial(self._copy_segment, key, copied, is_there=is_there)
                return
        yield ref.size, partial(self._write_anew, ref, owner)

    def _is_plain(self, ref: SegmentRef) -> bool:
        """Return whether the file may be copied as it is: its own, and with no version hidden."""
        is_clipped = ref.clip_lsn is not None and ref.clip_lsn < ref.lsn_max
        return not is_clipped and (ref.namespace or self._hold.namespace) == self._namespace

    def _copy_segment(self, key: str, ref: SegmentRef, *, is_there: bool) -> None:
        if not is_there:  # under the same key: it belongs to the namespace of that name
            with contextlib.suppress(AlreadyExistsError):  # another copy has brought it
                self._target.store.upload(key, _parts(self._source.store, key, ref.size))
        self._check_segment(ref)

    def _write_anew(self, ref: SegmentRef, owner: str) -> None:
        """Write the rows that the source shows of a segment, with their versions."""
        source = self._readers.open(ref)
        origin = SegmentOrigin(
            id=f"{new_ulid(self._target.clock, self._target.rng)}-{owner}",
            namespace=self._namespace,
            level=ref.level,
            author=self._target.author,
            created_at_us=self._target.clock.now_us(),
        )
        rows = merge_versions([source], start=b"", end=None)
        first = next(rows, None)
        written = None
        if first is not None:
            footer = source.tail().footer
            options = SegmentOptions(
                codec=footer.codec,
                wide=footer.wide,
                row_block_bytes=self._target.settings.row_block_bytes,
            )
            written = write_segment(
                self._target.store,
                self._namespace,
                versions_schema([source]),
                origin,
                options,
                chained([first], rows),
            )
            self._check_segment(written)
        with self._lock:
            self._written[ref] = written

    def _check_segment(self, ref: SegmentRef) -> None:
        """Read a segment back. Raises CorruptError, which names what is wrong with it."""
        checked = check_segment(self._target.store, self._namespace, ref, ref.size, deep=True)
        if checked.is_missing:
            raise CorruptError(checked.key, 0, "a segment that was just copied", "nothing")
        if checked.errors:
            raise checked.errors[0]

    # The dedup window and the log.

    def _window_work(self, head: Head | None, there: Mapping[str, int]) -> Iterator[_Step]:
        ref = self._hold.manifest.dedup
        if ref is None:
            return
        key = dedup_key(self._namespace, ref.id)
        if head is not None and head.manifest.dedup == ref and there.get(key) == ref.size:
            return

        def check(data: bytes) -> None:
            expected, got = (ref.size, ref.checksum), (len(data), dedup_checksum(data, key=key))
            if got != expected:
                raise CorruptError(key, 0, f"{expected}, as the manifest says of it", f"{got}")

        of = dedup_key(self._hold.namespace, ref.id)
        yield ref.size, partial(self._copy_object, key, check, of=of)

    def _log_work(self, head: Head | None, there: Mapping[str, int]) -> Iterator[tuple[int, _Step]]:
        """Yield what is to be done for log objects up to the last slot of this copy, in order.

        Those below the floor are not needed to read the copy: they are its history, for the feed and for
        "as of" a time, as far as the source still has it.
        """
        copied = (
            0 if head is None or head.manifest.copied is None else head.manifest.copied.last_slot
        )
        for slot, size in self._slots.items():
            key = log_key(self._namespace, slot)
            if slot <= self._hold.slot_last and not (slot <= copied and there.get(key) == size):
                yield slot, (size, partial(self._copy_log, slot, key))

    def _copy_log(self, slot: int, key: str) -> None:
        manifest = self._hold.manifest

        def check(data: bytes) -> None:
            if slot in self._hold.skipped:
                return
            log = decode_log(data, key=key, slot=slot, lsn_policy=manifest.lsn_policy)
            with self._lock:
                self._newest_us = max(self._newest_us, log.created_at_us)

        try:
            self._copy_object(key, check, of=log_key(self._hold.namespace, slot))
        except NotFoundError:
            if slot >= manifest.wal_floor:
                raise
            del self._slots[slot]  # history, collected since it was listed

    def _copy_object(self, key: str, check: Callable[[bytes], None], *, of: str) -> None:
        """Copy the object `of` the source, checked; compare it with what the destination has then."""
        data = self._source.store.get(of)
        try:
            check(data)
        except UnreadableError:
            data = self._source.store.get(of)  # perhaps in flight: only the second look counts
            check(data)
        with contextlib.suppress(AlreadyExistsError):  # by an earlier copy, or by a lost reply
            self._target.store.put_if_absent(key, data)
        if self._target.store.get(key) != data:
            raise InvalidInputError(
                f"{key} at the destination is not the source's: a copy of another namespace of that "
                "name; copy into an empty bucket or folder"
            )

    # The manifest.

    def _publish(self, head: Head | None) -> Head:
        if head is None:
            first = self._next(None)
            assert first is not None, "a first copy changes something"
            with contextlib.suppress(StalePlanError):  # another copy was first
                return self._chain.publish_again(_replace(first, generation=1))
        return self._chain.publish(self._next)

    def _next(self, head: Head | None) -> Manifest | None:
        """Return the manifest of the copy as the successor of the destination's head."""
        _check_destination(head, self._hold)
        m, slot_last = self._hold.manifest, self._slot_last
        before = None if head is None else head.manifest
        if before is not None and before.copied is not None:  # another copy may be faster
            slot_last = max(slot_last, before.copied.last_slot)
        generation = 1 if before is None else before.generation + 1
        segments = [self._written[ref] for ref in m.segments]
        manifest = _replace(
            m,
            namespace=self._namespace,
            generation=generation - 1,
            born=1,
            predecessor_checksum=None,
            repaired_from=None,
            origin=None,
            lease=None,
            ended=None,
            intents=(),
            pins=() if before is None else before.pins,
            wal_last_seen=slot_last,
            skipped_slots=tuple(one for one in m.skipped_slots if one.slot <= slot_last),
            snapshots=self._snapshots(before, generation),
            followed=(),
            segments=tuple(ref for ref in segments if ref is not None),
            copied=Copied(
                born=self._hold.root.born,
                generation=m.generation,
                writer_epoch=m.writer_epoch,
                last_slot=slot_last,
                newest_us=self._newest_us,
                lsn=self._lsn,
            ),
        )
        manifest = _replace(manifest, gc=self._gc(before, manifest))
        if before is None or self._is_begun or not _says_the_same(manifest, before):
            return manifest
        return None

    def _snapshots(self, before: Manifest | None, generation: int) -> tuple[Snapshot, ...]:
        """Return the snapshots that stand here, and the source's of versions that the copy has."""
        standing = {} if before is None else {one.id: one for one in before.snapshots}
        for one in self._hold.manifest.snapshots:
            if one.lsn <= self._lsn and one.id != self._hold.id:
                here = standing.get(one.id)
                number = here.generation if here and here.lsn == one.lsn else generation
                standing[one.id] = _replace(one, generation=number)
        return tuple(standing.values())

    def _gc(self, before: Manifest | None, after: Manifest) -> Collection:
        """Return what collection of the copy has to remember: objects that it does not name any more."""
        grace_ms = after.gc.grace_ms
        slot = min(self._hold.boundary(), after.wal_floor)
        if before is None:
            boundary = Boundary(slot=slot, generation=1)
            return Collection(pending=(), boundary=boundary, grace_ms=grace_ms)
        number = before.generation + 1
        gone = {ref.id for ref in before.segments} - {ref.id for ref in after.segments}
        keys = [segment_key(self._namespace, id) for id in sorted(gone)]
        if before.dedup is not None and before.dedup != after.dedup:
            keys.append(dedup_key(self._namespace, before.dedup.id))
        return _replace(
            set_grace(before.gc, grace_ms, since_generation=number),
            pending=(*before.gc.pending, *(PendingDelete(key, number) for key in keys)),
            boundary=_replace(before.gc.boundary, slot=max(before.gc.boundary.slot, slot)),
        )


def _says_the_same(after: Manifest, before: Manifest) -> bool:
    """Return whether a copy would change nothing; that it was made is not worth a generation."""
    if after.copied is None or before.copied is None:
        return False
    at = before.copied
    copied = _replace(after.copied, newest_us=at.newest_us, generation=at.generation)
    names = ("generation", "author", "nonce", "created_at_us", "predecessor_checksum")
    stamp = {name: getattr(before, name) for name in (*names, "repaired_from", "born")}
    return before == _replace(after, **stamp, copied=copied)


def _owner_of(ref: SegmentRef, namespace: str) -> str:
    """Return how segments are marked that hold what `ref`, of a manifest of `namespace`, shows."""
    said = msgspec.json.encode(_replace(ref, namespace=ref.namespace or namespace))
    return f"copy-{hashlib.sha256(said).hexdigest()[:32]}"


def _parts(store: Store, key: str, size: int) -> Iterator[bytes]:
    """Yield the bytes of an object, some at a time."""
    for start in range(0, size, _PART_BYTES):
        yield store.get_range(key, start, min(_PART_BYTES, size - start))
