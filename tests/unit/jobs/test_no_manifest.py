"""rebuild without any manifest: every face, what collection keeps for it, and crashes in its midst."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from reef import jobs
from reef.database import Database
from reef.doctor import verify
from reef.errors import CorruptError, FencedError, InvalidInputError, StalePlanError
from reef.format import decode_segment, log_key, segment_key, ulid_number
from reef.gc import collect
from reef.jobs import CompactionOptions, RebuildOptions, bulk_load
from reef.kv import KeyValue
from reef.manifest import Head
from reef.pages import WalRecord
from reef.store import MemoryStore, Store
from reef.testing import ManualClock
from tests.support.jobs.dying_tasks import Interrupted, Killed, Mortal

NS = "ns"
FULL = CompactionOptions(full=True)


class World:
    """A bucket whose namespace loses its manifests."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.rng = random.Random(1)

    def db(self, store: Store | None = None) -> Database:
        return Database(
            store or self.store,
            clock=self.clock,
            rng=random.Random(self.rng.random()),
            flush_interval=0,
            gc_grace=1,
            retained_generations=1,
        )

    def compact(self) -> None:
        self.clock.advance(1)
        jobs.compact(self.db(), NS, options=FULL)

    def collect(self) -> None:
        for _ in range(3):
            self.clock.advance(10)
            context = self.db().context()
            chain = context.chain(NS)
            collect(chain, self.store, settings=context.settings, clock=self.clock, apply=True)

    def keys(self, folder: str) -> list[str]:
        return [meta.key for meta in self.store.list(f"namespaces/{NS}/{folder}/")]

    def lose(self, folder: str = "manifest") -> None:
        for key in self.keys(folder):
            self.store.delete(key)

    def rebuild(
        self, store: Store | None = None, *, assume_live: bool = False
    ) -> jobs.RebuildResult:
        options = RebuildOptions(assume_live=assume_live)
        return jobs.rebuild(self.db(store), NS, options=options).namespaces[0].returned()

    def head(self) -> Head:
        head = self.db().context().chain(NS).load()
        assert head is not None
        return head

    def items(self) -> dict[bytes, bytes]:
        with self.db().kv(NS, mode="r") as kv:
            return dict(kv.items())


def compacted_twice(world: World) -> KeyValue:
    """A key is written, deleted and compacted away; a snapshot keeps what was merged first."""
    kv = world.db().kv(NS)
    kv.put(b"gone", b"1")
    kv.put(b"here", b"1")
    kv.flush()
    world.compact()
    kv.snapshot(ttl=1_000_000, id="old")
    kv.delete(b"gone")
    kv.flush()
    world.compact()
    kv.put(b"here", b"2")
    kv.flush()
    world.compact()
    kv.put(b"more", b"1")
    return kv


def test_what_was_merged_twice_does_not_come_back() -> None:
    world = World()
    kv = compacted_twice(world)
    world.collect()
    (newest,) = world.head().manifest.segments
    key = segment_key(NS, newest.id)
    footer = decode_segment(world.store.get(key), key=key)[0].footer
    listed = {ulid_number(k.rsplit("/", 1)[1]) for k in world.keys("segments") if k != key}
    assert listed <= footer.replaced_numbers()
    assert len(footer.replaced_segments) < len(footer.replaced_numbers())
    world.store.delete(log_key(NS, 1))  # so that the log alone is not enough
    world.lose()
    result = world.rebuild()
    assert world.items() == {b"here": b"2", b"more": b"1"}
    assert not [text for text in result.unproven if text.startswith(("slots", "segments"))]
    with pytest.raises(FencedError):
        kv.put(b"sleeper", b"s")


def test_more_replaced_segments_than_a_footer_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reef.compaction._merge_task.REPLACED_BEFORE_MAX", 1)
    world = World()
    compacted_twice(world)
    world.collect()
    world.lose()
    world.rebuild()
    assert world.items() == {b"here": b"2", b"more": b"1"}


def test_collection_keeps_the_end_of_the_log_a_schema_and_what_attaches() -> None:
    world = World()
    ns = world.db().namespace(NS)
    ns.upsert([{"id": "a", "x": 1}])
    ns.alter(add={"y": "int64"})
    bulk_load(world.db(), ns, [{"id": "b", "x": 2}], job_key="load")
    for number in range(3):
        ns.upsert([{"id": "c", "x": number}])
    ns.flush()
    world.collect()
    slots = [int(key.rsplit("/", 1)[1][:20]) for key in world.keys("wal")]
    # Fence; the schema with y; the attach object; the last one.
    assert slots == [1, 4, 5, 8]
    world.lose()
    world.rebuild()
    ns = world.db().namespace(NS)
    assert {*ns.schema} >= {"x", "y"}
    assert [ns.get(id) for id in "abc"] == [
        {"id": "a", "x": 1},
        {"id": "b", "x": 2},
        {"id": "c", "x": 2},
    ]


@pytest.mark.parametrize("policy", [None, "caller"])
def test_pages(policy: str | None) -> None:
    world = World()
    pages = world.db().pages(NS, page_size=512, lsn_policy=policy)
    for number in range(4):
        lsn = None if policy is None else 1000 + number
        pages.append_wal([WalRecord(number % 2, lsn, b"%d" % number * 512)])
        pages.flush()
    pages.append_wal([WalRecord(7, None if policy is None else 2000, b"x" * 512)])
    world.collect()
    world.lose()
    world.rebuild()
    with world.db().pages(NS, mode="r") as read:
        assert read.page_size == 512
        assert [read.get_page(n)[:1] for n in (0, 1, 7)] == [b"2", b"3", b"x"]
    assert world.head().manifest.lsn_policy == ("packed" if policy is None else "caller")


