"""Which databases are open in this process: each page store once, however many connections."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from reef.errors import InvalidInputError, ReefError
from reef.sqlite._interrupts import defer_interrupts, restore_interrupts
from reef.sqlite._location import Location
from reef.sqlite._shared import SharedStore

if TYPE_CHECKING:
    from reef.database import Database


@dataclass(frozen=True)
class Opening:
    """How a database is opened, as far as a URL cannot say it."""

    database: Database | None = None
    """A bucket that is open already, instead of that of the URL."""
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass
class _Open:
    shared: SharedStore
    db: Database
    opening: Opening
    options: Mapping[str, str]
    """Of the store's URL."""
    uses: int = 0


class Registry:
    """The page stores that are open. Threads may share it."""

    def __init__(self) -> None:
        # Reentrant: at any point the garbage collector may close an unused connection.
        self._lock = threading.RLock()
        self._open: dict[tuple[object, str, str | None], _Open] = {}
        self._openings: dict[str, Opening] = {}
        self._next = count(1).__next__

    @contextmanager
    def keep(self, opening: Opening) -> Iterator[str]:
        """Keep an `Opening` until the database is open; return the key for its URL."""
        token = str(self._next())
        self._openings[token] = opening
        try:
            yield token
        finally:
            del self._openings[token]

    def acquire(self, location: Location) -> SharedStore:
        """Return the open page store of a database; `release` it as often."""
        opening = self._openings.get(location.opening or "", Opening())
        # One that is opened waits for the store; so do others meanwhile, who may want the same.
        with self._lock:
            key = self._key(location, opening)
            found = self._open.get(key)
            if found is None:
                found = self._open[key] = _open_store(location, opening)
            else:
                _check_same_opening("settings", opening.settings, found.opening.settings, location)
                _check_same_opening("options", location.options, found.options, location)
            defer_interrupts()
            found.uses += 1
            if self._open.get(key) is not found:  # closed by the collector on the way here
                found = self._open[key] = _open_store(location, opening)
                found.uses = 1
            return found.shared

    def release(self, shared: SharedStore) -> None:
        """Close the page store when its last user releases it."""
        with self._lock:
            for key, found in self._open.items():
                if found.shared is shared:
                    found.uses -= 1
                    if found.uses:
                        return
                    del self._open[key]
                    if not self._open:
                        restore_interrupts()
                    break
            else:
                return
        try:
            shared.close()
        finally:
            if found.opening.database is None:
                found.db.close()

    def close(self) -> None:
        """Close everything: the process ends, and open connections can no longer close themselves.

        Later there would be no threads left to wait for.
        """
        for found in list(self._open.values()):
            found.uses = 1
            with suppress(ReefError):
                self.release(found.shared)

    def forget(self) -> None:
        """Start again in a forked process: open stores are the parent's, and are closed here."""
        left, self._open, self._lock = self._open, {}, threading.RLock()
        restore_interrupts()
        for found in left.values():
            found.shared.abandon()

    @staticmethod
    def _key(location: Location, opening: Opening) -> tuple[object, str, str | None]:
        identity: object = location.identity if opening.database is None else id(opening.database)
        return identity, location.name, location.branch


def _check_same_opening(
    what: str, given: Mapping[str, object], there: Mapping[str, object], location: Location
) -> None:
    if given and given != there:
        raise InvalidInputError(
            f"{location.label} is open in this process with other {what} than "
            f"{', '.join(sorted(given))} as given: give the same, or none"
        )


def _open_store(location: Location, opening: Opening) -> _Open:
    from reef.database import connect

    db = opening.database or connect(location.bucket, **opening.settings)
    try:
        shared = SharedStore(
            db, location.name, branch=location.branch, page_size=location.page_size
        )
    except BaseException:
        if opening.database is None:
            db.close()
        raise
    return _Open(shared, db, opening, location.options)


registry = Registry()
atexit.register(registry.close)
os.register_at_fork(after_in_child=registry.forget)
