"""The pipeline on Spark, on two cores: what Spark costs its passes, and its rows against Parquet.

Rows have 300 bytes and come in random order of ids; one in sixteen is written twice. All of it lies in
a folder on a disk, `?fsync=off`. A session and two processes stay for the whole run; each has run a
pass before anything is timed. A fresh process has a session, or processes, that have run nothing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import reef
from bench._corpus import folder
from bench._fresh import Opening, Pass, whole
from bench._measure import Count, Ratio, Result, Scale, check, in_turn, ratio_of, with_fresh
from bench.pipeline import _workers as workers
from bench.pipeline._rows import (
    NAMESPACE,
    ROW_BYTES,
    address,
    digest,
    linked,
    uncached,
    write_rows,
)
from bench.pipeline._runner import (
    Keys,
    PeakRunner,
    ProcessRunner,
    ReadBytes,
    processes,
    read_objects,
    spark_session,
)
from bench.pipeline._spark import bench_loads, bench_reads
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
from reef.spark import spark_runner

ROWS = 4_500_000
ROUNDS = 3
TASK_MIB_MAX = 1024
SESSION_MS_MAX = 60_000
READING = "Spark tasks that only read the same objects"
WITHOUT = "the same tasks on two processes, without Spark"

Side: TypeAlias = Literal["spark", "processes"]
Codec: TypeAlias = Literal["lz4", "zstd"]


def bench_pipeline(scale: Scale) -> Iterator[Result]:
    """All figures of the pipeline, in a folder on a disk."""
    with folder() as here:
        begun = time.perf_counter()
        spark = spark_session()
        took = time.perf_counter() - begun
        try:
            yield Count(
                name="ms to start a Spark session",
                counted=round(took * 1000),
                allowed=SESSION_MS_MAX,
                note="not in any figure",
            )
            yield from _figures(here, scale)
        finally:
            spark.stop()
            processes().shutdown()


def _figures(here: Path, scale: Scale) -> Iterator[Result]:
    """Yield every figure; each stands on what the one before it has left."""
    log, source, by_id = (here / name for name in ("log", "source", "sorted"))
    rounds = scale.rounds(ROUNDS)
    written = write_rows(log, source, scale.rows(ROWS))
    count, expected = written.rows, digest(log, written.rows)
    yield from _verifies(log, "a log", rounds)
    folded, compacted = here / "folded", here / "compacted"
    yield from _passes("fold", log, folded, count, expected, rounds)
    yield from _passes("compact", folded, compacted, count, expected, rounds)
    yield from _verifies(compacted, "a log and segments", rounds)
    loads = bench_loads(here, source, by_id, count, max(1, rounds - 1), expected)
    yield from _with_workers("bulk load", loads)
    reads = bench_reads(address(compacted), by_id, count, rounds)
    yield from _with_workers("Spark reads", reads)
    smaller = linked(folded, here / "zstd")
    with reef.connect(address(smaller)) as db:
        _compact(db, _runner("spark", db), _part_bytes(count), "zstd")
    reads = bench_reads(address(smaller), by_id, count, rounds, codec="zstd")
    yield from _with_workers("Spark reads of zstd", reads)


# Passes.


def _index(db: Database, runner: Runner, part_bytes: int) -> int:
    """Fold a log; return how many tasks did it."""
    done = index(db, NAMESPACE, runner=runner, options=IndexOptions(task_bytes=part_bytes))
    check(not done.failed and done.totals["segments"] > 1, f"the log was folded: {done}")
    return done.tasks.count


def _compact(db: Database, runner: Runner, part_bytes: int, codec: Codec = "lz4") -> int:
    """Compact everything into one run; return how many tasks did it."""
    options = CompactionOptions(full=True, target_size_bytes=part_bytes, bottom_codec=codec)
    done = compact(db, NAMESPACE, runner=runner, options=options)
    check(not done.failed and done.totals["dropped"], f"segments were merged: {done}")
    return done.tasks.count


PASSES: Mapping[str, Callable[[Database, Runner, int], int]] = {
    "fold": _index,
    "compact": _compact,
}


def _part_bytes(rows: int) -> int:
    """Return what a task takes, and a segment: the default, but for small runs."""
    return min(IndexOptions().task_bytes, rows * ROW_BYTES // 4)


def _runner(side: Side, db: Database) -> PeakRunner:
    context = db.context()
    if side == "spark":
        return PeakRunner(spark_runner(context, spark_session()))
    return PeakRunner(ProcessRunner(Bucket.of(context)))


@contextmanager
def opened_pass(name: str, side: Side, source: Path, rows: int) -> Iterator[Pass]:
    """A pass over a copy of `source`, which is removed."""
    bucket = linked(source, source.parent / f"{name}-{side}")
    try:
        with reef.connect(address(bucket)) as db:
            runner = _runner(side, db)
            yield whole(lambda: PASSES[name](db, runner, _part_bytes(rows)))
    finally:
        shutil.rmtree(bucket)


def _passes(
    name: str, source: Path, target: Path, rows: int, expected: str, rounds: int
) -> Iterator[Result]:
    """Yield the figures of a pass over copies of `source`; leave the result as `target`."""
    sides: tuple[Side, ...] = ("processes", "spark")
    for side in sides:
        shutil.rmtree(target, ignore_errors=True)
        bucket = linked(source, target)
        with reef.connect(address(bucket)) as db:
            runner = _runner(side, db)
            tasks = PASSES[name](db, runner, _part_bytes(rows))
        check(digest(bucket, rows) == expected, f"{name} changes no row on {side}")
    yield from _timed(
        name,
        partial(opened_pass, name, "spark", source, rows),
        partial(opened_pass, name, "processes", source, rows),
        rounds,
        bar=0.75,
        against=WITHOUT,
        nbytes=rows * ROW_BYTES,
        note=f"{tasks} tasks",
    )
    yield _peak(name, runner.peaks)


# Verify.


def _verifies(bucket: Path, what: str, rounds: int) -> Iterator[Result]:
    """Deep verify against reading the same objects, and nothing else, by tasks on the same session."""
    with reef.connect(address(bucket)) as db:
        nbytes = sum(meta.size for meta in db.store.list(f"namespaces/{NAMESPACE}/"))
        runner = _runner("spark", db)
        _verify(db, runner)
    for is_cold, where in ((True, "from disk"), (False, "from the kernel's memory")):
        yield from _timed(
            f"deep verify of {what}, {where}",
            partial(opened_verify, bucket, is_cold=is_cold),
            partial(opened_reading, bucket, is_cold=is_cold),
            rounds,
            bar=0.5,
            against=READING,
            nbytes=nbytes,
        )
    yield _peak(f"deep verify of {what}", runner.peaks)


@contextmanager
def opened_verify(bucket: Path, *, is_cold: bool) -> Iterator[Pass]:
    """Verify every byte; with `is_cold` none of it is in the kernel's memory."""
    if is_cold:
        uncached(bucket)
    with reef.connect(address(bucket)) as db:
        runner = _runner("spark", db)
        yield whole(lambda: _verify(db, runner))


