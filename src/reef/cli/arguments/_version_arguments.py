"""Which version of a namespace is read, and what makes a write safe to repeat."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from reef.errors import InvalidInputError
from reef.settings import parse_time
from reef.types import LSN_MAX

if TYPE_CHECKING:
    from reef.database import Database

IDEMPOTENCY_BYTES_MAX = 512
PREFIX_BYTES_MAX = 480
"""Leaves room for the number of a batch."""


_WHEN = "this LSN, or time with a zone: 2026-11-16T23:00:00Z."


def _at(help: str) -> Any:
    return typer.Option("--lsn", "--at", metavar="LSN|TIME", help=help)


ReadAt: TypeAlias = Annotated[str | None, _at(f"Read the version at {_WHEN}")]
StartAt: TypeAlias = Annotated[
    str | None, _at(f"Start from the version at {_WHEN} [default: the newest]")
]
RestoreAt: TypeAlias = Annotated[str, _at(f"Restore the version at {_WHEN}")]


def given_version(at: str | None) -> dict[str, Any]:
    """Return the version that `--at` names, as arguments: lsn or time. Raises InvalidInputError."""
    if at is None:
        return {}
    if not re.fullmatch(r"[+-]?\d+", at.strip(), re.ASCII):
        return {"time": parse_time("--at", at)}
    lsn = int(at) if len(at) < 32 else -1
    if not 0 <= lsn <= LSN_MAX:
        raise InvalidInputError.of(
            "--lsn", at, f"an LSN from 0 to {LSN_MAX}, or a time with a zone: 2026-11-16T23:00:00Z"
        )
    return {"lsn": lsn}


def lsn_of(db: Database, namespace: str, at: str | None) -> int | None:
    """Return the LSN that `--at` names, by itself or by its time; None: it was not given."""
    given = given_version(at)
    if "time" not in given:
        return given.get("lsn")
    from reef.engine import face_of, newest_manifest, open_for_reading

    context = db.context()
    reader = open_for_reading(context, namespace, face_of(newest_manifest(context, namespace)))
    try:
        return reader.version_by_time(given["time"]).lsn
    finally:
        reader.close()


@dataclass(frozen=True)
class Version:
    """The newest version, unless one of these is given."""

    at: ReadAt = None
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", metavar="ID", help="Read this snapshot.")
    ] = None
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            metavar="N",
            min=1,
            help="Read only the segments that this manifest generation names.",
        ),
    ] = None

    @property
    def is_newest(self) -> bool:
        """Whether none is given."""
        return self == Version()

    def as_dict(self) -> dict[str, Any]:
        """Return it as the arguments of `at`. Raises InvalidInputError."""
        given = {**given_version(self.at), "snapshot": self.snapshot, "generation": self.generation}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def is_time(self) -> bool:
        """Whether the answer has to say which version it is. Raises InvalidInputError."""
        return "time" in given_version(self.at)


def check_idempotency(option: str, text: str | None, bytes_max: int) -> bytes | None:
    """Return what an option says, as the shell gave it. Raises InvalidInputError."""
    if text is None:
        return None
    data = os.fsencode(text)
    if not 1 <= len(data) <= bytes_max:
        raise InvalidInputError(
            f"{option} = {text[:64]!r} has {len(data)} bytes: expected 1 to {bytes_max}"
        )
    return data
