"""Pins: which branches still need the objects that a namespace keeps for them.

A pin is named by its child and a nonce, which the origin of every generation of that life of the
child carries. It goes when nothing can read this namespace's objects through the child any more:

- No retained generation of that life names them: the child was detached, or compaction has replaced
  them all. What is retained is every generation at or above the child's boundary, and what its
  snapshots and branches stand on. Later generations only stop naming
  objects; repair alone names them again, and takes the names from these.
- That life has ended, and the grace period is over, within which readers may hold it open.
- It never came to be. Somebody may still be making it, very slowly: so the generation at which it would
  begin is taken by "aborted" first. Its maker looked at the child's head before it put its pin, and can
  begin only at the number behind that head. So a child that lives settles it as well.

Children are looked at after the manifest that holds their pins was read. What is found out then stays
true: a life that has ended does not come back, and none of another nonce takes its pins over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial
from typing import NamedTuple

import msgspec

from reef.errors import NotFoundError, NotWrittenError, UnreadableError
from reef.format import Manifest, Pin
from reef.manifest import Generation, Head, ManifestChain, abort, longest_grace_ms
from reef.store import Store
from reef.threads import Threads, for_each


class PinReason(StrEnum):
    """Why a pin stays, or why it may go."""

    # It stays.
    NEEDED = "a retained generation of the branch names objects of this namespace"
    GRACE = "the branch was dropped, and the grace period is not over"
    YOUNG = "somebody may still be making the branch"
    UNREADABLE = "a generation of the branch cannot be read: see `reef verify`"
    # It may go.
    DETACHED = "the branch names nothing of this namespace any more"
    ENDED = "the branch was dropped"
    NEVER_MADE = "the branch was never made"


_GOES = frozenset({PinReason.DETACHED, PinReason.ENDED, PinReason.NEVER_MADE})


class JudgedPin(NamedTuple):
    """A pin, and why it stays or may go."""

    pin: Pin
    reason: PinReason
    aborts: bool = False
    """Whether it goes only after the child's next generation was taken."""

    @property
    def goes(self) -> bool:
        return self.reason in _GOES

    @property
    def name(self) -> tuple[str, str]:
        return self.pin.child, self.pin.nonce


@dataclass
class _Child:
    """The facts about one child."""

    chain: ManifestChain
    head: Head | None
    """As it was read, also if it was aborted since: this says what its lives need."""
    listed: Mapping[int, Generation]
    pin_nonces: frozenset[str]
    """The nonces of the pins that existed when the child was read."""
    is_aborted: bool = False
    is_unreadable: bool = False
    """Whether it is there, but none of its generations can be read."""
    read: dict[int, Manifest | None] = field(default_factory=dict)
    """Older generations; None: it cannot be read."""
    naming: dict[int, _Naming] = field(default_factory=dict)
    """By the first generation looked at: which lives name the holder's objects there or later."""


@dataclass
class _Naming:
    """The generations of a child from one on, looked through once for all of its pins."""

    left: list[int]
    """The numbers that are not looked at yet, the last one first."""
    nonces: dict[str, Manifest] = field(default_factory=dict)
    """The first generation of each life that names objects of the holder."""
    is_unreadable: bool = False
    """Whether the next one cannot be read, so that nothing behind it is known."""


