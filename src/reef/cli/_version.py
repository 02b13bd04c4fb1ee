"""Which version of a namespace is read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from reef.types import LSN_MAX


@dataclass(frozen=True)
class Version:
    """The newest version, unless one of these is given."""

    lsn: Annotated[
        int | None,
        typer.Option(
            "--lsn", "--at", metavar="LSN", min=0, max=LSN_MAX, help="Read the version at this LSN."
        ),
    ] = None
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", metavar="ID", help="Read this snapshot.")
    ] = None
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            metavar="N",
            min=1,
            max=LSN_MAX,
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
