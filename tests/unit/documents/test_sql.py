"""SQL over documents: what it answers, what it reads, and what it may not do."""

from __future__ import annotations

import math
import signal
import threading
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import reef
from reef.documents._document_view import DocumentView
from reef.documents.filter._filter import Where
from reef.documents.query import _sql
from reef.documents.query._sql import explain_sql, run_sql
from reef.documents.types._schema import Schema
from reef.errors import InvalidInputError, ReefError, UnavailableError
from tests.support.documents.document_rows import DocumentRows, schema_of

SCHEMA = schema_of(
    price="float64",
    n="int64",
    big="uint64",
    name="string",
    on="bool",
    ts="datetime",
    u="uuid",
    raw="bytes",
    j="json",
    tags="[]string",
    us="[]uuid",
    v="vector[2]",
    h="vector[2]f16",
    s="sparse",
)
START = datetime(2024, 1, 1, tzinfo=UTC)


def document(i: int) -> dict[str, Any]:
    return {
        "price": i / 2,
        "n": None if i % 11 == 0 else i,
        "big": 2**63 + i,
        "name": f"n{i % 5}",
        "on": i % 2 == 0,
        "ts": START + timedelta(days=i),
        "u": uuid.UUID(int=i).bytes,
        "raw": b"raw%d" % i,
        "j": f'{{"a":{i}}}',
        "tags": ["all", f"t{i}"],
        "us": [uuid.UUID(int=i).bytes],
        "v": [i, 0],
        "h": [i, 1],
        "s": {"indices": [i], "values": [0.5]},
    }


class Watched:
    """A view that takes note of what is asked of it."""

    def __init__(self, view: DocumentView) -> None:
        self._view = view
        self.asked: list[tuple[list[str], Where | None]] = []

    @property
    def schema(self) -> Schema:
        return self._view.schema

    def scan(
        self, *, columns: Sequence[str] | None = None, where: Where | None = None
    ) -> Iterator[pa.RecordBatch]:
        assert columns is not None
        self.asked.append((list(columns), where))
        return self._view.scan(columns=columns, where=where)


@pytest.fixture(scope="module")
def rows() -> DocumentRows:
    """Documents in two segments and in memory, some of them three times, some deleted."""
    rows = DocumentRows(SCHEMA)
    rows.upsert({f"{i:03d}": document(1000 + i) for i in range(150)})
    rows.flush()
    rows.upsert({f"{i:03d}": document(i) for i in range(100, 300)})
    rows.delete(f"{i:03d}" for i in range(0, 300, 7))
    rows.flush()
    rows.upsert({f"{i:03d}": document(i) for i in range(100) if i % 7})
    rows.upsert({"x-empty": {}})
    return rows


@pytest.fixture
def view(rows: DocumentRows) -> DocumentView:
    return DocumentView(rows.view(), SCHEMA)


def sql(view: Any, text: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    table = run_sql(view, text, parameters)
    return [tuple(row.values()) for row in table.to_pylist()]


def test_the_query_of_the_manual(view: DocumentView, rows: DocumentRows) -> None:
    table = run_sql(view, "select name, avg(price), count(*) as n from docs group by 1 order by 1")
    assert table.column_names == ["name", "avg(price)", "n"]
    expected: dict[str, list[float]] = {}
    for values in rows.model.values():
        if values:
            expected.setdefault(values["name"], []).append(values["price"])
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        *((name, pytest.approx(np.mean(all)), len(all)) for name, all in sorted(expected.items())),
        (None, None, 1),
    ]


QUERIES = [
    "select count(*) from docs",
    "select id, n from docs where n > 20 and n <= 40",
    "select id from docs where n in (3, 4, 5, 290) or name = 'n3' and price < 10",
    "select id from docs where n not in (3, 4, 5)",
    "select id from docs where not (n between 10 and 280)",
    "select id from docs where n is null",
    "select id from docs where n is not null and price >= 100.5",
    "select id from docs where price > 100.5 and price <> 120",
    "select id from docs where id >= '100' and id < '120' and \"on\"",
    "select id from docs where id like '1%' and name in ('n1', 'n2')",
    "select id from docs where ts >= timestamptz '2024-03-01 00:00:00+00' and ts < '2024-04-01'",
    "select id from docs where big > 9223372036854776000",
    "select id from docs where raw = 'raw17'::blob or raw in ('raw18'::blob, 'raw20'::blob)",
    "select id from docs where j = '{\"a\":44}'",
    "select id from docs where j->>'a' = '45' or list_contains(tags, 't46')",
    "select id from docs where u = '00000000-0000-0000-0000-000000000020'",
    "select id from docs where v[1] = 33 or h[1] = 34 or s.indices[1] = 36",
    "select name, sum(n), min(ts), max(big) from docs group by name",
    "select a.id, b.id from docs a join docs b on a.n = b.n + 1 where b.price < 20",
    "select id from docs where n = (select max(n) from docs)",
    "select * exclude (u) from docs where n < 15",
    "select id from docs where n < 10 union all select name from docs where n > 290",
]


