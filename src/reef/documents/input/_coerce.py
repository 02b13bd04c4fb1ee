"""Arrow values of any type → the Arrow type that an attribute is stored in, without loss or not at all.

Numbers become other numbers only if they stay the same number, text becomes a datetime or a UUID
if it spells one; the one loss that is allowed is that of a vector's numbers to its precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.input._coerce_vectors import to_sparse, to_vector
from reef.documents.types import (
    CONVERSION_ERRORS,
    MICROSECONDS_MAX,
    MICROSECONDS_MIN,
    TOO_DEEP,
    InputColumn,
    Type,
    check_nesting,
    encode_json,
    first_failure,
    first_true,
    first_valid,
    hides_items,
    is_bytes,
    is_list,
    is_row,
    is_text,
    list_of_each_item,
    rebuild_lists,
)
from reef.errors import InvalidInputError

_kinds = pa.types
_DATETIME = Type.parse("datetime").physical
_AS_THEY_ARE = {"string", "int64", "uint64", "float64", "bool", "uuid", "bytes"}
_ZONE = r"[Tt ].*(?:[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)$"
_UUID = r"^[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$"
_JSON_DECODER = msgspec.json.Decoder()
_JSON_ENCODER = msgspec.json.Encoder()


def coerce(column: pa.Array, type: Type, spot: InputColumn) -> pa.Array:
    """Return `column` in the physical type of `type`.

    Raises InvalidInputError naming the first row that does not fit.
    """
    if type.kind in _AS_THEY_ARE and column.type.equals(type.physical):
        return column
    column = plain_array(column)
    if _kinds.is_null(column.type):
        return pa.nulls(len(column), type.physical)
    is_known = not isinstance(column.type, pa.BaseExtensionType) or isinstance(
        column.type, (pa.UuidType, pa.JsonType)
    )
    # What another extension type means is not in what it is stored as.
    converted = _CONVERSIONS[type.kind](column, type, spot) if is_known else None
    if converted is None:
        i = first_valid(column)
        if i is None:  # of values that are not there none clashes
            return pa.nulls(len(column), type.physical)
        raise spot.refusal(i, column[i], type.text, arrow_text(column.type))
    return converted


def plain_array(column: pa.Array) -> pa.Array:
    """Return `column` without dictionaries, runs and those extension types that add nothing."""
    arrow = column.type
    if _kinds.is_dictionary(arrow):
        words = plain_array(column.dictionary)
        if is_text(words.type):  # Arrow cannot take from views
            words = words.cast(pa.string())
        return words.take(column.indices)
    if _kinds.is_run_end_encoded(arrow):
        return plain_array(pc.run_end_decode(column))
    if isinstance(arrow, pa.Bool8Type):
        return column.storage.cast(pa.bool_())
    return plain_array(column.storage) if is_row(arrow) else column


def arrow_text(arrow: pa.DataType) -> str:
    """Return what Reef calls values of the Arrow type `arrow`."""
    try:
        return Type.of_arrow(arrow).text
    except InvalidInputError:
        return str(arrow)


def _is_number(arrow: pa.DataType) -> bool:
    return bool(_kinds.is_integer(arrow) or _kinds.is_floating(arrow) or _kinds.is_decimal(arrow))


def _checked_cast(
    column: pa.Array, to: pa.DataType, type: Type, spot: InputColumn, why: str
) -> pa.Array:
    if column.type.equals(to):
        return column
    try:
        return column.cast(to)
    except CONVERSION_ERRORS:
        i = first_failure(column, lambda part: part.cast(to))
        raise spot.refusal(i, column[i], type.text, why) from None


def _to_string(column: pa.Array, type: Type, spot: InputColumn) -> pa.Array | None:
    if not is_text(column.type):
        return None
    return _checked_cast(column, pa.string(), type, spot, "text that does not fit in one batch")


def _to_bytes(column: pa.Array, type: Type, spot: InputColumn) -> pa.Array | None:
    if arrow_text(column.type) != "bytes":
        return None
    return _checked_cast(column, pa.binary(), type, spot, "bytes that do not fit in one batch")


def _to_bool(column: pa.Array, type: Type, spot: InputColumn) -> pa.Array | None:
    return column if _kinds.is_boolean(column.type) else None


def _to_integer(column: pa.Array, type: Type, spot: InputColumn) -> pa.Array | None:
    if not _is_number(column.type):
        return None
    if _kinds.is_float16(column.type):
        column = column.cast(pa.float32())
    return _checked_cast(column, type.physical, type, spot, f"a number that {type} cannot hold")


def _to_float(column: pa.Array, type: Type, spot: InputColumn) -> pa.Array | None:
    arrow = column.type
    if arrow.equals(type.physical):
        return column
    if not _is_number(arrow):
        return None
    converted = column.cast(pa.float64(), safe=False)
    if _kinds.is_floating(arrow):
        return converted
    back = _back(converted, arrow)
    lost = first_true(pc.fill_null(pc.not_equal(column, back), back.null_count > column.null_count))
    if lost is not None:
        raise spot.refusal(lost, column[lost], type.text, f"{arrow_text(arrow)} that would change")
    return converted


def _back(numbers: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Return `numbers` as `arrow` again; a number it cannot hold becomes one that differs."""
    if _kinds.is_decimal(arrow):
        return numbers.cast(arrow)
    top = 2.0**64 if _kinds.is_uint64(arrow) else 2.0**63
    # 2**63 - 1 and the like are rounded up to a number beyond the type.
    return pc.if_else(pc.less(numbers, top), numbers, 0.0).cast(arrow, safe=False)


