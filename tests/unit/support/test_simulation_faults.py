"""What the simulator does to a program: death, sleep, and a network that can do anything."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest

from reef.errors import (
    AlreadyExistsError,
    IncompleteError,
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    ReefError,
    UnavailableError,
)
from tests.support.simulation import (
    EPOCH_US,
    InFlight,
    Network,
    Process,
    SimulatedCrash,
    SimulatedFault,
    Simulation,
    SimulationError,
)
from tests.support.simulation._network import FAULTS

SEEDS = range(40)


# Death


def test_a_killed_process_dies_with_all_its_threads_and_reaches_nobody() -> None:
    unwound: list[str] = []
    with Simulation(1) as sim:
        process, nemesis = sim.process("p"), sim.process("nemesis")
        lock = process.threads.condition()

        def background() -> None:
            try:
                process.clock.sleep(1e6)
            finally:
                unwound.append("background")
                with pytest.raises(SimulatedCrash):
                    process.store.put_if_absent("last-words", b"")
                with pytest.raises(SimulatedCrash):
                    process.threads.start(print, name="child")
                with pytest.raises(SimulatedCrash), lock:
                    pass

        def main() -> None:
            process.threads.start(background, name="background")
            try:
                with lock:
                    process.clock.sleep(1e6)
            except SimulatedCrash as error:
                unwound.append("main")
                raise RuntimeError("nobody is left to see this") from error

        def strike() -> None:
            nemesis.clock.sleep(5)
            process.kill()

        actor = process.start(main)
        nemesis.start(strike)
        sim.run()
        assert sim.now == 5
        assert sorted(unwound) == ["background", "main"]
        assert actor.is_crashed
        assert list(sim.bucket.list()) == []
        assert lock._owner is None  # type: ignore[attr-defined]


def test_what_belonged_to_a_dead_process_answers_nobody() -> None:
    with Simulation(1) as sim:
        process, other = sim.process("p"), sim.process("other")
        process.kill()

        def ask() -> None:
            with pytest.raises(SimulatedCrash):
                process.store.put_if_absent("k", b"")

        ask()
        sim.call(ask, other)
        assert list(sim.bucket.list()) == []


def test_what_had_arrived_before_death_is_not_carried_out_again() -> None:
    with Simulation(1, network=Network(latency=(1.0, 1.0))) as sim:
        process, nemesis = sim.process("p"), sim.process("nemesis")

        def strike() -> None:
            nemesis.clock.sleep(1.5)
            process.kill("landed")

        process.start(lambda: process.store.put_if_absent("k", b""))
        nemesis.start(strike)
        sim.run()
        assert [t.outcome for t in sim.trace if "put_if_absent" in t.request] == ["done"]


def test_what_had_been_given_up_before_death_lands_all_the_same() -> None:
    with Simulation(1, network=Network(rates={"lands_late": 1.0})) as sim:
        process = sim.process("p")

        def life() -> None:
            with pytest.raises(UnavailableError):
                process.store.put_if_absent("k", b"")
            process.kill("dropped")

        process.start(life)
        sim.run()
        assert list(sim.bucket.list()) == []
        sim.land()
        assert [found.key for found in sim.bucket.list()] == ["k"]


def test_a_process_can_kill_itself() -> None:
    with Simulation(1) as sim:
        process = sim.process("p")

        def life() -> None:
            process.kill()
            raise AssertionError("still alive")

        process.start(life)
        sim.run()
        with pytest.raises(SimulationError, match="was killed before it had an answer"):
            sim.call(life, process)


def death_in_flight(seed: int, in_flight: InFlight | None) -> tuple[bool, bool]:
    """Kill a process with a PUT under way; return whether it is there at once, and in the end."""
    with Simulation(seed) as sim:
        process = sim.process("p")
        process.start(lambda: process.store.put_if_absent("k", b""))
        process.kill_at_yield(1, in_flight)
        sim.run()
        at_once = bool(list(sim.bucket.list()))
        sim.land()
        return at_once, bool(list(sim.bucket.list()))


def test_a_killed_process_s_request_lands_or_does_not_by_seed() -> None:
    never, at_once, late = (False, False), (True, True), (False, True)
    assert {death_in_flight(seed, None) for seed in SEEDS} == {never, at_once, late}
    assert {death_in_flight(seed, "dropped") for seed in SEEDS} == {never}
    assert {death_in_flight(seed, "landed") for seed in SEEDS} == {at_once}
    assert {death_in_flight(seed, "late") for seed in SEEDS} == {late}


def test_every_yield_is_a_point_to_die_at() -> None:
    def run(die_at: int) -> tuple[int, int]:
        with Simulation(1, hesitation=0) as sim:
            process = sim.process("p")

            def life() -> None:
                process.store.put_if_absent("k/1", b"")
                process.clock.sleep(1)
                process.store.put_if_absent("k/2", b"")

            process.start(life)
            process.kill_at_yield(die_at, "dropped")
            sim.run()
            return process.yields, len(list(sim.bucket.list()))

    assert [run(n) for n in (1, 2, 3, 4)] == [(1, 0), (2, 1), (3, 1), (3, 2)]


def test_code_that_survives_its_own_death_is_found_out() -> None:
    with Simulation(1) as sim:
        process = sim.process("p")

        def undead() -> None:
            while True:
                with contextlib.suppress(BaseException):  # that is the mistake
                    process.clock.sleep(1)

        process.start(undead)
        process.kill_at_yield(3)
        with pytest.raises(SimulationError, match="p/main goes on after SimulatedCrash"):
            sim.run()


def test_a_zombie_s_request_lands_while_it_sleeps() -> None:
    with Simulation(1, network=Network(latency=(1.0, 1.0))) as sim:
        process, other = sim.process("p"), sim.process("other")

        def zombie() -> float:
            process.store.put_if_absent("k", b"")
            return sim.now

        def watch() -> None:
            other.clock.sleep(0.5)
            process.pause(3600)
            other.clock.sleep(1800)
            assert other.store.head("k").last_modified_us // 1_000_000 * 1_000_000 == (
                EPOCH_US + 1_000_000
            )

        actor = process.start(zombie)
        other.start(watch)
        sim.run()
        assert actor.result == 3600.5


# The network


def faulty(kind: SimulatedFault, life: Callable[[Process], object]) -> tuple[object, Simulation]:
    """Have that fault happen to every request of `life`; return what came of it."""
    with Simulation(1, network=Network(rates={kind: 1.0})) as sim:
        sim.bucket.put("there", b"data")
        process = sim.process("p")

        def attempt() -> object:
            try:
                return life(process)
            except ReefError as error:
                return type(error)

        return sim.call(attempt, process), sim


@pytest.mark.parametrize(
    ("kind", "told", "is_there", "is_there_later"),
    [
        ("reply_lost", UnavailableError, True, True),
        ("lands_late", UnavailableError, False, True),
        ("lands_twice", None, True, True),
        ("conflict", AlreadyExistsError, False, False),
        ("false_conflict", AlreadyExistsError, True, True),
        ("not_written", NotWrittenError, False, False),
        ("error_before", UnavailableError, False, False),
        ("error_after", UnavailableError, True, True),
        ("timeout_before", UnavailableError, False, False),
        ("timeout_after", UnavailableError, True, True),
        ("short_read", None, True, True),
        ("flipped_bit", None, True, True),
    ],
)
def test_each_fault_of_a_write(
    kind: SimulatedFault, told: type | None, is_there: bool, is_there_later: bool
) -> None:
    got, sim = faulty(kind, lambda p: p.store.put_if_absent("k", b"new"))
    assert got is told
    assert ("k" in {found.key for found in sim.bucket.list()}) is is_there
    sim.land()
    assert ("k" in {found.key for found in sim.bucket.list()}) is is_there_later
    assert (sim.now >= 30) is (kind.startswith(("timeout", "lands")))


def test_each_fault_has_a_test() -> None:
    assert len(FAULTS) == 12


def test_what_lands_twice_comes_back_after_it_was_deleted() -> None:
    _, sim = faulty("lands_twice", lambda p: p.store.put_if_absent("k", b"new"))
    sim.bucket.delete("k")
    sim.land()
    assert sim.bucket.get("k") == b"new"


@pytest.mark.parametrize("kind", ["short_read", "flipped_bit"])
def test_a_misread_happens_once_in_a_row(kind: SimulatedFault) -> None:
    got, _ = faulty(kind, lambda p: [p.store.get("there") for _ in range(4)])
    assert isinstance(got, list)
    assert [data == b"data" for data in got] == [False, True, False, True]
    got, _ = faulty(kind, lambda p: p.store.get_range("there", 0, 4))
    assert got is IncompleteError if kind == "short_read" else isinstance(got, bytes)


def test_an_answer_that_is_not_data_passes_unharmed() -> None:
    assert faulty("flipped_bit", lambda p: p.store.get("missing"))[0] is NotFoundError


def test_what_takes_too_long_is_reported_and_lands_all_the_same() -> None:
    network = Network(slow=1.0, slow_latency=(100.0, 200.0), timeout=30.0)
    with Simulation(1, network=network) as sim:
        process = sim.process("p")

        def life() -> None:
            with pytest.raises(UnavailableError, match="no reply in time"):
                process.store.put_if_absent("k", b"")
            assert sim.now == 30
            process.clock.sleep(1000)

        sim.call(life, process)
        assert sim.bucket.head("k").last_modified_us >= EPOCH_US + 100_000_000


def test_an_answer_about_what_was_done_comes_after_it_was_done() -> None:
    network = Network(
        rates={"error_after": 1.0}, slow=1.0, slow_latency=(100.0, 200.0), timeout=30.0
    )
    with Simulation(1, network=network) as sim:
        process = sim.process("p")

        def life() -> None:
            with pytest.raises(UnavailableError, match="500"):
                process.store.put_if_absent("k", b"")
            assert sim.bucket.get("k") == b""

        sim.call(life, process)


def test_reads_of_many_things_stay_inside() -> None:
    with Simulation(1) as sim:
        process = sim.process("p")
        process.store.put_if_absent("k", bytes(100))

        def life() -> None:
            assert process.store.get_many(["k", "none", "k"]) == [bytes(100), None, bytes(100)]
            assert process.store.get_ranges("k", [(0, 1), (90, 5)]) == [bytes(1), bytes(5)]

        sim.call(life, process)
        assert [t.request.split()[0] for t in sim.trace] == ["get", "get", "get", "get_range"]


def test_a_list_is_one_request_per_page_and_others_write_in_between() -> None:
    seen = set()
    for seed in SEEDS:
        with Simulation(seed, list_page=2) as sim:
            for i in range(5):
                sim.bucket.put(f"k/{i}", b"")
            lister, writer = sim.process("lister"), sim.process("writer")
            lister_actor = lister.start(lambda p=lister: [m.key for m in p.store.list("k/")])
            writer.start(lambda p=writer: [p.store.put(f"k/{i}x", b"") for i in (0, 4)])
            sim.run()
            result = lister_actor.result
            assert isinstance(result, list)
            assert result == sorted(result)
            seen.add(tuple(result))
            assert sum(t.request.startswith("list") for t in sim.trace) == len(result) // 2 + 1
    every = ("k/0", "k/1", "k/2", "k/3", "k/4")
    assert (*every, "k/4x") in seen, "the first of two writes was missed, the second was seen"


def test_outside_of_a_run_the_bucket_is_asked_directly() -> None:
    with Simulation(1, network=Network(rates={"error_before": 1.0})) as sim:
        process = sim.process("p")
        process.store.put_if_absent("k", b"data")
        process.store.close()
        assert process.store.get("k") == sim.bucket.get("k") == b"data"
        before = process.clock.monotonic()
        process.clock.sleep(1.5)
        assert process.clock.monotonic() - before == pytest.approx(1.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rates": {"flood": 0.1}},
        {"rates": {"reply_lost": 1.5}},
        {"rates": {"reply_lost": 0.6, "error_before": 0.6}},
        {"latency": (0.2, 0.1)},
        {"late": (0.0, 1.0)},
    ],
)
def test_a_network_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        Network(**wrong)  # type: ignore[arg-type]


def test_networks_of_a_swarm_differ() -> None:
    networks = [Network.swarm(random.Random(seed)) for seed in SEEDS]
    assert networks == [Network.swarm(random.Random(seed)) for seed in SEEDS]
    assert {kind for network in networks for kind in network.rates} == set(FAULTS)
    assert not any(set(FAULTS) == set(network.rates) for network in networks)