@pytest.mark.parametrize("query", QUERIES)
def test_it_answers_as_duckdb_does_over_a_table(view: DocumentView, query: str) -> None:
    whole = pa.Table.from_batches(view.scan())
    at = whole.column_names.index("h")
    whole = whole.set_column(at, "h", whole.column("h").cast(pa.list_(pa.float32(), 2)))
    with duckdb.connect() as plain:
        plain.execute("set TimeZone = 'UTC'")
        plain.register("docs", whole)
        expected = plain.sql(query).to_arrow_table()
    got = run_sql(view, query)
    assert got.column_names == expected.column_names
    assert sorted(map(repr, got.to_pylist())) == sorted(map(repr, expected.to_pylist()))
    assert got.num_rows > 0


def test_every_type_comes_through(view: DocumentView) -> None:
    (row,) = run_sql(view, "select * from docs where n = 16").to_pylist()
    assert row == {
        "id": "016",
        **document(16),
        "u": uuid.UUID(int=16),
        "v": [16.0, 0.0],
        "h": [16.0, 1.0],
    }
    table = run_sql(view, "select u, id, ts from docs where n = 16 or id = 'x-empty' order by id")
    assert table.schema.types == [pa.uuid(), pa.string(), pa.timestamp("us", "UTC")]
    assert table.column("u").to_pylist() == [uuid.UUID(int=16), None]
    assert run_sql(view, "select u from docs where n < 0").schema.types == [pa.uuid()]


def test_parameters(view: DocumentView) -> None:
    assert sql(view, "select id from docs where n > ? and n < ?", [100, 102]) == [("101",)]
    assert sql(view, "select id from docs where n = $n", {"n": 101}) == [("101",)]
    assert sql(view, "select id from docs where u = ?", [uuid.UUID(int=101)]) == [("101",)]
    assert sql(view, "select id from docs where ts = ?", [START + timedelta(days=101)]) == [
        ("101",)
    ]
    assert sql(view, "select id from docs where name = ?", ["' or 1=1 --"]) == []
    with pytest.raises(InvalidInputError, match="parameters"):
        run_sql(view, "select id from docs where n = ?")


def test_a_view_of_the_past_is_queried_as_it_was() -> None:
    rows = DocumentRows(SCHEMA)
    rows.upsert({"a": {"n": 1}, "b": {"n": 2}})
    before = DocumentView(rows.view(), SCHEMA)
    rows.delete(["a"])
    rows.flush()
    assert sql(before, "select id from docs order by 1") == [("a",), ("b",)]
    assert sql(DocumentView(rows.view(), SCHEMA), "select id from docs") == [("b",)]


def test_names_that_need_quotes() -> None:
    rows = DocumentRows(
        schema_of(**{"we\"ird 'name": "int64", "select": "string", "größe": "int64"})
    )
    rows.upsert({f"{i}": {"we\"ird 'name": i, "select": f"s{i}", "größe": i} for i in range(9)})
    watched = Watched(DocumentView(rows.view(), rows.schema))
    query = """select id, "select" from docs where "we""ird 'name" = 3 and größe < 5"""
    assert sql(watched, query) == [("3", "s3")]
    ((columns, where),) = watched.asked
    assert columns == ["select"]
    assert where == ("And", [("we\"ird 'name", "Eq", 3), ("größe", "Lt", 5)])


def test_a_name_with_a_line_break_is_not_another_name() -> None:
    name = "n'\u2028end: 'q"
    rows = DocumentRows(schema_of(**{"n": "int64", name: "int64"}))
    rows.upsert({"a": {"n": 1}, "b": {name: 1}, "c": {"n": 1, name: 2}})
    watched = Watched(DocumentView(rows.view(), rows.schema))
    assert sql(watched, f'select id from docs where "{name}" is not null') == [("b",), ("c",)]
    assert sql(watched, f'select id from docs where "{name}" = 2') == [("c",)]
    assert [where for _, where in watched.asked] == [
        ("And", [("Not", (name, "IsNull"))]),
        ("And", [(name, "Eq", 2)]),
    ]


