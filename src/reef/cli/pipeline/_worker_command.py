"""`reef worker`: stay, and fold, compact and collect when it is worth it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli import PROBLEM, visible
from reef.cli._signals import is_terminated
from reef.cli.arguments import AsJson, Url, check_bucket_exists, connect, derived
from reef.cli.pipeline._run_pass import RunnerOptions, figure_text, pass_json
from reef.cli.pipeline._worker_endpoint import served
from reef.errors import ReefError
from reef.settings import BYTES_MAX, load_settings, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from reef.jobs import PassResult, WorkerOptions


LIGHT_TASKS_MAX = 16


@derived("reef.jobs.WorkerOptions", omit=("interval", "gc_interval", "start", "end", "full"))
def worker(
    url: Url,
    options: WorkerOptions,
    runs: RunnerOptions,
    namespaces: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAMESPACE", help="Only these. [default: all, including new ones]"),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="The wait between rounds. [default: from the setting compaction_cadence]",
        ),
    ] = None,
    gc_interval: Annotated[
        str,
        typer.Option(
            metavar="DURATION|off",
            help="Delete what nothing needs in the first round, and then this often.",
        ),
    ] = "6h",
    small_size: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Work in this process where a namespace has at most so much to read; on Spark where "
            "it has more.",
        ),
    ] = "64MiB",
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Answer GET /metrics and /health here: 127.0.0.1:9464."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Run one round, then exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fold, compact and collect namespaces, round after round.

    Small work runs in this process; Spark is started when there is large work. SIGTERM and Ctrl-C end it with exit code 0,
    also in the middle of a round. It is safe to kill it at any time, and to run several. With --json, prints a line for each
    pass that did something. Exit code 2: too many rounds failed in a row; with --once: a pass failed in some namespace.
    """
    import msgspec

    from reef import jobs

    cadence_s = load_settings().compaction_cadence[1]
    options = msgspec.structs.replace(
        options,
        interval=cadence_s if interval is None else parse_seconds("--interval", interval, 0.1),
        gc_interval=0.0 if gc_interval == "off" else parse_seconds("--gc-interval", gc_interval),
    )
    small_bytes = parse_bytes("--small-size", small_size, 0, BYTES_MAX)
    with connect(url) as db:
        check_bucket_exists(db.store.url)
        context = db.context()
        here = jobs.InProcess(context, light_tasks=min(LIGHT_TASKS_MAX, db.store.concurrency))
        runner = here if runs.in_process else jobs.BySize(here, runs.runner(context), small_bytes)
        failed: list[bool] = []
        ending = context.threads.condition()

        def report(result: PassResult[Any] | ReefError) -> None:
            failed.append(isinstance(result, ReefError) or bool(result.failed))
            (_as_line if as_json else _as_text)(result)

        def wait(seconds: float) -> bool:
            with ending:  # only a signal ends the wait early, by an exception
                return once or is_terminated() or ending.wait(seconds)

        health = jobs.worker_health(db, options)
        try:
            with served(metrics, db, health) as address:
                at = "" if address is None else f", metrics at {address}/metrics"
                print(f"reef: working on {db.store.url}{at}", file=sys.stderr, flush=True)
                jobs.work(
                    db,
                    namespaces or None,
                    runner=runner,
                    options=options,
                    report=report,
                    wait=wait,
                    health=health,
                )
        except KeyboardInterrupt:
            if once:
                raise
        if once and any(failed):
            raise typer.Exit(PROBLEM)


def _as_line(result: PassResult[Any] | ReefError) -> None:
    import msgspec

    if isinstance(result, ReefError):
        line: dict[str, Any] = {"error": f"{type(result).__name__}: {result}"}
    else:
        line = pass_json(result)
        line["namespaces"] = [one for one in line["namespaces"] if one["state"] != "idle"]
    print(msgspec.json.encode(line).decode(), flush=True)


def _as_text(result: PassResult[Any] | ReefError) -> None:
    if isinstance(result, ReefError):
        print(visible(f"round failed: {result}"), file=sys.stderr, flush=True)
        return
    done = sum(one.state == "done" for one in result.records)
    figures = ", ".join(
        f"{figure_text(name, value)} {name.replace('_', ' ')}"
        for name, value in result.totals.items()
    )
    print(f"{result.kind}: {done} namespaces, {figures}; {result.seconds:.1f} s", flush=True)
    for one in result.failed:
        text = visible(f"{result.kind}: {one.namespace}: {one.error}")
        print(text, file=sys.stderr, flush=True)
