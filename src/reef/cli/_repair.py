"""`reef repair`: repair what can be repaired, and report what is lost."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from reef.cli._bucket import PROBLEM, Apply, AsJson, Namespace, Url, connect
from reef.cli._output import print_json, print_table, progress_bars, told_by_the_command
from reef.cli._verify import finding_json, findings_table

if TYPE_CHECKING:
    from reef.doctor import RepairReport


def repair(
    url: Url,
    namespace: Namespace,
    apply: Apply = False,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Allow steps that lose rows which nothing can restore."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the damage, the planned repairs and the losses; with --apply, repair.

    Copies damaged objects to quarantine/ and skips them by name; deletes nothing. Fences the writer
    if a repair concerns what it holds. Exit code 2: damage remains.
    """
    from reef.doctor import repair as repair_namespace

    with connect(url) as db, told_by_the_command(), progress_bars() as bars:
        report = repair_namespace(
            db.context(), namespace, apply=apply, accept_loss=accept_loss, progress=bars
        )
        where = db.store.url
    if as_json:
        _print_json(where, report)
    else:
        _print(report, apply, accept_loss)
    if not report.is_mended:
        raise typer.Exit(PROBLEM)


def _print_json(url: str, report: RepairReport) -> None:
    print_json(
        {
            "url": url,
            "namespace": report.namespace,
            "applied": report.applied,
            "mended": report.is_mended,
            "generation": report.generation,
            "writer": report.writer or None,
            "fences": report.fences,
            "steps": [dataclasses.asdict(step) for step in report.steps],
            "problems": [finding_json(f) for f in report.problems],
            "notes": [finding_json(f) for f in report.notes],
        }
    )


def _print(report: RepairReport, apply: bool, accept_loss: bool) -> None:
    if report.steps:
        print_table(
            ("state", "step", "object", "what", "lost"),
            (
                (s.state, s.kind, s.key.split("/", 2)[-1], s.text, s.lost or "nothing")
                for s in report.steps
            ),
            title="steps",
        )
    if report.applied:
        findings_table(report.problems, "remaining problems")
    findings_table(report.notes, "notes")
    if report.fences and not report.applied and report.writer:
        print(
            f"This fences the writer. The last to open the namespace was {report.writer}. If it "
            "still runs, let it flush first, to save the rows it holds in memory."
        )
    print(f"{report.namespace}: {_verdict(report, apply, accept_loss)}")


def _verdict(report: RepairReport, apply: bool, accept_loss: bool) -> str:
    if report.is_mended:
        done = sum(step.state == "done" for step in report.steps)
        return f"mended, {done} steps done" if report.applied else "nothing is wrong"
    refused = sum(step.state == "refused" for step in report.steps)
    hint = (
        f"; {refused} steps lose rows and need --accept-loss" if refused and not accept_loss else ""
    )
    if not apply:
        return f"{len(report.problems)} problems; nothing was changed: run with --apply to repair{hint}"
    return f"{len(report.problems)} problems remain{hint}"
