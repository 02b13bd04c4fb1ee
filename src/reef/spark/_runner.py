"""Tasks on Spark: one job for all descriptors, nothing but descriptors and outcomes across the JVM.

The job is `range(parts).mapInArrow(...)` with the packed descriptors in its closure, which runs the
same on `local[*]`, on a cluster and through Spark Connect. Many descriptors share a Spark task, so
that thousands of tiny ones cost few launches; the heavy ones have a Spark task of their own.

If an executor is lost, or a task raises anything but a ReefError, Spark runs that Spark task again.
Of two attempts at one, Spark gives back one; the other's objects are orphans.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext, TaskContext, inheritable_thread_target
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import spark_partition_id

from reef.engine import Context
from reef.errors import InvalidInputError, InvariantError, ReefError, UnavailableError
from reef.jobs import Bucket, Progress, Task, TaskOutcome, TaskWire
from reef.spark._freeze import freeze_imports
from reef.spark._java_error import reason_of
from reef.spark._session import open_session
from reef.spark._spread import balanced_parts
from reef.threads import SystemThreads, Threads

PARTS_MIN = 32
PARTS_PER_SLOT = 8
"""Spark tasks for each that runs side by side: enough that they end together, few to launch."""

POLL_SECONDS = 0.25
_SCHEMA = "position int, outcome binary"

D = TypeVar("D", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

_runs = itertools.count(1)
_Mapped = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class SparkRunner:
    """Runs tasks on a Spark session, opened for the first of them; they open the bucket where they run."""

    def __init__(
        self,
        session: SparkSession | Callable[[], SparkSession],
        bucket: Bucket,
        *,
        parallelism: int | None = None,
        threads: Threads | None = None,
    ) -> None:
        """Use a session, or the one that `session` returns when there is something to run.

        `parallelism` is how many tasks run side by side, by default as the session says. Raises
        InvalidInputError for a bucket that only this process can see.
        """
        if bucket.url.startswith("memory:"):
            raise InvalidInputError(
                f"the bucket {bucket.url} is in the memory of this process, and Spark's tasks run in "
                "others; use a bucket that other processes can open"
            )
        self._given = session
        self._opened: SparkSession | None = None
        self._bucket = bucket
        self._parallelism = parallelism
        self._threads = threads or SystemThreads()

    @property
    def _spark(self) -> SparkSession:
        if self._opened is None:
            self._opened = self._given() if callable(self._given) else self._given
        return self._opened

    @property
    def parallelism(self) -> int:
        """How many tasks run side by side."""
        if self._parallelism is not None:
            return self._parallelism
        if (context := _context_of(self._spark)) is not None:
            return context.defaultParallelism  # not kept: executors come and go
        # Spark Connect shows it only indirectly: a range gets as many partitions as there are
        # cores.
        ids = self._spark.range(1 << 16).select(spark_partition_id().alias("id"))
        self._parallelism = ids.distinct().count()
        return self._parallelism

    def run(
        self,
        task: Task[D, R],
        descriptors: Sequence[D],
        result: type[R],
        *,
        name: str,
        weights: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> list[TaskOutcome[R]]:
        """Run `task` for each descriptor in one Spark job; return an outcome each, in their order.

        Raises InvariantError if a task kept failing with another error than a ReefError,
        UnavailableError if Spark could not run it.
        """
        wire, payloads = TaskWire.pack(task, descriptors, result)
        if not payloads:
            return []
        spark = self._spark
        with _raised_plainly(name):
            parts = balanced_parts(
                weights or [1] * len(payloads), max(PARTS_MIN, PARTS_PER_SLOT * self.parallelism)
            )
            groups = [
                msgspec.msgpack.encode([(position, payloads[position]) for position in part])
                for part in parts
            ]
            frame = spark.range(0, len(groups), 1, len(groups)).mapInArrow(
                _mapped(self._bucket, wire, groups), _SCHEMA
            )
            rows = _InterruptibleJob(spark, name, self._threads).collect(
                frame, _by_part(progress, len(groups), len(payloads))
            )
        if progress is not None:
            progress(len(payloads), len(payloads))
        outcomes = {row.position: wire.unpack(bytes(row.outcome)) for row in rows}
        if sorted(outcomes) != list(range(len(payloads))):
            raise InvariantError(f"{name}: {len(outcomes)} outcomes of {len(payloads)} came back")
        return [outcomes[position] for position in range(len(payloads))]


@contextmanager
def _raised_plainly(name: str) -> Iterator[None]:
    """Raise what Spark raises as errors of ours."""
    try:
        yield
    except PythonException as error:
        raise InvariantError(
            f"{name}: a task failed each time it was tried: {reason_of(error)}; nothing of it was "
            "published"
        ) from error
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise UnavailableError(
            f"{name}: Spark gave up on the job: {reason_of(error)}; nothing of it was published, run "
            "it again"
        ) from error


class _InterruptibleJob:
    """A Spark job in a thread of its own, so that Ctrl-C can interrupt its caller."""

    def __init__(self, spark: SparkSession, name: str, threads: Threads) -> None:
        self._spark = spark
        self._context = _context_of(spark)
        self._name = name
        self._tag = f"reef-{os.getpid()}-{next(_runs)}"
        self._threads = threads
        self._ended = threads.condition()
        self._is_over = False
        self._rows: list[Row] = []
        self._error: Exception | None = None
        self._done = 0

    def collect(self, frame: DataFrame, progress: Progress | None) -> list[Row]:
        """Run the job and return its rows; whatever interrupts the wait for it ends it too.

        `progress` is called with the number of Spark tasks that are done.
        """
        # The caller's tags and properties, such as a scheduler's pool, hold in the thread too.
        target = inheritable_thread_target(self._spark)(lambda: self._run(frame))
        thread = self._threads.start(target, name="reef-job")
        try:
            self._wait(progress)
        except BaseException:
            self._cancel()
            raise
        finally:
            thread.join()
        if self._error is not None:
            raise self._error
        return self._rows

    def _run(self, frame: DataFrame) -> None:
        try:
            if self._context is not None:
                self._context.setJobGroup(self._tag, self._name, interruptOnCancel=True)
                self._rows = frame.collect()
            else:
                self._rows = self._run_remotely(frame)
        except Exception as error:  # noqa: BLE001 - it is raised where the job is waited for
            self._error = error
        with self._ended:
            self._is_over = True
            self._ended.notify_all()

    def _run_remotely(self, frame: DataFrame) -> list[Row]:
        def count(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
            self._done = sum(stage.num_completed_tasks for stage in stages or ())

        handler: Any = count  # declared as a class to inherit from, called like any function
        self._spark.addTag(self._tag)
        self._spark.registerProgressHandler(handler)
        try:
            return frame.collect()
        finally:
            self._spark.removeProgressHandler(handler)

    def _wait(self, progress: Progress | None) -> None:
        last = 0
        while True:
            with self._ended:
                if not self._is_over:
                    self._ended.wait(POLL_SECONDS)
                if self._is_over:
                    return
            if progress is not None and (done := self._tasks_done()) > last:
                progress(done, 0)
                last = done

    def _tasks_done(self) -> int:
        if self._context is None:
            return self._done
        tracker = self._context.statusTracker()
        stages = (
            tracker.getStageInfo(stage)
            for job in tracker.getJobIdsForGroup(self._tag)
            if (info := tracker.getJobInfo(job)) is not None
            for stage in info.stageIds
        )
        return sum(stage.numCompletedTasks for stage in stages if stage is not None)

    def _cancel(self) -> None:
        with suppress(PySparkException, Py4JError):  # it may have ended, with its JVM or without
            if self._context is not None:
                self._context.cancelJobGroup(self._tag)
            else:
                self._spark.interruptTag(self._tag)


def _mapped(bucket: Bucket, wire: TaskWire[D, R], groups: Sequence[bytes]) -> _Mapped:
    """Return what a Spark task does: run its group's descriptors, one after the other."""

    def run_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        spark_task = TaskContext.get()
        attempt = spark_task.attemptNumber() if spark_task is not None else 0
        for part in (part for batch in batches for part in batch.column(0).to_pylist()):
            group = msgspec.msgpack.decode(groups[part], type=list[tuple[int, bytes]])
            try:
                context = bucket.open()
            except ReefError as error:
                outcomes = [wire.refuse(error, attempt=attempt) for _ in group]
            else:
                outcomes = [wire.perform(context, payload, attempt=attempt) for _, payload in group]
            positions = pa.array([position for position, _ in group], pa.int32())
            yield pa.record_batch(
                [positions, pa.array(outcomes, pa.binary())], ["position", "outcome"]
            )

    return run_groups


def _context_of(spark: SparkSession) -> SparkContext | None:
    """Return the session's context; through Spark Connect there is none."""
    return None if "connect" in type(spark).__module__ else spark.sparkContext


def _by_part(progress: Progress | None, parts: int, total: int) -> Progress | None:
    """Return what turns Spark tasks done into descriptors done, about."""
    if progress is None:
        return None
    return lambda done, _: progress(min(done, parts) * total // parts, total)


def spark_runner(
    context: Context, session: SparkSession | Callable[[], SparkSession] = open_session
) -> SparkRunner:
    """Return a runner of tasks on a session, or on the one that `session` returns.

    The session is opened when there is something to run; by default it is the running one, or a new
    one. Raises InvalidInputError for a bucket that other processes cannot open.
    """
    return SparkRunner(session, Bucket.of(context))
