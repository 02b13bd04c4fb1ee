"""`reef export`: a version of a namespace into files, on Spark."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from reef.cli._report import Report, size_text
from reef.cli.arguments import Namespace, Url, Version, connect, lsn_of
from reef.cli.docs import Columns, Where, column_list
from reef.cli.pipeline._run_pass import DryRun, SparkOptions, watched
from reef.types import split_namespace


def export(
    url: Url,
    namespace: Namespace,
    spark: SparkOptions,
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="The folder to write; it must not exist yet.")
    ],
    version: Version,
    format: Annotated[
        str, typer.Option(metavar="FORMAT", help="parquet, csv, jsonl, delta or iceberg.")
    ] = "parquet",
    columns: Columns = None,
    where: Where = None,
    dry_run: DryRun = False,
) -> Report:
    """Copy one version of a namespace to files.

    Parquet, CSV, JSON lines, Delta or Iceberg. With --columns, the id column (key of a key-value namespace) still comes first.
    """
    from reef.spark.files import output_format

    kind = output_format(format)  # before a session is started
    name, branch = split_namespace(namespace)
    arguments: dict[str, Any] = {
        "format": kind,
        "branch": branch,
        "columns": column_list(columns),
        "where": where,
    }
    with connect(url) as db:
        arguments |= version.as_dict()
        if arguments.pop("time", None) is not None:
            arguments["lsn"] = lsn_of(db, namespace, version.at)
        if dry_run:
            return _export_plan_report(url, name, out, arguments)
        session = spark.session()
        from reef.spark.files import export as copy

        with watched("export", db.context().clock) as watch:
            result = copy(session, url, name, out, watch=watch, **arguments)
    return Report(
        {"url": db.store.url, **dataclasses.asdict(result)},
        [f"{namespace} at LSN {result.lsn}: written to {out} as {kind}"],
    )


def _export_plan_report(url: str, namespace: str, out: str, arguments: dict[str, Any]) -> Report:
    from reef.spark.files import plan_export

    plan = plan_export(url, namespace, out, **arguments)
    facts = {
        "namespace": plan.namespace,
        "LSN": plan.lsn,
        "to": f"{out}, as {plan.format}",
        "columns": ", ".join(plan.columns),
        "reads": f"{size_text(plan.bytes)} in segments, {plan.rows:,} rows at most",
        "tasks": plan.partitions,
    }
    data = {"dry_run": True, **dataclasses.asdict(plan)}
    return Report(data, [facts, "nothing was written"])
