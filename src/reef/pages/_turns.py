"""Commits of any number at a time, and now and then one that needs to be alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from reef.threads import Threads


@dataclass(frozen=True, eq=False)
class _Waiting:
    """A caller that waits in line."""

    is_alone: bool


class Turns:
    """Lets in many callers together, or one alone, in order of arrival."""

    def __init__(self, threads: Threads) -> None:
        self._cond = threads.condition()
        self._line: deque[_Waiting] = deque()
        self._inside = 0
        self._is_alone = False

    def together(self) -> AbstractContextManager[None]:
        """Be inside with others who do the same."""
        return self._turn(_Waiting(is_alone=False))

    def alone(self) -> AbstractContextManager[None]:
        """Run the body alone."""
        return self._turn(_Waiting(is_alone=True))

    @contextmanager
    def _turn(self, me: _Waiting) -> Iterator[None]:
        self._enter(me)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, me: _Waiting) -> None:
        with self._cond:
            self._line.append(me)
            try:
                while not self._is_turn_of(me):
                    self._cond.wait()
            except BaseException:
                self._cond.notify_all()  # those behind may have waited for this one
                raise
            finally:
                self._line.remove(me)
            self._inside += 1
            self._is_alone = me.is_alone

    def _is_turn_of(self, me: _Waiting) -> bool:
        if me.is_alone:
            return not self._inside and self._line[0] is me
        first = next(one for one in self._line if one is me or one.is_alone)
        return first is me and not self._is_alone

    def _leave(self) -> None:
        with self._cond:
            self._inside -= 1
            self._is_alone = False
            if not self._inside:
                self._cond.notify_all()
