"""Times: which version was the newest by then, what finding it costs, and what is refused."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from reef.errors import InvalidInputError, RetentionError
from reef.format import Copied, Manifest, decode_log, encode_log, log_key
from reef.kv import KeyValue
from reef.manifest import set_retention
from reef.pages import WalRecord
from reef.settings import iso_time
from reef.store import MemoryStore, ObjectMeta
from reef.testing import CountingStore, ManualClock
from tests.support.engine.branching import Grove
from tests.support.engine.collecting import GRACE_S, NAMESPACE, World, filled
from tests.support.jobs.compactor import Compactor

SECOND_US = 1_000_000


def set_times(store: MemoryStore, namespace: str, times: Sequence[int]) -> None:
    """Give the log objects from slot 1 on other times of their last change."""
    for slot, at_us in enumerate(times, 1):
        key = log_key(namespace, slot)
        store._bucket.objects[key] = (store._bucket.objects[key][0], at_us)


def put_each(kv: KeyValue, count: int) -> list[int]:
    """Commit so many batches, a second apart; return their versions."""
    return [kv.put(b"k%d" % (number % 5), b"%d" % number).lsn for number in range(count)]


# Which version.


@pytest.mark.parametrize("disorder", [1, 7, 63])
def test_it_is_the_end_of_the_longest_prefix_that_was_written_by_then(disorder: int) -> None:
    """The times of writes side by side are in no order, and stores round them."""
    rng = random.Random(disorder)
    world = World(flush_threshold_slots=10**6)
    kv = world.kv()
    first = len(world.slots())
    lsns = put_each(kv, 300)
    world.clock.advance(10_000)
    began_us = ManualClock().now_us()
    exact = [began_us + SECOND_US * number // 3 for number in range(first + 300)]
    shuffled = sorted(
        range(len(exact)), key=lambda number: number + rng.uniform(0, disorder - 0.99)
    )
    times = [exact[number] // SECOND_US * SECOND_US for number in shuffled]
    assert isinstance(world.inner, MemoryStore)
    set_times(world.inner, NAMESPACE, times)
    for at_us in range(times[first], exact[-1] + 2 * SECOND_US, SECOND_US // 2):
        end = next((i for i, at in enumerate(times) if at > at_us), len(times))
        expected = 0 if end <= first else lsns[end - first - 1]
        assert kv.at(time=at_us).lsn == expected


def test_a_long_log_is_searched_with_few_requests() -> None:
    clock = ManualClock()
    store = CountingStore(MemoryStore(clock=clock))
    world = World(store, flush_threshold_slots=500)
    world.clock = clock
    world.db = world.database()
    kv = world.kv()
    versions = []
    for number in range(6000):
        clock.advance(1)
        versions.append((clock.now_us(), kv.put(b"k", b"%d" % number).lsn))
    clock.advance(1)
    with world.database().kv(NAMESPACE, mode="r") as reader:
        for at_us, lsn in versions[::599]:
            store.reset()
            assert reader.at(time=at_us + SECOND_US // 2).lsn == lsn
            # Of them: a GET for the end of the log, a LIST of slots, a header, a LIST and a GET of
            # the head; the rest is the bisection.
            assert store.counts.total <= 11, store.counts
            assert store.counts.requests["list"] <= 3
            assert store.counts.requests["head"] <= 4


class RoundedHeads(MemoryStore):
    """HEAD answers in HTTP's dates, of whole seconds; LIST in milliseconds."""

    def head(self, key: str) -> ObjectMeta:
        meta = super().head(key)
        return meta._replace(last_modified_us=meta.last_modified_us // SECOND_US * SECOND_US)


def test_a_head_may_be_less_exact_than_a_list() -> None:
    clock = ManualClock()
    world = World(RoundedHeads(clock=clock), flush_threshold_slots=10**6)
    world.clock = clock
    world.db = world.database()
    kv = world.kv()
    versions = []
    for number in range(2500):
        clock.advance(0.002)
        versions.append((clock.now_us(), kv.put(b"k", b"%d" % number).lsn))
    clock.advance(10)
    for at_us, lsn in versions[::97]:
        assert kv.at(time=at_us).lsn == lsn


def test_a_void_object_does_not_name_the_version_where_callers_give_lsns() -> None:
    """Its LSN may be that of a commit which came after the time."""
    clock = ManualClock()
    grove = Grove(store=MemoryStore(clock=clock), max_parallel_writes=4)
    grove.clock = clock
    grove.db = grove.database()
    with grove.db.pages("p", lsn_policy="caller") as pages:
        pages.append_wal([WalRecord(0, 10, bytes(4096))])
        clock.advance(10)
    listed = [meta.key for meta in grove.inner.list("namespaces/p/wal/")]
    newest = len(listed)
    log = decode_log(grove.inner.get(listed[-1]), slot=newest, lsn_policy="caller")
    record = msgspec.structs.replace(log.records[0], lsn=25)
    late = msgspec.structs.replace(log, slot=newest + 3, records=(record,), nonce=b"\2" * 16)
    grove.inner.put_if_absent(log_key("p", newest + 3), encode_log(late))
    with grove.db.pages("p") as pages:
        clock.advance(10)
        at_us = clock.now_us()
        clock.advance(10)
        pages.append_wal([WalRecord(0, 20, bytes(4096))])
        clock.advance(10)
        assert pages.at(time=at_us).lsn == 10
        assert pages.at(time=clock.now_us()).lsn == 20


def test_every_face_and_every_form_of_a_time(grove: Grove) -> None:
    clock = grove.clock
    with (
        grove.db.namespace("docs") as docs,
        grove.db.kv("kv") as kv,
        grove.db.pages("pages") as pages,
    ):
        before = docs.upsert([{"id": "a", "n": 1}]).lsn, kv.put(b"a", b"1").lsn, pages.write({})
        pages.write({0: bytes(4096)})
        clock.advance(1)
        at_us = clock.now_us()
        clock.advance(1)
        docs.upsert([{"id": "a", "n": 2}])
        kv.put(b"a", b"2")
        pages.write({0: b"x" * 4096})
        clock.advance(1)
        then = datetime.datetime.fromtimestamp(at_us / 1e6, datetime.UTC)
        east = then.astimezone(datetime.timezone(datetime.timedelta(hours=5)))
        for time in (at_us, iso_time(at_us), then, east, east.isoformat()):
            assert docs.at(time=time).get("a") == {"id": "a", "n": 1}
            assert docs.at(time=time).lsn == before[0]
            assert kv.at(time=time).get(b"a") == b"1"
            assert pages.at(time=time).get_page(0) == bytes(4096)


@pytest.mark.parametrize(
    "time", ["2026-11-16", "2026-11-16T23:00:00", "tomorrow", 1.5, True, -1, "", 2**62,
             "2026-11-16T23:00:00.1234567Z", datetime.date(2026, 11, 16)]
)  # fmt: skip
def test_what_is_no_time_with_a_zone_is_refused(grove: Grove, time: Any) -> None:
    with grove.kv() as kv, pytest.raises(InvalidInputError, match="time"):
        kv.at(time=time)


def test_a_time_ahead_is_refused_by_the_clock_of_the_store() -> None:
    clock, stores = ManualClock(), ManualClock()
    world = World(MemoryStore(clock=stores))
    world.clock = clock
    world.db = world.database()
    kv = world.kv()
    stores.advance(3600)
    lsn = kv.put(b"a", b"1").lsn
    with world.database().kv(NAMESPACE, mode="r") as reader:
        # What the store has dated an hour ahead of this machine is not ahead.
        assert reader.at(time=stores.now_us()).lsn == lsn
        with pytest.raises(InvalidInputError, match="in the past; it is"):
            reader.at(time=stores.now_us() + 1)
    with pytest.raises(InvalidInputError, match="one of lsn, generation, snapshot and time"):
        kv.at(time=1, lsn=1)
    with pytest.raises(InvalidInputError, match="lsn and time are both given"):
        kv.branch("b", lsn=1, time=1)


# What is not kept any more.


def aged(**settings: object) -> tuple[World, KeyValue, list[tuple[int, int]]]:
    """A namespace that was written over hours; the times and versions of its commits."""
    world = World(**settings)
    kv = world.kv()
    versions = []
    for number in range(6):
        versions.append((world.clock.now_us(), kv.put(b"k", b"%d" % number).lsn))
        kv.flush()
        world.clock.advance(600)
    return world, kv, versions


def test_where_the_log_was_collected_the_newest_retained_generation_answers() -> None:
    world, kv, versions = aged()
    kept = world.publish()
    kv.snapshot(None, id="s")
    world.clock.advance(1)
    at_us = world.clock.now_us()
    world.clock.advance(600)
    later = kv.put(b"k", b"later").lsn
    world.age()
    kv.put(b"k", b"last")
    kv.flush()
    world.age()
    world.collect()
    assert world.manifest.gc.boundary.slot > 6
    assert at_us > kept.published_at_us
    assert kv.at(time=at_us).lsn == versions[-1][1]
    assert kv.at(time=at_us).get(b"k") == b"5"
    with pytest.raises(RetentionError, match="its oldest generation is of"):
        kv.at(time=versions[2][0])
    assert kv.at(lsn=later).get(b"k") == b"later"


def test_below_the_retention_floor_only_what_a_snapshot_keeps_is_read() -> None:
    world, kv, versions = aged(pitr_window="7d")
    (at_us, lsn), (kept_us, kept) = versions[1], versions[3]
    kv.snapshot(None, id="s", time=kept_us)
    Compactor(world.db.context(), NAMESPACE).run(floor_lsn=kv.lsn)
    kv.refresh()
    world.publish()
    kv.at(snapshot="s")
    assert kv.at(time=kept_us).lsn == kept
    assert kv.at(time=kept_us).get(b"k") == b"3"
    with pytest.raises(RetentionError, match=f"was at LSN {lsn}, below its retention floor"):
        kv.at(time=at_us)
    with pytest.raises(RetentionError):
        kv.branch("b", time=at_us)
    with pytest.raises(RetentionError):
        kv.snapshot(time=at_us)


def test_a_collection_beside_it_never_makes_the_answer_another_one() -> None:
    """It deletes side by side: an old object may be there longer than a newer one."""
    world, kv, versions = aged()
    world.age()
    newest = kv.put(b"k", b"newest").lsn
    late = log_key(NAMESPACE, 3)
    assert isinstance(world.inner, MemoryStore)
    old = world.inner._bucket.objects[late]

    def half_collected() -> None:
        world.collect(world.inner)
        world.inner.put_if_absent(late, old[0])
        world.inner._bucket.objects[late] = old  # type: ignore[attr-defined]

    with world.db.kv(NAMESPACE, mode="r") as reader:
        assert reader.refresh() == newest
        world.store.once("list", "wal", half_collected)
        with pytest.raises(RetentionError):
            reader.at(time=versions[4][0])
    assert 3 in world.slots()
    assert 6 not in world.slots()


def test_where_the_log_was_collected_a_snapshot_by_then_answers() -> None:
    """Its generation has next to nothing in segments; what it holds is in its own log objects."""
    world = World()
    kv = world.kv()
    versions = []
    for number in range(20):
        versions.append((world.clock.now_us(), kv.put(b"%d" % number, b"v").lsn))
        world.clock.advance(10)
        if number in (9, 14):
            kv.snapshot(None, id=f"s{number}")
    world.clock.advance(10)
    kv.put(b"late", b"1")
    kv.flush()
    world.age()
    world.collect()
    for number, expected in ((9, 9), (12, 9), (14, 14), (17, 14)):
        at_us, _ = versions[number]
        view = kv.at(time=at_us + 1)
        assert view.lsn == versions[expected][1]
        assert len(dict(view.items())) == expected + 1
    with pytest.raises(RetentionError):
        kv.at(time=versions[5][0])


def test_of_a_log_that_was_collected_to_its_end_the_generations_tell() -> None:
    world, _, versions = aged()
    world.age()
    world.collect()
    assert world.slots() == [1, 7]  # a fence, and the object at `wal_anchor`
    with world.db.kv(NAMESPACE, mode="r") as reader:
        assert reader.at(time=world.clock.now_us()).lsn == versions[-1][1]
        with pytest.raises(RetentionError):
            reader.at(time=versions[-1][0])


def test_before_the_beginning_there_is_nothing(grove: Grove) -> None:
    born_us = grove.clock.now_us()
    grove.clock.advance(10)
    kv = grove.kv()
    grove.clock.advance(10)
    empty_us = grove.clock.now_us()
    grove.clock.advance(10)
    lsn = kv.put(b"a", b"1").lsn
    grove.clock.advance(10)
    assert kv.at(time=empty_us).lsn == 0
    assert kv.at(time=empty_us).get(b"a") is None
    with pytest.raises(RetentionError):
        kv.at(time=born_us)
    kv.branch("b")
    made_us = grove.clock.now_us()
    grove.clock.advance(10)
    with grove.kv("b") as branch:
        branch.put(b"a", b"2")
        grove.clock.advance(10)
        assert branch.at(time=made_us).lsn == lsn
        with pytest.raises(RetentionError, match="its parent 'ns' may still have it"):
            branch.at(time=empty_us)


# Copies.


def copied(world: World) -> list[tuple[int, int]]:
    """Copy a bucket the way a backup comes back: all objects are new; return times and versions."""
    kv = world.kv()
    versions = []
    for number in range(150):
        world.clock.advance(1)
        versions.append((world.clock.now_us(), kv.put(b"k%d" % (number % 3), b"%d" % number).lsn))
    kv.close()
    newest_us = world.clock.now_us()
    world.clock.advance(GRACE_S)
    last_slot = world.slots()[-1]
    assert isinstance(world.inner, MemoryStore)
    set_times(world.inner, NAMESPACE, [world.clock.now_us()] * last_slot)

    def marked(m: Manifest) -> Manifest:
        return msgspec.structs.replace(
            m, copied=Copied(last_slot, newest_us, m.born, 1, m.writer_epoch, 1)
        )

    world.publish(marked)
    world.clock.advance(10)
    return versions


def test_in_a_copy_the_headers_have_the_times() -> None:
    world = World(flush_threshold_slots=10**6)
    versions = copied(world)
    kv = world.kv()
    for at_us, lsn in versions[::7]:
        assert kv.at(time=at_us).lsn == lsn
        assert kv.at(time=at_us + SECOND_US // 2).lsn == lsn
    # Between the last write before the copy and the copy, and after it.
    assert kv.at(time=versions[-1][0] + 100 * SECOND_US).lsn == versions[-1][1]
    own = kv.put(b"own", b"1").lsn
    own_us = world.clock.now_us()
    world.clock.advance(10)
    assert kv.at(time=own_us - 1).lsn == versions[-1][1]
    assert kv.at(time=own_us).lsn == own
    kv.flush()
    world.clock.advance(10)
    assert kv.at(time=versions[70][0]).lsn == versions[70][1]
    assert world.manifest.copied is not None


def test_the_clocks_of_the_writers_of_a_copy_need_not_agree() -> None:
    """The greatest time so far counts: one writer was an hour ahead."""
    world = World(flush_threshold_slots=10**6)
    assert isinstance(world.inner, MemoryStore)
    versions = []
    for ahead_s in (0, 3600, 0):
        clock = ManualClock(world.clock.now_us() + ahead_s * SECOND_US)
        other = MemoryStore(clock=clock)
        other._bucket = world.inner._bucket  # the same bucket, dated by another clock
        with world.database(other, clock).kv(NAMESPACE) as kv:
            for _ in range(4):
                clock.advance(1)
                world.clock.advance(1)
                versions.append((clock.now_us(), kv.put(b"k", b"").lsn))
    newest_us = max(at_us for at_us, _ in versions)
    last_slot = world.slots()[-1]
    world.publish(
        lambda m: msgspec.structs.replace(
            m, copied=Copied(last_slot, newest_us, m.born, 1, m.writer_epoch, 1)
        )
    )
    world.clock.advance(2 * 3600)
    with world.database().kv(NAMESPACE, mode="r") as reader:
        assert reader.at(time=versions[3][0]).lsn == versions[3][1]
        assert reader.at(time=versions[11][0]).lsn == versions[3][1]
        assert reader.at(time=newest_us - 1).lsn == versions[6][1]
        assert reader.at(time=newest_us).lsn == versions[11][1]


# Snapshots and branches at a time.


def test_snapshots_and_branches_are_made_of_a_time(grove: Grove) -> None:
    kv = grove.kv()
    versions = []
    for number in range(5):
        lsn = kv.put(b"k", b"%d" % number).lsn
        versions.append((grove.clock.now_us(), lsn))
        grove.clock.advance(10)
    at_us, lsn = versions[2]
    by_time, by_lsn = kv.snapshot(time=at_us, id="t"), kv.snapshot(lsn=versions[1][1], id="l")
    newest = kv.snapshot(id="n")
    assert [s.lsn for s in (by_time, by_lsn, newest)] == [lsn, versions[1][1], kv.lsn]
    assert [(s.id, s.lsn) for s in kv.snapshots()] == [
        ("t", lsn), ("l", versions[1][1]), ("n", kv.lsn),
    ]  # fmt: skip
    kv.flush()
    Compactor(grove.db.context(), "ns").run(floor_lsn=kv.lsn)
    assert by_time.get(b"k") == b"2"
    assert kv.at(snapshot="l").get(b"k") == b"1"
    with grove.kv(mode="r") as reader:
        assert [s.id for s in reader.snapshots()] == ["t", "l", "n"]
        by_lsn.release()
        assert [s.id for s in reader.snapshots()] == ["t", "n"]
        with pytest.raises(RetentionError):
            reader.snapshot(lsn=versions[0][1])
    assert kv.branch("b", time=iso_time(grove.clock.now_us())).lsn == kv.lsn


def test_the_floor_that_readers_know_may_be_old() -> None:
    world = World(pitr_window="7d")
    kv = filled(world)
    at_us, lsn = world.clock.now_us(), kv.lsn
    world.clock.advance(60)
    world.publish(lambda m: set_retention(m, floor_lsn=m.last_applied_lsn))
    assert kv.at(time=at_us).lsn == lsn
