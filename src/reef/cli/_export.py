"""`reef export`: a version of a namespace into files, on Spark."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from reef.cli._bucket import AsJson, Namespace, Url, connect
from reef.cli._output import print_facts, print_json, size_text
from reef.cli._parameters import grouped
from reef.cli._pass import DryRun, SparkOptions, watched
from reef.cli._version import Version
from reef.cli.docs import Columns, Where, chosen
from reef.types import split_namespace


@grouped
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
    as_json: AsJson = False,
) -> None:
    """Copy one version of a namespace to Parquet, CSV, JSON lines, Delta or Iceberg.

    With --columns, the id column (key of a key-value namespace) still comes first.
    """
    from reef.spark.files import output_format

    kind = output_format(format)  # before a session is started
    name, branch = split_namespace(namespace)
    asked: dict[str, Any] = {
        "format": kind,
        "branch": branch,
        **version.as_dict(),
        "columns": chosen(columns),
        "where": where,
    }
    with connect(url) as db:
        if dry_run:
            _show_plan(url, name, out, asked, as_json)
            return
        session = spark.session()
        from reef.spark.files import export as copy

        with watched("export", db.context().clock) as watch:
            result = copy(session, url, name, out, watch=watch, **asked)
    if as_json:
        print_json({"url": db.store.url, **dataclasses.asdict(result)})
        return
    print(f"{namespace} at LSN {result.lsn}: written to {out} as {kind}")


def _show_plan(url: str, namespace: str, out: str, asked: dict[str, Any], as_json: bool) -> None:
    from reef.spark.files import plan_export

    plan = plan_export(url, namespace, out, **asked)
    if as_json:
        print_json({"dry_run": True, **dataclasses.asdict(plan)})
        return
    print_facts(
        [
            ("namespace", plan.namespace),
            ("LSN", plan.lsn),
            ("to", f"{out}, as {plan.format}"),
            ("columns", ", ".join(plan.columns)),
            ("reads", f"{size_text(plan.bytes)} in segments, {plan.rows:,} rows at most"),
            ("tasks", plan.partitions),
        ]
    )
    print("nothing was written")
