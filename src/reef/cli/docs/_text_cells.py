"""Single values of documents: from the text of a file, and to the text of an output."""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import re
import reprlib
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reef.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN_INTEGER = re.compile(r"0|-?[1-9][0-9]*")  # 007 is a name rather than a number
_PLAIN_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_DIGITS_MAX = 20  # of what fits into 64 bits
# What JSON has as text, and a cell without its quotes.
_TEXTS = (datetime.date, datetime.time, datetime.timedelta, uuid.UUID, bytes)


def cell_refusal(line: int, name: str, value: object, expected: str, got: str) -> InvalidInputError:
    """Return the error that says which value of which line is not what was expected."""
    return InvalidInputError(
        f"line {line}, attribute {name!r} = {reprlib.repr(value)}: expected {expected}, got {got}"
    )


def bytes_of_base64(value: Any, type: str, line: int, name: str) -> Any:
    """Return the bytes, or the list of them, that base64 in JSON stands for."""
    try:
        if type == "[]bytes" and isinstance(value, list):
            return [base64.b64decode(item, validate=True) for item in value]
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise cell_refusal(line, name, value, f"{type}, in base64", str(error)) from error


def cells_of_text(
    cells: Sequence[str], type: str | None, lines: Sequence[int], name: str, *, is_declared: bool
) -> list[Any]:
    """Return the values of a column of CSV, None for empty cells; without a type, a likely one."""
    type = type or _likely_type(cells)
    from reef.documents.input import CELL_ERRORS, cell_failure, cell_reader

    read = cell_reader(type, is_declared=is_declared)
    if read is None:
        return [cell or None for cell in cells]
    values: list[Any] = []
    for cell, line in zip(cells, lines, strict=True):
        try:
            values.append(read(cell) if cell else None)
        except CELL_ERRORS as error:
            raise cell_refusal(line, name, cell, type, cell_failure(type, error)) from error
    return values


def _likely_type(cells: Sequence[str]) -> str:
    some = [cell for cell in cells if cell]
    if all(map(_PLAIN_INTEGER.fullmatch, some)):
        numbers = [int(cell) if len(cell) <= _DIGITS_MAX else 1 << 64 for cell in some]
        if all(_INT64_MIN <= number <= _INT64_MAX for number in numbers):
            return "int64"
        # As numbers of another kind they would lose digits.
        return "uint64" if all(0 <= number < 1 << 64 for number in numbers) else "string"
    if all(map(_PLAIN_NUMBER.fullmatch, some)):
        return "float64"
    if all(cell.lower() in ("true", "false") for cell in some):
        return "bool"
    if all(cell[0] in "[{" for cell in some) and _all_json(some):
        return "json"
    return "string"


def _all_json(cells: Sequence[str]) -> bool:
    import msgspec

    try:
        for cell in cells:
            msgspec.json.decode(cell)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


# Out.


def printed_rows(batch: pa.RecordBatch, types: Mapping[str, str]) -> list[tuple[Any, ...]]:
    """Return rows of values that JSON can hold; `types` are those of attributes, by name."""
    names = batch.schema.names
    columns = [
        _cells(column, types.get(name, ""))
        for name, column in zip(names, batch.columns, strict=True)
    ]
    return list(zip(*columns, strict=True))


def printed_row(
    document: Mapping[str, Any], names: Sequence[str], types: Mapping[str, str]
) -> list[Any]:
    """Return the values of one document, in the order of `names`."""
    import pyarrow as pa

    row = [document.get(name) for name in names]
    for at, name in enumerate(names):
        type = types.get(name, "")
        if row[at] is not None and type.startswith("vector"):
            row[at] = _cells(pa.array([row[at]], pa.list_(pa.float32())), type)[0]
    return row


def text_of(cell: Any) -> str:
    """Return a value as CSV and tables show it."""
    import msgspec

    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float):
        return repr(cell)
    if isinstance(cell, str | int | decimal.Decimal):
        return str(cell)
    text = msgspec.json.encode(cell).decode()
    return text[1:-1] if isinstance(cell, _TEXTS) else text


def _cells(column: pa.Array, type: str) -> list[Any]:
    import msgspec
    import pyarrow as pa
    import pyarrow.compute as pc

    arrow = column.type
    if type == "json":
        texts = column.to_pylist()
    elif type.startswith("vector") or (
        pa.types.is_fixed_size_list(arrow) and pa.types.is_floating(arrow.value_type)
    ):
        # By Arrow, and not by Python: the shortest text that stands for a float32.
        numbers = column.cast(pa.list_(pa.float32())).cast(pa.list_(pa.string()))
        texts = pc.binary_join_element_wise("[", pc.binary_join(numbers, ","), "]", "").to_pylist()
    elif pa.types.is_timestamp(arrow):
        naive = column.cast(pa.timestamp("us"), safe=False).to_pylist()
        is_utc = arrow.tz is not None
        return [t.replace(tzinfo=datetime.UTC) if t and is_utc else t for t in naive]
    elif type == "[]uuid":
        return [ids and [uuid.UUID(bytes=id) for id in ids] for ids in column.to_pylist()]
    elif type == "[]datetime":
        naive = column.cast(pa.list_(pa.timestamp("us"))).to_pylist()
        return [ts and [t.replace(tzinfo=datetime.UTC) for t in ts] for ts in naive]
    else:
        values: list[Any] = column.to_pylist()
        return values
    return [text if text is None else msgspec.Raw(text.encode()) for text in texts]
