"""Every error Reef raises, grouped by what the caller does next.

ReefError
├── UnavailableError          wait and retry: the store did not answer, nothing is decided
│   └── NotWrittenError       the store did not carry it out, for certain: retry
│       ├── OverloadedError   writes wait for a flush: retry later, or write less
│       └── StalePlanError    prepare it anew: the namespace has changed, or the job was ended
├── OutcomeUnknownError       ask again before anything else: the write may or may not have happened
├── FencedError               re-open: another writer took over, for good
├── DroppedError              open anew: the namespace was dropped while this handle had it open
├── ClosedError               open a new handle: this one was closed, or is the parent process's
├── NotFoundError             nothing is there
├── AlreadyExistsError        the name is taken
│   └── ConflictError         the name is taken by another writer's object, which it carries
├── ConditionFailedError      read again and decide anew: the rows are not as the write asked
├── SnapshotExpiredError      take a new view: the objects that this one reads were collected
├── InvalidInputError         fix the input: names what was given and what was expected
│   ├── BucketNotFoundError   create the bucket or fix the URL
│   ├── AccessDeniedError     fix the credentials or the permissions
│   ├── UnsupportedStoreError use another store, or two-phase CAS
│   ├── IdempotencyError      use a new key: this one was spent on another request
│   └── RetentionError        ask for a later version: this one lies below the retention floor
├── UnreadableError           an object's bytes cannot be used; says which, where and why
│   ├── DamagedError          read it again, then repair
│   │   ├── CorruptError      the bytes are not what was written
│   │   └── IncompleteError   the bytes end too early
│   └── FormatVersionError    written by another version: use one that reads it
│       └── TooLargeError     it does not fit into this process's memory: give it more
└── InvariantError            report it: a bug in Reef
"""

from __future__ import annotations

import reprlib
from typing import Self

__all__ = [
    "AccessDeniedError",
    "AlreadyExistsError",
    "BucketNotFoundError",
    "ClosedError",
    "ConditionFailedError",
    "ConflictError",
    "CorruptError",
    "DamagedError",
    "DroppedError",
    "FencedError",
    "FormatVersionError",
    "IdempotencyError",
    "IncompleteError",
    "InvalidInputError",
    "InvariantError",
    "NotFoundError",
    "NotWrittenError",
    "OutcomeUnknownError",
    "OverloadedError",
    "ReefError",
    "RetentionError",
    "SnapshotExpiredError",
    "StalePlanError",
    "TooLargeError",
    "UnavailableError",
    "UnreadableError",
    "UnsupportedStoreError",
]

_EXCERPT = reprlib.Repr()
_EXCERPT.maxstring = _EXCERPT.maxother = _EXCERPT.maxlong = 200


class ReefError(Exception):
    """The root of every error Reef raises on purpose."""


class UnavailableError(ReefError):
    """The store gave no answer: retry later. A write that raised this may have happened."""


class NotWrittenError(UnavailableError):
    """The store did not carry out this write, for certain: fix the cause it names, then retry."""


class OverloadedError(NotWrittenError):
    """Writes come faster than they are flushed; this one was not begun. Retry later."""


class StalePlanError(NotWrittenError):
    """The namespace has changed since this work was prepared, or its job was ended.

    Nothing of it was published; of a compaction, nothing more is.

    Call again: the pass, the load or the write is prepared anew. A plan that was saved, or segments
    that were uploaded, cannot be used any more.
    """


class OutcomeUnknownError(ReefError):
    """A write may or may not have happened and the store could not be asked. Ask again first.

    Nothing was cleaned up and nothing will be retried behind the caller's back. Retrying with the
    same idempotency key is always safe.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(
            f"the outcome of writing {key!r} is unknown ({why}); "
            "read the object back, or retry with the same idempotency key"
        )
        self.key = key
        self.why = why

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.key, self.why)


class FencedError(ReefError):
    """Another writer has taken over this namespace. Terminal for this handle: re-open to go on.

    `durable_lsn` is the newest version that this handle's writes have reached for certain: whatever
    raised this is not in the log, and everything at or below `durable_lsn` is. None if the handle
    never wrote, or was still being opened.
    """

    def __init__(self, message: str, durable_lsn: int | None = None) -> None:
        super().__init__(message)
        self.durable_lsn = durable_lsn


class DroppedError(ReefError):
    """The namespace was dropped while this handle had it open. Terminal for this handle: open it anew.

    The name may now belong to another namespace, which this handle never reads or writes.
    `durable_lsn` is the newest version that the handle's writes reached before; None for a reader.
    """

    def __init__(self, message: str, durable_lsn: int | None = None) -> None:
        super().__init__(message)
        self.durable_lsn = durable_lsn


class ClosedError(ReefError):
    """The handle was closed, by its owner or after a failure that it names: open a new one.

    In a forked process, every handle of the parent is closed.
    """


class NotFoundError(ReefError):
    """There is no object of that name."""


class AlreadyExistsError(ReefError):
    """The store refused to create the object because the name is taken, or may be."""


class ConflictError(AlreadyExistsError):
    """The name is taken by another writer's object; `found` holds its bytes."""

    def __init__(self, key: str, found: bytes) -> None:
        super().__init__(f"another writer created {key!r} ({len(found)} bytes)")
        self.key = key
        self.found = found

    def __reduce__(self) -> tuple[type, tuple[str, bytes]]:
        return type(self), (self.key, self.found)


