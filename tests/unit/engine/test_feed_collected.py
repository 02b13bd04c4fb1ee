"""The change feed beside collection: all of it that is kept, and an error that says where to begin."""

from __future__ import annotations

import pyarrow as pa
import pytest

from reef.engine import COMMITTED_AT, OP, Feed, FeedLog, operations
from reef.errors import RetentionError
from reef.format import KEY, LSN, TOMBSTONE
from reef.kv import FACE
from reef.types import pack_lsn
from tests.support.engine.attaching import begin_load, upload
from tests.support.engine.collecting import DAY_S, NAMESPACE, World
from tests.support.engine.feed_history import FeedHistory, above, bare, history, told
from tests.support.engine.open_handles import writer_of
from tests.support.jobs.compactor import Compactor


def as_changes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of the kernel's feed under the names that the key-value face gives them."""
    columns = {
        OP: operations(rows[TOMBSTONE]),
        LSN: rows[LSN],
        COMMITTED_AT: rows[COMMITTED_AT],
        "key": rows[KEY],
        "value": rows["value"],
    }
    return pa.RecordBatch.from_pydict(columns)


def collected(**settings: object) -> FeedHistory:
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
    with pytest.raises(RetentionError, match="log begins at LSN"):
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


@pytest.mark.slow
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
                batches = feed.changes(
                    before, place.lsn, list(FACE.schema), leads_to=place.point.prev
                )
                found = told(map(as_changes, batches))
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
    with h.kv.snapshot(None, keep_log=True) as snapshot:
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


def test_what_the_log_of_a_snapshot_attaches_stays_with_it() -> None:
    world = World()
    kv = world.kv()
    kv.put(b"a", b"0")
    kv.snapshot(None, keep_log=True)
    after = kv.lsn
    context = world.database().context()
    job = begin_load(context, NAMESPACE)
    writer = writer_of(kv)
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
