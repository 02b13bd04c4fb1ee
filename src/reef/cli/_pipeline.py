"""`reef index`, `compact` and `rebuild`: passes that rewrite, on Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli._bucket import PROBLEM, AsJson, Scope, Url, connect
from reef.cli._output import key_text, print_json, print_table, size_text
from reef.cli._parameters import derived
from reef.cli._pass import DryRun, RunnerOptions, tell, watched
from reef.errors import InvalidInputError, NotFoundError, StalePlanError

if TYPE_CHECKING:
    from reef.database import Database
    from reef.doctor import RebuildPlan
    from reef.jobs import (
        Backlog,
        CompactionOptions,
        CompactionPlan,
        CompactionResult,
        IndexOptions,
        NamespaceResult,
        PassResult,
        RebuildOptions,
    )


@derived("IndexOptions", memory_bytes="--memory")
def index(
    url: Url,
    scope: Scope,
    options: IndexOptions,
    runs: RunnerOptions,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Fold the log into sorted segments, so that opening and reading replay less of it.

    Safe to run beside writers and readers. Exit code 2: it failed in some namespace.
    """
    from reef import jobs

    with connect(url) as db:
        names = scope.names(db)
        if dry_run:
            found = jobs.preview_index(db, names, options=options)
            _show_backlogs(found, options, as_json)
            return
        runner = runs.runner(db.context())
        with watched("index", db.context().clock) as watch:
            result = jobs.index(db, names, runner=runner, options=options, watch=watch)
        tell(result, as_json, db.store.url)


@derived(
    "CompactionOptions",
    target_file_size_bytes="--target-size",
    max_concurrent_file_group_rewrites="--concurrency",
    max_file_group_size_bytes="--group-size",
    raise_floor="--keep-floor",
    memory_bytes="--memory",
)
def compact(
    url: Url,
    scope: Scope,
    options: CompactionOptions,
    runs: RunnerOptions,
    dry_run: DryRun = False,
    save_plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --dry-run: write the plan to this file, as JSON."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Run a plan that --save-plan wrote, with the plan's own options."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Merge segments, and drop versions that nobody can read any more.

    Safe to run beside writers and readers. A second compaction of a namespace ends the first.
    Exit code 2: it failed in some namespace.
    """
    from reef import jobs

    kept = None if plan is None else _read_plan(plan, scope.namespace)
    if save_plan is not None and not (dry_run and scope.namespace is not None and plan is None):
        raise InvalidInputError(
            f"--save-plan {str(save_plan)!r} needs --dry-run and one namespace, without --plan"
        )
    with connect(url) as db:
        names = scope.names(db)
        if dry_run:
            if kept is None:
                found = jobs.preview_compaction(db, names, options=options)
            else:
                found = [_looked_up(db, kept)]
            _show_plans(found, as_json, save_plan)
        else:
            _compact(db, names, runs, None if kept else options, kept, as_json)


def _compact(
    db: Database,
    names: list[str] | None,
    runs: RunnerOptions,
    options: CompactionOptions | None,
    plan: CompactionPlan | None,
    as_json: bool,
) -> None:
    """Compact by options, or by a plan that was kept."""
    from reef import jobs

    runner = runs.runner(db.context())
    with watched("compact", db.context().clock) as watch:
        result = jobs.compact(db, names, runner=runner, options=options, plan=plan, watch=watch)
    if plan is not None:
        _tell_stale(result)
    tell(result, as_json, db.store.url)
    if not as_json:
        for one in result.namespaces:
            for said in () if one.result is None else one.result.skipped:
                print(f"{one.namespace}: left: {said}")


@derived("RebuildOptions", memory_bytes="--memory", omit=("min_slots", "min_bytes"))
def rebuild(
    url: Url,
    scope: Scope,
    options: RebuildOptions,
    runs: RunnerOptions,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make everything that is derived from the log again, with equal content.

    Folds the log again from the oldest point where it is provably complete, checks every block of
    the segments that stay, and publishes one manifest. Exit code 2: the content would differ in
    some namespace, and nothing was changed there.
    """
    from reef import jobs

    with connect(url) as db:
        names = scope.names(db)
        if dry_run:
            found = jobs.preview_rebuild(db, names, options=options)
            _show_rebuilds(found, options, as_json)
            return
        runner = runs.runner(db.context())
        with watched("rebuild", db.context().clock) as watch:
            result = jobs.rebuild(db, names, runner=runner, options=options, watch=watch)
        tell(result, as_json, db.store.url)
        if not as_json:
            for one in result.namespaces:
                for said in () if one.result is None else one.result.passed_by:
                    print(f"{one.namespace}: {said}")


def _show_backlogs(
    found: list[NamespaceResult[Backlog]], options: IndexOptions, as_json: bool
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "namespace": one.namespace,
            "slot_first": one.result.manifest.wal_floor,
            "slot_last": one.result.slot_last,
            "bytes": sum(one.result.sizes),
            "tasks": len(list(one.result.parts("plan", options))),
        }
        for one in found
        if one.result is not None and one.result.is_worth(options)
    ]
    lines = ((*list(row.values())[:3], size_text(row["bytes"]), row["tasks"]) for row in rows)
    _show_preview(
        found,
        {"pass": "index", "dry_run": True, "namespaces": rows},
        ("namespace", "first slot", "last slot", "log", "tasks"),
        lines,
        [f"{len(rows)} of {len(found)} namespaces would be folded; nothing was written"],
        as_json,
    )


