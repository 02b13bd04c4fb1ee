"""Stores that lie: each breaks one promise of the contract, and keeps the others.

Where breaking it for every name would trip several checks at once, it is broken for the names of
one check only: `fresh/` is what reading after writing looks at, `racing-` what the races are about.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from typing_extensions import Buffer

from reef.clock import Clock
from reef.errors import AlreadyExistsError, NotFoundError, UnavailableError
from reef.store import MemoryStore, ObjectMeta

RACERS = 4
"""How many must race on the stores that make them wait for each other."""


class EverybodyWins(MemoryStore):
    """Takes every conditional PUT, as a server does that does not know the header."""

    def put_if_absent(self, key: str, data: Buffer) -> None:
        self.put(key, data)


class LooksThenPuts(MemoryStore):
    """Refuses a name that is taken, but racers that look at the same time all find it free."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._looked = threading.Barrier(RACERS)

    def put_if_absent(self, key: str, data: Buffer) -> None:
        with suppress(NotFoundError):
            self.head(key)
            raise AlreadyExistsError(key)
        if "/racing-" in key:
            self._looked.wait()
        self.put(key, data)


class WinnerOverwritten(MemoryStore):
    """Tells exactly one racer that it won, and keeps the bytes of another."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._told = threading.Barrier(RACERS)

    def put_if_absent(self, key: str, data: Buffer) -> None:
        if "/racing-" not in key:
            return super().put_if_absent(key, data)
        place = self._told.wait()
        if place == 0:
            self.put(key, data)
        self._told.wait()
        if place == 1:
            self.put(key, data)
        self._told.wait()
        if place != 0:
            raise AlreadyExistsError(key)
        return None


class LandsLate(MemoryStore):
    """Refuses a loser, and carries out its PUT after all: when every racer has its answer."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._late: dict[str, Buffer] = {}

    def put_if_absent(self, key: str, data: Buffer) -> None:
        try:
            super().put_if_absent(key, data)
        except AlreadyExistsError:
            self._late[key] = data
            raise

    def get(self, key: str) -> bytes:
        if "/racing-" in key and threading.current_thread() is threading.main_thread():
            self.put(key, self._late[key])
        return super().get(key)


class RefusesForever(MemoryStore):
    """Does not forget a name after its object was deleted."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._ever: set[str] = set()

    def put_if_absent(self, key: str, data: Buffer) -> None:
        if key in self._ever:
            raise AlreadyExistsError(key)
        super().put_if_absent(key, data)
        self._ever.add(key)


class ScramblesTheFirst(MemoryStore):
    """Damages the very first object that a check writes."""

    def get(self, key: str) -> bytes:
        data = super().get(key)
        return data[::-1] if key.endswith("/create") else data


class RefusesAndWrites(MemoryStore):
    """Refuses a second PUT, and carries it out all the same, once."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._times = 0

    def put_if_absent(self, key: str, data: Buffer) -> None:
        try:
            super().put_if_absent(key, data)
        except AlreadyExistsError:
            self._times += key.endswith("/taken")
            if self._times == 1:
                self.put(key, data)
            raise


class CachesReads(MemoryStore):
    """Answers a GET with what the name held when it was read first."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._cache: dict[str, bytes] = {}

    def get(self, key: str) -> bytes:
        data = super().get(key)
        return self._cache.setdefault(key, data) if key.endswith("/again") else data


class MeasuresWrong(MemoryStore):
    """Says in HEAD that an object is a byte longer."""

    def head(self, key: str) -> ObjectMeta:
        meta = super().head(key)
        return meta._replace(size=meta.size + ("/whole-" in key))


class InventsRanges(MemoryStore):
    """Serves zeros as the bytes of an object that is not there."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        try:
            return super().get_range(key, start, length)
        except NotFoundError:
            return bytes(length)


class InventsObjects(MemoryStore):
    """Serves an empty object for a name that nobody wrote."""

    def get(self, key: str) -> bytes:
        try:
            return super().get(key)
        except NotFoundError:
            if key.endswith("/fresh/0"):
                return b""
            raise


class ServesAnOldState(MemoryStore):
    """Serves other bytes than those last written."""

    def get(self, key: str) -> bytes:
        data = super().get(key)
        return b"old" if "/fresh/" in key else data


class HeadsTheDeleted(MemoryStore):
    """Answers HEAD for a deleted object."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._ghosts: dict[str, ObjectMeta] = {}

    def delete(self, key: str) -> None:
        if "/fresh/" in key:
            self._ghosts.setdefault(key, super().head(key))
        super().delete(key)

    def head(self, key: str) -> ObjectMeta:
        return self._ghosts.get(key) or super().head(key)


class ListsFlat(MemoryStore):
    """Lists the objects of a folder, but not those of the folders in it."""

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        for meta in super().list(prefix, start_after):
            if not prefix.endswith("/B/") or "/" not in meta.key.removeprefix(prefix):
                yield meta


class FlipsABit(MemoryStore):
    """Damages large objects on the way out."""

    def get(self, key: str) -> bytes:
        data = super().get(key)
        return data[:-1] + bytes([data[-1] ^ 1]) if len(data) > 500_000 else data


class CutsRanges(MemoryStore):
    """Serves what there is of a range that goes past the end, without a word."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]


