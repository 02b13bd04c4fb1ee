"""Run benchmarks and print their figures; exit 2 if one misses its bar."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from bench._measure import Count, Ratio, Result, Share
from bench.documents import bench_documents
from bench.formats import bench_log, bench_manifest, bench_segment
from bench.kernel import bench_file, bench_seaweedfs
from bench.pages import bench_pages
from bench.pipeline import bench_pipeline
from bench.put import bench_put
from bench.requests import bench_requests
from bench.sqlite import bench_sqlite

BENCHES: dict[str, Callable[[], Iterator[Result]]] = {
    "log": bench_log,
    "segment": bench_segment,
    "manifest": bench_manifest,
    "requests": bench_requests,
    "file": bench_file,
    "seaweedfs": bench_seaweedfs,
    "put": bench_put,
    "documents": bench_documents,
    "pages": bench_pages,
    "sqlite": bench_sqlite,
    "pipeline": bench_pipeline,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    unknown = set(options.names) - BENCHES.keys()
    if unknown:
        parser.error(
            f"unknown benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}"
        )
    progress = Console(stderr=True)
    results: list[Result] = []
    load_before = os.getloadavg()[0]
    for name in options.names or BENCHES:
        with progress.status(f"measuring {name}"):
            results += BENCHES[name]()
    if options.json:
        machine = {"machine": platform.platform(), "cores": os.cpu_count(), "load": load_before}
        print(json.dumps(machine | _listed(results)))
    else:
        console = Console()
        console.print(
            f"{platform.platform()}, {os.cpu_count()} cores, load {load_before:.1f} before"
        )
        for table in _tables(results):
            console.print(table)
    return 0 if all(result.holds for result in results) else 2


def _listed(results: list[Result]) -> dict[str, list[dict[str, object]]]:
    named = {"ratios": Ratio, "counts": Count, "shares": Share}
    return {
        name: [asdict(r) | {"holds": r.holds} for r in results if isinstance(r, kind)]
        for name, kind in named.items()
    }


def _tables(results: list[Result]) -> Iterator[Table]:
    ratios = [result for result in results if isinstance(result, Ratio)]
    counts = [result for result in results if isinstance(result, Count)]
    shares = [result for result in results if isinstance(result, Share)]
    if ratios:
        yield _ratio_table(ratios)
    if counts:
        yield _count_table(counts)
    if shares:
        yield _share_table(shares)


def _ratio_table(ratios: list[Ratio]) -> Table:
    table = Table(
        title="measured in turn: throughput as a multiple of the rival's (≥), or time as one (≤)"
    )
    texts = ("what", "against", "note")
    for heading in (
        *("what", "Reef", "rival", "against", "ratio", "fastest", "medians", "bar"),
        *("verdict", "note"),
    ):
        table.add_column(heading, justify="left" if heading in texts else "right")
    for ratio in ratios:
        sign = "≤" if ratio.at_most else "≥"
        table.add_row(
            ratio.name,
            _time(ratio.ours_s),
            _time(ratio.rival_s),
            ratio.rival,
            f"{ratio.ratio:.2f}x",
            f"{ratio.fastest_ratio:.2f}x",
            f"{ratio.median_ratio:.2f}x",
            "" if ratio.bar is None else f"{sign} {ratio.bar:.2f}x",
            "" if ratio.bar is None else _verdict(ratio),
            ratio.note,
        )
    return table


def _count_table(counts: list[Count]) -> Table:
    table = Table(title="counted")
    for heading in ("what", "counted", "bar", "verdict", "note"):
        table.add_column(heading, justify="left" if heading in ("what", "note") else "right")
    for count in counts:
        row = (count.name, str(count.counted), f"≤ {count.allowed}", _verdict(count), count.note)
        table.add_row(*row)
    return table


def _share_table(shares: list[Share]) -> Table:
    table = Table(title="where the time goes")
    for heading in ("what", "median", "share", "note"):
        table.add_column(heading, justify="left" if heading in ("what", "note") else "right")
    for share in shares:
        table.add_row(share.name, _time(share.seconds), f"{share.share:.0%}", share.note)
    return table


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.1f} µs"


def _verdict(result: Ratio | Count) -> str:
    return "holds" if result.holds else "[red]misses[/red]"


if __name__ == "__main__":
    sys.exit(main())
