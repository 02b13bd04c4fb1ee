"""Which version is read: the options of all commands that read a namespace."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from reef.types import LSN_MAX

Lsn: TypeAlias = Annotated[
    int | None,
    typer.Option("--lsn", "--at", min=0, max=LSN_MAX, help="Read as of this version."),
]
AtSnapshot: TypeAlias = Annotated[
    str | None, typer.Option("--snapshot", metavar="ID", help="Read this snapshot.")
]
Generation: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--generation", min=1, max=LSN_MAX, help="Read the segments of this manifest generation."
    ),
]
