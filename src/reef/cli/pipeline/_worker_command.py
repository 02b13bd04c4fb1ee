"""`reef worker`: stay, and fold and compact when it is worth it."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli import PROBLEM, visible
from reef.cli.arguments import AsJson, Url, check_bucket_exists, connect, derived
from reef.cli.pipeline._run_pass import RunnerOptions, figure_text, pass_json
from reef.errors import ReefError
from reef.settings import load_settings, parse_seconds

if TYPE_CHECKING:
    from reef.jobs import PassResult, WorkerOptions
    from reef.threads import Threads


@derived("reef.jobs.WorkerOptions", omit=("interval", "start", "end", "full"))
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
    once: Annotated[bool, typer.Option("--once", help="Run one round, then exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fold and compact namespaces, round after round.

    Uses one Spark session. SIGTERM and Ctrl-C end it after the current round. It is safe to kill it at any time, and to run
    several. With --json, prints a line for each pass that did something. With --once, exit code 2:
    a pass failed in some namespace.
    """
    import msgspec

    from reef import jobs

    cadence_s = load_settings().compaction_cadence[1]
    seconds = cadence_s if interval is None else parse_seconds("--interval", interval, 0.1)
    options = msgspec.structs.replace(options, interval=seconds)
    with connect(url) as db:
        check_bucket_exists(db.store.url)
        ending = _Ending(db.context().threads)
        runner = runs.runner(db.context(), begun=ending.listen)
        print(f"reef: working on {db.store.url}", file=sys.stderr, flush=True)
        failed: list[bool] = []

        def report(result: PassResult[Any] | ReefError) -> None:
            failed.append(isinstance(result, ReefError) or bool(result.failed))
            (_as_line if as_json else _as_text)(result)

        jobs.work(
            db,
            namespaces or None,
            runner=runner,
            options=options,
            report=report,
            wait=lambda seconds: once or ending.wait(seconds),
        )
        if once and any(failed):
            raise typer.Exit(PROBLEM)


class _StopRequested(Exception):
    """Somebody wants the worker to end while it waits."""


class _Ending:
    """What SIGTERM and Ctrl-C ask for: an end after the round; a second one ends as usual."""

    def __init__(self, threads: Threads) -> None:
        self._condition = threads.condition()
        self._is_asked_to_end = self._is_waiting = False
        self._heard: set[int] = set()
        self.listen()

    def listen(self) -> None:
        """Take the signals; again when a Spark session was started, which takes Ctrl-C for itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL if number in self._heard else self._on_signal)

    def wait(self, seconds: float) -> bool:
        """Wait, but not past a signal to end; return whether there was one."""
        self._is_waiting = True
        try:
            with self._condition:
                if not self._is_asked_to_end:
                    self._condition.wait(seconds)
        except _StopRequested:
            pass
        finally:
            self._is_waiting = False
        return self._is_asked_to_end

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._is_asked_to_end = True
        self._heard.add(number)
        signal.signal(number, signal.SIG_DFL)
        if self._is_waiting:
            raise _StopRequested


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
