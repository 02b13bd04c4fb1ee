"""Input in every form says the same: rows, columns, Arrow, NumPy, pandas and Polars, and back."""

from __future__ import annotations

import datetime as dt
import decimal
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from reef.documents.input._given import RequestColumns
from reef.documents.input._input_rows import InputRows, read_rows
from reef.documents.types import documents_of
from reef.documents.types._schema import Schema
from reef.documents.types._type import Type
from tests.support.documents.document_input import NOON, ONE, refused
from tests.support.documents.document_rows import schema_of

# Forms.

ROWS: list[dict[str, Any]] = [
    {"id": "a", "n": 1, "s": "x", "tags": ["p", "q"], "vector": [1.0, 2.0]},
    {"id": "b", "n": None, "s": "y", "tags": [], "vector": None},
    {"id": "ü", "n": 3, "s": None, "tags": None, "vector": [5.0, 6.0]},
]
TYPES = {"n": "int64", "s": "string", "tags": "[]string", "vector": "vector[2]"}
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
TABLE = pa.table({**COLUMNS, "vector": pa.array(COLUMNS["vector"], pa.list_(pa.float32(), 2))})
FRAME = pd.DataFrame(COLUMNS).astype({"n": "Int64"})
FORMS = {
    "rows": ROWS,
    "tuple of rows": tuple(ROWS),
    "columns": COLUMNS,
    "table": TABLE,
    "chunks": pa.concat_tables([TABLE.slice(2), TABLE]).slice(1),
    "batch": TABLE.to_batches()[0],
    "reader": TABLE.to_reader(),
    "pandas": FRAME,
    "pandas by id": FRAME.set_index("id"),
    "pandas on arrow": TABLE.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.DataFrame(COLUMNS),
    "polars array": pl.DataFrame(COLUMNS, schema_overrides={"vector": pl.Array(pl.Float32, 2)}),
    "series": {
        "id": pl.Series(COLUMNS["id"]),
        "s": pd.Series(COLUMNS["s"]),
        "n": pl.Series(COLUMNS["n"]),
    }
    | {"tags": TABLE["tags"], "vector": TABLE["vector"].combine_chunks()},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(form: str) -> None:
    data = FORMS[form] if form != "reader" else TABLE.to_reader()

    read = read_rows(data, Schema())

    assert {name: type.text for name, type in read.new.items()} == TYPES
    assert read.ids.to_pylist() == [b"a", b"b", "ü".encode()]
    assert {name: column.to_pylist() for name, column in read.columns.items()} == {
        name: values for name, values in COLUMNS.items() if name != "id"
    }
    assert all(read.columns[name].type == type.physical for name, type in read.new.items())
    assert read.nbytes == read.ids.nbytes + sum(c.nbytes for c in read.columns.values())
    assert read.present is None
    assert len(read) == 3


@pytest.mark.parametrize("form", FORMS)
def test_known_types_are_kept(form: str) -> None:
    data = FORMS[form] if form != "reader" else TABLE.to_reader()
    known = schema_of(n="float64", tags="json", vector="vector[2]f16")

    read = read_rows(data, known)

    assert read.new == {"s": Type.parse("string")}
    assert read.columns["n"].to_pylist() == [1.0, None, 3.0]
    assert read.columns["tags"].to_pylist() == ['["p","q"]', "[]", None]
    assert read.columns["vector"].type == pa.list_(pa.float16(), 2)


def test_numpy_columns() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    read = read_rows(
        {
            "id": np.array(["a", "b", "c"]),
            "single": vectors,
            "half": vectors.astype(np.float16),
            "double": vectors.astype(np.float64),
            "double_vector": vectors.astype(">f8"),
            "count": np.arange(3, dtype=np.uint8),
            "when": np.array(["2024-05-01T12:00", "NaT", "2024-05-01"], "M8[ns]"),
            "any": np.array([{"a": 1}, None, [1]], object),
            "masked": np.ma.array([1, 2, 3], mask=[0, 1, 0]),
        },
        Schema(),
    )

    assert {name: type.text for name, type in read.new.items()} == {
        "single": "vector[2]",
        "half": "vector[2]f16",
        "double": "[]float64",
        "double_vector": "vector[2]",
        "count": "int64",
        "when": "datetime",
        "any": "json",
        "masked": "int64",
    }
    assert read.columns["double_vector"].to_pylist() == vectors.tolist()
    assert read.columns["when"].to_pylist()[:2] == [NOON, None]
    assert read.columns["masked"].to_pylist() == [1, None, 3]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "data is of type int.*list of dicts"),
        ("text", "data is of type str.*"),
        ([{"id": "a"}, 5], "row 1 is of type int.*a dict"),
        (
            {"id": "a", "x": 1},
            r"column 'id' is of type str.*one document in a list, \[\{\.\.\.\}\]",
        ),
        ({"id": ["a"], "x": 1}, "column 'x' is of type int.*a list"),
        ({"id": ["a"], "x": [1, 2]}, "different lengths.*'x': 2"),
        ({"x": [1]}, "give every document one"),
        ({"id": ["a"], "x": np.zeros((1, 2, 3))}, "column 'x'.*3 dimensions"),
        (
            pa.table([["a"], [1], [2]], ["id", "x", "x"]),
            "columns have the same name, .*'x'.*name of its own",
        ),
        (pd.DataFrame([["a", 1, 2]], columns=["id", "x", "x"]), "name of its own"),
        ([{"id": "a", "_x": 1}], "attribute = '_x'"),
        ([{"id": "a", 5: 1}], "attribute = 5"),
        ([{"id": "a", **{f"n{i}": i for i in range(1025)}}], "at most 1024"),
    ],
)
def test_forms_that_are_none(data: object, message: str) -> None:
    with refused(message):
        read_rows(data, Schema())


