"""`reef copy`: a namespace in another bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli._report import Part, Report, Table, size_text
from reef.cli.arguments import Scope, Url, connect
from reef.cli.pipeline._run_pass import watched
from reef.errors import InvalidInputError, ReefError

if TYPE_CHECKING:
    from reef.jobs import CopyResult
