"""What a compaction may drop: tombstones and versions that nothing and nobody can see any more."""

from __future__ import annotations

from reef.database import Database
from reef.format import Manifest
from reef.jobs import CompactionOptions, InProcess
from reef.pages import WalRecord
from reef.store import MemoryStore
from reef.testing import ManualClock
from tests.support.jobs.passes import compact
from tests.support.jobs.shop import Shop


def test_a_tombstone_goes_only_where_no_older_run_has_keys(shop: Shop) -> None:
    shop.base(100, 500)  # much larger: it is not among the inputs
    for i in range(4):
        shop.flush({b"key-%05d" % (100 + i): b"1"}, [b"key-%05d" % (300 + i), b"key-00299"])
    for i in range(4):
        shop.flush({b"zzz-%d" % i: b"1", b"zzz-a": b"1"}, [b"zzz-01", b"zzz-%d" % (i + 1)])
    fresh = [ref.size for ref in shop.segments if ref.rows < 400]
    options = CompactionOptions(target_size_bytes=min(sum(fresh[:4]), sum(fresh[4:])))
    over, beside = shop.planned(options).groups
    assert {some.is_bottom for some in over.ranges} == {False}
    assert {some.is_bottom for some in beside.ranges} == {True}
    before = shop.contents()
    shop.compact(options)
    assert shop.contents() == before
    above = [ref for ref in shop.segments if ref.key_min.startswith(b"key") and ref.rows < 400]
    assert (sum(ref.rows for ref in above), sum(ref.tombstones for ref in above)) == (9, 5)
    aside = [ref for ref in shop.segments if ref.key_min.startswith(b"zzz")]
    assert (sum(ref.rows for ref in aside), sum(ref.tombstones for ref in aside)) == (5, 0)
    shop.check()
    shop.compact(CompactionOptions(full=True))
    assert shop.tombstones() == 0
    assert shop.contents() == before


def test_the_floor_is_recorded_before_anything_is_dropped(shop: Shop) -> None:
    for mark in (b"1", b"2", b"3", b"4"):
        shop.run(0, 10, mark=mark)
    assert shop.manifest.retention.floor_lsn == 0
    generations = []
    shop.store.before = lambda operation, key: generations.append((operation, key))
    result = shop.compact()
    shop.store.before = lambda operation, key: None
    m = shop.manifest
    assert result.floor_lsn == m.retention.floor_lsn == m.last_applied_lsn
    chain = shop.chain(shop.inner)
    first_without = next(
        g for g in (chain.at(n.number) for n in chain.generations()) if _names_output(g.manifest)
    )
    before = chain.at(first_without.generation - 1).manifest
    assert before.retention.floor_lsn == m.last_applied_lsn
    assert len(before.segments) == 4


def _names_output(m: Manifest) -> bool:
    return any("compact" in ref.id for ref in m.segments)


def test_within_the_window_for_time_travel_every_version_stays() -> None:
    shop = Shop(pitr_window=3600.0)
    lsns = []
    for mark in (b"1", b"2", b"3", b"4"):
        lsns.append(shop.run(0, 10, mark=mark))
        shop.clock.advance(1000)
    result = shop.compact()
    # "4" was written 1,000 s ago, "1" 4,000 s ago.
    assert result.rows_out == 40
    assert lsns[0] >= shop.manifest.retention.floor_lsn > 0
    for lsn, mark in zip(lsns, (b"1", b"2", b"3", b"4"), strict=True):
        assert shop.kv("r").at(lsn=lsn).get(b"key-00001") == mark + b"value-00001" * 3
    shop.clock.advance(3000)
    shop.run(0, 10, times=3)
    shop.compact(CompactionOptions(full=True))
    assert shop.manifest.retention.floor_lsn == lsns[3]
    assert shop.kv("r").at(lsn=lsns[3]).get(b"key-00001") == b"4" + b"value-00001" * 3


def test_the_floor_stops_at_a_version_and_not_at_a_fence() -> None:
    """Else the newest version of before the window could not be read by its own LSN."""
    shop = Shop(pitr_window=3600.0)
    lsn = shop.run(0, 10, mark=b"1")
    for _ in range(2):
        shop.writer = shop.kv()  # fences
    shop.clock.advance(4000)
    for mark in (b"2", b"3", b"4"):
        shop.run(0, 10, mark=mark)
    shop.compact()
    assert shop.manifest.retention.floor_lsn == lsn
    assert shop.kv("r").at(lsn=lsn).get(b"key-00001") == b"1" + b"value-00001" * 3


def test_versions_of_a_dropped_namespace_are_no_measure_for_the_floor() -> None:
    clock = ManualClock()
    db = Database(MemoryStore(clock=clock), clock=clock, pitr_window=3600.0, flush_interval=0)

    def write(*lsns: int) -> None:
        with db.pages("p", lsn_policy="caller") as pages:
            for lsn in lsns:
                pages.append_wal([WalRecord(0, lsn, b"%04d" % lsn * 1024)])
                pages.flush()

    write(1000)
    db.drop("p")
    clock.advance(4000)
    write(10, 20, 30, 40)
    context = db.context()
    compact(context, "p", InProcess(context), options=CompactionOptions(min_input_files=2))
    with db.pages("p", mode="r") as pages:
        found = [pages.get_page(0, lsn=lsn) for lsn in (10, 20, 30, 40)]
    assert found == [b"%04d" % lsn * 1024 for lsn in (10, 20, 30, 40)]


def test_what_a_snapshot_shows_stays_until_it_has_expired(shop: Shop) -> None:
    shop.run(0, 10, mark=b"1")
    snapshot = shop.writer.snapshot(ttl=60)
    for mark in (b"2", b"3", b"4"):
        shop.run(0, 10, mark=mark)
    assert shop.compact().rows_out == 20
    assert shop.kv("r").at(snapshot=snapshot.id).get(b"key-00001") == b"1" + b"value-00001" * 3
    shop.clock.advance(120)
    shop.run(0, 10, times=3)
    assert shop.compact(CompactionOptions(full=True)).rows_out == 10
    assert shop.manifest.snapshots == ()
    shop.check()


def test_without_raising_the_floor_nothing_is_dropped(shop: Shop) -> None:
    shop.run(0, 10, times=4)
    result = shop.compact(CompactionOptions(keep_floor=True))
    assert (result.rows_in, result.rows_out, result.floor_lsn) == (40, 40, 0)


def test_keys_that_are_all_deleted_leave_one_tombstone_that_names_what_was_replaced(
    shop: Shop,
) -> None:
    """Else a rebuild could bring back an input that is collected later than the others."""
    shop.run(0, 200, times=3)
    shop.flush(None, [b"key-%05d" % i for i in range(200)])
    inputs = {ref.id for ref in shop.segments}
    target = sum(ref.size for ref in shop.segments) // 3
    result = shop.compact(CompactionOptions(target_size_bytes=target, full=True))
    assert len(result.published[0].outputs) > 1
    assert [(ref.rows, ref.tombstones) for ref in shop.segments] == [(1, 1)] * len(shop.segments)
    assert shop.contents() == {}
    footers = shop.footers()
    assert {footer.part for footer in footers} == {
        (n, len(footers)) for n in range(1, len(footers) + 1)
    }
    assert {footer.replaced_segments for footer in footers} == {footers[0].replaced_segments}
    assert set(footers[0].replaced_segments) == inputs
    shop.check()
