"""Readers and views: what they see, what they cost, and that they never go back."""

from __future__ import annotations

import random

import pytest

from reef.errors import (
    ClosedError,
    DroppedError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    RetentionError,
    SnapshotExpiredError,
    UnavailableError,
)
from reef.manifest import set_retention
from reef.store import MemoryStore, Store
from reef.testing import CountingStore, ManualClock
from tests.support.engine.damage import flip
from tests.support.engine.open_database import database
from tests.support.engine.open_handles import handle_of
from tests.support.jobs.compactor import Compactor


def counted(store: CountingStore) -> dict[str, int]:
    return dict(store.reset().requests)


def test_opening_a_reader_costs_one_list_one_get_and_the_unfolded_log(store: Store) -> None:
    kv = database(store).kv("ns")
    for i in range(40):
        kv.put(b"k%d" % i, b"v")
    kv.flush()
    for i in range(5):
        kv.put(b"k%d" % i, b"w")
    counting = CountingStore(store)
    reader = database(counting).kv("ns", mode="r")
    found = counted(counting)
    assert found.pop("list") == 1
    in_vain = found.pop("get") - 1 - 5  # manifest and log; and what is behind it, for a hole
    assert 1 <= in_vain <= 32
    assert found == {}
    assert reader.lsn == kv.lsn


def test_an_idle_reader_costs_one_get_per_look_and_writes_nothing(store: Store) -> None:
    clock = ManualClock()
    kv = database(store, clock=clock).kv("ns")
    kv.put(b"a", b"1")
    counting = CountingStore(store)
    reader = database(counting, clock=clock).kv("ns", mode="r", max_staleness="1s")
    before = [meta.key for meta in store.list("namespaces/ns/manifest/")]
    counted(counting)
    for _ in range(1000):
        clock.advance(2)
        assert reader.get(b"a") == b"1"
    # Beside, the head of the manifest every half grace period, with probes behind the log's end.
    assert counted(counting) == {"get": 1000 + 4 * 11, "list": 4}
    assert [meta.key for meta in store.list("namespaces/ns/manifest/")] == before


def test_a_read_within_the_staleness_asks_nobody(store: Store) -> None:
    clock = ManualClock()
    kv = database(store, clock=clock).kv("ns")
    kv.put(b"a", b"1")
    counting = CountingStore(store)
    reader = database(counting, clock=clock).kv("ns", mode="r", max_staleness="10s")
    counted(counting)
    kv.put(b"a", b"2")
    assert reader.get(b"a") == b"1"
    assert counted(counting) == {}
    clock.advance(11)
    assert reader.get(b"a") == b"2"


def test_a_reader_out_of_touch_looks_at_the_head_before_it_trusts_an_absence(store: Store) -> None:
    clock = ManualClock()
    kv = database(store, clock=clock).kv("ns", gc_grace="10m")
    kv.put(b"a", b"1")
    counting = CountingStore(store)
    reader = database(counting, clock=clock).kv("ns", mode="r")
    for i in range(3):
        kv.put(b"a", b"%d" % (i + 2))
    kv.flush()
    # Collected: the reader's next slot looks like the end of the log.
    for slot in range(2, 6):
        store.delete(f"namespaces/ns/wal/{slot:020d}.wal")
    clock.advance(60)
    assert reader.refresh() < kv.lsn
    assert counted(counting)["get"] >= 1
    clock.advance(6 * 60)
    assert reader.refresh() == kv.lsn
    assert reader.get(b"a") == b"4"


def test_a_reader_that_is_in_touch_finds_out_that_the_namespace_was_dropped(store: Store) -> None:
    clock = ManualClock()
    db = database(store, clock=clock, gc_grace="10m")
    with db.kv("ns") as kv:
        kv.put(b"a", b"1")
    reader = database(store, clock=clock).kv("ns", mode="r", max_staleness="1m")
    db.drop("ns")
    with pytest.raises(DroppedError, match="was dropped"):
        for _ in range(5):
            clock.advance(61)
            assert reader.get(b"a") == b"1"


def test_min_lsn_catches_up_first(store: Store) -> None:
    clock = ManualClock()
    kv = database(store, clock=clock).kv("ns")
    reader = database(store, clock=clock).kv("ns", mode="r", max_staleness="1h")
    lsn = kv.put(b"a", b"1").lsn
    assert reader.get(b"a") is None
    assert reader.get(b"a", min_lsn=lsn) == b"1"
    assert reader.get_many([b"a"], min_lsn=lsn) == [b"1"]
    with pytest.raises(UnavailableError, match="not exist yet"):
        reader.get(b"a", min_lsn=lsn + 1)


