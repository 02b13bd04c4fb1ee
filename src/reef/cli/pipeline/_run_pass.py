"""What commands of the pipeline share: where they run, their progress, their report."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from reef.cli._report import Part, Report, Table, progress_bars, size_text
from reef.errors import InvalidInputError

if TYPE_CHECKING:
    from reef.clock import Clock
    from reef.database import Database
    from reef.engine import Context
    from reef.jobs import NamespaceResult, PassProgress, PassResult, Runner

_LINE_SECONDS = 10.0

_T = TypeVar("_T")

DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan. Start no Spark and write nothing.")
]


@dataclass(frozen=True)
class SparkOptions:
    """Which Spark a pass runs on."""

    master: Annotated[
        str | None,
        typer.Option(
            metavar="MASTER",
            help="Where Spark runs, if the command uses it: local[4], spark://..., yarn, "
            "k8s://... [default: local[*,4]]",
        ),
    ] = None
    remote: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="A Spark Connect server: sc://host:port. [env: SPARK_REMOTE]"
        ),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark. Repeatable."),
    ] = None

    def __post_init__(self) -> None:
        self.settings()
        if self.master and self.remote:
            raise InvalidInputError("both --master and --remote given; give at most one")

    @property
    def names_spark(self) -> bool:
        """Whether any option of Spark is given."""
        return bool(self.master or self.remote or self.conf)

    def settings(self) -> dict[str, str]:
        """Return the settings of Spark by name. Raises InvalidInputError."""
        pairs = [one.partition("=") for one in self.conf or ()]
        for name, sign, value in pairs:
            if not (name and sign):
                raise InvalidInputError(f"--conf is {name}{sign}{value!r}; expected NAME=VALUE")
        return {name: value for name, _, value in pairs}

    def runner(self, context: Context) -> Runner:
        """Return who runs the tasks. Raises UnavailableError, InvalidInputError."""

        from reef.spark import spark_runner

        return spark_runner(context, self.session)  # with nothing to run, no JVM is started

    def session(self) -> Any:
        """Return the Spark session. Raises UnavailableError, InvalidInputError."""
        from reef.spark import session

        logging.getLogger().addFilter(_is_not_py4j)
        return session(master=self.master, remote=self.remote, conf=self.settings())


@dataclass(frozen=True)
class RunnerOptions(SparkOptions):
    """Where a pass runs: on Spark, or in this process."""

    in_process: Annotated[
        bool, typer.Option("--in-process", help="Run the tasks in this process, without Spark.")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.in_process and self.names_spark:
            raise InvalidInputError(
                "--in-process given with Spark's options; give one or the other"
            )

    def runner(self, context: Context) -> Runner:
        """Return who runs the tasks, as `SparkOptions.runner` does."""
        from reef.jobs import InProcess

        return InProcess(context) if self.in_process else super().runner(context)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Return False for what py4j logs beside the error that it raises: a stack, or two, on Ctrl-C."""
    return "py4j" not in record.pathname


def run_watched(
    what: str,
    do: Callable[..., _T],
    db: Database,
    names: list[str] | None,
    *,
    runs: SparkOptions,
    **arguments: Any,
) -> _T:
    """Return what a function of `reef.jobs` does; its progress is shown meanwhile."""
    runner = runs.runner(db.context())
    with watched(what, db.context().clock) as watch:
        return do(db, names, runner=runner, watch=watch, **arguments)


@contextlib.contextmanager
def watched(what: str, clock: Clock) -> Iterator[Callable[[PassProgress], None]]:
    """Show how far a pass is: a bar on a terminal; elsewhere a line every ten seconds at most."""
    begun = last = clock.monotonic()
    with progress_bars() as bars:
        if bars.are_shown:
            bars(what, 0, None, "")

        def print_progress(seen: PassProgress) -> None:
            nonlocal last
            if bars.are_shown:
                tasks = f"{seen.tasks_done}/{seen.tasks} tasks  {_about(seen)}"
                bars(what, seen.tasks_done, seen.tasks, tasks)
                return
            now = clock.monotonic()
            if now - last < _LINE_SECONDS:
                return
            last = now
            left = ""
            if 0 < seen.tasks_done < seen.tasks:
                seconds = (now - begun) * (seen.tasks - seen.tasks_done) / seen.tasks_done
                left = f", about {seconds:.0f} s left"
            tasks = f"{seen.tasks_done} of {seen.tasks} tasks"
            about = ", ".join(filter(None, (tasks, _about(seen))))
            print(f"{what}: {about}{left}", file=sys.stderr, flush=True)

        yield print_progress


def _about(seen: PassProgress) -> str:
    """Return the progress in bytes, objects, rows and namespaces, as far as known."""
    counts = []
    if seen.bytes:
        counts.append(f"{size_text(seen.bytes_done)} of {size_text(seen.bytes)}")
    if seen.objects:
        counts.append(f"{seen.objects_done:,} of {seen.objects:,} objects")
    if seen.rows:
        counts.append(f"{seen.rows:,} rows")
    if seen.namespaces_known:
        counts.append(f"{seen.namespaces:,} of {seen.namespaces_known:,} namespaces")
    elif seen.namespaces:
        counts.append(f"{seen.namespaces:,} namespaces done")
    return ", ".join(counts)


def pass_report(url: str, result: PassResult[Any], *notes: str) -> Report:
    """Return what a pass did. It is a problem if it could not be done in some namespace."""
    parts: list[Part] = [f"{one.namespace}: {one.error}" for one in result.failed]
    done = sum(one.state == "done" for one in result.records)
    idle = sum(one.state == "idle" for one in result.records)
    parts.append(
        f"{result.kind}: {done} namespaces done, {idle} with nothing to do, "
        f"{len(result.failed)} failed; {result.tasks.count} tasks, {result.seconds:.1f} s"
    )
    if result.totals:
        totals = ((name, figure_text(name, value)) for name, value in result.totals.items())
        parts.append(Table(("", "total"), totals))
        peak = size_text(result.tasks.peak_rss_bytes)
        parts.append(
            f"tasks took {result.tasks.seconds:.1f} s together, {peak} at most in one process"
        )
    return Report({"url": url, **pass_json(result)}, [*parts, *notes], bool(result.failed))


def pass_json(result: PassResult[Any]) -> dict[str, Any]:
    """Return what a pass did, for programs."""
    return {
        "id": result.id,
        "pass": result.kind,
        "seconds": round(result.seconds, 3),
        "totals": result.totals,
        "tasks": {
            "count": result.tasks.count,
            "seconds": round(result.tasks.seconds, 3),
            "peak_bytes": result.tasks.peak_rss_bytes,
        },
        "namespaces": [
            {
                "namespace": one.namespace,
                "state": one.state,
                "generation": one.generation,
                "figures": one.figures,
                "error": one.error or None,
            }
            for one in result.records
        ],
    }


def preview_report(
    found: list[NamespaceResult[Any]], data: Mapping[str, Any], table: Table, *notes: str
) -> Report:
    """Return what a pass would do. It is a problem if it could not be planned in some namespace."""
    failed = {one.namespace: str(one.error) for one in found if one.error is not None}
    lines = (*notes, *(f"{name}: {error}" for name, error in failed.items()))
    data = {**data, "failed": failed}
    return Report(data, [table, *lines], bool(failed))


def figure_text(name: str, value: int) -> str:
    """Return a figure of a pass as people read it."""
    return size_text(value) if name.startswith("bytes") else f"{value:,}"
