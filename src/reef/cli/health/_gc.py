"""`reef gc`: delete what nothing needs any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from reef.cli._report import Part, Report, Table, reef_log_silenced, size_text
from reef.cli.arguments import Apply, Scope, Url, connect, derived, no_namespace_text
from reef.cli.pipeline import RunnerOptions, SparkOptions, run_watched
from reef.errors import ReefError

if TYPE_CHECKING:
    from reef.gc import CollectionReport, JudgedPin, ObjectCount
    from reef.jobs import CollectOptions


@derived("reef.jobs.CollectOptions")
def gc(
    url: Url,
    scope: Scope,
    options: CollectOptions,
    spark: SparkOptions,
    apply: Apply = False,
) -> Report:
    """List objects that nothing needs; with --apply, delete them.

    Safe to run beside writers, readers and jobs. Uses Spark only with --master, --remote or --conf;
    otherwise runs in this process. Exit code 2: damage keeps some objects from being deleted.
    """
    from reef import jobs

    runs = spark if spark.names_spark else RunnerOptions(in_process=True)
    with connect(url) as db, reef_log_silenced():
        names = scope.names(db)
        result = run_watched("gc", jobs.collect, db, names, runs=runs, options=options, apply=apply)
        where = db.store.url
    found = [(one.namespace, one.outcome) for one in result.namespaces]
    if scope.namespace is not None and isinstance(alone := found[0][1], ReefError):
        raise alone
    reports = [_gc_as_json(name, report) for name, report in found]
    return Report(
        {"url": where, "applied": apply, "namespaces": reports},
        [part for one in found for part in _gc_parts(*one)] or [no_namespace_text(where)],
        is_problem=bool(result.failed),
    )


def _gc_parts(name: str, report: CollectionReport | ReefError) -> Iterator[Part]:
    if isinstance(report, ReefError):
        yield f"{name}: {report}"
        return
    plan = report.plan
    yield Table(
        ("", "kind", "objects", "bytes", "because"),
        (
            ("delete" if t.goes else "kept", t.kind, t.objects, size_text(t.bytes), t.reason)
            for t in sorted(plan.object_counts, key=lambda t: (t.goes, t.kind))
        ),
    )
    if report.has_expired:
        yield f"{name} is a branch that has expired: {'' if report.applied else 'would be '}dropped"
    for judged in plan.pins:
        yield f"pin of {judged.pin.child} {'is released' if judged.goes else 'is kept'}: {judged.reason}"
    for problem in report.problems:
        yield f"held back: {problem}"
    going = [t for t in (report.deleted if report.applied else plan.object_counts) if t.goes]
    objects, size = sum(t.objects for t in going), sum(t.bytes for t in going)
    verb = "deleted" if report.applied else "would be deleted; run with --apply to delete"
    yield f"{name}: {objects} objects, {size_text(size)} {verb}"


def _gc_as_json(name: str, report: CollectionReport | ReefError) -> dict[str, Any]:
    if isinstance(report, ReefError):
        return {"namespace": name, "applied": False, "problems": [str(report)]}
    plan = report.plan
    return {
        "namespace": name,
        "generation": plan.generation,
        "applied": report.applied,
        "expired": report.has_expired,
        "boundary": {"slot": plan.boundary.slot, "generation": plan.boundary.generation},
        "expired_snapshots": list(plan.expired),
        "pins": [_pin(judged) for judged in plan.pins],
        "retained": [{"generation": r.generation, "why": r.why} for r in plan.retained],
        "tallies": [_count_as_json(t) for t in plan.object_counts],
        "deleted": [_count_as_json(t) for t in report.deleted],
        "published": list(report.published),
        "swept": list(report.swept),
        "problems": list(report.problems),
    }


def _pin(judged: JudgedPin) -> dict[str, Any]:
    return {
        "child": judged.pin.child,
        "generation": judged.pin.generation,
        "lsn": judged.pin.lsn,
        "goes": judged.goes,
        "reason": str(judged.reason),
    }


def _count_as_json(count: ObjectCount) -> dict[str, Any]:
    return {**count._asdict(), "reason": str(count.reason)}
