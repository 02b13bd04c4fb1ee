"""What happened in a simulation, in order: what is read when an invariant fails."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Traced(NamedTuple):
    """One thing that happened."""

    step: int
    time_us: int
    """Virtual time since the simulation began."""
    actor: str
    request: str
    outcome: str

    def __str__(self) -> str:
        when = f"{self.step:>7} {self.time_us / 1_000_000:>14.6f}"
        return f"{when}  {self.actor:<24} {self.request} -> {self.outcome}"


class Trace:
    """The last `length` things that happened, and a digest of all of them."""

    def __init__(self, length: int) -> None:
        self._lines: deque[Traced] = deque(maxlen=length)
        self._digest = hashlib.blake2b(digest_size=16)
        self._count = 0

    def add(self, step: int, time_us: int, actor: str, request: str, outcome: str) -> None:
        self._count += 1
        self._lines.append(Traced(step, time_us, actor, request, outcome))
        self._digest.update(f"{step}\0{time_us}\0{actor}\0{request}\0{outcome}\n".encode())

    @property
    def lines(self) -> Sequence[Traced]:
        """What is still remembered, in order."""
        return tuple(self._lines)

    @property
    def digest(self) -> str:
        """Equal for two runs if, and practically only if, the same things happened in both."""
        return self._digest.hexdigest()

    def text(self, last: int) -> str:
        """Return the last lines, for people."""
        lines = list(self._lines)[-last:]
        head = f"trace: the last {len(lines)} of {self._count} lines (step, seconds, actor, what)"
        return "\n".join([head, *map(str, lines)])
