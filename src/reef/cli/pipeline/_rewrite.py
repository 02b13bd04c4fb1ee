"""`reef index`, `compact` and `rebuild`: passes that rewrite, on Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli import visible
from reef.cli._report import Report, Table, key_text, size_text
from reef.cli.arguments import Scope, Url, connect, derived
from reef.cli.pipeline._run_pass import (
    DryRun,
    RunnerOptions,
    pass_report,
    preview_report,
    run_watched,
)
from reef.errors import InvalidInputError, NotFoundError, StalePlanError

if TYPE_CHECKING:
    from reef.database import Database
    from reef.doctor import RebuildPlan
    from reef.jobs import (
        CompactionOptions,
        CompactionPlan,
        CompactionResult,
        IndexOptions,
        NamespaceResult,
        PassResult,
        RebuildOptions,
        UnfoldedLog,
    )


@derived("reef.jobs.IndexOptions")
def index(
    url: Url,
    scope: Scope,
    options: IndexOptions,
    runs: RunnerOptions,
    dry_run: DryRun = False,
) -> Report:
    """Fold the log into sorted segments.

    Opening and reading a namespace then replay less of the log.

    Safe to run beside writers and readers. Exit code 2: it failed in some namespace.
    """
    from reef import jobs

    with connect(url) as db:
        names = scope.names(db)
        if dry_run:
            return _unfolded_logs(jobs.preview_index(db, names, options=options), options)
        result = run_watched("index", jobs.index, db, names, runs=runs, options=options)
        return pass_report(db.store.url, result)


@derived("reef.jobs.CompactionOptions")
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
) -> Report:
    """Merge segments, and drop versions that nobody can read.

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
                return _plans(jobs.preview_compaction(db, names, options=options), save_plan)
            return _plans([_looked_up(db, kept)], None)
        arguments: dict[str, Any] = {"options": options} if kept is None else {"plan": kept}
        result = run_watched("compact", jobs.compact, db, names, runs=runs, **arguments)
        if kept is not None:
            _tell_stale(result)
        return pass_report(db.store.url, result, *_notes(result.namespaces, "skipped", "left: "))


@derived("reef.jobs.RebuildOptions", omit=("min_slots", "min_bytes"))
def rebuild(
    url: Url,
    scope: Scope,
    options: RebuildOptions,
    runs: RunnerOptions,
    dry_run: DryRun = False,
) -> Report:
    """Derive everything from the log again, with equal content.

    Folds the log again from the oldest point where it is provably complete, checks every block of
    the segments that stay, and publishes one manifest. Exit code 2: the content would differ in
    some namespace, and nothing was changed there.
    """
    from reef import jobs

    with connect(url) as db:
        names = scope.names(db)
        if dry_run:
            return _rebuilds(jobs.preview_rebuild(db, names, options=options), options)
        result = run_watched("rebuild", jobs.rebuild, db, names, runs=runs, options=options)
        notes = _notes(result.namespaces, "passed_by")
        notes += _notes(result.namespaces, "unproven", "not proved: ")
        return pass_report(db.store.url, result, *notes)


def _notes(found: Iterable[NamespaceResult[Any]], field: str, prefix: str = "") -> list[str]:
    """Return what plans or results say in a field."""
    return [
        f"{one.namespace}: {prefix}{note}"
        for one in found
        if one.result is not None
        for note in getattr(one.result, field)
    ]


def _unfolded_logs(found: list[NamespaceResult[UnfoldedLog]], options: IndexOptions) -> Report:
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
    return preview_report(
        found,
        {"pass": "index", "dry_run": True, "namespaces": rows},
        Table.of(rows, "to fold"),
        f"{len(rows)} of {len(found)} namespaces would be folded; nothing was written",
    )


def _plans(found: list[NamespaceResult[CompactionPlan | None]], save_plan: Path | None) -> Report:
    import msgspec

    plans = [one.result for one in found if one.result is not None]
    if save_plan is not None and plans:
        try:
            save_plan.write_bytes(msgspec.json.format(msgspec.json.encode(plans[0])))
        except OSError as error:
            raise InvalidInputError(
                f"--save-plan {str(save_plan)!r} cannot be written: {error.strerror}"
            ) from error
    notes = _notes(found, "skipped", "left: ")
    notes.append(f"{len(plans)} of {len(found)} namespaces would be compacted; nothing was written")
    if save_plan is not None and not plans and not any(one.error for one in found):
        notes.append("nothing to compact; no plan was written")
    columns = ("namespace", "group", "segments", "moved", "reads", "tasks", "first key", "because")
    rows = (
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
    )
    data = {
        "pass": "compact",
        "dry_run": True,
        "plans": [msgspec.to_builtins(one) for one in plans],
    }
    return preview_report(found, data, Table(columns, rows), *notes)


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
    print(visible(f"reef: {namespace}: the plan is stale: {why}"), file=sys.stderr)


def _tell_stale(result: PassResult[CompactionResult]) -> None:
    """Report which part of a saved plan is stale."""
    for one in result.namespaces:
        stale = [] if one.result is None else [g for g in one.result.groups if g.state == "stale"]
        for group in stale[:1]:
            _say_stale(one.namespace, f"a new plan was made; {group.error}")


def _rebuilds(found: list[NamespaceResult[RebuildPlan]], options: RebuildOptions) -> Report:
    rows = [_rebuild_row(one.result, options) for one in found if one.result is not None]
    folded = sum(row["tasks"] > 0 for row in rows)
    notes = _notes(found, "passed_by")
    notes.append(
        f"{folded} of {len(found)} namespaces would be rebuilt, {len(rows) - folded} only checked; "
        "nothing was written"
    )
    data = {"pass": "rebuild", "dry_run": True, "namespaces": rows}
    table_rows = [{name: row[name] for name in row if name != "passed_by"} for row in rows]
    return preview_report(found, data, Table.of(table_rows, "to rebuild"), *notes)


def _rebuild_row(plan: RebuildPlan, options: RebuildOptions) -> dict[str, Any]:
    from reef.jobs import UnfoldedLog

    start = plan.lowest
    sizes = plan.sizes(start)
    kept = {ref.id: ref.size for ref in start.kept}
    return {
        "namespace": plan.head.namespace,
        "slot_first": start.slot if sizes else None,
        "slot_last": plan.head.wal_floor - 1 if sizes else None,
        "bytes": sum(sizes),
        "tasks": len([*UnfoldedLog(start.base, sizes).parts("plan", options.fold)]) if sizes else 0,
        "replaced": len({ref.id for ref in start.replaced}),
        "kept": len(kept),
        "bytes_kept": sum(kept.values()),
        "passed_by": list(plan.passed_by),
    }


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
