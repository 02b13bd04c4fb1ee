"""Every interleaving of two-phase CAS's clients, with every client dead at every point of it.

The clients are the real `TwoPhaseStore` (and the real conditional-put loop) on a world small enough
to copy: a dict of objects and a dict of records. A client is a deterministic function of the answers
it has got, so a state is the world and each client's answers so far; to take a client one request
further, it is run again from the start with its old answers, and stopped after one new one. States
that were met before are not entered again, which makes the search exhaustive and short.

At each state all the clients are also abandoned for good, and a fresh one has to put things in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from reef.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    ReefError,
    UnavailableError,
)
from reef.store import ObjectMeta, TwoPhaseStore
from reef.store.two_phase import TEMPORARY_PREFIX, Record
from tests.support.store.two_phase import EVER, RecordsContract, commit

KEY = "wal/1"


class Pause(BaseException):
    """The client has made its one new request and is about to make the next."""


class RaceWorld(NamedTuple):
    """All that is durable: the objects, and the records as (destination, source) -> committed."""

    objects: dict[str, bytes]
    rows: dict[tuple[str, str], bool]

    def copy(self) -> RaceWorld:
        return RaceWorld(dict(self.objects), dict(self.rows))

    def key(self) -> tuple[Any, ...]:
        return tuple(sorted(self.objects.items())), tuple(sorted(self.rows.items()))


@dataclass
class Gate:
    """Answers a client's requests: first the old answers again, then one new one, then Pause."""

    world: RaceWorld
    answers: list[Any] = field(default_factory=list)
    allowed: int = 0
    fault: str = ""
    position: int = 0

    def ask(self, request: Callable[[], Any]) -> Any:
        if self.position == len(self.answers):
            if not self.allowed:
                raise Pause
            self.allowed -= 1
            self.answers.append(self._perform(request))
        answer = self.answers[self.position]
        self.position += 1
        if isinstance(answer, type) and issubclass(answer, ReefError):
            raise answer("as the gate says")
        return answer

    def _perform(self, request: Callable[[], Any]) -> Any:
        if self.fault == "before":
            return UnavailableError
        try:
            answer = request()
        except NotFoundError:
            answer = NotFoundError
        return UnavailableError if self.fault == "after" else answer


class GatedStore:
    """A plain store, one gated request at a time. A copy may read now and write later."""

    url = "gated://"

    def __init__(self, gate: Gate, *, split_copy: bool) -> None:
        self._ask = gate.ask
        self._objects = gate.world.objects
        self._split_copy = split_copy

    def put(self, key: str, data: bytes) -> None:
        self._ask(lambda: self._objects.__setitem__(key, data))

    def copy(self, source: str, destination: str) -> None:
        if self._split_copy:
            data = self._ask(lambda: self._find(source))
            self._ask(lambda: self._objects.__setitem__(destination, data))
        else:
            self._ask(lambda: self._objects.__setitem__(destination, self._find(source)))

    def get(self, key: str) -> bytes:
        return self._ask(lambda: self._find(key))

    def head(self, key: str) -> ObjectMeta:
        return self._ask(lambda: ObjectMeta(key, len(self._find(key)), 0))

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        found = self._ask(lambda: tuple(sorted(k for k in self._objects if k.startswith(prefix))))
        return iter([ObjectMeta(key, 0, 0) for key in found if key > start_after])

    def delete(self, key: str) -> None:
        self._ask(lambda: self._objects.pop(key, None) and None)

    def _find(self, key: str) -> bytes:
        if key not in self._objects:
            raise NotFoundError(key)
        return self._objects[key]


class GatedRecords:
    """The records, one gated request at a time; they keep the contract of the real ones."""

    def __init__(self, gate: Gate) -> None:
        self._ask = gate.ask
        self._rows = gate.world.rows

    def insert(
        self, destination: str, source: str, *, committed: bool = False, created_us: int = 0
    ) -> bool:
        def request() -> bool:
            if any(d == destination or s == source for d, s in self._rows):
                return False
            self._rows[destination, source] = committed
            return True

        return self._ask(request)

    def commit(self, destination: str, source: str) -> bool:
        def request() -> bool:
            if (destination, source) not in self._rows:
                return False
            self._rows[destination, source] = True
            return True

        return self._ask(request)

    def remove(self, destination: str, source: str, *, committed: bool) -> bool:
        def request() -> bool:
            if self._rows.get((destination, source)) is not committed:
                return False
            del self._rows[destination, source]
            return True

        return self._ask(request)

    def find(self, destination: str) -> Record | None:
        return self._ask(
            lambda: next((r for r in self._all() if r.destination == destination), None)
        )

    def find_source(self, source: str) -> Record | None:
        return self._ask(lambda: next((r for r in self._all() if r.source == source), None))

    def pending(self) -> Iterator[Record]:
        return iter(self._ask(lambda: tuple(r for r in self._all() if not r.committed)))

    def committed(self) -> Iterator[Record]:
        return iter(self._ask(lambda: tuple(r for r in self._all() if r.committed)))

    def _all(self) -> list[Record]:
        return [Record(d, s, c) for (d, s), c in sorted(self._rows.items())]


