"""Threads as Reef asks for them: conditions that wake who waits, and threads that can be joined."""

from __future__ import annotations

import itertools
import sys
import threading
from _thread import interrupt_main
from types import FrameType
from typing import Any

import pytest

import reef.threads
from reef.threads import Condition, SystemThreads, Threads, for_each, run_to_end
from tests.support.waiting import DEADLINE_SECONDS, until


@pytest.fixture
def threads() -> Threads:
    return SystemThreads()


def test_a_thread_runs_under_its_name_and_can_be_joined(threads: Threads) -> None:
    seen: list[tuple[str, bool]] = []

    def work() -> None:
        me = threading.current_thread()
        seen.append((me.name, me.daemon))

    threads.start(work, name="reef-test").join()
    assert seen == [("reef-test", True)]


def test_a_woken_waiter_holds_the_lock_again(threads: Threads) -> None:
    condition = threads.condition()
    waiting: list[int] = []
    woken: list[int] = []
    news = False

    def wait(number: int) -> None:
        with condition:
            waiting.append(number)
            condition.notify_all()
            while not news:
                assert condition.wait()
            woken.append(number)
            condition.notify_all()

    started = [threads.start(lambda n=n: wait(n), name=f"wait-{n}") for n in range(3)]
    with condition:
        while len(waiting) < 3:
            condition.wait()
        assert woken == []
        news = True
        condition.notify_all()
    for thread in started:
        thread.join()
    assert sorted(woken) == [0, 1, 2]


def test_waiting_gives_up_after_its_time(threads: Threads) -> None:
    condition = threads.condition()
    with condition:
        assert condition.wait(0.0) is False
        assert condition.wait(timeout=0.001) is False


def test_the_lock_is_given_back_after_an_error(threads: Threads) -> None:
    condition = threads.condition()
    with pytest.raises(ValueError, match="inside"), condition:
        raise ValueError("inside")
    with condition:
        condition.notify_all()


@pytest.mark.parametrize("use", [Condition.wait, Condition.notify_all])
def test_only_the_holder_of_the_lock_waits_and_notifies(threads: Threads, use: object) -> None:
    condition = threads.condition()
    ask = condition.wait if use is Condition.wait else condition.notify_all
    with pytest.raises(RuntimeError):
        ask()


def test_conditions_have_locks_of_their_own(threads: Threads) -> None:
    one, other = threads.condition(), threads.condition()
    with one, other:
        assert other.wait(0.0) is False


class Interrupt:
    """Ctrl-C at the nth moment, in the code of conditions, at which Python looks for signals.

    It does as a function begins, after a call of C, and while it waits for a lock.
    """

    FILES = (threading.__file__, reef.threads.__file__)

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __enter__(self) -> None:
        sys.setprofile(self._look)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, called: Any) -> None:
        is_wait = event == "c_call" and called.__name__ == "acquire"
        if frame.f_code.co_filename in self.FILES and (is_wait or event in ("call", "c_return")):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def test_an_interrupt_at_any_moment_leaves_the_lock_to_those_who_come(threads: Threads) -> None:
    """Were the lock not held at the end of its `with`, giving it back would raise something else."""
    for nth in itertools.count(1):
        condition = threads.condition()
        was_interrupted = False
        try:
            with Interrupt(nth), condition:
                condition.wait(0.0)
                condition.notify_all()
        except KeyboardInterrupt:
            was_interrupted = True
        assert _is_free(condition), f"moment {nth}"
        if not was_interrupted:
            break
    assert nth > 10


def _is_free(condition: Any) -> bool:
    """Return whether another thread can take the lock."""
    taken: list[bool] = []
    other = threading.Thread(target=lambda: taken.append(condition.acquire(blocking=False)))
    other.start()
    other.join()
    return taken[0]


def test_an_interrupt_comes_when_work_has_ended() -> None:
    called_off = threading.Event()
    ended = threading.Event()

    def work() -> None:
        interrupt_main()
        assert called_off.wait(DEADLINE_SECONDS)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_to_end(work, threads=SystemThreads(), called_off=called_off.set)
    assert ended.is_set()


def test_work_in_another_thread_returns_and_raises() -> None:
    threads = SystemThreads()
    assert run_to_end(lambda: 7, threads=threads, called_off=lambda: None) == 7
    with pytest.raises(ZeroDivisionError):
        run_to_end(lambda: 1 // 0, threads=threads, called_off=lambda: None)


def test_an_interrupt_of_many_begins_no_more() -> None:
    begun: list[int] = []
    go_on = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if number == 1:
            interrupt_main()
        assert go_on.wait(DEADLINE_SECONDS)

    with pytest.raises(KeyboardInterrupt):
        for_each(range(9), work, width=2, threads=SystemThreads())
    go_on.set()
    until(lambda: not any("reef-lane" in one.name for one in threading.enumerate()))
    assert len(begun) == 2
