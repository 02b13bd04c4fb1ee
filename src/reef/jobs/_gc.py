"""Garbage collection of many namespaces: listing and deleting by tasks.

    small   a task takes some namespaces, one after the other: lists, plans, publishes and deletes
            each as `reef.gc.collect` does it; where too much would go, it writes nothing
    large   the driver plans and publishes those; tasks delete, in chunks, one kind of object after
            the other, manifests first

The rules, the publishes and their order are `reef.gc`'s own. A chunk may be deleted twice: deleting what
is gone does no harm. Crash points are those of a collection: whatever raises or dies, the next run
goes on. What unfinished writes have left in the bucket is swept at the end, unless told otherwise.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import msgspec

from reef.engine import Context
from reef.errors import InvalidInputError, ReefError
from reef.format import Boundary
from reef.gc import (
    DAY_US,
    CollectionPlan,
    CollectionReport,
    Doomed,
    ObjectCount,
    PinFate,
    Retained,
    collect,
)
from reef.jobs._tasks import Progress, Runner
from reef.threads import for_each
from reef.types import check_namespace

_NAMES_MAX = 256
_WAVES = 4


class CollectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the work is cut."""

    small_objects: int = 2000
    """Spread a deletion of more objects than this over tasks."""
    task_objects: int = 5000
    """How many objects one task deletes."""

    def check(self) -> None:
        """Raise InvalidInputError for a number that makes no sense."""
        if self.task_objects < 1:
            raise InvalidInputError.of("task_objects", self.task_objects, "a number from 1 on")


def collect_all(
    context: Context,
    namespaces: Sequence[str],
    runner: Runner,
    *,
    apply: bool,
    sweep: bool = True,
    progress: Progress | None = None,
    options: CollectOptions | None = None,
) -> list[tuple[str, CollectionReport | ReefError]]:
    """Delete what nothing needs any more; without `apply`, write nothing and tell what would go.

    Return each namespace with what was done, or why it was not; one that fails stops no other. Plans
    come without the names of what goes: only counts. Raises InvalidInputError.
    """
    options = options or CollectOptions()
    options.check()
    names = list(dict.fromkeys(map(check_namespace, namespaces)))
    found = _collect_small(names, runner, options, apply, progress)
    for name in names:
        report = found[name]
        if apply and isinstance(report, CollectionReport) and _is_left(report, options):
            found[name] = _collect_large(context, name, runner, options, progress)
    if apply and sweep:
        _sweep(context, names, found)
    return [(name, found[name]) for name in names]


def _is_left(report: CollectionReport, options: CollectOptions) -> bool:
    """Return whether too much would have gone for one task."""
    goes = sum(tally.objects for tally in report.plan.tallies if tally.goes)
    return not report.applied and goes > options.small_objects


# Small namespaces, wholly by tasks.


class CollectBatch(msgspec.Struct, frozen=True):
    """Namespaces for one task."""

    names: tuple[str, ...]
    apply: bool
    objects_max: int


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """A report on its way, without the names of what goes: there may be millions."""

    namespace: str
    generation: int
    now_us: int
    grace_us: int
    pitr_us: int | None
    boundary: Boundary
    is_raised: bool
    expired: tuple[str, ...]
    pins: tuple[PinFate, ...]
    settled: tuple[str, ...]
    retained: tuple[Retained, ...]
    tallies: tuple[ObjectCount, ...]
    plan_problems: tuple[str, ...]
    applied: bool
    deleted: tuple[ObjectCount, ...]
    published: tuple[int, ...]
    problems: tuple[str, ...]

    @classmethod
    def of(cls, report: CollectionReport) -> Collected:
        """Return what there is to tell of a run."""
        plan = report.plan
        return cls(
            namespace=plan.namespace,
            generation=plan.generation,
            now_us=plan.now_us,
            grace_us=plan.grace_us,
            pitr_us=plan.pitr_us,
            boundary=plan.boundary,
            is_raised=plan.is_raised,
            expired=plan.expired,
            pins=plan.pins,
            settled=plan.settled,
            retained=plan.retained,
            tallies=plan.tallies,
            plan_problems=plan.problems,
            applied=report.applied,
            deleted=report.deleted,
            published=report.published,
            problems=report.problems,
        )

    def report(self) -> CollectionReport:
        """Return what `of` was given, without names."""
        return CollectionReport(
            plan=CollectionPlan(
                namespace=self.namespace,
                generation=self.generation,
                now_us=self.now_us,
                grace_us=self.grace_us,
                pitr_us=self.pitr_us,
                boundary=self.boundary,
                is_raised=self.is_raised,
                expired=self.expired,
                pins=self.pins,
                settled=self.settled,
                retained=self.retained,
                tallies=self.tallies,
                problems=self.plan_problems,
            ),
            applied=self.applied,
            deleted=self.deleted,
            published=self.published,
            problems=self.problems,
        )


class CollectedBatch(msgspec.Struct, frozen=True):
    """What became of each namespace."""

    reports: tuple[Collected | bytes, ...]
    """A pickled error, where there is no report."""


