"""The one loop that decides whether a conditional PUT won.

A store client that repeats a request by itself sees its own success as "already exists", and a
reply can be lost after the server has committed. So the stores here make single attempts, and this
loop alone turns answers into truth.

Invariants:

- It reports success only after the store said so, or after it read its own bytes back.
- It reports a conflict only after it has read another writer's object.
- It passes on the store's own refusal only if no attempt before it was left open.
- Everything else is `OutcomeUnknownError`: nothing is cleaned up, nothing is retried blindly.
- It only ever repeats the same bytes at the same key. A request that was thought lost and lands
  late therefore does no harm: it meets its own object, or fails.

A 412 means that the name is taken and a 409 that nothing is decided; clients map both to "already
exists", so reading back tells them apart. If there is nothing to read, either it was a 409,
or the object was there and has been collected since: `is_collected` says which.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from reef.clock import Clock, SystemClock
from reef.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptError,
    IncompleteError,
    InvariantError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
    UnavailableError,
)
from reef.settings import Settings
from reef.store._base import Data, Store, bytes_of, parts_of

_SETTINGS, _CLOCK, _RNG = Settings(), SystemClock(), random.SystemRandom()


def create(
    store: Store,
    key: str,
    data: Data,
    *,
    nonce: bytes,
    is_collected: Callable[[], bool],
    settings: Settings = _SETTINGS,
    clock: Clock = _CLOCK,
    rng: random.Random = _RNG,
) -> None:
    """Create `key` holding `data`, or find out for certain that it was not created.

    `data` must not change meanwhile: retries send it again, and compare it with the stored object.
    `nonce` must occur in `data`: without it, another writer's object with the same bytes would pass
    for this one. `is_collected` is called when the store refuses the name although nothing is there;
    it returns whether garbage collection may have deleted `key`.

    Raises ConflictError with the other writer's object, OutcomeUnknownError, CorruptError if this
    writer's own object came back damaged. If no request can have been carried out, raises the
    store's own error: InvalidInputError or one of its subclasses, or NotWrittenError, which is not
    retried here (a full disk stays full for longer than the backoff).
    """
    if not nonce or not _is_in(nonce, data):
        raise InvariantError(f"{key!r} would be created without its author's nonce in it")
    is_open = False
    why = ""
    for attempt in range(settings.cas_max_retries + 1):
        if attempt:
            clock.sleep(backoff(attempt, settings, rng))
        refused = False
        try:
            store.put_if_absent(key, data)
            return
        except ReefError as error:
            if not _is_open(error):
                # Not carried out. But an earlier attempt may still be.
                if is_open and not isinstance(error, OutcomeUnknownError):
                    raise OutcomeUnknownError(key, str(error)) from error
                raise
            is_open = True
            refused = isinstance(error, AlreadyExistsError)
            why = str(error)
        if _is_ours(store, key, bytes_of(data), nonce):
            return
        if refused and _answer(is_collected, key):
            raise OutcomeUnknownError(key, "it may have been created and collected since")
    raise OutcomeUnknownError(
        key, f"no clear answer after {settings.cas_max_retries} retries, at last: {why}"
    )


def _is_in(nonce: bytes, data: Data) -> bool:
    if isinstance(data, bytes):
        return nonce in data
    return any(nonce in bytes_of(part) for part in parts_of(data))


def _is_open(error: ReefError) -> bool:
    """Return whether an attempt that raised this may have been, or may still be, carried out."""
    return isinstance(error, AlreadyExistsError | UnavailableError) and not isinstance(
        error, NotWrittenError
    )


def backoff(attempt: int, settings: Settings, rng: random.Random) -> float:
    """Return the seconds to wait before retry `attempt` (from 1): doubling, with full jitter."""
    first, most = settings.cas_backoff
    return rng.uniform(0, min(most, first * 2.0 ** min(attempt - 1, 30)))


def _answer(is_collected: Callable[[], bool], key: str) -> bool:
    try:
        return is_collected()
    except ReefError as error:
        raise OutcomeUnknownError(key, f"the manifest could not be read: {error}") from error


def _is_ours(store: Store, key: str, data: bytes, nonce: bytes) -> bool:
    """Return whether `key` holds our bytes; False if it holds nothing.

    Bytes that may be our own object, damaged, are read again before anything is concluded.
    """
    first = found = _read_back(store, key)
    if found is None:
        return False
    if _may_be_damaged(found, data, nonce):
        found = _read_back(store, key)
        if found is None:
            raise OutcomeUnknownError(key, "it was there, and then it was not")
    if found == data:
        return True
    if nonce in found or (found and data.startswith(found)):
        raise CorruptError(key, 0, "the bytes that were just written", "only some of them")
    if found != first:
        raise OutcomeUnknownError(key, "two readings of it differ")
    raise ConflictError(key, found)


def _read_back(store: Store, key: str, *, again: bool = True) -> bytes | None:
    """Return the object, None if there is none; a truncated answer is requested once more."""
    try:
        return store.get(key)
    except NotFoundError:
        return None
    except ReefError as error:
        if again and isinstance(error, IncompleteError):
            return _read_back(store, key, again=False)
        raise OutcomeUnknownError(key, f"reading it back failed: {error}") from error


def _may_be_damaged(found: bytes, data: bytes, nonce: bytes) -> bool:
    """Return whether `found` could be `data` with some bits wrong, or cut short."""
    return found != data and (nonce in found or len(found) == len(data) or data.startswith(found))
