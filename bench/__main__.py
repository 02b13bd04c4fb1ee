"""Run benchmarks and print their ratios; exit 2 if one stays below its bar."""

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

from bench._measure import Ratio
from bench.formats import bench_log, bench_manifest, bench_segment

BENCHES: dict[str, Callable[[], Iterator[Ratio]]] = {
    "log": bench_log,
    "segment": bench_segment,
    "manifest": bench_manifest,
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
    results = []
    for name in options.names or BENCHES:
        with progress.status(f"measuring {name}"):
            results += list(BENCHES[name]())
    if options.json:
        rows = [asdict(result) | {"holds": result.holds} for result in results]
        print(json.dumps({"machine": platform.platform(), "cores": os.cpu_count(), "ratios": rows}))
    else:
        Console().print(_table(results))
    return 0 if all(result.holds for result in results) else 2


def _table(results: list[Ratio]) -> Table:
    table = Table(
        title="throughput as a multiple of plain Arrow IPC's (for manifests: of the limit's), "
        "the fastest of alternating runs"
    )
    for heading in ("what", "Reef", "rival", "ratio", "by medians", "bar", "verdict", "note"):
        table.add_column(heading, justify="left" if heading in ("what", "note") else "right")
    for result in results:
        table.add_row(
            result.name,
            f"{result.ours_s * 1e3:,.2f} ms",
            f"{result.rival_s * 1e3:,.2f} ms",
            f"{result.ratio:.2f}x",
            f"{result.median_ratio:.2f}x",
            f"{result.bar:.2f}x",
            "holds" if result.holds else "[red]below[/red]",
            result.note,
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
