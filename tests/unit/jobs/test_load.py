"""Bulk load: the same rows and refusals as upserts, in one commit, once, in bounded memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from reef.database import Database
from reef.documents.types import Schema
from reef.engine import Context
from reef.errors import (
    FencedError,
    IdempotencyError,
    InvalidInputError,
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
    StalePlanError,
)
from reef.format import LogKind, decode_log
from reef.jobs import InProcess
from reef.jobs.load import (
    LoadedPart,
    LoadPlan,
    abandon_load,
    bulk_load,
    commit_load,
    find_load,
    schema_for,
    write_part,
)
from reef.jobs.load._segment_rows import stored_rows
from reef.segment import SortedRuns, UniqueKeys
from reef.store import Store
from reef.testing import Fault, FaultyStore
from tests.support.engine.collecting import World
from tests.support.engine.open_database import database
from tests.support.jobs.dying_tasks import Killed, Mortal
from tests.support.jobs.loads import begin_load
from tests.support.jobs.passes import index

T = TypeVar("T", bound=msgspec.Struct)

WAL = "namespaces/ns/wal/"


def table(count: int, *, seed: int = 1, shuffled: bool = True) -> pa.Table:
    rng = random.Random(seed)
    numbers = list(range(count))
    if shuffled:
        rng.shuffle(numbers)
    return pa.table(
        {
            "id": [f"doc-{n:06d}" for n in numbers],
            "price": pa.array([n / 2 for n in numbers], pa.float32()),
            "title": pa.array([None if n % 7 == 0 else f"title {n}" for n in numbers], pa.string()),
            "vector": pa.array([[n, 1.0] for n in numbers], pa.list_(pa.float64())),
            "tags": pa.array([["a"] * (n % 3) for n in numbers], pa.list_(pa.string())),
        }
    )


def documents(db: Database, name: str = "ns") -> list[dict[str, object]]:
    with db.namespace(name, mode="r") as ns:
        return [row for batch in ns.scan() for row in batch.to_pylist()]


def intents(db: Database) -> int:
    head = db.context().chain("ns").load()
    return 0 if head is None else len(head.manifest.intents)


def kinds(store: Store) -> list[LogKind]:
    return [decode_log(store.get(meta.key)).kind for meta in store.list(WAL)]


def crossed(value: T) -> T:
    """Return what arrives in another process."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value))


def part_of(context: Context, plan: LoadPlan, **columns: list[Any]) -> LoadedPart:
    """Return a part of a load that has the rows of these columns."""
    return write_part(context, plan, [plan.stored(pa.table(columns))])


def test_a_load_gives_what_upserts_give(store: Store) -> None:
    db = database(store)
    rows = table(5000)
    with db.namespace("plain") as plain:
        plain.upsert(rows)
    result = bulk_load(db, "ns", rows, job_key="j", target_bytes=20_000, budget_bytes=200_000)
    assert documents(db) == documents(db, "plain")
    with db.namespace("ns", mode="r") as ns, db.namespace("plain", mode="r") as plain:
        assert ns.schema == plain.schema
        assert ns.lsn == result.lsn
        assert ns.get("doc-000003") == plain.get("doc-000003")
        where = ["price", "Lt", 20.0]
        assert ns.count(where) == plain.count(where) == 40
        found = ns.query(vector=[3.0, 1.0], limit=5)
        assert (
            found.column("id").to_pylist()
            == plain.query(vector=[3.0, 1.0], limit=5).column("id").to_pylist()
        )
    assert result.rows == 5000
    assert result.segments > 5
    assert kinds(store)[-2:] == [LogKind.SCHEMA, LogKind.ATTACH]
    assert intents(db) == 0


