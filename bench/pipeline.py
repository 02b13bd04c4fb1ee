"""The pipeline on Spark, on two cores: what Spark costs its passes, and its rows against Parquet.

Rows have 300 bytes and come in random order of ids; one in sixteen is written twice. All of it lies in
a folder on a disk, `?fsync=off`. A session and two processes stay for the whole run; each has folded,
compacted and verified a few rows before anything is timed, and loads and reads have a first run.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import SparkSession

import reef
from bench import _pipeline_workers as workers
from bench._corpus import check, folder, in_turn, timed
from bench._measure import Count, Ratio, Result, ratio_of
from bench._pipeline_rows import (
    NAMESPACE,
    ROW_BYTES,
    address,
    digest,
    linked,
    uncached,
    write_rows,
)
from bench._pipeline_runner import (
    Keys,
    Noted,
    Processes,
    ProcessRunner,
    ReadBytes,
    read_objects,
)
from bench._pipeline_spark import bench_loads, bench_reads
from reef.database import Database
from reef.jobs import (
    Bucket,
    CompactionOptions,
    IndexOptions,
    Runner,
    VerifyOptions,
    compact,
    index,
    verify,
)
from reef.spark import session
from reef.spark._runner import SparkRunner

ROWS = 4_500_000
ROUNDS = 3
TASK_MIB_MAX = 1024
SESSION_MS_MAX = 60_000
_TINY_ROWS = 20_000
_READING = "Spark tasks that read the same objects, and look at nothing"
_WITHOUT = "the same tasks on two processes, without Spark"


def bench_pipeline(rows: int = ROWS, rounds: int = ROUNDS) -> Iterator[Result]:
    """All figures of the pipeline, in a folder on a disk."""
    with folder() as here, Processes() as processes:
        begun = time.perf_counter()
        spark = session("bench", "local[2,4]")
        started = time.perf_counter() - begun
        try:
            bench = _Bench(here, spark, processes, rows, rounds)
            bench.warm()
            yield Count(
                name="ms to start a Spark session",
                counted=round(started * 1000),
                allowed=SESSION_MS_MAX,
                note=f"not in any figure; with a first run of each task "
                f"{time.perf_counter() - begun:.0f} s",
            )
            yield from bench.figures()
        finally:
            spark.stop()


@dataclass
class _Bench:
    """Where everything is, on both sides."""

    here: Path
    spark: SparkSession
    processes: Processes
    rows: int
    rounds: int
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def figures(self) -> Iterator[Result]:
        """Yield every figure; each stands on what the one before it has left."""
        log, source, by_id = (self.here / name for name in ("log", "source", "sorted"))
        written = write_rows(log, source, self.rows)
        count, expected = written.rows, digest(log, written.rows)
        yield from self._verifies(log, "a log")
        folded = yield from self._passes("fold", self._index, log, expected, count)
        compacted = yield from self._passes("compact", self._compact, folded, expected, count)
        yield from self._verifies(compacted, "a log and segments")
        loads = bench_loads(self.spark, self.here, source, count, max(1, self.rounds - 1), expected)
        yield from self._with_workers("bulk load", loads)
        reads = bench_reads(self.spark, address(compacted), by_id, count, self.rounds)
        yield from self._with_workers("Spark reads", reads)
        smaller = linked(folded, self.here / "zstd")
        with reef.connect(address(smaller)) as db:
            self._compact(db, self._runners(db)["ours"], bottom_codec="zstd")
        reads = bench_reads(self.spark, address(smaller), by_id, count, self.rounds, ", zstd")
        yield from self._with_workers(
            "Spark reads of zstd", (replace(one, bar=None) for one in reads)
        )

    def warm(self) -> None:
        """Run the tasks of passes on both sides: they load code and start their workers then."""
        log = self.here / "tiny"
        count = write_rows(log, self.here / "tiny-source", _TINY_ROWS).rows
        small = replace(self, rows=_TINY_ROWS, rounds=1)
        expected = digest(log, count)
        _returned(small._verifies(log, "a few rows"))
        folded = _returned(small._passes("fold", small._index, log, expected, count))
        _returned(small._passes("compact", small._compact, folded, expected, count))

    @property
    def _part_bytes(self) -> int:
        """What a task takes, and a segment: the default, but for small tests."""
        return min(IndexOptions().task_bytes, self.rows * ROW_BYTES // 4)

    def _runners(self, db: Database) -> dict[str, Noted]:
        bucket = Bucket.of(db.context())
        return {
            "ours": Noted(SparkRunner(self.spark, bucket)),
            "rival": Noted(ProcessRunner(self.processes, bucket)),
        }

    def _index(self, db: Database, runner: Runner) -> int:
        options = IndexOptions(task_bytes=self._part_bytes)
        done = index(db, NAMESPACE, runner=runner, options=options)
        check(not done.failed and done.totals["segments"] > 1, f"it was folded: {done}")
        return done.tasks.count

    def _compact(
        self, db: Database, runner: Runner, bottom_codec: Literal["lz4", "zstd"] = "lz4"
    ) -> int:
        options = CompactionOptions(
            full=True, target_file_size_bytes=self._part_bytes, bottom_codec=bottom_codec
        )
        done = compact(db, NAMESPACE, runner=runner, options=options)
        check(not done.failed and done.totals["dropped"], f"it was merged: {done}")
        return done.tasks.count

    def _passes(
        self,
        name: str,
        run: Callable[[Database, Runner], int],
        source: Path,
        expected: str,
        count: int,
    ) -> Generator[Result, None, Path]:
        """Yield the figures of a pass over copies of `source`; return the last of them."""
        peaks: list[list[int]] = []
        last: dict[str, Path] = {}

        def turn(side: str) -> float:
            bucket = linked(source, self.here / f"{name}-{side}-{next(self.numbers)}")
            with reef.connect(address(bucket)) as db:
                runner = self._runners(db)[side]
                taken = timed(partial(run, db, runner))
            if side in last:
                shutil.rmtree(last[side])
            else:
                check(digest(bucket, count) == expected, f"{name} changes no row ({side})")
            last[side] = bucket
            if side == "ours":
                peaks.append(runner.peaks)
            return taken

        times = in_turn({side: partial(turn, side) for side in ("ours", "rival")}, self.rounds)
        shutil.rmtree(last["rival"])
        yield self._rated(name, times, bar=0.75, against=_WITHOUT, tasks=len(peaks[-1]))
        yield _peak(name, max(peaks, key=max))
        return last["ours"]

    def _verifies(self, bucket: Path, what: str) -> Iterator[Result]:
        """Deep verify against reading the same objects, and nothing else, by tasks of the same session."""
        with reef.connect(address(bucket)) as db:
            runners = self._runners(db)
            reading = SparkRunner(self.spark, Bucket.of(db.context()))
            objects = list(db.store.list(f"namespaces/{NAMESPACE}/"))
            size = sum(meta.size for meta in objects)
            keys = [Keys((meta.key,)) for meta in objects]
            # A few rows, too, are read by the tasks that read many.
            options = VerifyOptions(small_bytes=min(VerifyOptions().small_bytes, size // 2))

            peaks: list[list[int]] = []

            def ours() -> None:
                runners["ours"].peaks.clear()
                done = verify(db, NAMESPACE, runner=runners["ours"], options=options)
                report = done.namespaces[0].returned()
                looked = sum(
                    report.checked[kind] for kind in ("manifests", "log_objects", "segments")
                )
                check(not report.problems and not report.orphans, f"nothing is damaged: {report}")
                rest = [meta for meta in objects if not _is_checked(meta.key)]
                check(looked == len(objects) - len(rest), f"all were looked at: {report.checked}")
                peaks.append([*runners["ours"].peaks])

            def theirs() -> None:
                outcomes = reading.run(
                    read_objects,
                    keys,
                    ReadBytes,
                    name="read",
                    weights=[meta.size for meta in objects],
                )
                check(sum(one.returned().count for one in outcomes) == size, "all bytes were read")

            def cold(run: Callable[[], None]) -> float:
                uncached(bucket)
                return timed(run)

            for name, clock in (
                (f"deep verify of {what}, from disk", cold),
                (f"deep verify of {what}, from the kernel's memory", timed),
            ):
                runs = {"ours": partial(clock, ours), "rival": partial(clock, theirs)}
                times = in_turn(runs, self.rounds)
                yield self._rated(name, times, bar=0.5, against=_READING, size=size)
            yield _peak(f"deep verify of {what}", max(peaks, key=max))

    def _with_workers(self, name: str, figures: Iterator[Result]) -> Iterator[Result]:
        """Yield figures, and the most memory that Spark's Python workers had meanwhile."""
        workers.forget_peaks()
        peaks: dict[int, int] = {}
        for figure in figures:
            peaks |= workers.peaks()  # one that idles for a minute is ended
            yield figure
        yield _peak(name, list(peaks.values()))

    def _rated(
        self,
        name: str,
        times: dict[str, list[float]],
        *,
        bar: float,
        against: str,
        size: int = 0,
        tasks: int = 0,
    ) -> Ratio:
        size = size or self.rows * ROW_BYTES
        mine, theirs = (size / min(times[side]) / 2**20 for side in ("ours", "rival"))
        shown = f"{size / 2**30:.2f} GiB, {mine:,.0f} MiB/s to {theirs:,.0f}"
        return ratio_of(
            name,
            times["ours"],
            times["rival"],
            by="fastest",
            bar=bar,
            note=f"{shown}, {tasks} tasks" if tasks else shown,
            against=against,
        )


def _is_checked(key: str) -> bool:
    """Return whether verify counts an object: it reads dedup windows too, but tells nothing."""
    return any(f"/{kind}/" in key for kind in ("manifest", "wal", "segments"))


def _peak(name: str, peaks: Sequence[int]) -> Count:
    mib = sorted((round(peak / 2**20) for peak in peaks), reverse=True)
    return Count(
        name=f"MiB at the peak of a task: {name}",
        counted=mib[0],
        allowed=TASK_MIB_MAX,
        note=f"every one: {', '.join(map(str, mib))}",
    )


def _returned(figures: Iterator[Result]) -> Any:
    """Return what a generator of figures returns, and forget the figures."""
    while True:
        try:
            next(figures)
        except StopIteration as stop:
            return stop.value
