"""Arguments that commands on a bucket share, and opening it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import typer

from reef.cli._signals import unwind
from reef.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    InvalidInputError,
    ReefError,
)
from reef.types import split_namespace

if TYPE_CHECKING:
    from reef.database import Database

_T = TypeVar("_T")

Url: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="URL", help="The bucket: file://, s3://, gs://, az:// or memory://."),
]
Namespace: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="NAMESPACE", help="The namespace, or NAME@BRANCH for one of its branches."
    ),
]
Apply: TypeAlias = Annotated[
    bool, typer.Option("--apply", help="Make the changes. Without it, only list them.")
]


def connect(url: str) -> Database:
    """Open the bucket. Call it when everything else is imported: from here on Ctrl-C unwinds."""
    from reef.database import connect

    unwind()
    return connect(url)


def name_and_branch(namespace: str) -> dict[str, Any]:
    """Return what to open for the name that a command was given: a branch is NAME@BRANCH."""
    name, branch = split_namespace(namespace)
    return {"name": name, "branch": branch}


@dataclass(frozen=True)
class Scope:
    """Which namespaces a command works on: one, or all."""

    namespace: Annotated[
        str | None,
        typer.Argument(metavar="NAMESPACE", help="The namespace, or NAME@BRANCH; else give --all."),
    ] = None
    every: Annotated[bool, typer.Option("--all", help="Every namespace of the bucket.")] = False

    def names(self, db: Database) -> list[str] | None:
        """Return the one namespace, or None for all.

        Raises InvalidInputError for neither or both of a namespace and --all, and
        BucketNotFoundError for --all of a bucket that does not exist.
        """
        if (self.namespace is None) != self.every:
            given = "both" if self.every else "neither"
            raise InvalidInputError(f"{given} of NAMESPACE and --all given; give one of the two")
        if self.namespace is not None:
            return [self.namespace]
        check_bucket_exists(db.store.url)
        return None

    def each(self, db: Database, do: Callable[[str], _T]) -> Iterator[tuple[str, _T | ReefError]]:
        """Yield each namespace with what `do` returns for it. Raises what `names` raises.

        With --all, one that cannot be read does not stop the others: it comes with its error.
        """
        if names := self.names(db):
            yield names[0], do(names[0])
            return
        for name in db.namespaces(dropped=True):
            try:
                yield name, do(name)
            except ReefError as error:
                if isinstance(error, InvalidInputError) and not isinstance(
                    error, AccessDeniedError
                ):
                    raise  # the command itself is wrong
                yield name, error


def no_namespace_text(url: str) -> str:
    """Return the message for a bucket without namespaces."""
    return f"there is no namespace in {url}"


def check_bucket_exists(url: str) -> None:
    """Raise BucketNotFoundError for a folder that is not there: it would pass for an empty bucket.

    Other stores say so themselves when they are listed.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not os.path.isdir(folder := unquote(parts.path)):
        raise BucketNotFoundError(f"{url}: the folder {folder!r} does not exist; fix the URL")
