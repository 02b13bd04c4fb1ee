"""What every pass has: where it runs, over which namespaces, how far it is, and what it leaves.

Namespaces go in portions, so that what a killed driver leaves behind (intents, and objects that nothing
names) is bounded. Planning and publishing are a few requests for each: they go side by side.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, TypeVar, cast

from reef.database import Database
from reef.engine import Context
from reef.errors import NotFoundError, ReefError
from reef.jobs._history import NAMESPACES_MAX, NamespaceRecord, PassRecord, State, record_pass
from reef.jobs._tasks import D, InProcess, Outcome, Progress, R, Runner, Task
from reef.threads import for_each
from reef.types import check_namespace, new_ulid

PORTION = 256
"""So many namespaces are planned, run and published together."""
OF_DROPPED = ("verify", "gc")
"""Passes over all namespaces that look at dropped ones too."""
_WIDTH = 16

_log = logging.getLogger("reef")

T = TypeVar("T")
Item = TypeVar("Item")
Namespaces = str | Iterable[str] | None


@dataclass(frozen=True)
class PassProgress:
    """How far a pass is."""

    tasks_done: int
    tasks: int
    """That are known of: more may follow."""
    bytes_done: int
    """About: it goes by the tasks that are done."""
    bytes: int
    """That the tasks known of read; 0 where only they find out."""
    rows: int
    """In what has been published."""
    namespaces: int
    """That are done with; while tasks take namespaces as a whole, about."""
    namespaces_known: int = 0
    """That have been taken up so far, where tasks take them as a whole; else 0."""
    objects_done: int = 0
    objects: int = 0
    """To be deleted, or that were: by the tasks known of."""


@dataclass(frozen=True)
class Work:
    """How much some tasks have to do, as far as it is known before."""

    bytes: int = 0
    objects: int = 0
    namespaces: int = 0


Measure = Callable[[Sequence[Any]], Work]
"""Returns how much the tasks of some descriptors have to do."""

Watch = Callable[[PassProgress], None]
"""Told how far a pass is, perhaps from another thread."""


@dataclass(frozen=True)
class TaskTimes:
    """What the tasks of a pass took."""

    count: int = 0
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    """The most memory that any task's process had."""

    def __add__(self, other: TaskTimes) -> TaskTimes:
        peak = max(self.peak_rss_bytes, other.peak_rss_bytes)
        return TaskTimes(self.count + other.count, self.seconds + other.seconds, peak)


@dataclass(frozen=True)
class NamespaceResult(Generic[T]):
    """What a pass did in one namespace: a result, or the error that ended it there."""

    namespace: str
    result: T | None
    error: ReefError | None = None

    @property
    def outcome(self) -> T | ReefError:
        """The one of the two that there is."""
        return cast(T, self.result) if self.error is None else self.error


@dataclass(frozen=True)
class PassResult(Generic[T]):
    """What a pass did."""

    id: str
    """Under which the bucket keeps its record."""
    kind: str
    namespaces: tuple[NamespaceResult[T], ...]
    records: tuple[NamespaceRecord, ...]
    """The same in short: what its record in the bucket says of each."""
    totals: dict[str, int]
    """Rows, bytes and objects that were read, written, dropped and published."""
    tasks: TaskTimes
    seconds: float

    @property
    def failed(self) -> tuple[NamespaceRecord, ...]:
        """The namespaces in which it, or a part of it, could not be done."""
        return tuple(one for one in self.records if one.state == "failed")


@dataclass(frozen=True)
class Figures:
    """What a result says of itself in the record of its pass."""

    numbers: dict[str, int]
    tasks: TaskTimes
    generation: int | None
    error: str = ""


