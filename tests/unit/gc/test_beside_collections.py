"""What else looks at a namespace while it is collected: none of them sees damage that is not there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import count

import pytest

from reef.doctor import repair, storage_stats, verify
from reef.errors import UnavailableError
from reef.manifest import advance_boundary
from reef.store import Store
from tests.support.engine.collecting import NAMESPACE, HookedStore, World, filled

Look = Callable[[World, Store], object]
"""Looks at the namespace through a store, and returns the damage that it sees."""


def _collect(world: World, store: Store) -> object:
    return world.collect(store).problems


def _plan(world: World, store: Store) -> object:
    return world.collect(store, apply=False).problems


def _verify(world: World, store: Store) -> object:
    return verify(world.database(store).context(), NAMESPACE, deep=True).problems


def _repair(world: World, store: Store) -> object:
    return repair(world.database(store).context(), NAMESPACE).steps


def _stats(world: World, store: Store) -> object:
    return storage_stats(world.database(store).context(), NAMESPACE)["damaged"]


LOOKS: list[Look] = [_collect, _plan, _verify, _repair, _stats]


def littered() -> World:
    """Return a namespace of which much may be collected: generations, log, segments, a snapshot."""
    world = World(retained_generations=1)
    kv = filled(world, flushes=2)
    kv.snapshot(ttl=1.0)
    kv.put(b"last", b"1")
    kv.flush()
    world.compact()
    world.age(2)
    return world


def tidy() -> World:
    """Return the same, collected, with too few generations more to be worth a collection."""
    world = littered()
    world.collect(world.inner)
    world.publish()
    return world


def look_beside(look: Look, make: Callable[[], World], stop: int) -> bool:
    """Look while others collect just before request number `stop`; return whether it came to that."""
    world = make()
    requests = count()
    is_reached = False

    def collected(operation: str, key: str) -> None:
        nonlocal is_reached
        if next(requests) == stop:
            is_reached = True
            if make is tidy:
                world.age(3)
            assert not world.collect(world.inner).problems

    store = HookedStore(world.inner)
    store.before = collected
    assert not look(world, store), f"a collection before request {stop}"
    assert not _verify(world, world.inner)
    return is_reached


@pytest.mark.parametrize("make", [littered, tidy])
@pytest.mark.parametrize("look", LOOKS)
def test_a_collection_before_any_request_is_no_damage(
    look: Look, make: Callable[[], World]
) -> None:
    stops = 0
    while look_beside(look, make, stops):
        stops += 1
    assert stops > 3


@pytest.mark.parametrize("look", LOOKS)
def test_collections_without_end_are_no_damage_either(look: Look) -> None:
    """Before each GET of a manifest, what is there to be collected goes; it may say so, and no more."""
    world = littered()

    def collected(operation: str, key: str) -> None:
        if "/manifest/" in key and operation == "get":
            world.age(3)
            world.collect(world.inner)

    store = HookedStore(world.inner)
    store.before = collected
    with contextlib.suppress(UnavailableError):
        assert not look(world, store)


@pytest.mark.parametrize("look", [_collect, _plan, _verify])
def test_a_generation_that_is_really_gone_is_told_however_often_the_head_moves(look: Look) -> None:
    world = littered()
    world.publish(
        lambda m: advance_boundary(m, m.gc.boundary)
    )  # what is below the head stays for the grace period
    gone = world.generations()[-2]
    world.inner.delete(f"namespaces/{NAMESPACE}/manifest/{gone:020d}.manifest.json")

    def moved(operation: str, key: str) -> None:
        if operation == "list" and "/segments/" in key:
            world.publish()

    store = HookedStore(world.inner)
    store.before = moved
    found = look(world, store)
    assert f"{gone}" in str(found)
