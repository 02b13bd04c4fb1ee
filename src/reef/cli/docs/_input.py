"""Files of documents → batches of bounded size that know where in the file each document stands.

JSON lines    an object a line; bytes are base64, null is an attribute that is absent
CSV           a header with `id` in it; an empty cell is an attribute that is absent
Parquet       as it is, from a file

Where a batch ends depends on the input, `--batch-size` and the setting `log_segment_max_bytes` alone,
so that a second run over the same input makes the same batches. For the same reason attributes that
are absent from a whole batch are left out of it, whether the schema knows them or not.
"""

from __future__ import annotations

import abc
import contextlib
import csv
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

from reef.cli.docs._text_cells import bytes_of_base64, cell_refusal, cells_of_text
from reef.errors import InvalidInputError

STDIN = "-"
FORMATS = ("jsonl", "csv", "parquet")
LINE_BYTES_MAX = 64 << 20

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv"}
_SUFFIXES |= {".parquet": "parquet", ".pq": "parquet"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Batch(abc.ABC):
    """Some documents of the input, one after the other."""

    numbers: Sequence[int]
    """Where each document stands in the input, from 1 on."""
    read_bytes: int
    """How much of the input was read when this was complete."""

    unit: ClassVar[str] = "line"
    """What `numbers` count."""

    @abc.abstractmethod
    def documents(
        self, schema: Mapping[str, str], declared: Collection[str], *, is_patch: bool
    ) -> object:
        """Return what `upsert` or `patch` takes; `declared` are attributes whose types the user gave.

        Raises InvalidInputError, which names the line.
        """


@dataclass(frozen=True)
class Input:
    """An open input: its batches, and its size where that is known."""

    batches: Iterator[Batch]
    size: int | None


@contextlib.contextmanager
def open_input(path: str, format: str | None, *, rows_max: int, bytes_max: int) -> Iterator[Input]:
    """Open a file, or stdin. Raises InvalidInputError if it cannot be read."""
    format = format or _SUFFIXES.get(Path(path).suffix.lower())
    if format is None and path != STDIN:
        known = ", ".join(_SUFFIXES)
        raise InvalidInputError.of(
            "FILE", path, f"a name that ends in {known}", "or say what it is with --input-format"
        )
    if format not in (None, *FORMATS):
        raise InvalidInputError.of("--input-format", format, f"one of {', '.join(FORMATS)}")
    if format == "parquet" and path == STDIN:
        raise InvalidInputError(
            "Parquet cannot be read from stdin, because reading begins at its end: give a file"
        )
    with _open_file("FILE", path) as stream:
        size = None if path == STDIN else os.fstat(stream.fileno()).st_size or None
        if format == "parquet":
            yield Input(_parquet(stream, path, rows_max, bytes_max), size)
        else:
            batches = _csv_batches if format == "csv" else _json_lines
            yield Input(batches(_InputLines(stream, path), rows_max, bytes_max), size)


def read_ids(path: str, *, rows_max: int) -> Iterator[list[str]]:
    """Yield the ids of a file, or of stdin: one a line. Raises InvalidInputError."""
    with _open_file("--file", path) as stream:
        ids: list[str] = []
        for text in _InputLines(stream, path):
            if id := text.rstrip("\r\n"):
                ids.append(id)
            if len(ids) == rows_max:
                yield ids
                ids = []
        if ids:
            yield ids


@contextlib.contextmanager
def _open_file(option: str, path: str) -> Iterator[IO[bytes]]:
    if path == STDIN:
        if sys.stdin is None:
            raise InvalidInputError(
                f"{option} is {STDIN}, and stdin is closed: give a file, or open stdin"
            )
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(path).open("rb"))
        except OSError as error:
            raise InvalidInputError(f"{option} {path!r} cannot be read: {error}") from error
        yield stream


