"""Aggregates: count, sum, min, max, avg and groups, against a plain dict."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from reef.documents.query import _aggregate, _stored_rows
from reef.documents.types._schema import Schema
from reef.errors import InvalidInputError
from tests.support.documents.document_rows import schema_of
from tests.support.documents.stored_documents import Document, Namespace, busy_namespace, comparable


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    namespace = busy_namespace(3)
    yield namespace
    namespace.close()


@pytest.fixture(params=["as it is", "in small portions", "merged"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "in small portions":
        monkeypatch.setattr(_aggregate, "_PORTION_ROWS", 1)
        monkeypatch.setattr(_aggregate, "_PARTIAL_ROWS_MAX", 5)
    if request.param == "merged":
        monkeypatch.setattr(_stored_rows, "MATCHES_MAX", -1)
    return request.param


ASKED: dict[str, Any] = {
    "n": "count",
    "prices": ("count", "price"),
    "tagged": ("count", "tags"),
    "ids": ("count", "id"),
    "spent": ("sum", "price"),
    "graded": ("sum", "grade"),
    "mean price": ("avg", "price"),
    "mean grade": ("avg", "grade"),
    "mean total": ("avg", "total"),
    **{
        f"{end} {name}": (end, name)
        for end in ("min", "max")
        for name in ["label", "price", "stock", "total", "sold", "made", "token", "raw", "id"]
    },
}


def aggregated(documents: list[Document], function: str, name: str) -> Any:
    values = [d[name] for d in documents if name in d]
    if function == "count":
        return len(values)
    if function in ("min", "max"):
        # NaN is neither the least nor the greatest of numbers.
        numbers = [v for v in values if not (isinstance(v, float) and math.isnan(v))]
        return (min if function == "min" else max)(numbers or values, key=_key, default=None)
    if not values:
        return None
    return sum(values) if function == "sum" else sum(map(float, values)) / len(values)


def _key(value: Any) -> Any:
    return value.bytes if isinstance(value, UUID) else value


def row_of(documents: list[Document]) -> dict[str, Any]:
    return {
        name: len(documents) if what == "count" else aggregated(documents, *what)
        for name, what in ASKED.items()
    }


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=1e-12, nan_ok=True), name
        else:
            assert found[name] == value, name
    return True


def plain(table: pa.Table) -> list[dict[str, Any]]:
    table.validate(full=True)
    return [
        {
            n: datetime.fromisoformat(v.isoformat()) if isinstance(v, datetime) else v
            for n, v in row.items()
        }
        for row in table.to_pylist()
    ]


@pytest.mark.parametrize(
    ("where", "test"),
    [
        (None, lambda d: True),
        (("And", []), lambda d: True),
        ("stock < 50", lambda d: d.get("stock", 99) < 50),
        (("price", "Gt", 0.5), lambda d: d.get("price", 0) > 0.5),
    ],
)
def test_one_row_of_everything(
    namespace: Namespace, path: str, where: Any, test: Callable[[Document], bool]
) -> None:
    for lsn in [None, *random.Random(2).sample(sorted(namespace.versions), 2)]:
        documents = [d for d in namespace.documents(lsn).values() if test(d)]
        [row] = plain(namespace.view(lsn).aggregate(ASKED, where=where))
        assert same(row, row_of(documents))


@pytest.mark.parametrize(
    "group_by",
    [
        "label",
        "price",
        "grade",
        "sold",
        "made",
        "token",
        "raw",
        "id",
        ["sold", "label"],
        ("total",),
    ],
)
def test_a_row_for_each_group_in_order(namespace: Namespace, path: str, group_by: Any) -> None:
    names = [group_by] if isinstance(group_by, str) else list(group_by)
    groups: dict[tuple, list[Document]] = {}
    for document in namespace.documents().values():
        key = tuple(comparable(document.get(name)) for name in names)
        groups.setdefault(key, []).append(document)
    found = plain(namespace.view().aggregate(ASKED, group_by=group_by))
    keys = [tuple(comparable(row.pop(name)) for name in names) for row in found]
    assert keys == sorted(
        groups, key=lambda key: [(v is None, v == "NaN", _sortable(v)) for v in key]
    )
    for key, row in zip(keys, found, strict=True):
        assert same(row, row_of(groups[key]))


def _sortable(value: Any) -> Any:
    if value is None or value == "NaN":
        return 0
    return value.encode() if isinstance(value, str) else _key(value)


def test_of_nothing_there_is_a_row_and_there_are_no_groups() -> None:
    namespace = Namespace(schema_of(a="int64", b="float64"))
    asked: dict[str, Any] = {
        "n": "count",
        "known": ("count", "a"),
        "total": ("sum", "a"),
        "mean": ("avg", "a"),
        "most": ("max", "b"),
    }
    nothing = {"n": 0, "known": 0, "total": None, "mean": None, "most": None}
    assert namespace.view().aggregate(asked).to_pylist() == [nothing]
    assert namespace.view().aggregate(asked, where="a > 1").to_pylist() == [nothing]
    grouped = namespace.view().aggregate(asked, group_by="b")
    assert grouped.to_pylist() == []
    assert grouped.schema.names == ["b", *asked]
    namespace.write([{"id": "x"}])
    assert namespace.view().aggregate(asked).to_pylist() == [{**nothing, "n": 1}]
    namespace.close()


def summed(values: list[int], kind: str) -> Any:
    namespace = Namespace(schema_of(v=kind))
    namespace.write({"id": f"{i:05}", "v": value} for i, value in enumerate(values))
    try:
        table = namespace.view().aggregate({"s": ("sum", "v"), "m": ("avg", "v")})
        assert table["s"].type == (pa.uint64() if kind == "uint64" else pa.int64())
        return table["s"][0].as_py(), table["m"][0].as_py()
    finally:
        namespace.close()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int64", [2**63 - 1]),
        ("int64", [-(2**63)]),
        ("int64", [2**63 - 1, 2**63 - 1, -(2**63), -(2**63), 5]),
        ("int64", [-1, -1, -(2**32), 2**32 - 1]),
        ("uint64", [2**64 - 1]),
        ("uint64", [2**63, 2**63 - 1]),
        ("int64", [2**32 - 1] * 3000 + [-1] * 3000),
    ],
)
def test_sums_of_whole_numbers_are_exact(kind: str, values: list[int]) -> None:
    total, mean = summed(values, kind)
    assert total == sum(values)
    assert mean == pytest.approx(sum(values) / len(values), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int64", [2**63 - 1, 1]),
        ("int64", [-(2**63), -1]),
        ("int64", [2**63 - 1] * 1000),
        ("uint64", [2**64 - 1, 1]),
        ("uint64", [2**64 - 1] * 3),
    ],
)
def test_sums_that_do_not_fit_are_refused(kind: str, values: list[int]) -> None:
    with pytest.raises(InvalidInputError, match=f"the sum of attribute 'v' does not fit {kind}"):
        summed(values, kind)


def test_zeros_are_one_group_and_so_are_nans() -> None:
    namespace = Namespace(schema_of(v="float64"))
    values = [0.0, -0.0, math.nan, -math.nan, None, 1.0]
    namespace.write({"id": str(i), "v": value} for i, value in enumerate(values))
    found = namespace.view().aggregate({"n": "count", "s": ("sum", "v")}, group_by="v")
    assert comparable(found.to_pylist()) == [
        {"v": 0.0, "n": 2, "s": 0.0},
        {"v": 1.0, "n": 1, "s": 1.0},
        {"v": "NaN", "n": 2, "s": "NaN"},
        {"v": None, "n": 1, "s": None},
    ]
    namespace.close()


@pytest.mark.parametrize(
    ("aggregates", "group_by", "message"),
    [
        ({}, None, "a dict of names to"),
        (["count"], None, "a dict of names to"),
        ({"n": "sum"}, None, "aggregate n = 'sum': expected"),
        ({"n": ("median", "price")}, None, "aggregate n = ('median', 'price'): expected"),
        ({"n": ("sum", "cost")}, None, "there is no attribute 'cost'"),
        ({"n": ("sum", "label")}, None, "is of type string"),
        ({"n": ("avg", "made")}, None, "is of type datetime"),
        ({"n": ("max", "tags")}, None, "is of type []string"),
        ({"n": ("min", "vector")}, None, "is of type vector[4]"),
        ({"n": "count"}, "vector", "group_by = 'vector'"),
        ({"n": "count"}, ["extra"], "is of type json"),
        ({"n": "count"}, 5, "group_by = 5: expected"),
        ({"label": "count"}, "label", "by which rows are grouped as well"),
        ({5: "count"}, None, "a name for each result"),
    ],
)
def test_what_cannot_be_aggregated_is_refused(
    namespace: Namespace, aggregates: Any, group_by: Any, message: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        namespace.view().aggregate(aggregates, group_by=group_by)
    assert message in str(refused.value)


def test_many_groups_are_put_together_a_few_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_aggregate, "_PORTION_ROWS", 1)
    monkeypatch.setattr(_aggregate, "_PARTIAL_ROWS_MAX", 5)
    seen: list[int] = []
    again = _aggregate.Aggregation._again

    def counted(self: _aggregate.Aggregation, partial: pa.Table) -> pa.Table:
        seen.append(partial.num_rows)
        return again(self, partial)

    monkeypatch.setattr(_aggregate.Aggregation, "_again", counted)
    layout = pa.schema([("_key", pa.binary())])
    rows = [pa.RecordBatch.from_pydict({"_key": [b"%03d" % i]}, layout) for i in range(400)]
    found = _aggregate.Aggregation({"n": "count"}, "id", Schema()).run(rows * 2, layout)
    assert found["n"].to_pylist() == [2] * 400
    assert sum(seen) < 8 * len(rows)