def test_what_is_there_is_replaced_and_what_comes_after_replaces_the_load(store: Store) -> None:
    db = database(store)
    with db.namespace("ns") as ns:
        ns.upsert([{"id": "doc-000001", "price": -1.0, "old": "x"}, {"id": "zz", "price": 9.0}])
        before = ns.lsn
    bulk_load(db, "ns", table(3), job_key="j")
    with db.namespace("ns") as ns:
        found = ns.get("doc-000001", columns=["price", "old"])
        assert found is not None
        assert (found["price"], found.get("old")) == (0.5, None)
        ns.patch([{"id": "doc-000001", "title": "patched"}])
        assert ns.get("doc-000001", columns=["price", "title"]) == {
            "id": "doc-000001",
            "price": 0.5,
            "title": "patched",
        }
        assert ns.at(lsn=before).get("doc-000001", columns=["price"]) == {
            "id": "doc-000001",
            "price": -1.0,
        }
        assert ns.count() == 4


def test_a_job_key_loads_once_and_a_retry_does_not_even_read(store: Store) -> None:
    db = database(store)
    first = bulk_load(db, "ns", table(10), job_key="j")
    again = bulk_load(db, "ns", iter(()), job_key="j")
    assert (again.lsn, again.replayed, again.rows) == (first.lsn, True, 0)
    receipt = find_load(db.context(), "ns", "j")
    assert receipt is not None
    assert receipt.lsn == first.lsn
    assert find_load(db.context(), "ns", "other") is None
    assert find_load(db.context(), "nowhere", "j") is None
    with db.namespace("ns") as ns:
        ns.flush()
        assert find_load(db.context(), "ns", "j") is not None
        with pytest.raises(IdempotencyError):
            ns.upsert([{"id": "x"}], idempotency_key="j")
    assert kinds(store).count(LogKind.ATTACH) == 1


def test_two_loads_of_one_key_side_by_side_commit_one(store: Store) -> None:
    db = database(store)
    context = db.context()
    loads = []
    for n in range(2):
        plan = begin_load(
            context, "ns", job_key="j", columns=table(1).schema, declared={"vector": "vector[2]"}
        )
        rows = plan.stored(table(10 + n, shuffled=False))
        loads.append((plan, write_part(context, plan, [rows])))
    results = [commit_load(context, plan, [part]) for plan, part in loads]
    assert [result.replayed for result in results] == [False, True]
    assert results[0].lsn == results[1].lsn
    assert len(documents(db)) == 10
    assert intents(db) == 0


def test_parts_of_tasks_are_committed_together(store: Store) -> None:
    db = database(store)
    context = db.context()
    whole = table(1000, shuffled=False)
    plan = begin_load(
        context,
        "ns",
        job_key="j",
        columns=whole.schema,
        declared={"vector": "vector[2]"},
        target_bytes=10_000,
    )
    plan = crossed(plan)
    parts = []
    for first in (600, 0, 300):
        rows = whole.slice(first, 300 if first < 600 else 400)
        batches = map(plan.stored, rows.to_batches(max_chunksize=70))
        parts.append(crossed(write_part(context, plan, batches)))
    assert documents(db) == []
    assert intents(db) == 1
    result = commit_load(context, plan, parts)
    assert (result.rows, result.dropped, result.replayed) == (1000, 0, False)
    assert [row["id"] for row in documents(db)] == whole.column("id").to_pylist()
    assert commit_load(context, plan, parts).lsn == result.lsn
    sizes = [ref.size for part in parts for ref in part.segments]
    assert max(sizes) < 30_000
    assert len({ref.version for ref in context.chain("ns").load().manifest.segments}) <= 1  # type: ignore[union-attr]


def test_parts_with_keys_in_common_are_refused(store: Store) -> None:
    db = database(store)
    context = db.context()
    plan = begin_load(context, "ns", job_key="j", face="kv")

    def part(*keys: str) -> LoadedPart:
        return part_of(context, plan, key=list(keys), value=list(keys))

    with pytest.raises(InvalidInputError, match="have keys in common"):
        commit_load(context, plan, [part("a", "c"), part("b", "d")])
    assert intents(db) == 1  # it can be tried again, with other parts
    assert commit_load(context, plan, [part("a", "c"), part("d")]).rows == 3
    assert dict(db.kv("ns", mode="r").items()) == {b"a": b"a", b"c": b"c", b"d": b"d"}


