"""Queries: filters, orders, limits, pages, searches; every path against a plain dict."""

from __future__ import annotations

import base64
import math
import random
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from reef.documents._document_view import SEARCH_LIMIT_DEFAULT, DocumentView
from reef.documents.filter._filter import Incoming
from reef.documents.query import _query, _row_order, _stored_rows, page_version
from reef.documents.query._page import AFTER
from reef.documents.types import documents_of
from reef.engine import ReadState
from reef.errors import InvalidInputError
from tests.support.documents.document_rows import schema_of
from tests.support.documents.stored_documents import Document, Namespace, busy_namespace, comparable

SEED = 7
LIFE = ("ns", 1)
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    namespace = busy_namespace(SEED, row_block_bytes=6000)
    yield namespace
    namespace.close()


@pytest.fixture(params=["as it is", "merged", "in small pieces", "by points"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which way rows are found: all must give the same."""
    if request.param == "merged":
        monkeypatch.setattr(_stored_rows, "MATCHES_MAX", -1)
    if request.param == "in small pieces":
        monkeypatch.setattr(_stored_rows, "_PIECE_BYTES", 640)
        monkeypatch.setattr(ReadState, "points_max", 0)
        monkeypatch.setattr(_row_order, "_WAITING_ROWS", 3)
    if request.param == "by points":
        monkeypatch.setattr(ReadState, "points_max", 10**6)
        monkeypatch.setattr(_stored_rows, "_UNVERIFIED_ROWS_MAX", 10**6)
        monkeypatch.setattr(_query, "_MATCHES_MIN", 1)
    return request.param


def has(name: str, test: Callable[[Any], bool]) -> Callable[[Document], bool]:
    return lambda document: name in document and test(document[name])


FILTERS: list[tuple[Any, Callable[[Document], bool]]] = [
    (("price", "Lt", 2), has("price", lambda v: v < 2)),
    (("price", "Eq", 0), has("price", lambda v: v == 0)),
    (("Not", ("price", "Gte", 1.5)), has("price", lambda v: not v >= 1.5)),
    (("label", "Glob", "p*"), has("label", lambda v: v.startswith("p"))),
    ("label = 'été' or stock > 1000", lambda d: d.get("label") == "été" or d.get("stock", 0) > 1000),
    (("stock", "In", [0, 1, 2**62]), has("stock", lambda v: v in (0, 1, 2**62))),
    (("total", "Gte", 2**63), has("total", lambda v: v >= 2**63)),
    (("sold", "Eq", True), has("sold", lambda v: v)),
    (("sold", "IsNull"), lambda d: "sold" not in d),
    (("grade", "NotEq", None), lambda d: "grade" in d),
    (("made", "Lt", NOON), has("made", lambda v: v < NOON)),
    (("token", "Eq", UUID(int=0)), has("token", lambda v: v == UUID(int=0))),
    (("raw", "Gt", b"\x00"), has("raw", lambda v: v > b"\x00")),
    (("tags", "ContainsAny", ["x", "z"]), has("tags", lambda v: bool({"x", "z"} & {*v}))),
    (("vector", "IsNull"), lambda d: "vector" not in d),
    (("Not", ("terms", "IsNull")), lambda d: "terms" in d),
    (("id", "In", ["d003", "d100", "é3", "nobody"]), lambda d: d["id"] in ("d003", "d100", "é3")),
    (("And", [("id", "Gte", "d1"), ("grade", "Lt", 2)]),
     lambda d: d["id"] >= "d1" and d.get("grade", 9) < 2),
    (("And", []), lambda d: True),
    (("Or", []), lambda d: False),
    ("id < 'a'", lambda d: False),
]  # fmt: skip
ORDERS = [
    "price",
    ("price", "desc"),
    ["label", ("stock", "desc")],
    [("sold", "DESC"), ("made", "asc"), "token"],
    [("raw", "desc"), ("id", "desc"), "price"],
    ["total", "total"],
    ("id", "desc"),
    ["id", "price"],
    ("grade", "desc"),
]


def ordered(documents: list[Document], order_by: Any) -> list[Document]:
    """Return documents in an order: NaN after numbers, nulls after all, then by id."""
    terms = order_by if isinstance(order_by, list) else [order_by]
    pairs = [(t, "asc") if isinstance(t, str) else t for t in terms]
    names = [name for name, _ in pairs]
    if "id" in names:
        pairs = pairs[: names.index("id") + 1]
    found = sorted(documents, key=lambda d: d["id"].encode())
    for name, direction in reversed(pairs):
        groups: tuple[list, list, list] = ([], [], [])
        for document in found:
            value = document.get(name)
            is_nan = isinstance(value, float) and math.isnan(value)
            groups[2 if value is None else 1 if is_nan else 0].append(document)
        is_descending = direction.lower() == "desc"
        groups[0].sort(key=lambda d: _orderable(d[name]), reverse=is_descending)
        found = [*groups[0], *groups[1], *groups[2]]
    return found


def _orderable(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.bytes
    return value.encode() if isinstance(value, str) else value


def shown(table: pa.Table, namespace: Namespace) -> list[Document]:
    table.validate(full=True)
    return comparable(documents_of(table, namespace.schema))


@pytest.mark.slow
def test_filters_find_what_a_plain_look_at_each_document_does(
    namespace: Namespace, path: str
) -> None:
    rng = random.Random(SEED)
    for lsn in [None, rng.choice(sorted(namespace.versions))]:
        view, documents = namespace.view(lsn), [*namespace.documents(lsn).values()]
        for where, test in FILTERS:
            expected = comparable([d for d in documents if test(d)])
            assert shown(view.query(where=where), namespace) == expected, where
            assert view.count(where) == len(expected), where
            narrow = view.query(where=where, columns=["label"], limit=10_000)
            assert narrow["id"].to_pylist() == [d["id"] for d in expected]
            assert narrow["label"].to_pylist() == [d.get("label") for d in expected]
            back = [
                row for b in view.scan(where=where, reverse=True) for row in b["id"].to_pylist()
            ]
            assert back == [d["id"] for d in expected][::-1]


def test_the_filters_of_these_tests_tell_documents_apart(namespace: Namespace) -> None:
    documents = [*namespace.documents().values()]
    counts = [sum(map(test, documents)) for _, test in FILTERS]
    assert sum(0 < count < len(documents) for count in counts) == len(FILTERS) - 3


@pytest.mark.slow
def test_orders_are_those_of_a_plain_sort(namespace: Namespace, path: str) -> None:
    view, documents = namespace.view(), [*namespace.documents().values()]
    for order_by in ORDERS:
        expected = comparable(ordered(documents, order_by))
        assert shown(view.query(order_by=order_by), namespace) == expected, order_by
        for limit in (7, len(expected)):
            found = view.query(order_by=order_by, limit=limit)
            assert shown(found, namespace) == expected[:limit], (order_by, limit)
            is_cut = AFTER in (found.schema.metadata or {})
            assert is_cut == (limit < len(expected))


def test_pages_put_together_are_the_whole(namespace: Namespace, path: str) -> None:
    for order_by in ORDERS:
        check_pages(namespace, order_by, 23)


@pytest.mark.parametrize("order_by", [None, ("price", "desc")])
def test_pages_may_be_of_one_document(namespace: Namespace, order_by: Any) -> None:
    check_pages(namespace, order_by, 1)


def check_pages(namespace: Namespace, order_by: Any, size: int) -> None:
    view = namespace.view()
    where = ("Or", [("stock", "Lt", 50), ("price", "IsNull")])
    documents = [
        d for d in namespace.documents().values() if d.get("stock", 99) < 50 or "price" not in d
    ]
    asked = {"where": where, "order_by": order_by, "limit": size, "columns": ["grade"]}
    page = view.query(**asked)
    pages = [page]
    while AFTER in (page.schema.metadata or {}):
        token = page.schema.metadata[AFTER].decode() if len(pages) % 2 else page
        assert page_version(token, LIFE) == view.lsn
        page = view.query(**asked, after=token)
        pages.append(page)
        assert len(pages) < 1000
    assert len(pages) > 3
    assert [p.num_rows for p in pages[:-1]] == [size] * (len(pages) - 1)
    found = [id for page in pages for id in page["id"].to_pylist()]
    assert found == [d["id"] for d in ordered(documents, order_by or "id")], order_by


def test_pages_are_of_one_version_whatever_is_written_meanwhile() -> None:
    namespace = Namespace(schema_of(n="int64"))
    namespace.write({"id": f"{i:02}", "n": i % 5} for i in range(20))
    first = namespace.view().query(order_by="n", limit=8)
    namespace.write([{"id": "00", "n": 4}, {"id": "99", "n": 2}], ["07", "13"])
    namespace.flush()
    with pytest.raises(InvalidInputError, match="belongs to version"):
        namespace.view().query(order_by="n", after=first)
    rest = namespace.view(page_version(first, LIFE)).query(order_by="n", after=first)
    expected = sorted((i % 5, f"{i:02}") for i in range(20))
    assert [*first["id"].to_pylist(), *rest["id"].to_pylist()] == [id for _, id in expected]
    namespace.close()


def test_a_rename_between_two_pages_does_not_matter() -> None:
    namespace = Namespace(schema_of(n="int64"))
    namespace.write({"id": f"{i:02}", "n": i} for i in range(9))
    page = namespace.view().query(where=("n", "Gt", 0), order_by=("n", "desc"), limit=3)
    namespace.alter(namespace.schema.renamed({"n": "m"}))
    view = namespace.view(page_version(page, LIFE))
    rest = view.query(where=("m", "Gt", 0), order_by=("m", "desc"), after=page)
    assert rest["m"].to_pylist() == [5, 4, 3, 2, 1]
    namespace.close()


def test_a_token_is_of_one_query_and_as_it_was_given(namespace: Namespace) -> None:
    view = namespace.view()
    page = view.query(where=("stock", "Lt", 50), order_by="price", limit=3)
    token = page.schema.metadata[AFTER].decode()
    for other in (
        {"order_by": "price"},
        {"where": ("stock", "Lt", 51), "order_by": "price"},
        {"where": ("stock", "Lt", 50), "order_by": ("price", "desc")},
        {"where": ("stock", "Lt", 50)},
    ):
        with pytest.raises(InvalidInputError, match="to another query"):
            view.query(**other, after=token)
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    for i in range(len(raw)):
        damaged = raw[:i] + bytes([raw[i] ^ 1]) + raw[i + 1 :]
        with pytest.raises(InvalidInputError, match="does not come from a query"):
            view.query(order_by="price", after=base64.urlsafe_b64encode(damaged).decode())
    for wrong in ("", "?", "AAAA", "é", token[:-8]):
        with pytest.raises(InvalidInputError, match="does not come from a query"):
            page_version(wrong, LIFE)
    with pytest.raises(InvalidInputError, match="a token, or the table"):
        view.query(after=5)
    with pytest.raises(InvalidInputError, match="has no next page"):
        view.query(after=view.query())
    assert page_version(None, LIFE) is None


def test_metadata_of_a_page_survives_no_less_than_the_table(namespace: Namespace) -> None:
    page = namespace.view().query(limit=2, columns=[])
    assert page.schema.names == ["id"]
    rest = namespace.view().query(after=page, columns=["price"])
    assert page["id"].to_pylist() + rest["id"].to_pylist() == [*namespace.documents()]


@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_a_search_gives_the_nearest_with_what_is_asked_for(
    namespace: Namespace, metric: str, path: str
) -> None:
    view, target = namespace.view(), np.array([1.0, -0.5, 0.25, 2.0])
    near = []
    for document in namespace.documents().values():
        if "vector" in document and document.get("stock", 99) < 50:
            vector = np.array(document["vector"])
            lengths = np.linalg.norm(vector) * np.linalg.norm(target)
            distance = {
                "cosine": 1 - (vector @ target / lengths if lengths else 0),
                "l2": np.linalg.norm(vector - target),
                "dot": -(vector @ target),
            }[metric]
            near.append((distance, document))
    asked = {"vector": target, "vector_column": "vector", "metric": metric}
    for limit in (5, 40):
        found = view.query(**asked, where="stock < 50", limit=limit)
        distances = found["_distance"].to_pylist()
        assert found.schema.names == ["id", *namespace.schema.names, "_distance"]
        wanted = sorted(distance for distance, _ in near)[:limit]
        assert distances == pytest.approx(wanted, rel=1e-5, abs=1e-6)
        known = {document["id"]: (distance, document) for distance, document in near}
        for row, distance in zip(
            shown(found.drop_columns("_distance"), namespace), distances, strict=True
        ):
            assert row == comparable(known[row["id"]][1])
            assert distance == pytest.approx(known[row["id"]][0], rel=1e-5, abs=1e-6)
    assert view.query(**asked, columns=["label"]).schema.names == ["id", "label", "_distance"]
    assert view.query(**asked).num_rows == SEARCH_LIMIT_DEFAULT


@pytest.mark.parametrize("limit", [sys.maxsize - 1, sys.maxsize, sys.maxsize + 1, 1 << 70])
def test_a_limit_that_nothing_reaches_is_none(namespace: Namespace, limit: int) -> None:
    view = namespace.view()
    nearest = {"vector": [1, 2, 3, 4], "vector_column": "vector"}
    searched = view.query(**nearest, columns=[], limit=1000)
    assert 10 < searched.num_rows < 1000
    assert view.query(**nearest, columns=[], limit=limit).equals(searched)
    asked: dict[str, Any]
    for asked in ({}, {"where": "stock < 50"}, {"order_by": "price"}, {"order_by": ("id", "desc")}):
        found = view.query(**asked, columns=[], limit=limit)
        assert found.equals(view.query(**asked, columns=[]), check_metadata=True)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"limit": 0}, "limit = 0: expected"),
        ({"limit": True}, "limit = True: expected"),
        ({"limit": 1.0}, "limit = 1.0: expected"),
        ({"order_by": "cost"}, "there is no attribute 'cost'"),
        ({"order_by": "vector"}, "is of type vector[4]"),
        ({"order_by": "tags"}, "is of type []string"),
        ({"order_by": ("price", "up")}, "order_by = ('price', 'up'): expected"),
        ({"order_by": ("price", "stock", "label")}, "or a list of those"),
        ({"order_by": 5}, "order_by = 5: expected"),
        ({"order_by": [5]}, "order_by = 5: expected"),
        ({"columns": ["id", 5]}, "a list of names of attributes"),
        ({"columns": ["cost"]}, "there is no attribute 'cost'"),
        ({"where": ("price", "Lt", Incoming("price"))}, "only the condition of a write has"),
        ({"vector": [1, 2, 3, 4]}, "which are: vector, half_vector"),
        ({"vector": [1, 2, 3, 4], "vector_column": "price"}, "an attribute that holds vectors"),
        ({"vector": [1, 2], "vector_column": "vector"}, "vector"),
        ({"vector": [1, 2, 3, 4], "vector_column": "vector", "order_by": "price"}, "no pages"),
        ({"vector_column": "vector"}, "is given without vector"),
        ({"metric": "zzz"}, "metric = 'zzz' is given without vector"),
        ({"metric": "cosine"}, "is given without vector"),
        ({"vector": [1, 2, 3, 4], "vector_column": "vector", "metric": "zzz"}, "one of cosine"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    namespace: Namespace, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        namespace.view().query(**asked)
    assert message in str(refused.value)


@pytest.mark.parametrize("order_by", [None, "price"])
def test_results_go_to_pandas_and_polars(namespace: Namespace, order_by: str | None) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    view = namespace.view()
    asked = {"order_by": order_by}
    table = view.query(**asked)
    assert all(column.null_count for column in table.columns[1:])
    pandas, polars = view.to_pandas(**asked), view.to_polars(**asked)
    assert list(pandas.columns) == polars.columns == table.schema.names
    for name in ("id", "stock", "total", "sold", "label"):
        expected = table[name].to_pylist()
        assert [None if is_missing(v) else v for v in pandas[name]] == expected, name
        assert polars[name].to_list() == expected, name
    for name in ("vector", "half_vector"):
        expected = table[name].to_pylist()
        assert [v if v is None else list(v) for v in pandas[name]] == expected
        assert [v if v is None else list(v) for v in polars[name].to_list()] == expected


def test_a_page_in_pandas_has_its_token(namespace: Namespace) -> None:
    pytest.importorskip("pandas")
    view = namespace.view()
    page = view.to_pandas(limit=2, columns=[])
    rest = view.to_pandas(columns=[], after=page.attrs[AFTER.decode()])
    assert [*page["id"], *rest["id"]] == [*namespace.documents()]
    assert rest.attrs == {}


def is_missing(value: Any) -> bool:
    """Return whether pandas takes a single value for a missing one."""
    import pandas

    return bool(pandas.isna(value))


def test_a_package_that_is_missing_is_named(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pandas", "polars"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
        with pytest.raises(InvalidInputError, match=f"{name} is not installed"):
            getattr(namespace.view(), f"to_{name}")()


# The shapes of storage that decide how rows are found.


def numbered(count: int, **settings: object) -> Namespace:
    namespace = Namespace(schema_of(n="int64", vector="vector[2]"), **settings)
    namespace.write({"id": f"{i:06}", "n": i, "vector": [i, 1]} for i in range(count))
    namespace.flush()
    return namespace


def point_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that takes the number of rows asked about, each time it is asked."""
    asked: list[int] = []
    are_newest = _stored_rows.are_newest  # type: ignore[attr-defined]

    def counted(state: Any, lsn: int, rows: pa.RecordBatch) -> Any:
        asked.append(rows.num_rows)
        return are_newest(state, lsn, rows)

    monkeypatch.setattr(_stored_rows, "are_newest", counted)
    return asked


def ns(view: DocumentView, where: Any, **asked: Any) -> list[int]:
    return view.query(where=where, columns=["n"], **asked)["n"].to_pylist()


def test_only_what_may_be_hidden_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = numbered(1000)
    asked = point_reads(monkeypatch)
    assert ns(namespace.view(), ("n", "In", [17, 900])) == [17, 900]
    assert sum(asked) <= 2  # the first rows of their blocks, at most
    namespace.write([{"id": "000899", "n": -1}, {"id": "000901", "n": -1}])
    namespace.flush()
    asked.clear()
    assert ns(namespace.view(), ("n", "In", [17, 899, 900])) == [17, 900]
    assert asked == [2]
    namespace.close()


def test_a_newer_version_hides_an_older_one_that_matches_wherever_it_lies() -> None:
    namespace = numbered(50)
    first = namespace.writer.lsn
    namespace.write([{"id": "000007", "n": 107}])  # in a segment of its own
    namespace.flush()
    namespace.write([{"id": "000008", "n": 108}])  # versions of a key in one segment
    namespace.write([{"id": "000008", "n": 208}], ["000009"])
    namespace.flush()
    namespace.write([{"id": "000010", "n": 110}], ["000011"])  # in memory
    few = [7, 8, 9, 10, 11, 12, 107, 108, 208, 110]
    assert ns(namespace.view(), ("n", "In", few)) == [107, 208, 110, 12]
    assert ns(namespace.view(), ("n", "In", [7, 8, 9, 10, 11, 108])) == []
    assert ns(namespace.view(first), ("n", "In", few)) == [7, 8, 9, 10, 11, 12]
    assert namespace.view().query(where=("n", "IsNull")).num_rows == 0  # tombstones are no rows
    namespace.close()


def test_versions_of_a_key_that_fill_blocks_are_one_document() -> None:
    namespace = Namespace(schema_of(n="int64", text="string"), row_block_bytes=512)
    for n in range(40):
        namespace.write([{"id": "a", "n": n, "text": "x" * 200}, {"id": f"b{n:02}", "n": n}])
    namespace.flush()
    assert ns(namespace.view(), ("n", "Lt", 10)) == [*range(10)]
    assert ns(namespace.view(), ("text", "NotEq", None)) == [39]
    for lsn, rows in namespace.versions.items():
        assert ns(namespace.view(lsn), ("text", "NotEq", None)) == [rows["a"][1]]
    namespace.close()


def test_many_matches_are_left_to_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = numbered(300)
    namespace.write({"id": f"{i:06}", "n": 1000 + i} for i in range(0, 300, 3))
    namespace.flush()
    expected = sorted((f"{i:06}", i if i % 3 else 1000 + i) for i in range(300))
    view = namespace.view()
    asked = point_reads(monkeypatch)
    assert ns(view, ("n", "Gte", 0)) == [n for _, n in expected]
    assert asked  # few enough
    asked.clear()
    monkeypatch.setattr(_stored_rows, "_UNVERIFIED_ROWS_MAX", 100)
    assert ns(view, ("n", "Gte", 0)) == [n for _, n in expected]
    monkeypatch.setattr(_stored_rows, "MATCHES_MAX", 99)
    assert ns(view, ("n", "Gte", 0)) == [n for _, n in expected]
    monkeypatch.setattr(_stored_rows, "MATCHES_MAX", 10**6)
    monkeypatch.setattr(_stored_rows, "_MATCHES_BYTES_MAX", 1000)
    assert ns(view, ("n", "Gte", 0)) == [n for _, n in expected]
    assert not asked
    namespace.close()


@pytest.mark.parametrize("points_max", [0, 10**6])
def test_vectors_belong_to_their_rows(monkeypatch: pytest.MonkeyPatch, points_max: int) -> None:
    monkeypatch.setattr(ReadState, "points_max", points_max)
    namespace = numbered(500)
    namespace.write({"id": f"{i:06}", "n": i, "vector": [-i, 2]} for i in range(0, 500, 7))
    namespace.flush()
    namespace.write({"id": f"{i:06}", "n": i, "vector": None} for i in range(0, 500, 11))
    namespace.write({"id": f"{i:06}", "n": i, "vector": [i, 3]} for i in range(0, 500, 13))
    wanted = [i for i in range(500) if i % 2]
    where = ("n", "In", wanted)

    def vector(i: int) -> list[float] | None:
        return [i, 3] if i % 13 == 0 else None if i % 11 == 0 else [i, 1] if i % 7 else [-i, 2]

    found = namespace.view().query(where=where, columns=["vector"])
    assert found["vector"].to_pylist() == [vector(i) for i in wanted]
    back = namespace.view().query(where=where, order_by=("n", "desc"), limit=90)
    assert back["vector"].to_pylist() == [vector(i) for i in wanted[::-1][:90]]
    namespace.close()


def test_the_best_of_many_rows_are_kept_without_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = numbered(5000, row_block_bytes=1024)
    monkeypatch.setattr(_row_order, "_WAITING_ROWS", 50)
    kept: list[int] = []
    choose = _row_order.FirstRows._choose

    def counted(best: _row_order.FirstRows) -> pa.RecordBatch:
        kept.append(best._rows)
        return choose(best)

    monkeypatch.setattr(_row_order.FirstRows, "_choose", counted)
    assert namespace.view().query(order_by=("n", "desc"), limit=3)["n"].to_pylist() == [
        4999,
        4998,
        4997,
    ]
    assert len(kept) > 10
    assert max(kept) < 500
    kept.clear()
    assert namespace.view().query(order_by="n", limit=3)["n"].to_pylist() == [0, 1, 2]
    assert len(kept) <= 3  # what is no better than the worst that is kept is not even kept waiting
    namespace.close()
