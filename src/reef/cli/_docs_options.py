"""The options of `reef docs`, and what their texts stand for."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import typer

from reef.errors import InvalidInputError

Where: TypeAlias = Annotated[
    str | None, typer.Option("--where", metavar="SQL", help="Only documents that match.")
]
Columns: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="A,B", help="Only these attributes; id is always there."),
]
Format: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--format", metavar="FORMAT", help="table, json, jsonl or csv; else by the name of FILE."
    ),
]
Output: TypeAlias = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="Where to; - is stdout.")
]
JsonFormat: TypeAlias = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
Prefix: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--idempotency-prefix",
        metavar="TEXT",
        help="The same prefix and input again write nothing twice.",
    ),
]
File: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE", help=".jsonl, .csv or .parquet; - is stdin.")
]
InputFormat: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--input-format",
        metavar="FORMAT",
        help="jsonl, csv or parquet. [default: by the file's name; jsonl from stdin]",
    ),
]
BatchSize: TypeAlias = Annotated[
    int, typer.Option("--batch-size", min=1, max=1_000_000, help="Most documents in one commit.")
]
Condition: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--condition",
        metavar="SQL",
        help="What must hold of each document that is there; incoming.NAME is the new one's.",
    ),
]
Skip: TypeAlias = Annotated[
    bool, typer.Option("--skip", help="Leave out documents that do not meet the condition.")
]
Declared: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--schema", metavar="NAME=TYPE", help="Declare an attribute. Can be repeated."),
]


def column_names(columns: list[str] | None, types: dict[str, str]) -> list[str]:
    only = chosen(columns)
    return list(dict.fromkeys(["id", *(types if only is None else only)]))


def chosen(columns: list[str] | None) -> list[str] | None:
    """Return the names in `--columns a,b --columns c`."""
    if not columns:
        return None
    return [name.strip() for some in columns for name in some.split(",") if name.strip()]


def order_of(text: str | None) -> list[tuple[str, str]] | None:
    """Return the order that `price desc, name` stands for."""
    if text is None:
        return None
    terms = []
    for term in text.split(","):
        name, _, direction = term.strip().rpartition(" ")
        if direction.lower() not in ("asc", "desc") or not name:
            name, direction = term.strip(), "asc"
        terms.append((name.strip(), direction.lower()))
    return terms


def pairs_of(option: str, texts: list[str] | None) -> dict[str, str]:
    """Return what `NAME=VALUE` texts say. Raises InvalidInputError."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, is_given, value = text.rpartition("=")
        if not is_given or not name or not value or name in pairs:
            raise InvalidInputError.of(option, text, "NAME=VALUE, each name once")
        pairs[name] = value
    return pairs


def numbers_of(text: str) -> list[float]:
    found = json_of("--vector", text)
    if not isinstance(found, list):
        raise InvalidInputError.of("--vector", text[:64], "a JSON list of numbers")
    return found


def json_of(option: str, text: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInputError.of(option, text[:64], f"JSON ({error})") from error
