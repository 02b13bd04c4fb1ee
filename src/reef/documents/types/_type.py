"""The types an attribute may have: as text, and as the Arrow types they are stored and shown in.

string int64 uint64 float64 bool datetime uuid bytes      a value
[]string, []int64, ...                                    a list of such values, without nulls
vector[128], vector[128]f16                               a dense vector of float32 or float16
sparse                                                    a sparse vector: indices and values
json                                                      anything else, as JSON text
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import pyarrow as pa

from reef.errors import InvalidInputError

DIMENSION_MAX = 65_535
# What Python's datetime can say: the years 1 to 9999, in microseconds since 1970.
MICROSECONDS_MIN, MICROSECONDS_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
SPARSE: Final = pa.struct([("indices", pa.list_(pa.uint32())), ("values", pa.list_(pa.float32()))])

_SCALARS: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "datetime": pa.timestamp("us", tz="UTC"),
    "uuid": pa.binary(16),
    "bytes": pa.binary(),
}
_ALLOWED = (
    f"one of {', '.join(_SCALARS)}, json, sparse, a list such as []string, "
    f"or a vector such as vector[128] or vector[128]f16 (1 to {DIMENSION_MAX} numbers)"
)
_TEXT = {pa.string().id, pa.large_string().id, pa.string_view().id}
_BYTES = {pa.binary().id, pa.large_binary().id, pa.binary(1).id, pa.binary_view().id}
_LISTS = {
    kind.id
    for kind in (
        pa.list_(pa.null()),
        pa.large_list(pa.null()),
        pa.list_(pa.null(), 1),
        pa.list_view(pa.null()),
        pa.large_list_view(pa.null()),
    )
}
_MARK, _MARKED = b"reef:type", ("json", "[]uuid")
_VECTOR = re.compile(r"vector\[([1-9][0-9]{0,4})\](f16|f32)?")


@dataclass(frozen=True, slots=True)
class Type:
    """What the values of an attribute are; equal if and only if `text` is."""

    text: str
    kind: str = field(compare=False, repr=False)
    physical: pa.DataType = field(compare=False, repr=False)
    logical: pa.DataType = field(compare=False, repr=False)
    item: Type | None = field(compare=False, repr=False, default=None)
    dimension: int = field(compare=False, repr=False, default=0)

    def __str__(self) -> str:
        return self.text

    @property
    def mark(self) -> dict[bytes, str] | None:
        """The metadata of a field of logical type, where that Arrow type alone would stand for another type."""
        return {_MARK: self.text} if self.text in _MARKED else None

    @staticmethod
    def parse(text: str) -> Type:
        """Return the type that `text` names. Raises InvalidInputError, which lists what there is."""
        if not isinstance(text, str):
            raise InvalidInputError.of("type", text, _ALLOWED)
        return _parse(text)

    @staticmethod
    def list_of(item: Type) -> Type:
        """Return the type of lists of `item`. Raises InvalidInputError for lists of lists."""
        return _parse(f"[]{item.text}")

    @staticmethod
    def vector(dimension: int, *, half: bool = False) -> Type:
        """Return the type of vectors of `dimension` numbers. Raises InvalidInputError."""
        return _parse(f"vector[{dimension}]{'f16' if half else ''}")

    @staticmethod
    def of_arrow(arrow: pa.DataType) -> Type:
        """Return the type that values of the Arrow type `arrow` have if nobody says otherwise.

        Raises InvalidInputError for Arrow types that no type holds without loss, and for nulls.
        """
        return _of_arrow(arrow)


def marked_type(field: pa.Field) -> Type | None:
    """Return the type that the mark of a shown field names, if that is how its values are shown."""
    text = (field.metadata or {}).get(_MARK, b"").decode(errors="replace")
    type = _parse(text) if text in _MARKED else None
    return type if type and field.type == type.logical else None


@lru_cache(1024)
def _parse(text: str) -> Type:
    if text in _SCALARS:
        physical = _SCALARS[text]
        return Type(text, text, physical, pa.uuid() if text == "uuid" else physical)
    if text == "json":
        return Type(text, "json", pa.string(), pa.string())
    if text == "sparse":
        return Type(text, "sparse", SPARSE, SPARSE)
    if text[:2] == "[]" and text[2:] in _SCALARS:
        item = _parse(text[2:])
        physical = pa.list_(item.physical)
        return Type(text, "list", physical, physical, item)
    match = _VECTOR.fullmatch(text)
    if match is None or int(match[1]) > DIMENSION_MAX:
        raise InvalidInputError.of("type", text, _ALLOWED)
    dimension, half = int(match[1]), match[2] == "f16"
    physical = pa.list_(pa.float16() if half else pa.float32(), dimension)
    text = f"vector[{dimension}]{'f16' if half else ''}"
    return Type(text, "vector", physical, physical, dimension=dimension)


@lru_cache(1024)
def _of_arrow(arrow: pa.DataType) -> Type:
    kinds = pa.types
    if kinds.is_dictionary(arrow) or kinds.is_run_end_encoded(arrow):
        return _of_arrow(arrow.value_type)
    if isinstance(arrow, pa.UuidType):
        return _parse("uuid")
    if isinstance(arrow, pa.JsonType):
        return _parse("json")
    if isinstance(arrow, pa.Bool8Type):
        return _parse("bool")
    if is_row(arrow):
        return _of_arrow(arrow.storage_type)
    if kinds.is_fixed_size_list(arrow) and arrow.value_type in (pa.float16(), pa.float32()):
        return Type.vector(arrow.list_size, half=kinds.is_float16(arrow.value_type))
    if is_list(arrow):
        if kinds.is_nested(arrow.value_type):
            return _parse("json")
        return Type.list_of(_of_arrow(arrow.value_type))
    if kinds.is_struct(arrow):
        return _parse("sparse" if is_sparse(arrow) else "json")
    if kinds.is_map(arrow):
        return _parse("json")
    return _parse(_scalar_of(arrow))


def _scalar_of(arrow: pa.DataType) -> str:
    kinds = pa.types
    if is_text(arrow):
        return "string"
    if kinds.is_integer(arrow):
        return "uint64" if kinds.is_uint64(arrow) else "int64"
    if kinds.is_floating(arrow):
        return "float64"
    if kinds.is_boolean(arrow):
        return "bool"
    if kinds.is_timestamp(arrow) or kinds.is_date(arrow):
        return "datetime"
    if is_bytes(arrow):
        return "bytes"
    raise InvalidInputError(
        f"Reef cannot store the Arrow type {arrow} without loss: cast the column to a "
        f"type that is {_ALLOWED}"
    )


def is_row(arrow: pa.DataType) -> bool:
    """Say whether values of `arrow` are tensors of one dimension: what they are stored as says all."""
    return isinstance(arrow, pa.FixedShapeTensorType) and len(arrow.shape) == 1


def is_text(arrow: pa.DataType) -> bool:
    """Say whether values of `arrow` are text, however stored."""
    return arrow.id in _TEXT


def is_bytes(arrow: pa.DataType) -> bool:
    """Say whether values of `arrow` are bytes, however long and however stored."""
    return arrow.id in _BYTES


def is_list(arrow: pa.DataType) -> bool:
    """Say whether values of `arrow` are lists of any kind (maps are not)."""
    return arrow.id in _LISTS


def is_number_or_null(arrow: pa.DataType) -> bool:
    """Say whether lists of `arrow` may be vectors: nulls are numbers that are missing."""
    kinds = pa.types
    return bool(kinds.is_integer(arrow) or kinds.is_floating(arrow) or kinds.is_null(arrow))


def is_sparse(arrow: pa.DataType) -> bool:
    """Say whether `arrow` is a struct of exactly the lists `indices` and `values` of numbers."""
    if not pa.types.is_struct(arrow) or sorted(f.name for f in arrow) != ["indices", "values"]:
        return False
    indices, values = arrow.field("indices").type, arrow.field("values").type
    return (
        is_list(indices)
        and is_list(values)
        and (pa.types.is_integer(indices.value_type) or pa.types.is_null(indices.value_type))
        and is_number_or_null(values.value_type)
    )
