"""Passes that rewrite: index and compact, over some namespaces of a bucket, or over all of them.

Many namespaces share one run of tasks, and one that is sick stands in the result with its error while
the others go on.

    result = index(db)                                  every namespace, on the running Spark session
    result = compact(db, ["orders"], options=CompactionOptions(full=True))
    for one in result.namespaces: print(one.namespace, one.result or one.error)

Each pass leaves a record in the bucket: see `_history`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import msgspec

from reef.database import Database
from reef.errors import InvalidInputError, OutcomeUnknownError, ReefError
from reef.jobs._compaction._compact import Compaction, begin_compaction
from reef.jobs._compaction._compact import compact as compact_namespace
from reef.jobs._compaction._options import CompactionOptions
from reef.jobs._compaction._plan import CompactionPlan, Group, plan_compaction
from reef.jobs._compaction._result import CompactionResult, GroupResult
from reef.jobs._compaction._task import MergedRange, merge_range
from reef.jobs._fold._index import IndexPlan, IndexResult, finish_index, plan_index, run_parts
from reef.jobs._fold._plan import Backlog, IndexOptions
from reef.jobs._pass import (
    Figures,
    NamespaceResult,
    Namespaces,
    Pass,
    PassResult,
    TaskTimes,
    Watch,
)
from reef.jobs._tasks import Outcome, Runner


def index(
    db: Database,
    namespaces: Namespaces = None,
    *,
    runner: Runner | None = None,
    options: IndexOptions | None = None,
    watch: Watch | None = None,
) -> PassResult[IndexResult]:
    """Fold the log of namespaces (None: all) into level-0 segments.

    Tasks run by `runner`, by default in this process, one after the other; `reef.spark.spark_runner`
    runs them on Spark. An error of one namespace is in the result. Raises InvalidInputError, UnavailableError.
    """
    options = options or IndexOptions()
    options.check()
    run = Pass(db, "index", namespaces, runner, watch)

    def portion(names: Sequence[str]) -> list[NamespaceResult[IndexResult]]:
        plans: list[IndexPlan] = []

        def plan(name: str) -> IndexPlan | None:
            made = plan_index(run.context, name, options)
            if made is not None:
                plans.append(made)
            return made

        try:
            planned = run.each(names, plan)
            size = sum(plan.log_bytes for plan in plans)
            outcomes = run_parts(plans, run.runner, run.progress(size)) if plans else []
        except OutcomeUnknownError:
            raise
        except BaseException:
            run.each([plan.namespace for plan in plans], _giving_up(plans))
            raise
        made = {plan.namespace: (plan, some) for plan, some in zip(plans, outcomes, strict=True)}

        def finish(name: str) -> IndexResult:
            plan, some = made[name]
            return finish_index(run.context, plan, some, run.runner)

        done = {one.namespace: one for one in run.each(list(made), finish)}
        return [
            done.get(one.namespace)
            or NamespaceResult(
                one.namespace, None if one.error else IndexResult(one.namespace), one.error
            )
            for one in planned
        ]

    return run.result(portion, _index_figures, msgspec.to_builtins(options))


def compact(
    db: Database,
    namespaces: Namespaces = None,
    *,
    runner: Runner | None = None,
    options: CompactionOptions | None = None,
    plan: CompactionPlan | None = None,
    watch: Watch | None = None,
) -> PassResult[CompactionResult]:
    """Merge the segments of namespaces (None: all) where it is worth it.

    By `plan`, if one was made before; it is of one namespace. The rest is as `index` says.
    """
    if plan is not None:
        if options is not None or namespaces not in (None, plan.namespace, [plan.namespace]):
            raise InvalidInputError.of(
                "plan", plan.namespace, "given without options, and for its own namespace"
            )
        namespaces = plan.namespace
    options = plan.options if plan is not None else options or CompactionOptions()
    run = Pass(db, "compact", namespaces, runner, watch)

    def portion(names: Sequence[str]) -> list[NamespaceResult[CompactionResult]]:
        working: list[_Compacting] = []

        def begin(name: str) -> _Compacting | None:
            chosen = plan or plan_compaction(run.context, name, options)
            if chosen is None or not chosen.groups:
                return None
            working.append(_Compacting(begin_compaction(run.context, chosen)))
            return working[-1]

        try:
            begun = run.each(names, begin)
            while any(one.left for one in working):
                _merge_some(run, working)
        except BaseException:
            run.each([one.namespace for one in working], _ending(working))
            raise
        states = {one.namespace: one for one in working}

        def finish(name: str) -> CompactionResult:
            return states[name].finish(run, options)

        done = {one.namespace: one for one in run.each(list(states), finish)}
        nothing = CompactionResult("", (), None, (), ())
        return [
            done.get(one.namespace)
            or NamespaceResult(
                one.namespace,
                None if one.error else msgspec.structs.replace(nothing, namespace=one.namespace),
                one.error,
            )
            for one in begun
        ]

    return run.result(portion, _compact_figures, msgspec.to_builtins(options))


def preview_index(
    db: Database, namespaces: Namespaces = None, *, options: IndexOptions | None = None
) -> list[NamespaceResult[Backlog]]:
    """Return what `index` would fold of each namespace. Writes nothing, and needs no Spark."""
    options = options or IndexOptions()
    options.check()
    run = Pass(db, "index", namespaces, None, None)
    return run.each(
        list(run.names), lambda name: Backlog.find(run.context, run.context.chain(name))
    )


def preview_compaction(
    db: Database, namespaces: Namespaces = None, *, options: CompactionOptions | None = None
) -> list[NamespaceResult[CompactionPlan | None]]:
    """Return what `compact` would rewrite of each namespace: None if it is fine as it is."""
    run = Pass(db, "compact", namespaces, None, None)
    return run.each(list(run.names), lambda name: plan_compaction(run.context, name, options))


def _giving_up(plans: Sequence[IndexPlan]) -> Callable[[str], None]:
    by_name = {plan.namespace: plan for plan in plans}
    return lambda name: by_name[name].give_up()


class _Compacting:
    """A compaction of one namespace, under way among others."""

    def __init__(self, compaction: Compaction) -> None:
        self.compaction = compaction
        self.namespace = compaction.plan.namespace
        self.left = list(compaction.plan.groups)
        self.results: list[GroupResult] = []
        self.error: ReefError | None = None

    def next_groups(self) -> list[Group]:
        """Return the groups that are merged next."""
        at_once = self.compaction.plan.options.max_concurrent_file_group_rewrites
        some, self.left = self.left[:at_once], self.left[at_once:]
        return some

    def finish_groups(self, groups: Sequence[tuple[Group, Sequence[Outcome[MergedRange]]]]) -> None:
        """Publish groups; what goes wrong ends the compaction of this namespace alone."""
        try:
            for at, (group, outcomes) in enumerate(groups, 1):
                is_last = not self.left and at == len(groups)
                self.results.append(self.compaction.finish_group(group, outcomes, is_last=is_last))
        except ReefError as error:
            self.error, self.left = error, []

    def finish(self, run: Pass, options: CompactionOptions) -> CompactionResult:
        """End the intent where it stands, and go on alone if the plan was overtaken."""
        if not isinstance(self.error, OutcomeUnknownError):
            self.compaction.end()
        if self.error is not None:
            raise self.error
        plan = self.compaction.plan
        result = CompactionResult(
            self.namespace,
            (self.compaction.job.id,),
            self.compaction.floor_lsn,
            tuple(self.results),
            plan.skipped,
        )
        is_stale = any(group.state == "stale" for group in self.results)
        if not is_stale and (not plan.is_partial or result.failed):
            return result
        more = compact_namespace(run.context, self.namespace, run.runner, options=options)
        return CompactionResult(
            self.namespace,
            (*result.jobs, *more.jobs),
            more.floor_lsn or result.floor_lsn,
            (*result.groups, *more.groups),
            more.skipped,
        )


def _merge_some(run: Pass, working: Sequence[_Compacting]) -> None:
    """Merge and publish the next groups of each namespace, all in one run of tasks."""
    chosen = [(one, group) for one in working for group in one.next_groups()]
    tasks = [one.compaction.tasks(group) for one, group in chosen]
    flat = list(chain.from_iterable(tasks))
    outcomes = iter(
        run.runner.run(
            merge_range,
            flat,
            MergedRange,
            name=f"compact {run.about}",
            weights=[task.bytes_in for task in flat],
            progress=run.progress(sum(task.bytes_in for task in flat)),
        )
        if flat
        else ()
    )
    made: dict[str, list[tuple[Group, list[Outcome[MergedRange]]]]] = {}
    for (one, group), few in zip(chosen, tasks, strict=True):
        some = [next(outcomes) for _ in few]
        made.setdefault(one.namespace, []).append((group, some))
    by_name = {one.namespace: one for one in working}
    run.each(list(made), lambda name: by_name[name].finish_groups(made[name]))


def _ending(working: Sequence[_Compacting]) -> Callable[[str], None]:
    by_name = {one.namespace: one for one in working}
    return lambda name: by_name[name].compaction.end()


def _index_figures(result: IndexResult) -> Figures:
    times = [TaskTimes(1, task.seconds, task.peak_rss_bytes) for task in result.tasks]
    numbers = {
        "rows": result.rows,
        "log_objects": result.slot_last - result.slot_first + 1 if result.slot_last else 0,
        "bytes_in": result.log_bytes,
        "bytes_out": result.segment_bytes,
        "segments": len(result.segments),
        "attached": len(result.attached),
    }
    return Figures(numbers, sum(times, TaskTimes()), result.generation)


def _compact_figures(result: CompactionResult) -> Figures:
    tasks = [task for group in result.groups for task in group.tasks]
    times = [TaskTimes(1, task.seconds, task.peak_rss_bytes) for task in tasks]
    published = result.published
    numbers = {
        "rows_in": result.rows_in,
        "rows": result.rows_out,
        "dropped": result.rows_in - result.rows_out,
        "bytes_in": result.bytes_in,
        "bytes_out": result.bytes_out,
        "replaced": sum(len(group.inputs) for group in published),
        "segments": sum(len(group.outputs) for group in published),
        "moved": sum(len(group.moved) for group in published),
        "groups": len(published),
    }
    generation = max((group.generation or 0 for group in published), default=0) or None
    error = "; ".join(dict.fromkeys(group.error for group in result.failed))
    return Figures(numbers, sum(times, TaskTimes()), generation, error)
