"""The handle of documents: its schema, what it reads when, and its end."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import reef
from reef.database import Database
from reef.documents import Documents
from reef.errors import (
    ClosedError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    ReefError,
    UnavailableError,
)
from tests.support.documents.sample_document import DOCUMENT, TYPES, WHEN, everything

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
    with pytest.raises(InvalidInputError, match=r"attribute 'n' the type string, but it is int64"):
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


def test_a_reader_shows_the_past_under_the_schema_of_now(db: Database, ns: Documents) -> None:
    lsn = ns.upsert([{"id": "a", "n": 1, "gone": "x"}]).lsn
    with db.namespace("ns", mode="r", max_staleness=0) as reader:
        ns.alter(rename={"n": "m"}, drop=["gone"])
        assert reader.at(lsn=lsn).get("a") == {"id": "a", "m": 1}
        ns.alter(drop=["m"])
        assert reader.schema == {}


@pytest.mark.parametrize("flushes", ["", "w", "1", "2", "w12"])
def test_a_branch_has_the_schema_of_now_whatever_its_version_and_what_was_folded(
    db: Database, ns: Documents, flushes: str
) -> None:
    def flush_if(step: str) -> None:
        if step in flushes:
            ns.flush()

    lsn = ns.upsert([{"id": "a", "n": 1, "s": "v", "gone": 5}]).lsn
    flush_if("w")
    ns.alter(rename={"s": "title"}, drop=["gone"])
    flush_if("1")
    ns.alter(drop=["n"])
    flush_if("2")
    ns.branch("b", lsn=lsn)
    with db.namespace("ns", branch="b") as branch:
        assert (branch.schema, branch.get("a")) == ({"title": "string"}, {"id": "a", "title": "v"})
        assert ns.at(lsn=lsn).get("a") == branch.get("a")
        branch.upsert([{"id": "b", "gone": "another"}])
        branch.flush()
        assert branch.get("a") == {"id": "a", "title": "v"}
        assert branch.query(columns=["gone"])["gone"].to_pylist() == [None, "another"]


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
            with pytest.raises(InvalidInputError, match="this handle is read-only"):
                write()
        with pytest.raises(UnavailableError, match="not exist yet"):
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
        lambda: ns.changes(),
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
    assert ns.to_pandas()["several"].tolist() == [[one, other], None]
    with pytest.raises(InvalidInputError, match="row 0, attribute 'one'"):
        ns.upsert([{"id": "c", "one": b"short"}])


READS: dict[str, Callable[[Documents], Any]] = {
    "table": lambda ns: ns.query(),
    "batch": lambda ns: next(ns.scan()),
    "reader": lambda ns: ns.query().to_reader(),
    "pandas": lambda ns: ns.to_pandas(),
    "polars": lambda ns: ns.to_polars(),
}


@pytest.mark.parametrize("read", READS)
def test_what_was_read_is_written_back_as_it_was(db: Database, ns: Documents, read: str) -> None:
    several = [uuid.uuid4(), uuid.uuid4()]
    rows = [
        {"id": "a", "meta": {"k": [1, 2]}, "several": several},
        {"id": "b", "meta": [1, {}], "several": several},
        {"id": "c", "meta": '{"only": "text"}'},
        {"id": "d"},
    ]
    ns.upsert(rows)
    ns.alter(add={"nothing": "json"})
    ns.upsert(READS[read](ns))
    assert ns.get_many(list("abcd")) == rows
    if read != "polars":  # it knows of no more than Arrow's types
        with db.namespace("other") as other:
            other.upsert(READS[read](ns))
            assert other.get_many(list("abcd")) == rows
            assert other.schema == {"meta": "json", "several": "[]uuid"}


def test_a_column_that_was_made_anew_has_the_type_of_its_values(ns: Documents) -> None:
    ns.upsert([{"id": "a", "meta": {"k": 1}, "n": 1}])
    table = ns.query()
    field = table.schema.field("meta").with_type(pa.int64()).with_name("count")
    table = table.set_column(1, field, pa.array([5]))
    ns.upsert(table)
    assert ns.schema["count"] == "int64"


def test_a_page_is_followed_by_one_of_the_same_namespace_only(db: Database, ns: Documents) -> None:
    rows = [{"id": f"{i}", "n": i} for i in range(6)]
    ns.upsert(rows)
    ns.branch("b")
    with db.namespace("other") as other, db.namespace("ns", branch="b") as branch:
        other.upsert(rows)
        page = ns.query(limit=2)
        for stranger in (other, branch, other.view(), branch.view()):
            with pytest.raises(InvalidInputError, match="belongs to namespace 'ns', and this is"):
                stranger.query(limit=2, after=page)
    ns.drop_branch("b")
    ns.close()
    assert db.namespace("ns").query(limit=2, after=page)["id"].to_pylist() == ["2", "3"]
    db.drop("ns")
    with db.namespace("ns") as again:
        again.upsert(rows)
        with pytest.raises(InvalidInputError, match="'ns', which was dropped"):
            again.query(limit=2, after=page)
