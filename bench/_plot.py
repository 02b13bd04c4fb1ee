"""A bar chart as SVG, written by hand: how many times as fast as the rival, warm and fresh."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from bench._measure import Ratio
from bench._report import Report

WIDTH = 800
_LABELS = 330
"""How wide the column of names is."""
_RIGHT = 60
_TOP = 56
_ROW = 34
_BAR = 11
_COLOURS = {"warm": "#2f6f9f", "fresh": "#e0a040"}


def write_plots(report: Report, folder: Path) -> list[Path]:
    """Write a chart for each benchmark that has ratios; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, results in report.results.items():
        ratios = [one for one in results if isinstance(one, Ratio)]
        if ratios:
            paths.append(folder / f"{name}.svg")
            paths[-1].write_text(chart(f"{name}, {report.at[:10]}", ratios), encoding="utf-8")
    return paths


def chart(title: str, ratios: Sequence[Ratio]) -> str:
    """Return a chart of the ratios, each as a throughput: above 1 is faster than the rival."""
    height = _TOP + _ROW * len(ratios) + 24
    speeds = [_speeds(ratio) for ratio in ratios]
    every = [speed for one in speeds for speed in one.values()]
    bars = [bar for ratio in ratios if (bar := _warm_bar(ratio))]
    axis = _Axis(min(1.0, *every, *bars), max(1.0, *every, *bars))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="12" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
        *_legend(),
        *axis.grid(height),
    ]
    for number, (ratio, one) in enumerate(zip(ratios, speeds, strict=True)):
        lines += _row(_TOP + number * _ROW, ratio, one, axis)
    return "\n".join([*lines, "</svg>", ""])


class _Axis:
    """A logarithmic axis over all speeds."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = math.log(low / 1.15), math.log(high * 1.15)

    def x(self, speed: float) -> float:
        """Return where a speed stands."""
        share = (math.log(speed) - self._low) / (self._high - self._low)
        return round(_LABELS + share * (WIDTH - _LABELS - _RIGHT), 1)

    def grid(self, height: int) -> Iterator[str]:
        """Yield a line for each round speed; the one of the rival is dark."""
        steps = [base * 10.0**power for power in range(-3, 5) for base in (1, 2, 5)]
        steps = [step for step in steps if self._low <= math.log(step) <= self._high]
        steps = [step for step in steps if step == 1 or len(steps) < 8 or _is_power(step)]
        for step in steps:
            x, colour = self.x(step), "#444" if step == 1 else "#ddd"
            yield f'<path d="M{x} {_TOP - 8}V{height - 20}" stroke="{colour}"/>'
            yield f'<text x="{x}" y="{height - 6}" text-anchor="middle">{step:g}x</text>'


def _is_power(step: float) -> bool:
    return math.isclose(math.log10(step), round(math.log10(step)))


def _legend() -> Iterator[str]:
    x = _LABELS
    for name, colour in _COLOURS.items():
        yield f'<rect x="{x}" y="28" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 14}" y="38">{name}</text>'
        x += 70
    yield f'<path d="M{x} 28v12" stroke="#c00" stroke-width="2"/>'
    yield f'<text x="{x + 8}" y="38">warm bar</text>'
    yield f'<text x="{x + 84}" y="38">times as fast as the rival</text>'


def _row(y: int, ratio: Ratio, speeds: dict[str, float], axis: _Axis) -> Iterator[str]:
    text = f"{ratio.name} / {ratio.rival}"
    name = text if len(text) <= 56 else f"{text[:55]}…"
    yield f"<g><title>{escape(text)}</title>"
    yield (
        f'<text x="{_LABELS - 8}" y="{y + 15}" text-anchor="end" font-size="11">'
        f"{escape(name)}</text>"
    )
    for number, (kind, speed) in enumerate(speeds.items()):
        start, end = sorted((axis.x(1.0), axis.x(speed)))
        top = y + number * (_BAR + 1)
        yield (
            f'<rect x="{start}" y="{top}" width="{max(1.0, round(end - start, 1))}" '
            f'height="{_BAR}" fill="{_COLOURS[kind]}"/>'
        )
        yield f'<text x="{end + 4}" y="{top + 9}" font-size="10">{speed:.2f}</text>'
    if bar := _warm_bar(ratio):
        yield f'<path d="M{axis.x(bar)} {y - 2}v16" stroke="#c00" stroke-width="2"/>'
    yield "</g>"


def _speeds(ratio: Ratio) -> dict[str, float]:
    """Return our throughput as a multiple of the rival's, warm and, where both ran, fresh."""
    speeds = {"warm": ratio.rival_s / ratio.ours_s}
    if ratio.fresh and ratio.rival_fresh:
        speeds["fresh"] = ratio.rival_fresh.seconds / ratio.fresh.seconds
    return speeds


def _warm_bar(ratio: Ratio) -> float | None:
    """Return the warm bar as a throughput."""
    for bar in ratio.bars:
        if not bar.is_fresh:
            if bar.unit == "s":
                return ratio.rival_s / bar.limit
            return 1 / bar.limit if bar.at_most else bar.limit
    return None
