"""Where rows are to be copied, and in which format: the part of `reef export` that needs no Spark."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Literal, cast, get_args

from reef.errors import InvalidInputError

OutputFormat = Literal["parquet", "csv", "jsonl", "delta", "iceberg"]

_PACKAGES = {"delta": ("deltalake", "deltalake"), "iceberg": ("pyiceberg", "pyiceberg[sql-sqlite]")}


_NOT_OF_PATHS = set("%?#")
"""What packages for tables take for a part of an address, each in its own way."""


def output_format(name: str) -> OutputFormat:
    """Return a format that can be written here.

    Raises InvalidInputError, which says what to install if a package is missing.
    """
    allowed = get_args(OutputFormat)
    if name not in allowed:
        raise InvalidInputError.of("format", name, f"one of {', '.join(allowed)}")
    module, package = _PACKAGES.get(name, ("", ""))
    if module and find_spec(module) is None:
        raise InvalidInputError(
            f"format = {name!r} needs a package that is not installed: pip install '{package}'"
        )
    return cast(OutputFormat, name)


def folder_of(out: str) -> str | None:
    """Return the folder of this machine that `out` names; None if it is another system's."""
    path = out.removeprefix("file:")
    if path == out and ":/" in out:
        return None
    return os.path.abspath(path[2:] if path.startswith("//") and path != out else path)


def check_out(out: str, format: OutputFormat) -> str:
    """Return where to write: a local folder for a table, else `out` unchanged, for Spark.

    Raises InvalidInputError for a table that is not local, or if `out` exists.
    """
    if format not in _PACKAGES:
        return out
    folder = folder_of(out)
    if folder is None:
        raise InvalidInputError(
            f"OUT {out!r} is not a local folder, and {format} needs one: give a local folder"
        )
    if os.path.lexists(folder):
        raise InvalidInputError(f"OUT {out!r} exists already: give a folder that does not exist")
    if set(folder) & _NOT_OF_PATHS:
        raise InvalidInputError(
            f"OUT {out!r} has a %, ? or #, which {format} cannot have in a path: choose another"
        )
    return folder
