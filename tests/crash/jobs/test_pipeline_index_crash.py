"""A driver of index that is killed at every point of its way, and the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.crash import index_scenes as scenes
from tests.support.crash.crash_points import crash, fresh
from tests.support.crash.writer_scenes import look

POINTS = [
    ("before manifest put", 1),  # the intent
    ("after manifest put", 1),
    ("before segment upload", 1),
    ("before segment upload", 2),
    ("after segment upload", 2),
    ("after dedup upload", 1),
    ("before manifest put", 2),  # the fold
    ("after manifest put", 2),
]


@pytest.mark.parametrize(("point", "nth"), POINTS)
def test_a_killed_driver_leaves_orphans_and_an_intent_only(
    tmp_path: Path, point: str, nth: int
) -> None:
    check(f"file://{tmp_path}/bucket", point, nth, is_big=False)


def test_a_driver_that_is_killed_within_an_upload(tmp_path: Path) -> None:
    check(f"file://{tmp_path}/bucket", "during segment upload", 3, is_big=True)


def check(url: str, point: str, nth: int, *, is_big: bool) -> None:
    fresh(url, scenes.write, is_big)
    before = fresh(url, look)
    crash(url, scenes.fold_and_die, point, nth)
    found = fresh(url, look)
    is_registered = (point, nth) != ("before manifest put", 1)
    is_published = (point, nth) == ("after manifest put", 2)
    assert (found.rows, found.lsns, found.lsn) == (before.rows, before.lsns, before.lsn)
    assert found.generation == before.generation + is_registered + is_published
    assert len(found.intents) == (is_registered and not is_published)
    assert (found.wal_floor > before.wal_floor) == is_published
    assert bool(found.segments) == is_published
    assert all(id.endswith(found.intents[0]) for id in found.orphans)
    generation = fresh(url, scenes.fold)
    assert (generation is None) == is_published
    after = fresh(url, look)
    assert (after.rows, after.lsns, after.lsn) == (before.rows, before.lsns, before.lsn)
    assert after.wal_floor > before.wal_floor
    assert after.intents == found.intents  # nobody ends what may still be alive
    lsns = [before.lsns[name + b"/0"] for name in scenes.BATCHES]
    assert fresh(url, scenes.retry) == [(lsn, True) for lsn in lsns]
    assert fresh(url, look).rows == before.rows
