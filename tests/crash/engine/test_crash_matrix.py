"""Every crash point of the protocols: a process ends exactly there, and a fresh one finds its way.

The first half is the crash matrix of recovery, the second the failure modes of a store that is
nothing but a bucket.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from reef.store import open_store
from tests.support.crash import writer_scenes as scenes
from tests.support.crash.crash_points import BIG, Child, big_rows, crash, fresh, rows_of

TEMPORARY = ".tmp~"  # where file:// writes an object before it has its name
NO_GRACE = {"gc_grace": 0, "retained_generations": 1}
parallel_1_and_8 = pytest.mark.parametrize("parallel", [1, 8])


def rows_after(*names: bytes) -> dict[bytes, bytes]:
    """Return what is visible after those batches, in that order."""
    return {key: value for name in names for key, value in rows_of(name).items()}


# The crash matrix.


@parallel_1_and_8
def test_after_wal_put_before_memtable_apply(url: str, parallel: int) -> None:
    """The batch is durable; replay restores it; who wrote it reads it."""
    landed = 1 if parallel == 1 else 3
    order = "" if parallel == 1 else "in_order"
    child = crash(url, scenes.write_and_die, parallel, "after wal put", landed, order)
    acked = {name: lsn for name, lsn, _ in child.all("ack")}
    found = fresh(url, scenes.look)
    late = sorted(
        {name for (name,) in child.all("try")} & {key.split(b"/")[0] for key in found.rows},
        key=lambda name: found.lsns[name + b"/0"],
    )
    assert late[:2] == list(scenes.BEFORE)
    assert len(late) == 2 + landed  # no more than what was durable, and all of that
    assert set(acked) <= set(late)
    assert late[-1] not in acked  # it was durable, and nobody had been told
    assert found.rows == rows_after(*late)
    assert all(found.lsns[name + b"/0"] == lsn for name, lsn in acked.items())
    assert fresh(url, scenes.reopen, parallel, b"next") == found.rows
    assert fresh(url, scenes.look).rows == rows_after(*late, b"next")


def test_after_wal_put_that_overtook_a_lower_one(url: str) -> None:
    """Slots that landed behind a gap were acknowledged to nobody: they are void, and stay void."""
    child = crash(url, scenes.write_and_die, 8, "after wal put", 5, "lowest_last")
    assert {name for name, *_ in child.all("ack")} == set(scenes.BEFORE)
    found = fresh(url, scenes.look)
    assert found.rows == rows_after(*scenes.BEFORE)
    slots = sorted(map(int, found.stored("wal")))
    assert slots[-1] - slots[0] + 1 > len(slots)  # there is a gap, and objects behind it
    assert fresh(url, scenes.reopen, 1, b"next") == found.rows
    after = fresh(url, scenes.look)
    assert after.rows == rows_after(*scenes.BEFORE, b"next")
    slots = sorted(map(int, after.stored("wal")))
    assert slots == list(range(1, len(slots) + 1))


@parallel_1_and_8
@pytest.mark.parametrize(
    "point", ["after segment upload", "after dedup upload", "before manifest put"]
)
def test_mid_indexing_after_segment_upload_before_manifest_cas(
    url: str, parallel: int, point: str
) -> None:
    """The old manifest serves; the log is folded again under new ids; orphans are collected."""
    crash(url, scenes.flush_and_die, parallel, point, 12, **NO_GRACE)
    found = fresh(url, scenes.look)
    assert found.rows == scenes.filled(12)
    assert found.segments == ()
    assert found.last_applied_lsn == 0
    assert len(found.orphans) == 1
    fresh(url, scenes.flush, parallel, **NO_GRACE)
    again = fresh(url, scenes.look)
    assert again.rows == scenes.filled(12)
    assert len(again.segments) == 1
    assert again.orphans == found.orphans  # under a new id
    fresh(url, scenes.collect_all, **NO_GRACE)
    after = fresh(url, scenes.look)
    assert after.rows == scenes.filled(12)
    assert after.stored("segments") == set(again.segments)
    assert len(after.stored("dedup")) == 1
    assert fresh(url, scenes.reopen, parallel, b"next") == scenes.filled(12)


@pytest.mark.parametrize(
    ("parallel", "point"), [(1, "after segment upload"), (8, "before manifest put")]
)
def test_mid_compaction_before_manifest_cas(url: str, parallel: int, point: str) -> None:
    """The inputs are live still; the merge is run again; orphans are collected."""
    fresh(url, scenes.build, parallel, 14, 4, **NO_GRACE)
    before = fresh(url, scenes.look)
    assert len(before.segments) == 3
    crash(url, scenes.compact, point, **NO_GRACE)
    found = fresh(url, scenes.look)
    assert found.rows == before.rows == scenes.filled(14)
    assert found.segments == before.segments
    assert len(found.orphans) == 1
    assert len(found.intents) == 1
    fresh(url, scenes.compact, "", **NO_GRACE)
    again = fresh(url, scenes.look)
    assert again.rows == before.rows
    assert len(again.segments) == 1
    assert found.orphans < again.orphans  # with the inputs, which wait
    fresh(url, scenes.collect_all, (), found.orphans, **NO_GRACE)
    assert fresh(url, scenes.look).orphans == found.orphans  # the job that died might come back
    fresh(url, scenes.end_intents)
    fresh(url, scenes.collect_all, **NO_GRACE)
    after = fresh(url, scenes.look)
    assert after.rows == before.rows
    assert after.stored("segments") == set(again.segments)


@parallel_1_and_8
def test_after_manifest_cas_of_a_flush_before_cleanup(url: str, parallel: int) -> None:
    """The new state serves; the folded log is cleaned up by collection."""
    crash(url, scenes.flush_and_die, parallel, "after manifest put", 12, **NO_GRACE)
    found = fresh(url, scenes.look)
    assert found.rows == scenes.filled(12)
    assert len(found.segments) == 1
    assert found.orphans == set()
    assert found.last_applied_lsn == found.lsn
    folded = {slot for slot in found.stored("wal") if int(slot) < found.wal_floor}
    assert len(folded) >= 12
    assert fresh(url, scenes.reopen, parallel, b"next", **NO_GRACE) == scenes.filled(12)
    fresh(url, scenes.flush, parallel, **NO_GRACE)
    fresh(url, scenes.collect_all, sorted(folded)[parallel:], **NO_GRACE)
    after = fresh(url, scenes.look)
    assert after.rows == scenes.filled(12) | rows_of(b"next")
    assert folded & after.stored("wal") == set(sorted(folded)[:parallel])  # the fences stay
    assert after.pending == ()


@parallel_1_and_8
def test_after_manifest_cas_of_a_compaction_before_cleanup(url: str, parallel: int) -> None:
    """The new state serves; the inputs wait in the pending list, and go by it."""
    fresh(url, scenes.build, parallel, 14, 4, **NO_GRACE)
    before = fresh(url, scenes.look)
    crash(url, scenes.compact, "after manifest put", **NO_GRACE)
    found = fresh(url, scenes.look)
    assert found.rows == before.rows == scenes.filled(14)
    assert len(found.segments) == 1
    assert found.orphans == set(before.segments)
    assert all(any(id in key for key in found.pending) for id in before.segments)
    fresh(url, scenes.collect_all, **NO_GRACE)
    after = fresh(url, scenes.look)
    assert after.rows == before.rows
    assert after.stored("segments") == set(found.segments)
    assert after.pending == ()


def test_during_gc(url: str) -> None:
    """Deletes are idempotent, and the next collection goes on where the last one died."""
    fresh(url, scenes.build, 2, 24, 4, **NO_GRACE)
    fresh(url, scenes.compact, "", **NO_GRACE)
    before = fresh(url, scenes.look)
    assert len(before.orphans) == 6
    there = set(before.objects)
    points = [("before manifest put", 1), ("after manifest put", 1), ("before delete", 1)]
    points += [("after delete", 1), ("after delete", 3), ("after delete", 8)]
    for point, nth in points:
        crash(url, scenes.collect_and_die, point, nth, **NO_GRACE)
        found = fresh(url, scenes.look)
        assert found.rows == scenes.filled(24)
        assert found.segments == before.segments
        if "delete" in point:
            assert found.boundary > before.boundary  # recorded before anything goes
        gone = there - set(found.objects)
        if point == "after delete":
            assert len(gone) >= nth  # some stores delete several at once
        elif point != "before delete":
            assert not gone
        there = set(found.objects)
    fresh(url, scenes.collect_all, **NO_GRACE)
    after = fresh(url, scenes.look)
    assert after.rows == scenes.filled(24)
    assert after.stored("segments") == set(before.segments)
    assert after.pending == ()
    assert fresh(url, scenes.reopen, 8, b"next") == scenes.filled(24)


# The failure modes.


@parallel_1_and_8
def test_cas_contention(url: str, parallel: int) -> None:
    """Who loses a slot to the writer it takes over from goes on at the next one."""
    with Child(url, scenes.hold_the_pen, parallel, b"a") as older:
        older.until("ready")
        with Child(url, scenes.open_and_sleep, parallel, "before wal put", 1) as opener:
            opener.wait_until_asleep()  # about to put its first fence
            older.say(b"b")  # into that very slot
            assert older.until("ack")[1] == b"b"
            opener.wake()
            assert opener.until("opened")[1] == rows_after(b"a", b"b")
            assert opener.end() == 0
        assert [name for name, *_ in opener.all("ack")] == [b"c"]
        older.say(b"d")
        assert older.until("fenced")[1] == b"d"
        older.say("end")
        assert older.end() == 0
    assert fresh(url, scenes.look).rows == rows_after(b"a", b"b", b"c")


@parallel_1_and_8
def test_cas_contention_for_a_generation(url: str, parallel: int) -> None:
    """Who loses a generation of the manifest takes the next one, and a higher epoch with it."""
    fresh(url, scenes.reopen, parallel, b"a")
    with Child(url, scenes.open_and_sleep, parallel, "before manifest put", 1) as opener:
        opener.wait_until_asleep()
        fresh(url, scenes.reopen, parallel, b"b")
        opener.wake()
        assert opener.end() == 0
        assert opener.all("opened") == [(rows_after(b"a", b"b"),)]
    found = fresh(url, scenes.look)
    assert found.rows == rows_after(b"a", b"b", b"c")
    assert found.writer_epoch == 3


@parallel_1_and_8
@pytest.mark.parametrize("is_collected", [False, True], ids=["", "collected"])
def test_lost_lease_and_split_brain(url: str, parallel: int, is_collected: bool) -> None:
    """A writer that slept through a takeover is fenced, and writes nothing more."""
    with Child(url, scenes.sleep_while_writing, parallel, **NO_GRACE) as sleeper:
        sleeper.wait_until_asleep()
        with Child(url, scenes.hold_the_pen, parallel, b"b", **NO_GRACE) as newer:
            newer.until("ready")
            if is_collected:
                newer.say("flush")
                newer.until("flushed")
                first = f"{parallel + 1:020}"  # where the sleeper's own write was
                fresh(url, scenes.collect_all, [first], **NO_GRACE)
            sleeper.wake()
            assert sleeper.end() == 0
            newer.say(b"c")
            assert newer.until("ack")[1] == b"c"  # whatever the sleeper has left behind
            newer.say("end")
            assert newer.end() == 0
    late = {b"late%d" % n for n in range(parallel)}
    assert {name for (name,) in sleeper.all("fenced")} == late | {b"later%d" % n for n in range(3)}
    assert [name for name, *_ in sleeper.all("ack")] == [b"a"]
    assert sleeper.all("flush fenced") == [()]
    assert sleeper.all("requests") == [(0,)]  # it does not even try
    found = fresh(url, scenes.look)
    assert found.rows == rows_after(b"a", b"b", b"c")
    assert fresh(url, scenes.reopen, parallel, b"d") == found.rows


@parallel_1_and_8
def test_partial_multipart(url: str, parallel: int, tmp_path: Path) -> None:
    """Parts of an upload that was not finished are no object, and can be swept."""
    crash(url, scenes.upload_and_die, parallel)
    found = fresh(url, scenes.look)
    assert found.rows == big_rows()
    assert found.segments == ()
    assert found.stored("segments") == set()
    with open_store(url) as store:
        swept = store.sweep(2**62)
        assert len(swept) == 1  # there was something of it
        assert "/segments/" in swept[0] or swept[0].startswith(TEMPORARY)
    fresh(url, scenes.flush, parallel)
    after = fresh(url, scenes.look)
    assert after.rows == big_rows()
    assert len(after.segments) == 1
    with open_store(url) as store:
        assert store.head(next(k for k in after.objects if "/segments/" in k)).size > BIG


@pytest.mark.parametrize("point", ["before wal put", "after wal put"])
def test_crash_after_cas_before_ack(url: str, point: str) -> None:
    """The commit is there, and a retry finds it; or it is not, and the retry makes it. Never both."""
    child = crash(url, scenes.write_and_die, 1, point, 1, "", b"key")
    assert {name for name, *_ in child.all("ack")} == set(scenes.BEFORE)
    found = fresh(url, scenes.look)
    is_durable = point == "after wal put"
    assert (b"w0/0" in found.rows) == is_durable
    first = fresh(url, scenes.retry, b"w0", b"key")
    lsn, is_replayed, newest = first
    assert is_replayed == is_durable
    assert lsn == newest
    if is_durable:
        assert lsn == found.lsns[b"w0/0"]
    assert fresh(url, scenes.retry, b"w0", b"key") == (lsn, True, newest)
    fresh(url, scenes.flush, 1)
    assert fresh(url, scenes.retry, b"w0", b"key") == (lsn, True, newest)
    after = fresh(url, scenes.look)
    assert after.rows == rows_after(*scenes.BEFORE, b"w0")
    assert after.lsns[b"hot"] == lsn


@parallel_1_and_8
def test_crash_after_ack_before_materialization(url: str, parallel: int) -> None:
    """What was acknowledged and never folded is replayed from the log, by whoever opens next."""
    child = crash(url, scenes.flush_and_die, parallel, "before segment upload", 12)
    assert child.all("filled") == [()]
    found = fresh(url, scenes.look)
    assert found.rows == scenes.filled(12)
    assert found.stored("segments") == set()
    assert found.last_applied_lsn == 0
    assert fresh(url, scenes.reopen, parallel, b"next") == scenes.filled(12)
    fresh(url, scenes.flush, parallel)
    assert fresh(url, scenes.look).rows == scenes.filled(12) | rows_of(b"next")


@pytest.mark.parametrize(
    ("parallel", "is_snapshot"), [(1, False), (8, True)], ids=["view", "snapshot"]
)
def test_torn_read_during_compaction(url: str, parallel: int, is_snapshot: bool) -> None:
    """A reader in the midst of a scan does not see that its segments are replaced and deleted."""
    settings = {**NO_GRACE, "row_block_bytes": 64}
    fresh(url, scenes.build, parallel, 16, 4, **settings)
    with Child(url, scenes.scan_slowly, is_snapshot, **settings) as reader:
        lsn = reader.until("reading")[1]
        crash(url, scenes.compact, "before manifest put", **settings)
        reader.say("go on")
        reader.until("read")
        fresh(url, scenes.reopen, parallel, b"later", **settings)
        fresh(url, scenes.flush, parallel, **settings)
        crash(url, scenes.compact, "after manifest put", **settings)
        reader.say("go on")
        reader.until("read")
        before = fresh(url, scenes.look)
        assert len(before.orphans) == 6
        fresh(url, scenes.end_intents)
        if is_snapshot:  # it stands on a generation, and that on its segments
            fresh(url, scenes.collect_once, **settings)
            assert len(fresh(url, scenes.look).orphans) >= 4
        else:
            fresh(url, scenes.collect_all, **settings)
        reader.say("end")
        assert reader.end() == 0
    fresh(url, scenes.collect_all, **settings)
    assert fresh(url, scenes.look).stored("segments") == set(before.segments)
    assert reader.all("rows") == [(scenes.filled(16), scenes.filled(16))]
    found = fresh(url, scenes.look)
    assert found.lsn > lsn
    assert found.rows == scenes.filled(16) | rows_of(b"later")


def test_clock_skew_between_nodes(url: str) -> None:
    """Order is that of the log, whatever the clocks of its writers say."""
    year = 365 * 86400.0
    names = [b"ahead", b"behind", b"right"]
    lsns = []
    for name, skew in zip(names, (year, -year, 0.0), strict=True):
        child = crash(url, scenes.write_with_clock, name, b"key-" + name, skew=skew)
        lsns += [lsn for _, lsn, _ in child.all("ack")]
    assert lsns == sorted(lsns)
    assert len(lsns) == 6
    found = fresh(url, scenes.look)
    both = [name + more for name in names for more in (b"", b"2")]
    assert found.rows == rows_after(*both)
    assert found.lsns[b"hot"] == lsns[-1]


def test_clock_skew_and_idempotency_keys(url: str) -> None:
    """A retry on a machine whose clock is days ahead finds what was committed a moment ago."""
    child = crash(url, scenes.write_with_clock, b"a", b"key", skew=-2 * 86400.0)
    ((_, lsn, _), _) = child.all("ack")
    found, is_replayed, _ = fresh(url, scenes.retry, b"a", b"key")
    assert (found, is_replayed) == (lsn, True)
