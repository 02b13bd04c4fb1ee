"""The reports of `bench`: tables of 80 columns, JSON that comes back the same, SVG that parses."""

from __future__ import annotations

import io
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from bench._fresh import FirstPass, Pass, first_passes, over, whole
from bench._measure import Count, Result, Scale, Share, in_turn, ratio_of, with_fresh, within
from bench._plot import chart, write_plots
from bench._report import WIDTH, Report, format_time, print_report

SVG = "{http://www.w3.org/2000/svg}"


def results() -> list[Result]:
    """Return one result of each kind, with long names and figures."""
    slow = FirstPass(seconds=12.5, whole_s=12.5, system_s=3.0, memory_bytes=4 << 20)
    quick = FirstPass(seconds=25.0, whole_s=25.0, system_s=1.0, memory_bytes=8 << 20)
    name = "ingest in batches of 10,000 documents with vectors, fsync=off, on SeaweedFS"
    ratio = ratio_of(
        name, [123.4], [2000.0], by="fastest", bar=2.3, against="lancedb 0.40.0, to_batches(8,192)"
    )
    return [
        msgspec.structs.replace(ratio, fresh=slow, rival_fresh=quick, written_bytes=1 << 20),
        within(
            ratio_of(
                "put p50", [1e-3], [0.9e-3], by="median", bar=1.15, against="bare", at_most=True
            ),
            1.02e-3,
            "bare PUT + 0.12 ms",
        ),
        Count("requests of a scan that is longer than the line of a terminal", 3, 2, "n" * 200),
        Share("the log object is encoded", 12e-6, 0.25),
    ]


def report_of(some: list[Result], *, is_quick: bool = False) -> Report:
    """Return a report of one benchmark."""
    return Report.here({"documents": some}, load=0.5, is_quick=is_quick)


def printed(report: Report, width: int) -> str:
    """Return what a terminal of that width shows."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_report(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 200])
def test_no_line_of_a_report_is_wider_than_80_columns(width: int) -> None:
    lines = printed(report_of(results()), width).splitlines()
    assert max(cell_len(line) for line in lines) <= WIDTH
    assert len(lines) > 20


def test_figures_and_bars_are_not_cut_off() -> None:
    text = printed(report_of(results()), 80)
    for part in (
        "123.4 s",
        "2,000.0 s",
        "16.21x",
        "≥ 2.30x",
        "12.5 s",
        "2.00x",
        "≤ 1.02 ms",
        "25%",
    ):
        assert part in text
    assert "bar: bare PUT + 0.12 ms" in text
    assert "…" not in text


def test_a_missed_bar_is_named_and_a_quick_run_misses_none() -> None:
    count = results()[2]
    assert report_of(results()).missed == [count.name]
    assert "1 missed a bar" in printed(report_of(results()), 80)
    quick = report_of(results(), is_quick=True)
    assert quick.missed == []
    assert "too small" in printed(quick, 80)


def test_every_bar_of_a_figure_counts() -> None:
    put = ratio_of("put", [1.0], [0.9], by="median", bar=1.15, against="bare", at_most=True)
    assert put.holds
    assert within(put, 1.02, "bare + 0.12").holds
    assert not within(put, 0.98, "bare + 0.08").holds


def test_a_report_comes_back_from_json_as_it_was(tmp_path: Path) -> None:
    report = report_of(results())
    report.save(tmp_path / "deep" / "run.json")
    assert Report.load_from(tmp_path / "deep" / "run.json") == report


def test_charts_are_svg_that_parses_with_a_bar_for_each_figure(tmp_path: Path) -> None:
    ratios = [one for one in results() if not isinstance(one, Count | Share)]
    root = ET.fromstring(chart("a <title> & more", ratios))
    rows = root.findall(f"{SVG}g")
    assert [len(row.findall(f"{SVG}rect")) for row in rows] == [2, 1]  # warm and fresh, warm
    assert [len(row.findall(f"{SVG}path")) for row in rows] == [1, 1]  # the bar to reach
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.attrib.get("x", 0)) + float(rect.attrib["width"]) <= 800
    (path,) = write_plots(report_of(results()), tmp_path)
    assert path.name == "documents.svg"
    assert ET.parse(path).getroot().tag == f"{SVG}svg"


def test_a_chart_of_the_very_same_speeds_has_an_axis() -> None:
    same = ratio_of("same", [1.0], [1.0], by="fastest", bar=None, against="rival")
    (rect,) = ET.fromstring(chart("same", [same])).iterfind(f"{SVG}g/{SVG}rect")
    assert math.isfinite(float(rect.attrib["x"]))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 µs"), (12.34e-6, "12.3 µs"), (0.0123, "12.30 ms"), (9.5, "9,500.00 ms")],
)
def test_times_have_the_unit_that_suits_them(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


@contextmanager
def opened_fill(nbytes: int, log: Path) -> Iterator[Pass]:
    """Touch fresh memory, and note each step in a file."""
    with log.open("a") as file:
        file.write("open\n")
        yield whole(lambda: (bytearray(nbytes), file.write("pass\n")))
        file.write("close\n")


def test_a_first_pass_is_one_pass_in_another_process_with_its_fresh_memory(tmp_path: Path) -> None:
    nbytes = 32 << 20
    opening = partial(opened_fill, nbytes, tmp_path / "log")
    (one,) = first_passes([opening])
    assert (tmp_path / "log").read_text().split() == ["open", "pass", "close"]
    assert one.memory_bytes >= nbytes
    assert 0 < one.seconds <= one.whole_s
    result = ratio_of("fill", [1.0], [1.0], by="fastest", bar=None, against="the same")
    both = with_fresh(result, opening, opening, bar=0.0, written_bytes=nbytes)
    assert both.fresh is not None
    assert both.bars[0].is_fresh
    assert both.holds
    assert (tmp_path / "log").read_text().split().count("pass") == 3


def test_openings_take_turns_and_the_first_pass_of_each_does_not_count() -> None:
    steps: list[str] = []

    @contextmanager
    def opened(name: str) -> Iterator[Pass]:
        steps.append(f"open {name}")
        yield lambda: [float(steps.append(name) is None)]
        steps.append(f"close {name}")

    times = in_turn({name: partial(opened, name) for name in "ab"}, 2)
    assert times == {"a": [1.0, 1.0], "b": [1.0, 1.0]}
    assert [step for step in steps if len(step) == 1] == ["b", "a", "a", "b", "b", "a"]
    assert sum(step.startswith("open") for step in steps) == 2
    steps.clear()
    in_turn({"a": partial(opened, "a")}, 2, reopened=True)
    assert steps == ["open a", "a", "close a"] * 3


def test_a_pass_over_values_starts_again_after_the_last() -> None:
    seen: list[int] = []
    run = over([1, 2], seen.append, operations=4)
    for _ in range(3):
        assert len(run()) == 1
    assert seen == [1, 2, 1]


def test_a_quick_scale_measures_little_and_the_full_one_everything() -> None:
    assert (Scale().rows(1000), Scale().rounds(9)) == (1000, 9)
    quick = Scale(is_quick=True)
    assert (quick.rows(1000), quick.rows(10), quick.rounds(9), quick.rounds(1)) == (20, 10, 2, 1)
