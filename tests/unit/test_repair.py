"""Repair: each kind of damage, done to real files, mended, with everything kept that can be."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reef
from reef.database import Database
from reef.engine import (
    Face,
    RepairReport,
    RepairStep,
    WriteRequest,
    open_for_reading,
    open_for_writing,
    repair,
    verify,
)
from reef.engine._quarantine import Quarantine
from reef.engine._verify_segments import read_tail
from reef.format import PARALLEL_WRITES_MAX, SegmentRef
from reef.kv._rows import FACE, rows_of
from reef.pipeline import CompactionOptions, InProcess
from reef.pipeline._compact import compact
from reef.store import open_store
from reef.types import ORDINAL_MAX, pack_lsn
from tests.damaged_buckets import NAMESPACE, Bucket, cut, flip
from tests.unruly import PUTS, Killed, Mortal


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    """Segments of several blocks, a log that is folded, and some that is not."""
    return make(tmp_path, 1)


@pytest.fixture(params=[1, 8])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    """The same, by a writer with one log object in flight, or with eight."""
    return make(tmp_path, request.param)


def make(tmp_path: Path, parallel: int) -> Bucket:
    bucket = Bucket(tmp_path / "b", row_block_bytes=500, max_parallel_writes=parallel)
    bucket.write("flush", "flush", "leave")
    return bucket


@pytest.fixture
def collected(tmp_path: Path) -> Bucket:
    """A namespace whose log and older generations are gone."""
    bucket = Bucket(tmp_path / "b", row_block_bytes=500, gc_grace=0, retained_generations=1)
    bucket.write("flush", "flush", "leave")
    bucket.collect()
    assert len(bucket.files("wal")) <= 3  # fences
    return bucket


def plan(bucket: Bucket) -> RepairReport:
    """Return what repair would do, which must be found wrong and must write nothing."""
    assert verify(bucket.context(), NAMESPACE, deep=True).problems
    before = bucket.everything()
    report = repair(bucket.context(), NAMESPACE)
    assert bucket.everything() == before, "a dry run wrote something"
    assert not report.applied
    assert not report.is_mended
    return report


def mend(bucket: Bucket, *, accept_loss: bool = False) -> RepairReport:
    """Repair; nothing may be deleted or overwritten by it, and nothing may be wrong after it."""
    before = bucket.everything()
    report = repair(bucket.context(), NAMESPACE, apply=True, accept_loss=accept_loss)
    after = bucket.everything()
    assert {key: after.get(key) for key in before} == before
    assert report.applied
    assert report.is_mended, report
    assert {step.state for step in report.steps} == {"done"}
    assert verify(bucket.context(), NAMESPACE, deep=True).problems == ()
    assert repair(bucket.context(), NAMESPACE).steps == ()
    return report


def expect(bucket: Bucket, rows: dict[bytes, bytes]) -> None:
    """Everybody must see exactly these rows, before and after somebody writes."""
    assert bucket.read() == rows
    assert bucket.read_as_writer() == rows
    assert bucket.read() == rows
    assert verify(bucket.context(), NAMESPACE, deep=True).problems == ()


def only(report: RepairReport) -> RepairStep:
    (step,) = report.steps
    return step


def is_quarantined(bucket: Bucket, path: Path, checksum: int | None = None) -> bool:
    """Return whether the bytes of `path` were copied."""
    place = Quarantine(bucket.context().store, NAMESPACE).place(bucket.key(path), checksum)
    folder = bucket.root / Path(place).parent
    copies = [copy.read_bytes() for copy in folder.glob(f"{path.name}*")]
    return copies == [path.read_bytes()]


# Segments.

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
    bucket: Bucket, harm: Callable[[Path], object], which: int
) -> None:
    ref = bucket.manifest.segments[which]
    harm(bucket.segment(ref))
    step = only(plan(bucket))
    assert (step.kind, step.state, step.lost) == ("restore-segment", "planned", "")
    assert "from log objects" in step.text
    mend(bucket)
    assert ref not in bucket.manifest.segments
    assert is_quarantined(bucket, bucket.segment(ref))
    assert bucket.key(bucket.segment(ref)) in {p.key for p in bucket.manifest.gc.pending}
    expect(bucket, bucket.rows())


def test_a_segment_that_is_gone_is_restored_from_the_log(bucket: Bucket) -> None:
    bucket.segment(bucket.manifest.segments[0]).unlink()
    assert "from log objects" in only(plan(bucket)).text
    mend(bucket)
    expect(bucket, bucket.rows())


def test_the_log_must_give_what_the_manifest_says(bucket: Bucket) -> None:
    """A log object that was passed over gives fewer rows: then it is no way back."""
    flip(bucket.slot(bucket.manifest.wal_floor - 2))
    mend(bucket)
    flip(bucket.segment(bucket.manifest.segments[0]), 60)
    step = only(plan(bucket))
    assert (step.kind, step.state) == ("salvage-segment", "refused")
    assert re.search(r"log objects \d+ to \d+ give rows \d+ instead of \d+", step.text)


def test_a_snapshot_reads_the_same_before_and_after(bucket: Bucket) -> None:
    with bucket.open() as db, db.kv(NAMESPACE, mode="r") as kv:
        snapshot = kv.snapshot(ttl="1h")
    rows = bucket.rows()
    bucket.write("flush")
    flip(bucket.segment(bucket.manifest.segments[-1]), 60)
    mend(bucket)
    with bucket.open() as db, db.kv(NAMESPACE, mode="r") as kv:
        assert dict(kv.at(snapshot=snapshot.id).items()) == rows


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_compacted_segment_is_restored_from_what_it_replaced(
    bucket: Bucket, harm: Callable[[Path], object]
) -> None:
    inputs = {ref.id for ref in bucket.manifest.segments}
    ref = bucket.compact()
    harm(bucket.segment(ref))
    step = only(plan(bucket))
    assert (step.kind, step.lost) == ("restore-segment", "")
    assert all(id in step.text for id in inputs)
    mend(bucket)
    (restored,) = bucket.manifest.segments
    assert (restored.level, restored.lsn_max) == (ref.level, ref.lsn_max)
    expect(bucket, bucket.rows())


def test_what_it_replaced_may_have_to_be_restored_itself(bucket: Bucket) -> None:
    newer, older = bucket.manifest.segments
    ref = bucket.compact()
    flip(bucket.segment(ref), 60)
    flip(bucket.segment(newer), -60)
    bucket.segment(older).unlink()
    steps = {Path(step.key).stem: step for step in plan(bucket).steps}
    assert steps[newer.id].kind == steps[older.id].kind == "quarantine"
    assert steps[ref.id].kind == "restore-segment"
    assert steps[ref.id].text.count("(from log objects") == 2
    mend(bucket)
    expect(bucket, bucket.rows())


def compact_some(bucket: Bucket, **options: Any) -> None:
    """Compact by the pipeline, some keys of all runs."""
    context = bucket.context()
    options = {"target_file_size_bytes": 2500, "min_input_files": 2, **options}
    compact(context, NAMESPACE, InProcess(context), options=CompactionOptions(**options))


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
@pytest.mark.parametrize("is_done", [False, True])
def test_a_segment_is_restored_from_runs_of_which_it_took_some_keys(
    bucket: Bucket, harm: Callable[[Path], object], is_done: bool
) -> None:
    inputs = {ref.id for ref in bucket.manifest.segments}
    compact_some(bucket, start=b"k100", end=b"k400")
    if is_done:
        compact_some(bucket, full=True, end=b"k100")
        compact_some(bucket, full=True, start=b"k400")
    assert inputs.isdisjoint(ref.id for ref in bucket.manifest.segments) == is_done
    ref = next(ref for ref in bucket.manifest.segments if ref.key_min > b"k100" and ref.level)
    rows = bucket.read()
    harm(bucket.segment(ref))
    step = only(plan(bucket))
    assert (step.kind, step.lost) == ("restore-segment", "")
    mend(bucket)
    expect(bucket, rows)


def test_what_took_some_keys_is_itself_restored_as_those_runs_were_then(bucket: Bucket) -> None:
    """What is left of them by now does not show the keys that it took."""
    compact_some(bucket, start=b"k100", end=b"k400")
    outputs = [ref for ref in bucket.manifest.segments if ref.level]
    compact_some(bucket, full=True, start=b"k100", end=b"k400", target_file_size_bytes=1 << 20)
    assert any(ref.clip_key_min is not None for ref in bucket.manifest.segments)
    rows = bucket.read()
    (ref,) = (ref for ref in bucket.manifest.segments if ref.clip_key_min == ref.clip_key_max)
    for one in (ref, *outputs):
        flip(bucket.segment(one), 60)
    step = next(step for step in plan(bucket).steps if ref.id in step.key)
    assert (step.kind, step.lost) == ("restore-segment", "")
    mend(bucket)
    expect(bucket, rows)


def test_a_clipped_segment_without_its_tail_is_restored_from_what_it_replaced(
    bucket: Bucket,
) -> None:
    compact_some(bucket, full=True, target_file_size_bytes=1 << 20)
    (whole,) = bucket.manifest.segments
    compact_some(bucket, full=True, start=b"k200", end=b"k300", target_file_size_bytes=2000)
    assert any(ref.id == whole.id for ref in bucket.manifest.segments)
    rows = bucket.read()
    flip(bucket.segment(whole), 60)
    flip(bucket.segment(whole), -60)
    step = only(plan(bucket))
    assert (step.kind, step.lost) == ("restore-segment", "")
    assert "the segments that it replaced" in step.text
    mend(bucket)
    expect(bucket, rows)


def test_a_segment_that_is_seen_in_two_parts_is_restored_for_both(bucket: Bucket) -> None:
    compact_some(bucket, start=b"k200", end=b"k300")
    ref = next(ref for ref in bucket.manifest.segments if ref.clip_key_min is not None)
    assert [other.id for other in bucket.manifest.segments].count(ref.id) == 2
    rows = bucket.read()
    flip(bucket.segment(ref), 60)
    mend(bucket)
    assert all(other.id != ref.id for other in bucket.manifest.segments)
    expect(bucket, rows)


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
    compact_some(bucket, full=True, target_file_size_bytes=1 << 20)
    (whole,) = bucket.manifest.segments
    compact_some(bucket, full=True, start=b"k200", end=b"k300", target_file_size_bytes=2000)
    bucket.collect()
    rows, path = bucket.read(), bucket.segment(whole)
    tail = read_tail(bucket.context().store, f"namespaces/{NAMESPACE}/segments/{path.name}", whole)
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


def test_a_segment_that_only_the_past_needs(bucket: Bucket) -> None:
    old = bucket.manifest.segments[0]
    bucket.compact()
    flip(bucket.segment(old), 60)
    report = plan(bucket)
    assert only(report).kind == "quarantine"
    assert not report.fences
    mend(bucket)
    assert is_quarantined(bucket, bucket.segment(old))
    expect(bucket, bucket.rows())


# The log.


def test_a_log_object_that_others_follow_is_skipped_by_name(either: Bucket) -> None:
    slot = either.manifest.wal_floor + 1
    flip(either.slot(slot))
    with pytest.raises(reef.CorruptError, match="reef repair"):
        either.read()
    report = plan(either)
    step = only(report)
    assert step.kind == "skip-log-object"
    assert step.lost == f"LSNs {pack_lsn(slot, 0)} to {pack_lsn(slot, ORDINAL_MAX)}"
    assert report.fences
    mend(either)
    (skipped,) = either.manifest.skipped_slots
    assert skipped.slot == slot
    assert is_quarantined(either, either.slot(slot), skipped.checksum)
    expect(either, either.rows(without=[slot]))


def test_several_log_objects_in_a_row_and_apart(either: Bucket) -> None:
    either.write("leave", commits=8)
    first, *_, last = [commit.slot for commit in either.commits[-7:]]
    lost = [first, first + 1, last - 1]
    for slot in lost:
        flip(either.slot(slot))
    assert {step.kind for step in plan(either).steps} == {"skip-log-object"}
    mend(either)
    expect(either, either.rows(without=lost))


def test_a_log_object_at_the_head_is_named_by_the_fence(either: Bucket) -> None:
    slot = either.commits[-1].slot
    flip(either.slot(slot))
    step = only(plan(either))
    assert step.kind == "name-in-fence"
    assert "never committed" in step.text
    mend(either)
    assert either.manifest.skipped_slots == ()
    expect(either, either.rows(without=[slot]))


def test_the_next_writer_s_fence_names_a_log_object_at_the_head_too(either: Bucket) -> None:
    slot = either.commits[-1].slot
    flip(either.slot(slot))
    assert either.read_as_writer() == either.rows(without=[slot])
    report = verify(either.context(), NAMESPACE)
    assert report.problems == ()
    assert [note.kind for note in report.notes] == ["log-damaged"]


def test_a_log_object_whose_rows_are_folded_loses_nothing(either: Bucket) -> None:
    slot = either.commits[1].slot
    flip(either.slot(slot))
    report = plan(either)
    assert (only(report).kind, only(report).lost) == ("skip-log-object", "")
    assert not report.fences
    epoch = either.manifest.writer_epoch
    mend(either)
    assert either.manifest.writer_epoch == epoch
    expect(either, either.rows())


def lose_log_object(bucket: Bucket) -> int:
    """Remove one with more behind it than a writer may have in flight; return its slot."""
    bucket.write("leave", commits=10)
    slot = bucket.commits[-9].slot
    bucket.slot(slot).unlink()
    return slot


def test_a_log_object_that_is_gone(either: Bucket) -> None:
    slot = lose_log_object(either)
    step = only(plan(either))
    assert (step.kind, step.state) == ("fill-log-gap", "refused")
    assert str(pack_lsn(slot, 0)) in step.lost
    before = either.everything()
    assert not repair(either.context(), NAMESPACE, apply=True).is_mended
    assert either.everything() == before
    mend(either, accept_loss=True)
    expect(either, either.rows(without=[slot]))


def test_nothing_is_fenced_while_the_log_has_a_hole(either: Bucket) -> None:
    """A fence in the hole would make everything behind it void."""
    slot = lose_log_object(either)
    flip(either.files("manifest")[-1])
    flip(either.segment(either.manifest.segments[0]), 60)
    steps = plan(either).steps
    assert {step.kind for step in steps} == {
        "fill-log-gap",
        "republish-manifest",
        "restore-segment",
    }
    assert {step.state for step in steps} == {"refused"}
    refused = repair(either.context(), NAMESPACE, apply=True)
    assert not refused.is_mended
    assert not either.slot(slot).exists()
    mend(either, accept_loss=True)
    expect(either, either.rows(without=[slot]))


def test_a_folded_log_object_that_is_gone_loses_nothing(either: Bucket) -> None:
    slots = [commit.slot for commit in either.commits[1:3]]
    for slot in slots:
        either.slot(slot).unlink()
    assert only(plan(either)).lost == ""
    mend(either)
    assert all(either.slot(slot).exists() for slot in slots)
    expect(either, either.rows())


@pytest.mark.parametrize("was_tried", [False, True])
def test_damage_behind_a_gap_keeps_nobody_from_writing(tmp_path: Path, was_tried: bool) -> None:
    bucket = make(tmp_path, 8)
    bucket.write("leave", commits=6)
    gap, damaged = bucket.commits[-4].slot, bucket.commits[-3].slot
    bucket.slot(gap).unlink()  # as if its writer had been killed with four PUTs under way
    flip(bucket.slot(damaged))
    kept = bucket.rows(without=[commit.slot for commit in bucket.commits[-4:]])
    assert bucket.read() == kept
    if was_tried:  # which fills the gap
        with pytest.raises(reef.CorruptError, match="reef repair"):
            bucket.read_as_writer()
    step = only(plan(bucket))
    assert step.kind == "skip-log-object"
    assert step.lost.startswith("if it was acknowledged: ") == (not was_tried)
    mend(bucket)
    expect(bucket, kept)


def test_nothing_is_fenced_behind_another_format_version(bucket: Bucket) -> None:
    path = bucket.slot(bucket.commits[-2].slot)
    path.write_bytes(path.read_bytes()[:8] + b"\2" + path.read_bytes()[9:])
    flip(bucket.segment(bucket.manifest.segments[0]), 60)
    steps = {step.kind: step.state for step in plan(bucket).steps}
    assert steps == {"restore-segment": "refused", "report": "impossible"}
    before = bucket.everything()
    assert not repair(bucket.context(), NAMESPACE, apply=True, accept_loss=True).is_mended
    assert bucket.everything() == before


def test_lsns_that_the_caller_gives_are_bounded_by_their_neighbours(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "b")
    face = Face("pages", FACE.schema, "caller")
    context = bucket.context()
    writer = open_for_writing(context, NAMESPACE, face)
    for lsn in (100, 250, 300, 470, 500):
        batch = rows_of({b"k%d" % lsn: b"v"}, [])
        writer.write(WriteRequest(batch=batch, nbytes=100, lsn=lsn))
        if lsn == 250:
            writer.flush()
    writer.close()
    flip(bucket.files("wal")[-2])
    flip(bucket.segment(bucket.manifest.segments[0]), 60)
    steps = {step.kind: step for step in plan(bucket).steps}
    assert steps["skip-log-object"].lost == "LSNs 301 to 499"
    assert "from log objects" in steps["restore-segment"].text
    mend(bucket)
    reader = open_for_reading(context, NAMESPACE, face)
    keys = [key for batch in reader.scan() for key in batch.column(0).to_pylist()]
    assert keys == [b"k100", b"k250", b"k300", b"k500"]


# Manifests.


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("harm", [flip, cut, lambda path: path.write_bytes(b"")])
def test_a_damaged_head_is_gone_on_behind(
    either: Bucket, harm: Callable[[Path], None], count: int
) -> None:
    damaged = either.files("manifest")[-count:]
    epoch = either.manifest.writer_epoch
    for path in damaged:
        harm(path)
    assert either.read() == either.rows(), "reads fall back"
    with pytest.raises(reef.CorruptError, match="reef repair"):
        either.read_as_writer()
    report = plan(either)
    assert [step.kind for step in report.steps] == ["republish-manifest"] * count
    mend(either)
    manifest = either.manifest
    assert manifest.repaired_from == report.generation
    assert manifest.writer_epoch > epoch
    assert all(is_quarantined(either, path, 0) for path in damaged)
    expect(either, either.rows())


def test_behind_a_damaged_head_as_many_fences_stand_as_any_writer_may_have_in_flight(
    bucket: Bucket,
) -> None:
    """It may have said that a writer has more than this Reef would ask for."""
    before = bucket.files("wal")
    flip(bucket.files("manifest")[-1])
    mend(bucket)
    assert len(bucket.files("wal")) - len(before) == PARALLEL_WRITES_MAX
    expect(bucket, bucket.rows())


def test_an_older_generation_is_quarantined(either: Bucket) -> None:
    path = either.files("manifest")[1]
    epoch = either.manifest.writer_epoch
    flip(path)
    report = plan(either)
    assert (only(report).kind, report.fences) == ("quarantine", False)
    mend(either)
    assert is_quarantined(either, path, 0)
    assert either.manifest.writer_epoch == epoch
    expect(either, either.rows())


def test_a_generation_that_is_gone_ends_the_past(either: Bucket) -> None:
    path = either.files("manifest")[-2]
    number = int(path.name[:20])
    path.unlink()
    assert only(plan(either)).kind == "raise-boundary"
    mend(either)
    assert either.manifest.gc.boundary.generation == number + 1
    expect(either, either.rows())


def test_a_generation_gone_behind_a_damaged_head(bucket: Bucket) -> None:
    """What the first pass brings to light, the second mends."""
    bucket.write("flush")
    bucket.files("manifest")[-2].unlink()
    flip(bucket.files("manifest")[-1])
    report = mend(bucket)
    assert [step.kind for step in report.steps] == ["republish-manifest", "raise-boundary"]
    expect(bucket, bucket.rows())


def test_without_any_generation_there_is_nothing_to_go_on_from(either: Bucket) -> None:
    for path in either.files("manifest"):
        flip(path)
    step = only(plan(either))
    assert step.state == "impossible"
    assert "rebuild" in step.text
    before = either.everything()
    assert not repair(either.context(), NAMESPACE, apply=True, accept_loss=True).is_mended
    assert either.everything() == before


# The dedup window.


def replayed(bucket: Bucket) -> list[bool]:
    """Send every request again, and return which were known."""
    with bucket.open() as db, db.kv(NAMESPACE) as kv:
        return [
            kv.write(c.puts, c.deletes, idempotency_key=c.idempotency_key).replayed
            for c in bucket.commits
        ]


@pytest.mark.parametrize("harm", [flip, Path.unlink])
def test_a_dedup_window_is_restored(bucket: Bucket, harm: Callable[[Path], None]) -> None:
    harm(bucket.root / f"namespaces/{NAMESPACE}/dedup/{dedup_id(bucket)}.dedup")
    assert only(plan(bucket)).kind == "restore-dedup"
    assert only(plan(bucket)).lost == ""
    mend(bucket)
    expect(bucket, bucket.rows())
    assert all(replayed(bucket))


def test_a_dedup_window_that_the_log_no_longer_tells(collected: Bucket) -> None:
    bucket = collected
    bucket.write("leave")
    flip(bucket.files("dedup")[-1])
    step = only(plan(bucket))
    assert step.state == "refused"
    assert "idempotency keys" in step.lost
    with pytest.raises(reef.CorruptError):
        bucket.read_as_writer()
    mend(bucket, accept_loss=True)
    expect(bucket, bucket.rows())
    assert replayed(bucket) == [False] * 12 + [True] * 4


def test_a_dedup_window_and_a_fence_that_nothing_needs_any_more(collected: Bucket) -> None:
    """Damage below the boundary is no way to restore anything, nor in the way of it."""
    bucket = collected
    assert len(bucket.files("wal")) > 1
    flip(bucket.files("wal")[0])
    bucket.write("flush")
    flip(bucket.root / f"namespaces/{NAMESPACE}/dedup/{dedup_id(bucket)}.dedup")
    mend(bucket)
    expect(bucket, bucket.rows())
    assert all(replayed(bucket))


def dedup_id(bucket: Bucket) -> str:
    dedup = bucket.manifest.dedup
    assert dedup is not None
    return dedup.id


# Beside others, and cut off.


def test_orphans_are_left_to_collection(either: Bucket) -> None:
    live = either.segment(either.manifest.segments[0])
    stray = live.with_name("01J9ZQ3V5N8W2X4Y6Z7A8B9C0K-e1.seg")
    stray.write_bytes(live.read_bytes())
    before = either.everything()
    report = repair(either.context(), NAMESPACE, apply=True)
    assert (report.steps, report.is_mended, report.applied) == ((), True, False)
    (note,) = report.notes
    assert "reef gc" in note.text
    assert either.everything() == before


def test_a_running_writer_is_fenced_but_not_by_a_dry_run(either: Bucket) -> None:
    with either.open() as db, db.kv(NAMESPACE) as kv:
        kv.put(b"held", b"in memory")
        flip(either.segment(either.manifest.segments[0]), 60)
        report = plan(either)
        assert report.fences
        assert report.writer
        kv.put(b"still", b"there")
        mend(either)
        with pytest.raises(reef.FencedError):
            kv.put(b"too", b"late")
    expect(either, either.rows() | {b"held": b"in memory", b"still": b"there"})


def test_a_running_writer_is_not_fenced_where_it_need_not_be(either: Bucket) -> None:
    with either.open() as db, db.kv(NAMESPACE) as kv:
        flip(either.files("manifest")[0])
        mend(either)
        kv.put(b"goes", b"on")
        kv.flush()
    expect(either, either.rows() | {b"goes": b"on"})


def test_a_running_writer_can_save_a_log_object_by_flushing(either: Bucket) -> None:
    with either.open() as db, db.kv(NAMESPACE) as kv:
        slot = either.commits[-2].slot
        flip(either.slot(slot))
        assert only(plan(either)).lost
        kv.flush()
        assert only(plan(either)).lost == ""
        mend(either)
    expect(either, either.rows())


@pytest.mark.parametrize(
    "harm",
    [
        lambda b: flip(b.segment(b.manifest.segments[0]), 60),
        lambda b: b.segment(b.manifest.segments[0]).unlink(),
        lambda b: flip(b.slot(b.commits[-2].slot)),
        lambda b: flip(b.slot(b.commits[-1].slot), 20),
        lambda b: b.slot(b.commits[0].slot).unlink(),
        lambda b: flip(b.files("manifest")[-1]),
        lambda b: flip(b.files("manifest")[1]),
    ],
)
def test_collection_passes_what_was_repaired(
    tmp_path: Path, harm: Callable[[Bucket], object]
) -> None:
    """What stays in its place does not stay in the way."""
    bucket = Bucket(tmp_path / "b", gc_grace=0, retained_generations=1)
    bucket.write("flush", "flush", "leave")
    harm(bucket)
    mend(bucket)
    kept = bucket.read()
    bucket.collect()
    bucket.write("flush", "flush")
    bucket.collect()
    assert len(bucket.files("manifest")) <= 4
    changed = {key for commit in bucket.commits[-8:] for key in (*commit.puts, *commit.deletes)}
    assert {k: v for k, v in bucket.read().items() if k not in changed} == {
        k: v for k, v in kept.items() if k not in changed
    }
    assert verify(bucket.context(), NAMESPACE, deep=True).problems == ()


def test_everything_at_once(either: Bucket) -> None:
    either.write("flush", "leave")
    newest, *_, oldest = either.manifest.segments
    slot = either.commits[-3].slot
    flip(either.segment(newest), 60)
    either.segment(oldest).unlink()
    flip(either.slot(slot))
    flip(either.slot(either.commits[-1].slot))
    flip(either.files("manifest")[2])
    kinds = sorted(step.kind for step in plan(either).steps)
    assert kinds == [
        "name-in-fence",
        "quarantine",
        "restore-segment",
        "restore-segment",
        "skip-log-object",
    ]
    mend(either)
    expect(either, either.rows(without=[slot, either.commits[-1].slot]))


def harm_at_random(path: Path, rng: random.Random) -> None:
    match rng.randrange(6):
        case 0:
            cut(path, rng.randrange(1, path.stat().st_size + 1))
        case 1:
            path.unlink()
        case 2:
            path.write_bytes(path.read_bytes() + b"more")
        case 3:
            flip(path, -rng.randrange(1, 100))
        case _:
            # Byte 8 and on say the format version: that is another error, and no damage.
            flip(path, rng.choice([0, rng.randrange(40, path.stat().st_size)]))


@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_damaged_it_opens_again_or_it_is_said_why_not(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    settings = {"gc_grace": 0, "retained_generations": rng.choice([1, 3])} if seed % 3 == 0 else {}
    bucket = Bucket(
        tmp_path / "b",
        row_block_bytes=rng.choice([300, 10_000]),
        max_parallel_writes=rng.choice([1, 2, 8]),
        **settings,
    )
    for _ in range(rng.randrange(1, 4)):
        bucket.write(*rng.choices(["flush", "leave"], k=rng.randrange(1, 4)), commits=3)
        if rng.random() < 0.3 and len(bucket.manifest.segments) > 1:
            bucket.compact()
        if settings and rng.random() < 0.5:
            bucket.collect()
    written = {(k, v) for commit in bucket.commits for k, v in commit.puts.items()}
    files = [p for f in ("manifest", "wal", "segments", "dedup") for p in bucket.files(f)]
    for path in rng.sample(files[1:], rng.choice([1, 1, 2, 3])):
        harm_at_random(path, rng)
    report = repair(bucket.context(), NAMESPACE)
    if not report.steps:
        assert not report.problems
    elif any(step.state == "impossible" for step in report.steps):
        assert not repair(bucket.context(), NAMESPACE, apply=True, accept_loss=True).is_mended
        return
    else:
        mend(bucket, accept_loss=True)
    kept = bucket.read()
    assert set(kept.items()) <= written
    expect(bucket, kept)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_repair_that_is_killed_at_any_write_is_finished_by_the_next(
    tmp_path: Path, after: bool
) -> None:
    killed_at = 0
    for at in range(1, 100):
        bucket = Bucket(tmp_path / f"b{at}", row_block_bytes=500, max_parallel_writes=2)
        bucket.write("flush", "flush", "leave")
        slot = bucket.commits[-2].slot
        flip(bucket.segment(bucket.manifest.segments[0]), 60)
        flip(bucket.files("dedup")[-1])
        flip(bucket.slot(slot))
        flip(bucket.files("manifest")[0])
        store = Mortal(open_store(bucket.url), at, is_sent=after, among=PUTS)
        try:
            repair(Database(store, **bucket.settings).context(), NAMESPACE, apply=True)
            break
        except Killed:
            killed_at = at
        if repair(bucket.context(), NAMESPACE).steps:  # else it was killed when all was done
            mend(bucket)
        expect(bucket, bucket.rows(without=[slot]))
    assert killed_at >= 9, "copies, a manifest, fences, a segment, a window, a manifest"