def _to_datetime(column: pa.Array, type: Type, spot: InputColumn) -> pa.Array | None:
    if is_text(column.type):
        column = _parsed(column, type, spot)
    elif not (_kinds.is_timestamp(column.type) or _kinds.is_date(column.type)):
        return None
    else:
        column = _checked_cast(
            column, _DATETIME, type, spot, "a time that microseconds do not hold"
        )
    bounds = pc.min_max(column.view(pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and (low < MICROSECONDS_MIN or high > MICROSECONDS_MAX):
        number = column.view(pa.int64())
        outside = pc.or_(pc.less(number, MICROSECONDS_MIN), pc.greater(number, MICROSECONDS_MAX))
        i = first_true(outside) or 0
        raise spot.refusal(i, column[i], type.text, "a time outside the years 1 to 9999")
    return column


def _parsed(column: pa.Array, type: Type, spot: InputColumn) -> pa.Array:
    column = column.cast(pa.string())
    is_date = pc.less_equal(pc.utf8_length(column), 10)
    zone = pc.if_else(is_date, "T00:00:00Z", "Z")
    has_zone = pc.match_substring_regex(column, _ZONE)
    whole = pc.if_else(has_zone, column, pc.binary_join_element_wise(column, zone, ""))
    try:
        return whole.cast(_DATETIME)
    except CONVERSION_ERRORS:
        i = first_failure(whole, lambda part: part.cast(_DATETIME))
        got = "string that is not an ISO 8601 time of at most microseconds"
        raise spot.refusal(i, column[i], type.text, got) from None


def _to_uuid(column: pa.Array, type: Type, spot: InputColumn) -> pa.Array | None:
    arrow = column.type
    if isinstance(arrow, pa.UuidType):
        return column.storage
    if arrow.equals(type.physical):
        return column
    if is_bytes(arrow):  # as Polars has them
        whole = column.cast(pa.binary())
        is_one = pc.equal(pc.binary_length(whole), type.physical.byte_width)
        return whole.cast(type.physical) if first_true(pc.invert(is_one)) is None else None
    if not is_text(arrow):
        return None
    column = column.cast(pa.string())  # Arrow has no patterns for views
    wrong = first_true(pc.invert(pc.match_substring_regex(column, _UUID)))
    if wrong is not None:
        raise spot.refusal(wrong, column[wrong], type.text, "string that is not a UUID")
    digits = pc.replace_substring(column, "-", "")
    filled = pc.fill_null(digits, "0" * 32)
    text = pc.binary_join(pa.ListArray.from_arrays([0, len(filled)], filled), "")[0].as_py()
    buffers = [pa.nulls(0).buffers()[0], pa.py_buffer(bytes.fromhex(text))]
    values = pa.Array.from_buffers(type.physical, len(column), buffers)
    return values if not column.null_count else pc.if_else(column.is_valid(), values, None)


def _to_list(column: pa.Array, type: Type, spot: InputColumn) -> pa.Array | None:
    arrow = column.type
    if not is_list(arrow):
        return None
    assert type.item is not None
    items = column.flatten()

    def row_of(i: int) -> int:
        return int(list_of_each_item(column)[i])

    if items.null_count:
        i = first_true(items.is_null()) or 0
        raise spot.refusal(row_of(i), column[row_of(i)], type.text, "a list that holds a null")
    converted = coerce(items, type.item, spot.within(row_of))
    is_as_stored = converted is items and arrow.equals(type.physical) and _kinds.is_list(arrow)
    if is_as_stored and not hides_items(column):
        return column
    return rebuild_lists(column, converted, type.physical)


def _to_json(column: pa.Array, type: Type, spot: InputColumn) -> pa.Array | None:
    """Text is taken as JSON, as tables show it; everything else becomes JSON.

    A map with text for keys is an object; with other keys it is a list of pairs.
    """
    if isinstance(column.type, pa.JsonType):
        column = column.storage
    if not is_text(column.type):
        try:
            values = _listed(column)
        except CONVERSION_ERRORS as error:
            is_twice = isinstance(error.__cause__, KeyError)
            why = "a map that has a key twice" if is_twice else str(column.type)
            i = first_failure(column, _listed)
            raise spot.refusal(i, column[i], type.text, why) from None
        return encode_json(values, spot)

    def compact(part: pa.Array) -> list[bytes | None]:
        values = [None if text is None else _JSON_DECODER.decode(text) for text in part.to_pylist()]
        return [None if value is None else _JSON_ENCODER.encode(value) for value in values]

    try:
        texts = compact(column)
        converted = pa.array(texts, pa.string())
    except CONVERSION_ERRORS:
        i = first_failure(column, compact)
        raise spot.refusal(i, column[i], type.text, _why_not_json(column[i])) from None
    check_nesting(texts, column, spot)
    return converted


def _why_not_json(text: pa.Scalar) -> str:
    try:
        _JSON_DECODER.decode(text.as_py())
    except RecursionError:
        return TOO_DEEP
    except CONVERSION_ERRORS:
        pass
    return "text that is not JSON"


def _listed(column: pa.Array) -> list[object]:
    """Return Python's values, those of maps with text for keys as dictionaries."""
    try:
        values: list[object] = column.to_pylist(
            maps_as_pydicts="strict" if _has_text_keys(column.type) else None
        )
    except KeyError as error:
        raise ValueError("a key appears twice") from error
    return values


def _has_text_keys(arrow: pa.DataType) -> bool:
    """Return whether there are maps in `arrow`, all of them with text for keys."""
    found = list(_maps(arrow))
    return bool(found) and all(is_text(one.key_type) for one in found)


def _maps(arrow: pa.DataType) -> Iterator[pa.MapType]:
    if pa.types.is_map(arrow):
        yield arrow
        yield from _maps(arrow.item_type)
    elif pa.types.is_struct(arrow):
        for field in arrow:
            yield from _maps(field.type)
    elif is_list(arrow):
        yield from _maps(arrow.value_type)


_CONVERSIONS: dict[str, Callable[[pa.Array, Type, InputColumn], pa.Array | None]] = {
    "string": _to_string,
    "int64": _to_integer,
    "uint64": _to_integer,
    "float64": _to_float,
    "bool": _to_bool,
    "datetime": _to_datetime,
    "uuid": _to_uuid,
    "bytes": _to_bytes,
    "list": _to_list,
    "vector": to_vector,
    "sparse": to_sparse,
    "json": _to_json,
}
