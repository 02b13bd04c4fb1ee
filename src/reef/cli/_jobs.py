"""`reef jobs`: what the pipeline did, and what of it still stands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from reef.cli._bucket import All, AsJson, Namespace, NamespaceOrAll, Url, connect, for_each
from reef.cli._output import print_facts, print_json, print_table, size_text, time_text
from reef.cli._pass import figure_text
from reef.errors import ReefError

app = typer.Typer(
    name="jobs",
    help="The history of passes, and jobs that stand in manifests.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.command("list")
def list_passes(
    url: Url,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, the newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the newest passes, with what they read and wrote."""
    import msgspec

    from reef.pipeline import passes

    with connect(url) as db:
        found = list(passes(db.store, limit))
    if as_json:
        print_json({"passes": [msgspec.to_builtins(one) for one in found]})
        return
    print_table(
        ("id", "pass", "started", "took", "done", "failed", "rows", "read", "written", "tasks"),
        (
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
        ),
    )


@app.command("show")
def show(
    url: Url,
    id: Annotated[str, typer.Argument(metavar="ID", help="As `reef jobs list` shows it.")],
    as_json: AsJson = False,
) -> None:
    """Show one pass: its options, its totals, and each namespace."""
    import msgspec

    from reef.pipeline import find_pass

    with connect(url) as db:
        found = find_pass(db.store, id)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    print_facts(
        [
            ("pass", found.kind),
            ("author", found.author),
            ("started", time_text(found.started_at_us)),
            ("took", f"{found.seconds:.1f} s"),
            ("tasks", f"{found.tasks}, {found.task_seconds:.1f} s together"),
            ("memory", f"{size_text(found.task_peak_bytes)} at most in one task's process"),
            ("namespaces", ", ".join(f"{count} {state}" for state, count in found.states.items())),
            *((f"option {name}", value) for name, value in found.options.items()),
            *((f"total {name}", figure_text(name, value)) for name, value in found.totals.items()),
        ]
    )
    print_table(
        ("namespace", "state", "generation", "figures"),
        (
            (
                one.namespace,
                one.state,
                one.generation,
                one.error or ", ".join(f"{name} {value:,}" for name, value in one.figures.items()),
            )
            for one in found.namespaces
        ),
        title="namespaces",
    )


@app.command("standing")
def standing(
    url: Url, namespace: NamespaceOrAll = None, every: All = False, as_json: AsJson = False
) -> None:
    """List jobs that may still publish, or whose driver was killed.

    While one stands, garbage collection spares its objects. `reef jobs end` ends one.
    """
    from reef.pipeline import standing_intents

    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    with connect(url) as db:
        for name, found in for_each(
            db, namespace, every, lambda name: standing_intents(db.context(), name)
        ):
            if isinstance(found, ReefError):
                failed[name] = str(found)
                continue
            rows += (
                {
                    "namespace": name,
                    "id": intent.id,
                    "kind": intent.kind,
                    "author": intent.author,
                    "opened_at_us": intent.opened_at_us,
                    "generation": intent.generation,
                }
                for intent in found
            )
    if as_json:
        print_json({"standing": rows, "failed": failed})
        return
    print_table(
        ("namespace", "job", "kind", "author", "since"),
        (
            (
                row["namespace"],
                row["id"],
                row["kind"],
                row["author"],
                time_text(row["opened_at_us"]),
            )
            for row in rows
        ),
    )
    for name, said in failed.items():
        print(f"{name}: {said}")


@app.command("end")
def end(
    url: Url,
    namespace: Namespace,
    job: Annotated[str, typer.Argument(metavar="JOB", help="As `reef jobs standing` shows it.")],
    as_json: AsJson = False,
) -> None:
    """End a job: it cannot publish any more, and what it wrote can be collected."""
    from reef.pipeline import end_job

    with connect(url) as db:
        generation = end_job(db.context(), namespace, job)
    if as_json:
        print_json({"namespace": namespace, "job": job, "generation": generation})
    else:
        print(f"{namespace}: job {job} ended in generation {generation}")
