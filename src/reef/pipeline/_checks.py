"""Passes that check, collect and rebuild, over some namespaces of a bucket, or over all of them.

Like `index` and `compact` they return a PassResult, in which one that is sick stands with its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from reef.database import Database
from reef.engine import VerifyReport
from reef.errors import ReefError
from reef.gc import CollectionReport
from reef.pipeline._gc import CollectOptions, collect_all
from reef.pipeline._history import old_passes
from reef.pipeline._pass import (
    Figures,
    NamespaceResult,
    Namespaces,
    Pass,
    PassResult,
    TaskTimes,
    Watch,
)
from reef.pipeline._rebuild import rebuild as rebuild_namespace
from reef.pipeline._rebuild_result import RebuildOptions, RebuildResult
from reef.pipeline._tasks import Runner
from reef.pipeline._verify import VerifyOptions, verify_deep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify(
    db: Database,
    namespaces: Namespaces = None,
    *,
    spark: SparkSession | None = None,
    runner: Runner | None = None,
    options: VerifyOptions | None = None,
    watch: Watch | None = None,
) -> PassResult[VerifyReport]:
    """Check every block of every object of namespaces (None: all). Writes nothing."""
    options = options or VerifyOptions()
    options.check()
    run = Pass(db, "verify", namespaces, spark, runner, watch, leaves_record=False)

    def portion(names: Sequence[str]) -> list[NamespaceResult[VerifyReport]]:
        reports = verify_deep(run.context, names, run.runner, run.progress(0), options=options)
        return [NamespaceResult(name, report) for name, report in zip(names, reports, strict=True)]

    return run.result(portion, _verify_figures, msgspec.to_builtins(options))


def collect(
    db: Database,
    namespaces: Namespaces = None,
    *,
    apply: bool = False,
    spark: SparkSession | None = None,
    runner: Runner | None = None,
    options: CollectOptions | None = None,
    watch: Watch | None = None,
) -> PassResult[CollectionReport]:
    """Delete what nothing needs any more; without `apply`, only tell what would go."""
    options = options or CollectOptions()
    options.check()
    run = Pass(db, "gc", namespaces, spark, runner, watch, leaves_record=apply)
    is_swept = False

    def portion(names: Sequence[str]) -> list[NamespaceResult[CollectionReport]]:
        nonlocal is_swept
        found = collect_all(
            run.context,
            names,
            run.runner,
            apply=apply,
            sweep=not is_swept,  # it is of the whole bucket: once is enough
            progress=run.progress(0),
            options=options,
        )
        is_swept = True
        return [
            NamespaceResult(name, None, report)
            if isinstance(report, ReefError)
            else NamespaceResult(name, report)
            for name, report in found
        ]

    result = run.result(portion, _gc_figures, {**msgspec.to_builtins(options), "apply": apply})
    if apply and namespaces is None:
        for key in old_passes(db.store):
            db.store.delete(key)
    return result


def rebuild(
    db: Database,
    namespaces: Namespaces = None,
    *,
    spark: SparkSession | None = None,
    runner: Runner | None = None,
    options: RebuildOptions | None = None,
    watch: Watch | None = None,
) -> PassResult[RebuildResult]:
    """Make all derived state of namespaces (None: all) anew, equal in content, one after the other."""
    options = options or RebuildOptions()
    run = Pass(db, "rebuild", namespaces, spark, runner, watch)

    def rebuilt(name: str) -> RebuildResult:
        return rebuild_namespace(
            run.context, name, run.runner, options=options, progress=run.progress(0)
        )

    def portion(names: Sequence[str]) -> list[NamespaceResult[RebuildResult]]:
        return run.each(names, rebuilt, width=1)

    return run.result(portion, _rebuild_figures, msgspec.to_builtins(options))


def _verify_figures(report: VerifyReport) -> Figures:
    problems = len(report.problems)
    error = f"{problems} problems, the first: {report.problems[0].text}" if problems else ""
    numbers = {**report.checked, "problems": problems, "notes": len(report.notes)}
    return Figures(numbers, TaskTimes(), report.generation, error)


def _gc_figures(report: CollectionReport) -> Figures:
    tallies = report.deleted if report.applied else report.plan.tallies
    going = [tally for tally in tallies if tally.goes]
    numbers = {
        "objects": sum(tally.objects for tally in going),
        "bytes": sum(tally.bytes for tally in going),
    }
    changed = report.plan.generation if report.applied and (going or report.published) else None
    return Figures(numbers, TaskTimes(), changed, "; ".join(report.problems))


def _rebuild_figures(result: RebuildResult) -> Figures:
    times = [TaskTimes(1, task.seconds, task.peak_rss_bytes) for task in result.tasks]
    numbers = {
        "rows": result.rows,
        "bytes_in": result.log_bytes,
        "bytes_out": sum(ref.size for ref in result.segments),
        "segments": len(result.segments),
        "kept": len(result.kept),
        "replaced": len(result.replaced),
    }
    return Figures(numbers, sum(times, TaskTimes()), result.generation)
