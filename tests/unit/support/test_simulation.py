"""The simulator: what it explores, that it repeats itself, and that it says what went wrong.

Run as a script, this module prints the digest of one rich run: what another process compares with.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from reef.errors import ReefError
from reef.store import ObjectMeta
from reef.threads import SystemThreads, Threads
from tests.support.simulation import EPOCH_US, Network, Process, Simulation, SimulationError

SEEDS = range(40)


def rich_run(seed: int) -> Simulation:
    """Run something with all there is: faults, threads, conditions, a death, a zombie."""
    network = Network.swarm(random.Random(seed))
    with Simulation(seed, network=network, list_page=3) as sim:
        for name in ("a", "b", "c"):
            process = sim.process(name)
            process.start(lambda process=process: rich_life(process))
        nemesis = sim.process("nemesis")
        nemesis.start(lambda: rich_nemesis(sim, nemesis))
        sim.run()
        sim.land()
    return sim


def rich_nemesis(sim: Simulation, nemesis: Process) -> None:
    nemesis.clock.sleep(sim.rng.uniform(0, 0.5))
    sim._processes["a"].kill()
    sim._processes["b"].pause(100.0)


def rich_life(process: Process) -> None:
    news = process.threads.condition()
    done: list[int] = []

    def work(number: int) -> None:
        for i in range(5):
            try:
                process.store.put_if_absent(f"k/{i}-{number}", process.rng.randbytes(8))
                process.store.get(f"k/{i}-{number}")
                list(process.store.list("k/"))
            except ReefError:
                process.clock.sleep(process.rng.random())
        with news:
            done.append(number)
            news.notify_all()

    for number in range(3):
        process.threads.start(lambda number=number: work(number), name="worker")
    with news:
        while len(done) < 3:
            news.wait(process.rng.random())


# One seed, one run


@pytest.mark.parametrize("seed", range(10))
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    first, second = rich_run(seed), rich_run(seed)
    assert list(map(str, first.trace)) == list(map(str, second.trace))
    assert first.digest == second.digest
    assert (first.now, first.steps) == (second.now, second.steps)


def test_other_seeds_give_other_runs() -> None:
    assert len({rich_run(seed).digest for seed in range(10)}) == 10


def test_a_run_does_not_depend_on_the_order_of_hashes() -> None:
    def digest(hash_seed: str) -> str:
        path = os.pathsep.join(sys.path)
        env = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        command = [sys.executable, __file__, "3"]
        return subprocess.run(
            command, env=env, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert {digest(seed) for seed in ("0", "1", "2", "random")} == {rich_run(3).digest}


def test_one_actor_runs_at_a_time() -> None:
    inside: list[str] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with Simulation(1) as sim:

            def life(process: Process) -> None:
                for _ in range(50):
                    assert inside == []
                    inside.append(process.name)
                    sum(range(1000))
                    assert inside == [process.name]
                    inside.clear()
                    process.clock.sleep(0)

            for name in "abcd":
                process = sim.process(name)
                process.start(lambda process=process: life(process))
            sim.run()
    finally:
        sys.setswitchinterval(interval)


def test_some_seeds_find_a_race_and_others_do_not() -> None:
    def counted(seed: int) -> bytes:
        with Simulation(seed) as sim:
            sim.bucket.put("n", b"0")
            for name in "ab":
                process = sim.process(name)

                def add(process: Process = process) -> None:
                    process.clock.sleep(process.rng.uniform(0, 0.02))
                    process.store.put("n", b"%d" % (int(process.store.get("n")) + 1))

                process.start(add)
            sim.run()
            return sim.bucket.get("n")

    assert {counted(seed) for seed in SEEDS} == {b"1", b"2"}


# Time


def test_time_jumps_to_the_next_wake_up() -> None:
    woken = []
    with Simulation(1) as sim:
        process = sim.process("p")
        for seconds in (86400.0, 0.5, 3600.0):

            def sleep(seconds: float = seconds) -> None:
                process.clock.sleep(seconds)
                woken.append((seconds, sim.now))

            process.start(sleep)
        sim.run()
    assert woken == [(0.5, 0.5), (3600.0, 3600.0), (86400.0, 86400.0)]


def test_a_clock_moves_with_virtual_time_and_each_process_has_its_own() -> None:
    with Simulation(1, clock_skew=60) as sim:
        a, b = sim.process("a"), sim.process("b")
        apart_us = a.clock.now_us() - b.clock.now_us()
        assert 0 < abs(apart_us) <= 120_000_000
        assert a.clock.monotonic() != b.clock.monotonic()
        before, wall_us = a.clock.monotonic(), a.clock.now_us()
        a.start(lambda: a.clock.sleep(2.5))
        sim.run()
        assert a.clock.monotonic() - before == pytest.approx(2.5)
        assert a.clock.now_us() - wall_us == 2_500_000
        assert a.clock.now_us() - b.clock.now_us() == apart_us


@pytest.mark.parametrize(("whole_seconds", "expected"), [(True, 7_000_000), (False, 7_250_000)])
def test_last_modified_is_virtual_time_on_the_bucket_s_own_clock(
    whole_seconds: bool, expected: int
) -> None:
    network = Network(latency=(0.25, 0.25))
    with Simulation(1, network=network, whole_seconds=whole_seconds) as sim:
        process = sim.process("p")

        def life() -> ObjectMeta:
            process.clock.sleep(7.0)
            process.store.put_if_absent("k", b"")
            return process.store.head("k")

        assert sim.call(life, process).last_modified_us == EPOCH_US + expected


def test_a_deadline_is_reached_in_finitely_many_waits() -> None:
    with Simulation(1) as sim:
        process = sim.process("p")

        def life() -> int:
            news = process.threads.condition()
            deadline = process.clock.monotonic() + 1e-7
            rounds = 0
            with news:
                while (left := deadline - process.clock.monotonic()) > 0:
                    rounds += 1
                    news.wait(left)
            return rounds

        assert sim.call(life, process) <= 2


# Threads and conditions


def hand_over(threads: Threads, store_it: Callable[[int], None]) -> None:
    """Hand numbers from one thread to another through a box that holds one."""
    news = threads.condition()
    box: list[int] = []

    def consume() -> None:
        for _ in range(20):
            with news:
                while not box:
                    news.wait()
                store_it(box.pop())
                news.notify_all()

    consumer = threads.start(consume, name="consumer")
    for number in range(20):
        with news:
            while box:
                assert news.wait(1000.0)
            box.append(number)
            news.notify_all()
    consumer.join()


def test_system_threads_hand_over() -> None:
    got: list[int] = []
    hand_over(SystemThreads(), got.append)
    assert got == list(range(20))


@pytest.mark.parametrize("seed", SEEDS)
def test_simulated_threads_hand_over_alike(seed: int) -> None:
    got: list[int] = []
    with Simulation(seed, hesitation=0.5) as sim:
        process = sim.process("p")

        def store_it(number: int) -> None:
            process.store.put_if_absent(f"n/{number}", b"")  # with the lock held
            got.append(number)

        sim.call(lambda: hand_over(process.threads, store_it), process)
    assert got == list(range(20))


def test_a_lock_is_held_across_a_request() -> None:
    inside = 0
    with Simulation(1) as sim:
        process = sim.process("p")
        lock = process.threads.condition()

        def life(number: int) -> None:
            nonlocal inside
            for i in range(10):
                with lock:
                    inside += 1
                    process.store.put_if_absent(f"{number}/{i}", b"")
                    assert inside == 1
                    inside -= 1

        for number in range(4):
            process.start(lambda number=number: life(number))
        sim.run()


def test_threads_that_hesitate_before_a_lock_take_turns_in_any_order() -> None:
    def order(seed: int, hesitation: float) -> str:
        taken: list[str] = []
        with Simulation(seed, hesitation=hesitation) as sim:
            process = sim.process("p")
            lock = process.threads.condition()

            def life(name: str) -> None:
                for _ in range(3):
                    with lock:
                        taken.append(name)

            for name in "ab":
                process.start(lambda name=name: life(name))
            sim.run()
        return "".join(taken)

    assert {order(seed, 0.0) for seed in SEEDS} == {"aaabbb", "bbbaaa"}
    assert len({order(seed, 0.5) for seed in SEEDS}) > 5


def test_a_wait_times_out_and_says_so() -> None:
    with Simulation(1) as sim:
        process = sim.process("p")
        news = process.threads.condition()

        def life() -> list[bool]:
            with news:
                return [news.wait(5.0) for _ in range(50)]

        said = sim.call(life, process)
        # A few come back early, without news, as they may: they do not claim a time-out.
        assert said.count(False) == sim.now // 5 > 40


def test_a_wait_can_return_without_news() -> None:
    with Simulation(1) as sim:
        process = sim.process("p")
        news = process.threads.condition()

        def life() -> bool:
            with news:
                return any(news.wait(1000.0) for _ in range(1000))

        assert sim.call(life, process)


def test_what_simulated_code_starts_does_not_keep_the_run_alive() -> None:
    ended = []
    with Simulation(1) as sim:
        process = sim.process("p")

        def forever() -> None:
            news = process.threads.condition()
            try:
                with news:
                    while True:
                        news.wait()
            finally:
                ended.append(True)

        process.start(lambda: process.threads.start(forever, name="background"))
        sim.run()
        assert not ended
    assert ended
    assert not [t for t in threading.enumerate() if t.name.startswith("p/")]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda c: c.wait(), "wants to wait on condition 1 of p without its lock"),
        (lambda c: c.notify_all(), "wants to notify on condition 1 of p without its lock"),
        (lambda c: enter_twice(c), "takes the lock of condition 1 of p a second time"),
    ],
)
def test_a_condition_refuses_what_would_not_work_for_real(
    wrong: Callable[[object], None], message: str
) -> None:
    with Simulation(1) as sim:
        process = sim.process("p")
        condition = process.threads.condition()

        def swallowed() -> None:
            try:
                wrong(condition)
            except Exception:  # noqa: BLE001 the program may handle it, the test fails all the same
                process.clock.sleep(1)

        process.start(swallowed)
        with pytest.raises(SimulationError, match=message):
            sim.run()


def enter_twice(condition: object) -> None:
    with condition, condition:  # type: ignore[attr-defined]
        pass


def test_a_lock_that_the_test_itself_holds_is_refused_to_actors() -> None:
    with Simulation(1) as sim:
        process = sim.process("p")
        condition = process.threads.condition()
        process.start(lambda: enter(condition))
        with condition:
            with pytest.raises(SimulationError, match="nobody will give it back"):
                enter(condition)
            with pytest.raises(SimulationError, match=r"held by code outside of run\(\)"):
                sim.run()


def enter(condition: object) -> None:
    with condition:  # type: ignore[attr-defined]
        pass


# What cannot go on


def test_a_deadlock_says_who_waits_where() -> None:
    with Simulation(1) as sim:
        process = sim.process("p")
        first, second = process.threads.condition(), process.threads.condition()

        def forward_order() -> None:
            with first:
                process.clock.sleep(1)
                with second:
                    pass

        def backward_order() -> None:
            with second:
                process.clock.sleep(1)
                with first:
                    pass

        process.start(forward_order, "forward")
        process.start(backward_order, "backward")
        with pytest.raises(SimulationError, match="deadlock") as caught:
            sim.run()
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "p/forward waits for the lock of condition 2 of p, held by p/backward" in lines[1]
    assert f"in forward_order ({__file__}:" in lines[1]
    assert "p/backward waits for the lock of condition 1 of p, held by p/forward" in lines[2]
    assert f"in backward_order ({__file__}:" in lines[2]


def test_waiting_for_news_that_nobody_brings_is_a_deadlock() -> None:
    with Simulation(2) as sim:
        process = sim.process("p")
        news = process.threads.condition()

        def life() -> None:
            with news:
                while True:
                    news.wait()

        process.start(life)
        with pytest.raises(SimulationError, match="p/main waits for news on condition 1 of p"):
            sim.run()


def test_an_endless_run_is_ended() -> None:
    with Simulation(1, max_steps=500) as sim:
        process = sim.process("p")

        def poll() -> None:
            while True:
                process.clock.sleep(1)

        process.start(poll)
        with pytest.raises(SimulationError, match=r"no end after 500 steps\n.*in poll"):
            sim.run()


def test_waiting_for_real_is_found_out() -> None:
    real = threading.Event()
    with Simulation(1, hang_seconds=0.05) as sim:
        sim.process("p").start(real.wait)
        with pytest.raises(SimulationError, match="p/main has kept the baton"):
            sim.run()
        real.set()


def test_a_thread_of_nobody_s_is_refused() -> None:
    with Simulation(1) as sim:
        process = sim.process("p")

        def life() -> None:
            stray = threading.Thread(target=ask, name="s")
            stray.start()
            stray.join()
            process.clock.sleep(1)

        def ask() -> None:
            with pytest.raises(SimulationError):
                process.store.get("k")

        process.start(life)
        with pytest.raises(SimulationError, match="thread 's' is no actor"):
            sim.run()


def test_a_process_keeps_to_what_is_its_own() -> None:
    with Simulation(1) as sim:
        a, b = sim.process("a"), sim.process("b")
        b.start(lambda: a.store.get("k"))
        with pytest.raises(SimulationError, match="b/main uses what was made for a"):
            sim.run()
        with pytest.raises(SimulationError, match="give this one another name"):
            sim.process("a")


@pytest.mark.parametrize("in_background", [False, True])
def test_what_an_actor_raises_ends_the_run_with_seed_and_trace(in_background: bool) -> None:
    with Simulation(77) as sim:
        process = sim.process("p")

        def fail() -> None:
            process.store.put_if_absent("k", b"data")
            raise ValueError("broken")

        def life() -> None:
            process.threads.start(fail, name="inner")
            process.clock.sleep(10)

        process.start(life if in_background else fail)
        with pytest.raises(ValueError, match="broken") as caught:
            sim.run()
    (note,) = caught.value.__notes__
    assert "seed=77" in note
    assert "put_if_absent k [4 B, " in note
    assert "-> done" in note
    assert "raised -> ValueError('broken')" in note


def test_what_the_test_finds_afterwards_carries_the_trace_too() -> None:
    def check() -> None:
        with Simulation(78) as sim:
            process = sim.process("p")
            process.start(lambda: process.store.put_if_absent("k", b"data"))
            sim.run()
            sim.note("expected a miracle", "none")
            raise AssertionError("an invariant")

    with pytest.raises(AssertionError, match="an invariant") as caught:
        check()
    (note,) = caught.value.__notes__
    assert "seed=78" in note
    assert "put_if_absent k [4 B, " in note
    assert "expected a miracle -> none" in note


if __name__ == "__main__":
    print(rich_run(int(sys.argv[1])).digest)
