"""Rows out: as a table, JSON, JSON lines or CSV, to stdout or a file, a portion at a time."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from reef.cli._report import drawn
from reef.cli.docs._docs_options import Output
from reef.cli.docs._text_cells import text_of
from reef.errors import InvalidInputError, NotWrittenError

FORMATS = ("table", "json", "jsonl", "csv")
STDOUT = "-"
TABLE_ROWS = 50
TABLE_ROWS_MAX = 1000

_CELL_WIDTH = 60
_SUFFIXES = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}

Rows = Iterable[Sequence[Any]]


class Printer:
    """Writes rows in a format. `keep_nulls`: JSON has nulls, instead of leaving them out."""

    def __init__(
        self,
        write: Callable[[bytes], object],
        format: str,
        names: Sequence[str],
        *,
        key: str = "documents",
        keep_nulls: bool = False,
    ) -> None:
        import msgspec

        self._write = write
        self._format = format
        self._names = names
        self._keep_nulls = keep_nulls
        self._encode = msgspec.json.Encoder(decimal_format="number").encode
        self._is_first = True
        self._waiting: list[Sequence[str]] = []
        if format == "json":
            write(b'{"%s": [' % key.encode())
        elif format == "csv":
            write(_csv_lines([names]))

    def rows(self, rows: Rows) -> None:
        """Write some rows."""
        if self._format == "table":
            self._waiting += [[_short(text_of(cell)) for cell in row] for row in rows]
        elif self._format == "csv":
            self._write(_csv_lines([text_of(cell) for cell in row] for row in rows))
        elif self._format == "jsonl":
            self._write(b"".join(self._encode(self._object(row)) + b"\n" for row in rows))
        else:
            self._items([self._encode(self._object(row)) for row in rows])

    def nothing(self) -> None:
        """Write that there is no such document, where a format can say so: JSON."""
        if self._format == "json":
            self._items([b"null"])

    def end(self, **facts: object) -> None:
        """Write what comes last; JSON has `facts` beside the rows."""
        if self._format == "json":
            rest = b"".join(b', "%s": %s' % (k.encode(), self._encode(v)) for k, v in facts.items())
            self._write(b"]%s}\n" % rest if self._is_first else b"\n]%s}\n" % rest)
        elif self._format == "table":
            self._write(drawn(list(map(_short, self._names)), self._waiting).encode())

    def _items(self, items: Sequence[bytes]) -> None:
        for item in items:
            self._write((b"\n" if self._is_first else b",\n") + item)
            self._is_first = False

    def _object(self, row: Sequence[Any]) -> dict[str, Any]:
        pairs = zip(self._names, row, strict=True)
        if self._keep_nulls:
            return dict(pairs)
        return {name: cell for name, cell in pairs if cell is not None}


@contextlib.contextmanager
def open_output(path: str) -> Iterator[Callable[[bytes], object]]:
    """Give what writes bytes to stdout, or to a file, which is there when all of it is."""
    if path == STDOUT:
        sys.stdout.flush()
        yield sys.stdout.buffer.write
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    is_replaced = target.is_file() or not target.exists()  # not /dev/null, nor a pipe
    written = target.with_name(f"{target.name}.{os.getpid()}.tmp") if is_replaced else target
    try:
        stream = written.open("wb")  # closed below, whatever happens
    except OSError as error:
        raise InvalidInputError(f"--output {path!r} cannot be written: {error}") from error
    try:
        yield _write_naming(stream, path)
        _guard(path, stream.close)
        if is_replaced:
            _guard(path, lambda: written.replace(target))
    except BaseException:
        with contextlib.suppress(OSError):
            stream.close()
        if is_replaced:
            written.unlink(missing_ok=True)
        raise


def chosen_format(output: Output, *, otherwise: str, limit: int | None = None) -> str:
    """Return the format to print: as given, or from the name of the output file.

    Raises InvalidInputError for an unknown format, or a table too long to read.
    """
    format = "json" if output.as_json else output.format
    if format is None:
        format = _SUFFIXES.get(Path(output.path).suffix.lower(), otherwise)
    if format not in FORMATS:
        raise InvalidInputError.of("--format", format, f"one of {', '.join(FORMATS)}")
    if format == "table" and (limit or 0) > TABLE_ROWS_MAX:
        raise InvalidInputError(
            f"--limit = {limit} is too many for a table: expected at most {TABLE_ROWS_MAX} rows; "
            "use --format jsonl or csv"
        )
    return format


def _write_naming(stream: io.BufferedWriter, path: str) -> Callable[[bytes], object]:
    return lambda data: _guard(path, lambda: stream.write(data))


def _guard(path: str, do: Callable[[], object]) -> None:
    try:
        do()
    except OSError as error:
        raise NotWrittenError(f"{path} could not be written: {error.strerror}") from error


def _csv_lines(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode(errors="replace")


def _short(text: str) -> str:
    escaped = text if text.isprintable() else text.encode("unicode_escape").decode()
    return escaped if len(escaped) <= _CELL_WIDTH else f"{escaped[: _CELL_WIDTH - 1]}…"