def _verify(db: Database, runner: Runner) -> None:
    objects = list(db.store.list(f"namespaces/{NAMESPACE}/"))
    size = sum(meta.size for meta in objects)
    # Of a few rows, too, each object is read by a task of its own.
    options = VerifyOptions(small_bytes=min(VerifyOptions().small_bytes, size // 2))
    (one,) = verify(db, [NAMESPACE], runner=runner, options=options).namespaces
    report = one.result
    check(report is not None, f"verify came to an end: {one.error}")
    assert report is not None
    check(not report.problems and not report.orphans, f"nothing is damaged: {report}")
    read = sum(report.checked[kind] for kind in ("manifests", "log_objects", "segments"))
    check(read == sum(_is_checked(meta.key) for meta in objects), f"all were read: {report}")


def _is_checked(key: str) -> bool:
    """Return whether verify counts an object: it reads dedup windows too, but does not count them."""
    return any(f"/{kind}/" in key for kind in ("manifest", "wal", "segments"))


@contextmanager
def opened_reading(bucket: Path, *, is_cold: bool) -> Iterator[Pass]:
    """Read every byte, and check nothing."""
    if is_cold:
        uncached(bucket)
    with reef.connect(address(bucket)) as db:
        objects = list(db.store.list(f"namespaces/{NAMESPACE}/"))
        weights = [meta.size for meta in objects]
        keys = [Keys((meta.key,)) for meta in objects]
        runner = _runner("spark", db)

        def read() -> None:
            outcomes = runner.run(read_objects, keys, ReadBytes, name="read", weights=weights)
            total = sum(one.returned().count for one in outcomes)
            check(total == sum(weights), "all bytes were read")

        yield whole(read)


# What all figures share.


def _timed(
    name: str,
    ours: Opening,
    rival: Opening,
    rounds: int,
    *,
    bar: float,
    against: str,
    nbytes: int,
    note: str = "",
) -> Iterator[Ratio]:
    times = in_turn({"ours": ours, "rival": rival}, rounds, reopened=True)
    mine, theirs = (nbytes / min(times[side]) / 2**20 for side in ("ours", "rival"))
    rates = f"{nbytes / 2**30:.2f} GiB, {mine:,.0f} MiB/s to {theirs:,.0f}"
    result = ratio_of(
        name,
        times["ours"],
        times["rival"],
        by="fastest",
        bar=bar,
        note=f"{rates}, {note}" if note else rates,
        against=against,
    )
    yield with_fresh(result, ours, rival)


def _with_workers(name: str, figures: Iterator[Result]) -> Iterator[Result]:
    """Yield figures, and the most memory that Spark's Python workers had meanwhile."""
    workers.forget_peaks()
    peaks: dict[int, int] = {}
    for figure in figures:
        peaks |= workers.peaks()  # one that idles for a minute is ended
        yield figure
    yield _peak(name, list(peaks.values()))


def _peak(name: str, peaks: Sequence[int]) -> Count:
    mib = sorted((round(peak / 2**20) for peak in peaks), reverse=True)
    return Count(
        name=f"MiB at the peak of a task: {name}",
        counted=mib[0],
        allowed=TASK_MIB_MAX,
        note=f"every one: {', '.join(map(str, mib))}",
    )
