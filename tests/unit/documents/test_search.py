"""Exact search: order, ties, filters, versions, odd numbers, and what it reads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from reef.documents.filter._filter import parse_filter
from reef.documents.query import _search
from reef.documents.query._distance import METRICS, Distance
from reef.documents.query._search import search, vector_attribute
from reef.errors import InvalidInputError
from tests.support.documents.document_rows import DocumentRows, schema_of

SCHEMA = schema_of(v="vector[2]", price="int64", half="vector[2]f16", name="string")


def found(
    rows: DocumentRows,
    vector: object,
    metric: str = "l2",
    where: Any = None,
    limit: int = 10,
    column: str = "v",
) -> list[tuple[str, float]]:
    ids, distances = search(
        rows.view(),
        Distance(metric, vector, vector_attribute(rows.schema, column)),
        filter=None if where is None else parse_filter(where, rows.schema),
        limit=limit,
    )
    assert distances.dtype == np.float32
    return [(id.decode(), d) for id, d in zip(ids.to_pylist(), distances.tolist(), strict=True)]


def ids(some: list[tuple[str, float]]) -> list[str]:
    return [id for id, _ in some]


@pytest.fixture
def rows() -> DocumentRows:
    return DocumentRows(SCHEMA)


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("l2", [("near", 1.0), ("far", 5.0), ("zero", 5.0)]),
        ("dot", [("far", -50.0), ("near", -32.0), ("zero", 0.0)]),
        ("cosine", [("far", 0.0), ("near", 1 - 32 / (5 * math.sqrt(41))), ("zero", 1.0)]),
    ],
)
def test_each_metric_in_numbers(
    rows: DocumentRows, metric: str, expected: list[tuple[str, float]], is_flushed: bool
) -> None:
    rows.upsert({"near": {"v": [4, 5]}, "far": {"v": [6, 8]}, "zero": {"v": [0, 0]}, "none": {}})
    if is_flushed:
        rows.flush()
    got = found(rows, [3, 4], metric)
    expected = [(id, d if metric != "l2" or id != "near" else math.sqrt(2)) for id, d in expected]
    assert ids(got) == ids(expected)
    assert [d for _, d in got] == pytest.approx([d for _, d in expected], abs=1e-6)


def test_the_vector_searched_for_may_be_zero(rows: DocumentRows) -> None:
    rows.upsert({"a": {"v": [1, 0]}, "b": {"v": [0, 0]}})
    assert found(rows, [0, 0], "cosine") == [("a", 1.0), ("b", 1.0)]
    assert found(rows, [0, 0], "dot") == [("a", 0.0), ("b", 0.0)]
    assert found(rows, [0, 0], "l2") == [("b", 0.0), ("a", 1.0)]
    assert all(math.copysign(1, d) == 1 for _, d in found(rows, [0, 0], "dot"))


def test_ties_go_by_id_wherever_they_lie(rows: DocumentRows) -> None:
    every = [f"{i:04d}" for i in range(3000)]
    for third in range(3):  # two segments, and the rest in memory
        rows.upsert({id: {"v": [0.1, 0.7]} for id in reversed(every[third::3])})
        if third < 2:
            rows.flush()
    for metric in METRICS:
        assert ids(found(rows, [0.3, 0.3], metric, limit=7)) == every[:7]
        assert len({d for _, d in found(rows, [0.3, 0.3], metric, limit=3000)}) == 1


def test_old_versions_and_deleted_documents_are_not_found(rows: DocumentRows) -> None:
    rows.upsert({f"{i:04d}": {"v": [i, 0], "price": i} for i in range(1000)})
    rows.flush()
    rows.upsert({f"{i:04d}": {"v": [5000 + i, 0], "price": i} for i in range(900)})
    rows.flush()
    rows.delete(f"{i:04d}" for i in range(900, 950))
    rows.patch([f"{i:04d}" for i in range(950, 960)], v=None)
    assert ids(found(rows, [0, 0], limit=3)) == ["0960", "0961", "0962"]
    assert ids(found(rows, [0, 0], limit=3, where=("price", "Lt", 965))) == ["0960", "0961", "0962"]
    assert ids(found(rows, [0, 0], limit=2, where=("price", "Lt", 10))) == ["0000", "0001"]
    assert len(found(rows, [0, 0], limit=5000)) == 940


def test_a_search_starts_over_if_what_it_kept_was_old(
    rows: DocumentRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_search, "_GROWTH", 2)
    for version in range(8):
        # Further away each time: seven old versions of each are nearer than the newest.
        rows.upsert({f"{i:03d}": {"v": [version, i]} for i in range(400)})
        rows.flush()
    assert ids(found(rows, [0, 0], limit=5)) == ["000", "001", "002", "003", "004"]
    assert [d for _, d in found(rows, [0, 0], limit=1)] == [7.0]


def test_versions_of_a_document_that_fill_several_blocks_of_a_segment() -> None:
    rows = DocumentRows(schema_of(v="vector[2048]"))
    for version in range(400):
        rows.upsert({"a": {"v": np.full(2048, version, np.float32)}})
    rows.upsert({"b": {"v": np.full(2048, 500, np.float32)}})
    rows.flush()
    (segment,) = rows.writer.manifest.segments
    assert segment.rows == 401
    assert ids(found(rows, np.zeros(2048), limit=3)) == ["a", "b"]
    assert ids(found(rows, np.zeros(2048), limit=3, where="id < 'z' and v is not null")) == [
        "a",
        "b",
    ]


def test_an_earlier_version_is_searched_as_it_was(rows: DocumentRows) -> None:
    rows.upsert({"a": {"v": [1, 0]}, "b": {"v": [2, 0]}})
    rows.flush()
    before = rows.view()
    rows.upsert({"a": {"v": [9, 0]}})
    rows.delete(["b"])
    rows.flush()
    distance = Distance("l2", [0, 0], SCHEMA.attribute("v"))
    got, distances = search(before, distance, filter=None, limit=10)
    assert got.to_pylist() == [b"a", b"b"]
    assert distances.tolist() == [1.0, 2.0]
    assert found(rows, [0, 0]) == [("a", 9.0)]


def test_rows_from_before_the_vector_was_added_have_none() -> None:
    rows = DocumentRows(schema_of(price="int64"))
    rows.upsert({f"{i}": {"price": i} for i in range(5)})
    rows.flush()
    rows.alter(rows.schema.added({"v": SCHEMA.attribute("v").type}))
    assert found(rows, [0, 0]) == []
    rows.upsert({"3": {"v": [1, 0], "price": 3}})
    assert found(rows, [0, 0]) == [("3", 1.0)]
    assert found(rows, [0, 0], where=("price", "Gte", 0)) == [("3", 1.0)]
    rows.flush()
    assert found(rows, [0, 0], where=("price", "Gte", 0)) == [("3", 1.0)]


def test_half_precision(rows: DocumentRows) -> None:
    rows.upsert({"a": {"half": np.array([1, 2], np.float16)}, "b": {"half": [60000, 60000]}})
    rows.flush()
    assert found(rows, [1, 2], "l2", column="half")[0] == ("a", 0.0)
    assert found(rows, [1, 1], "dot", column="half") == [("b", -120000.0), ("a", -3.0)]


def test_numbers_at_the_edge_of_float32(rows: DocumentRows) -> None:
    rows.upsert(
        {
            "huge": {"v": [3e38, 3e38]},
            "tiny": {"v": [1e-38, 0]},
            "against": {"v": [-3e38, 3e38]},
            "one": {"v": [1, 0]},
        }
    )
    cosine = dict(found(rows, [1e-30, 1e-30], "cosine"))
    assert cosine["huge"] == pytest.approx(0, abs=1e-6)
    assert cosine["tiny"] == pytest.approx(1 - math.sqrt(0.5), abs=1e-6)
    assert cosine["against"] == pytest.approx(1, abs=1e-6)
    l2 = dict(found(rows, [1e-38, 1e-38], "l2"))
    assert l2["tiny"] == pytest.approx(1e-38, rel=1e-3)
    assert ids(found(rows, [1e-38, 1e-38], "l2"))[:2] == ["tiny", "one"]
    assert dict(found(rows, [3e38, 3e38], "l2"))["huge"] == 0.0
    dot = found(rows, [3e38, 3e38], "dot")
    assert dot[0] == ("huge", -math.inf)
    assert dict(dot)["against"] == 0.0
    assert len(dot) == 4


def test_filters_on_ids_and_values(rows: DocumentRows) -> None:
    rows.upsert(
        {f"{i:04d}": {"v": [i, 0], "price": i % 7, "name": f"n{i % 3}"} for i in range(2000)}
    )
    rows.flush()
    rows.patch([f"{i:04d}" for i in range(0, 2000, 2)], price=100)
    odd = [f"{i:04d}" for i in range(1, 2000, 2) if i % 7 == 3]
    assert ids(found(rows, [0, 0], where="price = 3", limit=50)) == odd[:50]
    assert ids(found(rows, [0, 0], where="price = 3 and id >= '1000'", limit=2)) == ["1011", "1025"]
    assert ids(found(rows, [0, 0], where="id in ('0100', '1999', 'zz')")) == ["0100", "1999"]
    assert found(rows, [0, 0], where="price = 99") == []
    assert found(rows, [0, 0], where=("id", "In", [])) == []
    assert ids(found(rows, [0, 0], where="v is null")) == []
    assert ids(found(rows, [0, 0], where="v is not null", limit=1)) == ["0000"]


def test_what_a_filter_rules_out_is_not_read() -> None:
    schema = schema_of(v="vector[64]", n="int64")
    rows = DocumentRows(schema)
    rng = np.random.default_rng(1)
    for first in range(0, 40_000, 10_000):
        numbers = range(first, first + 10_000)
        vectors = rng.standard_normal((10_000, 64), dtype=np.float32)
        rows.upsert({f"{i:06d}": {"v": vectors[i - first], "n": i} for i in numbers})
    rows.flush()

    def read(where: str | None) -> float:
        fresh = rows.elsewhere()
        before = fresh.bytes_read()
        found(fresh, np.ones(64), "cosine", where)
        return fresh.bytes_read() - before

    everything = read(None)
    assert everything > 40_000 * 64 * 4
    assert read("n between 21000 and 25000") < everything / 2
    assert read("n = 12345") < everything / 8
    assert read("id = '012345'") < everything / 8
    assert read("n < 0") < everything / 100  # the index


@pytest.mark.parametrize(
    ("vector", "says"),
    [
        ([1, 2, 3], "3 numbers"),
        ([[1, 2]], "1 x 2 numbers"),
        (1.0, "one number"),
        ([1, math.nan], "nan at position 1"),
        ([math.inf, 1], "inf at position 0"),
        ([1e39, 1], "1e+39 at position 0"),
        (["1", "2"], "type <U1"),
        ("12", "'12'"),
        (None, "type object"),
        ([[1], [1, 2]], "different lengths"),
        ([True, False], "type bool"),
    ],
)
def test_vectors_that_cannot_be_are_refused(rows: DocumentRows, vector: object, says: str) -> None:
    with pytest.raises(InvalidInputError, match="2 finite numbers, as in attribute 'v'") as error:
        found(rows, vector)
    assert says in str(error.value)


def test_other_arguments_that_cannot_be_are_refused(rows: DocumentRows) -> None:
    with pytest.raises(InvalidInputError, match="one of cosine, l2, dot"):
        found(rows, [1, 2], "euclid")
    with pytest.raises(InvalidInputError, match="that holds vectors, which are: v, half"):
        found(rows, [1, 2], column="price")
    with pytest.raises(InvalidInputError, match="limit"):
        found(rows, [1, 2], limit=-1)
    with pytest.raises(InvalidInputError, match="limit"):
        found(rows, [1, 2], limit=True)
    assert found(rows, [1, 2], limit=0) == []


def test_a_distance_depends_on_the_vectors_alone() -> None:
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((3000, 100), dtype=np.float32)
    column = schema_of(v="vector[100]").attribute("v")
    for metric in METRICS:
        distance = Distance(metric, rng.standard_normal(100), column)
        whole = distance.of(vectors)
        alone = np.concatenate([distance.of(vectors[i : i + 1]) for i in range(0, 3000, 7)])
        assert (whole[::7] == alone).all()
        assert (distance.of(vectors[13:]) == whole[13:]).all()
