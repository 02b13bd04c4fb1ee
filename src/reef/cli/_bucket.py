"""What commands on a bucket have in common: their arguments, and opening it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, TypeAlias, TypeVar

import typer

import reef
from reef.errors import InvalidInputError, NotFoundError, UnreadableError

PROBLEM = 2

_T = TypeVar("_T")

Url: TypeAlias = Annotated[
    str, typer.Argument(metavar="URL", help="The bucket: file://, s3://, gs://, az://, memory://.")
]
Namespace: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="The name of the namespace.")
]
NamespaceOrAll: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="[NAMESPACE]", help="The name of the namespace, or --all.")
]
All: TypeAlias = Annotated[bool, typer.Option("--all", help="Every namespace of the bucket.")]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of tables: for programs.")
]
Apply: TypeAlias = Annotated[
    bool, typer.Option("--apply", help="Do it. Without this, only say what would be done.")
]


def for_each(
    db: reef.Database, namespace: str | None, every: bool, do: Callable[[str], _T]
) -> Iterator[tuple[str, _T | reef.ReefError]]:
    """Yield each namespace that a command is about, with what `do` returns for it.

    With --all, one that cannot be read does not keep the others from being looked at: it comes with
    its error. Raises InvalidInputError for neither or both of a namespace and --all.
    """
    if (namespace is None) != every:
        given = "both" if every else "neither"
        raise InvalidInputError.of("NAMESPACE and --all", given, "one of the two")
    if namespace is not None:
        yield namespace, do(namespace)
        return
    for name in db.namespaces():
        try:
            yield name, do(name)
        except (NotFoundError, UnreadableError) as error:
            yield name, error
