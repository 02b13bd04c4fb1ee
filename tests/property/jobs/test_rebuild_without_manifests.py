"""rebuild without any manifest, on random states: equal to the model where it is proved, else refused."""

from __future__ import annotations

import pytest

from reef.doctor import verify
from reef.errors import CorruptError, FencedError, InvalidInputError, ReefError
from tests.support.jobs.lost_manifests import CHILD, ROOT, LostManifests

STEPS = 25


# In 5073 a snapshot of the branch keeps an object of its parent that the head of the branch does not.
@pytest.mark.parametrize("seed", [*range(5), 5073])
def test_some_states(seed: int) -> None:
    check_state(seed)


@pytest.mark.nightly
def test_fifty_states() -> None:
    outcomes = [check_state(seed) for seed in range(100, 150)]
    assert outcomes.count("rebuilt") >= 45


def check_state(seed: int) -> str:
    story = LostManifests(seed)
    try:
        return _check(story)
    except BaseException as error:
        error.add_note("\n".join([f"seed {seed}", *story.told]))
        raise


def _check(story: LostManifests) -> str:
    for _ in range(STEPS):
        story.step()
    for name, rows in story.models.items():
        assert story.rows(name) == rows
    lost = story.rng.choice([*story.models])
    sleeper = story.writers[lost]
    objects = {meta.key for meta in story.store.list(f"namespaces/{lost}/")}
    story.lose(lost)
    with pytest.raises(CorruptError):
        story.open(lost)
    result = story.rebuild(lost)
    if isinstance(result.error, InvalidInputError):
        assert "--assume-live" in str(result.error)
        result = story.rebuild(lost, assume_live=True)
    if result.error is not None:
        # It says what is not proved, and has changed nothing.
        assert isinstance(result.error, CorruptError)
        print(story.told, result.error)
        assert "manifest/" not in "".join(
            {meta.key for meta in story.store.list(f"namespaces/{lost}/")} - objects
        )
        return "refused"
    found = result.returned()
    print(found.unproven)
    attributes = [text for text in found.unproven if text.startswith("attributes:")]
    if attributes:
        # Named as not proved. Then the rows are right, as far as attributes are shown.
        rows = story.rows(lost)
        assert rows.keys() == story.models[lost].keys()
        if "also such as were dropped" not in attributes[0]:
            for id, row in rows.items():
                assert row.items() <= story.models[lost][id].items()
        story.models[lost] = rows
    for name, rows in story.models.items():
        assert story.rows(name) == rows, found.unproven
    # No sleeper's commit is acknowledged into nowhere: it meets a fence.
    with pytest.raises(FencedError):
        sleeper.upsert([{"id": "sleeper", "a": 1}])
    with pytest.raises(ReefError):
        sleeper.flush()
        sleeper.upsert([{"id": "sleeper", "a": 1}])
    assert story.rows(lost) == story.models[lost]
    # What is there goes on as any namespace does.
    story.writers[lost] = story.open(lost)
    for _ in range(2):
        story.write(lost)
        story.flush(lost)
        story.fold(lost)
        story.compact(lost)
        story.clock.advance(100)
        for name in story.models:
            story.collect(name)
        for name, rows in story.models.items():
            assert story.rows(name) == rows
    for name in story.models:
        report = verify(story.context(), name, deep=True)
        assert report.problems == (), report.problems
    return "rebuilt"


def test_again_after_a_rebuild() -> None:
    story = LostManifests(3)
    for _ in range(3):
        story.write(ROOT)
        story.flush(ROOT)
        story.collect(ROOT)
        story.lose(ROOT)
        assert story.rebuild(ROOT).error is None
        sleeper = story.writers[ROOT]
        story.writers[ROOT] = story.open(ROOT)
        with pytest.raises(FencedError):
            sleeper.upsert([{"id": "sleeper", "a": 1}])
        assert story.rows(ROOT) == story.models[ROOT]


def test_a_parent_and_a_branch_that_are_both_lost_are_refused() -> None:
    story = LostManifests(4)
    story.write(ROOT)
    story.flush(ROOT)
    story.branch(ROOT)
    story.write(CHILD)
    story.lose(ROOT)
    story.lose(CHILD)
    for name in (ROOT, CHILD):
        error = story.rebuild(name).error
        assert isinstance(error, CorruptError)
        assert "manifest/" in error.key


def test_a_dropped_namespace_is_not_taken_for_a_live_one() -> None:
    story = LostManifests(5)
    story.write(ROOT)
    story.flush(ROOT)
    story.writers.pop(ROOT).close()
    story.db().drop(ROOT)
    story.lose(ROOT)
    error = story.rebuild(ROOT).error
    assert isinstance(error, InvalidInputError)
    assert "may have been dropped" in str(error)
    assert [*story.store.list(f"namespaces/{ROOT}/manifest/")] == []
