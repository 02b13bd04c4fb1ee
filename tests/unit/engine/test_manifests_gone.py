"""A namespace whose manifests were deleted, though its objects were not: nobody takes it for a new one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from reef.database import Database
from reef.doctor import MANIFESTS_GONE, inspect_namespace, repair, storage_stats, verify
from reef.errors import CorruptError, NotFoundError
from reef.gc import collect
from reef.jobs import bulk_load
from reef.store import MemoryStore
from reef.testing import CountingStore, ManualClock

NS = "orders"
WHY = "the manifests of a namespace that has objects.*reef rebuild"


class World:
    """A namespace without manifests, and a branch name of it."""

    def __init__(self, *left: str) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        with self.db() as db, db.kv(NS) as kv:
            kv.put(b"a", b"1", idempotency_key="a")
            kv.flush()
            kv.put(b"b", b"2")
        self.delete("manifest")
        for folder in {"wal", "segments", "dedup"} - {*left}:
            self.delete(folder)

    def db(self) -> Database:
        return Database(self.store, clock=self.clock, rng=random.Random(1), flush_interval=0)

    def delete(self, folder: str) -> None:
        for meta in [*self.store.list(f"namespaces/{NS}/{folder}/")]:
            self.store.delete(meta.key)


def collected(db: Database) -> None:
    context = db.context()
    collect(context.chain(NS), db.store, settings=context.settings, clock=context.clock, apply=True)


USES: dict[str, Callable[[Database], object]] = {
    "write": lambda db: db.kv(NS),
    "read": lambda db: db.kv(NS, mode="r"),
    "documents": lambda db: db.namespace(NS),
    "load": lambda db: bulk_load(db, NS, [{"id": "a"}], job_key="k"),
    "drop": lambda db: db.drop(NS),
    "gc": collected,
}


@pytest.mark.parametrize("left", ["wal", "segments", "dedup"])
@pytest.mark.parametrize("use", USES)
def test_every_use_refuses(use: str, left: str) -> None:
    world = World(left)
    before = [meta.key for meta in world.store.list("")]
    with world.db() as db, pytest.raises(CorruptError, match=WHY):
        USES[use](db)
    assert [meta.key for meta in world.store.list("")] == before


def test_a_branch_under_its_name_is_refused() -> None:
    world = World("wal")
    with world.db() as db, db.kv("parent") as kv:
        kv.put(b"a", b"1")
        kv.branch("b")
        with db.kv("parent", branch="b") as branch:
            branch.put(b"b", b"2")
        for meta in [*world.store.list("namespaces/parent@b/manifest/")]:
            world.store.delete(meta.key)
        with pytest.raises(CorruptError, match=WHY):
            kv.branch("b")
        # Nor does its parent forget it: its pin stays, and it cannot be dropped.
        world.clock.advance(10_000_000)
        context = db.context()
        chain = context.chain("parent")
        collect(chain, db.store, settings=context.settings, clock=context.clock, apply=True)
        head = chain.load()
        assert head is not None
        assert [pin.child for pin in head.manifest.pins] == ["parent@b"]
        with pytest.raises(CorruptError, match=WHY):
            db.drop("parent")


@pytest.mark.parametrize("left", ["wal", "segments", "dedup"])
def test_whoever_looks_sees_it(left: str) -> None:
    world = World(left)
    with world.db() as db:
        assert [*db.namespaces()] == [NS]
        (problem,) = verify(db.context(), NS).problems
        assert problem.kind == "manifest-missing"
        stats = storage_stats(db.context(), NS)
        assert stats["state"] == MANIFESTS_GONE
        assert stats["objects"][left]["objects"] > 0
        assert inspect_namespace(db.context(), NS)["head"] is None
        report = repair(db.context(), NS, apply=True)
        assert not report.is_mended
        assert [step.state for step in report.steps] == ["impossible"]
        assert "reef rebuild" in report.steps[0].text


def test_an_unfinished_branch_is_not_a_namespace() -> None:
    world = World("wal")
    world.store.upload(f"namespaces/parent@b/segments/{'0' * 26}-e0.seg", [b"x"])
    with world.db() as db:
        with pytest.raises(NotFoundError):
            verify(db.context(), "parent@b")
        with db.kv("parent") as kv:
            kv.put(b"a", b"1")
            kv.branch("b")


def test_only_creating_a_namespace_costs_a_request() -> None:
    counting = CountingStore(MemoryStore())
    with Database(counting, flush_interval=0) as db:
        db.kv("new").close()
        created = counting.counts.requests["list"]
        db.kv("new").close()
        assert counting.counts.requests["list"] == 2 * created - 1
