"""JSON lines → rows, by the code that reads them for `reef docs put`: Spark only hands out the lines.

They are gone through twice. First every line is checked, and tasks sum up what there is: keys, and
kinds of values, of which the types are found that nobody declared. Then tasks read the lines as these.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from reef.documents.input import ID, parse_document, read_values
from reef.documents.types import InputColumn, Type, check_attribute_name, first_failure
from reef.errors import InvalidInputError
from reef.spark.files._ingest_files import Files
from reef.spark.files._json_kinds import Kinds

LINE = "value"
"""The column of lines, as bytes."""

_EXCERPT_CHARS = 80
_SHAPES = 2
_ROW = re.compile(r"^row (\d+)(?=,)")
# What JSON has no number for, and Spark writes as text.
_NO_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def lines_of(files: Files) -> DataFrame:
    """Return the lines of files, and the columns that the names of their folders give."""
    return files.texts(lineSep="\n").withColumn(LINE, _line_bytes())


def with_ids(lines: DataFrame, id: str) -> DataFrame:
    """Return lines that were checked, without blank ones, behind a column of ids to sort them by."""
    text = [StructField(name, StringType()) for name in (ID, LINE)]
    return lines.mapInArrow(_WithIds(id), StructType([*text, *lines.schema.fields[1:]]))


class Lines(msgspec.Struct, kw_only=True):
    """The keys and kinds of values of some lines."""

    attributes: dict[str, Kinds] = {}
    shapes: list[list[str]] = []
    """Different sets of keys, two at most."""
    refused: str | None = None
    """The error of a line, and the line."""
    line: bytes = b""

    def merged(self, other: Lines) -> Lines:
        """Return what both hold; `other` comes later."""
        attributes = dict(self.attributes)
        for name, kinds in other.attributes.items():
            attributes[name] = attributes[name].merged(kinds) if name in attributes else kinds
        shapes = [*self.shapes, *(one for one in other.shapes if one not in self.shapes)]
        return Lines(attributes=attributes, shapes=shapes[:_SHAPES])

    def types(self, known: Mapping[str, Type]) -> dict[str, Type]:
        """Return the types of attributes: those that are known, or else by their values.

        What holds nothing but null and empty lists has none. Raises InvalidInputError.
        """
        found: dict[str, Type] = {}
        for name, kinds in self.attributes.items():
            type = known.get(name) or kinds.type(check_attribute_name(name))
            if type is not None:
                found[name] = type
        return found


def look_through(files: Files, lines: DataFrame, id: str) -> Lines:
    """Check all lines, and return what they hold. Raises InvalidInputError, which names the file."""
    packed = lines.select(LINE).mapInArrow(_ScanLines(id), "found binary").collect()
    whole = Lines()
    for row in packed:
        found = msgspec.msgpack.decode(row[0], type=Lines)
        if found.refused is not None:
            raise InvalidInputError(
                f"{_file_of(files, found.line)}, in {_line_text(found.line)}: {found.refused}; nothing "
                "was loaded"
            )
        whole = whole.merged(found)
    return whole


def check_shapes(lines: Lines) -> None:
    """Raise InvalidInputError for lines that do not have the same keys, each as the others.

    As columns, a key that a line lacks would be null, which is what a patch takes an attribute away by.
    """
    if len(lines.shapes) > 1:
        raise InvalidInputError(
            "the lines have different keys, "
            f"{' | '.join(', '.join(shape) for shape in lines.shapes)}: a patch expects the same "
            "keys in every line, because it would set a missing one to null. Load the lines of each "
            "kind separately, or use `reef docs patch`"
        )


@dataclass(frozen=True)
class ReadLines:
    """Reads lines as rows, in tasks: ids, attributes in their types, what the folders give."""

    id: str
    types: Mapping[str, str]
    folders: Sequence[str]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch of lines. Raises InvalidInputError, which names the id."""
        batch = _without_blanks(batch)
        rows = _JsonDocuments(self.id).of(batch.column(LINE).to_pylist())
        ids = [row[self.id] for row in rows]
        try:
            columns = [_typed_column(rows, name, Type.parse(t)) for name, t in self.types.items()]
        except InvalidInputError as error:
            message = _ROW.sub(lambda row: f"id {ids[int(row[1])]!r}", str(error))
            raise InvalidInputError(message) from error
        folders = [batch.column(name) for name in self.folders]
        return pa.RecordBatch.from_arrays(
            [pa.array(ids, pa.string()), *columns, *folders],
            names=[ID, *self.types, *self.folders],
        )


@dataclass(frozen=True)
class _WithIds:
    """What a task of `with_ids` does."""

    id: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        documents = _JsonDocuments(self.id)
        for batch in map(_without_blanks, batches):
            ids = [documents.id_text(line) for line in batch.column(LINE).to_pylist()]
            arrays = [pa.array(ids, pa.string()), *batch.columns]
            yield pa.RecordBatch.from_arrays(arrays, names=[ID, *batch.schema.names])