def _show_plans(
    found: list[NamespaceResult[CompactionPlan | None]], as_json: bool, save_plan: Path | None
) -> None:
    import msgspec

    plans = [one.result for one in found if one.result is not None]
    if save_plan is not None and plans:
        try:
            save_plan.write_bytes(msgspec.json.format(msgspec.json.encode(plans[0])))
        except OSError as error:
            raise InvalidInputError(
                f"--save-plan {str(save_plan)!r} cannot be written: {error.strerror}"
            ) from error
    notes = [f"{plan.namespace}: left: {said}" for plan in plans for said in plan.skipped]
    notes.append(f"{len(plans)} of {len(found)} namespaces would be compacted; nothing was written")
    if save_plan is not None and not plans and not any(one.error for one in found):
        notes.append("nothing to compact; no plan was written")
    _show_preview(
        found,
        {"pass": "compact", "dry_run": True, "plans": [msgspec.to_builtins(one) for one in plans]},
        ("namespace", "group", "segments", "moved", "reads", "tasks", "first key", "because"),
        (
            (
                plan.namespace,
                group.number,
                len(group.inputs),
                len(group.moves),
                size_text(group.bytes_in),
                len(group.ranges),
                key_text(group.ranges[0].start, 24) if group.ranges else "",
                group.reason,
            )
            for plan in plans
            for group in plan.groups
        ),
        notes,
        as_json,
    )


def _looked_up(db: Database, plan: CompactionPlan) -> NamespaceResult[CompactionPlan | None]:
    """Return a plan that was kept, and say if it is stale."""
    from reef.jobs import NamespaceResult, check_plan

    head = db.context().chain(plan.namespace).load()
    if head is None or head.manifest.state != "live":
        gone = NotFoundError(f"there is no namespace {plan.namespace!r}")
        return NamespaceResult(plan.namespace, None, gone)
    try:
        check_plan(head.manifest, plan)
    except StalePlanError:
        _say_stale(plan.namespace, "its segments are gone; a new plan would be made")
    return NamespaceResult(plan.namespace, plan)


def _say_stale(namespace: str, why: str) -> None:
    print(f"reef: {namespace}: the plan is stale: {why}", file=sys.stderr)


def _tell_stale(result: PassResult[CompactionResult]) -> None:
    """Report which part of a saved plan is stale."""
    for one in result.namespaces:
        stale = [] if one.result is None else [g for g in one.result.groups if g.state == "stale"]
        for group in stale[:1]:
            _say_stale(one.namespace, f"a new plan was made; {group.error}")


def _show_rebuilds(
    found: list[NamespaceResult[RebuildPlan]], options: RebuildOptions, as_json: bool
) -> None:
    rows = [_rebuild_row(one.result, options) for one in found if one.result is not None]
    folded = sum(row["tasks"] > 0 for row in rows)
    notes = [f"{row['namespace']}: {said}" for row in rows for said in row["passed_by"]]
    notes.append(
        f"{folded} of {len(found)} namespaces would be rebuilt, {len(rows) - folded} only checked; "
        "nothing was written"
    )
    _show_preview(
        found,
        {"pass": "rebuild", "dry_run": True, "namespaces": rows},
        ("namespace", "first slot", "last slot", "log", "tasks", "replaced", "kept", "to check"),
        (
            (
                *list(row.values())[:3],
                size_text(row["bytes"]),
                *list(row.values())[4:7],
                size_text(row["bytes_kept"]),
            )
            for row in rows
        ),
        notes,
        as_json,
    )


def _rebuild_row(plan: RebuildPlan, options: RebuildOptions) -> dict[str, Any]:
    from reef.jobs import Backlog

    start = plan.lowest
    sizes = plan.sizes(start)
    kept = {ref.id: ref.size for ref in start.kept}
    return {
        "namespace": plan.head.namespace,
        "slot_first": start.slot if sizes else None,
        "slot_last": plan.head.wal_floor - 1 if sizes else None,
        "bytes": sum(sizes),
        "tasks": len([*Backlog(start.base, sizes).parts("plan", options.fold)]) if sizes else 0,
        "replaced": len({ref.id for ref in start.replaced}),
        "kept": len(kept),
        "bytes_kept": sum(kept.values()),
        "passed_by": list(plan.passed_by),
    }


def _show_preview(
    found: Sequence[NamespaceResult[Any]],
    report: dict[str, Any],
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    notes: Sequence[str],
    as_json: bool,
) -> None:
    """Print what a pass would do. Exits with 2 if some namespace could not be planned."""
    failed = {one.namespace: str(one.error) for one in found if one.error is not None}
    if as_json:
        print_json({**report, "failed": failed})
    else:
        print_table(columns, rows)
        for line in (*notes, *(f"{name}: {error}" for name, error in failed.items())):
            print(line)
    if failed:
        raise typer.Exit(PROBLEM)


def _read_plan(path: Path, namespace: str | None) -> CompactionPlan:
    import msgspec

    from reef.jobs import CompactionPlan

    try:
        plan = msgspec.json.decode(path.read_bytes(), type=CompactionPlan)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInputError(
            f"--plan {str(path)!r} is not a file that --save-plan made: {error}"
        ) from error
    if plan.namespace != namespace:
        raise InvalidInputError(
            f"--plan {str(path)!r} is for namespace {plan.namespace!r}: give that "
            "NAMESPACE, or another plan"
        )
    return plan
