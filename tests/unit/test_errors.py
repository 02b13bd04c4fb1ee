"""The error tree: one root, groups by what to do next, and errors that travel between processes."""

from __future__ import annotations

import pickle
import re

import pytest

import reef
from reef import errors
from reef.errors import (
    ClosedError,
    ConditionFailedError,
    ConflictError,
    CorruptError,
    DamagedError,
    DroppedError,
    FencedError,
    FormatVersionError,
    IdempotencyError,
    IncompleteError,
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
    OverloadedError,
    ReefError,
    RetentionError,
    SnapshotExpiredError,
    StalePlanError,
    UnavailableError,
)

MADE: list[ReefError] = [
    ConditionFailedError("2 of 3 rows are not there; nothing was written", ("ok", "absent", "x")),
    ConflictError("wal/1", b"theirs"),
    CorruptError("wal/1", 12, "a header", "something else"),
    DroppedError("namespace 'a' was dropped: open it anew", 7),
    FormatVersionError("wal/1", 8, "format version 1", "format version 2"),
    IncompleteError("wal/1", 12, "a header", "the end"),
    InvalidInputError.of("slot", 0, "at least 1"),
    OutcomeUnknownError("wal/1", "no reply"),
    RetentionError.of("lsn", 3, "at least 7, the retention floor"),
]


def tree() -> dict[str, type[ReefError]]:
    found: dict[str, type[ReefError]] = {}
    waiting = [ReefError]
    while waiting:
        kind = waiting.pop()
        if vars(errors).get(kind.__name__) is kind:
            found[kind.__name__] = kind
        waiting += kind.__subclasses__()
    return found


def test_every_error_is_exported_and_stands_in_the_picture() -> None:
    assert errors.__all__ == sorted(tree())
    for name in errors.__all__:
        assert getattr(reef, name) is getattr(errors, name)
        assert name in reef.__all__


def test_the_picture_is_the_tree() -> None:
    """The depth at which a name is drawn is its depth below the root."""
    assert errors.__doc__ is not None
    drawn = {}
    for line in errors.__doc__.splitlines():
        if match := re.fullmatch(r"([│ ]*)(?:[├└]── )?(\w+Error)(?: +.+)?", line):
            drawn[match[2]] = len(match[1]) // 4 + ("── " in line)
    depth = {name: len(kind.__mro__) - len(ReefError.__mro__) for name, kind in tree().items()}
    assert drawn == depth


def test_what_a_caller_does_next_decides_the_group() -> None:
    assert issubclass(OverloadedError, NotWrittenError)
    assert issubclass(OverloadedError, UnavailableError)
    assert issubclass(StalePlanError, NotWrittenError)
    for kind in (IdempotencyError, RetentionError):
        assert issubclass(kind, InvalidInputError)
    for other in (
        ClosedError,
        ConditionFailedError,
        DroppedError,
        FencedError,
        NotFoundError,
        SnapshotExpiredError,
    ):
        assert other.__bases__ == (ReefError,)


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: ReefError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_a_failed_condition_tells_every_row() -> None:
    error = MADE[0]
    assert isinstance(error, ConditionFailedError)
    assert error.outcomes == ("ok", "absent", "x")
    assert str(error) == "2 of 3 rows are not there; nothing was written"


@pytest.mark.parametrize("kind", [DamagedError, CorruptError, IncompleteError])
def test_damage_names_the_commands_that_help(kind: type[DamagedError]) -> None:
    text = str(kind("wal/1", 12, "a header", "the end"))
    assert "wal/1 is " in text
    assert "read it again" in text
    assert "`reef verify`" in text
    assert "`reef repair`" in text


def test_the_form_of_a_refusal_keeps_its_kind() -> None:
    assert type(RetentionError.of("lsn", 3, "at least 7")) is RetentionError
    assert str(RetentionError.of("lsn", 3, "at least 7")) == "lsn = 3: expected at least 7"
    said = InvalidInputError.of("key", "k" * 5000, "at most 512 bytes", "give a shorter one")
    assert str(said).endswith("kkk': expected at most 512 bytes; give a shorter one")
    assert len(str(said)) < 300