@dataclass(frozen=True)
class _ScanLines:
    """What a task of `look_through` does."""

    id: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = Lines()
        try:
            for batch in batches:
                lines = _without_blanks(batch).column(LINE).to_pylist()
                found = found.merged(self._summed_up(lines))
        except _BadLineError as error:
            found = Lines(refused=str(error), line=error.line)
        packed = pa.array([msgspec.msgpack.encode(found)], pa.binary())
        yield pa.RecordBatch.from_arrays([packed], names=["found"])

    def _summed_up(self, lines: list[str]) -> Lines:
        rows = _JsonDocuments(self.id).of(lines)
        orders = dict.fromkeys(map(tuple, rows))
        names = dict.fromkeys(chain.from_iterable(orders))
        shapes = {tuple(sorted(order)) for order in orders}
        return Lines(
            attributes={
                name: Kinds.of([row.get(name) for row in rows]) for name in names if name != self.id
            },
            shapes=list(map(list, sorted(shapes)[:_SHAPES])),
        )


class _BadLineError(Exception):
    """A line that is no document, and why."""

    def __init__(self, why: str, line: bytes) -> None:
        super().__init__(why)
        self.line = line


class _JsonDocuments:
    """Documents of lines, with their ids as text: a number is the text that it is."""

    def __init__(self, id: str) -> None:
        """`id` is the key of the ids."""
        self._id = id

    def of(self, lines: list[str]) -> list[dict[str, Any]]:
        """Return the documents of lines. Raises `_BadLineError`."""
        rows = []
        for line in lines:
            try:
                row = parse_document(line, "the line")
                if type(row.get(self._id)) is not str:
                    row[self._id] = self._number(row, line)
            except InvalidInputError as error:
                raise _BadLineError(str(error), line.encode()) from error
            rows.append(row)
        return rows

    def id_text(self, line: str) -> str:
        """Return the id of a line that was checked before."""
        raw = bytes(self._keys.decode(line).key)
        return msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else raw.decode()

    def _number(self, row: dict[str, Any], line: str) -> str:
        value = row.get(self._id)
        if type(value) not in (int, float):
            got = f"it is {type(value).__name__}" if self._id in row else "there is none"
            raise InvalidInputError(f"attribute {self._id!r}: expected text or a number, but {got}")
        return self.id_text(line)

    @cached_property
    def _keys(self) -> msgspec.json.Decoder[Any]:
        kind = msgspec.defstruct("Key", [("key", msgspec.Raw)], rename={"key": self._id})
        return msgspec.json.Decoder(kind)


def _without_blanks(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with their lines as text, without those whose line is blank."""
    at = batch.schema.get_field_index(LINE)
    batch = batch.set_column(at, LINE, _texts(batch.column(at)))
    return batch.filter(pc.not_equal(pc.utf8_trim_whitespace(batch.column(at)), ""))


def _texts(column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        line = column[first_failure(column, lambda part: part.cast(pa.string()))].as_py()
        why = "expected a file of UTF-8: convert it, as by iconv"
        raise _BadLineError(why, line) from None


def _typed_column(rows: list[dict[str, Any]], name: str, type: Type) -> pa.Array:
    spot = InputColumn(name)
    values = [row.get(name) for row in rows]
    if type.text in ("bytes", "[]bytes"):
        values = _texts_replaced(values, _from_base64, type, spot)
    elif type.text in ("float64", "[]float64"):
        values = _texts_replaced(values, lambda text: _NO_NUMBERS.get(text, text), type, spot)
    read = read_values(values, type, spot)
    assert read is not None
    return read.values


def _texts_replaced(
    values: list[Any], read: Callable[[str], Any], of: Type, spot: InputColumn
) -> list[Any]:
    """Return values with what stands for a text among them, or in lists, in its place."""
    if not {str, list} & set(map(type, values)):
        return values

    def one(value: Any) -> Any:
        return read(value) if isinstance(value, str) else value

    found = []
    for i, value in enumerate(values):
        is_list = of.kind == "list" and isinstance(value, list)
        try:
            found.append(list(map(one, value)) if is_list else one(value))
        except ValueError as error:
            raise spot.refusal(i, value, f"{of}, in base64", str(error)) from error
    return found


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _line_bytes() -> Column:
    return F.col(LINE).cast("binary")


def _file_of(files: Files, line: bytes) -> str:
    found = (
        files.texts(lineSep="\n").where(_line_bytes() == F.lit(line)).select("_metadata.file_path")
    )
    row = found.head()
    return "a file that was changed meanwhile" if row is None else unquote(row[0])


def _line_text(line: bytes) -> str:
    return repr(line.decode(errors="replace").strip()[:_EXCERPT_CHARS])
