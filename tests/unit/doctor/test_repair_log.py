"""Repair of the log: objects that are damaged or gone are passed over by name, the rest is kept."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import reef
from reef.doctor import repair, verify
from reef.engine import Face, WriteRequest, open_for_reading, open_for_writing
from reef.format import KEY, TOMBSTONE, log_schema
from reef.kv import FACE
from reef.types import ORDINAL_MAX, pack_lsn
from tests.support.doctor.damaged_buckets import NAMESPACE, Bucket, flip, make_bucket
from tests.support.doctor.repairing import expect, is_quarantined, mend, only, plan


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
    assert is_quarantined(either, either.slot(slot))
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
    bucket = make_bucket(tmp_path, max_parallel_writes=8)
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


def test_nothing_is_fenced_behind_another_format_version(serial: Bucket) -> None:
    path = serial.slot(serial.commits[-2].slot)
    path.write_bytes(path.read_bytes()[:8] + b"\2" + path.read_bytes()[9:])
    flip(serial.segment(serial.manifest.segments[0]), 60)
    steps = {step.kind: step.state for step in plan(serial).steps}
    assert steps == {"restore-segment": "refused", "report": "impossible"}
    before = serial.everything()
    assert not repair(serial.context(), NAMESPACE, apply=True, accept_loss=True).is_mended
    assert serial.everything() == before


def test_lsns_that_the_caller_gives_are_bounded_by_their_neighbours(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "b")
    face = Face("pages", FACE.schema, "caller")
    context = bucket.context()
    writer = open_for_writing(context, NAMESPACE, face)
    for lsn in (100, 250, 300, 470, 500):
        row = {KEY: b"k%d" % lsn, TOMBSTONE: False, "value": b"v"}
        batch = pa.RecordBatch.from_pylist([row], schema=log_schema(FACE.schema))
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
    keys = [key for batch in reader.view().scan() for key in batch.column(0).to_pylist()]
    assert keys == [b"k100", b"k250", b"k300", b"k500"]
