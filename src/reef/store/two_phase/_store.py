"""Put-if-absent on a store that has none: a temporary object, a record, a copy, a flag.

    1 put the temporary   2 insert the record   3 copy it to its name   4 commit   5 delete it

The record decides: once it stands, the name will hold the bytes of its source and no others, and
any client that meets it may carry out what is left. `docs/decisions/0002-two-phase-cas.md` goes through
the interleavings.

Invariants:

- A record is inserted only for a name that held no object just before, and names a source that
  nobody else names. Success is reported only after the copy and the commit.
- A source is deleted only when its record is committed, or when no record names it and none can:
  a collector first claims it, by a record from the temporary to itself.
- A record is removed only after its source is gone, so that no copy of it can begin any more, and
  then only if its object is absent. The object goes first, its record after.
- Every change of a record names destination and source: nobody changes a successor's record.

Crash points: before 2 an orphan is left, which `collect` removes. From 2 on `recover`, or the next
creator of that name, completes it. After 4 the left-over temporary is removed by `collect`. A
delete or a collection that stopped half way is finished by the next `collect` or creator.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from crc32c import crc32c
from typing_extensions import Buffer

from reef.clock import Clock
from reef.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    ReefError,
    UnavailableError,
)
from reef.store._base import Data, ObjectMeta, Store, bytes_of
from reef.store.two_phase._intent_records import Record, Records
from reef.types import check_object_key

TEMPORARY_PREFIX = ".tmp/"
# Each turn means that another client removed the record we had met; more than two is a pile-up.
_INSERTS_MAX = 4


class PlainStore(Protocol):
    """What two-phase CAS asks of the store below: nothing conditional."""

    url: str

    def put(self, key: str, data: Buffer) -> None: ...
    def copy(self, source: str, destination: str) -> None: ...
    def upload(self, key: str, parts: Iterable[Buffer]) -> None: ...
    def sweep(self, before_us: int) -> Sequence[str]: ...
    def get(self, key: str) -> bytes: ...
    def get_range(self, key: str, start: int, length: int) -> bytes: ...
    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]: ...
    def head(self, key: str) -> ObjectMeta: ...
    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]: ...
    def delete(self, key: str) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class RecoveryReport:
    """What `recover` did, as keys of destinations."""

    completed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    """Records that could never complete: their temporary was collected before they were written."""
    failed: tuple[str, ...] = ()
    """The store gave no answer for these: they are still pending. Run it again."""


@dataclass(frozen=True)
class CollectReport:
    """What `collect` removed: temporary objects, and records whose object is gone."""

    temporaries: tuple[str, ...] = ()
    records: tuple[str, ...] = ()


class _Outcome(enum.Enum):
    COMPLETED = enum.auto()
    """We copied and committed: the destination holds the source's bytes."""
    ELSEWHERE = enum.auto()
    """Somebody else has completed or removed the record."""
    DROPPED = enum.auto()
    """It could never complete, and has been removed."""


def _no_step(_name: str) -> None:
    pass


