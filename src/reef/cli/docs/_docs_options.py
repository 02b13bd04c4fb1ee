"""The options of `reef docs`, and what their texts stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import typer

from reef.cli.arguments import PREFIX_BYTES_MAX, check_idempotency
from reef.errors import InvalidInputError

Where: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--where", metavar="SQL", help="Only documents that match, such as: n > 3 AND name = 'x'."
    ),
]
Columns: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="A,B", help="Only these attributes, and id."),
]
File: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE", help="A .jsonl, .csv or .parquet file; - is stdin.")
]
Declared: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--schema", metavar="NAME=TYPE", help="Declare the type of a new attribute. Repeatable."
    ),
]


@dataclass(frozen=True)
class Output:
    """Where rows go, and in which format."""

    format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="table, json, jsonl or csv. [default: as the name of --output ends; else table, "
            "or jsonl for `docs get`]",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False
    path: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file to write; - is stdout.")
    ] = "-"


@dataclass(frozen=True)
class Batching:
    """How input is cut into commits."""

    batch_size: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000_000, help="The most documents per commit.")
    ] = 10_000
    idempotency_prefix: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Makes a repeat safe: the same prefix and input write nothing twice.",
        ),
    ] = None

    @property
    def prefix(self) -> bytes | None:
        """What begins the idempotency key of each batch. Raises InvalidInputError."""
        return check_idempotency("--idempotency-prefix", self.idempotency_prefix, PREFIX_BYTES_MAX)


@dataclass(frozen=True)
class LoadOptions(Batching):
    """How a file is read and written."""

    input_format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="jsonl, csv or parquet. [default: from the file name; jsonl for stdin]",
        ),
    ] = None
    condition: Annotated[
        str | None,
        typer.Option(
            metavar="SQL",
            help="Must hold for each stored document; incoming.NAME is the new value of NAME.",
        ),
    ] = None
    skip: Annotated[
        bool,
        typer.Option(
            "--skip",
            help="Skip documents that fail the condition, instead of failing their batch.",
        ),
    ] = False


def column_names(columns: list[str] | None, types: dict[str, str]) -> list[str]:
    only = column_list(columns)
    return list(dict.fromkeys(["id", *(types if only is None else only)]))


def column_list(columns: list[str] | None) -> list[str] | None:
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
