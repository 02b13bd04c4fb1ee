"""Measuring two ways of doing one thing in turn, so that a noisy machine is noisy to both."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Literal, TypeAlias

import msgspec

from bench._fresh import FirstPass, Opening, first_passes, settle

By: TypeAlias = Literal["fastest", "median"]


class Bar(msgspec.Struct, frozen=True):
    """A limit that a figure must reach, or must not pass."""

    figure: float
    limit: float
    unit: Literal["x", "s"]
    """A multiple of the rival's, or seconds of ours."""
    at_most: bool = False
    is_fresh: bool = False
    """Of the first pass in a fresh process, not of the warm ones."""
    rule: str = ""
    """How the limit follows from the rival's time, where it is one in seconds."""

    @property
    def holds(self) -> bool:
        """Return whether the figure is on the right side of the limit."""
        return self.figure <= self.limit if self.at_most else self.figure >= self.limit


class Ratio(msgspec.Struct, frozen=True, tag="ratio"):
    """Our time against a rival's for the same work, and the bars it must reach."""

    name: str
    rival: str
    ours_s: float
    rival_s: float
    ratio: float
    """Our throughput as a multiple of the rival's; with `at_most`, our time as a multiple of it."""
    fastest_ratio: float
    """Of the fastest passes: what the code costs when nobody disturbs it."""
    median_ratio: float
    """Of the median passes: what a disturbed machine makes of it."""
    at_most: bool
    bars: tuple[Bar, ...] = ()
    """Without one, the figure is for information only."""
    note: str = ""
    fresh: FirstPass | None = None
    """Our first pass in a fresh process."""
    rival_fresh: FirstPass | None = None
    written_bytes: int = 0
    """What a pass writes, where that is known."""

    @property
    def holds(self) -> bool:
        """Return whether every bar holds."""
        return all(bar.holds for bar in self.bars)

    @property
    def fresh_ratio(self) -> float | None:
        """The ratio of the first passes, the same way round as `ratio`."""
        if self.fresh is None or self.rival_fresh is None:
            return None
        return _ratio(self.fresh.seconds, self.rival_fresh.seconds, self.at_most)


class Count(msgspec.Struct, frozen=True, tag="count"):
    """Something counted, such as requests, and how many there may be."""

    name: str
    counted: int
    allowed: int
    note: str = ""

    @property
    def holds(self) -> bool:
        """Return whether there are not too many."""
        return self.counted <= self.allowed


class Share(msgspec.Struct, frozen=True, tag="share"):
    """A stage of an operation, and its share of the whole."""

    name: str
    seconds: float
    share: float
    note: str = ""

    @property
    def holds(self) -> bool:
        """A share has no bar."""
        return True


Result: TypeAlias = Ratio | Count | Share


