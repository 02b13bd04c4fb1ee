"""`reef ingest`: files into a namespace, on Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from reef.cli._bucket import AsJson, Namespace, Url, connect
from reef.cli._output import print_facts, print_json, size_text
from reef.cli._parameters import grouped
from reef.cli._pass import DryRun, SparkOptions, size_of, watched
from reef.cli.docs import Declared, pairs_of
from reef.types import split_namespace

if TYPE_CHECKING:
    from reef.spark import WriteResult
    from reef.spark.files import IngestPlan

_METHODS = {"log": "the log", "bulk": "segments that are attached at once"}


@grouped
def ingest(
    url: Url,
    namespace: Namespace,
    spark: SparkOptions,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Files, folders or patterns to load."),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT", help="parquet, csv or jsonl. [default: from the file names]"
        ),
    ] = None,
    id: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column that holds the ids.")
    ] = "id",
    schema: Declared = None,
    job_key: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="A name for this load. A second load under the same name writes nothing.",
        ),
    ] = None,
    operation: Annotated[
        str, typer.Option(metavar="WHAT", help="upsert, patch, delete or create.")
    ] = "upsert",
    duplicates: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="If an id occurs twice: error; or last, to keep the last one."
        ),
    ] = "error",
    skip: Annotated[
        bool,
        typer.Option(
            "--skip", help="Skip documents that cannot be patched or created, instead of failing."
        ),
    ] = False,
    method: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="log; bulk, to attach segments at once; or auto, to decide by size.",
        ),
    ] = "auto",
    target_size: Annotated[
        str, typer.Option(metavar="SIZE", help="The size of the segments of a bulk load.")
    ] = "128MiB",
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="About how much one task holds in memory.")
    ] = "256MiB",
    multiline: Annotated[
        bool,
        typer.Option(
            "--multiline",
            help="CSV: allow line breaks in quoted values. One task reads each file.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Load Parquet, CSV or JSON lines into a namespace, all at once.

    A process that has the namespace open for writing is fenced and must open it again.
    """
    from reef.spark.files import check_options, input_format, plan_ingest

    declared = pairs_of("--schema", schema)
    kind = input_format(files, format)  # before a session is started
    check_options(files, kind, multiline=multiline)
    name, branch = split_namespace(namespace)
    options = {
        "branch": branch,
        "job_key": job_key,
        "operation": operation,
        "duplicates": duplicates,
        "skip": skip,
        "method": method,
        "target_bytes": size_of("--target-size", target_size),
        "memory": size_of("--memory", memory),
    }
    with connect(url) as db:
        _check(url, name, options)
        if dry_run:
            asked = {"format": kind, "id": id, "operation": operation, "method": method}
            _show_plan(plan_ingest(db.context(), namespace, files, **asked), as_json)
            return
        session = spark.session()
        from reef.spark.files import ingest as load

        with watched("ingest", db.context().clock) as watch:
            result = load(
                session,
                url,
                name,
                files,
                format=kind,
                id=id,
                schema=declared,
                multiline=multiline,
                watch=watch,
                **options,
            )
    if as_json:
        print_json({"url": db.store.url, "namespace": namespace, **dataclasses.asdict(result)})
    else:
        _print(result, operation)


def _print(result: WriteResult, operation: str) -> None:
    if result.replayed:
        print(f"nothing was loaded: an earlier load with this key wrote it at LSN {result.lsn}")
        return
    left = [
        f"{count:,} {what}"
        for count, what in (
            (result.dropped, "dropped for a later one with the same id"),
            (result.skipped, "skipped"),
        )
        if count
    ]
    at = "nothing to load" if result.lsn is None else f"LSN {result.lsn}, by {result.method}"
    print("; ".join([f"{operation}: {result.rows:,} documents", *left, at]))


def _show_plan(plan: IngestPlan, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": True, **dataclasses.asdict(plan)})
        return
    listed = f"{len(plan.files):,}, {size_text(plan.bytes)}"
    if plan.unlisted:
        listed += f", and what Spark finds at {', '.join(plan.unlisted)}"
    attributes = plan.attributes
    print_facts(
        [
            ("files", f"{listed}, as {plan.format}"),
            ("columns", None if plan.columns is None else ", ".join(plan.columns)),
            ("namespace", plan.namespace),
            ("attributes", "it is new" if attributes is None else ", ".join(attributes) or "none"),
            ("loads by", f"{plan.operation}, through {_METHODS.get(plan.method, plan.method)}"),
        ]
    )
    print("nothing was loaded")


def _check(url: str, namespace: str, options: Mapping[str, object]) -> None:
    """Raise InvalidInputError for options that are wrong whatever Spark says."""
    try:
        from reef.spark import WriteOptions
    except ModuleNotFoundError:
        return  # opening the session reports it
    texts = {name: str(value) for name, value in options.items() if value is not None}
    WriteOptions.of({**texts, "url": url, "namespace": namespace})
