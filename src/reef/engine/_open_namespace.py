"""Opening a namespace: recovery, and for a writer, taking it over.

For reading:  one LIST and one GET for the manifest, then the unfolded log, many slots at once, with
              probes behind it.
For writing:
1. List the unfolded log: nobody takes one over that has a hole.
2. Publish a manifest of the next epoch.       crash: an epoch that nobody uses
3. Replay the log up to the first absent slot.
4. Put the fences there.                       crash: fences that nobody stands behind
5. Look at the manifest's head, always: the fences count only at or above the boundary of garbage
   collection, because below it an absent slot may be a collected one. If they do not, start over.

Behind a writer that has published its end, at slot S, steps 4 and 5 are left out. That writer sends
nothing more, and older ones have met the fences of their successors. So S is absent until the new
writer takes it, or a newer one puts its fence there, because it found no end published. A fence is never
collected, so S is never absent again: a writer that falls asleep here meets the fence with its first
write. Of two that open at the same time, only the one whose epoch was published first finds the end on
its head. The other one puts fences.

A manifest that fell back to an older generation serves reads. Writing needs `reef repair`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from reef.context import Context
from reef.engine._commit._dedup_index import DedupIndex
from reef.engine._commit._flush import read_window
from reef.engine._commit._log_writer import is_collected
from reef.engine._durable_settings import set_durable
from reef.engine._holes import check_end, list_unfolded, log_object_gone
from reef.engine._reader import Reader
from reef.engine._tail import Tail
from reef.engine._writer import Writer
from reef.errors import (
    CorruptError,
    FencedError,
    InvalidInputError,
    InvariantError,
    NotFoundError,
    UnavailableError,
)
from reef.format import (
    GRACE_MS_DEFAULT,
    DedupWindow,
    Lease,
    LsnPolicy,
    Manifest,
    Retention,
    decode_schema,
    manifest_key,
)
from reef.format import schema_fingerprint as fingerprint
from reef.log import Fencing, LogEntry, LogReader, check_epoch, put_fences
from reef.manifest import Head, ManifestChain, go_on, no_namespace, open_writer
from reef.types import check_namespace, new_nonce, split_namespace

_OPENS_MAX = 10


@dataclass(frozen=True)
class Face:
    """What a face requires of a namespace that it creates or opens."""

    name: str
    schema: pa.Schema
    """The columns of its rows, each with its stable id."""
    lsn_policy: LsnPolicy = "packed"
    pitr_window_s: float | None = None
    """How far back a new namespace keeps versions if the settings do not say; None: not at all."""


FACE = b"reef:face"


def open_for_reading(context: Context, namespace: str, face: Face) -> Reader:
    """Open a namespace at its newest version.

    Raises NotFoundError if it does not exist, CorruptError, UnavailableError.
    """
    chain = context.chain(check_namespace(namespace))
    head = chain.load()
    while True:
        if head is None or head.manifest.state != "live":
            _check_unbegun(head)
            raise _not_made(context, namespace)
        check_face(head.manifest, face)
        parallel = head.parallel_writes_max
        tail, _ = _replay(context, head.manifest, lambda entry: None, parallel=parallel)
        if check_end(context, chain, head, tail.replay.reach, tail.replay.ahead):
            head = chain.head
            continue
        if not _missing(head.manifest, tail):
            reader = Reader(context, namespace, chain, head, tail)
            if chain.is_out_of_touch:
                reader.refresh()  # it took so long that an absent slot may have been collected
            return reader
        # The slot may have been folded and collected since the head was read: then there is a newer
        # head.
        before, head = head, chain.load()
        if head is None or head.generation == before.generation:
            check_whole(before.manifest, tail)


def open_for_writing(
    context: Context, namespace: str, face: Face, *, is_fencing: bool = False
) -> Writer:
    """Open a namespace as its one writer; every older one is fenced. Creates it if need be.

    With `is_fencing` it puts fences even where no older writer can be left: the log then shows that
    it was opened.

    Branches are not created here: NotFoundError. Raises FencedError if a newer writer opened it
    meanwhile, OutcomeUnknownError, CorruptError (then `reef repair` is needed), UnavailableError.
    """
    chain = context.chain(check_namespace(namespace))
    for _ in range(_OPENS_MAX):
        last_known = _list_log(context, chain)
        head = _take_epoch(context, chain, namespace, face)
        writer = _take_log(context, chain, head, last_known, is_fencing=is_fencing)
        if writer is not None:
            return writer
    raise UnavailableError(
        f"namespace {namespace!r} was collected {_OPENS_MAX} times while it was being opened: retry"
    )


def newest_manifest(context: Context, namespace: str) -> Manifest:
    """Return the newest manifest of a namespace, or of one that was dropped. Raises NotFoundError."""
    head = context.chain(check_namespace(namespace)).load()
    if head is None:
        raise no_namespace(context.store.url, namespace)
    return head.manifest


def _not_made(context: Context, namespace: str) -> NotFoundError:
    """Return the error for a namespace that does not exist; it says how to create it."""
    branch = split_namespace(namespace)[1]
    how = "opening it for writing creates it"
    if branch is not None:
        how = f"`branch({branch!r})` of a namespace makes one"
    return NotFoundError(f"{no_namespace(context.store.url, namespace)}; {how}")


def _check_unbegun(head: Head | None) -> None:
    """Raise CorruptError if a namespace may have been begun behind one that has ended."""
    if head is not None and head.damaged:
        raise CorruptError(
            manifest_key(head.manifest.namespace, head.last_taken),
            0,
            "a readable head of the manifest chain",
            f"damage, twice; generation {head.generation}, the newest that can be read, is one of a "
            f"namespace that was {head.manifest.state}: restore the damaged generations from a "
            "backup, or run `reef repair`, which shows what is lost before it changes anything",
        )


def face_of(manifest: Manifest) -> Face:
    """Return the face that a namespace was created with; without a name if none is recorded."""
    schema = pa.schema([])
    if manifest.schema:
        schema = decode_schema(pa.py_buffer(manifest.schema), "", 0)
    name = (schema.metadata or {}).get(FACE, b"").decode()
    return Face(name, schema, manifest.lsn_policy)


def check_face(manifest: Manifest, face: Face) -> None:
    """Raise InvalidInputError if a namespace belongs to another face."""
    name = face_of(manifest).name
    if name and name != face.name:
        raise InvalidInputError(
            f"namespace {manifest.namespace!r} was made as {name}, not as {face.name}: "
            f"open it as {name}, or choose another name"
        )


def _list_log(context: Context, chain: ManifestChain) -> int:
    """Return the last slot of the unfolded log, 0 if there is none. Raises CorruptError for a hole.

    Before an epoch is taken: a namespace with a hole is left as it is, for repair.
    """
    head = chain.load()
    if head is None or head.damaged or head.manifest.state != "live":
        return 0
    return list_unfolded(context, chain, head).end - 1


def _take_epoch(context: Context, chain: ManifestChain, namespace: str, face: Face) -> Head:
    settings = context.settings
    lease = Lease(holder=context.author, host=context.host, opened_at_us=context.clock.now_us())

    def taken(head: Head | None) -> Manifest:
        manifest = None if head is None else head.manifest
        if manifest is None or manifest.state != "live":
            if split_namespace(namespace)[1] is not None:
                raise _not_made(context, namespace)
            manifest = go_on(manifest, _first(chain, context, face))
        check_face(manifest, face)
        manifest = set_durable(manifest, settings)
        # Never fewer than before: until the fences stand, an older writer may have that many
        # writes in flight, and the next writer to open has to know.
        parallel = max(manifest.max_parallel_writes, settings.max_parallel_writes or 1)
        return open_writer(manifest, lease=lease, max_parallel_writes=parallel)

    return chain.publish(taken)


def _first(chain: ManifestChain, context: Context, face: Face) -> Manifest:
    metadata = {**(face.schema.metadata or {}), FACE: face.name.encode()}
    schema = face.schema.with_metadata(metadata).serialize().to_pybytes()
    grace_s = context.settings.gc_grace
    window_ms = None if face.pitr_window_s is None else round(face.pitr_window_s * 1000)
    return msgspec.structs.replace(
        chain.first(GRACE_MS_DEFAULT if grace_s is None else round(grace_s * 1000)),
        lsn_policy=face.lsn_policy,
        retention=Retention(floor_lsn=0, pitr_window_ms=window_ms),
        schema=schema,
        schema_fingerprint=fingerprint(schema),
    )


def _take_log(
    context: Context, chain: ManifestChain, head: Head, last_known: int, *, is_fencing: bool
) -> Writer | None:
    """Fence the log off, if need be, and return the writer; None if what was read does not count.

    `last_known` is a slot that was there before the epoch was taken.
    """
    manifest = head.manifest
    namespace, epoch = manifest.namespace, manifest.writer_epoch
    writer_id = new_nonce(context.rng)
    dedup = load_dedup(context, manifest)

    def decided(entry: LogEntry) -> None:
        check_epoch(entry, epoch, namespace)
        if entry.is_valid:
            dedup.apply(entry.log)

    tail, reader = _replay(context, manifest, decided, last_known=last_known)
    if _missing(manifest, tail, last_known) and _standing(chain, epoch, tail.replay.reach) is None:
        return None
    check_whole(manifest, tail, last_known)
    newest: Head | None = head
    if is_fencing or not _begins_behind_end(manifest, tail):
        newest = _fence_off(context, chain, manifest, tail, reader, writer_id, decided)
    if newest is None:
        return None
    newest = _settle_parallel(chain, newest, context.settings.max_parallel_writes, epoch)
    writer = Writer(context, namespace, chain, head, tail, writer_id=writer_id, dedup=dedup)
    writer.adopt(newest)
    return writer


def _fence_off(
    context: Context,
    chain: ManifestChain,
    manifest: Manifest,
    tail: Tail,
    reader: LogReader,
    writer_id: bytes,
    decided: Callable[[LogEntry], None],
) -> Head | None:
    """Put the fences behind the log; return the head after that, or None if they do not count."""
    slot_fenced = tail.replay.reach
    fencing = Fencing(
        namespace=manifest.namespace,
        epoch=manifest.writer_epoch,
        writer_id=writer_id,
        count=manifest.max_parallel_writes,
        is_collected=lambda slot: is_collected(chain, slot),
        settings=context.settings,
        clock=context.clock,
        rng=context.rng,
    )
    for entry in put_fences(context.store, reader, tail.replay, fencing):
        decided(entry)
        tail.apply(entry)
    return _standing(chain, manifest.writer_epoch, slot_fenced)


def _begins_behind_end(manifest: Manifest, tail: Tail) -> bool:
    """Return whether the writer before has ended just where the log does: no fence is needed."""
    ended, replay = manifest.ended, tail.replay
    return (
        ended is not None
        and ended.epoch == manifest.writer_epoch - 1
        and ended.slot == replay.next_slot == replay.reach
    )


def _standing(chain: ManifestChain, epoch: int, slot: int) -> Head | None:
    """Return the head, if an absent `slot` there was not collected; else None.

    Raises FencedError if a newer writer than `epoch` has opened the namespace.
    """
    newest = chain.load()
    if newest is None:
        raise InvariantError(
            f"namespace {chain.namespace!r} lost its manifests while it was opened"
        )
    if newest.manifest.writer_epoch > epoch:
        raise FencedError(
            f"namespace {chain.namespace!r} was opened by another writer (epoch "
            f"{newest.manifest.writer_epoch}) while this one (epoch {epoch}) was opening it: open "
            "it again to take it over"
        )
    return None if newest.manifest.gc.boundary.slot > slot else newest


def _settle_parallel(chain: ManifestChain, head: Head, wanted: int | None, epoch: int) -> Head:
    """Lower `max_parallel_writes` to this writer's setting, now that the fences are in place."""

    def lowered(head: Head | None) -> Manifest | None:
        if head is None or head.manifest.writer_epoch != epoch:
            return None  # a fenced writer finds out at its next write
        return msgspec.structs.replace(head.manifest, max_parallel_writes=wanted)

    if wanted is None or wanted >= head.manifest.max_parallel_writes:
        return head
    return chain.publish(lowered)