class ShiftsRanges(MemoryStore):
    """Counts the bytes of a range from one."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        super().get_range(key, start, length)
        return self.get(key)[max(0, start - 1) :][:length]


class SortsRanges(MemoryStore):
    """Gives several ranges in order of offset instead of the order asked."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        return super().get_ranges(key, sorted(ranges))


class LosesAPart(MemoryStore):
    """Leaves out the last part of an upload."""

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        super().upload(key, list(parts)[:-1])


class RemembersNo(MemoryStore):
    """Caches "not found": the next GET of that name is answered from the cache."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._absent: set[str] = set()

    def get(self, key: str) -> bytes:
        if key in self._absent:
            self._absent.discard(key)
            raise NotFoundError(key)
        try:
            return super().get(key)
        except NotFoundError:
            self._absent.add(key)
            raise


class ListsLate(MemoryStore):
    """Leaves the newest object out of LIST."""

    def put_if_absent(self, key: str, data: Buffer) -> None:
        super().put_if_absent(key, data)
        self._newest = key

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        for meta in super().list(prefix, start_after):
            if "/fresh/" not in meta.key or meta.key != self._newest:
                yield meta


class ServesTheDeleted(MemoryStore):
    """Serves a deleted object once more."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._ghosts: dict[str, bytes] = {}

    def delete(self, key: str) -> None:
        if "/fresh/" in key:
            with suppress(NotFoundError):
                self._ghosts[key] = super().get(key)
        super().delete(key)

    def get(self, key: str) -> bytes:
        return self._ghosts.pop(key, None) or super().get(key)


class ListsTheDeleted(MemoryStore):
    """Lists deleted objects for ever."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._ghosts: list[ObjectMeta] = []

    def delete(self, key: str) -> None:
        if "/fresh/" in key:
            with suppress(NotFoundError):
                self._ghosts.append(self.head(key))
        super().delete(key)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        ghosts = [meta for meta in self._ghosts if meta.key.startswith(prefix)]
        return iter(sorted([*super().list(prefix, start_after), *ghosts]))


class RefusesToDeleteTwice(MemoryStore):
    """Says "not found" to a repeated delete."""

    def delete(self, key: str) -> None:
        self.head(key)
        super().delete(key)


class ListsUnordered(MemoryStore):
    """Lists capital and small letters together, as people sort."""

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        return iter(sorted(super().list(prefix, start_after), key=lambda meta: meta.key.lower()))


class ListsWithGaps(MemoryStore):
    """Leaves out every key with a dot."""

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        return (meta for meta in super().list(prefix, start_after) if "." not in meta.key)


class IgnoresStartAfter(MemoryStore):
    """Lists from the start, always."""

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        return super().list(prefix)


class IncludesStart(MemoryStore):
    """Lists from `start_after` on, that key included."""

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        return (meta for meta in super().list(prefix) if meta.key >= start_after)


class LosesLastModified(MemoryStore):
    """Has no time for any object."""

    def head(self, key: str) -> ObjectMeta:
        return super().head(key)._replace(last_modified_us=0)


class TimeStandsStill(MemoryStore):
    """Gives every object the same time."""

    def head(self, key: str) -> ObjectMeta:
        return super().head(key)._replace(last_modified_us=1_700_000_000_000_000)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        return (self.head(meta.key) for meta in super().list(prefix, start_after))


class TimeGoesBack(MemoryStore):
    """Gives each object an earlier time than the one before."""

    def head(self, key: str) -> ObjectMeta:
        meta = super().head(key)
        return meta._replace(last_modified_us=3_400_000_000_000_000 - meta.last_modified_us)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        return (self.head(meta.key) for meta in super().list(prefix, start_after))


class ListsAnotherTime(MemoryStore):
    """Gives a time in LIST that is not that of HEAD."""

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        for meta in super().list(prefix, start_after):
            yield meta._replace(last_modified_us=meta.last_modified_us + 5_000_000)


class AnswersNobodySometimes(MemoryStore):
    """In the first race, leaves one racer without an answer, and then without a reading."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._victim = 0

    def put_if_absent(self, key: str, data: Buffer) -> None:
        super().put_if_absent(key, data)
        if key.endswith("threads/000001"):
            self._victim = threading.get_ident()
            raise UnavailableError("timeout")

    def get(self, key: str) -> bytes:
        if threading.get_ident() == self._victim:
            self._victim = 0
            raise UnavailableError("timeout")
        return super().get(key)


class Refuses(MemoryStore):
    """Raises `error` for every conditional PUT."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def put_if_absent(self, key: str, data: Buffer) -> None:
        raise self._error


class DeletesNothing(MemoryStore):
    """Refuses to delete what the races have left."""

    def delete(self, key: str) -> None:
        if "/racing-" in key:
            raise UnavailableError("try later")
        super().delete(key)


class PretendsToDelete(MemoryStore):
    """Says that it has deleted what the races have left, and has not."""

    def delete(self, key: str) -> None:
        if "/racing-" not in key:
            super().delete(key)


class HidesRaces(MemoryStore):
    """Lists nothing of the races."""

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        return (meta for meta in super().list(prefix, start_after) if "/racing-" not in meta.key)
