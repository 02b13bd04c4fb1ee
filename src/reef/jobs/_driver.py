"""The driver of every pass: portions of namespaces, their tasks run together, and one record.

Namespaces go in portions, so that what a killed driver leaves behind (intents, and objects that nothing
names) is bounded. Planning and publishing are a few requests for each namespace: they go side by side.
An error in one namespace ends the pass there and stops no other. An error that keeps tasks from being
run at all ends the whole pass: each namespace's work ends its intent, and the error is raised.

An interrupt, such as Ctrl-C, ends the whole pass, too. It comes while tasks run, or between two steps of a
namespace's work, never within one: an interrupted publish could leave an intent that nobody ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from reef.engine import Context
from reef.errors import NotFoundError, ReefError
from reef.jobs._by_size import BySize
from reef.jobs._pass_protocol import NamespaceResult, Pass, PassResult, Round, TaskTimes, Work
from reef.jobs._pass_records import NAMESPACES_MAX, NamespaceRecord, PassRecord, State, record_pass
from reef.jobs._progress import Meter, Watch
from reef.jobs._tasks import InProcess, Runner, Task, TaskOutcome
from reef.threads import for_each, run_to_end
from reef.types import new_ulid

PORTION = 256
"""So many namespaces are planned, run and published together."""
_WIDTH = 16

_log = logging.getLogger("reef.jobs")

T = TypeVar("T")


class PassRun:
    """One run of a pass, as the work in each namespace sees it."""

    def __init__(self, context: Context, kind: str, runner: Runner | BySize, meter: Meter) -> None:
        self.context = context
        self._kind = kind
        self._runner = runner
        self._meter = meter

    @property
    def parallelism(self) -> int:
        """How many tasks run side by side."""
        return self._runner.parallelism

    def run(self, rounds: Mapping[str, Round]) -> dict[str, list[TaskOutcome[Any]]]:
        """Run the rounds of some namespaces, those of one kind of task by one runner together."""
        kinds: dict[tuple[Task[Any, Any], Runner], list[str]] = {}
        for name, wanted in rounds.items():
            kinds.setdefault((wanted.task, self._runner_of(wanted)), []).append(name)
        outcomes: dict[str, list[TaskOutcome[Any]]] = {}
        for (_, runner), names in kinds.items():
            about = names[0] if len(names) == 1 else f"{len(names)} namespaces"
            some = [rounds[name] for name in names]
            made = iter(self._run_alike(runner, f"{self._kind} {about}", some))
            for name, wanted in zip(names, some, strict=True):
                outcomes[name] = [next(made) for _ in wanted.descriptors]
        return outcomes

    def _runner_of(self, wanted: Round) -> Runner:
        runner = self._runner
        return runner.pick(wanted.unit, wanted.sizes) if isinstance(runner, BySize) else runner

    def _run_alike(
        self, runner: Runner, name: str, rounds: Sequence[Round]
    ) -> list[TaskOutcome[Any]]:
        first = rounds[0]
        descriptors = [one for wanted in rounds for one in wanted.descriptors]
        sizes = [size for wanted in rounds for size in wanted.sizes]
        if not descriptors:
            return []
        return runner.run(
            first.task,
            descriptors,
            first.result,
            name=name,
            weights=[size + 1 for size in sizes],
            progress=self._meter.begin(len(descriptors), sum(sizes), first.unit),
        )


def run_pass(
    context: Context,
    what: Pass[T],
    names: Iterable[str],
    *,
    runner: Runner | BySize | None = None,
    watch: Watch | None = None,
) -> PassResult[T]:
    """Do a pass over namespaces, and leave a record. Raises what keeps tasks from being run."""
    tracer = context.metrics.tracer
    run = _run_pass if tracer is None else tracer.traced("reef.pass", _run_pass, kind=what.kind)
    return run(context, what, names, runner, watch)


def _run_pass(
    context: Context,
    what: Pass[T],
    names: Iterable[str],
    runner: Runner | BySize | None,
    watch: Watch | None,
) -> PassResult[T]:
    meter = Meter(watch)
    run = PassRun(context, what.kind, runner or InProcess(context), meter)
    ledger = _Ledger(context, what)
    try:
        for some in _portions(names):
            rows = ledger.add(_run_portion(run, {name: what.work(run, name) for name in some}))
            meter.finish_portion(rows, len(ledger.results))
    except BaseException:
        ledger.close()  # what was done before is recorded
        raise
    return ledger.close()


def each_namespace(
    context: Context, names: Sequence[str], do: Callable[[str], T]
) -> list[NamespaceResult[T]]:
    """Return what `do` returns for each name, or its error; side by side where the store can."""
    results: dict[str, NamespaceResult[T]] = {}
    is_called_off = False

    def call(name: str) -> None:
        if is_called_off:
            return
        try:
            results[name] = NamespaceResult(name, do(name))
        except ReefError as error:
            results[name] = NamespaceResult(name, None, error)

    def call_each() -> None:
        width = min(_WIDTH, context.store.concurrency, len(names))
        for_each(names, call, width=width, threads=context.threads)

    def call_off() -> None:
        nonlocal is_called_off
        is_called_off = True

    if names:
        run_to_end(call_each, threads=context.threads, called_off=call_off)
    return [results[name] for name in names]


@dataclass(frozen=True)
class _Done(Generic[T]):
    value: T


def _run_portion(run: PassRun, works: Mapping[str, Work[T]]) -> list[NamespaceResult[T]]:
    """Return what the work in each namespace returns, or its error."""
    done: dict[str, NamespaceResult[T]] = {}
    outcomes: dict[str, list[TaskOutcome[Any]]] = {}
    left: Sequence[str] = [*works]

    def advance(name: str) -> Round | _Done[T]:
        try:
            return works[name].send(outcomes[name]) if name in outcomes else next(works[name])
        except StopIteration as end:
            return _Done(end.value)

    def close(name: str) -> None:
        with suppress(BaseException):
            works[name].close()

    try:
        while left:
            rounds: dict[str, Round] = {}
            for one in each_namespace(run.context, left, advance):
                if isinstance(one.result, Round):
                    rounds[one.namespace] = one.result
                else:
                    value = None if one.result is None else one.result.value
                    done[one.namespace] = NamespaceResult(one.namespace, value, one.error)
            outcomes = run.run(rounds)
            left = [*rounds]
    except BaseException:
        try:
            each_namespace(run.context, [*works], close)
        except BaseException:  # interrupted: some may not be closed yet
            each_namespace(run.context, [*works], close)
            raise
        raise
    return [done[name] for name in works]


class _Ledger(Generic[T]):
    """The results of a pass so far, and its record."""

    def __init__(self, context: Context, what: Pass[T]) -> None:
        self._context = context
        self._what = what
        self._started_at_us = context.clock.now_us()
        self._begun = context.clock.monotonic()
        self._records: list[NamespaceRecord] = []
        self._times = TaskTimes()
        self.results: list[NamespaceResult[T]] = []

    def add(self, results: Sequence[NamespaceResult[T]]) -> int:
        """Take in the results of a portion; return the rows that it published."""
        self.results += results
        made = [self._record(one) for one in results]
        self._records += made
        return sum(one.figures.get("rows", 0) for one in made)

    def close(self) -> PassResult[T]:
        """Return everything together, and leave the record if anything was done."""
        totals: dict[str, int] = {}
        for record in self._records:
            for name, value in record.figures.items():
                totals[name] = totals.get(name, 0) + value
        result = PassResult(
            id=new_ulid(self._context.clock, self._context.rng),
            kind=self._what.kind,
            namespaces=tuple(self.results),
            records=tuple(self._records),
            totals=totals,
            tasks=self._times,
            seconds=self._context.clock.monotonic() - self._begun,
        )
        _log.info(
            "pass %s (%s) over %d namespaces took %.3f s",
            result.id,
            result.kind,
            len(self.results),
            result.seconds,
        )
        missing = {one.namespace for one in self.results if isinstance(one.error, NotFoundError)}
        if any(r.state != "idle" and r.namespace not in missing for r in self._records):
            self._leave(result)
        return result

    def _record(self, one: NamespaceResult[T]) -> NamespaceRecord:
        if one.error is not None:
            error = f"{type(one.error).__name__}: {one.error}"
            return NamespaceRecord(one.namespace, "failed", error=error)
        figures = self._what.figures(one.returned())
        self._times += figures.tasks
        state: State = "idle" if figures.generation is None else "done"
        if figures.error:
            state = "failed"
        numbers = {name: value for name, value in figures.numbers.items() if value}
        return NamespaceRecord(one.namespace, state, figures.generation, numbers, figures.error)

    def _leave(self, result: PassResult[T]) -> None:
        options = self._what.recorded_options
        if options is None:
            return
        order: tuple[State, ...] = ("failed", "done", "idle")
        busy = [record for record in result.records if record.state != "idle"]
        busy.sort(key=lambda record: order.index(record.state))
        states = [record.state for record in result.records]
        record = PassRecord(
            id=result.id,
            kind=result.kind,
            author=self._context.author,
            started_at_us=self._started_at_us,
            seconds=round(result.seconds, 3),
            options=options,
            totals=result.totals,
            tasks=result.tasks.count,
            task_seconds=round(result.tasks.seconds, 3),
            task_peak_bytes=result.tasks.peak_rss_bytes,
            states={state: states.count(state) for state in order if state in states},
            namespaces=tuple(busy[:NAMESPACES_MAX]),
        )
        try:
            record_pass(self._context.store, record)
        except ReefError as error:  # the pass itself is done
            _log.warning("pass %s is done, but its record was not written: %s", result.id, error)


def _portions(names: Iterable[str]) -> Iterator[list[str]]:
    left = iter(names)
    while some := list(islice(left, PORTION)):
        yield some
