"""Commits that go alone, among those that go together."""

from __future__ import annotations

import threading

import pytest

from reef.pages._turns import Turns
from reef.threads import SystemThreads
from tests.support.waiting import DEADLINE_SECONDS, until


@pytest.fixture
def turns() -> Turns:
    return Turns(SystemThreads())


class Inside:
    """A thread that goes in and stays until it is let out."""

    def __init__(self, turns: Turns, how: str) -> None:
        self._turns, self._how = turns, how
        self.is_in = threading.Event()
        self._may_leave = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with getattr(self._turns, self._how)():
            self.is_in.set()
            self._may_leave.wait(DEADLINE_SECONDS)

    def leave(self) -> None:
        self._may_leave.set()
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()


def test_many_are_together(turns: Turns) -> None:
    inside = [Inside(turns, "together") for _ in range(3)]
    assert all(one.is_in.wait(DEADLINE_SECONDS) for one in inside)
    for one in inside:
        one.leave()


def test_an_exclusive_turn_waits_for_all_and_all_wait_for_it(turns: Turns) -> None:
    first = Inside(turns, "together")
    assert first.is_in.wait(DEADLINE_SECONDS)
    alone = Inside(turns, "alone")
    until(lambda: len(turns._line) == 1)  # it has come, and waits
    late = Inside(turns, "together")
    until(lambda: len(turns._line) == 2)
    assert [one.is_in.is_set() for one in (alone, late)] == [False] * 2
    first.leave()
    assert alone.is_in.wait(DEADLINE_SECONDS)
    assert not late.is_in.is_set()
    alone.leave()
    assert late.is_in.wait(DEADLINE_SECONDS)
    late.leave()


def test_turns_do_not_wait_for_later_ones(turns: Turns) -> None:
    """However many there are that want to be alone: those who came between two of them get in."""
    inside = Inside(turns, "alone")
    assert inside.is_in.wait(DEADLINE_SECONDS)
    line = []
    for how in ("together", "together", "alone", "together", "alone"):
        line.append(Inside(turns, how))
        until(lambda: len(turns._line) == len(line))
    inside.leave()
    for entering in ([0, 1], [2], [3], [4]):
        assert all(line[i].is_in.wait(DEADLINE_SECONDS) for i in entering)
        assert not any(one.is_in.is_set() for one in line[entering[-1] + 1 :])
        for i in entering:
            line[i].leave()


def test_an_interrupted_waiter_blocks_no_other_turn(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Inside(turns, "together")
    assert first.is_in.wait(DEADLINE_SECONDS)
    wait = turns._cond.wait
    late: list[Inside] = []

    def interrupted(timeout: float | None = None) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return wait(timeout)
        late.append(Inside(turns, "together"))
        while len(turns._line) < 2:  # it comes, and stands behind this one
            wait(0.001)
        raise KeyboardInterrupt

    monkeypatch.setattr(turns._cond, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt), turns.alone():
        pass
    assert late[0].is_in.wait(DEADLINE_SECONDS)  # while the first is still inside
    for one in (first, *late):
        one.leave()
    with turns.alone():
        pass


def test_a_turn_ends_when_its_body_fails(turns: Turns) -> None:
    for how in ("together", "alone"):
        with pytest.raises(ValueError, match="inside"), getattr(turns, how)():
            raise ValueError("inside")
    with turns.alone():
        pass
    with turns.together():
        pass
