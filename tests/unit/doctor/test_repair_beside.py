"""Repair beside writers and collection, of several damages at once, and cut off in the middle."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import reef
from reef.database import Database
from reef.doctor import repair, verify
from reef.store import open_store
from tests.support.doctor.damaged_buckets import NAMESPACE, Bucket, cut, flip
from tests.support.doctor.repairing import expect, mend, only, plan
from tests.support.jobs.dying_tasks import PUTS, Killed, Mortal


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


@pytest.mark.slow
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


@pytest.mark.slow
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