class TwoPhaseStore(Store):
    """A store without conditional writes, and a database that decides who created a name."""

    def __init__(
        self,
        inner: PlainStore,
        records: Records,
        *,
        clock: Clock,
        rng: random.Random,
        on_step: Callable[[str], None] = _no_step,
        reopen: Callable[[], Store] | None = None,
    ) -> None:
        """Use `records` to arbitrate on `inner`; every creator on that bucket must do the same.

        `rng` must not repeat in another client what it gave in this one: it names temporaries.
        `on_step` is called with the name of each step before it. `reopen` makes this store in another process.
        """
        super().__init__(inner.url, concurrency=1)
        self._inner = inner
        self._records = records
        self._clock = clock
        self._rng = rng
        self._step = on_step
        self._reopen = reopen

    def put_if_absent(self, key: str, data: Data) -> None:
        _check_key(key)
        # Objects without a record: uploaded, older than this way of writing, or the database was
        # lost. Without records nothing else would keep us from writing over them.
        if self._exists(key):
            raise AlreadyExistsError(f"{key!r} exists in {self.url}")
        payload = bytes_of(data)
        source = self._new_temporary(payload)
        self._step("put-temporary")
        self._inner.put(source, payload)
        for _ in range(_INSERTS_MAX):
            self._step("insert-record")
            if self._records.insert(key, source, created_us=self._clock.now_us()):
                with _ambiguous(key):
                    self._finish(key, source, payload)
                self._discard(source)
                return
            if self._is_taken(key, source):
                self._discard(source)
                raise AlreadyExistsError(f"another writer created {key!r} in {self.url}")
        self._discard(source)
        raise UnavailableError(
            f"{key!r} was created and deleted by others during each of {_INSERTS_MAX} attempts to "
            "create it: retry"
        )

    def delete(self, key: str) -> None:
        _check_key(key)
        self._step("find-record")
        record = self._records.find(key)
        if record is not None:
            if not record.committed:
                # A pending record would bring the object back at the next recovery.
                self._step("commit-record")
                self._records.commit(key, record.source)
            self._step("delete-temporary")
            self._inner.delete(record.source)
        self._step("delete-object")
        self._inner.delete(key)
        if record is not None:
            self._step("remove-record")
            self._records.remove(key, record.source, committed=True)

    def recover(self) -> RecoveryReport:
        """Complete what other clients began and left. Any client, any time, any number at once.

        Raises UnavailableError if the records cannot be read; what is done stays done.
        """
        by_outcome: dict[_Outcome, list[str]] = {outcome: [] for outcome in _Outcome}
        failed = []
        self._step("list-records")
        for record in self._records.pending():
            try:
                by_outcome[self._complete(record)].append(record.destination)
            except UnavailableError:
                failed.append(record.destination)  # one bad object must not stop the others
        return RecoveryReport(
            tuple(by_outcome[_Outcome.COMPLETED]),
            tuple(by_outcome[_Outcome.DROPPED]),
            tuple(failed),
        )

    def collect(self, before_us: int) -> CollectReport:
        """Remove temporaries last modified before that time, and records whose object is gone.

        Run `recover` first: temporaries with a pending record stay. The time only spares writers
        the trouble of starting over; it is safe whatever it is.
        """
        temporaries = [key for key in self._temporaries(before_us) if self._collect_one(key)]
        self._step("list-objects")
        records = [record.destination for record in self._widowed() if self._forget(record)]
        return CollectReport(tuple(temporaries), tuple(records))

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        # Straight to its name: nobody else uses it, so there is nothing to arbitrate, and the
        # object means nothing until a log object or a manifest, which are arbitrated, names it.
        self._inner.upload(_check_key(key), parts)

    def sweep(self, before_us: int) -> Sequence[str]:
        """Finish what others began, then remove what nothing needs any more."""
        self.recover()
        temporaries = self.collect(before_us).temporaries
        return [*temporaries, *self._inner.sweep(before_us)]

    def get(self, key: str) -> bytes:
        return self._inner.get(_check_key(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._inner.get_range(_check_key(key), start, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        return self._inner.get_ranges(_check_key(key), ranges)

    def head(self, key: str) -> ObjectMeta:
        return self._inner.head(_check_key(key))

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        for meta in self._inner.list(prefix, start_after):
            if not meta.key.startswith(TEMPORARY_PREFIX):
                yield meta

    def close(self) -> None:
        super().close()
        self._inner.close()
        self._records.close()

    def __reduce__(self) -> tuple[Callable[[], Store], tuple[()]]:
        if self._reopen is None:
            raise TypeError(f"{self!r} cannot go to another process: open it there by its URL")
        return self._reopen, ()

    def _finish(self, key: str, source: str, payload: bytes) -> None:
        """Carry out our own record, or see that somebody else has done so."""
        self._step("copy")
        try:
            self._inner.copy(source, key)
        except NotFoundError:
            self._step("find-record")
            if self._records.find(key) == Record(key, source, committed=True):
                self._step("read-back")
                if self._inner.get(key) == payload:
                    return
            raise
        self._step("commit-record")
        if not self._records.commit(key, source):
            raise UnavailableError(f"{key!r} was deleted while it was being created; try again")

    def _is_taken(self, key: str, source: str) -> bool:
        """Return whether `key` holds another's object; False if inserting is worth another try."""
        self._step("find-record")
        found = self._records.find(key)
        if found is None:
            self._step("find-record")
            if self._records.find_source(source) is not None:
                raise UnavailableError(
                    f"{key!r} was not created: its temporary {source!r} was collected; try again"
                )
            return False
        if not found.committed:
            return self._complete(found) is _Outcome.COMPLETED
        # Committed and yet not there: a delete stopped half way.
        return self._exists(key) or not self._forget(found)

    def _complete(self, record: Record) -> _Outcome:
        """Carry out a record that was pending when it was read."""
        self._step("copy")
        try:
            self._inner.copy(record.source, record.destination)
        except NotFoundError:
            return self._complete_without_source(record)
        self._step("commit-record")
        if not self._records.commit(record.destination, record.source):
            return _Outcome.ELSEWHERE
        self._discard(record.source)
        return _Outcome.COMPLETED

    def _complete_without_source(self, record: Record) -> _Outcome:
        """Decide a record whose temporary is gone.

        If it is still pending, then nobody has ever copied it: a source that was copied is deleted
        only after the commit. So it was collected before the record was written.
        """
        destination, source, _ = record
        self._step("find-record")
        now = self._records.find(destination)
        if now is None or now.source != source or now.committed:
            return _Outcome.ELSEWHERE
        if self._exists(destination):
            # Not ours, but there: keep the name taken.
            self._step("commit-record")
            self._records.commit(destination, source)
            return _Outcome.ELSEWHERE
        self._step("remove-record")
        removed = self._records.remove(destination, source, committed=False)
        return _Outcome.DROPPED if removed else _Outcome.ELSEWHERE

    def _forget(self, record: Record) -> bool:
        """Remove a committed record if its object is gone; return whether it was gone.

        The source first: were the object looked for before that, a slow copy could still make it.
        """
        self._step("delete-temporary")
        self._inner.delete(record.source)
        if self._exists(record.destination):
            return False
        self._step("remove-record")
        self._records.remove(record.destination, record.source, committed=True)
        return True

    def _collect_one(self, temporary: str) -> bool:
        """Remove a temporary unless a pending record needs it; return whether it was removed."""
        self._step("claim-temporary")
        claim = Record(temporary, temporary, committed=True)
        if self._records.insert(*claim[:2], committed=True, created_us=self._clock.now_us()):
            return self._forget(claim)
        self._step("find-record")
        found = self._records.find_source(temporary)
        if found is None or not found.committed:
            return False
        self._step("delete-temporary")
        self._inner.delete(temporary)
        return True

    def _temporaries(self, before_us: int) -> Sequence[str]:
        self._step("list-temporaries")
        found = self._inner.list(TEMPORARY_PREFIX)
        return [meta.key for meta in found if meta.last_modified_us < before_us]

    def _widowed(self) -> Iterator[Record]:
        """Yield the committed records that a LIST has no object for: candidates, to be looked at."""
        keys = (meta.key for meta in self._inner.list())
        key = next(keys, None)
        for record in self._records.committed():
            while key is not None and key < record.destination:
                key = next(keys, None)
            if key != record.destination:
                yield record

    def _exists(self, key: str) -> bool:
        self._step("head-destination")
        try:
            self._inner.head(key)
        except NotFoundError:
            return False
        return True

    def _discard(self, temporary: str) -> None:
        """Delete a temporary that nothing needs any more, or leave that to `collect`."""
        self._step("delete-temporary")
        with suppress(ReefError):
            self._inner.delete(temporary)

    def _new_temporary(self, data: bytes) -> str:
        """Return a fresh name. The checksum makes an unlucky or repeating `rng` still no mix-up."""
        return f"{TEMPORARY_PREFIX}{self._rng.getrandbits(128):032x}.{crc32c(data):08x}"


@contextmanager
def _ambiguous(key: str) -> Iterator[None]:
    """Turn every failure into UnavailableError: after the record, nothing says "not created"."""
    try:
        yield
    except ReefError as error:
        if isinstance(error, UnavailableError) and not isinstance(error, NotWrittenError):
            raise
        raise UnavailableError(
            f"{key!r} is recorded but perhaps not in place ({error}); read it back, or try again"
        ) from error


def _check_key(key: str) -> str:
    if key.startswith(TEMPORARY_PREFIX):
        raise InvalidInputError(
            f"object key {key!r} begins with {TEMPORARY_PREFIX!r}, which two-phase CAS "
            "keeps for itself: use another name"
        )
    return check_object_key(key)