class Pass:
    """What every pass has: where it runs, over what, and what it leaves."""

    def __init__(
        self,
        db: Database,
        kind: str,
        namespaces: Namespaces,
        runner: Runner | None,
        watch: Watch | None,
        *,
        leaves_record: bool = True,
    ) -> None:
        self._leaves_record = leaves_record
        self.context: Context = db.context()
        self.kind = kind
        self._watch = watch
        self._seen = PassProgress(0, 0, 0, 0, 0, 0)
        self.names, self.about = _named(db, namespaces, dropped=kind in OF_DROPPED)
        self.runner = runner or InProcess(self.context)
        self._begun = self.context.clock.monotonic()
        self._started_at_us = self.context.clock.now_us()

    def progress(self, work: int | Work) -> Progress:
        """Return what to tell of tasks that have about so much to do, in bytes unless said."""
        work = Work(work) if isinstance(work, int) else work
        before = self._seen

        def told(done: int, tasks: int) -> None:
            def share(of: int) -> int:
                return of * done // max(1, tasks)

            self._tell(
                replace(
                    before,
                    tasks_done=before.tasks_done + done,
                    tasks=before.tasks + tasks,
                    bytes_done=before.bytes_done + share(work.bytes),
                    bytes=before.bytes + work.bytes,
                    namespaces=before.namespaces + share(work.namespaces),
                    namespaces_known=before.namespaces_known + work.namespaces,
                    objects_done=before.objects_done + share(work.objects),
                    objects=before.objects + work.objects,
                )
            )

        return told

    def shown(self, measure: Measure) -> Runner:
        """Return a runner whose every run is told of, with as much to do as `measure` says."""
        return _Shown(self, measure)

    def _tell(self, seen: PassProgress) -> None:
        self._seen = seen
        if self._watch is not None:
            self._watch(seen)

    def each(
        self, names: Sequence[str], do: Callable[[str], T], *, width: int = _WIDTH
    ) -> list[NamespaceResult[T]]:
        """Return what `do` returns for each, or its error; side by side where the store can."""
        found: dict[str, NamespaceResult[T]] = {}

        def work(name: str) -> None:
            try:
                found[name] = NamespaceResult(name, do(name))
            except ReefError as error:
                found[name] = NamespaceResult(name, None, error)

        width = min(width, self.context.store.concurrency, len(names))
        for_each(names, work, width=width, threads=self.context.threads)
        return [found[name] for name in names]

    def result(
        self,
        portion: Callable[[Sequence[str]], list[NamespaceResult[T]]],
        figures: Callable[[T], Figures],
        options: dict[str, Any],
    ) -> PassResult[T]:
        """Go over all namespaces, and leave a record."""
        done: list[NamespaceResult[T]] = []
        records: list[tuple[NamespaceRecord, TaskTimes]] = []
        try:
            for names in _portions(self.names, PORTION):
                some = portion(names)
                made = [_record(one, figures) for one in some]
                done += some
                records += made
                rows = self._seen.rows + sum(one.figures.get("rows", 0) for one, _ in made)
                self._tell(replace(self._seen, rows=rows, namespaces=len(done)))
        except BaseException:
            self._keep(self._summed(done, records), options)  # of what was done before
            raise
        result = self._summed(done, records)
        self._keep(result, options)
        return result

    def _summed(
        self,
        done: Sequence[NamespaceResult[T]],
        records: Sequence[tuple[NamespaceRecord, TaskTimes]],
    ) -> PassResult[T]:
        totals: dict[str, int] = {}
        for record, _ in records:
            for name, value in record.figures.items():
                totals[name] = totals.get(name, 0) + value
        return PassResult(
            id=new_ulid(self.context.clock, self.context.rng),
            kind=self.kind,
            namespaces=tuple(done),
            records=tuple(record for record, _ in records),
            totals=totals,
            tasks=sum((times for _, times in records), TaskTimes()),
            seconds=self.context.clock.monotonic() - self._begun,
        )

    def _keep(self, result: PassResult[T], options: dict[str, Any]) -> None:
        """Leave a record of a pass that did something, where passes of its kind do."""
        missing = {
            one.namespace for one in result.namespaces if isinstance(one.error, NotFoundError)
        }
        is_idle = all(r.state == "idle" or r.namespace in missing for r in result.records)
        if is_idle or not self._leaves_record:
            return
        try:
            self._leave(result, options)
        except ReefError as error:  # what was asked for is done
            _log.warning("pass %s is done, but left no record: %s", result.id, error)

    def _leave(self, result: PassResult[T], options: dict[str, Any]) -> None:
        order: tuple[State, ...] = ("failed", "done", "idle")
        busy = [record for record in result.records if record.state != "idle"]
        busy.sort(key=lambda record: order.index(record.state))
        record_pass(
            self.context.store,
            PassRecord(
                id=result.id,
                kind=self.kind,
                author=self.context.author,
                started_at_us=self._started_at_us,
                seconds=round(result.seconds, 3),
                options=options,
                totals=result.totals,
                tasks=result.tasks.count,
                task_seconds=round(result.tasks.seconds, 3),
                task_peak_bytes=result.tasks.peak_rss_bytes,
                states={
                    state: count
                    for state in order
                    if (count := sum(record.state == state for record in result.records))
                },
                namespaces=tuple(busy[:NAMESPACES_MAX]),
            ),
        )


class _Shown:
    """Runs tasks where the pass does, and tells of each run."""

    def __init__(self, run: Pass, measure: Measure) -> None:
        self._run = run
        self._measure = measure

    @property
    def parallelism(self) -> int:
        return self._run.runner.parallelism

    def run(
        self,
        task: Task[D, R],
        descriptors: Sequence[D],
        result: type[R],
        *,
        name: str,
        weights: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> list[Outcome[R]]:
        return self._run.runner.run(
            task,
            descriptors,
            result,
            name=name,
            weights=weights,
            progress=self._run.progress(self._measure(descriptors)),
        )


def _record(
    one: NamespaceResult[T], figures: Callable[[T], Figures]
) -> tuple[NamespaceRecord, TaskTimes]:
    if one.result is None:
        said = f"{type(one.error).__name__}: {one.error}"
        return NamespaceRecord(one.namespace, "failed", error=said), TaskTimes()
    said_of = figures(one.result)
    state: State = "done" if said_of.generation is not None else "idle"
    if said_of.error:
        state = "failed"
    numbers = {name: value for name, value in said_of.numbers.items() if value}
    record = NamespaceRecord(one.namespace, state, said_of.generation, numbers, said_of.error)
    return record, said_of.tasks


def _named(db: Database, namespaces: Namespaces, *, dropped: bool) -> tuple[Iterable[str], str]:
    """Return the namespaces that a pass goes over, and what to call them."""
    if namespaces is None:
        return db.namespaces(dropped=dropped), "all namespaces"
    names = [namespaces] if isinstance(namespaces, str) else list(dict.fromkeys(namespaces))
    for name in names:
        check_namespace(name)
    return names, names[0] if len(names) == 1 else f"{len(names)} namespaces"


def _portions(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    left = iter(items)
    while some := list(islice(left, size)):
        yield some