@pytest.mark.parametrize("face", ["documents", "kv"])
def test_an_id_that_comes_twice_is_named_or_the_last_stays(store: Store, face: str) -> None:
    db = database(store)
    name = "id" if face == "documents" else "key"
    value = "title" if face == "documents" else "value"
    for budget in (1 << 20, 400):  # in memory, and across runs
        batches = [
            pa.record_batch(
                {name: [f"k{n:03d}" for n in numbers], value: [f"{turn}"] * len(numbers)}
            )
            for turn, numbers in enumerate([range(50), range(40, 90), range(60, 61)])
        ]
        with pytest.raises(InvalidInputError, match=r"k0(4|6)\d.*more than once"):
            bulk_load(
                db,
                "ns",
                iter(batches),
                job_key="x",
                face=face,
                budget_bytes=budget,  # type: ignore[arg-type]
            )
        assert intents(db) == 0
        result = bulk_load(
            db,
            f"n{budget}",
            iter(batches),
            job_key="y",
            face=face,  # type: ignore[arg-type]
            budget_bytes=budget,
            duplicates="last",
        )
        assert (result.rows, result.dropped) == (90, 11)
        if face == "documents":
            found = {row["id"]: row[value] for row in documents(db, f"n{budget}")}
        else:
            pairs = db.kv(f"n{budget}", mode="r").items()
            found = {key.decode(): told.decode() for key, told in pairs}
        assert found == {
            f"k{n:03d}": "2" if n == 60 else "1" if n >= 40 else "0" for n in range(90)
        }


def test_within_a_batch_too() -> None:
    schema = Schema.EMPTY
    twice = pa.table({"id": ["b", "a", "b"]})
    with pytest.raises(InvalidInputError, match="'b'"):
        stored_rows(schema, twice)
    kept = stored_rows(schema, twice, duplicates="last")
    assert kept.column(0).to_pylist() == [b"a", b"b"]


def test_rows_out_of_order_are_refused_by_name(store: Store) -> None:
    context = database(store).context()
    plan = begin_load(context, "ns", job_key="j", face="kv")
    for given, why in (
        ([["a", "c", "b"]], "'b' comes after 'c'"),
        ([["b"], ["a"]], "'a' comes after 'b'"),
        ([["a"], ["a"]], "'a'.*more than once"),
        ([["a", "b", "b"]], "'b'.*more than once"),
    ):
        batches = [plan.stored(pa.table({"key": keys, "value": keys})) for keys in given]
        with pytest.raises(InvalidInputError, match=why):
            write_part(context, plan, batches)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({"id": ["a", None]}, "no id"),
        ({"id": ["a", ""]}, "1 to 512 bytes"),
        ({"name": ["a"]}, "give every document one"),
        ({"id": ["a"], "_x": [1]}, "attribute"),
        ({"id": ["a"], "price": ["cheap"]}, "price"),
        ({"id": ["a"], "vector": [[1.0, 2.0, 3.0]]}, "vector"),
    ],
)
def test_what_upsert_refuses_a_load_refuses(
    store: Store, rows: dict[str, list[object]], why: str
) -> None:
    db = database(store)
    with db.namespace("ns", schema={"price": "float64", "vector": "vector[2]"}) as ns:
        with pytest.raises(InvalidInputError, match=why) as by_upsert:
            ns.upsert(pa.table(rows))
        with pytest.raises(InvalidInputError, match=why) as by_load:
            bulk_load(db, ns, pa.table(rows), job_key="j")
        assert str(by_load.value) == str(by_upsert.value)
        ns.upsert([{"id": "goes on"}])
    assert intents(db) == 0
    assert len(documents(db)) == 1


def test_through_an_open_handle_nobody_is_fenced(store: Store) -> None:
    db = database(store)
    with db.namespace("ns") as ns:
        ns.upsert([{"id": "x", "price": 1.0}])
        result = bulk_load(db, ns, table(10), job_key="j")
        assert ns.count() == 11
        assert ns.lsn == result.lsn
        assert ns.upsert([{"id": "y", "price": 2.0}]).lsn > (result.lsn or 0)
        bulk_load(db, "ns", table(20), job_key="k")
        with pytest.raises(FencedError):
            ns.upsert([{"id": "z"}])
    with pytest.raises(InvalidInputError, match="into"):
        plan = begin_load(db.context(), "ns", job_key="l")
        with db.kv("pairs") as kv:
            commit_load(db.context(), plan, [part_of(db.context(), plan, id=["q"])], into=kv)


