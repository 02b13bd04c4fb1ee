"""`reef repair`: repair what can be repaired, and report what is lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from reef.cli._report import Part, Report, Table, progress_bars, reef_log_silenced
from reef.cli.arguments import Apply, Namespace, Url, connect
from reef.cli.health._verify_command import problem_table, problems_json, short_key

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
) -> Report:
    """List damage, repairs and losses; with --apply, repair.

    Copies damaged objects to quarantine/ and skips them by name; deletes nothing. Fences the writer
    if a repair concerns what it holds. Exit code 2: damage remains.
    """
    from reef.doctor import repair as repair_namespace

    with connect(url) as db, reef_log_silenced(), progress_bars() as bars:
        found = repair_namespace(
            db.context(), namespace, apply=apply, accept_loss=accept_loss, progress=bars
        )
        where = db.store.url
    data = {
        "url": where,
        "namespace": found.namespace,
        "applied": found.applied,
        "mended": found.is_mended,
        "generation": found.generation,
        "writer": found.writer or None,
        "fences": found.fences,
        "steps": [dataclasses.asdict(step) for step in found.steps],
        "problems": problems_json(found.problems),
        "notes": problems_json(found.notes),
    }
    return Report(data, _repair_parts(found, apply, accept_loss), is_problem=not found.is_mended)


def _repair_parts(report: RepairReport, apply: bool, accept_loss: bool) -> Iterator[Part]:
    if report.steps:
        rows = (
            (s.state, s.kind, short_key(s.key), s.text, s.lost or "nothing") for s in report.steps
        )
        yield Table(("state", "step", "object", "what", "lost"), rows, "steps")
    if report.applied:
        yield from problem_table(report.problems, "remaining problems")
    yield from problem_table(report.notes, "notes")
    if report.fences and not report.applied and report.writer:
        yield (
            f"This fences the writer. The last to open the namespace was {report.writer}. If it "
            "still runs, let it flush first, to save the rows it holds in memory."
        )
    yield f"{report.namespace}: {_verdict(report, apply, accept_loss)}"


def _verdict(report: RepairReport, apply: bool, accept_loss: bool) -> str:
    if report.is_mended:
        done = sum(step.state == "done" for step in report.steps)
        return f"repaired, {done} steps done" if report.applied else "nothing is wrong"
    refused = sum(step.state == "refused" for step in report.steps)
    hint = (
        f"; {refused} steps lose rows and need --accept-loss" if refused and not accept_loss else ""
    )
    if not apply:
        return f"{len(report.problems)} problems; nothing was changed: run with --apply to repair{hint}"
    return f"{len(report.problems)} problems remain{hint}"
