"""Run benchmarks and print their figures; exit code 2 if one misses its bar."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from bench._measure import Result, Scale
from bench._places import CACHE
from bench._plot import write_plots
from bench._report import Report, print_report
from bench.documents import bench_documents
from bench.formats import bench_log, bench_manifest, bench_segment
from bench.kernel import bench_file, bench_seaweedfs
from bench.pages import bench_pages
from bench.pipeline import bench_pipeline
from bench.put import bench_put
from bench.requests import bench_requests
from bench.sqlite import bench_sqlite

BENCHES: dict[str, Callable[[Scale], Iterator[Result]]] = {
    "log": bench_log,
    "segment": bench_segment,
    "manifest": bench_manifest,
    "requests": lambda _: bench_requests(),
    "file": bench_file,
    "seaweedfs": bench_seaweedfs,
    "put": lambda _: bench_put(),
    "documents": bench_documents,
    "pages": bench_pages,
    "sqlite": bench_sqlite,
    "pipeline": bench_pipeline,
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
