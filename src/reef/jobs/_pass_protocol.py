"""What a pass is: its work in one namespace, and what comes of it.

The work is a generator. It plans until its first `yield`; each `yield` asks for a round of tasks and
gets their outcomes back; it publishes between rounds and returns its result at the end. So the driver
(`run_pass`) runs the rounds of many namespaces together, and one pass calls another's work with
`yield from`. Work that is closed, or whose tasks cannot be run, ends its intent before it leaves.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from reef.errors import ReefError
from reef.jobs._pass_records import NamespaceRecord
from reef.jobs._progress import Unit
from reef.jobs._tasks import Task, TaskOutcome

if TYPE_CHECKING:
    from reef.jobs._driver import PassRun

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Round:
    """Tasks of one kind that a namespace needs run next."""

    task: Task[Any, Any]
    descriptors: Sequence[msgspec.Struct]
    result: type[msgspec.Struct]
    sizes: Sequence[int]
    """About how much each of them has to do."""
    unit: Unit = "bytes"
    """What `sizes` counts: bytes to read, objects to delete, or namespaces to go through."""


Work: TypeAlias = Generator[Round, list[TaskOutcome[Any]], T]


class Timed(Protocol):
    """What is known of one task that ran."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        ...

    @property
    def peak_rss_bytes(self) -> int:
        """The most memory that its process had."""
        ...


@dataclass(frozen=True)
class TaskTimes:
    """What the tasks of a pass took."""

    count: int = 0
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    """The most memory that any task's process had."""

    @staticmethod
    def of(tasks: Iterable[Timed]) -> TaskTimes:
        """Return what some tasks took together."""
        return sum((TaskTimes(1, task.seconds, task.peak_rss_bytes) for task in tasks), TaskTimes())

    def __add__(self, other: TaskTimes) -> TaskTimes:
        peak = max(self.peak_rss_bytes, other.peak_rss_bytes)
        return TaskTimes(self.count + other.count, self.seconds + other.seconds, peak)


@dataclass(frozen=True)
class Figures:
    """What the record of a pass says about the result in one namespace."""

    numbers: dict[str, int]
    """Rows, bytes and objects by name."""
    generation: int | None
    """The last one that was published; None: nothing was."""
    tasks: TaskTimes = TaskTimes()
    error: str = ""
    """What could not be done, if that did not end the work."""


class Pass(Protocol[T]):
    """One kind of pass, with its options."""

    @property
    def kind(self) -> str:
        """Its name, in records and in the names of runs."""
        ...

    @property
    def recorded_options(self) -> dict[str, Any] | None:
        """What its record says about its options; None: it leaves no record."""
        ...

    def work(self, run: PassRun, namespace: str) -> Work[T]:
        """Do the pass in one namespace. Raises ReefError if it cannot be done there."""
        ...

    def figures(self, result: T) -> Figures:
        """Return what a result says for the record."""
        ...


@dataclass(frozen=True)
class NamespaceResult(Generic[T_co]):
    """What a pass did in one namespace: a result, or the error that ended it there."""

    namespace: str
    result: T_co | None
    error: ReefError | None = None

    @property
    def outcome(self) -> T_co | ReefError:
        """The result, or else the error."""
        return self.result if self.error is None else self.error  # type: ignore[return-value]

    def returned(self) -> T_co:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # one of the two is there


@dataclass(frozen=True)
class PassResult(Generic[T_co]):
    """What a pass did."""

    id: str
    """The bucket keeps its record under this id."""
    kind: str
    namespaces: tuple[NamespaceResult[T_co], ...]
    records: tuple[NamespaceRecord, ...]
    """The same in short, as its record in the bucket has it."""
    totals: dict[str, int]
    """Rows, bytes and objects by name, of all namespaces together."""
    tasks: TaskTimes
    seconds: float

    @property
    def failed(self) -> tuple[NamespaceRecord, ...]:
        """The namespaces in which the pass, or a part of it, could not be done."""
        return tuple(one for one in self.records if one.state == "failed")
