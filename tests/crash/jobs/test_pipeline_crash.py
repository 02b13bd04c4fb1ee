"""Drivers of passes that are killed at every point of their way, and what the next process finds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.crash import pipeline_scenes as scenes
from tests.support.crash.crash_points import crash, fresh

SETTINGS = {"gc_grace": 0, "retained_generations": 1, "row_block_bytes": 1000}
POINTS = {
    # The intent, the floor, then group after group, in several rounds of an intent each.
    "compact": {"manifest put": 12, "segment upload": 19},
    # The intent, and everything anew.
    "rebuild": {"manifest put": 2, "segment upload": 4, "dedup upload": 1},
    # The intent, the writer's epoch, its end, the end of the intent; and what attaches it all.
    "load": {"manifest put": 4, "segment upload": 2, "wal put": 1},
    # The boundary, what has become of it, and what is told of it at the end.
    "gc": {"manifest put": 3, "delete": 94},
}
"""How often a pass comes to each point."""
SOME = 4
"""Of a point that a pass comes to more often, the first, the last and some in between are tried."""


def cases() -> list[tuple[str, str, int]]:
    found = []
    for kind, points in POINTS.items():
        for point, count in points.items():
            step = max(1, count // SOME)
            for nth in sorted({1, min(2, count), *range(1 + step, count, step), count}):
                if point != "dedup upload":
                    found.append((kind, f"before {point}", nth))
                found.append((kind, f"after {point}", nth))
    return found


def url_of(folder: Path) -> str:
    return f"file://{folder}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, scenes.Past]]:
    """Return buckets as passes find them: for collection, with much to collect."""
    folder = tmp_path_factory.mktemp("buckets")
    past = fresh(url_of(folder / "plain"), scenes.build, False, **SETTINGS)
    shutil.copytree(folder / "plain", folder / "used")
    fresh(url_of(folder / "used"), scenes.prepare_collection, **SETTINGS)
    big = fresh(url_of(folder / "big"), scenes.build, True, **SETTINGS)
    return {
        "plain": (folder / "plain", past),
        "used": (folder / "used", past),
        "big": (folder / "big", big),
    }


def bucket_for(
    kind: str, built: dict[str, tuple[Path, scenes.Past]], folder: Path
) -> tuple[str, scenes.Past]:
    """Return a bucket of its own, as a pass of that kind finds it, and what it must show."""
    source, past = built["used" if kind == "gc" else "plain"]
    shutil.copytree(source, folder / "bucket")
    return url_of(folder / "bucket"), past


@pytest.mark.parametrize("kind", [*POINTS])
def test_no_point_is_left_out(
    built: dict[str, tuple[Path, scenes.Past]], tmp_path: Path, kind: str
) -> None:
    url, past = bucket_for(kind, built, tmp_path)
    counts = fresh(url, scenes.count_points, kind, **SETTINGS)
    assert {name: count for name, count in counts.items() if not name.startswith("during")} == {
        f"{when} {point}": count
        for point, count in POINTS[kind].items()
        for when in ("before", "after")
        if (when, point) != ("before", "dedup upload")
    }
    assert fresh(url, scenes.check, past, **SETTINGS)[0] == (kind == "load")


@pytest.mark.parametrize(("kind", "point", "nth"), cases())
def test_a_killed_driver_leaves_every_version_as_it_was(
    built: dict[str, tuple[Path, scenes.Past]], tmp_path: Path, kind: str, point: str, nth: int
) -> None:
    url, past = bucket_for(kind, built, tmp_path)
    crash(url, scenes.drive_and_die, kind, point, nth, **SETTINGS)
    left = fresh(url, scenes.clear_up, kind, past, **SETTINGS)
    is_first = (point, nth) == ("before manifest put", 1)
    is_last = (point, nth) == ("after manifest put", POINTS[kind]["manifest put"])
    is_job = kind != "gc"
    if kind in ("rebuild", "load"):
        assert len(left.intents) == (not is_first and not is_last)
    else:
        assert len(left.intents) <= is_job
    assert all(id.startswith(kind) for id in left.intents)
    assert left.ended == left.intents  # nobody ends what may still be alive
    if is_job:
        assert all(id.endswith(left.intents[0]) for id in left.orphans)
    is_attached = point == "after wal put" or (point.endswith("manifest put") and nth > 2)
    assert left.is_loaded == (kind == "load" and is_attached)
    if kind != "compact":
        assert (left.floor > 0) == (kind == "gc")  # which comes after a compaction
    elif point == "before manifest put":
        assert (left.floor > 0) == (nth > 2)


@pytest.mark.parametrize(
    ("point", "nth", "orphans"),
    [
        # The intent, the floor; then two groups at a time are written, and published one by one.
        ("after manifest put", 3, 1),
        ("before manifest put", 4, 1),
        ("before segment upload", 3, 0),
        ("after segment upload", 4, 2),
    ],
)
def test_a_driver_that_is_killed_between_groups_of_the_same_runs(
    built: dict[str, tuple[Path, scenes.Past]], tmp_path: Path, point: str, nth: int, orphans: int
) -> None:
    """What was published stays, and every version with it."""
    kind = "compact in groups"
    url, past = bucket_for(kind, built, tmp_path)
    crash(url, scenes.drive_and_die, kind, point, nth, **SETTINGS)
    left = fresh(url, scenes.clear_up, kind, past, **SETTINGS)
    assert len(left.ended) == 1
    assert left.clipped > 0
    assert len(left.orphans) == orphans
    assert all(id.endswith(left.intents[0]) for id in left.orphans)


@pytest.mark.parametrize("kind", ["big compact", "rebuild", "big load"])
def test_a_driver_that_is_killed_within_an_upload(
    built: dict[str, tuple[Path, scenes.Past]], tmp_path: Path, kind: str
) -> None:
    source, past = built["big"]
    shutil.copytree(source, tmp_path / "bucket")
    url = url_of(tmp_path / "bucket")
    crash(url, scenes.drive_and_die, kind, "during segment upload", 1, **SETTINGS)
    left = fresh(url, scenes.clear_up, kind, past, **SETTINGS)
    assert len(left.ended) == 1
    assert left.orphans == ()  # what was not uploaded whole is not there
