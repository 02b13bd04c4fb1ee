"""The report of a run: JSON for programs, and tables of at most 80 columns for people."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench._fresh import FirstPass
from bench._measure import Bar, Count, Ratio, Result, Share

WIDTH = 80


class Report(msgspec.Struct, frozen=True):
    """Where and when a run took place, and the results of each benchmark."""

    at: str
    machine: str
    cores: int
    load: float
    """Of the last minute, before the run."""
    is_quick: bool
    results: dict[str, list[Result]]

    @staticmethod
    def here(results: Mapping[str, list[Result]], *, load: float, is_quick: bool) -> Report:
        """Return a report of a run that ends now, on this machine."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return Report(now, platform.platform(), os.cpu_count() or 1, load, is_quick, dict(results))

    @property
    def missed(self) -> list[str]:
        """The names of the results that miss a bar. A quick run measures too little to miss one."""
        if self.is_quick:
            return []
        return [one.name for some in self.results.values() for one in some if not one.holds]

    def save(self, path: Path) -> None:
        """Write the report as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))

    @staticmethod
    def load_from(path: Path) -> Report:
        """Read a report that `save` wrote."""
        return msgspec.json.decode(path.read_bytes(), type=Report)


def print_report(report: Report, console: Console | None = None) -> None:
    """Print tables of at most 80 columns, whatever the width of the terminal."""
    console = console or Console()
    console.width = min(console.width, WIDTH)
    console.print(
        f"{report.machine}, {report.cores} cores, load {report.load:.1f} before, {report.at}"
    )
    console.print(
        "Times are of one operation: warm, and of the first pass in a fresh process. Ratios are "
        "throughput as a multiple of the rival's (bar ≥), or time as a multiple of it (bar ≤)."
    )
    for name, results in report.results.items():
        console.rule(f"[bold]{name}", align="left")
        for part in _parts(results):
            console.print(part)
    if report.is_quick:
        console.print("A quick run: too small for its figures to count.")
    elif report.missed:
        console.print(f"[red]{len(report.missed)} missed a bar:[/red] {'; '.join(report.missed)}")
    else:
        console.print("All bars hold.")


def _parts(results: Sequence[Result]) -> Iterator[Table | Padding]:
    ratios = [one for one in results if isinstance(one, Ratio)]
    counts = [one for one in results if isinstance(one, Count)]
    shares = [one for one in results if isinstance(one, Share)]
    for rival in dict.fromkeys(one.rival for one in ratios):
        yield _ratio_table(rival, [one for one in ratios if one.rival == rival])
    written = [one for one in ratios if one.written_bytes and one.fresh]
    if written:
        yield _memory_table(written)
    if counts:
        yield _count_table(counts)
    if shares:
        yield _share_table(shares)
    notes = dict.fromkeys(f"{one.name}: {note}" for one in results if (note := _note(one)))
    if notes:
        yield Padding(Text("\n".join(notes)), (0, 2, 1, 2))


def _note(result: Result) -> str:
    rules = [bar.rule for bar in result.bars if bar.rule] if isinstance(result, Ratio) else []
    return "; ".join(filter(None, [result.note, *(f"bar: {rule}" for rule in rules)]))


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in left:
        table.add_column(heading)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _ratio_table(rival: str, ratios: Sequence[Ratio]) -> Table:
    table = _table(f"against {rival}", ["what"], ["", "Reef", "rival", "ratio", "bar", ""])
    for ratio in ratios:
        lines = list(_ratio_lines(ratio))
        table.add_row(ratio.name, *("\n".join(column) for column in zip(*lines, strict=True)))
    return table


def _ratio_lines(ratio: Ratio) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Yield the cells behind the name: warm, fresh, and any further bar on a line of its own."""
    ours, rival = format_time(ratio.ours_s), format_time(ratio.rival_s)
    bars = [bar for bar in ratio.bars if not bar.is_fresh]
    first = bars[0] if bars and bars[0].unit == "x" else None
    yield ("warm", ours, rival, f"{ratio.ratio:.2f}x", *_bar_cells(first))
    if ratio.fresh:
        theirs = format_time(ratio.rival_fresh.seconds) if ratio.rival_fresh else ""
        multiple = "" if ratio.fresh_ratio is None else f"{ratio.fresh_ratio:.2f}x"
        bar = next((bar for bar in ratio.bars if bar.is_fresh), None)
        yield ("fresh", format_time(ratio.fresh.seconds), theirs, multiple, *_bar_cells(bar))
    for bar in bars:
        if bar is not first:
            yield ("bar", ours, "", "", *_bar_cells(bar))


def _bar_cells(bar: Bar | None) -> tuple[str, str]:
    if bar is None:
        return "", ""
    limit = f"{bar.limit:.2f}x" if bar.unit == "x" else format_time(bar.limit)
    return f"{'≤' if bar.at_most else '≥'} {limit}", _verdict(bar.holds)


def _memory_table(ratios: Sequence[Ratio]) -> Table:
    """What a first pass costs in fresh memory, per byte written, and in kernel time."""
    title = "fresh memory of a first pass"
    headings = ("written", "Reef B/B", "rival B/B", "Reef sys", "rival sys")
    table = _table(title, ["what"], headings)
    for ratio in ratios:
        cells = [_memory(one, ratio.written_bytes) for one in (ratio.fresh, ratio.rival_fresh)]
        written = f"{ratio.written_bytes / 1e6:,.2f} MB"
        table.add_row(ratio.name, written, *(cell[i] for i in (0, 1) for cell in cells))
    return table


def _memory(one: FirstPass | None, written_bytes: int) -> tuple[str, str]:
    if one is None:
        return "", ""
    return f"{one.memory_bytes / written_bytes:.1f}", f"{one.system_s / one.whole_s:.0%}"


def _count_table(counts: Sequence[Count]) -> Table:
    table = _table("counted", ["what"], ["counted", "bar", ""])
    for one in counts:
        table.add_row(one.name, f"{one.counted:,}", f"≤ {one.allowed:,}", _verdict(one.holds))
    return table


def _share_table(shares: Sequence[Share]) -> Table:
    table = _table("where the time goes", ["what"], ["median", "share"])
    for one in shares:
        table.add_row(one.name, format_time(one.seconds), f"{one.share:.0%}")
    return table


def format_time(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    units: tuple[tuple[float, str, Callable[[float], str]], ...] = (
        (10.0, "s", lambda value: f"{value:,.1f}"),
        (1e-3, "ms", lambda value: f"{value * 1e3:,.2f}"),
        (0.0, "µs", lambda value: f"{value * 1e6:,.1f}"),
    )
    unit, text = next((unit, text) for least, unit, text in units if seconds >= least)
    return f"{text(seconds)} {unit}"


def _verdict(holds: bool) -> str:
    return "pass" if holds else "[red]MISS[/red]"
