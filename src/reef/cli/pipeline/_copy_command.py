"""`reef copy`: namespaces in another bucket."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli._report import Part, Report, size_text
from reef.cli.arguments import Scope, Url, connect, given_version, no_namespace_text
from reef.cli.pipeline._run_pass import watched
from reef.errors import ReefError

if TYPE_CHECKING:
    from reef.jobs import CopyResult


def copy(
    url: Url,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The bucket to copy to: a URL like the first.")
    ],
    scope: Scope,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="LSN|TIME",
            help="Copy the version at this LSN, or time with a zone: 2026-11-16T23:00:00Z. "
            "[default: the newest]",
        ),
    ] = None,
) -> Report:
    """Copy a live namespace to another bucket.

    If a copy is there already, it is brought up to date. Every object is read back and checked, and
    the manifest comes last. After a failure, run it again. To restore, copy back into an empty
    bucket. A target that was written to is refused. Exit code 2: a namespace could not be copied.
    """
    from reef.jobs import copy_namespace

    version = given_version(at)
    with connect(url) as db, connect(target) as other:

        def copied(name: str) -> CopyResult | ReefError:
            try:
                with watched(f"copy {name}", db.context().clock) as watch:
                    return copy_namespace(
                        db.context(), other.context(), name, **version, watch=watch
                    )
            except ReefError as error:
                if scope.namespace is not None:
                    raise
                return error  # the others are copied all the same

        found = [(name, copied(name)) for name in scope.names(db) or db.namespaces()]
        where, there = db.store.url, other.store.url
    return Report(
        {"url": where, "target": there, "namespaces": [_as_json(*one) for one in found]},
        [_line(*one) for one in found] or [no_namespace_text(where)],
        is_problem=any(isinstance(result, ReefError) for _, result in found),
    )


def _as_json(name: str, result: CopyResult | ReefError) -> dict[str, Any]:
    if isinstance(result, ReefError):
        return {"namespace": name, "error": str(result)}
    return {**asdict(result), "error": None}


def _line(name: str, result: CopyResult | ReefError) -> Part:
    if isinstance(result, ReefError):
        return f"{name}: {result}"
    if not result.is_changed:
        return f"{name}: the target has LSN {result.lsn} already"
    return (
        f"{name}: LSN {result.lsn} as generation {result.generation}; "
        f"{result.objects} objects, {size_text(result.bytes)}"
    )