def test_a_reader_drops_what_the_writer_has_folded(store: Store) -> None:
    kv = database(store).kv("ns")
    reader = database(store).kv("ns", mode="r", flush_threshold_slots=8)
    for i in range(100):
        kv.put(b"k%02d" % i, b"v")
        if i % 10 == 9:
            kv.flush()
        reader.refresh()
    assert reader.stats()["memtable"]["rows"] < 20
    assert len(list(reader.items())) == 100


def test_a_reader_that_was_overtaken_by_a_flush_loses_nothing(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    reader = database(store).kv("ns", mode="r")
    for i in range(50):
        kv.put(b"k%02d" % i, b"v")
    kv.flush()
    handle_of(reader).reload()
    assert reader.lsn == kv.lsn
    assert len(list(reader.items())) == 51


def test_no_such_namespace(store: Store) -> None:
    with pytest.raises(NotFoundError, match="opening it for writing creates it"):
        database(store).kv("ns", mode="r")


def test_an_idle_hour_of_a_writer_costs_nothing(store: Store) -> None:
    clock = ManualClock()
    counting = CountingStore(store)
    kv = database(counting, clock=clock).kv("ns", flush_interval="5s")
    kv.put(b"a", b"1")
    counted(counting)
    clock.advance(3600)
    assert kv.get(b"a") == b"1"
    assert list(kv.items()) == [(b"a", b"1")]
    assert counted(counting) == {}
    kv.put(b"b", b"2")  # and now the flush is due
    kv.close()
    assert kv.stats()["memtable"]["rows"] == 0


def test_a_cold_point_read_costs_two_gets_per_run_that_the_filters_let_through(
    store: Store,
) -> None:
    kv = database(store).kv("ns")
    value = random.Random(1).randbytes(1000)
    for run in range(4):
        kv.write({b"k%05d" % i: value for i in range(run, 4000, 4)})
        kv.flush()
    counting = CountingStore(store)
    reader = database(counting).kv("ns", mode="r")
    counted(counting)
    assert reader.get(b"k00042") == value
    # The tails of the four runs, in which the filters are, and one block.
    assert counted(counting) == {"get_range": 5}
    assert reader.get(b"k00046") == value
    assert counted(counting).get("get_range", 0) <= 1
    assert reader.get(b"k00043") == value
    assert counted(counting).get("get_range", 0) <= 1


def test_multi_get_shares_requests(store: Store) -> None:
    kv = database(store).kv("ns")
    value = random.Random(1).randbytes(1000)
    kv.write({b"k%05d" % i: value for i in range(4000)})
    kv.flush()
    counting = CountingStore(store)
    reader = database(counting).kv("ns", mode="r")
    counted(counting)
    keys = [b"k%05d" % i for i in range(0, 4000, 7)]
    assert reader.get_many([*keys, b"none"]) == [value] * len(keys) + [None]
    assert counted(counting)["get_range"] <= 3


# Views.


@pytest.mark.slow
def test_views_at_lsns_see_what_was_then(store: Store) -> None:
    kv = database(store).kv("ns")
    history = {}
    rng = random.Random(3)
    model: dict[bytes, bytes] = {}
    for i in range(200):
        key = b"k%d" % rng.randrange(20)
        if rng.random() < 0.3:
            lsn = kv.delete(key).lsn
            model.pop(key, None)
        else:
            lsn = kv.put(key, b"%d" % i).lsn
            model[key] = b"%d" % i
        history[lsn] = dict(model)
        if i % 50 == 49:
            kv.flush()
    for handle in (kv, database(store).kv("ns", mode="r")):
        for lsn, then in history.items():
            view = handle.at(lsn=lsn)
            assert dict(view.items()) == then
            assert list(view.items(reverse=True)) == sorted(then.items(), reverse=True)
            assert view.get_many([b"k%d" % n for n in range(20)]) == [
                then.get(b"k%d" % n) for n in range(20)
            ]
    with pytest.raises((InvalidInputError, UnavailableError)):
        kv.at(lsn=kv.lsn + 1)
    assert dict(kv.at(lsn=0).items()) == {}


def test_a_generation_shows_its_segments(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    kv.flush()
    generation = kv.stats()["generation"]
    kv.put(b"a", b"2")
    kv.flush()
    assert kv.at(generation=generation).get(b"a") == b"1"
    assert kv.at(generation=kv.stats()["generation"]).get(b"a") == b"2"
    with pytest.raises(SnapshotExpiredError, match="inspect"):
        kv.at(generation=999)


def test_snapshots_are_seen_elsewhere_until_they_are_released(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    with kv.snapshot(ttl="1h", id="mine") as snapshot:
        kv.put(b"a", b"2")
        kv.flush()
        assert snapshot.get(b"a") == b"1"
        reader = database(store).kv("ns", mode="r")
        assert reader.at(snapshot="mine").get(b"a") == b"1"
        before = snapshot.expires_at_us
        snapshot.renew("2h")
        assert snapshot.expires_at_us > before
        snapshot.renew(None)
        assert snapshot.expires_at_us == 0
    with pytest.raises(NotFoundError, match="no snapshot 'mine'"):
        reader.at(snapshot="mine")


def test_a_reader_takes_a_snapshot_of_the_newest(store: Store) -> None:
    kv = database(store).kv("ns")
    reader = database(store).kv("ns", mode="r", max_staleness="1h")
    kv.put(b"a", b"1")
    with reader.snapshot() as snapshot:
        kv.put(b"a", b"2")
        kv.flush()
        assert snapshot.get(b"a") == b"1"
        assert snapshot.lsn < kv.lsn


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_view_that_was_overtaken_never_says_no_such_key(store: Store, is_damaged: bool) -> None:
    db = database(store, block_cache_bytes=0)
    kv = db.kv("ns")
    then = kv.write({b"%03d" % n: b"old" for n in range(100)}).lsn
    kv.flush()
    (old,) = store.list("namespaces/ns/segments/")
    view = database(store, block_cache_bytes=0).kv("ns", mode="r").at(lsn=then)
    kv.write({b"%03d" % n: b"new" for n in range(100)})
    kv.flush()
    Compactor(db.context(), "ns").run(floor_lsn=kv.lsn)
    if is_damaged:
        flip(store, old.key)
    else:
        store.delete(old.key)
    for _ in range(2):
        with pytest.raises(SnapshotExpiredError):
            view.get(b"042")
        with pytest.raises(SnapshotExpiredError):
            list(view.items())
        with pytest.raises(SnapshotExpiredError):
            view.get_many([b"042"])


def test_a_missing_segment_is_never_no_such_key(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    kv.flush()
    reader = database(store).kv("ns", mode="r")
    for meta in list(store.list("namespaces/ns/segments/")):
        store.delete(meta.key)
    with pytest.raises(SnapshotExpiredError):
        reader.get(b"a")
    with pytest.raises(SnapshotExpiredError):
        reader.get_many([b"a"])
    with pytest.raises(SnapshotExpiredError):
        list(reader.items())


def test_below_the_retention_floor_is_refused(store: Store) -> None:
    db = database(store)
    kv = db.kv("ns")
    old = kv.put(b"a", b"1").lsn
    kv.put(b"a", b"2")
    kv.flush()
    kv.close()
    chain = db.context().chain("ns")
    chain.publish(lambda head: set_retention(head.manifest, floor_lsn=old + 1))  # type: ignore[union-attr]
    reader = database(store).kv("ns", mode="r")
    with pytest.raises(RetentionError, match="below"):
        reader.at(lsn=old)


@pytest.mark.parametrize("reverse", [False, True])
def test_ranges(store: Store, reverse: bool) -> None:
    kv = database(store).kv("ns")
    keys = [b"", b"a", b"a\0", b"a\xff", b"b", b"b\xff\xff", b"\xff", b"\xff\xff\xff"]
    kv.write({key: key for key in keys[::2]})
    kv.flush()
    kv.write({key: key for key in keys[1::2]})
    model = sorted(keys, reverse=reverse)
    for start in [None, *keys]:
        for end in [None, *keys]:
            for prefix in [None, b"", b"a", b"b\xff", b"\xff", b"\xff\xff\xff"]:
                wanted = [
                    key
                    for key in model
                    if (start is None or key >= start)
                    and (end is None or key < end)
                    and key.startswith(prefix or b"")
                ]
                found = kv.items(start=start, end=end, prefix=prefix, reverse=reverse)
                assert [key for key, _ in found] == wanted


def test_a_scan_goes_on_at_its_version_while_the_writer_goes_on(store: Store) -> None:
    kv = database(store).kv("ns", row_block_bytes="4KiB")
    kv.write({b"k%04d" % i: b"old" * 20 for i in range(2000)})
    kv.flush()
    scan = kv.scan()
    first = next(scan)
    kv.write({b"k%04d" % i: b"new" for i in range(2000)})
    kv.write(deletes=[b"k%04d" % i for i in range(1000)])
    kv.flush()
    rest = sum(batch.num_rows for batch in scan)
    assert first.num_rows + rest == 2000


def test_virtual_time_reaches_last_modified() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    kv = database(store, clock=clock).kv("ns")
    with kv.snapshot(ttl="1h") as snapshot:
        assert snapshot.expires_at_us == clock.now_us() + 3600 * 1_000_000


def test_a_multi_get_of_many_runs_asks_them_side_by_side(store: Store) -> None:
    kv = database(store).kv("ns")
    for run in range(12):
        kv.write({b"k%03d-%02d" % (i, run): b"v%d" % run for i in range(40)})
        kv.flush()
    asked: list[int] = []

    class Watched(CountingStore):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            asked.append(1)
            return super().get_range(key, start, length)

    reader = database(Watched(store)).kv("ns", mode="r")
    keys = [b"k%03d-%02d" % (i, i % 12) for i in range(40)]
    assert reader.get_many(keys) == [b"v%d" % (i % 12) for i in range(40)]
    assert len(asked) <= 24  # a tail and a block of each run
    assert reader.get_many([b"none", keys[0]]) == [None, b"v0"]


def test_a_multi_get_takes_the_newest_of_several_runs(store: Store) -> None:
    kv = database(store).kv("ns")
    for run in range(5):
        kv.write({b"a": b"%d" % run, b"only%d" % run: b"x"})
        if run < 4:
            kv.flush()
    kv.delete(b"only3")
    keys = [b"a", b"only0", b"only3", b"only4"]
    assert kv.get_many(keys) == [b"4", b"x", None, b"x"]
    assert kv.at(lsn=kv.lsn).get_many(keys) == [b"4", b"x", None, b"x"]


def test_a_scan_that_was_begun_goes_on_when_the_floor_rises(store: Store) -> None:
    db = database(store)
    kv = db.kv("ns")
    kv.write({b"k%d" % i: b"1" for i in range(5)})
    kv.flush()
    reader = database(store).kv("ns", mode="r")
    scan, view = reader.items(), reader.at(lsn=reader.lsn)
    kv.put(b"k0", b"2")
    kv.flush()
    chain = db.context().chain("ns")
    chain.publish(lambda head: set_retention(head.manifest, floor_lsn=kv.lsn))  # type: ignore[union-attr]
    handle_of(reader).reload()
    assert dict(scan) == {b"k%d" % i: b"1" for i in range(5)}
    assert view.get(b"k0") == b"1"
    assert reader.get(b"k0") == b"2"


def test_gauges_are_what_is_so_when_they_are_read(store: Store) -> None:
    db = database(store)
    kv = db.kv("ns")
    for i in range(5):
        kv.put(b"k%d" % i, b"v")
    stats = kv.stats()
    found = db.metrics.snapshot()
    assert found['reef_unfolded_log_bytes{namespace="ns"}'] == stats["unfolded_log"]["bytes"] > 0
    assert found['reef_memtable_bytes{namespace="ns"}'] == stats["memtable"]["bytes"] > 0
    kv.flush()
    found = db.metrics.snapshot()
    assert found['reef_unfolded_log_bytes{namespace="ns"}'] == 0
    assert found['reef_segments{namespace="ns",level="0"}'] == 1
    kv.close()
    assert not any('namespace="ns"' in name for name in db.metrics.snapshot())


def test_a_closed_database_opens_nothing_more(store: Store) -> None:
    db = database(store)
    kv = db.kv("ns")
    kv.put(b"a", b"1")
    db.close()
    with pytest.raises(ClosedError):
        db.kv("ns")
    with pytest.raises(ClosedError):
        kv.get(b"a")


def test_a_superseded_writer_does_not_claim_to_have_the_newest(store: Store) -> None:
    old = database(store).kv("ns")
    old.put(b"a", b"1")
    new = database(store, seed=2).kv("ns")
    lsn = new.put(b"a", b"2").lsn
    with pytest.raises(FencedError):
        old.put(b"b", b"1")
    for ask in (old.refresh, old.snapshot, lambda: old.get(b"a", min_lsn=lsn)):
        with pytest.raises(FencedError):
            ask()
