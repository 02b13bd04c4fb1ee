"""The pool of maintenance: one thread, a bounded share of its time, an end at any moment."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from reef.maintenance import (
    BUSY_WAIT_S,
    BUSY_WAITS_MAX,
    SHARE,
    MaintenancePool,
    Pace,
    StepEndedError,
    process_pool,
)
from reef.testing import ManualClock
from reef.threads import SystemThreads
from tests.support.waiting import until


class Scripted:
    """A step that does what a test says."""

    def __init__(
        self, work: Callable[[Pace], bool], *, busy: int = 0, share: float = SHARE
    ) -> None:
        self._work = work
        self._share = share
        self.busy = busy
        self.runs = 0

    def run(self, pace: Pace) -> bool:
        self.runs += 1
        return self._work(pace)

    def is_busy(self) -> bool:
        self.busy -= 1
        return self.busy >= 0

    def share(self) -> float:
        return self._share


class SleptThrough:
    """A condition on which waiting lets the clock go on, and nothing else."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.slept = 0.0

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        return None

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.slept += timeout
        self.clock.advance(timeout)
        return False

    def notify_all(self) -> None:
        return None


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_a_step_works_no_more_than_its_share(share: float) -> None:
    clock = ManualClock()
    cond = SleptThrough(clock)
    pace = Pace(cond, clock, Scripted(lambda _: False, share=share))
    for _ in range(1000):
        clock.advance(0.002)
        pace()
    assert 2.0 / (2.0 + cond.slept) == pytest.approx(share, rel=0.05)


def test_waiting_for_a_store_elsewhere_is_no_work() -> None:
    clock = ManualClock()
    cond = SleptThrough(clock)
    pace = Pace(cond, clock, Scripted(lambda _: False))
    for _ in range(100):
        clock.advance(0.1)
        pace.waited(0.1)
        pace()
    assert cond.slept == 0
    pace.waited(1e9)  # of several requests at once; it saves nothing up
    clock.advance(1)
    pace()
    assert cond.slept == pytest.approx(4.0)


def test_commits_that_queue_go_first_for_a_while() -> None:
    clock = ManualClock()
    for busy, waits in ((0, 0), (2, 2), (1000, BUSY_WAITS_MAX)):
        cond = SleptThrough(clock)
        pace = Pace(cond, clock, Scripted(lambda _: False, busy=busy))
        clock.advance(0.01)
        pace()
        assert cond.slept == pytest.approx(0.04 + waits * BUSY_WAIT_S)


def test_steps_take_turns_in_one_thread_which_ends() -> None:
    names: list[tuple[str, str]] = []
    left = {"a": 3, "b": 2}
    begin = threading.Event()

    def step(name: str) -> Scripted:
        def work(_: Pace) -> bool:
            begin.wait(30)
            names.append((name, threading.current_thread().name))
            left[name] -= 1
            return left[name] > 0

        return Scripted(work)

    pool = MaintenancePool(SystemThreads(), ManualClock())
    a, b = step("a"), step("b")
    pool.ask(a)
    pool.ask(b)
    pool.ask(b)
    begin.set()
    until(lambda: not pool._has_thread, "the end of the thread")
    assert [name for name, _ in names] == ["a", "b", "a", "b", "a"]
    assert {thread for _, thread in names} == {"reef-maintenance"}


@pytest.mark.parametrize("how", ["drop", "end"])
def test_a_step_that_runs_is_ended_and_awaited(how: str) -> None:
    reached, ended = threading.Event(), threading.Event()

    def work(pace: Pace) -> bool:
        reached.set()
        try:
            while True:
                pace()
        except StepEndedError:
            ended.set()
            raise

    pool = MaintenancePool(SystemThreads(), ManualClock())
    step = Scripted(work)
    pool.ask(step)
    assert reached.wait(30)
    if how == "drop":
        pool.drop(step)
    else:
        pool.end()
    assert ended.is_set()
    if how == "end":
        pool.ask(step)
        assert step.runs == 1


def test_there_is_one_pool_per_process() -> None:
    assert process_pool() is process_pool()
