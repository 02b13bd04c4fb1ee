"""The manifest chain of a namespace: its head, and the one way to publish the next generation.

Invariants:

- Generations are numbered without gaps, each made by one put-if-absent. The publisher whose nonce is
  in the object has published it; every other one starts over on the new head.
- A change is built on the newest head only, and checked against it before a byte is written.
- Put-if-absent forgets deleted names: a publisher that slept through a collection can create a
  generation that was there long ago. So the head is read after every PUT, and a generation below
  its boundary does not count, whatever the store said to the PUT.
- Behind damaged generations nothing is published but by repair, and that gives out no epoch and
  forgets no boundary that the damaged ones may have held.

Crash points: before the PUT nothing has happened; after it the generation is published, whether its
author lives or not. A generation that did not count lies below the boundary, where nobody looks and
collection removes it. A reply that was lost is resolved by `reef.store.create`; where that fails,
`OutcomeUnknownError` passes through and the next publish begins by looking at the store.

Threads may share a chain: each publish and each look stands for itself, and `head` only rises.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import msgspec

from reef.clock import Clock
from reef.errors import (
    ConflictError,
    CorruptError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
    StalePlanError,
    UnavailableError,
    UnreadableError,
)
from reef.format import Manifest, encode_manifest, manifest_checksum
from reef.manifest._follow import LISTINGS_MAX, ManifestFollower
from reef.manifest._manifest_reader import Generation, Head
from reef.manifest._repaired_chain import go_on_behind, renumber
from reef.manifest._successor import check_successor
from reef.settings import Settings
from reef.store import Store, backoff, create
from reef.types import LSN_MAX, new_nonce

Change = Callable[[Head | None], Manifest | None]
"""Builds the wanted content on a head (None: there is no generation yet), or None for no change."""

# Each lost race is another publisher's success: more than this many in a row are not bad luck.
RACES_MAX = 100

_log = logging.getLogger("reef.manifest")


class ManifestChain(ManifestFollower):
    """The generations of one namespace, as one actor follows and extends them."""

    def __init__(
        self,
        store: Store,
        namespace: str,
        *,
        author: str,
        settings: Settings,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """Nothing is asked of the store yet. Raises InvalidInputError for a bad name."""
        super().__init__(store, namespace, clock=clock)
        self.author = author
        self._settings = settings
        self._rng = rng
        self._is_behind = False
        self._own_put: tuple[int, float] | None = None
        self._stood_on: Manifest | None = None

    @property
    def url(self) -> str:
        """Of the bucket."""
        return self._store.url

    def beside(self, namespace: str) -> ManifestChain:
        """Return a fresh chain of another namespace, for the same actor."""
        return ManifestChain(
            self._store,
            namespace,
            author=self.author,
            settings=self._settings,
            clock=self.clock,
            rng=self._rng,
        )

    def first(self, grace_ms: int) -> Manifest:
        """Return generation 1 of this namespace, empty, as this author would publish it."""
        return Manifest.first(
            self.namespace,
            author=self.author,
            nonce=new_nonce(self._rng).hex(),
            created_at_us=self.clock.now_us(),
            grace_ms=grace_ms,
        )

    def stood_on(self, generation: int) -> Manifest | None:
        """Return a generation that a snapshot stands on, without its long lists; None: unreadable.

        The last one is remembered. Raises UnavailableError.
        """
        head, known = self.head, self._stood_on
        if known is not None and known.generation == generation:
            return known
        if head is not None and head.generation == generation:
            found = head.manifest
        else:
            try:
                found, _ = self._reader.read(generation)
            except (NotFoundError, UnreadableError):
                return None
        self._stood_on = msgspec.structs.replace(found, segments=(), snapshots=(), followed=())
        return self._stood_on

    @property
    def now_us(self) -> int | None:
        """The store's time: Last-Modified of the latest own PUT, carried forward; None without one.

        Never ahead of the store's clock, and behind by at most that PUT's duration and the store's
        rounding.
        """
        if self._own_put is None:
            return None
        modified_us, at = self._own_put
        return modified_us + round((self.clock.monotonic() - at) * 1_000_000)

    @property
    def estimated_now_us(self) -> int:
        """The store's time where it is known, else this machine's, which may be wrong."""
        known = self.now_us
        return self.clock.now_us() if known is None else known

    def publish(self, change: Change, *, repairing: bool = False) -> Head:
        """Publish what `change` makes of the head as the next generation, and return that.

        `change` is called again on a newer head each time another publisher is faster. Where it
        returns None nothing is published and the head is returned; what it raises comes out, but
        never because of an old head. `repairing` lets it go on behind damaged generations, on a head
        whose epochs and boundary are beyond what those may have held.

        Raises NotWrittenError after 100 lost races, OutcomeUnknownError, InvariantError,
        CorruptError if the head fell back (call `reef repair`), and what `load` raises.
        """
        is_fresh = self._is_behind or self.is_out_of_touch
        if is_fresh:
            self._catch_up()
        for race in count(1):
            try:
                built = self._build(change, repairing)
            except ReefError:
                # On an old head: on the newest the answer may be another one.
                if is_fresh or not self._has_moved():
                    raise
                is_fresh = True
                continue
            if built is None:
                return self._known()
            published = self._send(*built)
            if published is not None:
                return published
            if race >= RACES_MAX:
                break
            self.clock.sleep(backoff(race, self._settings, self._rng))
            self._catch_up()
            is_fresh = True
        raise NotWrittenError(
            f"{RACES_MAX} others in a row published a generation of namespace {self.namespace!r} "
            "before this one could; nothing was written: retry"
        )

    def publish_again(self, manifest: Manifest) -> Head:
        """Publish a first generation where other objects are already: of a rebuild, or of a copy.

        Raises StalePlanError if there is one meanwhile, OutcomeUnknownError, UnavailableError.
        """
        stamped = msgspec.structs.replace(
            manifest,
            author=self.author,
            nonce=new_nonce(self._rng).hex(),
            created_at_us=self.clock.now_us(),
        )
        there = [found.number for found in self._reader.list()]
        published = None if there else self._send(stamped, encode_manifest(stamped))
        if published is None:
            raise StalePlanError(
                f"namespace {self.namespace!r} has a manifest meanwhile; nothing was published: look at "
                "it before you go on"
            )
        return published

    def _build(self, change: Change, repairing: bool) -> tuple[Manifest, bytes] | None:
        """Return the next generation as `change` wants it on the head known, checked against it."""
        base = self._base(repairing)
        wanted = change(base)
        if wanted is None:
            return None
        manifest = self._stamp(wanted, base)
        check_successor(None if base is None else base.manifest, manifest, repairing=repairing)
        return manifest, encode_manifest(manifest, base=None if base is None else base.manifest)

    def _send(self, manifest: Manifest, data: bytes) -> Head | None:
        """Create the generation; None if another publisher has, or if it does not count."""
        began = self.clock.monotonic()
        self._is_behind = True
        try:
            create(
                self._store,
                self._reader.key(manifest.generation),
                data,
                nonce=manifest.nonce.encode(),
                is_collected=lambda: self._is_collected(manifest.generation),
                settings=self._settings,
                clock=self.clock,
                rng=self._rng,
            )
        except ConflictError:
            return None
        return self._confirm(manifest, data, began)

    def _confirm(self, manifest: Manifest, data: bytes, began: float) -> Head | None:
        """Return what was just written as a head, if it counts; None if it lies below the boundary."""
        landed = self.clock.monotonic()
        number = manifest.generation
        key = self._reader.key(number)
        try:
            listed, newer = self._list_from(number)
        except ReefError as error:
            why = f"it was written, but the head could not be read after it: {error}"
            raise OutcomeUnknownError(key, why) from error
        if newer is not None and newer.manifest.gc.boundary.generation > number:
            # Created where a collected one was. Unless it took so long that it was collected itself.
            if self._has_passed(newer, began):
                raise OutcomeUnknownError(key, "the boundary has passed it before it was confirmed")
            _log.warning("%s was created below the boundary and does not count: starting over", key)
            return None
        if not listed or listed[0].number != number:
            raise OutcomeUnknownError(key, "it was written, but a LIST does not show it")
        published = Head(manifest, manifest_checksum(data, key=key), listed[0].published_at_us)
        self._own_put = published.published_at_us, landed
        self._move_to(newer or published, landed)
        self._is_behind = False
        return published

    def _list_from(self, number: int) -> tuple[list[Generation], Head | None]:
        """Return what is listed from a generation on, and the newest after it, which must be whole."""
        for _ in range(LISTINGS_MAX):
            listed = self._reader.list(number)
            try:
                newer = self._reader.newest([g for g in listed if g.number > number])
            except NotFoundError:
                continue
            if newer is not None and newer.damaged:
                raise self._unreadable(newer)
            return listed, newer
        raise UnavailableError(
            f"a manifest of namespace {self.namespace!r} was listed but not there, {LISTINGS_MAX} "
            "times in a row; expected to read it: retry"
        )

    def _base(self, repairing: bool) -> Head | None:
        """Return the head that a change may be built on."""
        head = self.head
        if head is None or not head.damaged:
            return head
        if not repairing:
            raise self._unreadable(head)
        lost = head.last_taken - head.generation
        return replace(head, manifest=go_on_behind(head.manifest, lost))

    def _stamp(self, wanted: Manifest, base: Head | None) -> Manifest:
        """Return `wanted` as the successor of `base`, by this author, with a nonce of its own."""
        number = 1 if base is None else base.last_taken + 1
        planned = 2 if base is None else base.generation + 1
        if max(number, wanted.writer_epoch, wanted.compactor_epoch) > LSN_MAX:
            raise CorruptError(
                self._reader.key(number - 1),
                0,
                f"a generation and epochs below {LSN_MAX}, which others can follow",
                "a higher one: no writer of Reef has come so far",
            )
        return msgspec.structs.replace(
            renumber(wanted, planned, number),
            generation=number,
            author=self.author,
            nonce=new_nonce(self._rng).hex(),
            created_at_us=self.clock.now_us(),
            predecessor_checksum=None if base is None else base.checksum,
            repaired_from=base.generation if base is not None and base.damaged else None,
        )

    def _catch_up(self) -> Head | None:
        head = self.load()
        self._is_behind = False
        return head

    def _has_moved(self) -> bool:
        before, after = self.head, self._catch_up()
        return before is not after and before != after

    def _is_collected(self, generation: int) -> bool:
        head = self.load()
        if head is not None and head.damaged:
            raise self._unreadable(head)
        return head is not None and head.manifest.gc.boundary.generation > generation

    def _unreadable(self, head: Head) -> CorruptError:
        return CorruptError(
            self._reader.key(head.last_taken),
            0,
            "a readable head of the manifest chain",
            f"damage, twice (generation {head.generation} is the newest that can be read); "
            "nothing is published until `reef repair` has continued from there",
        )
