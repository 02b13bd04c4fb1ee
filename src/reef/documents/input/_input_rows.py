"""What callers give → `InputRows`: typed, checked, one row per id. Nothing is written unless all of it fits.

rows       a list of dicts
columns    a dict of lists, NumPy arrays, Arrow arrays or series
tables     pyarrow, pandas, Polars, and whatever else hands out Arrow streams
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.input._coerce import coerce, plain_array
from reef.documents.input._sources import Column, input_columns
from reef.documents.input._values import read_arrow, read_values
from reef.documents.types import (
    InputColumn,
    ReadColumn,
    Schema,
    Type,
    check_attribute_name,
    first_true,
    is_text,
)
from reef.errors import InvalidInputError

ID = "id"
ID_BYTES_MAX = 512
Duplicates = Literal["last", "error"]

_ID_RULE = f"text of 1 to {ID_BYTES_MAX} bytes without control characters"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_STRING = Type.parse("string")


@dataclass(frozen=True, slots=True)
class InputRows:
    """Checked input: `columns` by attribute name, in physical types, each as long as `ids`.

    `new` are the attributes that the schema lacks, `untyped` those that it lacks still, because
    nothing but nulls and empty lists came: which rows have an empty list. `present` says for
    attributes that some rows of a patch leave alone which rows do not. `is_kept` has a 1 for each
    row that was given and is here, and a 0 for each whose id came again; None: all are here.
    """

    ids: pa.Array
    columns: dict[str, pa.Array]
    new: dict[str, Type]
    untyped: dict[str, pa.Array]
    present: dict[str, pa.Array] | None
    is_kept: bytes | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """The size of ids and columns in memory."""
        total: int = self.ids.nbytes + sum(column.nbytes for column in self.columns.values())
        return total


def read_rows(
    data: object, schema: Schema, *, duplicates: Duplicates = "last", is_patch: bool = False
) -> InputRows:
    """Return what `data` says, in the types of `schema`, or refuse all of it.

    Of rows with the same id the last is kept, whole and in its place, or none is accepted
    (`duplicates="error"`). Columns that are new and hold only nulls are left out.
    Raises InvalidInputError, which names row, attribute, expected and got.
    """
    if duplicates not in ("last", "error"):
        raise InvalidInputError.of("duplicates", duplicates, "'last' or 'error'")
    source = input_columns(data)
    ids = _id_column(source.columns.get(ID), source.count)
    columns: dict[str, pa.Array] = {}
    new: dict[str, Type] = {}
    untyped: dict[str, pa.Array] = {}
    for name, column in source.columns.items():
        if name == ID:
            continue
        attribute = schema.find(name)
        if attribute is None:
            check_attribute_name(name)
        known = attribute.type if attribute else source.marked.get(name)
        read = _read_column(column, known, InputColumn(name))
        if read is None:
            untyped[name] = _are_lists(column)
            continue
        columns[name] = read.values
        if attribute is None:
            new[name] = read.type
    if new:
        schema.added(new)  # refuses too many
    present = source.present([*columns, *untyped]) if is_patch else None
    rows = InputRows(ids, columns, new, untyped, present)
    return rows if len(ids) < 2 else _without_duplicates(rows, duplicates)


def _read_column(column: Column, known: Type | None, spot: InputColumn) -> ReadColumn | None:
    if isinstance(column, list):
        return read_values(column, known, spot)
    return read_arrow(column, known, spot)


def _are_lists(untyped: Column) -> pa.Array:
    """Return which values are lists; the others are null."""
    if isinstance(untyped, list):
        return pa.array([isinstance(value, (list, tuple, np.ndarray)) for value in untyped])
    return plain_array(untyped).is_valid()


def _id_column(column: Column | None, count: int) -> pa.Array:
    if column is None:
        if count == 0:
            return pa.array([], pa.binary())
        raise InvalidInputError("the documents have no 'id': give every document one")
    spot = InputColumn(ID)
    if isinstance(column, list):
        quick = _plain_ids(column)
        if quick is not None:
            return quick
        read = read_values(column, None, spot)
        column = pa.nulls(len(column)) if read is None else _text(read, column, spot)
    texts = plain_array(column)
    missing = first_true(texts.is_null())
    if missing is not None:
        raise spot.refusal(missing, None, _ID_RULE, "no id")
    if len(texts) and not is_text(texts.type):
        raise spot.refusal(0, texts[0], _ID_RULE, str(texts.type))
    ids = coerce(texts, _STRING, spot)
    _check_form_of_ids(ids, spot)
    return ids.cast(pa.binary())


def _plain_ids(values: list[Any]) -> pa.Array | None:
    """Return `values` as they are stored, or None if one of them is not an id."""
    if set(map(type, values)) != {str} or _CONTROL.search("".join(values)):
        return None
    try:
        ids = list(map(str.encode, values))
    except UnicodeEncodeError:
        return None
    lengths = list(map(len, ids))
    return pa.array(ids, pa.binary()) if min(lengths) and max(lengths) <= ID_BYTES_MAX else None


def _text(read: ReadColumn, values: list[Any], spot: InputColumn) -> pa.Array:
    if read.type is not _STRING:
        i = next(i for i, value in enumerate(values) if not isinstance(value, str))
        raise spot.refusal(i, values[i], _ID_RULE, type(values[i]).__name__)
    return read.values


def _check_form_of_ids(ids: pa.Array, spot: InputColumn) -> None:
    if not len(ids):
        return
    _, ends, text = ids.buffers()
    offsets = np.frombuffer(ends, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    lengths = np.diff(offsets)
    for i in (int(lengths.argmin()), int(lengths.argmax())):
        if not 1 <= lengths[i] <= ID_BYTES_MAX:
            raise spot.refusal(i, ids[i], _ID_RULE, f"{lengths[i]} bytes")
    octets = np.frombuffer(text, np.uint8)[offsets[0] : offsets[-1]]
    # From ' ' to '~' there are 95: most ids are of nothing else and need no closer look.
    if int((octets - np.uint8(0x20)).max()) < 95:
        return
    control = first_true(pc.match_substring_regex(ids, r"\p{Cc}"))
    if control is not None:
        raise spot.refusal(control, ids[control], _ID_RULE, "a control character")


def _without_duplicates(rows: InputRows, duplicates: Duplicates) -> InputRows:
    if pc.all(pc.less(rows.ids[:-1], rows.ids[1:])).as_py():
        return rows  # in order, as they often come: which is seen much sooner
    encoded = rows.ids.dictionary_encode()
    count = len(encoded.dictionary)
    if count == len(rows):
        return rows
    codes = encoded.indices.to_numpy()
    last = np.zeros(count, np.int64)
    last[codes] = np.arange(len(codes))  # of equal places, the last assignment stays
    if duplicates == "error":
        first = np.full(count, len(codes), np.int64)
        np.minimum.at(first, codes, np.arange(len(codes)))
        i = int(np.argmax(first[codes] < np.arange(len(codes))))
        raise InputColumn(ID).refusal(
            i, rows.ids[i].as_py().decode(), "ids that differ", f"the id of row {first[codes[i]]}"
        )
    is_kept = np.zeros(len(codes), np.bool_)
    is_kept[last] = True
    kept = pa.array(np.flatnonzero(is_kept))
    columns, untyped, present = (
        {name: column.take(kept) for name, column in some.items()}
        for some in (rows.columns, rows.untyped, rows.present or {})
    )
    ids = rows.ids.take(kept)
    return InputRows(ids, columns, rows.new, untyped, present or None, is_kept.tobytes())
