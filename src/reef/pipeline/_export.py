"""Where rows are to be copied, and in which format: the part of `reef export` that needs no Spark."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, cast, get_args

from reef.errors import InvalidInputError

OutputFormat = Literal["parquet", "csv", "jsonl", "delta", "iceberg"]

_PACKAGES = {"delta": ("deltalake", "deltalake"), "iceberg": ("pyiceberg", "pyiceberg[sql-sqlite]")}


def output_format(said: str) -> OutputFormat:
    """Return a format that can be written here.

    Raises InvalidInputError, which says what to install if a package is missing.
    """
    allowed = get_args(OutputFormat)
    if said not in allowed:
        raise InvalidInputError.of("format", said, f"one of {', '.join(allowed)}")
    module, package = _PACKAGES.get(said, ("", ""))
    if module and find_spec(module) is None:
        raise InvalidInputError.of(
            "format",
            said,
            f"it takes a package that is not installed: pip install '{package}'",
        )
    return cast(OutputFormat, said)


def local_path(out: str, format: OutputFormat) -> str:
    """Return a folder of this machine. Raises InvalidInputError for anything else."""
    path = out.removeprefix("file://")
    if "://" in path:
        raise InvalidInputError.of("OUT", out, f"a local folder: {format} is written from here")
    return path
