"""A first pass in a process of its own: what a user gets who runs something once.

A case is an *opening*: a context manager that prepares (connects, opens, makes its input) and yields
a *pass*, which does the work and returns the seconds of each operation. The warm figure runs one
pass after another in this process; the fresh figure is one pass in a new one. Openings are pickled,
so they are `functools.partial`s of functions at the top of a module. The file cache stays warm.
"""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

_ROLLUP = Path("/proc/self/smaps_rollup")

T = TypeVar("T")

Pass: TypeAlias = Callable[[], Sequence[float]]
Opening: TypeAlias = Callable[[], AbstractContextManager[Pass]]

ROOT = Path(__file__).resolve().parent.parent


class FirstPass(msgspec.Struct, frozen=True):
    """The first pass of a process."""

    seconds: float
    """Of one operation: the mean of the pass."""
    whole_s: float
    """Of the whole pass."""
    system_s: float
    """What of it the kernel took, in all threads."""
    memory_bytes: int
    """Memory touched for the first time: minor page faults, times the size of a page."""


def usage() -> tuple[int, float]:
    """Return the bytes of memory touched so far, and the seconds spent in the kernel.

    `ru_minflt` counts a huge page as one, so the memory in huge pages is added.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt * resource.getpagesize() + _huge_bytes(), used.ru_stime


def _huge_bytes() -> int:
    """Return how much of this process lies in huge pages; 0 where the kernel does not say."""
    if not _ROLLUP.exists():
        return 0
    lines = _ROLLUP.read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages"))


def settle() -> None:
    """Collect garbage and write dirty pages now, so that neither falls into a timed pass."""
    gc.collect()
    os.sync()


def whole(action: Callable[[], object], operations: int = 1) -> Pass:
    """Return a pass that times all of `action`, which does so many operations."""

    def run() -> list[float]:
        begun = time.perf_counter()
        action()
        return [(time.perf_counter() - begun) / operations]

    return run


def over(values: Iterable[T], action: Callable[[T], object], operations: int = 1) -> Pass:
    """Return a pass that times `action` with the next value, again and again from the first."""
    following = itertools.cycle(values)

    def run() -> Sequence[float]:
        value = next(following)
        return whole(lambda: action(value), operations)()

    return run


def each(values: Iterable[T], count: int, action: Callable[[T], object]) -> Pass:
    """Return a pass that times `action` with each of the next `count` values, one by one."""
    following = itertools.cycle(values)
    now = time.perf_counter

    def run() -> list[float]:
        times = []
        for value in itertools.islice(following, count):
            begun = now()
            action(value)
            times.append(now() - begun)
        return times

    return run


def first_passes(openings: Sequence[Opening], times: int = 1) -> list[FirstPass]:
    """Return the first pass of each opening, each in a process of its own.

    With more `times`, the openings take turns and the pass of median length counts.
    """
    turns = [[_first_pass(opening) for opening in openings] for _ in range(times)]
    return [_median(passes) for passes in zip(*turns, strict=True)]


def _median(passes: Sequence[FirstPass]) -> FirstPass:
    middle = statistics.median_low([one.seconds for one in passes])
    return next(one for one in passes if one.seconds == middle)


def _first_pass(opening: Opening) -> FirstPass:
    done = subprocess.run(
        [sys.executable, "-m", "bench._fresh"],
        input=pickle.dumps(opening),
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
    )
    # Only the last line is ours: a library may print before it.
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=FirstPass)


def run_once(opening: Opening) -> FirstPass:
    """Run one pass here and measure it."""
    with opening() as run:
        settle()
        memory, system = usage()
        begun = time.perf_counter()
        seconds = run()
        whole_s = time.perf_counter() - begun
        memory_after, system_after = usage()
    return FirstPass(
        statistics.fmean(seconds), whole_s, system_after - system, memory_after - memory
    )


if __name__ == "__main__":
    # From the process that started this one: as trusted as its own code.
    print(msgspec.json.encode(run_once(pickle.load(sys.stdin.buffer))).decode())
