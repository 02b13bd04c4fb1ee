"""Repair of manifests and dedup windows: gone on from what can be read, or told anew by the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import reef
from reef.doctor import repair
from reef.format import PARALLEL_WRITES_MAX
from reef.jobs.load import find_load
from tests.support.doctor.damaged_buckets import NAMESPACE, Bucket, cut, flip
from tests.support.doctor.repairing import expect, is_quarantined, mend, only, plan
from tests.support.jobs.passes import index

# Manifests.


@pytest.mark.slow
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
    assert all(is_quarantined(either, path) for path in damaged)
    expect(either, either.rows())


def test_behind_a_damaged_head_as_many_fences_stand_as_any_writer_may_have_in_flight(
    serial: Bucket,
) -> None:
    """It may have said that a writer has more than this Reef would ask for."""
    before = serial.files("wal")
    flip(serial.files("manifest")[-1])
    mend(serial)
    assert len(serial.files("wal")) - len(before) == PARALLEL_WRITES_MAX
    expect(serial, serial.rows())


def test_an_older_generation_is_quarantined(either: Bucket) -> None:
    path = either.files("manifest")[1]
    epoch = either.manifest.writer_epoch
    flip(path)
    report = plan(either)
    assert (only(report).kind, report.fences) == ("quarantine", False)
    mend(either)
    assert is_quarantined(either, path)
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


def test_a_generation_gone_behind_a_damaged_head(serial: Bucket) -> None:
    """What the first pass brings to light, the second mends."""
    serial.write("flush")
    serial.files("manifest")[-2].unlink()
    flip(serial.files("manifest")[-1])
    report = mend(serial)
    assert [step.kind for step in report.steps] == ["republish-manifest", "raise-boundary"]
    expect(serial, serial.rows())


def test_without_any_generation_there_is_nothing_to_go_on_from(either: Bucket) -> None:
    for path in either.files("manifest"):
        flip(path)
    step = only(plan(either))
    assert step.state == "impossible"
    assert "restore one generation from a backup" in step.text
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


def an_older_window(path: Path) -> None:
    """Put another window, whole and older, under the name of this one."""
    older = min(path.parent.iterdir())
    assert older != path
    path.write_bytes(older.read_bytes())


@pytest.mark.parametrize("harm", [flip, Path.unlink, an_older_window])
def test_a_dedup_window_is_restored(serial: Bucket, harm: Callable[[Path], None]) -> None:
    harm(serial.root / f"namespaces/{NAMESPACE}/dedup/{dedup_id(serial)}.dedup")
    assert only(plan(serial)).kind == "restore-dedup"
    assert only(plan(serial)).lost == ""
    mend(serial)
    expect(serial, serial.rows())
    assert all(replayed(serial))


def test_another_window_under_the_name_of_the_head_s_is_damage(serial: Bucket) -> None:
    """An older one does not know the newest requests: their retries would write twice."""
    path = serial.root / f"namespaces/{NAMESPACE}/dedup/{dedup_id(serial)}.dedup"
    an_older_window(path)
    before = serial.everything()
    for use in (
        serial.read_as_writer,
        lambda: find_load(serial.context(), NAMESPACE, "load"),
    ):
        with pytest.raises(reef.CorruptError, match=rf"{path.name}.*another window.*reef repair"):
            use()
    assert [p for p in serial.everything() if "/wal/" in p] == [p for p in before if "/wal/" in p]
    assert serial.read() == serial.rows(), "readers need no window"
    mend(serial)
    assert all(replayed(serial))


def test_no_fold_goes_on_from_another_window(serial: Bucket) -> None:
    with serial.open() as db, db.kv(NAMESPACE) as kv:
        kv.put(b"later", b"1", idempotency_key="later")
    an_older_window(serial.root / f"namespaces/{NAMESPACE}/dedup/{dedup_id(serial)}.dedup")
    generation = serial.manifest.generation
    with pytest.raises(reef.CorruptError, match=r"another window.*reef repair"):
        index(serial.context(), NAMESPACE)
    assert serial.manifest.generation == generation + 2, "the intent, and its end"
    assert serial.manifest.wal_floor <= serial.commits[-1].slot + 1


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
