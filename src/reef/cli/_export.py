"""`reef export`: a version of a namespace into files, on Spark."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from reef.cli import _docs_options as docs
from reef.cli._bucket import AsJson, Namespace, Url, connect
from reef.cli._output import print_json
from reef.cli._pass import Conf, Master, Remote, Where


def export(
    url: Url,
    namespace: Namespace,
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="A folder that is not there yet: its files.")
    ],
    format: Annotated[
        str, typer.Option(metavar="FORMAT", help="parquet, csv, jsonl, delta or iceberg.")
    ] = "parquet",
    lsn: docs.Lsn = None,
    snapshot: docs.AtSnapshot = None,
    generation: docs.Generation = None,
    columns: docs.Columns = None,
    where: docs.Where = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Copy one version of a namespace to Parquet, CSV, JSON lines, Delta or Iceberg."""
    from reef.pipeline._export import output_format

    place = Where.of(master, remote, conf)
    kind = output_format(format)  # before a session is started
    names = docs.chosen(columns)
    with connect(url) as db:
        spark = place.session()
        from reef.spark._export import export as copy

        result = copy(
            spark,
            url,
            namespace,
            out,
            format=kind,
            lsn=lsn,
            snapshot=snapshot,
            generation=generation,
            columns=None if names is None else ["id", *names],
            where=where,
        )
    if as_json:
        print_json({"url": db.store.url, **dataclasses.asdict(result)})
        return
    print(f"{namespace} at LSN {result.lsn}: written to {out} as {kind}")