def _replay(
    context: Context,
    manifest: Manifest,
    decided: Callable[[LogEntry], None],
    *,
    last_known: int = 0,
    parallel: int = 0,
) -> tuple[Tail, LogReader]:
    tail = Tail(manifest)
    reader = LogReader(context.store, manifest.namespace, manifest.lsn_policy)
    last_known = max(last_known, manifest.wal_last_seen)
    for entry in reader.read(tail.replay, last_known=last_known, parallel=parallel):
        decided(entry)
        tail.apply(entry)
    return tail, reader


def _missing(manifest: Manifest, tail: Tail, last_known: int = 0) -> bool:
    """Return whether the log ends before a slot that a manifest, or a LIST, has seen."""
    return tail.replay.reach <= max(manifest.wal_last_seen, last_known)


def check_whole(manifest: Manifest, tail: Tail, last_known: int = 0) -> None:
    """Raise if a log object is gone: later objects were committed, and must not become void."""
    if _missing(manifest, tail, last_known):
        raise log_object_gone(manifest, tail.replay.reach, last_known)


def load_dedup(context: Context, manifest: Manifest) -> DedupIndex:
    """Return the requests that the window of `manifest` remembers; raises like `read_window`."""
    window: DedupWindow | None = None
    if manifest.dedup is not None:
        window = read_window(context.store, manifest.namespace, manifest.dedup)
    return DedupIndex(
        window,
        keys_max=context.settings.dedup_max_keys,
        age_max_us=round(context.settings.dedup_max_age * 1_000_000),
    )
