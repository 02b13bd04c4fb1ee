"""Garbage collection of many namespaces: listing and deleting by tasks.

    small   one task lists, plans, publishes and deletes all of a namespace, as `reef.gc.collect`
            does it; where too much would go, it writes nothing
    large   the driver plans and publishes those, one after the other; tasks delete, in chunks, one
            kind of object after the other, manifests first

Why small namespaces have a way of their own: measured with 200 namespaces of 6 objects, collecting one
takes 13 requests, of which its task makes 11; planned by the driver, the driver would make all of
them, one namespace after the other. One task alone would delete the million objects of a large one
with one process's connections.

The rules, the publishes and their order are `reef.gc`'s own. A chunk may be deleted twice: deleting what
is gone does no harm. Crash points are those of a collection: whatever raises or dies, the next run
goes on. What unfinished writes have left in the bucket is swept once in a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from reef.engine import Context, expire_branch
from reef.errors import ReefError
from reef.gc import DAY_US, CollectionReport, Doomed, collect
from reef.jobs._option_checks import check_positive
from reef.jobs._pass_protocol import Figures, Round, Work
from reef.threads import for_each

if TYPE_CHECKING:
    from reef.jobs._driver import PassRun

_WAVES = 4
"""So many chunks at once for each task that runs side by side."""


class CollectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the work is cut."""

    small_objects: int = 2000
    """Spread a deletion of more objects than this over tasks."""
    task_objects: int = 5000
    """How many objects one task deletes."""

    def check(self) -> None:
        """Raise InvalidInputError for a number that makes no sense."""
        check_positive(self, "task_objects")


class CollectPass:
    """Deletes what nothing needs any more; without `apply`, only finds out what would go.

    Reports come without the names of what goes, of which there may be millions: only counts.
    """

    kind = "gc"

    def __init__(
        self, context: Context, options: CollectOptions | None = None, *, apply: bool
    ) -> None:
        """Raises InvalidInputError for options that make no sense."""
        self._options = options or CollectOptions()
        self._options.check()
        self._apply = apply
        self._turn = context.threads.condition()  # large namespaces go one after the other
        self._is_swept = False

    @property
    def recorded_options(self) -> dict[str, Any] | None:
        """All options; a pass that deletes nothing leaves no record."""
        return {**msgspec.to_builtins(self._options), "apply": True} if self._apply else None

    def work(self, run: PassRun, namespace: str) -> Work[CollectionReport]:
        """Collect one namespace. Raises NotFoundError, UnavailableError, CorruptError."""
        descriptor = SmallCollection(namespace, self._apply, self._options.small_objects)
        (outcome,) = yield Round(collect_small, [descriptor], Collected, [1], "namespaces")
        report: CollectionReport = outcome.returned().report
        if not self._apply:
            return report
        going = sum(tally.objects for tally in report.plan.object_counts if tally.goes)
        if not report.applied and going > self._options.small_objects:
            with self._turn:
                has_expired = report.has_expired
                report = _collect_large(run, namespace, self._options)
                report = replace(report, has_expired=has_expired)
        return self._sweep(run.context, report)

    def figures(self, result: CollectionReport) -> Figures:
        """Return what the record says about one namespace."""
        tallies = result.deleted if result.applied else result.plan.object_counts
        going = [tally for tally in tallies if tally.goes]
        numbers = {
            "objects": sum(tally.objects for tally in going),
            "bytes": sum(tally.bytes for tally in going),
        }
        is_changed = result.applied and (going or result.published)
        generation = result.plan.generation if is_changed else None
        return Figures(numbers, generation, error="; ".join(result.problems))

    def _sweep(self, context: Context, report: CollectionReport) -> CollectionReport:
        """Discard what unfinished writes have left in the bucket, older than a day, once in a pass.

        Time is the store's, as the namespace's newest generation has it. A store that cannot do it
        stops nothing: the report says so.
        """
        if not report.applied:
            return report
        try:
            head = context.chain(report.plan.namespace).load()
            if head is None or not self._claim_sweep():
                return report
            now_us = min(report.plan.now_us, head.published_at_us)
            swept = context.store.sweep(now_us - max(report.plan.grace_us, DAY_US))
            return replace(report, swept=tuple(swept))
        except ReefError as error:
            problem = f"what unfinished writes have left was not swept: {error}"
            return replace(report, problems=(*report.problems, problem))

    def _claim_sweep(self) -> bool:
        """Return True to the first caller: one sweep covers the whole bucket."""
        with self._turn:
            is_first, self._is_swept = not self._is_swept, True
        return is_first


# Small namespaces, all of each by one task.


class SmallCollection(msgspec.Struct, frozen=True):
    """A namespace for one task, if little goes."""

    name: str
    apply: bool
    objects_max: int


class Collected(msgspec.Struct, frozen=True):
    """What was done in it."""

    report: CollectionReport
    """Without the names of what goes."""


def collect_small(context: Context, small: SmallCollection) -> Collected:
    """Collect a namespace; delete nothing if more than `objects_max` objects would go.

    A branch that has expired is dropped first.
    """
    has_expired = expire_branch(context, small.name, apply=small.apply)
    report = _run_collection(context, small.name, apply=small.apply, objects_max=small.objects_max)
    return Collected(replace(_without_names(report), has_expired=has_expired))


def _run_collection(
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


def _without_names(report: CollectionReport) -> CollectionReport:
    plan = report.plan
    return replace(report, plan=replace(plan, doomed=(), slots=None))


# Large ones: planned here, deleted by tasks.


class DeleteChunk(msgspec.Struct, frozen=True):
    """Objects to delete, in any order."""

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


def _collect_large(run: PassRun, name: str, options: CollectOptions) -> CollectionReport:
    def delete(doomed: Iterator[Doomed], _: int, deleted: Callable[[Doomed], None]) -> None:
        # Some at a time: their names are not all in memory at once.
        at_once = options.task_objects * run.parallelism * _WAVES
        while some := list(islice(doomed, at_once)):
            _delete_by_tasks(run, name, some, options.task_objects, deleted)

    return _without_names(_run_collection(run.context, name, apply=True, delete=delete))


def _delete_by_tasks(
    run: PassRun,
    name: str,
    doomed: Sequence[Doomed],
    at_once: int,
    deleted: Callable[[Doomed], None],
) -> None:
    """Delete objects of one kind by tasks. Raises the first error, after all others are done."""
    chunks = [doomed[at : at + at_once] for at in range(0, len(doomed), at_once)]
    descriptors = [DeleteChunk(tuple(one.key for one in chunk)) for chunk in chunks]
    sizes = [len(chunk) for chunk in chunks]
    wanted = Round(delete_chunk, descriptors, DeletedChunk, sizes, "objects")
    outcomes = run.run({name: wanted})[name]
    for chunk, outcome in zip(chunks, outcomes, strict=True):
        if outcome.error is None:
            for one in chunk:
                deleted(one)
    for outcome in outcomes:
        outcome.returned()
