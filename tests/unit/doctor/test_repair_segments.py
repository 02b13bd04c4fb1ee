"""Repair of segments: restored from the log or from what they replaced, or lost if that is accepted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reef.doctor import RepairStep, repair
from reef.format import SegmentRef
from reef.jobs import CompactionOptions, InProcess
from reef.segment import check_segment
from tests.support.doctor.damaged_buckets import NAMESPACE, Bucket, cut, flip
from tests.support.doctor.repairing import expect, is_quarantined, mend, only, plan
from tests.support.jobs.passes import compact

HARMS: dict[str, Callable[[Path], object]] = {
    "block": lambda path: flip(path, 60),
    "footer": lambda path: flip(path, -60),
    "trailer": lambda path: flip(path, -20),
    "preamble": lambda path: flip(path, 3),
    "cut": cut,
    "extended": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "emptied": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
@pytest.mark.parametrize("which", [0, -1])
def test_a_segment_is_restored_from_the_log(
    serial: Bucket, harm: Callable[[Path], object], which: int
) -> None:
    ref = serial.manifest.segments[which]
    harm(serial.segment(ref))
    step = only(plan(serial))
    assert (step.kind, step.state, step.lost) == ("restore-segment", "planned", "")
    assert "from log objects" in step.text
    mend(serial)
    assert ref not in serial.manifest.segments
    assert is_quarantined(serial, serial.segment(ref))
    assert serial.key(serial.segment(ref)) in {p.key for p in serial.manifest.gc.pending}
    expect(serial, serial.rows())


def test_a_segment_that_is_gone_is_restored_from_the_log(serial: Bucket) -> None:
    serial.segment(serial.manifest.segments[0]).unlink()
    assert "from log objects" in only(plan(serial)).text
    mend(serial)
    expect(serial, serial.rows())


def test_the_log_must_give_what_the_manifest_says(serial: Bucket) -> None:
    """A log object that was passed over gives fewer rows: then it is no way back."""
    flip(serial.slot(serial.manifest.wal_floor - 2))
    mend(serial)
    flip(serial.segment(serial.manifest.segments[0]), 60)
    step = only(plan(serial))
    assert (step.kind, step.state) == ("salvage-segment", "refused")
    assert re.search(r"log objects \d+ to \d+ give rows \d+ instead of \d+", step.text)


def test_a_snapshot_reads_the_same_before_and_after(serial: Bucket) -> None:
    with serial.open() as db, db.kv(NAMESPACE, mode="r") as kv:
        snapshot = kv.snapshot(ttl="1h")
    rows = serial.rows()
    serial.write("flush")
    flip(serial.segment(serial.manifest.segments[-1]), 60)
    mend(serial)
    with serial.open() as db, db.kv(NAMESPACE, mode="r") as kv:
        assert dict(kv.at(snapshot=snapshot.id).items()) == rows


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_compacted_segment_is_restored_from_what_it_replaced(
    serial: Bucket, harm: Callable[[Path], object]
) -> None:
    inputs = {ref.id for ref in serial.manifest.segments}
    ref = serial.compact()
    harm(serial.segment(ref))
    step = only(plan(serial))
    assert (step.kind, step.lost) == ("restore-segment", "")
    assert all(id in step.text for id in inputs)
    mend(serial)
    (restored,) = serial.manifest.segments
    assert (restored.level, restored.lsn_max) == (ref.level, ref.lsn_max)
    expect(serial, serial.rows())


def test_what_it_replaced_may_have_to_be_restored_itself(serial: Bucket) -> None:
    newer, older = serial.manifest.segments
    ref = serial.compact()
    flip(serial.segment(ref), 60)
    flip(serial.segment(newer), -60)
    serial.segment(older).unlink()
    steps = {Path(step.key).stem: step for step in plan(serial).steps}
    assert steps[newer.id].kind == steps[older.id].kind == "quarantine"
    assert steps[ref.id].kind == "restore-segment"
    assert steps[ref.id].text.count("(from log objects") == 2
    mend(serial)
    expect(serial, serial.rows())


def compact_some(bucket: Bucket, **options: Any) -> None:
    """Compact by the pipeline, some keys of all runs."""
    context = bucket.context()
    options = {"target_size_bytes": 2500, "min_input_files": 2, **options}
    compact(context, NAMESPACE, InProcess(context), options=CompactionOptions(**options))


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
@pytest.mark.parametrize("is_done", [False, True])
def test_a_segment_is_restored_from_runs_of_which_it_took_some_keys(
    serial: Bucket, harm: Callable[[Path], object], is_done: bool
) -> None:
    inputs = {ref.id for ref in serial.manifest.segments}
    compact_some(serial, start=b"k100", end=b"k400")
    if is_done:
        compact_some(serial, full=True, end=b"k100")
        compact_some(serial, full=True, start=b"k400")
    assert inputs.isdisjoint(ref.id for ref in serial.manifest.segments) == is_done
    ref = next(ref for ref in serial.manifest.segments if ref.key_min > b"k100" and ref.level)
    rows = serial.read()
    harm(serial.segment(ref))
    step = only(plan(serial))
    assert (step.kind, step.lost) == ("restore-segment", "")
    mend(serial)
    expect(serial, rows)


def test_what_took_some_keys_is_itself_restored_as_those_runs_were_then(serial: Bucket) -> None:
    """What is left of them by now does not show the keys that it took."""
    compact_some(serial, start=b"k100", end=b"k400")
    outputs = [ref for ref in serial.manifest.segments if ref.level]
    compact_some(serial, full=True, start=b"k100", end=b"k400", target_size_bytes=1 << 20)
    assert any(ref.clip_key_min is not None for ref in serial.manifest.segments)
    rows = serial.read()
    (ref,) = (ref for ref in serial.manifest.segments if ref.clip_key_min == ref.clip_key_max)
    for one in (ref, *outputs):
        flip(serial.segment(one), 60)
    step = next(step for step in plan(serial).steps if ref.id in step.key)
    assert (step.kind, step.lost) == ("restore-segment", "")
    mend(serial)
    expect(serial, rows)


def test_a_clipped_segment_without_its_tail_is_restored_from_what_it_replaced(
    serial: Bucket,
) -> None:
    compact_some(serial, full=True, target_size_bytes=1 << 20)
    (whole,) = serial.manifest.segments
    compact_some(serial, full=True, start=b"k200", end=b"k300", target_size_bytes=2000)
    assert any(ref.id == whole.id for ref in serial.manifest.segments)
    rows = serial.read()
    flip(serial.segment(whole), 60)
    flip(serial.segment(whole), -60)
    step = only(plan(serial))
    assert (step.kind, step.lost) == ("restore-segment", "")
    assert "the segments that it replaced" in step.text
    mend(serial)
    expect(serial, rows)


def test_a_segment_that_is_seen_in_two_parts_is_restored_for_both(serial: Bucket) -> None:
    compact_some(serial, start=b"k200", end=b"k300")
    ref = next(ref for ref in serial.manifest.segments if ref.clip_key_min is not None)
    assert [other.id for other in serial.manifest.segments].count(ref.id) == 2
    rows = serial.read()
    flip(serial.segment(ref), 60)
    mend(serial)
    assert all(other.id != ref.id for other in serial.manifest.segments)
    expect(serial, rows)


def test_deleted_keys_stay_deleted_when_inputs_come_back(tmp_path: Path) -> None:
    """A compaction that drops a tombstone must not be undone to the version that it hid."""
    bucket = Bucket(tmp_path / "b")
    with bucket.open() as db, db.kv(NAMESPACE) as kv:
        kv.write({b"a": b"1", b"m": b"1", b"z": b"1"})
        kv.flush()
        kv.write({b"z": b"2"}, [b"m"])
        kv.flush()
    ref = bucket.compact()
    assert ref.rows == 2
    flip(bucket.segment(ref), 60)
    mend(bucket)
    assert bucket.read() == {b"a": b"1", b"z": b"2"}


def lost_range(step: RepairStep) -> tuple[int, bytes, bytes]:
    """Return how many rows, from which key to which, a step says will be lost."""
    match = re.match(r"(\d+) rows: keys b'(.*?)' to b'(.*?)', LSNs \d+ to \d+", step.lost)
    assert match, step.lost
    return int(match[1]), match[2].encode(), match[3].encode()


@pytest.mark.parametrize("harms", [["block"], ["block", "footer"]])
@pytest.mark.parametrize("compacted", [False, True])
def test_what_nothing_can_restore_is_lost_only_if_that_is_accepted(
    collected: Bucket, harms: list[str], compacted: bool
) -> None:
    bucket = collected
    if compacted:
        bucket.compact()
        bucket.collect()
    ref = bucket.manifest.segments[0]
    whole = bucket.read()
    assert whole == bucket.rows()
    for harm in harms:
        HARMS[harm](bucket.segment(ref))
    step = only(plan(bucket))
    assert (step.kind, step.state) == ("salvage-segment", "refused")
    refused = repair(bucket.context(), NAMESPACE, apply=True)
    assert [s.state for s in refused.steps] == ["refused"]
    assert not refused.is_mended
    assert bucket.manifest.segments[0] == ref

    mend(bucket, accept_loss=True)
    rows, low, high = lost_range(step)
    kept = bucket.read()
    outside = {key: value for key, value in whole.items() if not low <= key <= high}
    assert {key: value for key, value in kept.items() if not low <= key <= high} == outside
    changed = {key for key in whole.keys() | kept.keys() if whole.get(key) != kept.get(key)}
    assert 0 < len(changed) <= rows < ref.rows
    assert sum(s.rows for s in bucket.manifest.segments if s.id != ref.id) >= ref.rows - rows
    expect(bucket, kept)


def test_nothing_is_lost_by_damage_where_another_segment_is_seen(collected: Bucket) -> None:
    bucket = collected
    compact_some(bucket, full=True, target_size_bytes=1 << 20)
    (whole,) = bucket.manifest.segments
    compact_some(bucket, full=True, start=b"k200", end=b"k300", target_size_bytes=2000)
    bucket.collect()
    rows, path = bucket.read(), bucket.segment(whole)
    tail = check_segment(bucket.context().store, NAMESPACE, whole, whole.size, deep=False).tail
    assert tail is not None
    firsts = tail.row_index["key_first"].to_pylist()
    hidden = [n for n, key in enumerate(firsts[:-1]) if key >= b"k200" and firsts[n + 1] < b"k300"]
    flip(path, tail.row_places[hidden[0]].offset + 30)
    step = only(plan(bucket))
    assert (step.kind, step.state, step.lost) == ("restore-segment", "planned", "")
    mend(bucket)
    expect(bucket, rows)


def test_without_its_tail_a_segment_still_has_its_rows(collected: Bucket) -> None:
    bucket = collected
    for harm in ("footer", "trailer", "preamble"):
        HARMS[harm](bucket.segment(bucket.manifest.segments[0]))
    step = only(plan(bucket))
    assert (step.kind, step.state, step.lost) == ("restore-segment", "planned", "")
    assert "found without its tail" in step.text
    mend(bucket)
    expect(bucket, bucket.rows())


def test_a_segment_with_nothing_left_is_dropped_if_that_is_accepted(collected: Bucket) -> None:
    bucket = collected
    ref: SegmentRef = bucket.manifest.segments[0]
    path = bucket.segment(ref)
    path.write_bytes(bytes(path.stat().st_size))
    step = only(plan(bucket))
    assert (step.kind, step.state) == ("drop-segment", "refused")
    assert lost_range(step) == (ref.rows, ref.key_min, ref.key_max)
    mend(bucket, accept_loss=True)
    assert ref not in bucket.manifest.segments
    expect(bucket, bucket.read())


def test_a_segment_that_only_the_past_needs(serial: Bucket) -> None:
    old = serial.manifest.segments[0]
    serial.compact()
    flip(serial.segment(old), 60)
    report = plan(serial)
    assert only(report).kind == "quarantine"
    assert not report.fences
    mend(serial)
    assert is_quarantined(serial, serial.segment(old))
    expect(serial, serial.rows())
