"""The progress of this thread's Spark jobs, from Spark's own counters, read now and then.

Progress is only for people and must not break a job: counters that cannot be read are not reported.
Through Spark Connect there are fewer of them: no rows.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from reef.threads import SystemThreads, Threads

POLL_SECONDS = 0.5
_SKIPPED = "SKIPPED"
_runs = itertools.count(1)


@dataclass(frozen=True)
class Counted:
    """What Spark has counted, of all stages that it has begun so far."""

    tasks_done: int = 0
    tasks: int = 0
    bytes_read: int = 0
    bytes_past: int = 0
    """Those of stages that are over: files may be gone through more than once."""
    scans: int = 0
    """Stages that are reading."""
    rows: int = 0
    """That have come through one stage, at most: none is counted twice."""


@contextmanager
def watching(
    spark: SparkSession,
    report: Callable[[Counted], None] | None,
    *,
    threads: Threads | None = None,
) -> Iterator[None]:
    """Report how far Spark is with the jobs of this thread, from another one, and at the end."""
    if report is None:
        yield
    elif "connect" in type(spark).__module__:
        yield from _report_remotely(spark, report)
    else:
        yield from _report_in_process(spark.sparkContext, report, threads or SystemThreads())


def _report_in_process(
    context: SparkContext, report: Callable[[Counted], None], threads: Threads
) -> Iterator[None]:
    tag = f"reef-watch-{os.getpid()}-{next(_runs)}"
    ended = threads.condition()
    is_over = False

    def report_now() -> None:
        with suppress(Py4JError, OSError):  # the JVM may be going down
            report(_read_counters(context, tag))

    def poll() -> None:
        while True:
            with ended:
                if not is_over:
                    ended.wait(POLL_SECONDS)
                if is_over:
                    return
            report_now()

    context.addJobTag(tag)
    thread = threads.start(poll, name="reef-watch")
    try:
        yield
    finally:
        with ended:
            is_over = True
            ended.notify_all()
        thread.join()
        with suppress(Py4JError, OSError):
            context.removeJobTag(tag)
    report_now()


def _read_counters(context: SparkContext, tag: str) -> Counted:
    jvm: Any = context._jsc.sc()
    tracker, store = context.statusTracker(), jvm.statusStore()
    jobs = (tracker.getJobInfo(job) for job in jvm.statusTracker().getJobIdsForTag(tag))
    stages = {stage for job in jobs if job is not None for stage in job.stageIds}
    tasks_done = tasks = bytes_read = bytes_past = scans = rows = 0
    for stage in stages:
        try:
            found = store.lastStageAttempt(stage)
        except Py4JError:
            continue  # forgotten, or not begun
        if found.status().toString() == _SKIPPED:
            continue
        tasks += found.numTasks()
        tasks_done += found.numCompleteTasks()
        size = found.inputBytes()
        is_over = found.numCompleteTasks() >= found.numTasks()
        bytes_read += size
        bytes_past += size if is_over else 0
        scans += size > 0 and not is_over
        passed = (found.inputRecords(), found.outputRecords(), found.shuffleReadRecords())
        rows = max(rows, *passed)
    return Counted(tasks_done, tasks, bytes_read, bytes_past, scans, rows)


def _report_remotely(spark: SparkSession, report: Callable[[Counted], None]) -> Iterator[None]:
    seen: dict[tuple[str | None, int], Any] = {}

    def on_progress(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        seen.update(((operation_id, stage.stage_id), stage) for stage in stages or ())
        known = seen.values()
        report(
            Counted(
                sum(stage.num_completed_tasks for stage in known),
                sum(stage.num_tasks for stage in known),
                sum(stage.num_bytes_read for stage in known),
                sum(stage.num_bytes_read for stage in known if stage.done),
                sum(stage.num_bytes_read > 0 and not stage.done for stage in known),
            )
        )

    handler: Any = on_progress  # declared as a class to inherit from, called like any function
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        with suppress(PySparkException):
            spark.removeProgressHandler(handler)
