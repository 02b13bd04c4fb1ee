"""Making, dropping and collecting branches, ended at every request that changes the bucket.

The process ends right before the request, or right after it: what it asked for was done, and nobody was
told. A fresh one then finds a branch that is whole or none at all, can go on, and in the end nothing is
left that nobody needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from reef.errors import AlreadyExistsError, NotFoundError
from reef.jobs import InProcess, detach, end_job, standing_intents
from reef.store import Store
from reef.testing import Operation
from tests.support.engine.branching import NS, Grove, is_there, root, with_a_dead_maker, with_b
from tests.support.jobs.dying_tasks import CHANGES, PUTS, Killed, Mortal

Act = Callable[[Grove, Store], object]


def deaths(
    prepare: Callable[[], Grove], act: Act, changes: tuple[Operation, ...] = CHANGES
) -> Iterator[tuple[str, Grove]]:
    """Yield a bucket for every point at which `act` can end, the last one at none."""
    for after in (False, True):
        at = 0
        while True:
            at += 1
            grove = prepare()
            try:
                act(grove, Mortal(grove.inner, at, is_sent=after, among=changes))
            except Killed:
                yield f"{'after' if after else 'before'} change {at}", grove
                continue
            assert at > 1
            break
    yield "not at all", grove


def make(name: str, of: str | None = None) -> Act:
    def act(grove: Grove, store: Store) -> None:
        grove.database(store).kv(NS, branch=of, mode="r").branch(name)

    return act


def settle(grove: Grove, *names: str | None) -> None:
    """Let the grace period pass, and collect, until there is nothing more to do."""
    for _ in range(3):
        live = [name for name in names if name is None or is_there(grove, name)]
        grove.age(*live)
        for name in names:
            if grove.chain(name).load() is not None:
                grove.collect(name)


def check_no_waste(grove: Grove, *names: str) -> None:
    """What lies in the bucket is named by a live head, or by a pinned generation."""
    wanted: set[str] = set()
    for name in (None, *names):
        head = grove.chain(name).load()
        if head is None:
            continue
        chain = grove.chain(name)
        pinned = [chain.at(pin.generation).manifest for pin in head.manifest.pins]
        for manifest in (head.manifest, *pinned):
            wanted |= {ref.id for ref in manifest.segments}
    for name in (None, *names):
        assert set(grove.objects(name, "segments")) <= wanted


def test_making_a_branch() -> None:
    points = 0
    for point, grove in deaths(root, make("b")):
        points += 1
        before = grove.contents()
        there = is_there(grove, "b")
        if there:
            assert grove.contents("b") == before, point
            with pytest.raises(AlreadyExistsError):
                grove.kv(mode="r").branch("b")
        else:
            grove.kv(mode="r").branch("b")  # it can be made at once
            assert grove.contents("b") == before, point
        branch = grove.kv("b")
        branch.put(b"mine", b"1")
        branch.flush()  # behind its fences: until then, what an earlier maker has left is spared
        writer = grove.kv()
        writer.put(b"k1", b"later")
        writer.flush()
        grove.compact(floor_lsn=writer.lsn)
        settle(grove, None, "b")
        assert grove.contents("b") == before | {b"mine": b"1"}, point
        assert [pin.child for pin in grove.pins()] == ["ns@b"], point
        check_no_waste(grove, "b")
    assert points == 2 * 3 + 1


def test_making_a_branch_that_nobody_makes_again() -> None:
    for point, grove in deaths(root, make("b")):
        there = is_there(grove, "b")
        before = grove.contents()
        settle(grove, None, "b")
        assert is_there(grove, "b") == there, point
        assert len(grove.pins()) == there, point
        assert grove.contents() == before
        if there:
            assert grove.contents("b") == before
        check_no_waste(grove, "b")


def test_making_a_branch_of_a_branch() -> None:
    points = 0
    for point, grove in deaths(with_b, make("c", "b")):
        points += 1
        before = grove.contents("b")
        there = is_there(grove, "c")
        settle(grove, None, "b", "c")
        assert is_there(grove, "c") == there, point
        assert {pin.child for pin in grove.pins()} == ({"ns@b", "ns@c"} if there else {"ns@b"})
        assert [pin.child for pin in grove.pins("b")] == (["ns@c"] if there else [])
        if there:
            assert grove.contents("c") == before
        assert grove.contents("b") == before
        check_no_waste(grove, "b", "c")
    assert points == 2 * 4 + 1


def drop(name: str | None) -> Act:
    return lambda grove, store: grove.database(store).drop(NS, branch=name)


def test_dropping_a_branch() -> None:
    for point, grove in deaths(with_b, drop("b")):
        before = grove.contents()
        if is_there(grove, "b"):
            assert grove.contents("b")[b"k3"] == b"branch", point
            grove.kv("b").put(b"k3", b"still there")
            grove.db.drop(NS, branch="b")
        with pytest.raises(NotFoundError):
            grove.contents("b")
        grove.kv(mode="r").branch("b")  # the name is free
        assert grove.contents("b") == before, point
        grove.kv("b").put(b"k3", b"anew")
        settle(grove, None, "b")
        assert grove.contents("b") == before | {b"k3": b"anew"}, point
        assert len(grove.pins()) == 1, point
        check_no_waste(grove, "b")


def test_dropping_a_namespace_on_which_a_dead_pin_stands() -> None:
    for point, grove in deaths(lambda: with_a_dead_maker(2), drop(None)):
        if grove.manifest().state == "live":
            assert grove.contents()[b"log"] == b"unfolded", point
            grove.db.drop(NS)
        assert grove.manifest().state == "dropped"
        for _ in range(3):
            grove.clock.advance(1000)
            grove.collect()
        assert grove.objects(None, "segments") == [], point


def test_collecting_what_was_never_made() -> None:
    def prepare() -> Grove:
        grove = with_a_dead_maker(2)
        grove.age(None)
        return grove

    def act(grove: Grove, store: Store) -> None:
        grove.collect(store=store)

    # Ending between deletes is what the tests of collection itself are about.
    for point, grove in deaths(prepare, act, PUTS):
        before = grove.contents()
        settle(grove, None, "b")
        assert not grove.pins(), point
        grove.kv(mode="r").branch("b")
        settle(grove, None, "b")
        assert grove.contents("b") == grove.contents() == before, point


def test_detaching() -> None:
    def act(grove: Grove, store: Store) -> None:
        context = grove.database(store).context()
        detach(context, "ns@b", runner=InProcess(context))

    for point, grove in deaths(with_b, act):
        before = grove.contents("b")
        assert before[b"k3"] == b"branch", point
        act(grove, grove.inner)
        assert grove.contents("b") == before, point
        assert grove.manifest("b").origin is None
        grove.kv("b").put(b"mine", b"1")
        context = grove.db.context()
        for intent in standing_intents(context, "ns@b"):
            end_job(context, "ns@b", intent.id)
        settle(grove, "b", None, "b", None)
        assert not grove.pins(), point
        assert grove.contents("b") == before | {b"mine": b"1"}
