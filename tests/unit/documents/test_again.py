"""The same request for documents again: it gets the first receipt and writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from reef.database import Database
from reef.documents import Documents
from reef.documents.types._schema import Schema
from reef.documents.types._type import Type
from reef.engine import CreateOnly
from reef.errors import ClosedError, IdempotencyError, InvalidInputError
from tests.support.documents.sample_document import everything

REQUESTS: dict[str, Callable[[Documents], Any]] = {
    "upsert": lambda ns: ns.upsert([{"id": "a", "x": 1}], idempotency_key="k"),
    "nulls": lambda ns: ns.upsert([{"id": "a", "x": None}], idempotency_key="k"),
    "patch": lambda ns: ns.patch([{"id": "p", "x": 1}], idempotency_key="k"),
    "delete": lambda ns: ns.delete(["p"], idempotency_key="k"),
    "refused": lambda ns: ns.upsert(
        [{"id": "p"}, {"id": "q"}], condition=CreateOnly(), atomic=False, idempotency_key="k"
    ),
    "twice": lambda ns: ns.upsert([{"id": "a", "x": 1}, {"id": "a"}], idempotency_key="k"),
    "patch_where": lambda ns: ns.patch_where("id = 'p'", {"x": 2}, idempotency_key="k"),
    "delete_where": lambda ns: ns.delete_where("id = 'p'", idempotency_key="k"),
    "none match": lambda ns: ns.delete_where("id = 'z'", idempotency_key="k"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_same_key_again_returns_the_first_receipt(db: Database, name: str) -> None:
    with db.namespace("ns") as ns:
        ns.upsert([{"id": "p", "y": "kept"}])
        first = REQUESTS[name](ns)
        assert not first.replayed
        ns.upsert([{"id": "a", "y": "later"}, {"id": "p", "y": "later"}])
        before = everything(ns)
        again = REQUESTS[name](ns)
        assert again == first
        assert again.replayed
        with pytest.raises(IdempotencyError):
            ns.upsert([{"id": "another"}], idempotency_key="k")
        assert everything(ns) == before
    with db.namespace("ns") as ns:
        again = REQUESTS[name](ns)
        assert (again.replayed, again.lsn, again.outcomes) == (True, first.lsn, first.outcomes)
        assert everything(ns) == before


SCHEMA_CHANGES: dict[str, Callable[[Documents], Any]] = {
    "added": lambda ns: ns.upsert([{"id": "z", "x": 1}]),
    "renamed": lambda ns: ns.alter(rename={"x": "z"}),
    "dropped": lambda ns: ns.alter(drop=["x"]),
}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("nulls", "added"),
        ("upsert", "renamed"),
        ("upsert", "dropped"),
        ("patch_where", "renamed"),
        ("patch_where", "dropped"),
    ],
)
def test_the_same_key_again_under_another_schema_returns_the_first_receipt(
    ns: Documents, name: str, change: str
) -> None:
    ns.upsert([{"id": "p"}])
    first = REQUESTS[name](ns)
    SCHEMA_CHANGES[change](ns)
    before = everything(ns)
    assert REQUESTS[name](ns).lsn == first.lsn
    assert everything(ns) == before


@pytest.mark.parametrize("blank", [None, []])
@pytest.mark.parametrize("known", [True, False])
def test_a_patch_that_names_an_attribute_is_another_request_than_one_that_does_not(
    ns: Documents, known: bool, blank: object
) -> None:
    ns.upsert([{"id": "p", "n": 1}, {"id": "q", "n": 1, **({"x": ["kept"]} if known else {})}])
    rows = [{"id": "p", "n": 2}, {"id": "q", "n": 2}]
    named = [rows[0], {**rows[1], "x": blank}]
    ns.patch(rows, idempotency_key="without")
    ns.patch(named, idempotency_key="with")
    before = everything(ns)
    others = [named, [{**row, "x": blank} for row in rows], [rows[0], {**rows[1], "y": None}]]
    for other in others:
        with pytest.raises(IdempotencyError):
            ns.patch(other, idempotency_key="without")
    for other in (rows, others[1], [rows[0], {**rows[1], "x": None if blank == [] else []}]):
        with pytest.raises(IdempotencyError):
            ns.patch(other, idempotency_key="with")
    assert everything(ns) == before
    if not known:
        ns.alter(add={"x": "[]string"})
    assert ns.patch(named, idempotency_key="with").replayed
    assert ns.patch(rows, idempotency_key="without").replayed


@pytest.mark.parametrize("column", [[[]], [()], [np.array([], object)], pa.array([[]])])
def test_an_empty_list_is_told_from_nothing_before_and_after_it_has_a_type(
    ns: Documents, column: Any
) -> None:
    ns.upsert({"id": ["a"], "x": column}, idempotency_key="k")
    for change in ({}, {"x": "[]string"}):
        ns.alter(add=change)
        assert ns.upsert({"id": ["a"], "x": column}, idempotency_key="k").replayed
        for other in ([{"id": "a", "x": None}], [{"id": "a"}]):
            with pytest.raises(IdempotencyError):
                ns.upsert(other, idempotency_key="k")


@pytest.mark.parametrize(
    "request_again",
    [
        lambda ns: ns.upsert([{"id": "p"}], condition="x = 1", idempotency_key="k"),
        lambda ns: ns.patch_where("x = 1", {"y": 2}, idempotency_key="k"),
        lambda ns: ns.delete_where("x = 1", idempotency_key="k"),
    ],
)
def test_the_same_key_again_with_a_filter_that_means_something_else_writes_nothing(
    ns: Documents, request_again: Callable[[Documents], Any]
) -> None:
    ns.upsert([{"id": "p", "x": 1, "y": 1}])
    request_again(ns)
    ns.alter(add={"z": "int64"})
    assert request_again(ns).replayed
    ns.alter(rename={"x": "old"})
    before = everything(ns)
    with pytest.raises(InvalidInputError, match="no attribute 'x'"):
        request_again(ns)
    assert everything(ns) == before
    ns.upsert([{"id": "q", "x": 1}])
    before = everything(ns)
    with pytest.raises(IdempotencyError):
        request_again(ns)
    assert everything(ns) == before


def test_numbered_requests_of_a_source_are_taken_once(ns: Documents) -> None:
    first = ns.write(upserts=[{"id": "a", "n": 1}], source="s", sequence=7)
    again = ns.write(upserts=[{"id": "a", "n": 2}], source="s", sequence=7)
    assert (again.replayed, again.lsn) == (True, first.lsn)
    again = ns.write(upserts=[{"id": "a"}, {"id": "a"}], source="s", sequence=7)
    assert (again.replayed, again.outcomes) == (True, ())
    assert not ns.write(upserts=[{"id": "a", "n": 3}], source="s", sequence=8).replayed
    assert ns.get("a") == {"id": "a", "n": 3}
    with pytest.raises(InvalidInputError, match="source"):
        ns.write(upserts=[{"id": "a"}], source="s")


@pytest.mark.parametrize("key", [None, "k"])
def test_a_number_that_was_reached_changes_no_schema(ns: Documents, key: str | None) -> None:
    def first() -> Any:
        rows = [{"id": "a", "n": 1}]
        return ns.write(upserts=rows, source="s", sequence=7, idempotency_key=key)

    lsn = first().lsn
    ns.alter(drop=["n"])
    assert (first().lsn, ns.schema) == (lsn, {})
    rows = [{"id": "b", "other": {"x": 1}}]
    assert ns.write(upserts=rows, source="s", sequence=6, idempotency_key="new").lsn == lsn
    schema = Schema.EMPTY.added({"n": Type.parse("int64")})
    again = ns.attach([], base=Schema.EMPTY, schema=schema, source="s", sequence=5)
    assert (again.replayed, again.lsn) == (True, lsn)
    assert (ns.schema, ns.count()) == ({}, 1)


def test_a_number_that_was_reached_is_known_whatever_comes_with_it(ns: Documents) -> None:
    lsn = ns.write(upserts=[{"id": "a", "n": 1}], source="s", sequence=7).lsn
    ns.alter(drop=["n"])
    ns.alter(add={"n": "string"})
    again = ns.write(upserts=[{"id": "a", "n": 1}], source="s", sequence=7)
    assert (again.replayed, again.lsn, again.upserted, again.outcomes) == (True, lsn, 0, ())
    with pytest.raises(InvalidInputError, match="expected string"):
        ns.write(upserts=[{"id": "a", "n": 1}], source="s", sequence=8)
    ns.close()
    with pytest.raises(ClosedError):
        ns.write(upserts=[{"id": "a", "n": 1}], source="s", sequence=7)
