"""The handle of documents: its schema, what it refuses, what it tells, and what it reads when."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import reef
from reef.database import Database
from reef.documents import Documents
from reef.engine import CreateOnly, Equals, MustExist
from reef.errors import (
    ClosedError,
    ConditionFailedError,
    FencedError,
    IdempotencyError,
    InvalidInputError,
    NotFoundError,
    ReefError,
    UnavailableError,
)
from tests.kernel import database

WHEN = datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=UTC)
KEY = uuid.UUID(int=7)
DOCUMENT = {
    "id": "a",
    "title": "x",
    "n": -1,
    "count": 2**63,
    "price": 0.5,
    "flag": True,
    "when": WHEN,
    "key": KEY,
    "raw": b"\0\xff",
    "tags": ["u", "v"],
    "free": {"a": [1, None, {"b": "é"}]},
    "vector": [1.0, 0.5],
}
TYPES = {
    "title": "string",
    "n": "int64",
    "count": "uint64",
    "price": "float64",
    "flag": "bool",
    "when": "datetime",
    "key": "uuid",
    "raw": "bytes",
    "tags": "[]string",
    "free": "json",
    "vector": "vector[2]",
}


@pytest.fixture
def db() -> Iterator[Database]:
    with database() as db:
        yield db


@pytest.fixture
def ns(db: Database) -> Iterator[Documents]:
    with db.namespace("ns") as ns:
        yield ns


def everything(ns: Documents) -> tuple[dict[str, str], list[dict[str, Any]], int]:
    """Return all that a refused write must leave as it is."""
    rows = [row for batch in ns.scan() for row in batch.to_pylist()]
    return ns.schema, rows, ns.lsn


# The schema.


def test_a_new_namespace_has_no_attributes_and_no_documents(ns: Documents) -> None:
    assert ns.schema == {}
    assert ns.count() == 0
    assert ns.get("a") is None
    assert list(ns.scan()) == []
    assert ns.query().column_names == ["id"]


def test_types_are_inferred_from_the_first_write(ns: Documents) -> None:
    ns.upsert([DOCUMENT])
    assert ns.schema == TYPES
    assert ns.get("a") == DOCUMENT
    ns.flush()
    assert ns.get("a") == DOCUMENT


def test_types_that_are_declared_are_those_of_what_comes(db: Database) -> None:
    with db.namespace("ns", schema={"n": "float64", "v": "vector[2]f16", "when": "datetime"}) as ns:
        ns.upsert([{"id": "a", "n": 1, "v": [1, 2], "when": "2024-05-06T07:08:09.00001Z"}])
        assert ns.get("a") == {"id": "a", "n": 1.0, "v": [1.0, 2.0], "when": WHEN}
    with db.namespace("ns", schema={"n": "float64", "m": "string"}) as ns:
        assert [*ns.schema] == ["n", "v", "when", "m"]
    with db.namespace("ns", mode="r", schema={"m": "string"}) as reader:
        assert [*reader.schema] == ["n", "v", "when", "m"]


@pytest.mark.parametrize("schema", [{"n": "float"}, {"id": "string"}, {"_n": "string"}])
def test_a_declaration_that_cannot_be_makes_no_namespace(db: Database, schema: Any) -> None:
    with pytest.raises(InvalidInputError):
        db.namespace("ns", schema=schema)
    assert [*db.namespaces()] == []


def test_a_declaration_that_disagrees_is_refused(db: Database, ns: Documents) -> None:
    ns.upsert([{"id": "a", "n": 1}])
    with pytest.raises(InvalidInputError, match=r"schema 'n' = 'string'.*int64"):
        db.namespace("ns", schema={"n": "string"})
    with pytest.raises(InvalidInputError, match="mode='w'"):
        db.namespace("ns", mode="r", schema={"new": "string"})
    with db.namespace("ns") as again:
        assert again.schema == {"n": "int64"}


def test_a_declaration_that_disagrees_leaves_the_writer_alone(db: Database, ns: Documents) -> None:
    ns.upsert([{"id": "a", "price": 1.5}])
    with pytest.raises(InvalidInputError, match="price"):
        db.namespace(ns.name, schema={"price": "string"})
    ns.upsert([{"id": "b", "price": 2.5}])  # it was not fenced
    with pytest.raises(InvalidInputError, match="schema"):
        db.namespace(ns.name, schema=["price"])  # type: ignore[arg-type]


def test_attributes_are_added_renamed_and_dropped_without_a_rewrite(
    db: Database, ns: Documents
) -> None:
    ns.upsert([{"id": "a", "x": 1, "y": "one", "gone": 0.5}])
    ns.flush()
    segments = ns.stats()["levels"]
    told = ns.alter(add={"z": "bool"}, rename={"x": "y", "y": "x"}, drop=["gone"])
    assert told == ns.schema == {"y": "int64", "x": "string", "z": "bool"}
    assert ns.get("a") == {"id": "a", "y": 1, "x": "one"}
    assert ns.count(("y", "Eq", 1)) == 1
    ns.upsert([{"id": "b", "y": 2, "x": "two", "z": True}])
    assert ns.stats()["levels"] == segments
    with db.namespace("ns") as again:
        assert again.get_many(["a", "b"]) == [
            {"id": "a", "y": 1, "x": "one"},
            {"id": "b", "y": 2, "x": "two", "z": True},
        ]


def test_what_was_dropped_does_not_come_back_under_its_name(ns: Documents) -> None:
    ns.upsert([{"id": "a", "x": 1}, {"id": "b", "x": 2}])
    ns.alter(drop=["x"])
    ns.upsert([{"id": "b", "x": "text"}])
    assert ns.schema == {"x": "string"}
    assert ns.get_many(["a", "b"]) == [{"id": "a"}, {"id": "b", "x": "text"}]
    ns.flush()
    assert ns.query(where="x is null")["id"].to_pylist() == ["a"]


@pytest.mark.parametrize(
    "change",
    [
        {"add": {"n": "int64"}},
        {"add": {"new": "number"}},
        {"add": {"id": "string"}},
        {"rename": {"n": "m"}},
        {"rename": {"no": "such"}},
        {"drop": ["no"]},
        {"drop": "n"},
        {"add": {"new": "string"}, "drop": ["no"]},
    ],
)
def test_a_change_that_cannot_be_changes_nothing(ns: Documents, change: dict[str, Any]) -> None:
    ns.upsert([{"id": "a", "n": 1, "m": 2}])
    before = everything(ns)
    with pytest.raises(InvalidInputError):
        ns.alter(**change)
    assert everything(ns) == before


# What is refused.


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([{"id": "b", "new": 1}, {"id": "c", "n": "x"}], "row 1, attribute 'n' = 'x'.*int64.*str"),
        ([{"id": "b"}, {"id": "c", "vector": [1.0]}], "row 1, attribute 'vector'.*vector.2.*1 num"),
        ([{"id": "b", "vector": [1, float("nan")]}], "row 0, attribute 'vector'.*finite.*nan"),
        ([{"id": "b", "vector": [1, float("-inf")]}], "row 0, attribute 'vector'.*finite.*inf"),
        ([{"id": "b"}, {"id": ""}], "row 1, attribute 'id' = ''.*1 to 512 bytes.*0 bytes"),
        ([{"id": "b"}, {"id": "é" * 257}], "row 1, attribute 'id'.*512 bytes.*514 bytes"),
        ([{"id": "b"}, {"id": "c\n"}], "row 1, attribute 'id'.*control"),
        ([{"id": "b"}, {"id": 5}], "row 1, attribute 'id' = 5.*got int"),
        ([{"id": "b"}, {"n": 5}], "row 1, attribute 'id'.*no id"),
        ([{"id": "b", "tags": ["u", None]}], "row 0, attribute 'tags'"),
        ([{"id": "b", "n": 2**64}], "row 0, attribute 'n'.*int64"),
        ([{"id": "b", "n": 0.5}], "row 0, attribute 'n' = 0.5.*int64"),
        ([{"id": "b", "_n": 1}], "attribute = '_n'"),
        ({"id": ["b", "c"], "n": [1]}, "'n'"),
        ({"id": "b"}, "in a list"),
        ("b", "list of dicts"),
    ],
)
@pytest.mark.parametrize("kind", ["upsert", "patch"])
def test_one_wrong_value_and_nothing_of_the_batch_is_written(
    ns: Documents, kind: str, documents: Any, message: str
) -> None:
    ns.upsert([{"id": "a", "n": 1, "vector": [1.0, 2.0], "tags": ["u"]}])
    before = everything(ns)
    with pytest.raises(InvalidInputError, match=message):
        getattr(ns, kind)(documents)
    with pytest.raises(InvalidInputError, match=message):
        ns.write(upserts=[{"id": "new", "newer": 1}], patches=documents)
    assert everything(ns) == before


@pytest.mark.parametrize("nothing", [{}, {"upserts": []}, {"patches": {"id": []}}, {"deletes": []}])
def test_nothing_to_write_is_refused(ns: Documents, nothing: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="at least one document"):
        ns.write(**nothing)


def test_of_the_same_id_the_last_counts_or_none_is_accepted(ns: Documents) -> None:
    twice = [{"id": "a", "n": 1, "m": 1}, {"id": "b"}, {"id": "a", "n": 2}]
    with pytest.raises(InvalidInputError, match=r"row 2, attribute 'id' = 'a'.*row 0"):
        ns.upsert(twice, duplicates="error")
    assert ns.schema == {}
    receipt = ns.upsert(twice)
    assert receipt.upserted == 2
    assert ns.get("a") == {"id": "a", "n": 2}
    with pytest.raises(InvalidInputError, match="duplicates"):
        ns.upsert(twice, duplicates="first")  # type: ignore[arg-type]


def test_every_row_has_an_outcome_also_if_its_id_comes_again(ns: Documents) -> None:
    ns.upsert([{"id": "old", "v": 1}])
    rows = [{"id": "new", "v": 1}, {"id": "old", "v": 2}, {"id": "new", "v": 3}]
    with pytest.raises(ConditionFailedError, match="1 of 2 rows") as caught:
        ns.upsert(rows, condition=CreateOnly())
    assert caught.value.outcomes == ("superseded", "exists", "not applied")
    receipt = ns.upsert(rows, condition=CreateOnly(), atomic=False)
    assert receipt.outcomes == ("superseded", "exists", "written")
    assert (receipt.upserted, receipt.skipped) == (1, 1)
    receipt = ns.write(
        upserts=[{"id": "a"}],
        patches=[{"id": "old", "v": 4}, {"id": "none", "v": 5}, {"id": "old", "v": 6}],
        deletes=["q", "new", "q"],
        atomic=False,
    )
    assert receipt.outcomes == (
        "written",
        *("superseded", "missing", "written"),
        *("superseded", "deleted", "deleted"),
    )
    counts = (receipt.upserted, receipt.patched, receipt.deleted, receipt.skipped)
    assert counts == (1, 1, 2, 1)
    assert ns.query().to_pylist() == [{"id": "a", "v": None}, {"id": "old", "v": 6}]


def test_an_id_is_written_once_in_a_request(ns: Documents) -> None:
    ns.upsert([{"id": "a", "n": 1}])
    before = everything(ns)
    for request in (
        {"upserts": [{"id": "a"}], "deletes": ["a"]},
        {"patches": [{"id": "a", "n": 2}], "deletes": ["b", "a"]},
        {"upserts": [{"id": "a"}], "patches": [{"id": "a", "n": 2}]},
    ):
        with pytest.raises(InvalidInputError, match="id = 'a'"):
            ns.write(**request)  # type: ignore[arg-type]
    assert everything(ns) == before


def test_ids_to_delete_are_those_given_and_one_is_not_its_letters(ns: Documents) -> None:
    ns.upsert([{"id": id} for id in ("a", "b", "ab", "c")])
    assert ns.delete("ab").deleted == 1
    assert ns.write(deletes="c").deleted == 1
    assert ns.delete(iter(["never there", "a", "a"])).deleted == 2
    assert ns.query()["id"].to_pylist() == ["b"]
    for wrong in ([5], [None], [""], ["c\n"]):
        with pytest.raises(InvalidInputError, match="row 0, attribute 'id'"):
            ns.delete(wrong)  # type: ignore[arg-type]
    assert ns.count() == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda ns: ns.delete(5),
        lambda ns: ns.alter(drop=None),
        lambda ns: ns.alter(add=["q"]),
        lambda ns: ns.alter(rename=["q"]),
        lambda ns: ns.upsert([{"id": "a"}], atomic="no"),
        lambda ns: ns.upsert([{"id": "a"}], condition=CreateOnly),
        lambda ns: ns.patch_where(("x", "Eq", 1), ["x"]),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(
    ns: Documents, call: Callable[[Documents], object]
) -> None:
    ns.upsert([{"id": "a", "x": 1}])
    before = everything(ns)
    with pytest.raises(InvalidInputError):
        call(ns)
    assert everything(ns) == before


def test_ids_to_delete_may_be_an_arrow_array(ns: Documents) -> None:
    ns.upsert([{"id": "a"}, {"id": "b"}, {"id": "c"}])
    ns.delete(pa.array(["a", "c"]))
    assert [batch["id"].to_pylist() for batch in ns.scan()] == [["b"]]


def test_a_batch_that_is_refused_for_its_size_adds_no_attribute(db: Database) -> None:
    with db.namespace("d", log_segment_max_bytes=4096) as ns:
        ns.upsert([{"id": "a", "x": 1}])
        with pytest.raises(InvalidInputError, match="log_segment_max_bytes"):
            ns.upsert([{"id": "b", "new": "y" * 9000}])
        assert ns.schema == {"x": "int64"}


def test_a_batch_too_large_for_the_log_is_refused(db: Database) -> None:
    with db.namespace("ns", log_segment_max_bytes=4000) as ns:
        for n in range(10):
            ns.upsert([{"id": str(n), "text": "x" * 500, "n": n}])
        before = everything(ns)
        with pytest.raises(InvalidInputError, match="log_segment_max_bytes = 4000"):
            ns.upsert([{"id": "new", "text": "y" * 4000}])
        with pytest.raises(InvalidInputError, match="log_segment_max_bytes = 4000"):
            ns.patch([{"id": str(n), "n": -1} for n in range(10)])  # with the text they have
        with pytest.raises(InvalidInputError, match="narrow the filter"):
            ns.patch_where(("n", "Gte", 0), {"n": -1})
        with pytest.raises(InvalidInputError, match="log_segment_max_bytes = 4000"):
            ns.patch_where(("n", "Lt", 2), {"text": "z" * 4000})
        assert everything(ns) == before
        assert ns.patch_where(("n", "Lt", 2), {"n": -1}).patched == 2
        assert ns.delete_where(("n", "Gte", -1)).deleted == 10


# Patches, conditions, receipts.


def test_a_patch_changes_what_it_names_and_none_deletes(ns: Documents) -> None:
    ns.upsert([DOCUMENT, {"id": "b", "n": 1, "vector": [0.0, 1.0]}])
    receipt = ns.patch([{"id": "a", "n": 5, "title": None}, {"id": "b", "new": "y"}])
    assert (receipt.patched, receipt.upserted, receipt.skipped) == (2, 0, 0)
    wanted = {**DOCUMENT, "n": 5}
    del wanted["title"]
    assert ns.get("a") == wanted
    assert ns.get("b") == {"id": "b", "n": 1, "vector": [0.0, 1.0], "new": "y"}
    ns.flush()
    ns.patch({"id": ["a", "b"], "vector": [None, [2.0, 2.0]]})
    assert ns.get_many(["a", "b"], columns=["vector"]) == [
        {"id": "a"},
        {"id": "b", "vector": [2.0, 2.0]},
    ]


def test_a_patch_needs_its_document(ns: Documents) -> None:
    ns.upsert([{"id": "a", "n": 1}])
    patches = [{"id": "a", "n": 2}, {"id": "b", "n": 2}]
    with pytest.raises(ConditionFailedError, match=r"1 of 2 rows.*a patch needs") as caught:
        ns.patch(patches)
    assert caught.value.outcomes == ("not applied", "missing")
    assert ns.get("a") == {"id": "a", "n": 1}
    receipt = ns.patch(patches, atomic=False)
    assert receipt.outcomes == ("written", "missing")
    assert (receipt.patched, receipt.skipped) == (1, 1)
    assert ns.get_many(["a", "b"]) == [{"id": "a", "n": 2}, None]


def test_a_batch_of_all_kinds_tells_what_became_of_each_row(ns: Documents) -> None:
    ns.upsert([{"id": id, "n": 1} for id in ("a", "b", "c")])
    before = ns.lsn
    receipt = ns.write(
        upserts=[{"id": "new", "n": 0}, {"id": "a", "n": 2}],
        patches=[{"id": "b", "m": 3}, {"id": "no", "m": 3}],
        deletes=["c", "never"],
        atomic=False,
    )
    assert receipt.outcomes == ("written", "written", "written", "missing", "deleted", "deleted")
    counts = (receipt.upserted, receipt.patched, receipt.deleted, receipt.skipped)
    assert counts == (2, 1, 2, 1)
    assert receipt.lsn == ns.lsn > before
    assert receipt.generation == ns.stats()["generation"]
    assert not receipt.replayed
    assert ns.query().to_pylist() == [
        {"id": "a", "n": 2, "m": None},
        {"id": "b", "n": 1, "m": 3},
        {"id": "new", "n": 0, "m": None},
    ]


@pytest.mark.parametrize(
    ("condition", "outcomes"),
    [
        (CreateOnly(), ("exists", "exists", "written")),
        (MustExist(), ("written", "written", "missing")),
        (Equals(n=1), ("written", "differs", "missing")),
        (Equals(m=None), ("written", "written", "missing")),
        (Equals(n=1, m=None), ("written", "differs", "missing")),
        (("n", "Lt", 2), ("written", "differs", "missing")),
        ("n < 2", ("written", "differs", "missing")),
        (("n", "IsNull"), ("differs", "differs", "written")),
        (("n", "Lt", reef.Incoming("n")), ("written", "differs", "missing")),
        (
            ("Or", [("n", "IsNull"), ("n", "Lte", reef.Incoming("n"))]),
            ("written", "written", "written"),
        ),
        (("vector", "IsNull"), ("differs", "written", "written")),
        (("Not", ("vector", "IsNull")), ("written", "differs", "missing")),
        (("id", "Glob", "a*"), ("written", "differs", "missing")),
        (("id", "In", ["c"]), ("differs", "differs", "missing")),
    ],
)
@pytest.mark.parametrize("is_flushed", [False, True])
def test_conditions_hold_for_each_row(
    ns: Documents, condition: Any, outcomes: tuple[str, ...], is_flushed: bool
) -> None:
    ns.upsert([{"id": "a", "n": 1, "vector": [1.0, 2.0]}, {"id": "b", "n": 2}])
    ns.alter(add={"m": "string"})
    if is_flushed:
        ns.flush()
    rows = [{"id": id, "n": 2, "m": "new"} for id in ("a", "b", "c")]
    before = everything(ns)
    if set(outcomes) != {"written"}:
        with pytest.raises(ConditionFailedError) as caught:
            ns.upsert(rows, condition=condition)
        told = tuple("not applied" if code == "written" else code for code in outcomes)
        assert caught.value.outcomes == told
        assert everything(ns) == before
    receipt = ns.upsert(rows, condition=condition, atomic=False)
    assert receipt.outcomes == outcomes
    assert (receipt.upserted, receipt.skipped) == (
        outcomes.count("written"),
        3 - outcomes.count("written"),
    )
    new = [row["id"] for row in rows if (ns.get(row["id"]) or {}).get("m") == "new"]
    assert new == [id for id, code in zip("abc", outcomes, strict=True) if code == "written"]


@pytest.mark.parametrize(
    "condition",
    [5, ("no", "Eq", 1), Equals(no=1), Equals(n="x"), ("n", "Lt", reef.Incoming("no")), CreateOnly],
)
def test_a_condition_that_cannot_be_is_refused(ns: Documents, condition: Any) -> None:
    ns.upsert([{"id": "a", "n": 1}])
    before = everything(ns)
    with pytest.raises(InvalidInputError):
        ns.upsert([{"id": "a", "n": 2, "new": 1}], condition=condition)
    assert everything(ns) == before


def test_all_that_match_are_changed_in_one_step(ns: Documents) -> None:
    ns.upsert([{"id": str(n), "n": n, "vector": [float(n), 0.0]} for n in range(6)])
    ns.flush()
    ns.upsert([{"id": "6", "n": 6}])
    receipt = ns.patch_where("n >= 4", {"n": 0, "seen": True})
    assert (receipt.patched, receipt.outcomes) == (3, ("written",) * 3)
    assert ns.get("5") == {"id": "5", "n": 0, "seen": True, "vector": [5.0, 0.0]}
    assert ns.patch_where("n > 100", {"never": 1}).patched == 0
    deleted = ns.delete_where(("n", "Eq", 0))
    assert (deleted.deleted, deleted.lsn) == (4, ns.lsn)
    assert ns.query()["id"].to_pylist() == ["1", "2", "3"]
    assert ns.at(lsn=deleted.lsn - 1).count() == 7
    nothing = ns.delete_where(("n", "Eq", 0))
    assert (nothing.deleted, nothing.lsn) == (0, deleted.lsn)


@pytest.mark.parametrize("where", [None, 5, "no = 1", ("n", "Gt", reef.Incoming("n"))])
def test_bulk_changes_refuse_what_is_no_filter(ns: Documents, where: Any) -> None:
    ns.upsert([{"id": "a", "n": 1}])
    with pytest.raises(InvalidInputError):
        ns.delete_where(where)
    with pytest.raises(InvalidInputError):
        ns.patch_where(where, {"n": 2})
    for patch in ({}, {"id": "b"}, [{"n": 1}], {"n": "text"}):
        with pytest.raises(InvalidInputError):
            ns.patch_where("n = 1", patch)  # type: ignore[arg-type]
    assert ns.get("a") == {"id": "a", "n": 1}


# The same again.

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
    with pytest.raises(InvalidInputError, match="attribute = 'x'"):
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


# Who reads what.


def test_a_reader_sees_what_it_was_told_of_and_writes_nothing(db: Database, ns: Documents) -> None:
    ns.upsert([{"id": "a", "n": 1}])
    with db.namespace("ns", mode="r", max_staleness="1h") as reader:
        assert (reader.mode, ns.mode) == ("r", "w")
        lsn = ns.upsert([{"id": "a", "n": 2, "new": "x"}]).lsn
        assert reader.get("a", min_lsn=lsn) == {"id": "a", "n": 2, "new": "x"}
        lsn = ns.upsert([{"id": "b", "newer": True}]).lsn
        assert reader.count(min_lsn=lsn) == 2
        assert reader.schema == {"n": "int64", "new": "string", "newer": "bool"}
        lsn = ns.delete(["b"]).lsn
        assert reader.query(min_lsn=lsn)["id"].to_pylist() == ["a"]
        ns.alter(rename={"n": "m"})
        assert reader.refresh() == ns.lsn
        assert reader.get("a", columns=["m"]) == {"id": "a", "m": 2}
        writes: list[Callable[[], object]] = [
            lambda: reader.upsert([{"id": "a"}]),
            lambda: reader.patch([{"id": "a", "n": 1}]),
            lambda: reader.delete(["a"]),
            lambda: reader.delete_where("m = 2"),
            lambda: reader.patch_where("m = 2", {"m": 1}),
            lambda: reader.alter(drop=["m"]),
            lambda: reader.flush(),
        ]
        for write in writes:
            with pytest.raises(InvalidInputError, match="opened for reading"):
                write()
        with pytest.raises(UnavailableError, match="not there yet"):
            reader.get("a", min_lsn=lsn << 20)


def test_the_past_is_read_by_the_schema_of_now(ns: Documents) -> None:
    first = ns.upsert([{"id": "a", "n": 1, "gone": "x"}]).lsn
    second = ns.patch([{"id": "a", "n": 2}]).lsn
    third = ns.delete(["a"]).lsn
    ns.alter(add={"new": "bool"}, rename={"n": "m"}, drop=["gone"])
    for flushes in (False, True):
        if flushes:
            ns.flush()
        assert ns.at(lsn=0).count() == ns.at(lsn=first - 1).count() == 0
        assert ns.at(lsn=first).get("a") == {"id": "a", "m": 1}
        assert ns.at(lsn=third - 1).get("a") == {"id": "a", "m": 2}
        assert ns.at(lsn=second).query().to_pylist() == [{"id": "a", "m": 2, "new": None}]
        assert ns.at(lsn=third).get("a") is None
    assert ns.at(generation=ns.stats()["generation"]).count() == 0
    for wrong in ({}, {"lsn": 1, "generation": 1}, {"lsn": -1}):
        with pytest.raises(InvalidInputError):
            ns.at(**wrong)
    with pytest.raises(UnavailableError):
        ns.at(lsn=ns.lsn + 1)


def test_a_view_and_a_snapshot_stay_as_they_are(db: Database, ns: Documents) -> None:
    ns.upsert([{"id": "a", "n": 1}])
    view = ns.view()
    with ns.snapshot(id="mine") as snapshot:
        ns.patch([{"id": "a", "n": 2}])
        ns.alter(rename={"n": "m"})
        ns.flush()
        for kept in (view, snapshot):
            assert kept.get("a") == {"id": "a", "n": 1}
            assert kept.count("n = 1") == 1
            assert kept.lsn < ns.lsn
        with db.namespace("ns", mode="r") as reader:
            assert reader.at(snapshot="mine").get("a") == {"id": "a", "m": 1}
    assert ns.get("a") == {"id": "a", "m": 2}


def test_pages_go_on_at_the_version_of_the_first(ns: Documents) -> None:
    ns.upsert([{"id": str(n), "n": n % 2} for n in range(7)])
    asked = {"order_by": [("n", "desc")], "limit": 3, "where": "n >= 0"}
    pages = [ns.query(**asked)]
    while b"reef:after" in (pages[-1].schema.metadata or {}):
        ns.upsert([{"id": "1", "n": 100}, {"id": f"new {len(pages)}", "n": 0}])
        ns.delete(["4"])
        pages.append(ns.query(**asked, after=pages[-1]))
    found = pa.concat_tables([page.replace_schema_metadata(None) for page in pages])
    assert found["id"].to_pylist() == ["1", "3", "5", "0", "2", "4", "6"]
    with pytest.raises(InvalidInputError):
        ns.query(limit=3, after=pages[0])


# Its end.


def test_a_closed_handle_does_nothing_any_more(db: Database) -> None:
    ns = db.namespace("ns")
    ns.upsert([{"id": "a", "n": 1}])
    ns.close()
    ns.close()
    assert not ns.is_open
    actions: list[Callable[[], object]] = [
        lambda: ns.upsert([{"id": "a"}]),
        lambda: ns.upsert([{"id": "a", "new": 1}]),
        lambda: ns.alter(drop=["n"]),
        lambda: ns.delete_where("n = 1"),
        lambda: ns.get("a"),
        lambda: ns.count(),
        lambda: list(ns.scan()),
        lambda: ns.query(),
        lambda: ns.aggregate({"n": "count"}),
        lambda: ns.snapshot(),
    ]
    for action in actions:
        with pytest.raises(ClosedError, match="'ns' was closed"):
            action()


def test_a_handle_that_was_taken_over_writes_no_more(db: Database, ns: Documents) -> None:
    ns.upsert([{"id": "a", "n": 1}])
    with db.namespace("ns") as other:
        writes: list[Callable[[], object]] = [
            lambda: ns.upsert([{"id": "a", "n": 2}]),
            lambda: ns.upsert([{"id": "a", "new": 2}]),
            lambda: ns.patch([{"id": "a", "n": 2}]),
            lambda: ns.delete_where("n = 1"),
            lambda: ns.alter(drop=["n"]),
        ]
        for write in writes:
            with pytest.raises(FencedError):
                write()
        assert other.get("a") == {"id": "a", "n": 1}
        assert other.schema == {"n": "int64"}


def test_a_namespace_is_of_one_kind(db: Database, ns: Documents) -> None:
    with pytest.raises(InvalidInputError, match=r"'ns'.*documents"):
        db.kv("ns")
    with db.kv("pairs") as kv:
        kv.put(b"a", b"1")
    for mode in ("r", "w"):
        with pytest.raises(InvalidInputError, match=r"'pairs'.*kv"):
            db.namespace("pairs", mode=mode)
    with pytest.raises(NotFoundError):
        db.namespace("absent", mode="r")
    with pytest.raises(InvalidInputError, match="mode"):
        db.namespace("ns", mode="a")
    assert [*db.namespaces()] == ["ns", "pairs"]


def test_what_was_acknowledged_is_there_for_another_process(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    with reef.connect(url) as db:
        ns = db.namespace("ns")
        ns.upsert([DOCUMENT])
        ns.flush()
        ns.patch([{"id": "a", "n": 5}])
        with reef.connect(url) as other, other.namespace("ns") as again:
            assert again.get("a") == {**DOCUMENT, "n": 5}
            assert again.schema == TYPES
        with pytest.raises(ReefError):
            ns.upsert([{"id": "b"}])


def test_frames_with_uuids_go_out_and_come_back(ns: Documents) -> None:
    one, other = uuid.uuid4(), uuid.uuid4()
    ns.upsert([{"id": "a", "one": one, "several": [one, other]}, {"id": "b"}])
    before = ns.get_many(["a", "b"])
    ns.upsert(ns.to_polars())
    assert ns.get_many(["a", "b"]) == before
    assert ns.to_pandas()["several"][0].tolist() == [one.bytes, other.bytes]
    with pytest.raises(InvalidInputError, match="row 0, attribute 'one'"):
        ns.upsert([{"id": "c", "one": b"short"}])