class TestGatedRecords(RecordsContract):
    @pytest.fixture
    def records(self) -> GatedRecords:
        return GatedRecords(Gate(RaceWorld({}, {}), allowed=10**6))


class StoppedClock:
    """Time does not matter here, and is not waited for."""

    def now_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        pass


class Client(NamedTuple):
    """A role and what it writes, if it writes."""

    run: Callable[[TwoPhaseStore], Any]
    data: bytes = b""
    deletes: bool = False


def creator(data: bytes) -> Client:
    def run(store: TwoPhaseStore) -> None:
        store.put_if_absent(KEY, data)

    return Client(run, data)


def persistent_creator(data: bytes) -> Client:
    """A creator behind the loop that every commit goes through."""

    def run(store: TwoPhaseStore) -> None:
        commit(store, KEY, data, retries=2, clock=StoppedClock(), seed=0)

    return Client(run, data)


RECOVERER = Client(lambda store: store.recover())
COLLECTOR = Client(lambda store: store.collect(EVER))
DELETER = Client(lambda store: store.delete(KEY), deletes=True)

RUNNING = "running"


class State(NamedTuple):
    """The world, and for each client its answers so far and how it ended."""

    world: RaceWorld
    answers: tuple[tuple[Any, ...], ...]
    outcomes: tuple[Any, ...]
    faults_left: int

    def key(self) -> tuple[Any, ...]:
        return (*self.world.key(), self.answers, self.outcomes, self.faults_left)


def two_phase(gate: Gate, number: int, *, split_copy: bool) -> TwoPhaseStore:
    return TwoPhaseStore(
        GatedStore(gate, split_copy=split_copy),
        GatedRecords(gate),
        clock=StoppedClock(),
        rng=random.Random(number),
    )


def advance(state: State, clients: Sequence[Client], i: int, fault: str, split_copy: bool) -> State:
    """Return the state after client `i` has made one more request."""
    gate = Gate(state.world.copy(), list(state.answers[i]), allowed=1, fault=fault)
    try:
        clients[i].run(two_phase(gate, i, split_copy=split_copy))
        outcome: Any = "success"
    except Pause:
        outcome = RUNNING
    except ConflictError as error:
        outcome = ("conflict", error.found)
    except (AlreadyExistsError, UnavailableError, OutcomeUnknownError) as error:
        outcome = type(error).__name__
    put = lambda old, new: (*old[:i], new, *old[i + 1 :])  # noqa: E731
    return State(
        gate.world,
        put(state.answers, tuple(gate.answers)),
        put(state.outcomes, outcome),
        state.faults_left - bool(fault),
    )


def explore(
    clients: Sequence[Client],
    *,
    faults: int = 0,
    split_copy: bool = True,
    already: bytes | None = None,
) -> tuple[int, set[tuple[Any, ...]]]:
    """Visit every state and check all that must hold in it.

    Returns how many there were, and how the clients can end when none of them dies.

    `already` is an object that has no record: nobody may take its name.
    """
    world = RaceWorld({} if already is None else {KEY: already}, {})
    start = State(world, ((),) * len(clients), (RUNNING,) * len(clients), faults)
    values = {client.data for client in clients if client.data} | {already} - {None}
    seen = {hash(start.key())}
    finals: dict[tuple[Any, ...], bytes | None] = {}
    endings = set()
    stack = [start]
    while stack:
        state = stack.pop()
        if (key := state.world.key()) not in finals:
            finals[key] = check_world(state.world)
            assert finals[key] in values | {None}
        check_state(state, clients, finals[key])
        if RUNNING not in state.outcomes:
            endings.add(state.outcomes)
        for after in successors(state, clients, split_copy):
            was, now = state.world.objects.get(KEY), after.world.objects.get(KEY)
            assert was is None or now is None or was == now, "an object's bytes never change"
            if (digest := hash(after.key())) not in seen:
                seen.add(digest)
                stack.append(after)
    return len(seen), endings


def successors(state: State, clients: Sequence[Client], split_copy: bool) -> Iterator[State]:
    """Yield the state after each request that can be next, with each fault that it can meet."""
    faults = ("", "before", "after") if state.faults_left else ("",)
    for i, outcome in enumerate(state.outcomes):
        if outcome == RUNNING:
            yield from (advance(state, clients, i, fault, split_copy) for fault in faults)


