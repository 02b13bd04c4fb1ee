"""`reef verify`: is everything there, whole, and in agreement?"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli._bucket import (
    PROBLEM,
    AsJson,
    Scope,
    Url,
    connect,
    none_text,
)
from reef.cli._output import print_json, print_table, progress_bars, told_by_the_command
from reef.cli._parameters import derived
from reef.cli._pass import RunnerOptions, watched
from reef.errors import InvalidInputError, ReefError

if TYPE_CHECKING:
    from reef.database import Database
    from reef.doctor import Finding, VerifyReport
    from reef.jobs import VerifyOptions


@derived("VerifyOptions")
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
    as_json: AsJson = False,
) -> None:
    """Check manifests, log, segments and dedup windows. Writes nothing.

    Exit code 2: problems were found. Notes are not problems: unreferenced objects, and damage that
    repair has dealt with. The options that size tasks apply to --deep.
    """
    with connect(url) as db, told_by_the_command():
        reports = _in_depth(db, scope, options, runs) if deep else _at_a_glance(db, scope, runs)
        where = db.store.url
    if as_json:
        print_json({"url": where, "deep": deep, "namespaces": [_as_json(r) for r in reports]})
    else:
        for report in reports:
            _print(report)
        if not reports:
            print(none_text(where))
    if any(report.problems for report in reports):
        raise typer.Exit(PROBLEM)


def _at_a_glance(db: Database, scope: Scope, runs: RunnerOptions) -> list[VerifyReport]:
    from reef.doctor import verify as verify_namespace

    if runs.names_spark:
        raise InvalidInputError(
            "--master, --remote or --conf given without --deep; give --deep, or leave them out"
        )

    def look(name: str) -> VerifyReport:
        with progress_bars() as bars:
            return verify_namespace(db.context(), name, progress=bars)

    return [
        _unreadable(name, False, found) if isinstance(found, ReefError) else found
        for name, found in scope.each(db, look)
    ]


def _in_depth(
    db: Database, scope: Scope, options: VerifyOptions, runs: RunnerOptions
) -> list[VerifyReport]:
    from reef import jobs
    from reef.engine import newest_manifest

    names = scope.names(db)
    if scope.namespace is not None:
        newest_manifest(db.context(), scope.namespace)  # raises if it does not exist
    runner = runs.runner(db.context())
    with watched("verify", db.context().clock) as watch:
        found = jobs.verify(db, names, runner=runner, options=options, watch=watch).namespaces
    return [
        _unreadable(one.namespace, True, report) if isinstance(report, ReefError) else report
        for one in found
        for report in (one.outcome,)
    ]


def _unreadable(namespace: str, deep: bool, error: ReefError) -> VerifyReport:
    from reef.doctor import Finding, VerifyReport

    found = Finding("unreadable", f"namespaces/{namespace}/", str(error))
    return VerifyReport(namespace, deep, None, {}, (found,), (), ())


def findings_table(findings: tuple[Finding, ...], title: str) -> None:
    """Print findings, if there are any."""
    if findings:
        rows = ((f.kind, _short(f.key), f.text) for f in findings)
        print_table(("kind", "object", "found"), rows, title=title)


def finding_json(finding: Finding) -> dict[str, str]:
    """Return a finding for programs."""
    return {"kind": finding.kind, "key": finding.key, "text": finding.text}


def _short(key: str) -> str:
    """Return a key without what all keys of a namespace begin with."""
    return key.split("/", 2)[-1]


def _print(report: VerifyReport) -> None:
    findings_table(report.problems, "problems")
    findings_table(report.notes, "notes")
    looked = ", ".join(_counted(n, what.replace("_", " ")) for what, n in report.checked.items())
    verdict = _counted(len(report.problems), "problems") if report.problems else "no problems"
    advice = "; `reef repair` lists what it can repair" if report.problems else ""
    depth = "" if report.deep else " (blocks were not read: --deep)"
    print(f"{report.namespace}: {verdict} in {looked}{depth}{advice}")


def _counted(count: int, plural: str) -> str:
    return f"{count} {plural.removesuffix('s') if count == 1 else plural}"


def _as_json(report: VerifyReport) -> dict[str, Any]:
    found = dataclasses.asdict(report)
    found["problems"] = [finding_json(f) for f in report.problems]
    found["notes"] = [finding_json(f) for f in report.notes]
    found["orphans"] = list(report.orphans)
    found["ok"] = not report.problems
    del found["deep"]
    return found
