"""The types of input: inferred or known, what values become, and what is refused with row and reason."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import re
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from reef.documents.input._input_rows import read_rows
from reef.documents.types._json import decode_json
from reef.documents.types._schema import Schema
from reef.documents.types._type import Type
from reef.errors import InvalidInputError
from tests.support.documents.document_input import NOON, ONE, column, refused
from tests.support.documents.document_rows import schema_of

# Inference.


@pytest.mark.parametrize(
    ("values", "type"),
    [
        ([True, None], "bool"),
        ([np.True_], "bool"),
        ([1, -(2**63)], "int64"),
        ([1, 2**63], "uint64"),
        ([np.int8(1), 2], "int64"),
        ([1.5, float("nan")], "float64"),
        ([1, 2.5], "float64"),
        ([np.float32(1.5)], "float64"),
        (["a", np.str_("b")], "string"),
        ([b"a", bytearray(b"b"), memoryview(b"c")], "bytes"),
        ([NOON, dt.date(2024, 5, 1)], "datetime"),
        ([np.datetime64("2024-05-01"), None], "datetime"),
        ([pd.Timestamp("2024-05-01"), pd.NaT, pd.NA], "datetime"),
        ([ONE, None], "uuid"),
        ([["a"], [], None], "[]string"),
        ([(1, 2)], "[]int64"),
        ([[1, 2.5]], "[]float64"),
        ([[2**63]], "[]uint64"),
        ([[ONE]], "[]uuid"),
        ([[NOON]], "[]datetime"),
        ([[b"x"]], "[]bytes"),
        ([[True]], "[]bool"),
        ([np.array([1, 2])], "[]int64"),
        ([np.array([1.0])], "[]float64"),
        ([np.array(["a"])], "[]string"),
        ([np.array([1], np.float32), None], "vector[1]"),
        ([np.array([1], np.float16)], "vector[1]f16"),
        ([np.array([1], np.int8), [2]], "[]int64"),
        ([{"a": 1}, None], "json"),
        ([{"a": 1}, 5, "x", [1]], "json"),
        ([[1, "a"]], "json"),
        ([[[1]], [{"a": 1}]], "json"),
        ([np.zeros((2, 2))], "json"),
        ([{"indices": [1, 5], "values": [0.5, 1]}, None], "sparse"),
        ([{"indices": [], "values": []}], "sparse"),
        ([{"indices": [1], "values": [1], "more": 1}], "json"),
        (pa.array([{"a": 1}]), "json"),
        (pa.array(["a"]).dictionary_encode(), "string"),
        (pa.array([1], pa.uint16()), "int64"),
        (pa.array([[1.0]], pa.list_(pa.float32(), 1)), "vector[1]"),
        (pa.array([ONE], pa.uuid()), "uuid"),
        (pa.array([[]], pa.list_(pa.string())), "[]string"),
    ],
)
def test_the_type_of_values(values: Any, type: str) -> None:
    read = column(values)

    assert {name: type.text for name, type in read.new.items()} == {"x": type}
    assert read.columns["x"].type == Type.parse(type).physical
    read.columns["x"].validate(full=True)
    nulls = (
        values.is_null().to_pylist() if isinstance(values, pa.Array) else list(map(pd_null, values))
    )
    assert read.columns["x"].is_null().to_pylist() == nulls


def pd_null(value: object) -> bool:
    return value is None or value is pd.NaT or value is pd.NA


@pytest.mark.parametrize("name", ["vector", "title_vector"])
def test_lists_of_numbers_under_some_names_are_vectors(name: str) -> None:
    for values in ([[1, 2], None], [[1.0, 2]], [np.array([1, 2])], pa.array([[1, 2]]), [(1, 2)]):
        assert column(values, name=name).new == {name: Type.vector(2)}
    assert column([["a"]], name=name).new == {name: Type.parse("[]string")}


@pytest.mark.parametrize(
    "values", [[None], [[]], [[], None], pa.nulls(2), pa.array([None], pa.int64()), pa.array([[]])]
)
def test_a_new_column_that_says_nothing_of_its_type_is_left_out(values: Any) -> None:
    read = column(values)

    assert read.new == read.columns == {}


def test_a_known_column_of_nothing_is_kept() -> None:
    for values in (
        [None],
        pa.nulls(1),
        pa.array([None], pa.int64()),
        pa.array([None], pa.string()),
    ):
        assert column(values, "vector[2]").columns["x"] == pa.nulls(1, pa.list_(pa.float32(), 2))
    forms: list[Any] = [
        [[], None],
        pa.array([[], None]),
        pa.array([[], None], pa.list_(pa.string())),
    ]
    for lists in forms:
        assert column(lists, "[]uuid").columns["x"].to_pylist() == [[], None]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, "a"], r"row 1, attribute 'x' = 'a'.*expected the type of row 0 \(int\), got str"),
        ([None, "a", True], r"row 2, .*row 1 \(str\), got bool"),
        ([2**63, -1], "row 0, .*int64"),
        ([1, 2**64], "row 1, .*uint64"),
        ([1, 2**53 + 1, 0.5], "row 1, .*9007199254740993.*expected float64"),
        (["\ud800"], "row 0, .*string"),
        ([[1, None]], "row 0, .*holds a null"),
        ([["a"], ["b", None]], "row 1, .*holds a null"),
        ([[None]], "row 0, .*holds a null"),
        ([[1], [2, 2**64]], "row 1"),
        ([object()], "row 0,.*expected a type that Reef supports, got object"),
        ([{"a": 1}, {"a": {1, object()}}], "row 1, .*json"),
        ([{"a": float("inf")}], "row 0,.*expected json, got NaN or infinity"),
        ([{"a": 1}, {"a": [np.float32("nan")]}], "row 1, .*NaN or infinity"),
        ([{"a": "\ud800"}], "row 0, .*json"),
        (
            [{"a": 1}, {1: "a", "1": "b"}],
            "row 1,.*expected json, got 1 for a key, which is not text",
        ),
        ([{"a": [{ONE: None}, np.zeros(2)]}], "row 0, .*for a key"),
        ([decimal.Decimal("1.5")], r"row 0, .*decimal128\(2, 1\)"),
        ([dt.timedelta(1)], "row 0, .*timedelta"),
        ([dt.time(1)], "row 0, .*time"),
        ([np.timedelta64(1, "s")], "row 0, .*got timedelta64"),
        ([np.zeros(70_000, np.float32)], "row 0, .*1 to 65535"),
        ([None, pd.Timestamp("2024-05-01T00:00:00.123456789")], "row 1,.*expected datetime"),
        (pa.array([1], pa.duration("s")), r"row 0, .*duration\[s\]"),
        (
            [np.zeros(2, np.float32), np.zeros(3, np.float32)],
            r"row 1, .*vector\[2\], got a list of 3",
        ),
    ],
)
def test_new_columns_that_have_no_type(values: Any, message: str) -> None:
    with refused(message):
        column(values)


def test_a_value_that_nests_without_end_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with refused("row 1, .*nested too deeply"):
        column([{"a": 1}, {"a": deep}])


def nested(levels: int) -> Any:
    """Return what is nested so deep, by lists and objects, with brackets in text that are none."""
    value: Any = "[" * 1000 + '\\"{['
    for level in range(1, levels):
        value = [value, "]"] if level % 2 else {'"]': value, "n": []}
    return [[], value, "[" * 1000, *([[]] * 1000)]


@pytest.mark.parametrize("form", [list, lambda values: pa.array(map(json.dumps, values))])
def test_how_deep_a_value_may_nest_does_not_depend_on_the_stack(form: Any) -> None:
    read = column(form([nested(3), nested(256)]), "json")
    assert decode_json(read.columns["x"]) == [nested(3), nested(256)]
    with refused(r"row 1, .*nested too deeply \(at most 256 levels\)"):
        column(form([nested(3), nested(257)]), "json")


def test_text_that_opens_without_end_is_refused() -> None:
    with refused("row 1, .*nested too deeply"):
        column(pa.array(["1", "[" * 100_000]), "json")


# Coercion.


@pytest.mark.parametrize(
    ("values", "type", "stored"),
    [
        ([1, 2**53, 2**60, -3], "float64", [1.0, 2.0**53, 2.0**60, -3.0]),
        ([2**63], "float64", [2.0**63]),
        ([1.0, None, 2.0**60], "int64", [1, None, 2**60]),
        ([2.0**63, 0], "uint64", [2**63, 0]),
        (pa.array([1.5], pa.float16()), "float64", [1.5]),
        (pa.array([2.0], pa.float16()), "int64", [2]),
        (pa.array([decimal.Decimal("0.10")]), "float64", [0.1]),
        ([decimal.Decimal("2.0")], "int64", [2]),
        (pa.array([5], pa.int8()), "uint64", [5]),
        (pa.array(["a", None]).dictionary_encode(), "string", ["a", None]),
        (pa.array(["a"], pa.string_view()), "string", ["a"]),
        (pa.array([b"a"], pa.binary(1)), "bytes", [b"a"]),
        (["2024-05-01T12:00:00Z", "2024-05-01 14:00+02:00", "2024-05-01T12:00"], "datetime", [NOON] * 3),
        (["2024-05-01", None], "datetime", [NOON.replace(hour=0), None]),
        (["2024-05-01T12:00:00.000001+0000"], "datetime", [NOON.replace(microsecond=1)]),
        ([dt.datetime(2024, 5, 1, 12), "2024-05-01T12:00Z", None, NOON], "datetime", [NOON, NOON, None, NOON]),  # noqa: DTZ001
        ([pd.Timestamp(NOON), pd.Timestamp("2024-05-01T21:00+09:00"), pd.NaT, NOON], "datetime", [NOON, NOON, None, NOON]),
        ([NOON.astimezone(dt.timezone(dt.timedelta(hours=5)))], "datetime", [NOON]),
        (pa.array([NOON], pa.timestamp("ns", "Asia/Tokyo")), "datetime", [NOON]),
        (pa.array([1_714_564_800], pa.timestamp("s")), "datetime", [NOON]),
        ([str(ONE), None, ONE.hex.upper(), ONE], "uuid", [ONE.bytes, None, ONE.bytes, ONE.bytes]),
        (pa.array([str(ONE), None, "f" * 32]), "uuid", [ONE.bytes, None, b"\xff" * 16]),
        (pa.array([ONE.bytes], pa.binary(16)), "uuid", [ONE.bytes]),
        ([[1, 2], None, [3.5, 4]], "vector[2]", [[1, 2], None, [3.5, 4]]),
        ([np.array([1, 2], np.float64), [3, 4]], "vector[2]f16", [[1, 2], [3, 4]]),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), "vector[2]", [[1, 2], None, [3, 4]]),
        (pa.array([None, [1, 2], None], pa.list_view(pa.float64())), "vector[2]", [None, [1, 2], None]),
        ([[1, 2.0], [], None], "[]int64", [[1, 2], [], None]),
        (pa.array([[1], None, []], pa.large_list(pa.int8())), "[]float64", [[1.0], None, []]),
        (pa.array([[1], None, [2, 3]], pa.list_view(pa.int8())), "[]int64", [[1], None, [2, 3]]),
        (pa.array([["a"]], pa.list_(pa.string(), 1)), "[]string", [["a"]]),
        ([["2024-05-01T12:00Z"]], "[]datetime", [[NOON]]),
        ([[str(ONE)], []], "[]uuid", [[ONE.bytes], []]),
        ([5, "a", [1], {"a": None}, None, True], "json", ["5", '"a"', "[1]", '{"a":null}', None, "true"]),
        ([{"t": NOON, "n": np.int8(1), "v": np.zeros(2)}], "json", ['{"t":"2024-05-01T12:00:00Z","n":1,"v":[0.0,0.0]}']),
        (pa.array(['{"a": [1,  2]}', None, "null"]), "json", ['{"a":[1,2]}', None, None]),
        (pa.array([5, None]), "json", ["5", None]),
        (pa.array([[("x", 1)], None], pa.map_(pa.string(), pa.int8())), "json", ['{"x":1}', None]),
        (pa.array([{"m": [("x", None)]}], pa.struct({"m": pa.map_(pa.string(), pa.int8())})), "json", ['{"m":{"x":null}}']),
        (pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())), "json", ["[[1,2]]"]),
        ([{"values": [1, 2], "indices": [7, 3]}, None], "sparse", [{"indices": [3, 7], "values": [2, 1]}, None]),
    ],
)  # fmt: skip
def test_values_become_what_the_schema_says(values: Any, type: str, stored: list[Any]) -> None:
    read = column(values, type)

    assert read.columns["x"].type == Type.parse(type).physical
    read.columns["x"].validate(full=True)
    assert read.columns["x"].to_pylist() == stored
    assert read.new == {}


@pytest.mark.parametrize(
    ("values", "type", "message"),
    [
        (["a"], "int64", "row 0, attribute 'x' = 'a': expected int64, got string"),
        (pa.array([None, "a"]), "int64", "row 1,.*expected int64, got string"),
        ([1], "string", "expected string, got int64"),
        ([1, True], "int64", "row 1, .*= True.*expected int64, got bool"),
        ([True, 1], "bool", "row 1,.*expected bool, got int64"),
        ([1, 1.5], "int64", "row 1, .*= 1.5.*expected int64"),
        ([float("nan")], "int64", "row 0, .*int64"),
        ([0, -1], "uint64", "row 1, .*= -1.*expected uint64"),
        ([0, 2**63], "int64", "row 1, .*= 9223372036854775808.*expected int64"),
        ([2**53, 2**53 + 1], "float64", "row 1,.*expected float64, got int64 that would change"),
        ([2**63 - 1], "float64", "row 0, .*would change"),
        ([2**64 - 1], "float64", "row 0, .*would change"),
        (["x"], "bytes", "expected bytes, got string"),
        ([b"x"], "string", "expected string, got bytes"),
        ([{"a": 1}], "string", r"expected string, got dict \(json\)"),
        ([[1]], "int64", r"expected int64, got \[\]int64"),
        ([5], "datetime", "expected datetime, got int64"),
        (["2024-05-01", "yesterday"], "datetime", "row 1, .*'yesterday'.*ISO 8601"),
        (["2024-05-01T00:00:00.1234567Z"], "datetime", "row 0, .*microseconds"),
        (pa.array([1], pa.timestamp("ns")), "datetime", "row 0, .*microseconds"),
        (pa.array([0, 2**40], pa.timestamp("s")), "datetime", "row 1, .*years 1 to 9999"),
        ([str(ONE), "x"], "uuid", "row 1, .*'x'.*not a UUID"),
        ([ONE.bytes[:15]], "uuid", "expected uuid, got bytes"),
        ([[1, 2], [1]], "vector[2]", r"row 1, .*\[1.*expected vector\[2\], got a list of 1 numbers"),
        (pa.array([None, [1.0]], pa.list_(pa.float32(), 1)), "vector[2]", "row 1, .*list of 1 numbers"),
        ([[1, 2], [float("nan"), 1]], "vector[2]", "row 1, .*got nan at place 0"),
        (np.array([[1, 2], [1, np.inf]], np.float32), "vector[2]", "row 1, .*got inf at place 1"),
        (np.array([[1, 2], [1, np.nan]], np.float16), "vector[2]f16", "row 1, .*got nan at place 1"),
        ([None, [1, 1e300]], "vector[2]", r"row 1, .*finite float, got 1e\+300 at place 1"),
        ([[1, 1e6]], "vector[2]f16", "row 0, .*finite halffloat"),
        ([[1, None]], "vector[2]", "row 0, .*holds a null"),
        ([["1", "2"]], "vector[2]", r"expected vector\[2\], got \[\]string"),
        ([[True, False]], "vector[2]", r"expected vector\[2\], got \[\]bool"),
        ([[1, True]], "vector[2]", r"expected vector\[2\], got list"),
        ([5], "vector[2]", r"expected vector\[2\], got int64"),
        ([[1], ["a"]], "[]int64", "row 0,.*expected \\[\\]int64, got list"),
        ([["a"]], "[]int64", "row 0,.*expected int64, got string"),
        (pa.array([[1.0], [], [2.0, 2.5]]), "[]int64", "row 2, .*= 2.5: "),
        (pa.array([["a"], ["b", None]]), "[]string", "row 1, .*holds a null"),
        (["a"], "[]string", r"expected \[\]string, got string"),
        ([{"indices": [1], "values": [1, 2]}], "sparse", "row 0, .*different lengths"),
        ([None, {"indices": [1, 1], "values": [1, 2]}], "sparse", "row 1, .*appears twice"),
        ([None, {"indices": [-1], "values": [1]}], "sparse", "row 1, .*from 0 to 4294967295"),
        ([{"indices": [2**32], "values": [1]}], "sparse", "row 0, .*from 0 to 4294967295"),
        ([{"indices": [1], "values": [float("nan")]}], "sparse", "row 0, .*finite"),
        ([{"indices": [1], "values": [None]}], "sparse", "row 0, .*null"),
        ([{"indices": [1], "values": None}], "sparse", "row 0, .*null"),
        ([{"indices": 5, "values": [1]}], "sparse", "row 0, .*not a list"),
        ([{"a": 1}], "sparse", "row 0,.*expected sparse, got dict"),
        (pa.array([None, 2**62], pa.timestamp("s")), "json", "row 1,.*expected json"),
        (pa.array([None, [1, None]], pa.list_(pa.float32(), 2)), "vector[2]", "row 1, .*null"),
        (pa.array([None, [1, np.nan]], pa.list_(pa.float32(), 2)), "vector[2]", "row 1, .*nan"),
        (pa.array(["{}", "{"]), "json", "row 1, .*not JSON"),
        (pa.array([[("a", 1)], [("x", 1), ("x", 2)]], pa.map_(pa.string(), pa.int8())), "json", "row 1, .*a key twice"),
        ([object()], "json", "row 0,.*expected json, got object"),
    ],
)  # fmt: skip
def test_a_clash_names_row_attribute_expected_and_got(values: Any, type: str, message: str) -> None:
    with refused(message) as caught:
        column(values, type)
    assert re.match(r"row \d, attribute '(x|indices|values)' = ", str(caught.value))


def test_the_first_of_many_rows_is_named() -> None:
    values: list[Any] = ["2024-01-01"] * 10_000
    values[7_777] = values[9_000] = "never"
    with refused("row 7777, "):
        column(values, "datetime")
    with refused("row 7777, "):
        column(pa.array(values), "datetime")


def test_messages_stay_short() -> None:
    with refused("expected int64") as caught:
        column(["x" * 1_000_000], "int64")
    assert len(str(caught.value)) < 400


def test_slices_of_arrow_arrays() -> None:
    vectors = pa.array([[9.0, np.nan], [1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
    lists = pa.array([["z"], ["a"], None, []], pa.list_(pa.string()))
    read = read_rows(
        {"id": pa.array(list("zabc")).slice(1), "v": vectors.slice(1), "l": lists.slice(1)},
        Schema(),
    )

    assert read.columns["v"].to_pylist() == [[1.0, 2.0], None, [3.0, 4.0]]
    assert read.columns["l"].to_pylist() == [["a"], None, []]
    with refused("row 0, attribute 'v'"):
        read_rows({"id": ["a", "b"], "v": vectors.slice(0, 2)}, Schema())
    only = read_rows({"id": ["a"], "v": vectors.slice(1, 1)}, schema_of(v="vector[2]f16"))
    assert only.columns["v"].to_pylist() == [[1.0, 2.0]]


def hiding(items: pa.Array) -> pa.ListArray:
    """Return four lists, [0, 1], null, [4], [5], of which the one that is null hides two items."""
    ends = pa.array([0, 2, 4, 5, 6], pa.int32())
    return pa.ListArray.from_arrays(ends, items, mask=pa.array([False, True, False, False]))


def test_what_a_null_list_hides_is_not_stored() -> None:
    lists = hiding(pa.array(["a", "b", "hidden", "hidden", "c", "d"]))

    read = column(lists, "[]string").columns["x"]

    assert read.to_pylist() == [["a", "b"], None, ["c"], ["d"]]
    assert read.values.to_pylist() == ["a", "b", "c", "d"]
    cut = column(lists.slice(2), "[]string").columns["x"]
    assert cut.to_pylist() == [["c"], ["d"]]


def test_what_a_null_list_hides_does_not_move_rows() -> None:
    with refused("row 3, .*int64 cannot hold"):
        column(hiding(pa.array([1, 2, 3, 4, 5, 2**63], pa.uint64())), "[]int64")
    with refused("row 3, .*holds a null"):
        column(hiding(pa.array(["a", "b", "c", "d", "e", None])), "[]string")
    ends = pa.array([0, 1, 2, 3], pa.int32())
    numbers = pa.ListArray.from_arrays(
        ends, pa.array([1.0, 2.0, np.nan]), mask=pa.array([False, True, False])
    )
    with refused("row 2, .*nan at place 0"):
        column(numbers, "vector[1]")


@pytest.mark.parametrize("as_table", [False, True])
def test_an_empty_vector_before_others_is_refused_and_not_forgotten(as_table: bool) -> None:
    rows = [{"id": "1", "vector": []}, {"id": "2", "vector": [1.0, 2.0]}]
    with pytest.raises(InvalidInputError, match=r"row 0, attribute 'vector'"):
        read_rows(pa.Table.from_pylist(rows) if as_table else rows, Schema.EMPTY)


@pytest.mark.parametrize(
    "value",
    [
        {"indices": {"a": 1}, "values": [1]},
        {"indices": [1], "values": ["x"]},
        {"indices": "all", "values": 3},
        {"indices": [[1]], "values": [1]},
    ],
)
def test_a_dict_with_the_keys_of_a_sparse_vector_that_is_none_is_json(value: Any) -> None:
    read = column([None, value])
    assert read.new == {"x": Type.parse("json")}
    assert json.loads(read.columns["x"][1].as_py()) == value
    with refused("sparse"):  # beside one that is, or of that type, it is a mistake
        column([{"indices": [1], "values": [1]}, value])
    with refused("sparse"):
        column([value], "sparse")


@pytest.mark.parametrize(
    "broken", [{"indices": [1], "values": [None]}, {"indices": [1, 1], "values": [1, 2]}]
)
def test_what_may_be_a_sparse_vector_is_not_taken_for_json(broken: Any) -> None:
    with refused("expected sparse"):
        column([broken])


def test_extension_types_are_known_or_refused() -> None:
    flags = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0], pa.int8()))
    assert column(flags).new == {"x": Type.parse("bool")}
    assert column(flags).columns["x"].to_pylist() == [True, None, False]
    assert column(flags, "bool").columns["x"].to_pylist() == [True, None, False]
    with refused("expected int64"):
        column(flags, "int64")
    row = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 3), np.float32))
    assert column(row).new == {"x": Type.parse("vector[3]")}
    several = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 3, 2), np.float32))
    months = pd.period_range("2024-01", periods=2, freq="M").to_series()
    between = pd.Series(pd.interval_range(0, 2))
    for type in (None, "int64", "json", "vector[6]"):
        for unknown in (several, pa.array(months), pa.array(between)):
            with refused("row 0, attribute 'x'"):
                column(unknown, type)
    assert column(pa.array(months)[:0]).columns == {}


@pytest.mark.parametrize("values", [[0.0] * 65_536, np.zeros(65_536), np.zeros(65_536, np.float16)])
def test_a_vector_that_is_too_long_is_told_the_limit(values: Any) -> None:
    arrow = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(65_536, np.float32)), 65_536)
    for data in ([values], arrow):
        with refused("a vector of 1 to 65535 numbers, got a list of 65536 numbers"):
            column(data, name="x_vector")
