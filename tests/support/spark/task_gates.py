"""Gates in the way of a pass's own tasks: one of them stops right after it has written a segment.

There is one for frames too, behind the last row of whichever partition comes first.

What happens there is decided by files that are linked into place, once, so that nothing hangs on time:

die     the first attempt kills its executor with -9, and its process goes with it
lag     the first attempt never returns: a second one has to overtake it
lead    the first attempt returns when a second one has written too, and that one never does
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from reef.engine import Context
from reef.jobs import RunArguments, Runner, TaskOutcome
from reef.store import Store
from reef.testing import Operation, WrapperStore
from tests.support.spark.runner_tasks import executor_of
from tests.support.waiting import until

Act = Literal["die", "lag", "lead"]
T = TypeVar("T")


class Arrival(msgspec.Struct, frozen=True):
    """An attempt that has come to a gate."""

    key: str
    """Of the segment that it has written."""
    executor: int
    """The JVM that it runs under."""


@dataclass(frozen=True)
class Gate:
    """A place in one task of a run."""

    act: Act
    folder: str
    name: str

    def arrivals(self) -> list[Arrival]:
        """Return who has come, in that order."""
        here = (Path(self.folder, f"{self.name}-{number}") for number in (1, 2))
        return [
            msgspec.json.decode(path.read_bytes(), type=Arrival) for path in here if path.exists()
        ]

    def pass_through(self, key: str) -> None:
        """Do what the gate is for; return if this attempt may go on."""
        executor = executor_of(os.getpid())
        number = self._arrive(Arrival(key, executor))
        if self.act == "die" and number == 1:
            os.kill(executor, signal.SIGKILL)
        if self.act == "lead" and number == 1:
            until(lambda: len(self.arrivals()) == 2)
        elif number == {"die": 1, "lag": 1, "lead": 2}[self.act]:
            until(lambda: False)  # Spark ends this process, or its executor's end does

    def _arrive(self, arrival: Arrival) -> int:
        mine = Path(self.folder, f"{self.name}.{os.getpid()}")
        mine.write_bytes(msgspec.json.encode(arrival))
        try:
            for number in (1, 2):
                try:
                    os.link(mine, Path(self.folder, f"{self.name}-{number}"))
                except FileExistsError:
                    continue
                return number
        finally:
            mine.unlink()
        return 3


def gated_frame(frame: DataFrame, gate: Gate) -> DataFrame:
    """Return the same rows; the first task that has handed on all of its own comes to the gate."""

    def through(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        gate.pass_through("")

    return frame.mapInArrow(through, frame.schema)


class GatedStore(WrapperStore):
    """Passes on whatever is asked; a gate stands behind every upload of a segment."""

    def __init__(self, inner: Store, gate: Gate) -> None:
        super().__init__(inner)
        self._gate = gate

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        done = call()
        if operation == "upload":
            self._gate.pass_through(key)
        return done


@dataclass(frozen=True)
class GatedTask:
    """A task that has a gate for one of its descriptors."""

    task: Callable[[Context, Any], Any]
    chosen: bytes
    gate: Gate

    def __call__(self, context: Context, descriptor: Any) -> Any:
        if msgspec.msgpack.encode(descriptor) == self.chosen:
            context = replace(context, store=GatedStore(context.store, self.gate))
        return self.task(context, descriptor)


class Gatekeeper:
    """A runner that puts a gate into the next run, if it was told to, and remembers attempts."""

    def __init__(self, runner: Runner, folder: str) -> None:
        self._runner = runner
        self._folder = folder
        self._act: Act | None = None
        self.gate: Gate | None = None
        """The last one."""
        self.attempt = 0
        """Which attempt at the task with the last gate came back."""
        self.runs: dict[str, int] = {}
        """How many tasks each kind of run had, at most."""

    @property
    def parallelism(self) -> int:
        return self._runner.parallelism

    def arm(self, act: Act | None) -> None:
        """Put a gate into the next run that has more than one task."""
        self._act = act

    def run(
        self,
        task: Callable[[Context, Any], Any],
        descriptors: Sequence[Any],
        result: type[Any],
        **how: Unpack[RunArguments],
    ) -> list[TaskOutcome[Any]]:
        chosen, kind = None, how["name"].split(" ")[0]
        if self._act is not None and len(descriptors) > 1:
            chosen = len(descriptors) // 2
            self.gate = Gate(self._act, self._folder, kind)
            packed = msgspec.msgpack.encode(descriptors[chosen])
            task, self._act = GatedTask(task, packed, self.gate), None
        outcomes = self._runner.run(task, descriptors, result, **how)
        if chosen is not None:
            self.attempt = outcomes[chosen].attempt
        self.runs[kind] = max(self.runs.get(kind, 0), len(outcomes))
        return outcomes
