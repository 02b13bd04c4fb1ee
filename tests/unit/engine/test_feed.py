"""The change feed: every committed operation once, in order, from wherever one begins."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from reef.engine import Face, FeedLog, Position, WriteRequest, open_for_writing
from reef.engine._feed import _change_feed as feed_module
from reef.errors import CorruptError, UnavailableError
from reef.format import LogKind, LogObject, LogRecord, Prev, encode_log, log_key
from reef.kv import FACE
from reef.log import ChainPoint
from reef.store import MemoryStore
from reef.testing import CountingStore
from reef.types import pack_lsn
from tests.support.engine.collecting import NAMESPACE, World
from tests.support.engine.feed_history import Change, FeedHistory, above, bare, history, told
from tests.support.engine.open_database import database
from tests.support.engine.open_handles import writer_of
from tests.support.engine.versions import log_batch
from tests.support.jobs.compactor import Compactor


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_from_every_version_the_feed_is_the_rest_of_the_history(seed: int) -> None:
    h = history(seed)
    steps = [h.write] * 12 + [h.attach] * 2 + [h.reopen] + [h.void] + [lambda: h.kv.flush()] * 3
    steps += [lambda: Compactor(h.world.db.context(), NAMESPACE).run()]
    for _ in range(60):
        h.rng.choice(steps)()
        h.world.clock.advance(1)
    reader = h.world.kv("r")
    assert told(reader.changes(before_image=True)) == h.changes
    for lsn in h.lsns:
        assert told(reader.changes(after=lsn)) == bare(above(h.changes, lsn))
    for lsn in h.rng.sample(h.lsns, 10):
        fresh = h.world.kv("r")
        assert told(fresh.changes(after=lsn, before_image=True)) == above(h.changes, lsn)
        upto = h.rng.choice(h.lsns)
        assert told(fresh.changes(after=lsn, upto=upto)) == bare(above(h.changes, lsn, upto))
    assert told(h.kv.changes(before_image=True)) == h.changes
    assert b"void" not in {change[2] for change in h.changes}


@pytest.mark.parametrize("seed", range(4))
def test_followers_of_any_pace_see_each_operation_once(seed: int) -> None:
    h = history(seed)
    reader = h.world.kv("r")
    seen: list[Change] = []
    log = FeedLog(h.world.database().context(), NAMESPACE)
    place = log.earliest()
    polled: list[int] = []
    steps = [h.write] * 12 + [h.attach, h.reopen, h.void] + [lambda: h.kv.flush()] * 2
    for _ in range(80):
        h.rng.choice(steps)()
        if h.rng.random() < 0.3:
            after = seen[-1][0] if seen else 0
            seen += told(reader.changes(after=after, before_image=True))
            assert seen == h.changes
        if h.rng.random() < 0.3:
            place = log.advance(place, slots_max=h.rng.randint(1, 5))
            polled.append(place.lsn)
    assert polled == sorted(polled)
    assert set(polled) <= set(h.lsns)  # ends are those of whole objects
    assert log.advance(place) == log.newest()


def test_a_version_within_an_object_is_a_place_to_begin_and_to_end() -> None:
    h = history(1)
    h.write()
    writer = writer_of(h.kv)
    slot = h.world.slots()[-1] + 1
    rows = [(pack_lsn(slot, i), b"k%d" % i, b"v%d" % i) for i in range(5)]
    log = LogObject(
        kind=LogKind.DATA,
        slot=slot,
        epoch=writer.epoch,
        writer_id=bytes(16),
        nonce=b"\7" * 16,
        created_at_us=0,
        prev=writer.tail.replay.point.prev,
        records=tuple(
            LogRecord(lsn=lsn, batch=log_batch({key: value})) for lsn, key, value in rows
        ),
    )
    h.world.inner.put_if_absent(log_key(NAMESPACE, slot), encode_log(log))
    for lsn, key, value in rows:
        h.note(lsn, [(key, value)])
    h.reopen()
    h.write()
    for lsn in h.lsns:
        reader = h.world.kv("r")
        assert told(reader.changes(after=lsn)) == bare(above(h.changes, lsn))
        assert told(reader.changes(upto=lsn)) == bare(above(h.changes, 0, lsn))
        assert told(reader.changes(after=lsn, before_image=True)) == above(h.changes, lsn)


def test_rows_are_gathered_into_batches_and_large_ones_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    h = history(1)
    for _ in range(30):
        h.write()
    assert len(list(h.kv.changes())) == 1
    monkeypatch.setattr(feed_module, "BATCH_ROWS_MAX", 7)
    batches = list(h.kv.changes(before_image=True))
    assert len(batches) > 5
    assert told(iter(batches)) == h.changes


def test_committed_at_is_the_time_of_the_log_object() -> None:
    world = World()
    kv = world.kv()
    world.clock.advance(100)
    at = datetime.fromtimestamp(world.clock.now_us() / 1e6, UTC)
    kv.put(b"a", b"1")
    (batch,) = kv.changes()
    assert batch.column("_committed_at").to_pylist() == [at]


# Ends, and damage.


def test_what_lies_ahead_is_not_there_yet() -> None:
    h = history(1)
    h.write()
    reader = h.world.kv("r")
    for asked in ({"after": h.lsns[-1] + 1}, {"upto": h.lsns[-1] + 1}):
        with pytest.raises(UnavailableError, match="not exist yet"):
            reader.changes(**asked)  # type: ignore[arg-type]
    assert told(reader.changes(after=h.lsns[-1])) == []


def test_a_missing_object_is_damage_and_not_the_end() -> None:
    h = history(1)
    for _ in range(8):
        h.write()
    h.kv.flush()
    h.world.inner.delete(log_key(NAMESPACE, 5))
    log = FeedLog(h.world.database().context(), NAMESPACE)
    with pytest.raises(CorruptError, match="reef verify"):
        log.advance(Position(0, 1, ChainPoint(0, 0, 0)))
    with pytest.raises(CorruptError):
        list(h.world.kv("r").changes())


def flip(world: World, slot: int) -> None:
    key = log_key(NAMESPACE, slot)
    data = bytearray(world.inner.get(key))
    data[-20] ^= 1
    world.inner.delete(key)
    world.inner.put_if_absent(key, bytes(data))


def test_a_damaged_last_object_is_not_passed_until_a_fence_names_it() -> None:
    h = history(1)
    for _ in range(4):
        h.write()
    kept, torn = h.lsns[-2], h.lsns[-1]
    flip(h.world, h.world.slots()[-1])
    log = FeedLog(h.world.database().context(), NAMESPACE)
    assert log.advance(log.earliest()).lsn == kept
    h.reopen()
    h.write()
    expected = [change for change in h.changes if change[0] != torn]
    assert log.advance(log.earliest()).lsn == h.lsns[-1]
    assert bare(told(h.world.kv("r").changes())) == bare(expected)
    assert log.course(log.earliest(), h.lsns[-1] >> 20) is None  # headers alone do not tell


def test_a_chain_that_does_not_lead_to_the_manifest_is_told() -> None:
    h = history(1)
    for _ in range(6):
        h.write()
    log = FeedLog(h.world.database().context(), NAMESPACE)
    place, end = log.earliest(), log.newest()
    assert len(list(log.entries(place, end.lsn, leads_to=end.point.prev))) == 6
    with pytest.raises(CorruptError, match="planned by headers"):
        list(log.entries(place, end.lsn, leads_to=Prev(end.point.slot, 12345)))
    h.kv.flush()
    log = FeedLog(h.world.database().context(), NAMESPACE)
    wrong = Position(0, 3, ChainPoint(2, 12345, 0))
    with pytest.raises(CorruptError, match="chain"):
        list(log.entries(wrong, h.lsns[-1]))


# What it costs.


def counted(h: FeedHistory) -> tuple[CountingStore, FeedLog]:
    store = CountingStore(h.world.inner)
    return store, FeedLog(h.world.database(store).context(), NAMESPACE)


def test_an_idle_poll_is_one_small_get() -> None:
    h = history(1)
    for _ in range(20):
        h.write()
    h.kv.flush()
    store, log = counted(h)
    place = log.newest()
    store.reset()
    for _ in range(100):
        assert log.advance(place) == place
    assert dict(store.reset().requests) == {"get_range": 100}
    h.write()
    assert log.advance(place).lsn == h.lsns[-1]
    # Its header, what is behind it, and the object itself: nothing else vouches for it.
    assert dict(store.reset().requests) == {"get_range": 3, "get": 1}


def test_a_backlog_costs_a_header_for_each_object() -> None:
    h = history(1)
    for _ in range(100):
        h.write()
    store, log = counted(h)
    place = log.earliest()
    store.reset()
    end = log.advance(place)
    cost = store.reset()
    assert end.lsn == h.lsns[-1]
    assert cost.requests["get_range"] <= 101 + 64 + 1
    assert cost.requests["get"] == 1 + 12, "and probes behind the end, after a look at the head"
    assert cost.bytes["get_range"] < 200 * 200


def test_entering_costs_the_head_and_headers_since_the_nearest_generation() -> None:
    h = history(1, retained_generations=100)
    for i in range(100):
        h.write()
        if i % 10 == 9:
            h.kv.flush()
    store, log = counted(h)
    assert log.after(h.lsns[57]).lsn == h.lsns[57]
    cost = store.reset()
    assert cost.requests["list"] == 2
    assert cost.requests["get"] <= 1 + 5  # the head, and log2 of the others
    assert cost.requests["get_range"] <= 16
    place = log.after(h.lsns[57])
    found = [entry.log.lsn_last for entry in log.entries(place, h.lsns[60])]
    assert found == h.lsns[58:61]


def test_a_reader_that_goes_on_where_it_was_reads_only_what_is_new() -> None:
    h = history(1)
    for _ in range(50):
        h.write()
    store = CountingStore(h.world.inner)
    reader = h.world.database(store).kv(NAMESPACE, mode="r")
    seen = told(reader.changes())
    store.reset()
    h.write()
    assert told(reader.changes(after=seen[-1][0])) == bare(above(h.changes, seen[-1][0]))
    cost = store.reset().requests
    # The reader's own look, the object, and no header.
    assert cost.get("get_range", 0) == 0
    assert cost["get"] <= 4


# Versions that come from the caller.


def test_versions_of_the_callers_own_are_found_without_a_slot_in_them() -> None:
    store = CountingStore(MemoryStore())
    db = database(store, retained_generations=100)
    face = Face("kv", FACE.schema, "caller")
    writer = open_for_writing(db.context(), "ns", face)
    rng = random.Random(1)
    lsns = [0]
    for i in range(60):
        lsns.append(lsns[-1] + rng.randint(1, 1000))
        writer.write(
            WriteRequest(batch=log_batch({b"k%d" % (i % 7): b"v"}), nbytes=2, lsn=lsns[-1])
        )
        if i % 7 == 6:
            writer.flush()
    for lsn in [*lsns, *(lsn + 1 for lsn in lsns[:-1])]:
        log = FeedLog(db.context(), "ns")
        store.reset()
        place = log.after(lsn)
        assert store.reset().total < 30
        found = [entry.log.lsn_last for entry in log.entries(place, lsns[-1])]
        assert found == [one for one in lsns if one > lsn]


# Documents.


def test_documents_are_shown_whole_with_the_attributes_that_there_are_now() -> None:
    ns = database(MemoryStore()).namespace("ns")
    first = ns.upsert([{"id": "a", "price": 1, "old": "x"}]).lsn
    ns.patch([{"id": "a", "price": 2, "vector": [1.0, 2.0]}])
    ns.flush()
    ns.delete(["a"])
    ns.alter(rename={"price": "cost"}, drop=["old"])
    ns.upsert([{"id": "b", "cost": 3}])
    rows = pa.Table.from_batches(ns.changes(before_image=True)).to_pylist()
    shown = [(r["_op"], r["id"], r["cost"], r["vector"], r["_before"]) for r in rows]
    assert shown == [
        ("upsert", "a", 1, None, None),
        ("upsert", "a", 2, [1.0, 2.0], {"cost": 1, "vector": None}),
        ("delete", "a", None, None, {"cost": 2, "vector": [1.0, 2.0]}),
        ("upsert", "b", 3, None, None),
    ]
    assert "old" not in rows[0]
    some = pa.Table.from_batches(ns.changes(after=first, columns=["cost"]))
    assert some.column_names == ["_op", "_lsn", "_committed_at", "id", "cost"]
    assert some.column("id").to_pylist() == ["a", "a", "b"]


def test_documents_without_attributes() -> None:
    ns = database(MemoryStore()).namespace("ns")
    ns.upsert([{"id": "a"}, {"id": "b"}])
    ns.delete(["a"])
    rows = pa.Table.from_batches(ns.changes(before_image=True)).to_pylist()
    assert [(r["_op"], r["id"], r["_before"]) for r in rows] == [
        ("upsert", "a", None),
        ("upsert", "b", None),
        ("delete", "a", {"id": "a"}),
    ]


@pytest.mark.parametrize("slots_max", [1, 2, 3])
def test_limited_steps_go_on_behind_damage_that_was_passed_over(slots_max: int) -> None:
    told = history(1)
    for _ in range(slots_max + 1):
        told.write()
    flip(told.world, told.world.slots()[-1])
    told.reopen()
    for _ in range(3):
        told.write()
    log = FeedLog(told.world.database().context(), NAMESPACE)
    position, steps = log.earliest(), 0
    while position.lsn < told.lsns[-1]:
        after = log.advance(position, slots_max=slots_max)
        assert after.lsn > position.lsn
        position, steps = after, steps + 1
    assert steps > 1
