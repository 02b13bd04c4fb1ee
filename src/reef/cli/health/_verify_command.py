"""`reef verify`: is everything there, whole, and in agreement?"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli._report import Part, Report, Table, progress_bars, reef_log_silenced
from reef.cli.arguments import Scope, Url, connect, derived, no_namespace_text
from reef.cli.pipeline import RunnerOptions, run_watched
from reef.errors import InvalidInputError, ReefError

if TYPE_CHECKING:
    from reef.database import Database
    from reef.doctor import ProblemOrNote, VerifyReport
    from reef.jobs import VerifyOptions


@derived("reef.jobs.VerifyOptions")
def verify(
    url: Url,
    scope: Scope,
    options: VerifyOptions,
    runs: RunnerOptions,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Read every block of every object, on Spark or with --in-process."
        ),
    ] = False,
) -> Report:
    """Check manifests, log, segments and dedup windows. Writes nothing.

    Exit code 2: problems were found. Notes are not problems: unreferenced objects, and damage that
    repair has dealt with. The options that size tasks apply to --deep.
    """
    with connect(url) as db, reef_log_silenced():
        found = _in_depth(db, scope, options, runs) if deep else _at_a_glance(db, scope, runs)
        where = db.store.url
    reports = [
        _unreadable_report(name, deep, report) if isinstance(report, ReefError) else report
        for name, report in found
    ]
    return Report(
        {"url": where, "deep": deep, "namespaces": [_verify_as_json(r) for r in reports]},
        [part for one in reports for part in _verify_parts(one)] or [no_namespace_text(where)],
        is_problem=any(report.problems for report in reports),
    )


def _at_a_glance(
    db: Database, scope: Scope, runs: RunnerOptions
) -> list[tuple[str, VerifyReport | ReefError]]:
    from reef.doctor import verify as verify_namespace

    if runs.names_spark:
        raise InvalidInputError(
            "--master, --remote or --conf given without --deep; give --deep, or leave them out"
        )

    def look(name: str) -> VerifyReport:
        with progress_bars() as bars:
            return verify_namespace(db.context(), name, progress=bars)

    return list(scope.each(db, look))


def _in_depth(
    db: Database, scope: Scope, options: VerifyOptions, runs: RunnerOptions
) -> list[tuple[str, VerifyReport | ReefError]]:
    from reef import jobs
    from reef.engine import newest_manifest

    names = scope.names(db)
    if scope.namespace is not None:
        newest_manifest(db.context(), scope.namespace)  # raises if it does not exist
    found = run_watched("verify", jobs.verify, db, names, runs=runs, options=options).namespaces
    return [(one.namespace, one.outcome) for one in found]


def _unreadable_report(namespace: str, deep: bool, error: ReefError) -> VerifyReport:
    from reef.doctor import ProblemOrNote, VerifyReport

    found = ProblemOrNote("unreadable", f"namespaces/{namespace}/", str(error))
    return VerifyReport(namespace, deep, None, {}, (found,), (), ())


def problem_table(found: Sequence[ProblemOrNote], title: str) -> Iterator[Part]:
    """Yield a table of problems or notes, if there are any."""
    if found:
        rows = ((f.kind, short_key(f.key), f.text) for f in found)
        yield Table(("kind", "object", "found"), rows, title)


def problems_json(found: Sequence[ProblemOrNote]) -> list[dict[str, str]]:
    """Return problems or notes for programs."""
    return [{"kind": f.kind, "key": f.key, "text": f.text} for f in found]


def short_key(key: str) -> str:
    """Return a key without what all keys of a namespace begin with."""
    return key.split("/", 2)[-1]


def _verify_parts(report: VerifyReport) -> Iterator[Part]:
    yield from problem_table(report.problems, "problems")
    yield from problem_table(report.notes, "notes")
    looked = ", ".join(_count_text(n, what.replace("_", " ")) for what, n in report.checked.items())
    verdict = _count_text(len(report.problems), "problems") if report.problems else "no problems"
    advice = "; `reef repair` lists what it can repair" if report.problems else ""
    depth = "" if report.deep else " (blocks were not read: --deep)"
    yield f"{report.namespace}: {verdict} in {looked}{depth}{advice}"


def _count_text(count: int, plural: str) -> str:
    return f"{count} {plural.removesuffix('s') if count == 1 else plural}"


def _verify_as_json(report: VerifyReport) -> dict[str, Any]:
    found = dataclasses.asdict(report)
    found |= {name: problems_json(getattr(report, name)) for name in ("problems", "notes")}
    found["ok"] = not report.problems
    del found["deep"]
    return found