def test_attributes_that_others_added_meanwhile_refuse_the_load(store: Store) -> None:
    db = database(store)
    context = db.context()
    plan = begin_load(context, "ns", job_key="j", columns=pa.schema({"price": pa.float64()}))
    parts = [part_of(context, plan, id=["a"], price=[1.0])]
    with db.namespace("ns") as ns:
        ns.upsert([{"id": "b", "weight": 2.0}])  # has the number that price was to have
    with pytest.raises(StalePlanError, match="start the load again"):
        commit_load(context, plan, parts)
    assert [row["id"] for row in documents(db)] == ["b"]
    abandon_load(context, plan)
    result = bulk_load(db, "ns", pa.table({"id": ["a"], "price": [1.0]}), job_key="j")
    assert result.rows == 1
    assert documents(db) == [
        {"id": "a", "weight": None, "price": 1.0},
        {"id": "b", "weight": 2.0, "price": None},
    ]


def test_a_handle_that_was_superseded_says_so_whatever_it_knows_of_the_schema(store: Store) -> None:
    db = database(store)
    old = db.namespace("ns")
    old.upsert([{"id": "a", "n": 1}])
    bulk_load(database(store), "ns", pa.table({"id": ["b"], "x": [1]}), job_key="1")
    for _ in range(2):
        with pytest.raises(FencedError, match="open it again"):
            bulk_load(db, old, pa.table({"id": ["c"], "y": [1]}), job_key="2")


def test_a_commit_that_was_begun_before_finds_its_attributes(store: Store) -> None:
    faulty = FaultyStore(store)
    db = database(faulty)
    context = db.context()
    plan = begin_load(context, "ns", job_key="j", columns=pa.schema({"price": pa.float64()}))
    parts = [part_of(context, plan, id=["a"], price=[1.0])]
    faulty.arm(Fault("error_before", on="head", key="*/segments/*", times=0))
    with pytest.raises(NotWrittenError):
        commit_load(context, plan, parts)
    faulty.disarm()
    assert documents(db) == []
    with db.namespace("ns") as ns:
        assert ns.schema == {"price": "float64"}  # all that a crash here leaves
        ns.alter(add={"other": "string"})
    commit_load(context, plan, parts)
    assert documents(db) == [{"id": "a", "price": 1.0, "other": None}]


def test_an_abandoned_load_is_collected_and_cannot_be_committed() -> None:
    world = World()
    db = world.database()
    context = db.context()
    plan = begin_load(context, "ns", job_key="j", face="kv")
    parts = [part_of(context, plan, key=["a"], value=["1"])]
    writer = db.kv("ns")
    world.age()
    world.collect()
    assert world.segments() == {parts[0].segments[0].id}
    abandon_load(context, plan)
    with pytest.raises(FencedError):  # of before: what it would have attached cannot come any more
        commit_load(context, plan, parts, into=writer)
    with pytest.raises(StalePlanError, match="start another job"):
        commit_load(context, plan, parts)
    world.age()
    world.collect()
    assert world.segments() == set()


def test_a_committed_load_outlives_its_intent_and_collection() -> None:
    world = World()
    db = world.database()
    bulk_load(db, "ns", pa.table({"key": ["a"], "value": ["1"]}), job_key="j", face="kv")
    world.age()
    world.collect()
    assert world.contents() == {b"a": b"1"}
    index(db.context(), "ns", InProcess(db.context()))
    world.age()
    world.collect()
    assert world.contents() == {b"a": b"1"}
    assert [ref.version for ref in world.manifest.segments] != [None]