def check_state(state: State, clients: Sequence[Client], final: bytes | None) -> None:
    """What the clients were told is true now, and stays true if all of them die here."""
    if any(client.deletes for client in clients):
        return
    held = state.world.objects.get(KEY)
    told = [
        c.data
        for c, outcome in zip(clients, state.outcomes, strict=True)
        if c.data and outcome == "success"
    ]
    told += [outcome[1] for outcome in state.outcomes if outcome[0] == "conflict"]
    assert len(set(told)) <= 1, "two winners"
    assert all(held == final == data for data in told)
    assert held is None or held == final, "what a reader saw does not go away"


def check_world(left: RaceWorld) -> bytes | None:
    """Let a fresh client take over what dead ones left; return what the name holds in the end."""
    world, store = successor(left)
    store.recover()
    store.collect(EVER)
    assert_tidy(world)
    held = world.objects.get(KEY)

    world, store = successor(left)
    store.delete(KEY)
    store.recover()
    store.collect(EVER)
    assert_tidy(world)
    assert KEY not in world.objects, "a deleted object came back"

    world, store = successor(left)
    try:
        store.put_if_absent(KEY, b"fresh")
        assert world.objects.get(KEY) == b"fresh"
        assert held is None
    except AlreadyExistsError:
        assert world.objects.get(KEY) == held is not None
    return held


def successor(left: RaceWorld) -> tuple[RaceWorld, TwoPhaseStore]:
    world = left.copy()
    return world, two_phase(Gate(world, allowed=10**6), 99, split_copy=False)


def assert_tidy(world: RaceWorld) -> None:
    assert not [key for key in world.objects if key.startswith(TEMPORARY_PREFIX)]
    assert all(world.rows.values()), "a pending record is left"
    assert {d for d, _ in world.rows} <= set(world.objects), "a record without its object is left"


A, B = creator(b"a"), creator(b"b")
A_LOOP, B_LOOP = persistent_creator(b"a"), persistent_creator(b"b")


SPACES: dict[str, tuple[tuple[Client, ...], dict[str, Any]]] = {
    "two creators": ((A, B), {"faults": 2}),
    "creator, recoverer": ((A, RECOVERER), {"faults": 2}),
    "creator, collector": ((A, COLLECTOR), {"faults": 2}),
    "creator, two recoverers": ((A, RECOVERER, RECOVERER), {"faults": 1}),
    "creator, two collectors": ((A, COLLECTOR, COLLECTOR), {}),
    "creator, recoverer, collector": ((A, RECOVERER, COLLECTOR), {"faults": 1}),
    "two creators, recoverer": ((A, B, RECOVERER), {"faults": 1}),
    "two creators, recoverer, collector": ((A, B, RECOVERER, COLLECTOR), {"split_copy": False}),
    "a name taken without a record": ((A, RECOVERER, COLLECTOR), {"already": b"old"}),
    "two commits": ((A_LOOP, B_LOOP), {"faults": 2}),
    "commit, recoverer": ((A_LOOP, RECOVERER), {"faults": 2}),
    "commit, collector": ((A_LOOP, COLLECTOR), {"faults": 1}),
    # With deletes a name is used again, and then a copy must be one step: see the decision page.
    "two creators, deleter": ((A, B, DELETER), {"split_copy": False}),
    "two creators, deleter, recoverer": ((A, B, DELETER, RECOVERER), {"split_copy": False}),
    "creator, deleter, collector": ((A, DELETER, COLLECTOR), {"split_copy": False, "faults": 1}),
    "commit, deleter": ((A_LOOP, DELETER), {"split_copy": False, "faults": 1}),
}


@pytest.mark.parametrize("space", SPACES)
def test_no_interleaving_and_no_death_breaks_it(space: str) -> None:
    clients, options = SPACES[space]
    states, endings = explore(clients, **options)
    print(f"{space}: {states} states, {len(endings)} endings")
    assert any("success" in ending for ending in endings) or "already" in options


@pytest.mark.parametrize("clients", [(A, B), (A, B, RECOVERER), (A, B, RECOVERER, RECOVERER)])
def test_without_faults_one_creator_succeeds_and_the_other_is_refused(
    clients: Sequence[Client],
) -> None:
    _, endings = explore(clients)
    assert {ending[:2] for ending in endings} == {
        ("success", "AlreadyExistsError"),
        ("AlreadyExistsError", "success"),
    }


@pytest.mark.parametrize("clients", [(A_LOOP, B_LOOP), (A_LOOP, B_LOOP, RECOVERER)])
def test_without_faults_one_commit_succeeds_and_the_other_learns_whose_it_is(
    clients: Sequence[Client],
) -> None:
    _, endings = explore(clients)
    assert {ending[:2] for ending in endings} == {
        ("success", ("conflict", b"a")),
        (("conflict", b"b"), "success"),
    }
