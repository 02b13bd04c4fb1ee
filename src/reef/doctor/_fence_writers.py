"""Fencing every writer of a namespace, by an epoch that was published: for repair and rebuild."""

from __future__ import annotations

from reef.engine import Context
from reef.errors import FencedError, InvariantError, NotFoundError, StalePlanError
from reef.format import Manifest
from reef.log import Fencing, LogReader, Replay, check_epoch, put_fences
from reef.manifest import Head, ManifestChain
from reef.types import new_nonce


def fence_writers(context: Context, chain: ManifestChain, manifest: Manifest, count: int) -> None:
    """Put `count` fences behind the log as `manifest` says it, so that no older writer can commit.

    Raises FencedError if a writer opened the namespace meanwhile, StalePlanError if it was collected,
    OutcomeUnknownError, CorruptError, UnavailableError.
    """
    namespace, epoch = manifest.namespace, manifest.writer_epoch
    fold = Replay.of(manifest)
    reader = LogReader(context.store, namespace, manifest.lsn_policy)
    for entry in reader.read(fold, last_known=manifest.wal_last_seen):
        check_epoch(entry, epoch, namespace)
    first = fold.reach
    fencing = Fencing(
        namespace=namespace,
        epoch=epoch,
        writer_id=new_nonce(context.rng),
        count=count,
        is_collected=lambda slot: _is_collected(chain, slot),
        settings=context.settings,
        clock=context.clock,
        rng=context.rng,
    )
    for _ in put_fences(context.store, reader, fold, fencing):
        pass
    newest = check_own_epoch(namespace, chain.load(), epoch)
    if newest.gc.boundary.slot > first:
        raise StalePlanError(
            f"namespace {namespace!r} was collected during the repair: run repair again"
        )


def check_own_epoch(namespace: str, head: Head | None, epoch: int) -> Manifest:
    """Return the head's manifest; raise FencedError if its epoch is newer than the one that was taken."""
    if head is None:
        raise NotFoundError(f"namespace {namespace!r} lost its manifests during the repair")
    m = head.manifest
    if m.writer_epoch > epoch:
        raise FencedError(
            f"namespace {namespace!r} was opened by a writer of epoch {m.writer_epoch} during the "
            "repair: stop that writer, then run repair again"
        )
    if m.writer_epoch < epoch:
        raise InvariantError(
            f"the head of namespace {namespace!r} has writer epoch {m.writer_epoch}, after epoch "
            f"{epoch} was published"
        )
    return m


def _is_collected(chain: ManifestChain, slot: int) -> bool:
    head = chain.load()
    return head is not None and slot < head.manifest.gc.boundary.slot