def test_an_unknown_outcome_keeps_the_intent_and_the_key_tells(store: Store) -> None:
    faulty = FaultyStore(store)
    db = database(faulty)
    context = db.context()
    plan = begin_load(context, "ns", job_key="j", face="kv")
    parts = [part_of(context, plan, key=["a"], value=["1"])]
    with db.kv("ns") as kv:
        faulty.arm(
            Fault("reply_lost", on="put_if_absent", key="*/wal/*"),
            Fault("error_before", on="get", key="*/wal/*", times=0),
        )
        with pytest.raises(OutcomeUnknownError):
            commit_load(context, plan, parts, into=kv)
        faulty.disarm()
        assert intents(db) == 1
    assert commit_load(context, plan, parts).replayed
    assert intents(db) == 0
    assert dict(db.kv("ns", mode="r").items()) == {b"a": b"1"}


@pytest.mark.parametrize("at", ["segments", "wal"])
def test_a_load_that_failed_for_certain_leaves_no_intent(store: Store, at: str) -> None:
    faulty = FaultyStore(store)
    db = database(faulty)
    with db.kv("ns") as kv:
        on = "upload" if at == "segments" else "put_if_absent"
        faulty.arm(Fault("denied", on=on, key=f"*/{at}/*", times=0))  # type: ignore[arg-type]
        rows = pa.table({"key": ["a"], "value": ["1"]})
        with pytest.raises(ReefError):
            bulk_load(db, kv, rows, job_key="j")
        faulty.disarm()
        assert intents(db) == 0
        assert bulk_load(db, kv, rows, job_key="j").rows == 1
        assert kv.get(b"a") == b"1"


def test_a_load_whose_intent_could_not_be_ended_is_a_load(store: Store) -> None:
    faulty = FaultyStore(store)
    db = database(faulty)
    context = db.context()
    plan = begin_load(context, "ns", job_key="j", face="kv")
    parts = [part_of(context, plan, key=["a"], value=["1"])]
    with db.kv("ns") as kv:
        faulty.arm(Fault("denied", on="put_if_absent", key="*/manifest/*", times=0))
        assert commit_load(context, plan, parts, into=kv).rows == 1
        faulty.disarm()
        assert intents(db) == 1
        assert commit_load(context, plan, parts, into=kv).replayed
        assert intents(db) == 0


@pytest.mark.slow
def test_a_crash_at_any_request_leaves_all_or_nothing_and_the_key_can_be_tried_again() -> None:
    rows = pa.table({"id": ["c", "a", "b"], "price": [3.0, 1.0, 2.0], "new": ["x", "y", "z"]})
    old = {"b": 0.0, "d": 4.0}
    new = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    at = 1
    outcomes: set[bool] = set()
    while True:
        for is_sent in (False, True):
            world = World()
            with world.database().namespace("ns") as ns:
                ns.upsert([{"id": id, "price": price} for id, price in old.items()])
            mortal = Mortal(world.inner, at, is_sent=is_sent)
            try:
                bulk_load(world.database(mortal), "ns", rows, job_key="j", target_bytes=1)
            except Killed:
                pass
            else:
                assert at > 15
                assert outcomes == {False, True}
                return
            world.age(generations=1)
            world.collect()
            found = {row["id"]: row["price"] for row in documents(world.db)}
            assert found in (old, new)
            result = bulk_load(world.database(), "ns", rows, job_key="j", target_bytes=1)
            assert result.replayed == (found == new)
            assert kinds(world.inner).count(LogKind.ATTACH) == 1
            outcomes.add(result.replayed)
            world.age(generations=1)
            world.collect()
            assert {row["id"]: row["price"] for row in documents(world.db)} == new
        at += 1


def test_nothing_to_load_is_no_commit(store: Store) -> None:
    db = database(store)
    result = bulk_load(db, "ns", iter(()), job_key="j")
    assert (result.lsn, result.rows, result.segments) == (None, 0, 0)
    assert intents(db) == 0
    assert LogKind.ATTACH not in kinds(store)


def test_a_stream_of_loads_counts_on(store: Store) -> None:
    db = database(store)
    context = db.context()
    lsns: list[tuple[int, bool]] = []
    for sequence in (1, 1, 2, 1):
        plan = begin_load(context, "ns", job_key=f"{len(lsns)}", face="kv")
        parts = [part_of(context, plan, key=["a"], value=[f"{len(lsns)}"])]
        result = commit_load(context, plan, parts, source="query", sequence=sequence)
        lsns.append((result.lsn, result.replayed))
    assert [replayed for _, replayed in lsns] == [False, True, False, True]
    assert dict(db.kv("ns", mode="r").items()) == {b"a": b"2"}