def test_a_retry_is_still_recognised() -> None:
    world = World()
    with world.db().kv(NS) as kv:
        first = kv.put(b"a", b"1", idempotency_key="k1")
        kv.flush()
        second = kv.put(b"b", b"2", idempotency_key="k2")
    world.collect()
    world.lose()
    world.rebuild()
    with world.db().kv(NS) as kv:
        for key, value, name, receipt in (
            (b"a", b"1", "k1", first),
            (b"b", b"2", "k2", second),
        ):
            again = kv.put(key, value, idempotency_key=name)
            assert (again.lsn, again.replayed) == (receipt.lsn, True)


@pytest.mark.parametrize("at", range(1, 70, 6))
@pytest.mark.parametrize("is_sent", [True, False])
def test_a_rebuild_that_dies(at: int, is_sent: bool) -> None:
    world = World()
    kv = compacted_twice(world)
    world.collect()
    world.lose()
    mortal = Mortal(world.store, at, is_sent=is_sent, among=("put_if_absent",))
    with suppress(Killed):
        world.rebuild(mortal)
    if world.keys("manifest"):
        # What the writer still commits is not lost, and who opens next goes on.
        expected = {b"here": b"2", b"more": b"1"}
        with suppress(FencedError):
            kv.put(b"late", b"l")
            expected[b"late"] = b"l"
        with world.db().kv(NS) as other:
            other.put(b"next", b"n")
        assert world.items() == {**expected, b"next": b"n"}
        with pytest.raises(FencedError):
            kv.put(b"later", b"l")
    else:
        world.rebuild()
        assert world.items() == {b"here": b"2", b"more": b"1"}


def test_what_only_an_older_generation_of_a_branch_names_stays() -> None:
    """A snapshot of the branch stands on a generation that the branch has compacted since."""
    world = World()
    kv = world.db().kv(NS)
    kv.put(b"shared", b"1")
    kv.flush()
    kv.branch("b")
    with world.db().kv(NS, branch="b") as branch:
        branch.put(b"own", b"1")
        branch.flush()
        branch.snapshot(None, id="s")
    jobs.compact(world.db(), f"{NS}@b", options=FULL)
    world.collect()
    world.lose()
    world.rebuild()
    with world.db().kv(NS) as kv:
        kv.put(b"shared", b"2")
        kv.flush()
    world.compact()
    world.collect()
    assert verify(world.db().context(), f"{NS}@b").problems == ()


def test_of_two_rebuilds_at_once_one_counts() -> None:
    world = World()
    compacted_twice(world)
    world.lose()

    def other() -> None:
        world.rebuild()

    store = Interrupted(world.store, 1, other, "/manifest/")
    with pytest.raises(StalePlanError, match="has a manifest meanwhile"):
        world.rebuild(store)
    assert world.items() == {b"here": b"2", b"more": b"1"}
    assert world.head().manifest.max_parallel_writes == 1


REFUSED: dict[str, tuple[Callable[[World], object], type[Exception], str]] = {
    "no log": (lambda world: world.lose("wal"), CorruptError, "no log object"),
    "opened and not written": (
        lambda world: world.db().kv(NS).close(),
        InvalidInputError,
        "--assume-live",
    ),
}


@pytest.mark.parametrize("damage", REFUSED)
def test_what_is_not_proved_is_refused(damage: str) -> None:
    world = World()
    compacted_twice(world)
    world.collect()
    hurt, error, why = REFUSED[damage]
    hurt(world)
    world.lose()
    with pytest.raises(error, match=why):
        world.rebuild()
    assert world.keys("manifest") == []
    if error is InvalidInputError:
        world.rebuild(assume_live=True)
        assert world.items() == {b"here": b"2", b"more": b"1"}


def test_a_lost_segment_is_named_by_its_slots() -> None:
    world = World()
    with world.db().kv(NS) as kv:
        for number in range(3):
            world.clock.advance(1)
            kv.put(b"k%d" % number, b"v")
            kv.flush()
        kv.put(b"last", b"v")
    world.collect()
    world.store.delete(world.keys("segments")[1])
    world.lose()
    result = world.rebuild()
    assert any(text.startswith("slots 3 to 3") for text in result.unproven)
    assert world.items() == {b"k0": b"v", b"k2": b"v", b"last": b"v"}
    assert verify(world.db().context(), NS, deep=True).problems == ()


@pytest.mark.parametrize("flushed", [False, True])
def test_what_was_in_flight_behind_a_gap_was_never_committed(flushed: bool) -> None:
    world = World()
    db = Database(world.store, clock=world.clock, flush_interval=0, max_parallel_writes=4)
    kv = db.kv(NS)
    kv.put(b"a", b"1")
    if flushed:
        kv.flush()
    kv.put(b"b", b"1")
    kv.put(b"c", b"1")
    slots = [int(key.rsplit("/", 1)[1][:20]) for key in world.keys("wal")]
    world.store.delete(log_key(NS, slots[-2]))  # as if it had never arrived
    world.lose()
    if flushed:
        with pytest.raises(CorruptError, match="to know whether it was committed"):
            world.store.delete(log_key(NS, slots[-3]))
            world.rebuild()
        return
    result = world.rebuild()
    assert any("count as never committed" in text for text in result.unproven)
    assert world.items() == {b"a": b"1"}
    with world.db().kv(NS) as other:
        other.put(b"next", b"n")
    assert world.items() == {b"a": b"1", b"next": b"n"}
