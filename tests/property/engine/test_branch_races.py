"""Making, dropping, detaching and collecting branches, with something else between any two requests.

Whatever comes in between, a branch that is there holds what its parent held, whoever fails says so and
leaves nothing that lasts, and the next collections neither take what is needed nor keep what is not.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reef.doctor import verify
from reef.errors import ReefError
from reef.jobs import detach, end_job, standing_intents
from reef.store import Store
from reef.types import namespace_of
from tests.support.engine.branching import NS, Grove, is_there, root, with_a_dead_maker, with_b
from tests.support.jobs.dying_tasks import Interrupted

NAMES: tuple[str | None, ...] = (None, "b", "c")
Act = Callable[[Grove, Store], object]


def there(grove: Grove) -> list[str | None]:
    return [name for name in NAMES if is_there(grove, name)]


# What is done, on a store that is interrupted, and what interrupts it.


def make_b(grove: Grove, store: Store) -> None:
    grove.database(store).kv(NS, mode="r").branch("b")


def make_c_of_b(grove: Grove, store: Store) -> None:
    grove.database(store).kv(NS, branch="b", mode="r").branch("c")


def drop_b(grove: Grove, store: Store) -> None:
    grove.database(store).drop(NS, branch="b")


def drop_and_make_b(grove: Grove, store: Store) -> None:
    drop_b(grove, store)
    make_b(grove, store)


def drop_root(grove: Grove, store: Store) -> None:
    grove.database(store).drop(NS)


def detach_b(grove: Grove, store: Store) -> None:
    context = grove.database(store).context()
    detach(context, namespace_of(NS, "b"))


def fold_and_compact_all(grove: Grove, store: Store) -> None:
    for name in there(grove):
        with grove.database(store).kv(NS, branch=name) as kv:
            kv.flush()
        grove.compact(name)


def collect_all(grove: Grove, store: Store) -> None:
    grove.age(*there(grove))
    for name in NAMES:
        if grove.chain(name).load() is not None:
            grove.collect(name, store=store)


def everything_gets_old(grove: Grove, store: Store) -> None:
    fold_and_compact_all(grove, store)
    collect_all(grove, store)


def with_an_old_dead_maker() -> Grove:
    grove = with_a_dead_maker(1)
    grove.age(None)
    return grove


STRIDE = 3
"""Between every so many requests: 1 is thorough, and takes minutes."""

RACES = [
    (root, make_b, make_b),
    (root, make_b, drop_root),
    (root, make_b, everything_gets_old),
    (with_b, make_c_of_b, make_c_of_b),
    (with_b, make_c_of_b, drop_b),
    (with_b, make_c_of_b, detach_b),
    (with_b, make_c_of_b, everything_gets_old),
    (with_b, drop_b, make_c_of_b),
    (with_b, drop_b, drop_b),
    (with_b, drop_b, drop_and_make_b),
    (with_b, detach_b, make_c_of_b),
    (with_b, detach_b, drop_b),
    (with_b, collect_all, drop_and_make_b),
    (with_b, collect_all, make_c_of_b),
    (with_an_old_dead_maker, collect_all, make_b),
    (with_an_old_dead_maker, drop_root, make_b),
]


@pytest.mark.parametrize(
    ("race", "first"),
    [(race, 1 + number % STRIDE) for number, race in enumerate(RACES)],
    ids=[f"{a.__name__}-{b.__name__}" for _, a, b in RACES],
)
def test_nothing_that_comes_between_does_harm(
    race: tuple[Callable[[], Grove], Act, Act], first: int
) -> None:
    prepare, act, rival = race
    at = first - STRIDE
    while True:
        at += STRIDE
        grove = prepare()
        expected = {name: grove.contents(name) for name in there(grove)}
        happened: list[int] = []

        def interrupt(grove: Grove = grove, happened: list[int] = happened) -> None:
            happened.append(1)
            attempt(rival, grove, grove.inner)

        attempt(act, grove, Interrupted(grove.inner, at, interrupt))
        check(grove, expected, at)
        if not happened:
            assert at > 5
            return


def attempt(act: Act, grove: Grove, store: Store) -> None:
    try:
        act(grove, store)
    except ReefError:
        return  # whoever is too late may be refused


def check(grove: Grove, before: dict[str | None, dict[bytes, bytes]], at: int) -> None:
    made = there(grove)
    for name in made:
        # Nobody writes in these races. A branch has what its parent had, and b may be made anew.
        allowed = [before[None]] if name is None else [*before.values()]
        assert grove.contents(name) in allowed, (at, name)
    seen = {name: grove.contents(name) for name in made}
    for name in made:
        context = grove.db.context()
        for intent in standing_intents(context, namespace_of(NS, name)):
            end_job(context, namespace_of(NS, name), intent.id)
    everything_gets_old(grove, grove.inner)
    collect_all(grove, grove.inner)
    assert there(grove) == made, at
    for name in made:
        assert grove.contents(name) == seen[name], (at, name)
        assert {pin.child for pin in grove.pins(name)} <= {namespace_of(NS, n) for n in made}, at
        assert verify(grove.db.context(), namespace_of(NS, name)).problems == (), at
