"""Measuring two ways of doing one thing in turn, so that a noisy machine is noisy to both."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

By: TypeAlias = Literal["fastest", "median"]


@dataclass(frozen=True)
class Ratio:
    """What we take against what a rival takes for the same, and the bar that it must reach."""

    name: str
    ours_s: float
    rival_s: float
    ratio: float
    """What the verdict goes by. Our throughput as a multiple of the rival's, or, with `at_most`, our
    time as a multiple of the rival's."""
    fastest_ratio: float
    """Of the fastest runs: what the code costs when nobody disturbs it."""
    median_ratio: float
    """Of the medians: what a disturbed machine makes of it."""
    bar: float | None
    """None: only for people to see."""
    note: str = ""
    rival: str = "plain Arrow IPC"
    at_most: bool = False

    @property
    def holds(self) -> bool:
        if self.bar is None:
            return True
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar


@dataclass(frozen=True)
class Count:
    """Requests that were counted, and how many there may be."""

    name: str
    counted: int
    allowed: int
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.counted <= self.allowed


@dataclass(frozen=True)
class Share:
    """A stage of an operation and what it takes of the whole."""

    name: str
    seconds: float
    share: float
    note: str = ""

    @property
    def holds(self) -> bool:
        return True


Result: TypeAlias = Ratio | Count | Share


def compare(
    name: str,
    ours: Callable[[], object],
    rival: Callable[[], object],
    *,
    bar: float | None,
    rounds: int,
    note: str = "",
    against: str = "plain Arrow IPC",
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
    return ratio_of(
        name, times[ours], times[rival], by="fastest", bar=bar, note=note, against=against
    )


def limit(name: str, run: Callable[[], object], *, seconds: float, rounds: int) -> Ratio:
    """Compare `run` with a time that it must stay under: the ratio is how many times faster it is."""
    run()
    times = [_seconds(run) for _ in range(rounds)]
    return ratio_of(name, times, [seconds], by="fastest", bar=1.0, against="the limit")


def ratio_of(
    name: str,
    ours: Sequence[float],
    rival: Sequence[float],
    *,
    by: By,
    bar: float | None,
    note: str = "",
    against: str,
    at_most: bool = False,
) -> Ratio:
    """Return the ratio of two lists of times that were measured in turn."""
    pairs = {
        "fastest": (min(ours), min(rival)),
        "median": (statistics.median(ours), statistics.median(rival)),
    }
    ratios = {
        how: mine / theirs if at_most else theirs / mine for how, (mine, theirs) in pairs.items()
    }
    return Ratio(
        name=name,
        ours_s=pairs[by][0],
        rival_s=pairs[by][1],
        ratio=ratios[by],
        fastest_ratio=ratios["fastest"],
        median_ratio=ratios["median"],
        bar=bar,
        note=note,
        rival=against,
        at_most=at_most,
    )


def _seconds(run: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