# What is pushed down.


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("n = 5", ("n", "Eq", 5)),
        ("5 >= n", ("n", "Lte", 5)),
        ("name <> 'n1'", ("name", "NotEq", "n1")),
        ("n in (7, 8)", ("n", "In", [7, 8])),
        ("n is null", ("n", "IsNull")),
        ("n is not null", ("Not", ("n", "IsNull"))),
        ("n = 5 or name = 'n2'", ("Or", [("n", "Eq", 5), ("name", "Eq", "n2")])),
        ("price < 3.5", ("price", "Lt", 3.5)),
        ("ts > '2024-02-01'", ("ts", "Gt", datetime(2024, 2, 1, tzinfo=UTC))),
        ("raw = 'raw3'::blob", ("raw", "Eq", b"raw3")),
        ("big < 10", ("big", "Lt", 10)),
        ("id = '017'", ("id", "Eq", "017")),
    ],
)
def test_conditions_are_pushed_into_the_scan(
    view: DocumentView, condition: str, expected: Where
) -> None:
    watched = Watched(view)
    run_sql(watched, f"select count(*) from docs where {condition}")
    ((columns, where),) = watched.asked
    assert columns == []
    assert where == ("And", [expected])


def test_what_a_filter_cannot_say_is_evaluated_all_the_same(view: DocumentView) -> None:
    watched = Watched(view)
    query = """select id from docs where j = '{"a":45}' and n < 100"""
    assert sql(watched, query) == [("045",)]
    assert watched.asked == [(["j", "n"], ("And", [("n", "Lt", 100)]))]


def test_only_the_columns_that_are_used_are_asked_for(view: DocumentView) -> None:
    watched = Watched(view)
    run_sql(watched, "select sum(price) from docs where n < 5 group by name")
    run_sql(watched, "select id from docs limit 1")
    run_sql(watched, "select a.id from docs a join docs b on a.n = b.n and b.price < 7")
    assert [sorted(columns) for columns, _ in watched.asked[:2]] == [["name", "price"], []]
    assert sorted(sorted(columns) for columns, _ in watched.asked[2:]) == [["n"], ["n"]]


def test_nan_is_above_all_numbers_as_in_duckdb() -> None:
    rows = DocumentRows(SCHEMA)
    values = {"a": 1.0, "b": math.nan, "c": 3.0, "d": None, "e": -math.inf, "f": math.inf}
    rows.upsert({id: {"price": value} for id, value in values.items()})
    rows.flush()
    view = DocumentView(rows.view(), SCHEMA)
    for condition, expected in {
        "price > 2": "bcf",
        "price >= 'nan'": "b",
        "price = 'nan'": "b",
        "price < 2": "ae",
        "price <> 1": "bcef",
        "not price < 2": "bcf",
        "price is null": "d",
        "price in (1, 'inf')": "af",
    }.items():
        query = f"select id from docs where {condition} order by id"
        assert "".join(id for (id,) in sql(view, query)) == expected, condition


def test_filters_differ_from_sql_in_nan_and_equal_to_null_as_the_manual_says() -> None:
    rows = DocumentRows(SCHEMA)
    rows.upsert({"a": {"price": 1.0}, "b": {"price": math.nan}, "c": {"price": 3.0}, "d": {}})
    view = DocumentView(rows.view(), SCHEMA)
    for condition, by_filter, by_sql in (
        ("price > 0", "ac", "abc"),
        ("price < 2", "a", "a"),
        ("price != 1", "bc", "bc"),
        ("price = null", "d", ""),
        ("price != null", "abc", ""),
    ):
        found = view.query(where=condition, columns=[])["id"].to_pylist()
        query = f"select id from docs where {condition} order by id"
        assert "".join(found) == by_filter, condition
        assert "".join(id for (id,) in sql(view, query)) == by_sql, condition
    bounds = {"low": ("min", "price"), "high": ("max", "price")}
    assert view.aggregate(bounds).to_pylist() == [{"low": 1.0, "high": 3.0}]
    for order, ids in (("price", "acbd"), (("price", "desc"), "cabd")):
        assert "".join(view.query(order_by=order, columns=[])["id"].to_pylist()) == ids


@pytest.fixture(scope="module")
def many() -> DocumentRows:
    rows = DocumentRows(schema_of(v="vector[64]", n="int64", name="string"))
    rng = np.random.default_rng(1)
    for first in range(0, 60_000, 20_000):
        vectors = rng.standard_normal((20_000, 64), dtype=np.float32)
        numbers = range(first, first + 20_000)
        rows.upsert(
            {f"{i:06d}": {"v": vectors[i - first], "n": i, "name": f"n{i}"} for i in numbers}
        )
    rows.flush()
    return rows


