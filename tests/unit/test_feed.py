"""The change feed: every committed operation once, in order, from wherever one begins."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from reef.engine import Face, Feed, FeedLog, Position, WriteRequest, open_for_writing
from reef.engine import _feed as feed_module
from reef.errors import CorruptError, RetentionError, UnavailableError
from reef.format import (
    LogKind,
    LogObject,
    LogRecord,
    Prev,
    encode_log,
    log_key,
    segment_schema,
    with_field_id,
)
from reef.kv import KeyValue
from reef.kv._feed import COLUMNS, shown_changes
from reef.kv._rows import FACE, one_put
from reef.log import ChainPoint
from reef.manifest import end_intent, register_intent
from reef.store import MemoryStore
from reef.testing import CountingStore
from reef.types import pack_lsn
from tests.attaching import begin_load, upload
from tests.collecting import DAY_S, NAMESPACE, World
from tests.compactor import Compactor
from tests.kernel import database

Change = tuple[int, str, bytes, bytes | None, bytes | None]
"""Its version, what it did, the key, the value, and the value before."""


def told(batches: Iterator[pa.RecordBatch]) -> list[Change]:
    """Return changes as the model has them; without before images, None for those."""
    return [
        (
            row["_lsn"],
            row["_op"],
            row["key"],
            row["value"],
            row["_before"]["value"] if row.get("_before") else None,
        )
        for batch in batches
        for row in batch.to_pylist()
    ]


def bare(changes: list[Change]) -> list[Change]:
    return [(*change[:4], None) for change in changes]


def above(changes: list[Change], after: int, upto: int = 1 << 62) -> list[Change]:
    return [change for change in changes if after < change[0] <= upto]


@dataclass
class History:
    """A namespace that is written to, and the model of its feed."""

    world: World
    kv: KeyValue
    rng: random.Random
    state: dict[bytes, bytes] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    lsns: list[int] = field(default_factory=lambda: [0])
    serial: int = 0

    def value(self) -> bytes:
        self.serial += 1
        return b"%d" % self.serial

    def note(self, lsn: int, rows: list[tuple[bytes, bytes | None]]) -> None:
        for key, value in rows:
            op = "delete" if value is None else "upsert"
            self.changes.append((lsn, op, key, value, self.state.get(key)))
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value
        self.lsns.append(lsn)

    def key(self) -> bytes:
        return b"k%02d" % self.rng.randrange(12)

    def write(self) -> None:
        keys = self.rng.sample([b"k%02d" % i for i in range(12)], self.rng.randint(1, 4))
        cut = self.rng.randint(0, len(keys))
        puts = {key: self.value() for key in keys[:cut]}
        lsn = self.kv.write(puts, keys[cut:]).lsn
        self.note(lsn, [*puts.items(), *((key, None) for key in keys[cut:])])

    def attach(self) -> None:
        """Attach two segments with keys of their own and tombstones."""
        job = f"load-{self.serial}-{len(self.lsns)}"
        self.world.publish(
            lambda m: register_intent(m, id=job, kind="load", author="t", opened_at_us=0)
        )
        keys = sorted(self.rng.sample([b"k%02d" % i for i in range(12)], 4))
        rows = [(key, None if self.rng.random() < 0.3 else self.value()) for key in keys]
        refs = [self.world.write_segment(job, table(part)) for part in (rows[:2], rows[2:])]
        writer = self.kv._writer
        assert writer is not None
        lsn = writer.attach(list(reversed(refs))).lsn
        self.world.publish(lambda m: end_intent(m, job))
        self.note(lsn, rows)

    def reopen(self) -> None:
        """Another writer takes over: fences."""
        self.kv = self.world.kv()

    def void(self) -> None:
        """Let an object land that was in flight behind a write that lost its slot; then take over."""
        slot = self.world.slots()[-1] + 1
        log = LogObject(
            kind=LogKind.DATA,
            slot=slot,
            epoch=self.world.manifest.writer_epoch,
            writer_id=bytes(16),
            nonce=b"\7" * 16,
            created_at_us=0,
            prev=Prev(),
            records=(LogRecord(lsn=pack_lsn(slot, 0), batch=one_put(b"void", b"void")),),
        )
        self.world.inner.put_if_absent(log_key(NAMESPACE, slot), encode_log(log))
        self.reopen()
        self.write()


def table(rows: list[tuple[bytes, bytes | None]]) -> pa.Table:
    schema = segment_schema([with_field_id(pa.field("value", pa.binary()), 1)])
    columns = [
        [key for key, _ in rows],
        [1] * len(rows),
        [value is None for _, value in rows],
        [value for _, value in rows],
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def history(seed: int, **settings: object) -> History:
    world = World(seed=seed, **settings)
    return History(world, world.kv(), random.Random(seed))


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
    writer = h.kv._writer
    assert writer is not None
    slot = h.world.slots()[-1] + 1
    rows = [(pack_lsn(slot, i), b"k%d" % i, b"v%d" % i) for i in range(5)]
    log = LogObject(
        kind=LogKind.DATA,
        slot=slot,
        epoch=writer.epoch,
        writer_id=bytes(16),
        nonce=b"\7" * 16,
        created_at_us=0,
        prev=writer.tail.fold.point.prev,
        records=tuple(LogRecord(lsn=lsn, batch=one_put(key, value)) for lsn, key, value in rows),
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


# Collected.


def collected(**settings: object) -> History:
    """Return a namespace whose first objects were folded and collected, and some that were not."""
    h = history(5, **settings)
    for _ in range(10):
        h.write()
    h.kv.flush()
    h.world.age()
    h.world.collect()
    for _ in range(4):
        h.write()
    return h


def test_what_was_collected_is_an_error_that_says_where_to_begin() -> None:
    h = collected()
    reader = h.world.kv("r")
    assert min(h.world.slots()) < 11  # fences stay
    first_kept = h.lsns[11]
    for lsn in (0, h.lsns[1], h.lsns[9]):
        with pytest.raises(RetentionError, match="snapshot") as caught:
            reader.changes(after=lsn)
        assert f"after LSN {h.lsns[10]}" in str(caught.value)
    assert told(reader.changes(after=h.lsns[10])) == bare(above(h.changes, h.lsns[10]))
    assert told(reader.changes()) == bare([c for c in h.changes if c[0] >= first_kept])


def test_a_consumer_that_had_everything_goes_on_after_a_collection() -> None:
    h = history(5)
    for _ in range(10):
        h.write()
    log = FeedLog(h.world.database().context(), NAMESPACE)
    place = log.newest()
    h.kv.flush()
    h.world.age()
    h.world.collect()
    reopened = FeedLog(h.world.database().context(), NAMESPACE)
    assert reopened.advance(place).lsn == place.lsn
    h.write()
    h.world.clock.advance(1)
    for one in (log, reopened):
        assert one.advance(place).lsn == h.lsns[-1]
    assert told(h.world.kv("r").changes(after=place.lsn)) == bare(above(h.changes, place.lsn))


@pytest.mark.parametrize("openings", [1, 3])
def test_a_consumer_goes_on_where_only_fences_lie_between_it_and_what_is_kept(
    openings: int,
) -> None:
    """Fences are never collected, but the boundary passes them."""
    h = history(5, pitr_window=DAY_S)
    for _ in range(10):
        h.write()
    behind = FeedLog(h.world.database().context(), NAMESPACE)
    lagging = behind.advance(behind.earliest(), slots_max=3)
    place = behind.newest()
    reader = h.world.kv("r")
    seen = told(reader.changes())
    for _ in range(openings):
        h.reopen()
    h.world.clock.advance(2 * DAY_S)
    h.write()
    h.write()
    h.kv.flush()
    h.world.age()
    h.world.collect()
    assert place.next_slot < h.world.manifest.gc.boundary.slot
    for log in (behind, FeedLog(h.world.database().context(), NAMESPACE)):
        assert log.advance(place).lsn == h.lsns[-1]
        assert [entry.log.lsn_last for entry in log.entries(place, h.lsns[-1])] == h.lsns[-2:]
        with pytest.raises(RetentionError, match="collected"):
            log.advance(lagging)
    # A reader that has come there itself, and any version behind the last that was collected.
    assert seen[-1][0] == place.lsn
    for one, lsn in ((reader, place.lsn), (h.world.kv("r"), pack_lsn(place.next_slot, 0))):
        assert told(one.changes(after=lsn)) == bare(above(h.changes, place.lsn))
    with pytest.raises(RetentionError, match="collected"):
        h.world.kv("r").changes(after=place.lsn)  # nothing says that its object had no more


def test_a_consumer_that_lags_is_told_and_not_left_with_a_gap() -> None:
    h = history(5)
    for _ in range(10):
        h.write()
    log = FeedLog(h.world.database().context(), NAMESPACE)
    place = log.advance(log.earliest(), slots_max=3)
    h.kv.flush()
    h.world.age()
    h.world.collect()
    h.write()
    with pytest.raises(RetentionError, match="kept from LSN"):
        log.advance(place)
    with pytest.raises(RetentionError):
        list(log.entries(place, h.lsns[-1]))


def test_a_collection_in_the_middle_of_reading_is_told() -> None:
    h = history(5)
    for _ in range(30):
        h.write()
    h.kv.flush()
    h.world.age()
    log = FeedLog(h.world.database().context(), NAMESPACE)
    entries = log.entries(log.earliest(), h.lsns[-1])
    next(entries)
    h.world.collect()
    with pytest.raises(RetentionError, match="collected"):
        list(entries)


def test_a_window_keeps_the_log_below_every_retained_generation() -> None:
    h = history(5, pitr_window=DAY_S)
    for i in range(40):
        h.write()
        if i % 5 == 4:
            h.kv.flush()
        if i == 20:
            h.void()
    Compactor(h.world.db.context(), NAMESPACE).run()
    h.world.age()
    h.world.collect()
    assert len(h.world.generations()) < 5
    for lsn in h.lsns:
        fresh = h.world.kv("r")
        assert told(fresh.changes(after=lsn)) == bare(above(h.changes, lsn))
    h.world.clock.advance(DAY_S)
    h.world.age()
    h.world.collect()
    with pytest.raises(RetentionError):
        h.world.kv("r").changes(after=h.lsns[5])
    assert told(h.world.kv("r").changes(after=h.lsns[-1])) == []


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_collected_meanwhile_there_is_all_of_it_or_an_error(seed: int) -> None:
    """Never a gap, never twice: from any version, by readers old and new, and by followers."""
    h = history(seed, pitr_window=DAY_S if seed % 2 else None)
    log = FeedLog(h.world.database().context(), NAMESPACE)
    place = log.earliest()
    refused = 0

    def age() -> None:
        h.world.clock.advance(h.rng.choice([1, 100, 1000, DAY_S / 3]))

    def compact() -> None:
        Compactor(h.world.db.context(), NAMESPACE).run()

    steps = [h.write] * 10 + [h.attach, h.reopen, h.void, compact] + [lambda: h.kv.flush()] * 3
    steps += [age] * 3 + [lambda: h.world.collect()] * 2
    reader = h.world.kv("r")
    for _ in range(120):
        h.rng.choice(steps)()
        if h.rng.random() < 0.3:
            before = place
            try:
                place = log.advance(before, slots_max=h.rng.choice([1, 5, None]))
                feed = Feed(h.world.database().context(), NAMESPACE)
                batches = feed.changes(before, place.lsn, COLUMNS, leads_to=place.point.prev)
                found = told(shown_changes(batches, before_image=False))
            except RetentionError:
                refused += 1
                place = log.newest()
            else:
                assert found == bare(above(h.changes, before.lsn, place.lsn))
        if h.rng.random() < 0.1:
            lsn = h.rng.choice(h.lsns)
            for one in (reader, h.world.kv("r")):
                try:
                    found = told(one.changes(after=lsn))
                except RetentionError:
                    refused += 1
                else:
                    assert found == bare(above(h.changes, lsn))
    assert told(h.world.kv("r").changes(after=h.lsns[-1])) == []
    kept = told(h.world.kv("r").changes())
    assert kept == bare(h.changes[len(h.changes) - len(kept) :])


def test_a_snapshot_keeps_the_log_behind_it() -> None:
    h = history(7)
    for _ in range(10):
        h.write()
    h.kv.flush()
    with h.kv.snapshot(None) as snapshot:
        for _ in range(10):
            h.write()
        h.kv.flush()
        h.world.age()
        h.world.collect()
        reader = h.world.kv("r")
        rows = dict(reader.at(snapshot=snapshot.id).items())
        for _, op, key, value, _ in told(reader.changes(after=snapshot.lsn)):
            rows.pop(key, None) if op == "delete" else rows.__setitem__(key, value)  # type: ignore[arg-type]
        assert rows == h.state


def test_an_attached_segment_that_is_gone_is_told() -> None:
    h = history(3)
    h.write()
    h.attach()
    for id in h.world.segments():
        h.world.inner.delete(f"namespaces/{NAMESPACE}/segments/{id}.seg")
    with pytest.raises(RetentionError, match="attached"):
        list(h.world.database().kv(NAMESPACE, mode="r").changes())


def test_before_images_below_the_floor_are_refused() -> None:
    h = history(5, pitr_window=DAY_S)
    for _ in range(10):
        h.write()
    h.kv.flush()
    Compactor(h.world.db.context(), NAMESPACE).run(floor_lsn=h.lsns[6])
    reader = h.world.kv("r")
    with pytest.raises(RetentionError, match="before images"):
        list(reader.changes(after=h.lsns[3], before_image=True))
    after = h.lsns[6]
    assert told(reader.changes(after=after, before_image=True)) == above(h.changes, after)
    assert told(reader.changes(after=h.lsns[3])) == bare(above(h.changes, h.lsns[3]))


# Ends, and damage.


def test_what_lies_ahead_is_not_there_yet() -> None:
    h = history(1)
    h.write()
    reader = h.world.kv("r")
    for asked in ({"after": h.lsns[-1] + 1}, {"upto": h.lsns[-1] + 1}):
        with pytest.raises(UnavailableError, match="not there yet"):
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


def counted(h: History) -> tuple[CountingStore, FeedLog]:
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
    assert cost.requests["get"] == 1
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
        writer.write(WriteRequest(batch=one_put(b"k%d" % (i % 7), b"v"), nbytes=2, lsn=lsns[-1]))
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


def test_what_the_log_of_a_snapshot_attaches_stays_with_it() -> None:
    world = World()
    kv = world.kv()
    kv.put(b"a", b"0")
    kv.snapshot(None)
    after = kv.lsn
    context = world.database().context()
    job = begin_load(context, NAMESPACE)
    writer = kv._writer
    assert writer is not None
    writer.attach([upload(context, job, {b"a": b"1", b"b": b"2"})])
    job.end()
    kv.put(b"c", b"3")
    kv.flush()
    Compactor(context, NAMESPACE).run(floor_lsn=kv.lsn)
    for _ in range(3):
        world.age(8, 3 * 86_400)
        world.collect()
    reader = world.database().kv(NAMESPACE, mode="r")
    rows = [key for batch in reader.changes(after=after) for key in batch["key"].to_pylist()]
    assert rows == [b"a", b"b", b"c"]
