"""What files are to be loaded, and in which format: the part of `reef ingest` that needs no Spark."""

from __future__ import annotations

import csv
import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple, cast, get_args
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from reef.documents import Documents
from reef.engine import Context
from reef.errors import InvalidInputError, NotFoundError
from reef.types import split_namespace

InputFormat = Literal["parquet", "csv", "jsonl"]

_SUFFIXES: dict[str, InputFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_HIDDEN = ("_", ".")
_PACKED = (".gz", ".bz2", ".zst", ".snappy", ".lz4")
LARGE_BYTES = 8 << 20
"""Larger loads are sorted by Spark, and loaded in bulk."""
_HEAD_BYTES = 1 << 20
_PATTERN = re.compile(r"[\\{}\[\]*?]")


@dataclass(frozen=True)
class IngestPlan:
    """The plan of a load, as far as it is known without Spark."""

    namespace: str
    format: InputFormat
    files: tuple[str, ...]
    bytes: int
    unlisted: tuple[str, ...]
    """Addresses whose files only Spark can list: they are not in `files` and `bytes`."""
    columns: tuple[str, ...] | None
    """Of the first file; None: only Spark can tell. JSON lines: those of the first line."""
    operation: str
    method: str
    """log, or bulk: as it was asked for, or as the size suggests."""
    attributes: dict[str, str] | None
    """That the namespace has now; None: it is made by the load."""


def plan_ingest(
    context: Context,
    namespace: str,
    files: Sequence[str],
    *,
    format: str | None = None,
    id: str = "id",
    operation: str = "upsert",
    method: str = "auto",
) -> IngestPlan:
    """Return what `reef ingest` would load. Reads no more than the beginning of one file.

    Raises InvalidInputError for files that do not exist, and for an id that is not a column;
    NotFoundError for a branch that does not exist.
    """
    kind = input_format(files, format)
    is_here = {file: _is_local(file) for file in files}
    inputs = [one for file in files if is_here[file] for one in _input_files(file)]
    _check_partitions(inputs)
    found = [one.path for one in inputs]
    unlisted = tuple(file for file in files if not is_here[file])
    size = sum(path.stat().st_size for path in found)
    columns = _file_columns(found[0], kind) if found else None
    if columns is not None and kind != "jsonl" and id not in columns:
        raise InvalidInputError.of("--id", id, f"one of the columns {', '.join(columns)}")
    if method == "auto":
        is_large = operation == "upsert" and (size > LARGE_BYTES or bool(unlisted))
        method = "bulk" if is_large else "log"
    try:
        with Documents(context, namespace, mode="r") as ns:
            attributes: dict[str, str] | None = ns.schema
    except NotFoundError:
        if split_namespace(namespace)[1] is not None:
            raise  # a branch is made by branching, not by a load
        attributes = None
    return IngestPlan(
        namespace,
        kind,
        tuple(map(str, found)),
        size,
        unlisted,
        columns,
        operation,
        method,
        attributes,
    )


def check_options(files: Sequence[str], kind: InputFormat, *, multiline: bool) -> None:
    """Raise InvalidInputError for files that Spark would ignore, and for unsuitable options."""
    for file in files:
        name = PurePosixPath(file).name
        is_file = Path(_local(file)).is_file() if _is_local(file) else _suffix(name) in _SUFFIXES
        if name.startswith(_HIDDEN) and is_file:
            raise InvalidInputError(
                f"Spark ignores {file!r}, because its name begins with '_' or '.': rename it"
            )
    if multiline and kind != "csv":
        raise InvalidInputError(f"--multiline is for CSV, and the files are {kind}: leave it out")


def as_spark_takes(file: str) -> str:
    """Return an address for Spark: the name of an existing file is not a pattern."""
    is_there = _is_local(file) and Path(_local(file)).exists()
    return without_patterns(file) if is_there else file


def without_patterns(file: str) -> str:
    """Return an address in which no character stands for others."""
    return _PATTERN.sub(r"\\\g<0>", file)


def _is_local(file: str) -> bool:
    return urlsplit(file).scheme in ("", "file")


def _local(file: str) -> str:
    # As Spark takes an address: `%20` in it is three characters of a name.
    return urlsplit(file).path if file.startswith("file:") else file


class _InputFile(NamedTuple):
    path: Path
    partition: str
    """The folders `NAME=VALUE` that it is in, of the folder that was asked for."""


def _input_files(file: str) -> Iterator[_InputFile]:
    """Yield the files of this machine that Spark would read: none that is hidden, as it has it."""
    path = _local(file)
    is_pattern = glob.has_magic(path) and not Path(path).exists()
    names = sorted(glob.glob(path)) if is_pattern else [path]
    some = False
    for name in names:
        for found in _files_within(Path(name)):
            some = True
            yield found
    if not some:
        raise InvalidInputError(f"there is no file {file!r}")


def _files_within(path: Path) -> Iterator[_InputFile]:
    if path.is_file() and not path.name.startswith(_HIDDEN):
        yield _InputFile(path, "")
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith(_HIDDEN))
        partition = "/".join(part for part in Path(folder).relative_to(path).parts if "=" in part)
        for name in sorted(names):
            if not name.startswith(_HIDDEN):
                yield _InputFile(Path(folder, name), partition)


def _check_partitions(inputs: Sequence[_InputFile]) -> None:
    """Raise InvalidInputError for files beside folders `NAME=VALUE`, which Spark would leave out."""
    inside = next((one for one in inputs if one.partition), None)
    beside = next((one for one in inputs if not one.partition), None)
    if inside is not None and beside is not None:
        raise InvalidInputError(
            f"{str(beside.path)!r} is not in a folder such as {inside.partition}, as "
            "other files are: load such files by themselves"
        )


def _file_columns(path: Path, kind: InputFormat) -> tuple[str, ...] | None:
    if kind == "parquet":
        try:
            return tuple(pq.read_schema(path).names)
        except (pa.ArrowInvalid, OSError) as error:
            raise InvalidInputError(f"the files cannot be read: {path}: {error}") from error
    if path.suffix.lower() in _PACKED:
        return None
    with path.open("rb") as file:
        line = file.readline(_HEAD_BYTES).decode(errors="replace").removeprefix("\ufeff")
    if kind == "csv":
        return tuple(next(csv.reader([line]), ()))
    try:
        return tuple(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def input_format(files: Sequence[str], given: str | None = None) -> InputFormat:
    """Return the format of files: as given, or else by their names. Raises InvalidInputError."""
    allowed = get_args(InputFormat)
    if given is not None:
        if given not in allowed:
            raise InvalidInputError.of("format", given, f"one of {', '.join(allowed)}")
        return cast(InputFormat, given)
    if not files:
        raise InvalidInputError("there are no files to load: give at least one")
    found = {_SUFFIXES.get(_suffix(file)) for file in files}
    if len(found) > 1:
        raise InvalidInputError(
            f"the files are of different formats, {', '.join(files)}: load each format by itself"
        )
    format = found.pop()
    if format is None:
        raise InvalidInputError(
            f"the name of {files[0]!r} does not say its format: expected a name that ends in "
            f"{', '.join(_SUFFIXES)}; or give the format"
        )
    return format


def _suffix(file: str) -> str:
    """Return how a name ends, without compression."""
    path = PurePosixPath(file.rstrip("/*"))
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""