def bytes_of(many: DocumentRows, query: str) -> tuple[float, list[tuple[Any, ...]]]:
    """Return what a query reads if nothing is cached, and its answer."""
    fresh = many.elsewhere()
    before = fresh.bytes_read()
    answer = sql(DocumentView(fresh.view(), fresh.schema), query)
    return fresh.bytes_read() - before, answer


def test_vectors_are_not_read_unless_they_are_used(many: DocumentRows) -> None:
    narrow, answer = bytes_of(many, "select count(*), sum(n) from docs where name <> 'n5'")
    assert answer == [(59_999, 60_000 * 59_999 // 2 - 5)]
    wide, _ = bytes_of(many, "select sum(v[1]) from docs")
    vectors = 60_000 * 64 * 4
    assert narrow < vectors / 4
    assert wide > vectors


def test_blocks_that_cannot_match_are_not_read(many: DocumentRows) -> None:
    every, answer = bytes_of(many, "select sum(n) from docs")
    assert answer == [(60_000 * 59_999 // 2,)]
    for condition in ("n = 31000", "id = '031000'", "n in (31000, 31001) and name = 'n31000'"):
        some, answer = bytes_of(many, f"select sum(n) from docs where {condition}")
        assert answer == [(31_000,)]
        assert some < every / 2
    none, answer = bytes_of(many, "select count(*) from docs where n < 0")
    assert answer == [(0,)]
    assert none < some


# What it may not do.


@pytest.mark.parametrize(
    "text",
    [
        "insert into docs values (1)",
        "delete from docs",
        "create table t (a int)",
        "attach ':memory:' as other",
        "copy (select 1) to '/tmp/reef-out.csv'",
        "set memory_limit = '10GB'",
        "pragma database_list",
        "install httpfs",
        "load httpfs",
        "select 1; select 2",
        "call pragma_version()",
        "",
        " -- nothing",
    ],
)
def test_nothing_but_one_select(view: DocumentView, text: str) -> None:
    with pytest.raises(InvalidInputError, match="one SELECT"):
        run_sql(view, text)


@pytest.mark.parametrize(
    "source",
    [
        "read_csv('{path}')",
        "read_text('{path}')",
        "read_blob('{path}')",
        "read_parquet('{path}')",
        "read_json('{path}')",
        "glob('{path}*')",
        "'{path}'",
        "local_variable",
        "documents",  # a variable of run_sql
        "nothing",
    ],
)
def test_nothing_but_the_documents(view: DocumentView, source: str, tmp_path: Path) -> None:
    path = tmp_path / "secret.csv"
    path.write_text("a\n1\n")
    local_variable = pa.table({"a": [1]})
    assert local_variable.num_rows
    with pytest.raises(InvalidInputError, match="DuckDB refuses the query"):
        run_sql(view, f"select * from {source.format(path=path)}")


def test_settings_are_in_force_and_locked(view: DocumentView) -> None:
    names = ["enable_external_access", "lock_configuration", "temp_directory"]
    shown = ", ".join(f"current_setting('{name}')" for name in names)
    assert sql(view, f"select {shown}") == [(False, True, "")]


@pytest.mark.parametrize("text", ["selec 1", "select nope from docs", "select n + name from docs"])
def test_what_duckdb_refuses_is_said_in_its_words(view: DocumentView, text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"DuckDB refuses the query: \w+ Error"):
        run_sql(view, text)


def test_text_that_is_none(view: DocumentView) -> None:
    with pytest.raises(InvalidInputError, match="the text of a SELECT"):
        run_sql(view, 17)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="the text of a SELECT"):
        run_sql(view, "select " + "1" * _sql.TEXT_CHARS_MAX)
    with pytest.raises(InvalidInputError, match="UTF-8"):
        run_sql(view, "select '\ud800'")


def test_a_query_that_takes_too_much_memory(view: DocumentView) -> None:
    query = "select count(distinct i::varchar) from range(1_000_000) t(i)"
    with pytest.raises(InvalidInputError, match=r"more than 20MB of memory.* larger memory_limit"):
        run_sql(view, query, memory_limit="20MB")
    assert run_sql(view, query, memory_limit="2GB").column(0).to_pylist() == [1_000_000]


def test_a_result_that_takes_too_much_memory(view: DocumentView) -> None:
    query = "select a.id, b.id as other, a.n as x, b.n as y from docs a, docs b"
    for run in (run_sql, explain_sql):
        with pytest.raises(InvalidInputError, match=r"result .* memory_limit = 1048576: select"):
            run(view, query, memory_limit=1 << 20)
    assert run_sql(view, query, memory_limit="16MB").nbytes > 1 << 20


def test_memory_is_bounded_by_default(view: DocumentView) -> None:
    assert sql(view, "select current_setting('memory_limit')") == [("953.6 MiB",)]


@pytest.mark.parametrize(
    "wrong", [{"timeout": 0}, {"timeout": "soon"}, {"memory_limit": 1000}, {"memory_limit": "some"}]
)
def test_limits_that_cannot_be(view: DocumentView, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        run_sql(view, "select 1", **wrong)


ENDLESS = {
    "in DuckDB": "select count(*) from docs a, range(20_000_000_000) t(i) where i % 7 = 3",
    "of rows": "select i from docs a, range(20_000_000_000) t(i) where i < 0",
}


class Endless(Watched):
    """A view whose scans never end."""

    def scan(self, **how: Any) -> Iterator[pa.RecordBatch]:
        while True:
            yield from self._view.scan(**how)


@pytest.mark.parametrize("query", ENDLESS.values(), ids=ENDLESS)
def test_a_query_ends_after_its_timeout(view: DocumentView, query: str) -> None:
    for run in (run_sql, explain_sql):
        with pytest.raises(InvalidInputError, match=r"timeout = 0.2 s .* longer timeout"):
            run(view, query, timeout="200ms")
    assert sql(view, "select count(*) from docs where n < 3") == [(2,)]


def test_a_scan_ends_after_the_timeout(view: DocumentView) -> None:
    with pytest.raises(InvalidInputError, match="timeout"):
        run_sql(Endless(view), "select sum(n) from docs", timeout=0.2)


class Interrupts(Watched):
    """Sends Ctrl-C as soon as DuckDB scans."""

    def scan(self, **how: Any) -> Iterator[pa.RecordBatch]:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return self._view.scan(**how)


@pytest.mark.parametrize("query", ENDLESS.values(), ids=ENDLESS)
def test_ctrl_c_ends_a_query(view: DocumentView, query: str) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_sql(Interrupts(view), query)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not [thread for thread in threading.enumerate() if thread.name == "reef-sql"]


def test_what_the_scan_raises_comes_out_as_it_is(view: DocumentView) -> None:
    class Broken(Watched):
        def scan(self, **_: Any) -> Iterator[pa.RecordBatch]:
            yield from view.scan(columns=["n"])
            raise UnavailableError("the store is away")

    with pytest.raises(UnavailableError, match="the store is away") as error:
        run_sql(Broken(view), "select sum(n) from docs")
    assert isinstance(error.value, ReefError)


def test_names_that_differ_in_case_only_are_refused() -> None:
    with reef.connect("memory://") as db, db.namespace("ns") as ns:
        ns.upsert([{"id": "a", "Price": 3, "price": 4}])
        with pytest.raises(InvalidInputError, match="'Price' and 'price'"):
            ns.sql("select price from docs")
        ns.alter(rename={"Price": "cost"})
        assert ns.sql("select price, cost from docs").to_pylist() == [{"price": 4, "cost": 3}]


def test_explain_says_who_evaluated_which_condition(view: DocumentView) -> None:
    text = "select id from docs where n > 20 and n <= 40 and id like '%1' order by price"
    said = explain_sql(view, text)
    scan, rest = said.split("DuckDB, for everything else:")
    assert scan.startswith("scan of docs: ")
    assert "filtered by Reef:  ('And', [" in scan
    assert "('n', 'Gt', 20)" in scan
    assert "('n', 'Lte', 40)" in scan
    assert "filtered by Arrow: nothing" in scan
    assert "suffix(id, '1')" in rest
    assert "Order By" in rest


def test_explain_lists_a_condition_that_no_filter_says(view: DocumentView) -> None:
    """A vector's numbers have no filter of Reef's: Arrow evaluates what DuckDB pushes of them."""
    said = explain_sql(view, "select id from docs where n > 20 and v[1] = 33 and s.indices[1] = 33")
    scan, rest = said.split("DuckDB, for everything else:")
    assert "('n', 'Gt', 20)" in scan
    assert "array_extract" in scan + rest


def test_explain_shows_every_scan_of_a_join(view: DocumentView) -> None:
    said = explain_sql(
        view, "select a.id from docs a join docs b on a.n = b.n where b.price < ?", [20]
    )
    assert said.count("scan of docs: ") == 2
    assert "('price', 'Lt', 20" in said


def test_explain_refuses_what_sql_refuses(view: DocumentView) -> None:
    for text in ("delete from docs", "select * from elsewhere", "select"):
        with pytest.raises(InvalidInputError):
            explain_sql(view, text)
