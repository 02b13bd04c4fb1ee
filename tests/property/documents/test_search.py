"""Exact search against NumPy over a dict, whatever was written, flushed, patched and deleted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reef.documents.filter import parse_filter
from reef.documents.query import Distance, _search
from reef.documents.query._search import search
from reef.engine import FEW_ROWS_MAX
from tests.support.documents.document_rows import DocumentRows, schema_of

SCHEMA = schema_of(price="int64", v="vector[3]", name="string")
IDS = [f"{i:02d}" for i in range(40)]

# Small whole numbers: sums of their products are exact in float32, and ties are frequent.
numbers = st.integers(-3, 3)
vectors = st.one_of(st.none(), st.tuples(numbers, numbers, numbers).map(list))
documents = st.fixed_dictionaries(
    {
        "price": st.one_of(st.none(), st.integers(0, 5)),
        "v": vectors,
        "name": st.one_of(st.none(), st.sampled_from("abc")),
    }
)
some_ids = st.lists(st.sampled_from(IDS), max_size=12, unique=True)
steps = st.one_of(
    st.tuples(st.just("upsert"), st.dictionaries(st.sampled_from(IDS), documents, max_size=20)),
    st.tuples(st.just("delete"), some_ids),
    st.tuples(st.just("patch price"), some_ids, st.integers(0, 5)),
    st.tuples(st.just("patch v"), some_ids, vectors),
    st.tuples(st.just("flush")),
)
conditions: dict[str, tuple[str | None, Any]] = {
    "all": (None, lambda id, d: True),
    "cheap": ("price <= 2", lambda id, d: d["price"] is not None and d["price"] <= 2),
    "one price": ("price = 4", lambda id, d: d["price"] == 4),
    "not a": ("name <> 'a'", lambda id, d: d["name"] is not None and d["name"] != "a"),
    "ids": (
        "id >= '10' and id < '30' and price is not null",
        lambda id, d: "10" <= id < "30" and d["price"] is not None,
    ),
    "with a vector": ("v is not null or price = 1", lambda id, d: d["v"] is not None),
    "none": ("price > 100", lambda id, d: False),
}


def brute_force(
    model: dict[str, dict[str, Any]], query: list[int], metric: str, holds: Any, limit: int
) -> list[tuple[str, float]]:
    known = [id for id, d in model.items() if d["v"] is not None and holds(id, d)]
    if not known:
        return []
    matrix = np.array([model[id]["v"] for id in known], np.float64)
    asked = np.array(query, np.float64)
    products = matrix @ asked
    if metric == "dot":
        distances = -products
    elif metric == "l2":
        distances = np.sqrt(((matrix - asked) ** 2).sum(axis=1))
    else:
        lengths = np.sqrt((matrix**2).sum(axis=1) * (asked**2).sum())
        distances = 1 - np.divide(products, lengths, out=np.zeros(len(known)), where=lengths > 0)
    ordered = sorted(zip(distances.astype(np.float32).tolist(), known, strict=True))
    return [(id, distance) for distance, id in ordered[:limit]]


@pytest.mark.parametrize("few_rows", [FEW_ROWS_MAX, -1], ids=["few", "many"])
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    history=st.lists(steps, max_size=10),
    query=st.tuples(numbers, numbers, numbers).map(list),
    limit=st.sampled_from([1, 2, 5, 100]),
    spare=st.sampled_from([1, 256]),
)
def test_search_finds_what_brute_force_finds(
    monkeypatch: pytest.MonkeyPatch,
    few_rows: int,
    history: list[tuple[Any, ...]],
    query: list[int],
    limit: int,
    spare: int,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_search, "FEW_ROWS_MAX", few_rows)
        patch.setattr(_search, "_SPARE_ROWS", min(spare, 16))
        patch.setattr(_search, "_OLD_ROWS", spare)
        patch.setattr(_search, "_OLD_SHARE", 1)
        rows = DocumentRows(SCHEMA)
        for step in history:
            apply(rows, step)
        for where, holds in conditions.values():
            for metric in ("cosine", "l2", "dot"):
                expected = brute_force(rows.model, query, metric, holds, limit)
                found = searched(rows, query, metric, where, limit)
                if metric == "cosine":
                    same_but_for_rounding(rows, found, expected, query, holds)
                else:
                    assert found == expected
        rows.db.close()


def apply(rows: DocumentRows, step: tuple[Any, ...]) -> None:
    match step:
        case ("upsert", some):
            rows.upsert(some)
        case ("delete", ids):
            rows.delete(ids)
        case ("patch price", ids, price):
            rows.patch(ids, price=price)
        case ("patch v", ids, vector):
            rows.patch(ids, v=vector)
        case _:
            rows.flush()


def searched(
    rows: DocumentRows, query: list[int], metric: str, where: str | None, limit: int
) -> list[tuple[str, float]]:
    ids, distances = search(
        rows.view(),
        Distance(metric, query, SCHEMA.attribute("v")),
        filter=None if where is None else parse_filter(where, SCHEMA),
        limit=limit,
    )
    return [(id.decode(), d) for id, d in zip(ids.to_pylist(), distances.tolist(), strict=True)]


def same_but_for_rounding(
    rows: DocumentRows,
    found: list[tuple[str, float]],
    expected: list[tuple[str, float]],
    query: list[int],
    holds: Any,
) -> None:
    """Cosines of different vectors that are equal in truth may differ in the last digit."""
    truth = dict(brute_force(rows.model, query, "cosine", holds, len(IDS)))
    assert len(found) == len(expected) == len({id for id, _ in found})
    for (id, distance), (_, nth) in zip(found, expected, strict=True):
        assert math.isclose(distance, truth[id], abs_tol=1e-6)
        assert math.isclose(distance, nth, abs_tol=1e-6)
    assert found == sorted(found, key=lambda one: (one[1], one[0]))
