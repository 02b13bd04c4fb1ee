"""Measuring two ways of doing one thing in turn, so that a noisy machine is noisy to both."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """Our throughput as a multiple of the rival's, and the bar that it must reach."""

    name: str
    ours_s: float
    rival_s: float
    ratio: float
    """Of the fastest runs: what the verdict goes by."""
    median_ratio: float
    """Of the medians: what a disturbed machine makes of it."""
    bar: float
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.ratio >= self.bar


def compare(
    name: str,
    ours: Callable[[], object],
    rival: Callable[[], object],
    *,
    bar: float,
    rounds: int,
    note: str = "",
) -> Ratio:
    """Run `ours` and `rival` in turn, in changing order, and compare the fastest of each.

    The fastest is what the code costs when nobody disturbs it; medians of a shared machine tell
    more of its neighbours.
    """
    ours(), rival()  # warm: code, allocator, page cache
    times: dict[Callable[[], object], list[float]] = {ours: [], rival: []}
    for i in range(rounds):
        for run in (ours, rival) if i % 2 else (rival, ours):
            times[run].append(_seconds(run))
    mine, theirs = min(times[ours]), min(times[rival])
    medians = statistics.median(times[rival]) / statistics.median(times[ours])
    return Ratio(name, mine, theirs, theirs / mine, medians, bar, note)


def limit(name: str, run: Callable[[], object], *, seconds: float, rounds: int) -> Ratio:
    """Compare `run` with a time that it must stay under: the ratio is how many times faster it is."""
    run()
    times = [_seconds(run) for _ in range(rounds)]
    medians = seconds / statistics.median(times)
    return Ratio(
        name, min(times), seconds, seconds / min(times), medians, 1.0, "rival is the limit"
    )


def _seconds(run: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