def test_what_arrow_cannot_tell_is_declared() -> None:
    base = Schema.EMPTY
    arrow = table(1).schema
    with pytest.raises(InvalidInputError, match="vector"):
        schema_for(base, arrow)
    wider = schema_for(base, arrow, {"vector": "vector[2]"})
    assert wider.as_dict() == {
        "price": "float64",
        "title": "string",
        "vector": "vector[2]",
        "tags": "[]string",
    }
    fixed = pa.schema({"id": pa.string(), "vector": pa.list_(pa.float64(), 3), "n": pa.null()})
    assert schema_for(base, fixed).as_dict() == {"vector": "vector[3]"}
    assert schema_for(base, fixed, {"n": "int64"}).find("n") is not None
    rows = stored_rows(wider, pa.table({"id": ["b", "a"], "title": [None, "x"]}))
    assert rows.schema.names == ["_key", "_lsn", "_tombstone", "a1", "a2", "a3", "a4"]
    with pytest.raises(InvalidInputError, match="planned with"):
        stored_rows(base, pa.table({"id": ["a"], "title": ["x"]}))


@pytest.mark.parametrize("duplicates", ["error", "last"])
@pytest.mark.parametrize("seed", range(6))
def test_runs_come_back_in_order(tmp_path: Path, seed: int, duplicates: str) -> None:
    rng = random.Random(seed)
    keys = [b"%05d" % n for n in range(2000)]
    rng.shuffle(keys)
    if duplicates == "last":
        keys += rng.choices(keys, k=500)
        rng.shuffle(keys)
    runs = SortedRuns(tmp_path, budget_bytes=20_000, duplicates=duplicates)  # type: ignore[arg-type]
    at = 0
    last: dict[bytes, int] = {}
    while at < len(keys):
        some = keys[at : at + rng.randrange(1, 200)]
        runs.add(pa.record_batch({"_key": some, "place": range(at, at + len(some))}))
        last |= {key: at + i for i, key in enumerate(some)}
        at += len(some)
    schema = pa.schema({"_key": pa.binary(), "place": pa.int64()})
    found = pa.Table.from_batches(runs.merged(schema), schema)
    assert found.column("_key").to_pylist() == sorted(last)
    assert found.column("place").to_pylist() == [last[key] for key in sorted(last)]
    assert runs.dropped == len(keys) - len(last)
    assert runs.spilled_bytes > 0
    assert len([*tmp_path.iterdir()]) > 3


def test_later_runs_may_have_more_columns(tmp_path: Path) -> None:
    runs = SortedRuns(tmp_path, budget_bytes=4, duplicates="error")
    runs.add(pa.record_batch({"_key": [b"b"]}))
    runs.add(pa.record_batch({"_key": [b"a"], "more": [1]}))
    schema = pa.schema({"_key": pa.binary(), "more": pa.int64()})
    assert pa.Table.from_batches(runs.merged(schema), schema).to_pylist() == [
        {"_key": b"a", "more": 1},
        {"_key": b"b", "more": None},
    ]


def test_each_key_once_across_batches() -> None:
    unique = UniqueKeys("last")
    given = [[b"a", b"a"], [b"a", b"b"], [], [b"b"], [b"b", b"c", b"c"], [b"d"]]
    numbers = iter(range(100))
    batches = [
        pa.record_batch({"k": pa.array(keys, pa.binary()), "n": [next(numbers) for _ in keys]})
        for keys in given
        if keys
    ]
    found = pa.Table.from_batches(unique.batches(batches))
    assert found.column("k").to_pylist() == [b"a", b"b", b"c", b"d"]
    assert found.column("n").to_pylist() == [2, 5, 7, 8]
    assert unique.dropped == 5
    assert pc.count(found.column("k")).as_py() == 4