class Pins:
    """Judges the pins of one namespace, on what it finds out about their children, each once."""

    def __init__(self, chain: ManifestChain, store: Store, threads: Threads) -> None:
        """`chain` is that of the namespace which holds the pins."""
        self._chain = chain
        self._store = store
        self._threads = threads
        self._children: dict[str, _Child] = {}

    def judge(
        self, manifest: Manifest, *, now_us: int, grace_us: int, is_ending: bool = False
    ) -> tuple[JudgedPin, ...]:
        """Return what may become of each pin of `manifest` at `now_us`.

        `is_ending`: the namespace itself is to be dropped, whereupon its objects stay as long as
        readers of a dropped child may need them. Raises UnavailableError.
        """
        self._look(manifest.pins)
        before = cache(partial(self._pins_before, manifest))
        return tuple(
            self._judge_pin(
                pin, manifest.namespace, now_us - self._grace_us(pin, grace_us), before, is_ending
            )
            for pin in manifest.pins
        )

    def abort_unmade(self, judged_pins: Iterable[JudgedPin], grace_ms: int) -> None:
        """Take the first generations of branches that were never made.

        If another process is faster, the pin stays until the next run. Raises OutcomeUnknownError,
        UnavailableError.
        """
        for name in dict.fromkeys(judged.pin.child for judged in judged_pins if judged.aborts):
            child = self._children[name]
            try:
                _abort(child, grace_ms)
            except NotWrittenError:
                del self._children[name]
            else:
                child.is_aborted = True

    def _look(self, pins: Sequence[Pin]) -> None:
        by_child: dict[str, list[Pin]] = {}
        for pin in pins:
            by_child.setdefault(pin.child, []).append(pin)
        unknown = [
            name
            for name, some in by_child.items()
            if name not in self._children
            or not {pin.nonce for pin in some} <= self._children[name].pin_nonces
        ]

        def look(name: str) -> None:
            chain = self._chain.beside(name)
            nonces = frozenset(pin.nonce for pin in by_child[name])
            try:
                head = chain.load()
            except UnreadableError:
                self._children[name] = _Child(chain, None, {}, nonces, is_unreadable=True)
                return
            listed = {}
            # Most branches are in use: what they name now settles it, and nothing more is asked.
            if head is not None and not all(self._is_used(head, pin) for pin in by_child[name]):
                listed = {one.number: one for one in chain.generations()}
            self._children[name] = _Child(chain, head, listed, nonces)

        if unknown:
            for_each(unknown, look, width=self._store.concurrency, threads=self._threads)

    def _grace_us(self, pin: Pin, grace_us: int) -> int:
        """Return how long what nothing names any more stays: readers of the child rely on its own."""
        head = self._children[pin.child].head
        return (
            grace_us if head is None else max(grace_us, longest_grace_ms(head.manifest.gc) * 1000)
        )

    def _judge_pin(
        self,
        pin: Pin,
        holder: str,
        since_us: int,
        before: Callable[[int], Set[tuple[str, str]]],
        is_ending: bool,
    ) -> JudgedPin:
        child = self._children[pin.child]
        head = child.head
        if child.is_unreadable or (head is not None and head.damaged):
            return JudgedPin(pin, PinReason.UNREADABLE)
        if head is not None:
            stays = self._needing(pin, child, head, holder, since_us, is_ending)
            if stays is not None:
                return JudgedPin(pin, stays)
        if head is not None and head.manifest.state == "live":
            is_same = _is_of(head.manifest, pin)
            return JudgedPin(pin, PinReason.DETACHED if is_same else PinReason.ENDED)
        if head is not None and _is_of(head.manifest, pin):
            return JudgedPin(pin, PinReason.ENDED)
        if child.is_aborted:
            return JudgedPin(pin, PinReason.NEVER_MADE)
        if is_ending or (pin.child, pin.nonce) in before(since_us):
            return JudgedPin(pin, PinReason.NEVER_MADE, aborts=True)
        return JudgedPin(pin, PinReason.YOUNG)

    def _needing(
        self, pin: Pin, child: _Child, head: Head, holder: str, since_us: int, is_ending: bool
    ) -> PinReason | None:
        """Return why a generation of the child that is retained needs the pin; None: none does."""
        m = head.manifest
        if self._is_used(head, pin):
            return PinReason.NEEDED
        # The first that may not be left out: those before are of lives that have ended long ago.
        first = m.gc.boundary.generation
        is_over = is_ending or self._is_over(child, head, since_us)
        if is_over:
            first = max(first, m.born if m.state == "live" else m.generation)
        naming = child.naming.get(first)
        if naming is None:
            stood = {s.generation for s in m.snapshots} | {p.generation for p in m.pins}
            numbers = {n for n in child.listed if first <= n < m.generation} | stood
            naming = child.naming[first] = _Naming(sorted(numbers, reverse=True))
        while naming.left and pin.nonce not in naming.nonces and not naming.is_unreadable:
            older = self._read(child, naming.left[-1])
            if older is None:
                naming.is_unreadable = True
                break
            naming.left.pop()
            if older.origin is not None and _names(older, holder):
                naming.nonces.setdefault(older.origin.nonce, older)
        found = naming.nonces.get(pin.nonce)
        if found is not None:
            is_live = m.state == "live" and found.born == m.born
            return PinReason.NEEDED if is_live else PinReason.GRACE
        return PinReason.UNREADABLE if naming.is_unreadable else None

    def _is_used(self, head: Head, pin: Pin) -> bool:
        """Return whether the child's head itself needs the pin."""
        m = head.manifest
        return m.state == "live" and _is_of(m, pin) and _names(m, self._chain.namespace)

    def _is_over(self, child: _Child, head: Head, since_us: int) -> bool:
        """Return whether the lives before the one of `head`, or up to it, ended long enough ago."""
        if head.manifest.state != "live":
            return head.published_at_us < since_us
        born = child.listed.get(head.manifest.born)
        return born is None or born.published_at_us < since_us

    def _read(self, child: _Child, number: int) -> Manifest | None:
        if number not in child.read:
            try:
                child.read[number] = child.chain.at(number).manifest
            except NotFoundError:  # collected meanwhile: it is not retained
                assert child.head is not None
                child.read[number] = msgspec.structs.replace(child.head.manifest, segments=())
            except UnreadableError:
                child.read[number] = None
        return child.read[number]

    def _pins_before(self, holder: Manifest, since_us: int) -> Set[tuple[str, str]]:
        """Return the pins that are older than `since_us`, whatever generation they keep."""
        listed = [one for one in self._chain.generations() if one.number <= holder.generation]
        before = [one.number for one in listed if one.published_at_us < since_us]
        if not before or before[-1] < holder.gc.boundary.generation:
            return frozenset()
        try:
            old = self._chain.at(before[-1]).manifest
        except (NotFoundError, UnreadableError):
            return frozenset()
        return frozenset((p.child, p.nonce) for p in old.pins)


def _abort(child: _Child, grace_ms: int) -> None:
    """Take the generation after the child's head. Raises NotWrittenError if it is taken."""
    before = child.head

    def aborted(head: Head | None) -> Manifest:
        if (head and head.generation) != (before and before.generation):
            raise NotWrittenError(
                f"branch {child.chain.namespace!r} published a manifest generation after collection "
                "read its head; expected no change: run collection again"
            )
        return abort(None if head is None else head.manifest, child.chain.first(grace_ms))

    child.chain.publish(aborted)


def _is_of(manifest: Manifest, pin: Pin) -> bool:
    """Return whether a generation of the child is of the life that a pin is for."""
    return manifest.origin is not None and manifest.origin.nonce == pin.nonce


def _names(manifest: Manifest, holder: str) -> bool:
    return any(ref.namespace == holder for ref in manifest.segments)