class ConditionFailedError(ReefError):
    """A write's condition did not hold, and nothing of it was written: read again, then decide.

    `outcomes` has the outcome of each row, in the order given: its condition failed, it would have
    been written, or a later row of the batch has the same id.
    """

    def __init__(self, message: str, outcomes: tuple[str, ...]) -> None:
        super().__init__(message)
        self.outcomes = outcomes

    def __reduce__(self) -> tuple[type, tuple[str, tuple[str, ...]]]:
        return type(self), (str(self), self.outcomes)


class SnapshotExpiredError(ReefError):
    """The objects that this view reads were collected: take a new one. Never means "no such key"."""


class InvalidInputError(ReefError):
    """An argument is not valid; nothing was read, written or deleted."""

    @classmethod
    def of(cls, name: str, value: object, expected: str, do: str = "") -> Self:
        """Refuse one argument: `limit = -1: expected a whole number of at least 1`.

        `name` is the argument as the caller wrote it, `value` is what was given, cut where it is
        long, and never a secret. `expected` says what would be accepted, `do` what else helps. What
        does not fit into that sentence is said in one of its own: `InvalidInputError("...")`.
        """
        advice = f"; {do}" if do else ""
        return cls(f"{name} = {_EXCERPT.repr(value)}: expected {expected}{advice}")


class BucketNotFoundError(InvalidInputError):
    """The bucket, container or folder that the URL names does not exist."""


class AccessDeniedError(InvalidInputError):
    """The store refused the credentials, or they do not allow this."""


class UnsupportedStoreError(InvalidInputError):
    """The store cannot do what the log needs."""


class IdempotencyError(InvalidInputError):
    """The idempotency key was used before, with another request; a retry must repeat the request."""


class RetentionError(InvalidInputError):
    """The requested version lies below the retention floor: its rows may be gone. Ask for a later one."""


class UnreadableError(ReefError):
    """An object's bytes cannot be used.

    `key` is the object (or "" for bytes that have none), `offset` where the check failed, and
    `expected` and `got` what it compared.
    """

    what = "unreadable"
    advice = "nothing was changed"

    def __init__(self, key: str, offset: int, expected: str, got: str) -> None:
        super().__init__(
            f"{key or 'object'} is {self.what} at byte {offset}: "
            f"expected {expected}, got {got}; {self.advice}"
        )
        self.key = key
        self.offset = offset
        self.expected = expected
        self.got = got

    def __reduce__(self) -> tuple[type, tuple[str, int, str, str]]:
        return type(self), (self.key, self.offset, self.expected, self.got)


class DamagedError(UnreadableError):
    """An object's bytes cannot be trusted."""

    what = "damaged"
    advice = (
        "read it again; if the error persists, the stored object is damaged: "
        "`reef verify` shows what is affected, `reef repair` restores what can be restored"
    )


class CorruptError(DamagedError):
    """The bytes are not what a Reef writer wrote there."""

    what = "corrupt"


class IncompleteError(DamagedError):
    """The bytes end before the object does."""

    what = "incomplete"


class FormatVersionError(UnreadableError):
    """The object is whole, but this version of Reef, or of its Arrow, cannot read it."""

    what = "of another format version"
    advice = "use a version of Reef that reads it; nothing was changed"


class TooLargeError(FormatVersionError):
    """This process has no memory for the object, which is not damaged as far as is known.

    Like an object of another version, nobody falls back behind it, skips it or repairs it.
    """

    what = "too large to be read here"
    advice = "use a machine with more memory; nothing was changed"


class InvariantError(ReefError):
    """Reef broke one of its own rules and stopped before writing anything. Please report it."""
