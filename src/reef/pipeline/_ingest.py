"""What files are to be loaded, and in which format: the part of `reef ingest` that needs no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Literal, cast, get_args
from urllib.parse import urlsplit

from reef.errors import InvalidInputError

InputFormat = Literal["parquet", "csv", "jsonl"]

_SUFFIXES: dict[str, InputFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_PACKED = (".gz", ".bz2", ".zst", ".snappy", ".lz4")


def input_format(files: Sequence[str], said: str | None = None) -> InputFormat:
    """Return the format of files, by what is said or else by their names. Raises InvalidInputError."""
    allowed = get_args(InputFormat)
    if said is not None:
        if said not in allowed:
            raise InvalidInputError.of("format", said, f"one of {', '.join(allowed)}")
        return cast(InputFormat, said)
    if not files:
        raise InvalidInputError.of("files", "none", "at least one")
    found = {_SUFFIXES.get(_suffix(file)) for file in files}
    if len(found) > 1:
        raise InvalidInputError.of(
            "files", ", ".join(files), "of one format; load each format by itself"
        )
    format = found.pop()
    if format is None:
        raise InvalidInputError.of(
            "files", files[0], f"a name that ends in {', '.join(_SUFFIXES)}; or say the format"
        )
    return format


def _suffix(file: str) -> str:
    """Return how a name ends, without compression."""
    path = PurePosixPath(urlsplit(file).path.rstrip("/*"))
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""
