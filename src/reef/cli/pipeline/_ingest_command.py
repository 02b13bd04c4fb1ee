"""`reef ingest`: files into a namespace, on Spark."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from reef.cli._report import Report, size_text
from reef.cli.arguments import Namespace, Url, connect, derived
from reef.cli.docs import Declared, pairs_of
from reef.cli.pipeline._run_pass import DryRun, SparkOptions, watched
from reef.types import split_namespace

if TYPE_CHECKING:
    from reef.spark import WriteResult
    from reef.spark.files import IngestOptions, IngestPlan

_METHODS = {"log": "the log", "bulk": "segments that are attached at once"}
_OF_FILES = ("format", "id", "multiline")  # not of the write that their rows become


@derived("reef.spark.files.IngestOptions")
def ingest(
    url: Url,
    namespace: Namespace,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Files, folders or patterns to load."),
    ],
    options: IngestOptions,
    spark: SparkOptions,
    schema: Declared = None,
    dry_run: DryRun = False,
) -> Report:
    """Load Parquet, CSV or JSON lines into a namespace.

    All rows become visible at once. A process that has the namespace open for writing is fenced and must open it again.
    """
    from reef.spark import WriteOptions
    from reef.spark.files import check_options, input_format, plan_ingest

    declared = pairs_of("--schema", schema)
    kind = input_format(files, options.format)  # before a session is started
    check_options(files, kind, multiline=options.multiline)
    name, branch = split_namespace(namespace)
    arguments = {**options.as_dict(), "format": kind, "branch": branch}
    with connect(url) as db:
        written = {n: value for n, value in arguments.items() if n not in _OF_FILES}
        WriteOptions.of_arguments(url, name, written)  # raises what is wrong
        if dry_run:
            how = {n: arguments[n] for n in ("format", "id", "operation", "method")}
            return _ingest_plan_report(plan_ingest(db.context(), namespace, files, **how))
        session = spark.session()
        from reef.spark.files import ingest as load

        with watched("ingest", db.context().clock) as watch:
            result = load(session, url, name, files, schema=declared, watch=watch, **arguments)
        data = {"url": db.store.url, "namespace": namespace, **dataclasses.asdict(result)}
    return Report(data, [_load_summary(result, options.operation)])


def _load_summary(result: WriteResult, operation: str) -> str:
    if result.replayed:
        return f"nothing was loaded: an earlier load with this key wrote it at LSN {result.lsn}"
    left = [
        f"{count:,} {what}"
        for count, what in (
            (result.dropped, "dropped for a later one with the same id"),
            (result.skipped, "skipped"),
        )
        if count
    ]
    at = "nothing to load" if result.lsn is None else f"LSN {result.lsn}, by {result.method}"
    return "; ".join([f"{operation}: {result.rows:,} documents", *left, at])


def _ingest_plan_report(plan: IngestPlan) -> Report:
    listed = f"{len(plan.files):,}, {size_text(plan.bytes)}"
    if plan.unlisted:
        listed += f", and what Spark finds at {', '.join(plan.unlisted)}"
    attributes = plan.attributes
    facts = {
        "files": f"{listed}, as {plan.format}",
        "columns": None if plan.columns is None else ", ".join(plan.columns),
        "namespace": plan.namespace,
        "attributes": "it is new" if attributes is None else ", ".join(attributes) or "none",
        "loads by": f"{plan.operation}, through {_METHODS.get(plan.method, plan.method)}",
    }
    data = {"dry_run": True, **dataclasses.asdict(plan)}
    return Report(data, [facts, "nothing was loaded"])
