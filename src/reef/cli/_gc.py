"""`reef gc`: delete what nothing needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from reef.cli._bucket import (
    PROBLEM,
    Apply,
    AsJson,
    Scope,
    Url,
    connect,
    none_text,
)
from reef.cli._output import print_json, print_table, size_text, told_by_the_command
from reef.cli._parameters import derived
from reef.cli._pass import SparkOptions, in_process, watched
from reef.errors import ReefError

if TYPE_CHECKING:
    from reef.gc import CollectionReport, ObjectCount, PinFate
    from reef.jobs import CollectOptions


@derived("CollectOptions")
def gc(
    url: Url,
    scope: Scope,
    options: CollectOptions,
    spark: SparkOptions,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """List the objects that nothing needs any more; with --apply, delete them.

    Safe to run beside writers, readers and jobs. Uses Spark only with --master, --remote or --conf;
    otherwise runs in this process. Exit code 2: damage keeps some objects from being deleted.
    """
    from reef import jobs

    with connect(url) as db, told_by_the_command():
        names = scope.names(db)
        context = db.context()
        runner = spark.runner(context) if spark.names_spark else in_process(context)
        with watched("gc", context.clock) as watch:
            result = jobs.collect(
                db, names, apply=apply, runner=runner, options=options, watch=watch
            )
        found = [(one.namespace, one.outcome) for one in result.namespaces]
        where = db.store.url
    if scope.namespace is not None and isinstance(alone := found[0][1], ReefError):
        raise alone
    if as_json:
        reports = [_as_json(name, report) for name, report in found]
        print_json({"url": where, "applied": apply, "namespaces": reports})
    else:
        for name, report in found:
            _print(name, report)
        if not found:
            print(none_text(where))
    if result.failed:
        raise typer.Exit(PROBLEM)


def _print(name: str, report: CollectionReport | ReefError) -> None:
    if isinstance(report, ReefError):
        print(f"{name}: {report}")
        return
    plan = report.plan
    print_table(
        ("", "kind", "objects", "bytes", "because"),
        (
            ("delete" if t.goes else "kept", t.kind, t.objects, size_text(t.bytes), str(t.reason))
            for t in sorted(plan.tallies, key=lambda t: (t.goes, t.kind))
        ),
    )
    for fate in plan.pins:
        print(f"pin of {fate.pin.child} {'is released' if fate.goes else 'is kept'}: {fate.reason}")
    for problem in report.problems:
        print(f"held back: {problem}")
    going = [t for t in (report.deleted if report.applied else plan.tallies) if t.goes]
    objects, size = sum(t.objects for t in going), sum(t.bytes for t in going)
    verb = "deleted" if report.applied else "would be deleted; run with --apply to delete"
    print(f"{name}: {objects} objects, {size_text(size)} {verb}")


def _as_json(name: str, report: CollectionReport | ReefError) -> dict[str, Any]:
    if isinstance(report, ReefError):
        return {"namespace": name, "applied": False, "problems": [str(report)]}
    plan = report.plan
    return {
        "namespace": name,
        "generation": plan.generation,
        "applied": report.applied,
        "boundary": {"slot": plan.boundary.slot, "generation": plan.boundary.generation},
        "expired_snapshots": list(plan.expired),
        "pins": [_pin(fate) for fate in plan.pins],
        "retained": [{"generation": r.generation, "why": r.why} for r in plan.retained],
        "tallies": [_tally(t) for t in plan.tallies],
        "deleted": [_tally(t) for t in report.deleted],
        "published": list(report.published),
        "swept": list(report.swept),
        "problems": list(report.problems),
    }


def _pin(fate: PinFate) -> dict[str, Any]:
    return {
        "child": fate.pin.child,
        "generation": fate.pin.generation,
        "lsn": fate.pin.lsn,
        "goes": fate.goes,
        "reason": str(fate.reason),
    }


def _tally(tally: ObjectCount) -> dict[str, Any]:
    return {**tally._asdict(), "reason": str(tally.reason)}