class _InputLines:
    """Lines of UTF-8, counted, none of them without a bound."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream = stream
        self._name = name
        self.number = 0
        self.read_bytes = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._read():
            self.number += 1
            self.read_bytes += len(line)
            if len(line) > LINE_BYTES_MAX:
                raise InvalidInputError(
                    f"line {self.number} is longer than {LINE_BYTES_MAX} bytes: is the format right?"
                )
            if self.number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                raise InvalidInputError(f"line {self.number} is not UTF-8: {error}") from error

    def _read(self) -> bytes:
        try:
            return self._stream.readline(LINE_BYTES_MAX + 1)
        except OSError as error:
            raise InvalidInputError(f"FILE {self._name!r} cannot be read: {error}") from error


@dataclass(frozen=True)
class _JsonBatch(Batch):
    rows: list[dict[str, Any]]

    def documents(
        self, schema: Mapping[str, str], declared: Collection[str], *, is_patch: bool
    ) -> object:
        coded = {name: type for name, type in schema.items() if type in ("bytes", "[]bytes")}
        rows = self.rows
        if not is_patch:
            rows = [{n: v for n, v in row.items() if v is not None} for row in rows]
        for name, type in coded.items():
            for row, line in zip(rows, self.numbers, strict=True):
                if row.get(name) is not None:
                    row[name] = bytes_of_base64(row[name], type, line, name)
        return rows


def _json_lines(lines: _InputLines, rows_max: int, bytes_max: int) -> Iterator[Batch]:
    from reef.documents.input import parse_document

    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    size = 0
    for text in lines:
        if not text.strip():
            continue
        if rows and (len(rows) >= rows_max or size + len(text) > bytes_max):
            yield _JsonBatch(numbers, lines.read_bytes, rows)
            rows, numbers, size = [], [], 0
        row = parse_document(text, f"line {lines.number}")
        _check_text_id(row, lines.number)
        rows.append(row)
        numbers.append(lines.number)
        size += len(text)
    if rows:
        yield _JsonBatch(numbers, lines.read_bytes, rows)


def _check_text_id(row: dict[str, Any], line: int) -> None:
    if not isinstance(row.get("id"), str):
        got = f"it is {type(row['id']).__name__}" if "id" in row else "there is none"
        raise InvalidInputError(f"line {line}, attribute 'id': expected text, but {got}")


@dataclass(frozen=True)
class _CsvBatch(Batch):
    names: Sequence[str]
    rows: list[list[str]]

    def documents(
        self, schema: Mapping[str, str], declared: Collection[str], *, is_patch: bool
    ) -> object:
        columns: dict[str, list[Any]] = {}
        for name, cells in zip(self.names, zip(*self.rows, strict=True), strict=True):
            if any(cells):
                columns[name] = cells_of_text(
                    cells,
                    "string" if name == "id" else schema.get(name),
                    self.numbers,
                    name,
                    is_declared=name in declared,
                )
        if not is_patch:
            return columns
        return [
            {name: cell for name, cell in zip(columns, row, strict=True) if cell is not None}
            for row in zip(*columns.values(), strict=True)
        ]


def _csv_batches(lines: _InputLines, rows_max: int, bytes_max: int) -> Iterator[Batch]:
    csv.field_size_limit(LINE_BYTES_MAX)
    reader = csv.reader(lines, strict=True)
    names = _header(reader)
    id_at = names.index("id")
    rows: list[list[str]] = []
    numbers: list[int] = []
    size = 0
    while True:
        line = lines.number + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise InvalidInputError(f"line {line} is not CSV: {error}") from error
        if row is None:
            break
        if not row:
            continue  # an empty line
        if len(row) != len(names):
            raise InvalidInputError(
                f"line {line}: expected {len(names)} cells, as in the header, got {len(row)}"
            )
        if not row[id_at]:
            raise cell_refusal(line, "id", "", "text that is not empty", "no id")
        nbytes = sum(map(len, row))
        if rows and (len(rows) >= rows_max or size + nbytes > bytes_max):
            yield _CsvBatch(numbers, lines.read_bytes, names, rows)
            rows, numbers, size = [], [], 0
        rows.append(row)
        numbers.append(line)
        size += nbytes
    if rows:
        yield _CsvBatch(numbers, lines.read_bytes, names, rows)


def _header(reader: Iterator[list[str]]) -> list[str]:
    try:
        names = next(reader, [])
    except csv.Error as error:
        raise InvalidInputError(f"line 1 is not CSV: {error}") from error
    if "id" not in names or len(set(names)) < len(names):
        raise InvalidInputError.of(
            "line 1", names, "a header: the names of the columns, each once, with 'id' among them"
        )
    return names


@dataclass(frozen=True)
class _ParquetBatch(Batch):
    rows: Any

    unit: ClassVar[str] = "row"

    def documents(
        self, schema: Mapping[str, str], declared: Collection[str], *, is_patch: bool
    ) -> object:
        empty = [
            c for c in self.rows.schema.names if self._column(c).null_count == len(self.numbers)
        ]
        return self.rows.drop_columns(empty) if empty and not is_patch else self.rows

    def _column(self, name: str) -> Any:
        return self.rows.column(self.rows.schema.names.index(name))


def _parquet(stream: IO[bytes], path: str, rows_max: int, bytes_max: int) -> Iterator[Batch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(stream)
        done = 0
        for some in file.iter_batches(batch_size=rows_max):
            pieces = max(1, -(-some.nbytes // bytes_max))
            step = max(1, -(-some.num_rows // pieces))
            for first in range(0, some.num_rows, step):
                rows = some.slice(first, step)
                numbers = range(done + 1, done + 1 + rows.num_rows)
                done += rows.num_rows
                yield _ParquetBatch(numbers, stream.tell(), rows)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInputError(f"FILE {path!r} is not a readable Parquet file: {error}") from error
