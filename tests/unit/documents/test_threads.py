"""Six threads on one handle: one document for each id, no update lost, one schema."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import TypeVar

import pytest

from reef.documents import DocumentReceipt, Documents
from reef.engine import CreateOnly, Equals
from reef.errors import ConditionFailedError, InvalidInputError
from tests.support.engine.open_database import database

THREADS = 6
IDS = [f"id {n}" for n in range(40)]
T = TypeVar("T")


@pytest.fixture(params=[1, 8], ids=["one write at a time", "eight at once"])
def ns(request: pytest.FixtureRequest) -> Iterator[Documents]:
    """Documents that are flushed every few writes, behind everybody's back."""
    db = database(flush_threshold_slots=5, row_block_bytes="1KiB")
    with db, db.namespace("ns", max_parallel_writes=request.param) as ns:
        yield ns


def at_once(action: Callable[[int], T]) -> list[T]:
    """Call `action` with the number of each thread, in all threads at the same time."""
    barrier = Barrier(THREADS)

    def run(number: int) -> T:
        barrier.wait()
        return action(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


def batches_of(number: int) -> list[list[str]]:
    """Return all ids, in an order and in portions of the thread's own."""
    ids = random.Random(number).sample(IDS, len(IDS))
    return [ids[first : first + 1 + number] for first in range(0, len(ids), 1 + number)]


def found_ids(ns: Documents) -> list[str]:
    return [id for batch in ns.scan(columns=[]) for id in batch.column(0).to_pylist()]


def test_upserts_of_the_same_new_ids_make_one_document_each(ns: Documents) -> None:
    def upsert(number: int) -> list[tuple[str, int]]:
        told = []
        for ids in batches_of(number):
            receipt = ns.upsert([{"id": id, "by": number} for id in ids])
            told += [(id, receipt.lsn) for id in ids]
        return told

    told = at_once(upsert)
    assert found_ids(ns) == sorted(IDS)
    assert ns.count() == len(IDS)
    last = {id: max((dict(mine)[id], number) for number, mine in enumerate(told)) for id in IDS}
    assert ns.get_many(IDS) == [{"id": id, "by": last[id][1]} for id in IDS]
    for number, mine in enumerate(told):
        for id, lsn in mine:
            assert ns.at(lsn=lsn).get(id) == {"id": id, "by": number}


def test_of_those_that_create_only_one_does(ns: Documents) -> None:
    def create(number: int) -> list[str]:
        created = []
        for ids in batches_of(number):
            receipt = ns.upsert(
                [{"id": id, "by": number} for id in ids], condition=CreateOnly(), atomic=False
            )
            outcomes = dict(zip(ids, receipt.outcomes, strict=True))
            assert receipt.upserted + receipt.skipped == len(ids)
            created += [id for id, outcome in outcomes.items() if outcome == "written"]
        return created

    created = at_once(create)
    assert Counter(id for mine in created for id in mine) == Counter(IDS)
    by = {id: number for number, mine in enumerate(created) for id in mine}
    assert ns.get_many(IDS) == [{"id": id, "by": by[id]} for id in IDS]
    assert found_ids(ns) == sorted(IDS)


def test_readers_never_see_an_id_twice_nor_a_part_of_a_batch(ns: Documents) -> None:
    ended = Event()
    ns.alter(add={"round": "int64"})

    def read() -> int:
        reads = 0
        while not ended.is_set() or not reads:
            view = ns.view()
            table = view.query(columns=["round"])
            assert len(set(table["id"].to_pylist())) == table.num_rows == view.count()
            assert table.num_rows in (0, len(IDS))
            assert len(set(table["round"].to_pylist())) <= 1
            reads += 1
        return reads

    def write(number: int) -> None:
        for round in range(6):
            ns.upsert([{"id": id, "round": 100 * number + round} for id in IDS])
            if round % 3 == 2:
                ns.delete_where(("round", "Gte", 0))

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            at_once(write)
        finally:
            ended.set()
        assert all(reader.result() for reader in readers)


def test_conditional_patches_lose_no_update(ns: Documents) -> None:
    rounds = 10
    ns.upsert([{"id": "counter", "n": 0, "vector": [1.0, 2.0], "kept": "yes"}])

    def count(number: int) -> set[tuple[str, ...]]:
        done, refusals = 0, set()
        while done < rounds:
            document = ns.get("counter")
            assert document is not None
            n = document["n"]
            try:
                ns.patch([{"id": "counter", "n": n + 1}], condition=Equals(n=n))
            except ConditionFailedError as error:
                refusals.add(error.outcomes)
            else:
                done += 1
        return refusals

    assert set().union(*at_once(count)) <= {("differs",)}
    wanted = {"id": "counter", "n": THREADS * rounds, "vector": [1.0, 2.0], "kept": "yes"}
    assert ns.get("counter") == wanted


def test_patches_of_different_attributes_all_stay(ns: Documents) -> None:
    ns.upsert([{"id": id, "n": 0} for id in IDS])

    def patch(number: int) -> None:
        for ids in batches_of(number):
            ns.patch([{"id": id, f"own_{number}": id} for id in ids])

    at_once(patch)
    own = [f"own_{number}" for number in range(THREADS)]
    assert ns.get_many(IDS) == [{"id": id, "n": 0, **dict.fromkeys(own, id)} for id in IDS]


def test_what_matches_is_changed_once(ns: Documents) -> None:
    ns.upsert([{"id": id, "owner": "nobody"} for id in IDS])

    def claim(number: int) -> DocumentReceipt:
        return ns.patch_where(("owner", "Eq", "nobody"), {"owner": str(number)})

    receipts = at_once(claim)
    assert sorted(receipt.patched for receipt in receipts) == [0] * (THREADS - 1) + [len(IDS)]
    winner = [receipt.patched for receipt in receipts].index(len(IDS))
    assert ns.count(("owner", "Eq", str(winner))) == len(IDS)


def test_a_key_that_all_use_at_once_counts_once(ns: Documents) -> None:
    ns.upsert([{"id": "a", "n": 0}])
    receipts = at_once(lambda _: ns.upsert([{"id": "a", "n": 1}], idempotency_key="the same"))
    assert len({receipt.lsn for receipt in receipts}) == 1
    assert [receipt.replayed for receipt in receipts].count(False) == 1


def test_new_attributes_of_all_threads_are_in_one_schema(ns: Documents) -> None:
    def write(number: int) -> None:
        for round in range(3):
            row = {"id": str(number), f"x_{number}_{round}": number, f"shared_{round}": 0.5}
            ns.upsert([row])

    at_once(write)
    own = {f"x_{n}_{round}": "int64" for n in range(THREADS) for round in range(3)}
    assert ns.schema == {**own, **{f"shared_{round}": "float64" for round in range(3)}}
    for number in range(THREADS):
        wanted = {"id": str(number), f"x_{number}_2": number, "shared_2": 0.5}
        assert ns.get(str(number)) == wanted


def test_of_those_that_disagree_on_a_type_one_is_right_and_others_write_nothing(
    ns: Documents,
) -> None:
    values = [1, "text", True, [1], b"bytes", {"a": 1}]

    def write(number: int) -> str:
        try:
            ns.upsert([{"id": str(number), "new": values[number]}])
        except InvalidInputError as error:
            return str(error)
        return "written"

    outcomes = at_once(write)
    kind = ns.schema["new"]
    # Free-form JSON takes what the others are, bytes as well.
    written = [n for n, outcome in enumerate(outcomes) if outcome == "written"]
    assert len(written) == 1 or kind == "json"
    assert found_ids(ns) == [str(n) for n in written]
    for n in {*range(THREADS)}.difference(written):
        assert f"row 0, attribute 'new' = {values[n]!r}: expected" in outcomes[n]


def test_the_schema_changes_under_those_who_write(ns: Documents) -> None:
    ns.upsert([{"id": "a", "n": 0, "old": 1}])

    def act(number: int) -> None:
        for round in range(10):
            if number == 0:
                ns.alter(add={f"added_{round}": "string"}, rename={"n": "m"})
                ns.alter(rename={"m": "n"}, drop=[f"added_{round}"])
            elif number == 1:
                ns.patch_where(("id", "Glob", "*"), {"old": round})
            else:
                ns.upsert([{"id": f"{number}/{round}", "old": 1, f"own_{number}": round}])

    at_once(act)
    assert ns.schema == {"n": "int64", "old": "int64", **{f"own_{n}": "int64" for n in range(2, 6)}}
    assert ns.count() == 1 + 4 * 10
    assert ns.get("5/9", columns=["own_5"]) == {"id": "5/9", "own_5": 9}
    assert ns.get("a") == {"id": "a", "n": 0, "old": 9}