class Scale(msgspec.Struct, frozen=True):
    """How much is measured: everything, or with `is_quick` just enough to see that it works."""

    is_quick: bool = False

    def rows(self, count: int) -> int:
        """Return how many rows, puts or pages to measure with."""
        return max(min(count, 20), count // 50) if self.is_quick else count

    def rounds(self, count: int) -> int:
        """Return how many rounds to measure."""
        return min(count, 2) if self.is_quick else count


def compare(
    name: str,
    ours: Opening,
    rival: Opening,
    *,
    rounds: int,
    bar: float | None,
    against: str,
    by: By = "fastest",
    note: str = "",
    at_most: bool = False,
    fresh_bar: float | None = None,
    written_bytes: int = 0,
) -> Ratio:
    """Run `ours` and `rival` warm and in turn, then each once in a fresh process.

    The fastest pass is what the code costs when nobody disturbs it; medians of a shared machine tell
    more of its neighbours.
    """
    times = in_turn({"ours": ours, "rival": rival}, rounds)
    result = ratio_of(
        name,
        times["ours"],
        times["rival"],
        by=by,
        bar=bar,
        note=note,
        against=against,
        at_most=at_most,
    )
    return with_fresh(result, ours, rival, bar=fresh_bar, written_bytes=written_bytes)


def limited(
    name: str,
    run: Opening,
    *,
    seconds: float,
    rounds: int,
    by: By = "fastest",
    note: str = "",
    written_bytes: int = 0,
) -> Ratio:
    """Compare warm passes with a time that they must stay under; run one in a fresh process too."""
    times = in_turn({"ours": run}, rounds)["ours"]
    result = ratio_of(name, times, [seconds], by=by, bar=1.0, against="the limit", note=note)
    return with_fresh(result, run, None, written_bytes=written_bytes)


def in_turn(
    openings: Mapping[str, Opening], rounds: int, *, reopened: bool = False
) -> dict[str, list[float]]:
    """Return the seconds of each operation, opening by opening: all take turns, round by round.

    Each round another one goes first. A pass of each goes before, uncounted, for code, allocator
    and file cache. With `reopened` each pass has an opening of its own.
    """
    times: dict[str, list[float]] = {name: [] for name in openings}
    names = list(openings)
    with ExitStack() as stack:
        opened = {} if reopened else {n: stack.enter_context(openings[n]()) for n in names}
        for turn in range(-1, rounds):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                with ExitStack() as once:
                    run = opened.get(name) or once.enter_context(openings[name]())
                    settle()
                    seconds = run()
                times[name] += seconds if turn >= 0 else []
    return times


def ratio_of(
    name: str,
    ours: Sequence[float],
    rival: Sequence[float],
    *,
    by: By,
    bar: float | None,
    against: str,
    note: str = "",
    at_most: bool = False,
) -> Ratio:
    """Return the ratio of two lists of times that were measured in turn."""
    fastest = (min(ours), min(rival))
    median = (statistics.median(ours), statistics.median(rival))
    ours_s, rival_s = fastest if by == "fastest" else median
    ratio = _ratio(ours_s, rival_s, at_most)
    return Ratio(
        name=name,
        rival=against,
        ours_s=ours_s,
        rival_s=rival_s,
        ratio=ratio,
        fastest_ratio=_ratio(*fastest, at_most),
        median_ratio=_ratio(*median, at_most),
        at_most=at_most,
        bars=() if bar is None else (Bar(ratio, bar, "x", at_most),),
        note=note,
    )


def within(result: Ratio, limit_s: float, rule: str) -> Ratio:
    """Return `result` with the bar that our time is at most `limit_s`; `rule` says how it follows."""
    bar = Bar(result.ours_s, limit_s, "s", at_most=True, rule=rule)
    return msgspec.structs.replace(result, bars=(*result.bars, bar))


def with_fresh(
    result: Ratio,
    ours: Opening,
    rival: Opening | None,
    *,
    bar: float | None = None,
    times: int = 1,
    written_bytes: int = 0,
) -> Ratio:
    """Return `result` with first passes in fresh processes, and a bar for their ratio."""
    fresh, *others = first_passes([ours] if rival is None else [ours, rival], times)
    result = msgspec.structs.replace(
        result,
        fresh=fresh,
        rival_fresh=others[0] if others else None,
        written_bytes=written_bytes,
    )
    ratio = result.fresh_ratio
    if bar is None or ratio is None:
        return result
    bars = (*result.bars, Bar(ratio, bar, "x", result.at_most, is_fresh=True))
    return msgspec.structs.replace(result, bars=bars)


def noted(result: Ratio, note: str) -> Ratio:
    """Return `result` with another note."""
    return msgspec.structs.replace(result, note=note)


def rated(result: Ratio, rows: int, unit: str, note: str = "") -> Ratio:
    """Return `result` with the rows per second of both sides in its note."""
    speeds = f"{rows / result.ours_s:,.0f} {unit}/s to {rows / result.rival_s:,.0f}"
    return noted(result, f"{speeds} ({note})" if note else speeds)


def check(holds: object, what: str) -> None:
    """Refuse to measure what does not do the same work on both sides."""
    if not holds:
        raise AssertionError(f"the benchmark is not fair, because this does not hold: {what}")


def _ratio(ours_s: float, rival_s: float, at_most: bool) -> float:
    return ours_s / rival_s if at_most else rival_s / ours_s
