"""Run benchmarks and print their figures; exit code 2 if one misses its bar."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from bench._measure import Result, Scale
from bench._places import CACHE
from bench._plot import write_plots
from bench._report import Report, print_report

Bench: TypeAlias = Callable[[Scale], Iterator[Result]]


def _bench(module: str, name: str) -> Bench:
    """Return a benchmark whose module is imported when it runs: rivals bring threads and memory."""
    return lambda scale: getattr(import_module(f"bench.{module}"), name)(scale)


BENCHES: dict[str, Bench] = {
    "log": _bench("formats", "bench_log"),
    "segment": _bench("formats", "bench_segment"),
    "manifest": _bench("formats", "bench_manifest"),
    "requests": _bench("requests", "bench_requests"),
    "file": _bench("kernel", "bench_file"),
    "seaweedfs": _bench("kernel", "bench_seaweedfs"),
    "put": lambda scale: import_module("bench.put").bench_put(scale.rows(500)),
    "maintenance": lambda scale: import_module("bench.maintenance").bench_maintenance(
        scale.rows(60)
    ),
    "documents": _bench("documents", "bench_documents"),
    "pages": _bench("pages", "bench_pages"),
    "sqlite": _bench("sqlite", "bench_sqlite"),
    "pipeline": _bench("pipeline", "bench_pipeline"),
}


def main() -> int:
    """Measure, or print an earlier run, and say by the exit code whether every bar holds."""
    options = _options()
    if options.earlier is not None:
        report, path = Report.load_from(options.earlier), options.earlier
    else:
        report = _measured(options.names or list(BENCHES), Scale(options.quick))
        path = options.json or CACHE / "bench" / f"{time.strftime('%Y%m%dT%H%M%S')}.json"
        report.save(path)
    print_report(report)
    plots = options.plots or path.with_suffix("")
    write_plots(report, plots)
    print(f"JSON in {path}, plots in {plots}", file=sys.stderr)
    return 2 if report.missed else 0


def _measured(names: list[str], scale: Scale) -> Report:
    progress = Console(stderr=True)
    results: dict[str, list[Result]] = {}
    load = os.getloadavg()[0]
    for name in names:
        results[name] = []
        with progress.status(f"measuring {name}") as status:
            for result in BENCHES[name](scale):
                results[name].append(result)
                status.update(f"measuring {name}, after: {result.name}")
    return Report.here(results, load=load, is_quick=scale.is_quick)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes; no bar counts")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="default: .cache/bench/<time>.json"
    )
    parser.add_argument(
        "--plots", type=Path, metavar="DIR", help="SVG charts; default: beside the JSON"
    )
    parser.add_argument(
        "--from",
        dest="earlier",
        type=Path,
        metavar="FILE",
        help="measure nothing: print and plot the JSON of an earlier run",
    )
    options = parser.parse_args()
    unknown = set(options.names) - BENCHES.keys()
    if unknown:
        names = ", ".join(sorted(unknown))
        parser.error(f"there is no benchmark {names}; choose from {', '.join(BENCHES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
