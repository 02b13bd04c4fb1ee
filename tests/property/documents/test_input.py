"""Any documents go in and come out the same, in whatever form they are given."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings

from reef.documents.input import read_rows
from reef.documents.input._input_rows import InputRows
from reef.documents.types import Schema, Type, documents_of, is_list
from reef.errors import InvalidInputError

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
datetimes = st.datetimes(timezones=st.just(dt.UTC))
singles = st.floats(allow_nan=False, allow_infinity=False, width=32)
halves = st.floats(allow_nan=False, allow_infinity=False, width=16)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": text,
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "datetime": datetimes,
    "uuid": st.uuids(),
    "bytes": st.binary(max_size=8),
}
json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | text
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
sparse = st.dictionaries(st.integers(0, 2**32 - 1), singles, max_size=4).map(
    lambda pairs: {"indices": sorted(pairs), "values": [pairs[i] for i in sorted(pairs)]}
)
VALUES = {
    **SCALARS,
    **{f"[]{name}": st.lists(values, max_size=3) for name, values in SCALARS.items()},
    "json": json.filter(lambda value: value is not None),
    "sparse": sparse,
    "vector[3]": st.lists(singles, min_size=3, max_size=3),
    "vector[2]f16": st.lists(halves, min_size=2, max_size=2),
}
WHOLE = Schema().added({f"n{i}": Type.parse(text) for i, text in enumerate(VALUES)})
documents = st.lists(
    st.fixed_dictionaries(
        {"id": ids}, optional={a.name: VALUES[a.type.text] for a in WHOLE.attributes}
    ),
    max_size=6,
    unique_by=lambda document: document["id"],
)


def shown(rows: InputRows, schema: Schema) -> pa.Table:
    columns = {"id": rows.ids.cast(pa.string())}
    for name, column in rows.columns.items():
        columns[name] = column.cast(schema.attribute(name).type.logical)
    return pa.table(columns)


@given(documents)
def test_documents_come_back_as_they_went_in(data: list[dict[str, Any]]) -> None:
    rows = read_rows(data, WHOLE, duplicates="error")

    assert documents_of(shown(rows, WHOLE), WHOLE) == data
    assert rows.new == {}
    for name, column in rows.columns.items():
        column.validate(full=True)
        assert column.type == WHOLE.attribute(name).type.physical


@given(documents, st.data())
def test_every_form_reads_the_same(data: list[dict[str, Any]], draw: st.DataObject) -> None:
    rows = read_rows(data, WHOLE)
    found = shown(rows, WHOLE)
    cut = draw.draw(st.integers(0, len(data)))
    forms = [
        {"id": [row["id"] for row in data]}
        | {name: [row.get(name) for row in data] for name in rows.columns},
        found,
        pa.concat_tables([found.slice(0, cut), found.slice(cut)]),
        found.to_batches(max_chunksize=2)[0] if len(data) == 1 else found.to_reader(1),
        pl.DataFrame(found.drop_columns([n for n in found.column_names if not frames_hold(n)])),
    ]

    for form in forms:
        again = read_rows(form, WHOLE)
        assert again.ids == rows.ids
        assert all(column == rows.columns[name] for name, column in again.columns.items())


def frames_hold(name: str) -> bool:
    """Say whether Polars keeps the values of an attribute apart from others: not float16, not UUIDs."""
    return name == "id" or not any(
        part in WHOLE.attribute(name).type.text for part in ("f16", "uuid", "bytes")
    )


@given(documents)
def test_what_is_inferred_is_read_the_same_when_it_is_known(data: list[dict[str, Any]]) -> None:
    try:
        rows = read_rows(data, Schema())
    except InvalidInputError:
        return  # scalars of different kinds in a column of JSON
    schema = Schema().added(rows.new)
    again = read_rows(data, schema)

    assert again.columns == rows.columns
    assert again.new == {}
    # What was read may be JSON or a list in place of a vector, but nothing of it is lost.
    back = documents_of(shown(rows, schema), schema)
    assert [document["id"] for document in back] == [document["id"] for document in data]
    for name, type in rows.new.items():
        if type == WHOLE.attribute(name).type:
            assert [d.get(name) for d in back] == [d.get(name) for d in data]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=12))
def test_the_last_of_equal_ids_stays(pairs: list[tuple[str, int]]) -> None:
    rows = read_rows([{"id": id, "x": x} for id, x in pairs], Schema())
    last: dict[str, int] = {}
    for id, x in pairs:
        last.pop(id, None)
        last[id] = x

    found = rows.columns["x"].to_pylist() if pairs else []
    assert list(zip(rows.ids.to_pylist(), found, strict=True)) == [
        (id.encode(), x) for id, x in last.items()
    ]


@given(
    st.lists(st.lists(st.floats(width=32), min_size=2, max_size=2), min_size=1, max_size=6),
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.sampled_from(["vector[2]", "vector[2]f16"]),
)
def test_a_vector_is_finite_or_refused(vectors: list[list[float]], dtype: type, text: str) -> None:
    with np.errstate(all="ignore"):
        given: Any = np.array(vectors, dtype)
        stored = given.astype(np.float16 if text.endswith("f16") else np.float32)
    data = {"id": [f"{i}" for i in range(len(vectors))], "v": given}
    schema = Schema().added({"v": Type.parse(text)})
    bad = np.flatnonzero(~np.isfinite(stored).all(axis=1))
    for form in (data, {**data, "v": list(given)}, {**data, "v": given.tolist()}):
        if len(bad):
            with pytest.raises(InvalidInputError, match=f"^row {bad[0]}, attribute 'v' = "):
                read_rows(form, schema)
        else:
            assert read_rows(form, schema).columns["v"].to_pylist() == stored.tolist()


@settings(max_examples=300)
@given(st.integers(-(2**64), 2**64) | st.floats(), st.sampled_from(["int64", "uint64", "float64"]))
def test_a_number_stays_the_same_number_or_is_refused(number: float, text: str) -> None:
    schema = Schema().added({"x": Type.parse(text)})
    try:
        (stored,) = read_rows([{"id": "a", "x": number}], schema).columns["x"].to_pylist()
    except InvalidInputError:
        low, high = {"int64": (-(2**63), 2**63), "uint64": (0, 2**64)}.get(text, (0, 0))
        is_integer = isinstance(number, int) or number.is_integer()
        if text == "float64":
            assert isinstance(number, int)
            assert not -(2**63) <= number < 2**64 or int(float(number)) != number
        else:
            assert not is_integer or not low <= number < high
    else:
        assert stored == number or struct.pack("d", stored) == struct.pack("d", number)


anything = st.recursive(
    st.none()
    | st.one_of(list(SCALARS.values()))
    | st.sampled_from([float("nan"), 2**70, "\ud800", object(), dt.timedelta(1), Decimal("1.5")])
    | st.sampled_from([np.float32(1), np.datetime64("NaT"), np.timedelta64(1, "s"), np.str_("x")])
    | st.sampled_from([np.zeros(2, np.float16), np.zeros((1, 2)), np.array("x"), np.array([None])])
    | st.sampled_from(
        [
            dt.date(1, 1, 1),
            dt.time(),
            dt.datetime.max.replace(tzinfo=dt.UTC),
            set(),
            range(3),
            b"",
            (),
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(text | st.sampled_from(["indices", "values"]), inner, max_size=2)
        | st.fixed_dictionaries({"indices": inner, "values": inner})
        | st.tuples(inner)
    ),
    max_leaves=5,
)
arrow_types = st.sampled_from(
    [
        *(Type.parse(text).physical for text in VALUES),
        pa.string_view(), pa.large_list_view(pa.string_view()), pa.list_view(pa.float64()),
        pa.dictionary(pa.int8(), pa.string()), pa.decimal128(9, 2), pa.date64(), pa.duration("us"),
        pa.list_(pa.float64(), 2), pa.map_(pa.string(), pa.int8()), pa.float16(), pa.timestamp("ns"),
        pa.list_(pa.list_(pa.int8())), pa.time32("s"), pa.uuid(), pa.json_(), pa.null(),
    ]
)  # fmt: skip


@settings(max_examples=500)
@given(
    st.lists(anything, min_size=1, max_size=4),
    st.sampled_from([None, *VALUES]),
    st.sampled_from(["x", "vector", "id"]),
)
def test_whatever_is_given_is_read_or_refused(
    values: list[Any], text: str | None, name: str
) -> None:
    schema = Schema().added({name: Type.parse(text)}) if text and name != "id" else Schema()
    try:
        rows = read_rows({"id": [f"{i}" for i in range(len(values))], name: values}, schema)
    except InvalidInputError as error:
        refusal = str(error)
    else:
        refusal = ""
        for column in rows.columns.values():
            column.validate(full=True)
        documents_of(shown(rows, schema.added(rows.new)), schema.added(rows.new))
    assert len(refusal) < 1000


@settings(max_examples=500)
@given(st.data(), arrow_types, st.sampled_from([None, *VALUES]), st.sampled_from(["x", "vector"]))
def test_whatever_arrow_gives_is_read_or_refused(
    data: st.DataObject, arrow: pa.DataType, text: str | None, name: str
) -> None:
    values = data.draw(arrow_values(arrow))
    schema = Schema().added({name: Type.parse(text)}) if text else Schema()
    column = pa.array(values, arrow) if not isinstance(values, pa.Array) else values
    column = column.slice(data.draw(st.integers(0, len(column))))
    try:
        rows = read_rows({"id": [f"{i}" for i in range(len(column))], name: column}, schema)
    except InvalidInputError as error:
        refusal = str(error)
    else:
        refusal = ""
        for read in rows.columns.values():
            read.validate(full=True)
            assert len(read) == len(column)
            is_json = text == "json" or isinstance(arrow, pa.JsonType)  # whose null is one
            assert is_json or read.is_null().equals(pa.array(column).is_null())
        documents_of(shown(rows, schema.added(rows.new)), schema.added(rows.new))
    assert len(refusal) < 1000


def arrow_values(arrow: pa.DataType) -> st.SearchStrategy[Any]:
    """Return lists of values that Arrow can hold as `arrow`, with nulls in every place."""
    return st.lists(st.none() | _arrow_value(arrow), max_size=4)


def _arrow_value(arrow: pa.DataType) -> st.SearchStrategy[Any]:
    kinds = pa.types
    if kinds.is_map(arrow):
        return st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 9)), max_size=2)
    if is_list(arrow):
        item = st.none() | _arrow_value(arrow.value_type)
        size = arrow.list_size if kinds.is_fixed_size_list(arrow) else None
        return st.lists(item, min_size=size or 0, max_size=size if size is not None else 3)
    if kinds.is_struct(arrow):
        return st.fixed_dictionaries({f.name: st.none() | _arrow_value(f.type) for f in arrow})
    if kinds.is_dictionary(arrow) or kinds.is_string(arrow) or kinds.is_string_view(arrow):
        return text | st.sampled_from(["2024-05-01", "{}", "f" * 32, "1"])
    if isinstance(arrow, pa.JsonType):
        return st.sampled_from(["{}", "[1]", "{", "null"])
    if isinstance(arrow, pa.UuidType):
        return st.uuids()
    if kinds.is_fixed_size_binary(arrow):
        return st.binary(min_size=arrow.byte_width, max_size=arrow.byte_width)
    if kinds.is_binary(arrow):
        return st.binary(max_size=4)
    if kinds.is_boolean(arrow):
        return st.booleans()
    if kinds.is_decimal(arrow):
        return st.decimals(-99, 99, places=2)
    if kinds.is_floating(arrow):
        return st.floats(width=16)
    if kinds.is_null(arrow):
        return st.none()
    if kinds.is_time(arrow) or kinds.is_unsigned_integer(arrow) or kinds.is_int8(arrow):
        return st.integers(0, 100)
    step = 86_400_000 if kinds.is_date(arrow) else 1
    limit = (2**63 - 1) // step
    return st.integers(-limit, limit).map(lambda number: number * step)
