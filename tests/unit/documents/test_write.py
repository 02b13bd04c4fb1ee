"""Writing documents: what is refused, and what becomes of each row, also by patches and conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import reef
from reef.database import Database
from reef.documents import Documents
from reef.documents.filter._filter import Filter
from reef.engine import CreateOnly, Equals, MustExist
from reef.errors import ConditionFailedError, InvalidInputError
from tests.support.documents.sample_document import DOCUMENT, everything

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
    with pytest.raises(InvalidInputError, match="nothing to write"):
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
        with pytest.raises(InvalidInputError, match="id 'a' appears"):
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


def test_what_a_patch_makes_of_all_that_match_is_counted_before_it_is_made(db: Database) -> None:
    with db.namespace("ns", log_segment_max_bytes=4000) as ns:
        for n in range(10):
            ns.upsert([{"id": str(n), "text": "x" * 500, "raw": b"", "n": n}])
        for patch in (
            {"raw": b"y" * 1500},
            {"raw": b"y", "text": "z" * 1500},
            {"text": "z" * 1500},
        ):
            with pytest.raises(InvalidInputError, match="narrow the filter"):
                ns.patch_where(("n", "Lt", 3), patch)
        assert ns.patch_where(("n", "Gte", 0), {"text": "short"}).patched == 10  # not what it was
        assert ns.count("text = 'short'") == 10


def test_a_condition_is_put_into_words_only_when_it_does_not_hold(
    ns: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    ns.upsert([{"id": "a", "n": 1}])

    def shown(filter: Filter) -> str:
        raise AssertionError("it may be of many values")

    monkeypatch.setattr(Filter, "__repr__", shown)
    ns.upsert([{"id": "a", "n": 2}], condition=("n", "In", [1, 2]))
    with pytest.raises(AssertionError):
        ns.upsert([{"id": "a", "n": 2}], condition=("n", "In", [3, 4]))
