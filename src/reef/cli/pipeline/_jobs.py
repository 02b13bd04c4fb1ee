"""`reef jobs`: what the pipeline did, and what of it still stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from reef.cli._report import Part, Report, Table, size_text, time_text
from reef.cli.arguments import Scope, Url, check_bucket_exists, connect, group
from reef.cli.pipeline._run_pass import figure_text
from reef.errors import InvalidInputError, NotFoundError, ReefError
from reef.settings import parse_seconds

if TYPE_CHECKING:
    from reef.database import Database

_T = TypeVar("_T")


def list_passes(
    url: Url,
    limit: Annotated[
        int,
        typer.Option(min=1, max=1000, metavar="N", help="The most passes to list, newest first."),
    ] = 20,
) -> Report:
    """List the newest passes: when, how long, what they did.

    A pass is a run of index, compact or another command of the pipeline.
    """
    import msgspec

    from reef.jobs import passes

    with connect(url) as db:
        check_bucket_exists(db.store.url)
        found = list(passes(db.store, limit))
    rows = (
        (
            one.id,
            one.kind,
            time_text(one.started_at_us),
            f"{one.seconds:.1f} s",
            one.states.get("done", 0),
            one.states.get("failed", 0),
            f"{one.totals.get('rows', 0):,}",
            size_text(one.totals.get("bytes_in", 0)),
            size_text(one.totals.get("bytes_out", 0)),
            one.tasks,
        )
        for one in found
    )
    columns = (
        "id",
        "pass",
        "started",
        "took",
        "done",
        "failed",
        "rows",
        "read",
        "written",
        "tasks",
    )
    return Report({"passes": [msgspec.to_builtins(one) for one in found]}, [Table(columns, rows)])


def show(
    url: Url,
    id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a pass, from `reef jobs list`.")
    ],
) -> Report:
    """Print one pass: its options, totals, and namespaces."""
    import msgspec

    from reef.jobs import find_pass

    with connect(url) as db:
        check_bucket_exists(db.store.url)
        found = find_pass(db.store, id)
    facts = {
        "pass": found.kind,
        "author": found.author,
        "started": time_text(found.started_at_us),
        "took": f"{found.seconds:.1f} s",
        "tasks": f"{found.tasks}, {found.task_seconds:.1f} s together",
        "memory": f"{size_text(found.task_peak_bytes)} at most in one task's process",
        "namespaces": ", ".join(f"{count} {state}" for state, count in found.states.items()),
    }
    facts |= {f"option {name}": value for name, value in found.options.items()}
    facts |= {f"total {name}": figure_text(name, value) for name, value in found.totals.items()}
    rows = (
        (
            one.namespace,
            one.state,
            one.generation,
            one.error or ", ".join(f"{name} {value:,}" for name, value in one.figures.items()),
        )
        for one in found.namespaces
    )
    columns = ("namespace", "state", "generation", "figures")
    return Report(msgspec.to_builtins(found), [facts, Table(columns, rows, "namespaces")])


def standing(url: Url, scope: Scope) -> Report:
    """List standing jobs, which have begun and not ended.

    They still run, or were killed. Garbage collection keeps their objects. `reef jobs end` ends one.
    """
    import msgspec

    from reef.jobs import standing_intents

    with connect(url) as db:
        found, failed = _each(db, scope, lambda name: standing_intents(db.context(), name))
    rows = [
        {"namespace": name, **msgspec.structs.asdict(intent)}
        for name, intents in found
        for intent in intents
    ]
    data = {"standing": rows, "failed": failed}
    return Report(data, [Table.of(rows, "standing jobs"), *_failure_lines(failed)])


def end(
    url: Url,
    scope: Scope,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="JOB", help="Ids of standing jobs, from `reef jobs standing`."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--all-older-than", metavar="AGE", help="End all jobs older than this: 90m, 12h, 7d."
        ),
    ] = None,
) -> Report:
    """End standing jobs, so that they can publish nothing more.

    `reef gc` may then delete what they wrote. Give the ids of jobs of a namespace; or
    --all-older-than, with a namespace or --all. A job that still runs fails. Exit code 2: some job
    could not be ended.
    """
    if (older_than is None) == (not jobs):
        given = "neither" if older_than is None else "both"
        raise InvalidInputError(f"JOB and --all-older-than: {given} given; give one of the two")
    if jobs and scope.every:
        raise InvalidInputError("--all is given with JOB: it goes with --all-older-than")
    seconds = None if older_than is None else parse_seconds("--all-older-than", older_than)
    with connect(url) as db:
        if seconds is None:
            assert scope.namespace is not None  # a JOB comes after it
            ended, failed = _end_named(db, scope.namespace, list(dict.fromkeys(jobs or ())))
        else:
            ended, failed = _end_old(db, scope, seconds)
    parts: list[Part] = [
        f"{one['namespace']}: job {one['job']} ended in generation {one['generation']}"
        for one in ended
    ]
    parts += _failure_lines(failed)
    return Report(
        {"ended": ended, "failed": failed},
        parts or [f"no job stands for longer than {older_than}"],
        is_problem=bool(failed),
    )


jobs_app = group(
    "jobs",
    "Show finished passes; list and end standing jobs.",
    {"list": list_passes, "show": show, "standing": standing, "end": end},
)


def _failure_lines(failed: dict[str, str]) -> list[str]:
    return [f"{name}: {error}" for name, error in failed.items()]


_Ended: TypeAlias = tuple[list[dict[str, Any]], dict[str, str]]


def _end_named(db: Database, namespace: str, jobs: list[str]) -> _Ended:
    """End each; what is wrong with one of several does not keep the others from it."""
    from reef.jobs import end_job

    ended: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for job in jobs:
        try:
            generation = end_job(db.context(), namespace, job)
            ended.append({"namespace": namespace, "job": job, "generation": generation})
        except NotFoundError as error:
            if len(jobs) == 1:
                raise
            failed[job] = str(error)
    return ended, failed


def _end_old(db: Database, scope: Scope, seconds: float) -> _Ended:
    from reef.jobs import end_old_jobs

    found, failed = _each(db, scope, lambda name: end_old_jobs(db.context(), name, seconds))
    ended = [
        {"namespace": name, "job": intent.id, "generation": generation}
        for name, jobs in found
        for intent, generation in jobs
    ]
    return ended, failed


def _each(
    db: Database, scope: Scope, do: Callable[[str], _T]
) -> tuple[list[tuple[str, _T]], dict[str, str]]:
    """Return what `do` returns for each namespace, and the errors of those that cannot be read."""
    found: list[tuple[str, _T]] = []
    failed: dict[str, str] = {}
    for name, one in scope.each(db, do):
        if isinstance(one, ReefError):
            failed[name] = str(one)
        else:
            found.append((name, one))
    return found, failed
