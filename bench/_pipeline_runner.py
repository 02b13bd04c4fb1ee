"""Tasks of the pipeline without Spark: the same functions, on two processes of our own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Self, TypeVar

import msgspec

from reef.engine import Context
from reef.jobs import Bucket, Progress, Runner, Task, TaskOutcome, TaskWire

D = TypeVar("D", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

PROCESSES = 2


class Processes:
    """Processes that stay, as Spark's workers do: what they have imported, they keep."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context(
            "spawn"
        )  # a fork would have the threads of a JVM's driver
        self.pool = ProcessPoolExecutor(PROCESSES, mp_context=spawn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()


class ProcessRunner:
    """Runs tasks on processes, the heaviest first, as Spark's runner does."""

    parallelism = PROCESSES

    def __init__(self, processes: Processes, bucket: Bucket) -> None:
        self._pool = processes.pool
        self._bucket = bucket

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
        """Run `task` for each descriptor; whatever is no ReefError raises."""
        wire, packed = TaskWire.pack(task, descriptors, result)
        sizes = weights or [1] * len(packed)
        order = sorted(range(len(packed)), key=lambda place: -sizes[place])
        running = {
            place: self._pool.submit(_perform, self._bucket, wire, packed[place]) for place in order
        }
        return [wire.unpack(running[place].result()) for place in range(len(packed))]


def _perform(bucket: Bucket, wire: TaskWire[Any, Any], payload: bytes) -> bytes:
    return wire.perform(bucket.open(), payload)


class Noted:
    """A runner that notes what each of its tasks took."""

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
        *,
        name: str,
        weights: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> list[TaskOutcome[R]]:
        """Run `task` for each descriptor."""
        outcomes = self._runner.run(
            task, descriptors, result, name=name, weights=weights, progress=progress
        )
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
    """Read objects, one after the other, and look at nothing."""
    return ReadBytes(sum(len(context.store.get(key)) for key in some.keys))
