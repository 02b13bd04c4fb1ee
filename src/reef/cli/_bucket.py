"""What commands on a bucket have in common: their arguments, and opening it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import typer

from reef.cli._interrupts import unwind
from reef.errors import (
    BucketNotFoundError,
    InvalidInputError,
    NotFoundError,
    ReefError,
    UnreadableError,
)
from reef.types import split_namespace

if TYPE_CHECKING:
    from reef.database import Database

PROBLEM = 2

_T = TypeVar("_T")

Url: TypeAlias = Annotated[
    str, typer.Argument(metavar="URL", help="The bucket: file://, s3://, gs://, az://, memory://.")
]
Namespace: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="The namespace; NAME@BRANCH is a branch of it.")
]
NamespaceOrAll: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="NAMESPACE", help="The namespace, or NAME@BRANCH, or --all."),
]
All: TypeAlias = Annotated[bool, typer.Option("--all", help="Every namespace of the bucket.")]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of tables: for programs.")
]
Apply: TypeAlias = Annotated[
    bool, typer.Option("--apply", help="Do it. Without this, only say what would be done.")
]


def connect(url: str) -> Database:
    """Open the bucket. Call it when everything else is imported: from here on Ctrl-C unwinds."""
    from reef.database import connect

    unwind()
    return connect(url)


def named(namespace: str) -> dict[str, Any]:
    """Return what to open for the name that a command was given: a branch is NAME@BRANCH."""
    name, branch = split_namespace(namespace)
    return {"name": name, "branch": branch}


def for_each(
    db: Database, namespace: str | None, every: bool, do: Callable[[str], _T]
) -> Iterator[tuple[str, _T | ReefError]]:
    """Yield each namespace that a command is about, with what `do` returns for it.

    With --all, one that cannot be read does not keep the others from being looked at: it comes with
    its error. Raises InvalidInputError for neither or both of a namespace and --all, and
    BucketNotFoundError for --all of a bucket that is not there.
    """
    if names := names_of(db, namespace, every):
        yield names[0], do(names[0])
        return
    for name in db.namespaces(dropped=True):
        try:
            yield name, do(name)
        except (NotFoundError, UnreadableError) as error:
            yield name, error


def names_of(db: Database, namespace: str | None, every: bool) -> list[str] | None:
    """Return the one namespace that a command is about, or None for all.

    Raises InvalidInputError for neither or both of a namespace and --all, and BucketNotFoundError for
    --all of a bucket that is not there.
    """
    if (namespace is None) != every:
        given = "both" if every else "neither"
        raise InvalidInputError(f"NAMESPACE and --all: {given} given; give one of the two")
    if namespace is not None:
        return [namespace]
    check_there(db.store.url)
    return None


def none_text(url: str) -> str:
    """Return what is said of a bucket in which there is nothing to look at."""
    return f"there is no namespace in {url}"


def check_there(url: str) -> None:
    """Raise BucketNotFoundError for a folder that is not there: it would pass for an empty bucket.

    Other stores say so themselves when they are listed.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not os.path.isdir(folder := unquote(parts.path)):
        raise BucketNotFoundError(f"{url}: the folder {folder!r} does not exist; fix the URL")
