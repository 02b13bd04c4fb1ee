"""The passes: each over some namespaces of a bucket, or over all of them.

Many namespaces share one run of tasks, and one that fails stands in the result with its error while
the others go on.

    result = index(db)                                  every namespace, in this process
    result = compact(db, ["orders"], options=CompactionOptions(full=True))
    result = rebuild(db, runner=reef.spark.spark_runner(db.context()))
    for one in result.namespaces: print(one.namespace, one.result or one.error)

Tasks run by `runner`, by default in this process, one after the other; `reef.spark.spark_runner` runs
them on Spark, and `BySize` those of large namespaces only. `watch` is called with how far the pass is. A Context may be given instead of a Database,
with the names of the namespaces. A pass raises InvalidInputError, and any error that keeps its tasks
from running, such as UnavailableError; errors in one namespace are in the result. A pass that changed something
leaves a record in the bucket: see `passes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias, TypeVar

from reef.compaction import CompactionOptions, CompactionPlan
from reef.database import Database
from reef.doctor import RebuildPlan, VerifyReport, plan_rebuild
from reef.engine import Context
from reef.errors import InvalidInputError
from reef.gc import CollectionReport
from reef.jobs._by_size import BySize
from reef.jobs._collect_pass import CollectOptions, CollectPass
from reef.jobs._compaction._compact_pass import CompactionPass, plan_compaction
from reef.jobs._compaction._compaction_result import CompactionResult
from reef.jobs._compaction._detach import DetachPass
from reef.jobs._driver import each_namespace, run_pass
from reef.jobs._fold._index_pass import IndexPass, IndexResult
from reef.jobs._fold._unfolded_log import IndexOptions, UnfoldedLog
from reef.jobs._pass_protocol import NamespaceResult, PassResult
from reef.jobs._pass_records import old_passes
from reef.jobs._progress import Watch
from reef.jobs._rebuild._rebuild_pass import RebuildPass
from reef.jobs._rebuild._rebuild_result import RebuildOptions, RebuildResult
from reef.jobs._tasks import Runner
from reef.jobs._verify_pass import VerifyOptions, VerifyPass
from reef.types import check_namespace

T = TypeVar("T")

Namespaces: TypeAlias = str | Iterable[str] | None
"""A name, some names, or None: all."""


def index(
    db: Database | Context,
    namespaces: Namespaces = None,
    *,
    runner: Runner | BySize | None = None,
    options: IndexOptions | None = None,
    watch: Watch | None = None,
) -> PassResult[IndexResult]:
    """Fold the log of namespaces into level-0 segments."""
    names = _names(db, namespaces)
    return run_pass(_context(db), IndexPass(options), names, runner=runner, watch=watch)


def compact(
    db: Database | Context,
    namespaces: Namespaces = None,
    *,
    runner: Runner | BySize | None = None,
    options: CompactionOptions | None = None,
    plan: CompactionPlan | None = None,
    watch: Watch | None = None,
) -> PassResult[CompactionResult]:
    """Merge the segments of namespaces where it is worth it; or carry out a `plan` of one of them.

    What has changed since a plan was made is planned again.
    """
    if plan is not None:
        if options is not None:
            raise InvalidInputError(
                "options and a plan were both given; a plan has its own options"
            )
        if namespaces not in (None, plan.namespace, [plan.namespace]):
            raise InvalidInputError(
                f"the plan is for namespace {plan.namespace!r}, and {namespaces!r} was given; "
                "leave out namespaces, or make a plan for each"
            )
        namespaces = plan.namespace
    names = _names(db, namespaces)
    what = CompactionPass(options, plan)
    return run_pass(_context(db), what, names, runner=runner, watch=watch)


def rebuild(
    db: Database | Context,
    namespaces: Namespaces = None,
    *,
    runner: Runner | BySize | None = None,
    options: RebuildOptions | None = None,
    watch: Watch | None = None,
) -> PassResult[RebuildResult]:
    """Derive all segments and windows of namespaces again, with the same content."""
    names = _names(db, namespaces)
    return run_pass(_context(db), RebuildPass(options), names, runner=runner, watch=watch)


def verify(
    db: Database | Context,
    namespaces: Namespaces = None,
    *,
    runner: Runner | BySize | None = None,
    options: VerifyOptions | None = None,
    watch: Watch | None = None,
) -> PassResult[VerifyReport]:
    """Check every block of every object of namespaces. Writes nothing."""
    names = _names(db, namespaces, dropped=True)
    return run_pass(_context(db), VerifyPass(options), names, runner=runner, watch=watch)


def collect(
    db: Database | Context,
    namespaces: Namespaces = None,
    *,
    apply: bool = False,
    runner: Runner | BySize | None = None,
    options: CollectOptions | None = None,
    watch: Watch | None = None,
) -> PassResult[CollectionReport]:
    """Delete what nothing needs any more; without `apply`, only find out what would go.

    With `apply`, over all namespaces, records of old passes go too.
    """
    context = _context(db)
    names = _names(db, namespaces, dropped=True)
    what = CollectPass(context, options, apply=apply)
    result = run_pass(context, what, names, runner=runner, watch=watch)
    if apply and namespaces is None:
        for key in old_passes(context.store):
            context.store.delete(key)
    return result


def detach(
    db: Database | Context,
    namespace: str,
    *,
    runner: Runner | BySize | None = None,
    watch: Watch | None = None,
) -> int:
    """Copy what a branch shares with others, and cut it loose; return its newest generation.

    Safe beside its writer and its readers. Raises NotFoundError, InvalidInputError with the names of
    branches that depend on it, StalePlanError if another compaction begins, UnavailableError if tasks fail
    (call it again: it goes on from there), OutcomeUnknownError.
    """
    names = _names(db, namespace)
    result = run_pass(_context(db), DetachPass(), names, runner=runner, watch=watch)
    return result.namespaces[0].returned()


def preview_index(
    db: Database | Context, namespaces: Namespaces = None, *, options: IndexOptions | None = None
) -> list[NamespaceResult[UnfoldedLog]]:
    """Return what there is to fold in each namespace. Writes nothing, and runs no task."""
    (options or IndexOptions()).check()
    return _previews(db, namespaces, lambda c, name: UnfoldedLog.find(c, c.chain(name)))


def preview_compaction(
    db: Database | Context,
    namespaces: Namespaces = None,
    *,
    options: CompactionOptions | None = None,
) -> list[NamespaceResult[CompactionPlan | None]]:
    """Return what `compact` would rewrite in each namespace: None if it is fine as it is.

    Writes nothing, and runs no task.
    """
    return _previews(db, namespaces, lambda c, name: plan_compaction(c, name, options))


def preview_rebuild(
    db: Database | Context, namespaces: Namespaces = None, *, options: RebuildOptions | None = None
) -> list[NamespaceResult[RebuildPlan]]:
    """Return what `rebuild` would derive again in each namespace. Writes nothing, and runs no task."""
    (options or RebuildOptions()).check()
    return _previews(db, namespaces, plan_rebuild)


def _previews(
    db: Database | Context, namespaces: Namespaces, plan: Callable[[Context, str], T]
) -> list[NamespaceResult[T]]:
    context = _context(db)
    return each_namespace(context, [*_names(db, namespaces)], partial(plan, context))


def _context(db: Database | Context) -> Context:
    return db.context() if isinstance(db, Database) else db


def _names(
    db: Database | Context, namespaces: Namespaces, *, dropped: bool = False
) -> Iterable[str]:
    """Return the namespaces that a pass goes over; with `dropped`, "all" includes dropped ones."""
    if namespaces is None:
        if isinstance(db, Database):
            return db.namespaces(dropped=dropped)
        raise InvalidInputError("no namespaces were given; name them, or give a Database for all")
    names = [namespaces] if isinstance(namespaces, str) else list(dict.fromkeys(namespaces))
    for name in names:
        check_namespace(name)
    return names