def collect_batch(context: Context, batch: CollectBatch) -> CollectedBatch:
    """Collect some namespaces, but those where too much would go."""
    reports: list[Collected | bytes] = []
    for name in batch.names:
        try:
            report = _collect(context, name, apply=batch.apply, objects_max=batch.objects_max)
            reports.append(Collected.of(report))
        except ReefError as error:
            reports.append(pickle.dumps(error))
    return CollectedBatch(tuple(reports))


def _collect_small(
    names: Sequence[str],
    runner: Runner,
    options: CollectOptions,
    apply: bool,
    progress: Progress | None,
) -> dict[str, CollectionReport | ReefError]:
    at_once = max(1, min(_NAMES_MAX, -(-len(names) // (_WAVES * runner.parallelism))))
    batches = [
        CollectBatch(tuple(names[at : at + at_once]), apply, options.small_objects)
        for at in range(0, len(names), at_once)
    ]
    outcomes = runner.run(
        collect_batch,
        batches,
        CollectedBatch,
        name=f"gc {len(names)} namespaces",
        progress=progress,
    )
    found: dict[str, CollectionReport | ReefError] = {}
    for batch, outcome in zip(batches, outcomes, strict=True):
        if outcome.result is None:
            assert outcome.error is not None
            found.update((name, outcome.error) for name in batch.names)
            continue
        for name, report in zip(batch.names, outcome.result.reports, strict=True):
            # From a process that runs our own code: what it pickled is as trusted as what it wrote.
            found[name] = pickle.loads(report) if isinstance(report, bytes) else report.report()
    return found


def _collect(
    context: Context,
    name: str,
    *,
    apply: bool,
    objects_max: int | None = None,
    delete: Callable[[Iterator[Doomed], int, Callable[[Doomed], None]], None] | None = None,
) -> CollectionReport:
    return collect(
        context.chain(name),
        context.store,
        settings=context.settings,
        clock=context.clock,
        apply=apply,
        metrics=context.metrics,
        threads=context.threads,
        sweep=False,
        objects_max=objects_max,
        delete=delete,
    )


# Large ones: planned here, deleted by tasks.


class DeleteChunk(msgspec.Struct, frozen=True):
    """Objects to delete, whatever order."""

    keys: tuple[str, ...]


class DeletedChunk(msgspec.Struct, frozen=True):
    """All of them are gone."""

    objects: int


def delete_chunk(context: Context, chunk: DeleteChunk) -> DeletedChunk:
    """Delete objects, as many at once as the store takes. Raises UnavailableError."""
    store = context.store
    width = min(store.concurrency, len(chunk.keys))
    for_each(chunk.keys, store.delete, width=width, threads=context.threads)
    return DeletedChunk(len(chunk.keys))


def _collect_large(
    context: Context,
    name: str,
    runner: Runner,
    options: CollectOptions,
    progress: Progress | None,
) -> CollectionReport | ReefError:
    def delete(doomed: Iterator[Doomed], count: int, deleted: Callable[[Doomed], None]) -> None:
        # Some at a time: their names are not all held at once.
        at_once = options.task_objects * runner.parallelism * _WAVES
        while some := list(islice(doomed, at_once)):
            _delete(some, name, runner, options, deleted, progress)

    try:
        return Collected.of(_collect(context, name, apply=True, delete=delete)).report()
    except ReefError as error:
        return error


def _delete(
    doomed: Sequence[Doomed],
    name: str,
    runner: Runner,
    options: CollectOptions,
    deleted: Callable[[Doomed], None],
    progress: Progress | None,
) -> None:
    """Delete objects of one kind by tasks. Raises the first error, when all others are through."""
    step = options.task_objects
    chunks = [doomed[at : at + step] for at in range(0, len(doomed), step)]
    outcomes = runner.run(
        delete_chunk,
        [DeleteChunk(tuple(one.key for one in chunk)) for chunk in chunks],
        DeletedChunk,
        name=f"gc {name}: {doomed[0].kind}",
        weights=[len(chunk) for chunk in chunks],
        progress=progress,
    )
    for chunk, outcome in zip(chunks, outcomes, strict=True):
        if outcome.error is None:
            for one in chunk:
                deleted(one)
    for outcome in outcomes:
        outcome.returned()


def _sweep(
    context: Context, names: Sequence[str], found: dict[str, CollectionReport | ReefError]
) -> None:
    """Discard what unfinished writes have left in the bucket: nothing younger than a day.

    It is told with the first namespace that was collected. Time is the store's, as its newest
    generation has it. A store that cannot do it does not stop anybody.
    """
    for name in names:
        report = found[name]
        if not isinstance(report, CollectionReport) or not report.applied:
            continue
        try:
            head = context.chain(name).load()
            if head is None:
                continue
            now_us = min(report.plan.now_us, head.published_at_us)
            swept = context.store.sweep(now_us - max(report.plan.grace_us, DAY_US))
            found[name] = replace(report, swept=tuple(swept))
        except ReefError as error:
            problem = f"what unfinished writes have left was not swept: {error}"
            found[name] = replace(report, problems=(*report.problems, problem))
        return
