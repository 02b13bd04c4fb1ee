"""Passes that check, collect and rebuild, over some namespaces of a bucket, or over all of them.

Like `index` and `compact` they return a PassResult, in which one that is sick stands with its error.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reef.database import Database
from reef.doctor import VerifyReport
from reef.errors import ReefError
from reef.gc import CollectionReport
from reef.jobs._gc import CollectBatch, CollectOptions, DeleteChunk, collect_all
from reef.jobs._history import old_passes
from reef.jobs._pass import (
    Figures,
    NamespaceResult,
    Namespaces,
    Pass,
    PassResult,
    TaskTimes,
    Watch,
    Work,
)
from reef.jobs._rebuild._plan import plan_rebuild
from reef.jobs._rebuild._rebuild import rebuilding
from reef.jobs._rebuild._result import RebuildOptions, RebuildPlan, RebuildResult
from reef.jobs._stages import run_together
from reef.jobs._tasks import Runner
from reef.jobs._verify import NamespaceBatch, VerifyOptions, VerifyTask, verify_deep


def verify(
    db: Database,
    namespaces: Namespaces = None,
    *,
    runner: Runner | None = None,
    options: VerifyOptions | None = None,
    watch: Watch | None = None,
) -> PassResult[VerifyReport]:
    """Check every block of every object of namespaces (None: all). Writes nothing."""
    options = options or VerifyOptions()
    options.check()
    run = Pass(db, "verify", namespaces, runner, watch, leaves_record=False)

    def portion(names: Sequence[str]) -> list[NamespaceResult[VerifyReport]]:
        reports = verify_deep(run.context, names, run.shown(_verify_work), options=options)
        return [NamespaceResult(name, report) for name, report in zip(names, reports, strict=True)]

    return run.result(portion, _verify_figures, msgspec.to_builtins(options))


def collect(
    db: Database,
    namespaces: Namespaces = None,
    *,
    apply: bool = False,
    runner: Runner | None = None,
    options: CollectOptions | None = None,
    watch: Watch | None = None,
) -> PassResult[CollectionReport]:
    """Delete what nothing needs any more; without `apply`, only tell what would go."""
    options = options or CollectOptions()
    options.check()
    run = Pass(db, "gc", namespaces, runner, watch, leaves_record=apply)
    is_swept = False

    def portion(names: Sequence[str]) -> list[NamespaceResult[CollectionReport]]:
        nonlocal is_swept
        found = collect_all(
            run.context,
            names,
            run.shown(_gc_work),
            apply=apply,
            sweep=not is_swept,  # it is of the whole bucket: once is enough
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
    runner: Runner | None = None,
    options: RebuildOptions | None = None,
    watch: Watch | None = None,
) -> PassResult[RebuildResult]:
    """Make all derived state of namespaces (None: all) anew, equal in content.

    Their tasks are run together; each is published by itself.
    """
    options = options or RebuildOptions()
    options.check()
    run = Pass(db, "rebuild", namespaces, runner, watch)

    def portion(names: Sequence[str]) -> list[NamespaceResult[RebuildResult]]:
        return run_together(
            run,
            {name: rebuilding(run.context, name, lambda: run.runner, options) for name in names},
        )

    return run.result(portion, _rebuild_figures, msgspec.to_builtins(options))


def preview_rebuild(
    db: Database, namespaces: Namespaces = None, *, options: RebuildOptions | None = None
) -> list[NamespaceResult[RebuildPlan]]:
    """Return what `rebuild` would make anew of each namespace. Writes nothing, and needs no Spark."""
    run = Pass(db, "rebuild", namespaces, None, None)
    return run.each(list(run.names), lambda name: plan_rebuild(run.context, name, options))


def _verify_work(descriptors: Sequence[NamespaceBatch | VerifyTask]) -> Work:
    """Small namespaces are read by whoever looks how small they are: only their number is known."""
    parts = [part for one in descriptors if isinstance(one, VerifyTask) for part in one.parts]
    batches = [one for one in descriptors if isinstance(one, NamespaceBatch)]
    return Work(
        bytes=sum(part.nbytes for part in parts),
        namespaces=sum(len(batch.names) for batch in batches),
    )


def _gc_work(descriptors: Sequence[CollectBatch | DeleteChunk]) -> Work:
    chunks = [one for one in descriptors if isinstance(one, DeleteChunk)]
    batches = [one for one in descriptors if isinstance(one, CollectBatch)]
    return Work(
        objects=sum(len(chunk.keys) for chunk in chunks),
        namespaces=sum(len(batch.names) for batch in batches),
    )


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
