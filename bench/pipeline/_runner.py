"""Where tasks of the pipeline run: on a Spark session, and on two processes without Spark."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any, TypeVar, Unpack

import msgspec
from pyspark.sql import SparkSession

from reef.engine import Context
from reef.jobs import Bucket, RunArguments, Runner, Task, TaskOutcome, TaskWire
from reef.spark import session

D = TypeVar("D", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

PROCESSES = 2


@cache
def spark_session() -> SparkSession:
    """Return the session of this process, on two cores; the first call starts it."""
    return session("bench", "local[2,4]")


@cache
def processes() -> ProcessPoolExecutor:
    """Return processes that stay, as Spark's workers do: what they have imported, they keep."""
    # A fork would have the threads of a JVM's driver.
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(PROCESSES, mp_context=spawn)


class ProcessRunner:
    """Runs tasks on processes, the heaviest first, as Spark's runner does."""

    parallelism = PROCESSES

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def run(
        self,
        task: Task[D, R],
        descriptors: Sequence[D],
        result: type[R],
        **how: Unpack[RunArguments],
    ) -> list[TaskOutcome[R]]:
        """Run `task` for each descriptor; whatever is no ReefError raises."""
        wire, packed = TaskWire.pack(task, descriptors, result)
        sizes = how.get("weights") or [1] * len(packed)
        order = sorted(range(len(packed)), key=lambda number: -sizes[number])
        running = {
            number: processes().submit(_perform, self._bucket, wire, packed[number])
            for number in order
        }
        return [wire.unpack(running[number].result()) for number in range(len(packed))]


def _perform(bucket: Bucket, wire: TaskWire[Any, Any], payload: bytes) -> bytes:
    return wire.perform(bucket.open(), payload)


class PeakRunner:
    """A runner that keeps the most memory of each task."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.peaks: list[int] = []
        """Bytes, of every task that came back."""

    @property
    def parallelism(self) -> int:
        """How many tasks run side by side."""
        return self._runner.parallelism

    def run(
        self,
        task: Task[D, R],
        descriptors: Sequence[D],
        result: type[R],
        **how: Unpack[RunArguments],
    ) -> list[TaskOutcome[R]]:
        """Run `task` for each descriptor, as the runner within does."""
        outcomes = self._runner.run(task, descriptors, result, **how)
        self.peaks += [outcome.peak_rss_bytes for outcome in outcomes]
        return outcomes


# What verify is measured against.


class Keys(msgspec.Struct, frozen=True):
    """Objects to read."""

    keys: tuple[str, ...]


class ReadBytes(msgspec.Struct, frozen=True):
    """How much there was in them."""

    count: int


def read_objects(context: Context, some: Keys) -> ReadBytes:
    """Read objects, one after the other, and check nothing."""
    return ReadBytes(sum(len(context.store.get(key)) for key in some.keys))
