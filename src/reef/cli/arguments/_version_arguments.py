"""Which version of a namespace is read, and what makes a write safe to repeat."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeAlias

import typer

from reef.errors import InvalidInputError

IDEMPOTENCY_BYTES_MAX = 512
PREFIX_BYTES_MAX = 480
"""Leaves room for the number of a batch."""


def _lsn(help: str) -> Any:
    return typer.Option("--lsn", "--at", metavar="LSN", min=0, help=help)


ReadLsn: TypeAlias = Annotated[int | None, _lsn("Read the version at this log sequence number.")]
StartLsn: TypeAlias = Annotated[
    int | None, _lsn("Start from the version at this LSN. [default: the newest]")
]
RestoreLsn: TypeAlias = Annotated[int, _lsn("Restore the version at this LSN.")]


@dataclass(frozen=True)
class Version:
    """The newest version, unless one of these is given."""

    lsn: ReadLsn = None
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
        """Return it as the arguments of `at`."""
        return asdict(self)


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
