"""The columns that Spark sees of a namespace, and stored rows as batches of them.

    reef                          Arrow, as it goes to Spark       Spark
    id, string, json              string                           string
    int64, float64, bool, bytes   the same                         bigint, double, boolean, binary
    datetime                      timestamp[us, UTC]               timestamp
    uint64                        decimal128(20, 0)                decimal(20,0): it has no unsigned
    uuid                          string                           string, in lower case with dashes
    vector[n], vector[n]f16       list<float>                      array<float>
    sparse                        struct<list<int64>, list<float>> struct<indices, values>
    []T                           list<T>                          array<T>

A namespace of keys and values has the columns `key` and `value`, both binary. Strings, numbers and
vectors go over without a copy; unsigned numbers, UUIDs and half floats are converted, a batch at a
time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.types import Schema, Type
from reef.errors import InvalidInputError
from reef.format import KEY

_ITEM = "element"
_DECIMAL = pa.decimal128(20, 0)
_FLOATS = pa.list_(pa.field(_ITEM, pa.float32(), nullable=False))
_SPARSE = pa.struct(
    [
        pa.field("indices", pa.list_(pa.field(_ITEM, pa.int64(), nullable=False))),
        pa.field("values", _FLOATS),
    ]
)
# Where the hexadecimal digits of a UUID stand in its text, which has dashes between them.
_DIGITS = np.array([i for i in range(36) if i not in (8, 13, 18, 23)])
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)

Convert = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class Column:
    """A column as Spark sees it, and where it is stored."""

    name: str
    stored: str
    """`_key` for the id or the key."""
    type: Type | None
    """None: bytes of a namespace of keys and values."""

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type that goes to Spark."""
        return pa.binary() if self.type is None else arrow_of(self.type)

    @property
    def field(self) -> pa.Field:
        """Its field: only the key is never null."""
        return pa.field(self.name, self.arrow, nullable=self.stored != KEY)

    def given(self, rows: pa.RecordBatch) -> pa.Array:
        """Return its values in `rows`, as they go to Spark; null where `rows` lack the column."""
        at = rows.schema.get_field_index(self.stored)
        if at < 0:
            return pa.nulls(rows.num_rows, self.arrow)
        column = rows.column(at)
        if self.type is None:
            return column
        if self.stored == KEY:
            return column.view(pa.string())  # ids are UTF-8, checked when written
        return _converter(self.type)(column)


def spark_columns(face: str, schema: pa.Schema | None) -> tuple[Column, ...]:
    """Return every column of a namespace of `face`, whose rows have `schema`.

    Raises InvalidInputError for a face that has none.
    """
    if face == "kv":
        return Column("key", KEY, None), Column("value", "value", None)
    if face != "documents":
        raise InvalidInputError(
            f"the namespace is of {face or 'an unknown face'}: expected documents, or "
            "keys and values"
        )
    attributes = () if schema is None else Schema.from_arrow(schema).attributes
    id = Column("id", KEY, Type.parse("string"))
    return id, *(Column(a.name, a.column, a.type) for a in attributes)


def select_columns(every: tuple[Column, ...], names: tuple[str, ...] | None) -> tuple[Column, ...]:
    """Return the columns called `names`, in that order (None: all). Raises InvalidInputError."""
    if names is None:
        return every
    known = {column.name: column for column in every}
    for name in names:
        if name not in known:
            raise InvalidInputError(
                f"there is no column {name!r}: expected one of {', '.join(known)}"
            )
    return tuple(known[name] for name in names)


def spark_batch(
    rows: pa.RecordBatch, columns: tuple[Column, ...], layout: pa.Schema
) -> pa.RecordBatch:
    """Return stored rows as the batch that Spark gets; `layout` has a field for each column."""
    arrays = [
        _cast_to_layout(column.given(rows), field.type)
        for column, field in zip(columns, layout, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=layout)


def _cast_to_layout(array: pa.Array, kind: pa.DataType) -> pa.Array:
    # Types that differ in names and nullability inside of lists only: no values are touched.
    return array if array.type == kind and not pa.types.is_nested(kind) else array.cast(kind)


def arrow_of(type: Type) -> pa.DataType:
    """Return the Arrow type in which values of `type` go to Spark."""
    if type.kind == "list":
        assert type.item is not None
        return pa.list_(pa.field(_ITEM, arrow_of(type.item), nullable=False))
    special = {"uint64": _DECIMAL, "uuid": pa.string(), "vector": _FLOATS, "sparse": _SPARSE}
    return special.get(type.kind, type.physical)


def _converter(type: Type) -> Convert:
    match type.kind:
        case "uint64":
            return lambda column: column.cast(_DECIMAL)
        case "uuid":
            return _uuid_text
        case "vector":
            return _vector_lists
        case "sparse":
            return lambda column: column.cast(_SPARSE)
        case "list":
            assert type.item is not None
            item = _converter(type.item)
            return lambda column: _converted_lists(column, item)
    return lambda column: column


def _uuid_text(column: pa.Array) -> pa.Array:
    """Return UUIDs of 16 bytes each as text of 36 characters."""
    count = len(column)
    raw = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * 16 :][: count * 16]
    text = np.full((count, 36), ord("-"), np.uint8)
    digits = np.stack((raw >> 4, raw & 15), axis=1)
    text[:, _DIGITS] = _HEX[digits].reshape(count, 32)
    offsets = pa.py_buffer(np.arange(0, 36 * count + 1, 36, dtype=np.int32))
    whole = pa.Array.from_buffers(pa.string(), count, [None, offsets, pa.py_buffer(text)])
    if not column.null_count:
        return whole
    return pc.if_else(column.is_valid(), whole, pa.scalar(None, pa.string()))


def _vector_lists(column: pa.Array) -> pa.Array:
    """Return vectors of a fixed size as lists of floats; those of 32 bits are not copied."""
    size = column.type.list_size
    values = column.values.slice(column.offset * size, len(column) * size)
    if values.type != pa.float32():
        values = values.cast(pa.float32())
    if values.null_count:  # beneath a null vector: a value is required, and is not looked at
        values = values.fill_null(0)
    offsets = pa.array(np.arange(0, (len(column) + 1) * size, size, dtype=np.int32))
    mask = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(offsets, values, type=_FLOATS, mask=mask)


def _converted_lists(column: pa.ListArray, convert: Convert) -> pa.Array:
    """Return lists with their items converted."""
    items = convert(column.values)
    kind = pa.list_(pa.field(_ITEM, items.type, nullable=False))
    mask = column.is_null() if column.null_count else None
    if column.offset and mask is not None:  # Arrow takes no mask along with an offset
        column = pa.concat_arrays([column])
        items, mask = convert(column.values), column.is_null()
    return pa.ListArray.from_arrays(column.offsets, items, type=kind, mask=mask)
