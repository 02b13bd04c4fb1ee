"""The head of a manifest chain, as one actor sees it: loading it, following it, going back to one.

Invariants:

- The head seen never goes back: not by a LIST that came late, nor by damage to what was read before.
- An absent generation is the end of the chain only for somebody who has looked within half the grace
  period. After that it may have come and been collected, and its name may even be taken again by a
  sleeper whose generation does not count: then only a LIST tells.
- If newer generations are damaged, the head is an older one; this is logged, and the head is marked.

Nothing is written here. Threads may share it: each look stands for itself.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import NamedTuple

from reef.clock import Clock
from reef.errors import DamagedError, NotFoundError, UnavailableError
from reef.manifest._manifest_reader import Generation, Head, ManifestReader, manifests_gone
from reef.manifest._retention import is_retained
from reef.store import Store

LISTINGS_MAX = 10

_log = logging.getLogger("reef.manifest")


class _KnownHead(NamedTuple):
    """The newest generation known, and when it was last known to be that."""

    head: Head
    at: float


class ManifestFollower:
    """The newest generation of one namespace, and how it is found."""

    def __init__(self, store: Store, namespace: str, *, clock: Clock) -> None:
        """Nothing is asked of the store yet. Raises InvalidInputError for a bad name."""
        self.namespace = namespace
        self._store = store
        self._reader = ManifestReader(store, namespace)
        self.clock = clock
        self._lock = threading.Lock()
        self._seen: _KnownHead | None = None
        self._was_empty = False

    @property
    def head(self) -> Head | None:
        """The newest generation seen so far."""
        return None if self._seen is None else self._seen.head

    @property
    def last_contact(self) -> float | None:
        """When, on the monotonic clock, `head` was last known to be the newest; None: never."""
        return None if self._seen is None else self._seen.at

    @property
    def is_out_of_touch(self) -> bool:
        """Whether an absent generation means nothing any more: it may have come and been collected.

        So it is when half the grace period has passed since the last contact.
        """
        seen = self._seen
        return seen is None or self._has_passed(*seen)

    def load(self) -> Head | None:
        """Return the newest generation that can be read, or None if there is none: LIST and GET.

        One that cannot be read, twice, is logged at ERROR and listed in `damaged`; the one before
        it is the head then. Raises CorruptError or IncompleteError if none can be read, or if all are
        gone and other objects are not; FormatVersionError, UnavailableError.
        """
        for _ in range(LISTINGS_MAX):
            asked_at = self.clock.monotonic()
            known = self.head
            try:
                found = self._newest(known, self._reader.list(known.generation if known else 1))
            except NotFoundError:
                continue  # collected between LIST and GET: there are newer ones
            if found is not None:
                return self._move_to(found, asked_at)
            left = None if self._was_empty else self._reader.left_behind()
            if left is None:
                self._was_empty = True
                return None
            if not self._reader.list():  # else it was created between the two LISTs
                raise manifests_gone(self.namespace, left)
        raise UnavailableError(
            f"the head of namespace {self.namespace!r} was listed but not there "
            f"{LISTINGS_MAX} times in a row; retry"
        )

    def follow(self) -> Head:
        """Return the newest generation, found by asking for the next ones: GETs, no LIST.

        Out of touch, it does `load` instead: a collected generation looks like the end of the
        chain, and one that a sleeper created below the boundary looks like its next link. Raises
        NotFoundError if the namespace has no generation, and what `load` raises.
        """
        seen = self._seen
        if seen is None or self._has_passed(*seen):
            return self._loaded()
        try:
            found, asked_at = self._walk(seen.head)
        except (DamagedError, NotFoundError):
            return self._loaded()
        # An answer that took as long as that is worth no more than a silence as long.
        if self._has_passed(*seen):
            return self._loaded()
        return self._move_to(found, asked_at)

    def at(self, generation: int) -> Head:
        """Return one generation, retained or not collected yet: one GET, one HEAD.

        Raises NotFoundError if it is gone, or lies where collection may have removed it and
        anything found is not to be trusted; CorruptError, IncompleteError, FormatVersionError.
        """
        if self.is_out_of_touch:
            self.load()
        head = self.head
        if head is not None and head.generation == generation:
            return head
        if head is not None and not is_retained(head.manifest, generation):
            raise self._reader.collected(generation)
        manifest, checksum = self._reader.read(generation)
        return Head(manifest, checksum, self._reader.published_at_us(generation))

    def generations(self) -> list[Generation]:
        """Return every generation in the bucket, in order, even below the boundary: one LIST."""
        return self._reader.list()

    def _newest(self, known: Head | None, listed: list[Generation]) -> Head | None:
        """Return the newest of what was listed from the known head on, never less than that head."""
        if known is None:
            return self._reader.newest(listed)
        if not listed:
            _log.error(
                "generation %d of namespace %r was there, and is gone with everything after it; "
                "`reef verify` shows what is left",
                known.generation,
                self.namespace,
            )
        newer = [found for found in listed if found.number > known.generation]
        return self._reader.newest(newer, behind=known)

    def _walk(self, head: Head) -> tuple[Head, float]:
        """Return the last link that is there, and when its successor was found absent.

        Raises NotFoundError if that link has gone meanwhile: then only a LIST tells.
        """
        first = head
        while True:
            asked_at = self.clock.monotonic()
            number = head.last_taken + 1
            try:
                manifest, checksum = self._reader.read(number)
            except NotFoundError:
                break
            head = Head(manifest, checksum, 0)
        if head is not first:
            head = replace(head, published_at_us=self._reader.published_at_us(head.generation))
        return head, asked_at

    def _move_to(self, head: Head, contact: float) -> Head:
        """Take note of `head`, unless a newer one was seen already; return the newest."""
        with self._lock:
            known = self._seen
            if known is not None and head.generation < known.head.generation:
                return known.head
            if known is not None and contact < known.at:
                contact = known.at
            self._seen = _KnownHead(head, contact)
        if head.damaged and (known is None or head.damaged != known.head.damaged):
            _log.error(
                "namespace %r fell back to generation %d: %s cannot be read; reads continue from "
                "there, writing needs `reef repair`",
                self.namespace,
                head.generation,
                ", ".join(map(self._reader.key, head.damaged)),
            )
        return head

    def _loaded(self) -> Head:
        self.load()
        return self._known()

    def _known(self) -> Head:
        head = self.head
        if head is None:
            raise NotFoundError(
                f"namespace {self.namespace!r} has no manifest in {self._store.url}: it does not "
                "exist; open it for writing to create it"
            )
        return head

    def _has_passed(self, head: Head, since: float) -> bool:
        """Return whether half the grace period lies between `since` and now."""
        return (self.clock.monotonic() - since) * 2000 > head.manifest.gc.grace_ms