def test_nothing_is_no_rows() -> None:
    nothing: list[Any] = [[], {}, {"id": []}, TABLE.slice(0, 0), FRAME.iloc[:0]]
    for data in [*nothing, pl.DataFrame(COLUMNS)[:0]]:
        read = read_rows(data, schema_of(n="int64"))
        assert len(read) == 0
        assert read.ids.type == pa.binary()
        assert read.new == {}


def test_pandas_and_polars_need_not_be_installed() -> None:
    code = (
        "import sys, importlib.abc\n"
        "class Absent(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name in ('pandas', 'polars'): raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from reef.documents.input._input_rows import read_rows; from reef.documents.types._schema import Schema\n"
        "rows = read_rows([{'id': 'a', 'x': 1}], Schema()), read_rows({'id': ['a']}, Schema())\n"
        "print(*map(len, rows))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "1 1\n"


def test_text_that_is_not_utf8_is_refused() -> None:
    buffers = [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    broken = pa.Array.from_buffers(pa.string(), 1, buffers)

    for data in ({"id": broken}, {"id": ["a"], "x": broken}, pa.table({"id": ["a"], "x": broken})):
        with refused("UTF"):
            read_rows(data, Schema())


# Ids.


@pytest.mark.parametrize("good", ["a", "a b", "~", "é" * 256, "x" * 512, "日本", "\u00a0", "a/b"])
def test_ids(good: str) -> None:
    for ids in ([good], pa.array([good]), pa.array(["-", good], pa.string_view()).slice(1)):
        assert read_rows({"id": ids}, Schema()).ids.to_pylist() == [good.encode()]


@pytest.mark.parametrize("bad", ["", "x" * 513, "é" * 257, "a\nb", "\x00", "\x7f", "\x85", None, 5])
def test_ids_that_are_none(bad: Any) -> None:
    forms = [["a", bad], pd.Series(["a", bad], dtype=object)]
    if not isinstance(bad, int):
        forms += [pa.array(["a", bad]), pa.array(["-", "a", bad], pa.large_string()).slice(1)]
    for ids in forms:
        with refused(r"row 1, attribute 'id' = .* expected .*text of 1 to 512 bytes|row 1, .*'id'"):
            read_rows({"id": ids}, Schema())


@pytest.mark.parametrize(
    "ids", [[5], [ONE], [b"a"], pa.array([5]), pa.array([b"a"]), ["\ud800"], [["a"]]]
)
def test_ids_are_text(ids: Any) -> None:
    with refused("row 0, attribute 'id'"):
        read_rows({"id": ids}, Schema())


def test_a_row_without_an_id_is_refused() -> None:
    with refused("row 1, attribute 'id' = None: .*got no id"):
        read_rows([{"id": "a"}, {"x": 1}], Schema())


def test_of_rows_with_the_same_id_the_last_stays_in_its_place() -> None:
    data = [{"id": "a", "x": 1}, {"id": "b", "x": 2}, {"id": "a", "x": 3}, {"id": "c"}]
    read = read_rows(data, Schema(), is_patch=True)

    assert read.ids.to_pylist() == [b"b", b"a", b"c"]
    assert read.columns["x"].to_pylist() == [2, 3, None]
    assert read.present is not None
    assert read.present["x"].to_pylist() == [True, True, False]
    with refused("row 2, attribute 'id' = 'a': expected ids that differ, got the id of row 0"):
        read_rows(data, Schema(), duplicates="error")
    with refused("duplicates = 'first'"):
        read_rows(data, Schema(), duplicates="first")  # type: ignore[arg-type]


# Patches.


def test_a_patch_says_which_rows_it_leaves_alone() -> None:
    data = [{"id": "a", "x": 1, "y": None}, {"id": "b", "y": 2, "z": None}]
    read = read_rows(data, schema_of(z="int64"), is_patch=True)

    assert read.present is not None
    assert {name: mask.to_pylist() for name, mask in read.present.items()} == {
        "x": [True, False],
        "z": [False, True],
    }
    assert read.columns["z"].to_pylist() == [None, None]
    assert read_rows(data, Schema()).present is None
    assert read_rows(reversed_keys(data[:1] * 2), Schema(), is_patch=True).present is None


def reversed_keys(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rows[0], dict(reversed(rows[1].items()))]


# Pandas and Polars.


def test_pandas_missing_values_are_nulls() -> None:
    frame = pd.DataFrame(
        {
            "id": ["a", "b"],
            "f": [1.5, np.nan],
            "s": ["x", None],
            "o": pd.Series([{"a": 1}, np.nan], dtype=object),
            "t": pd.to_datetime(["2024-05-01T12:00Z", None]),
            "c": pd.Categorical(["x", None]),
            "b": pd.array([True, None], "boolean"),
            "v": [np.array([1, 2], np.float32), None],
        }
    )
    read = read_rows(frame, Schema())

    assert {name: type.text for name, type in read.new.items()} == {
        "f": "float64",
        "s": "string",
        "o": "json",
        "t": "datetime",
        "c": "string",
        "b": "bool",
        "v": "vector[2]",
    }
    assert [column.null_count for column in read.columns.values()] == [1] * 7
    assert read.columns["t"][0].as_py() == NOON


def test_polars_types() -> None:
    frame = pl.DataFrame(
        {
            "id": ["a"],
            "c": pl.Series(["x"], dtype=pl.Categorical),
            "t": [dt.datetime(2024, 5, 1, 12)],  # noqa: DTZ001
            "d": [dt.date(2024, 5, 1)],
            "st": [{"a": 1}],
            "u": pl.Series([2**63], dtype=pl.UInt64),
            "n": [None],
        }
    )
    read = read_rows(frame, Schema())

    assert {name: type.text for name, type in read.new.items()} == {
        "c": "string",
        "t": "datetime",
        "d": "datetime",
        "st": "json",
        "u": "uint64",
    }
    assert read.columns["st"].to_pylist() == ['{"a":1}']
    with refused("row 0, attribute 'x' = .*decimal"):
        read_rows(pl.DataFrame({"id": ["a"], "x": [decimal.Decimal("1.5")]}), Schema())
    objects = pl.Series([object()], dtype=pl.Object)
    for data in (pl.DataFrame({"id": ["a"], "x": objects}), {"id": ["a"], "x": objects}):
        with refused("row 0, attribute 'x' = .*got object"):
            read_rows(data, Schema())


# And back.

DOCUMENT = {
    "id": "a",
    "s": "ä",
    "n": -1,
    "u": 2**64 - 1,
    "f": 0.5,
    "b": False,
    "t": NOON,
    "uu": ONE,
    "raw": b"\xff",
    "tags": ["a", ""],
    "empty": [],
    "times": [NOON],
    "uuids": [ONE],
    "vector": [0.5, 1.0],
    "half": [0.5, 1.0],
    "sp": {"indices": [1, 2**32 - 1], "values": [0.5, 1.0]},
    "j": {"a": [1, None, {"b": "c"}]},
}
WHOLE = schema_of(s="string", n="int64", u="uint64", f="float64", b="bool", t="datetime", uu="uuid")
WHOLE = WHOLE.added(
    {n: Type.parse(t) for n, t in {"raw": "bytes", "tags": "[]string", "empty": "[]int64"}.items()}
)
WHOLE = WHOLE.added(
    {
        n: Type.parse(t)
        for n, t in {"times": "[]datetime", "uuids": "[]uuid", "sp": "sparse"}.items()
    }
)
WHOLE = WHOLE.added(
    {"vector": Type.vector(2), "half": Type.vector(2, half=True), "j": Type.parse("json")}
)


def shown(rows: InputRows, schema: Schema) -> pa.Table:
    types = {
        name: attribute.type.logical for name in rows.columns if (attribute := schema.find(name))
    }
    return pa.table(
        {"id": rows.ids.cast(pa.string())} | {n: rows.columns[n].cast(t) for n, t in types.items()}
    )


def test_documents_come_back_as_they_went_in() -> None:
    data = [DOCUMENT, {"id": "b"}, {**DOCUMENT, "id": "c", "vector": [3.0, 4.0], "tags": []}]
    read = read_rows(data, WHOLE)
    found = shown(read, WHOLE)

    assert documents_of(found, WHOLE) == data
    assert documents_of(found.slice(1), WHOLE) == data[1:]
    assert documents_of(found.to_batches()[0], WHOLE) == data
    assert documents_of(pa.concat_tables([found, found]), WHOLE) == data * 2
    assert documents_of(found.slice(0, 0), WHOLE) == []
    document = documents_of(found, WHOLE)[0]
    assert document["t"].tzinfo is dt.UTC
    assert list(document) == ["id", *read.columns]


def test_a_table_that_was_read_can_be_written_back() -> None:
    read = read_rows([DOCUMENT, {"id": "b"}], WHOLE)
    again = read_rows(shown(read, WHOLE), WHOLE)

    assert again.ids == read.ids
    assert again.columns == read.columns
    assert again.new == {}


def test_columns_that_the_schema_does_not_know() -> None:
    found = pa.table({"id": ["a"], "_distance": pa.array([0.5], pa.float32())})

    assert documents_of(found, Schema()) == [{"id": "a", "_distance": 0.5}]


class Once:
    """A stream that can be read once, as drivers of databases hand them out."""

    def __init__(self, data: pa.Table | pa.ChunkedArray) -> None:
        self._capsules = iter([data.__arrow_c_stream__()])

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return next(self._capsules)


@pytest.mark.parametrize("is_patch", [False, True])
def test_a_request_is_read_again_when_its_stream_is_not_there_any_more(is_patch: bool) -> None:
    columns = {name: Once(TABLE[name]) for name in TABLE.column_names}
    for data in (Once(TABLE), TABLE.to_reader(), columns):
        asked = RequestColumns.of(patches=data) if is_patch else RequestColumns.of(data)
        for types in ({}, TYPES):
            given, _ = asked.read(schema_of(**types))
            rows = given.patches if is_patch else given.upserts
            assert rows is not None
            assert rows.columns["n"].to_pylist() == COLUMNS["n"]


def test_rows_with_too_many_different_keys_are_refused_before_they_become_columns() -> None:
    rows = [{"id": f"{i}", f"k{i}": 1} for i in range(3000)]  # 9 million values as columns
    with refused("the documents have 3001 attributes: expected at most 1024"):
        read_rows(rows, Schema())
    assert len(read_rows(rows[:1024], Schema()).columns) == 1024
