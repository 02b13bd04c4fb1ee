"""The pipeline against plain histories: whatever happens, every read of every retained version is equal.

Each seed is a story of pairs and documents in one bucket: writes, loads, snapshots, and passes over one
namespace or both, in any order. Passes run on executors that die and tasks that run twice; some have
a driver that is killed before or after any of its requests, or others who do something in the midst of
them. After each step everything that can be read is compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from reef import jobs
from reef.errors import (
    FencedError,
    ReefError,
    UnavailableError,
)
from reef.jobs import (
    CollectOptions,
    CompactionOptions,
    IndexOptions,
)
from tests.support.jobs.dying_tasks import Interrupted, Killed
from tests.support.jobs.pipeline_story import Drive, PipelineStory

SEEDS = int(os.environ.get("STORIES", "5"))
FIRST = int(os.environ.get("STORIES_FIRST", "0"))
STEPS = 30


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_every_read_of_every_retained_version_is_as_it_was(seed: int) -> None:
    story = PipelineStory(seed)
    try:
        for _ in range(STEPS):
            if story.step():
                story.check()
        story.check_end()
    except (Exception, Killed) as error:
        error.add_note("\n".join([f"seed {seed}", *story.told[-15:]]))
        raise
    finally:
        for subject in story.subjects:
            with suppress(ReefError):
                subject.writer.close()
            subject.reader.close()
    print(seed, dict(story.seen))  # shown with -s, or when it fails


# One rival at every publish of every pass.

PASSES: dict[str, Callable[[PipelineStory], Drive]] = {
    "index": lambda story: (
        lambda db, runner: jobs.index(
            db, ["pairs"], runner=runner, options=IndexOptions(task_slots=2)
        )
    ),
    "compact": lambda story: (
        lambda db, runner: jobs.compact(
            db,
            ["pairs"],
            runner=runner,
            options=CompactionOptions(target_size_bytes=1500, min_input_files=2, full=True),
        )
    ),
    "rebuild": lambda story: lambda db, runner: jobs.rebuild(db, ["pairs"], runner=runner),
    "gc": lambda story: (
        lambda db, runner: jobs.collect(
            db, ["pairs"], runner=runner, apply=True, options=CollectOptions(small_objects=0)
        )
    ),
}


def rival(story: PipelineStory, name: str) -> None:
    """Do what `name` says in the midst of somebody else's pass."""
    pairs = story.subjects[0]
    if name == "write":
        story.write_some(pairs)
        story.flush(pairs)
    elif name == "snapshot":
        story.take_snapshot(pairs)
    elif name == "end":
        story.end_jobs(pairs)
    else:
        PASSES[name](story)(story.database(), story.runner(story.store))


@pytest.mark.parametrize("kind", [*PASSES])
@pytest.mark.parametrize("other", ["write", "snapshot", "end", *PASSES])
def test_a_rival_before_any_publish(kind: str, other: str) -> None:
    for nth in (1, 3) if kind == "compact" else (1, 2):
        story = PipelineStory(nth)
        pairs = story.subjects[0]
        try:
            for _ in range(3):
                story.write_some(pairs)
                story.flush(pairs)
            story.load_in_parts(pairs)
            story.write_some(pairs)
            if kind == "gc":
                PASSES["compact"](story)(story.database(), story.runner(story.store))
                story.age()
            met: list[str] = []

            def others(story: PipelineStory = story, met: list[str] = met) -> None:
                met.append(other)
                rival(story, other)

            store = Interrupted(story.store, nth, others, "/pairs/manifest/")
            result: Any = PASSES[kind](story)(story.database(store), story.runner(store))
            assert met or nth > 1
            errors = [one.error for one in result.namespaces if one.error is not None]
            assert all(isinstance(error, FencedError | UnavailableError) for error in errors)
            pairs.check(story.database(), story.rng)
            drive = PASSES[kind](story)
            assert drive(story.database(), story.runner(story.store)).failed == ()  # type: ignore[attr-defined]
            pairs.check(story.database(), story.rng, is_whole=True)
        finally:
            for subject in story.subjects:
                with suppress(ReefError):
                    subject.writer.close()
                subject.reader.close()
