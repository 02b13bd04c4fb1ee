"""Dropping a namespace, a branch or a plain one: nothing of it can be read or written any more.

1. Look for branches that were made from it, and take    crash: nothing else happened
   out the pins of those that are not there.
2. Open it for writing: a new epoch, and fences.         crash: its writer is fenced, it lives on
3. Publish "dropped": no segments, and all that it had   crash: done; collection deletes it
   waits for collection. The only visible step.

Invariants:

- A namespace is not dropped until its branches are dropped or detached, even if they share nothing
  with it any more. Nor is one whose objects a branch of a branch names: that is looked up on
  the very head on which "dropped" is published, so that a branch which is made meanwhile is made first,
  or not at all.
- An earlier writer meets the fences in its log. They are never collected, and the next namespace of
  that name begins above them.
- A branch expires by the store's clock. Where this machine's promises more than the store has shown, a
  generation is published first, to learn the time.

To reset a branch is to drop it and to make it anew. Crash point: between the two there is no branch.
"""

from __future__ import annotations

from collections.abc import Callable

from reef.context import Context
from reef.engine._branch._create_branch import Branch, create_branch
from reef.engine._branch._list import list_branches
from reef.engine._open_namespace import face_of, open_for_writing
from reef.engine._writer import Writer
from reef.errors import (
    FencedError,
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
)
from reef.format import Manifest, WalAnchor
from reef.gc import Pins
from reef.manifest import Head, ManifestChain, drop, has_branches, no_namespace, release_pins
from reef.types import check_namespace, split_namespace


def drop_namespace(context: Context, namespace: str) -> None:
    """Drop a namespace. What it had is deleted by collection, after the grace period.

    Raises NotFoundError if it does not exist, InvalidInputError that names its branches if it has
    any, FencedError if somebody opens it for writing meanwhile, OutcomeUnknownError,
    UnavailableError, CorruptError.
    """
    _drop(context, namespace, lambda manifest: True)


def _drop(context: Context, namespace: str, is_meant: Callable[[Manifest], bool]) -> None:
    """Drop a namespace if its head is what is meant, when it is dropped too; else NotFoundError."""
    chain = context.chain(check_namespace(namespace))
    head = chain.load()
    if head is None or head.manifest.state != "live" or not is_meant(head.manifest):
        raise no_namespace(context.store.url, namespace)
    refuse_branches(context, chain, head)
    # Its log ends in a fence: without any manifest, nothing else could tell it from a live one.
    writer = open_for_writing(context, namespace, face_of(head.manifest), is_fencing=True)
    try:
        chain.publish(lambda head: _dropped(head, writer, is_meant))
    finally:
        writer.close()


def reset_branch(context: Context, namespace: str) -> Branch:
    """Drop a branch and make it anew from what its parent holds now; return it. It expires as before.

    Raises what `drop_namespace` raises, then nothing has changed; InvalidInputError for what is no
    branch; OutcomeUnknownError; NotWrittenError if it was dropped and could not be made anew.
    """
    head = context.chain(check_namespace(namespace)).load()
    if head is None or head.manifest.state != "live":
        raise no_namespace(context.store.url, namespace)
    origin = head.manifest.origin
    if origin is None:
        raise InvalidInputError(
            f"{namespace!r} has no parent: it is no branch, or it was detached; only a branch that has "
            "a parent can be reset"
        )
    born = head.manifest.born
    _drop(context, namespace, lambda manifest: manifest.born == born)
    try:
        return create_branch(
            context, origin.namespace, namespace, expires_at_us=origin.expires_at_us
        )
    except OutcomeUnknownError:
        raise
    except ReefError as error:
        raise NotWrittenError(
            f"branch {namespace!r} was dropped, but could not be made anew ({error}): create it again"
        ) from error


def expire_branch(context: Context, namespace: str, *, apply: bool = True) -> bool:
    """Drop a branch whose time is over, by the store's clock; return whether it was dropped.

    Without `apply`, return whether it would be, by this machine's clock. One that has branches stays until they are dropped; so does one that others open or drop meanwhile.
    Raises UnavailableError, OutcomeUnknownError, CorruptError.
    """
    if split_namespace(namespace)[1] is None:
        return False
    chain = context.chain(check_namespace(namespace))
    head = chain.load()
    if head is None or not is_expired(head.manifest, context.clock.now_us()):
        return False
    if not apply:
        return True
    if not is_expired(head.manifest, head.published_at_us):
        head = chain.publish(lambda head: None if head is None else head.manifest)
        if not is_expired(head.manifest, head.published_at_us):
            return False
    now_us = head.published_at_us
    try:
        _drop(context, namespace, lambda manifest: is_expired(manifest, now_us))
    except (FencedError, InvalidInputError, NotFoundError):
        return False
    return True


def is_expired(manifest: Manifest, now_us: int) -> bool:
    """Return whether this is a branch that may be dropped at `now_us`."""
    origin = manifest.origin
    is_live = manifest.state == "live" and origin is not None
    return is_live and 0 < origin.expires_at_us < now_us  # type: ignore[union-attr]


def refuse_branches(context: Context, chain: ManifestChain, head: Head) -> None:
    """Raise InvalidInputError that names the branches of a namespace, if it has any.

    Unfinished branches are aborted, and pins that no branch needs are removed.
    """
    namespace = chain.namespace
    made = list(list_branches(context, split_namespace(namespace)[0]))
    children = [branch.namespace for branch in made if branch.parent == namespace]
    if children:
        raise has_branches(namespace, children)
    detached = {branch.namespace for branch in made if branch.parent is None}
    pins = Pins(chain, context.store, context.threads)

    def reaped(head: Head | None) -> Manifest | None:
        if head is None or not head.manifest.pins:
            return None
        m = head.manifest
        judged_pins = pins.judge(m, now_us=0, grace_us=0, is_ending=True)
        pins.abort_unmade(judged_pins, m.gc.grace_ms)
        judged_pins = pins.judge(m, now_us=0, grace_us=0, is_ending=True)
        standing = [judged.pin.child for judged in judged_pins if not judged.goes or judged.aborts]
        if standing:
            raise has_branches(namespace, standing, detached)
        return release_pins(m, {judged.name for judged in judged_pins})

    if head.manifest.pins:
        chain.publish(reaped)


def _dropped(head: Head | None, writer: Writer, is_meant: Callable[[Manifest], bool]) -> Manifest:
    if head is None:
        raise AssertionError("a namespace that is open has a manifest")
    if not is_meant(head.manifest):
        raise NotFoundError(f"what was to be dropped of {writer.namespace!r} is gone already")
    tail = writer.tail
    point = tail.replay.point
    return drop(
        head.manifest,
        epoch=writer.epoch,
        slot_last=tail.replay.next_slot - 1,
        anchor=WalAnchor(slot=point.slot, checksum=point.checksum, epoch=point.epoch),
        lsn=tail.lsn,
        attached=[ref.id for ref in tail.attached if not ref.namespace],
    )
