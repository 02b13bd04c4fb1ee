"""What an export reads: which version, which columns, in how many parts. Needs no Spark session."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reef.errors import InvalidInputError
from reef.format import SegmentRef
from reef.spark.files._output_format import OutputFormat, output_format
from reef.spark.source import (
    ReadOptions,
    ReadVersion,
    Scan,
    find_version,
    open_version,
    plan_scan,
    pushed_where,
    select_columns,
    spark_columns,
)


@dataclass(frozen=True)
class ExportPlan:
    """What would be copied."""

    namespace: str
    lsn: int
    """The version that it is."""
    format: OutputFormat
    out: str
    columns: tuple[str, ...]
    partitions: int
    """That Spark reads, a task each."""
    rows: int
    """In segments, old versions too: no more than so many, beside what the log behind them has."""
    bytes: int
    """Of the segments that hold them."""


@dataclass(frozen=True)
class Export:
    """One version of a namespace, and how the data source is to read it."""

    version: ReadVersion
    options: ReadOptions
    texts: dict[str, str]
    """The same as Spark takes them."""
    columns: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Of the segments that it is in."""
        return sum(ref.size for ref in self.segments())

    def segments(self) -> Iterable[SegmentRef]:
        """Return those that it is in, each once: of one there may be several references."""
        sources = open_version(self.version).segments()
        return {source.object_key: source.ref for source in sources}.values()


def find_export(
    url: str,
    namespace: str,
    *,
    branch: str | None = None,
    lsn: int | None = None,
    snapshot: str | None = None,
    generation: int | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    is_held: bool = True,
) -> Export:
    """Return the requested export; the column of ids or keys comes first, whatever the columns.

    `is_held` lets a large version be held by a snapshot while it is read. Raises InvalidInputError,
    NotFoundError, RetentionError, SnapshotExpiredError, UnavailableError.
    """
    options_given = {
        "branch": branch,
        "lsn": lsn,
        "snapshot": snapshot,
        "generation": generation,
        "where": where,
    }
    texts = {name: str(value) for name, value in options_given.items() if value is not None}
    texts |= {"url": url, "namespace": namespace}
    version = find_version(ReadOptions.of(texts if is_held else {**texts, "hold": "none"}))
    if not {"lsn", "snapshot", "generation"} & texts.keys():
        texts["lsn"] = str(version.lsn)  # the plan names the version that is read
    every = spark_columns(version.face, version.columns)
    if columns:
        names = dict.fromkeys([every[0].name, *columns])
        texts["columns"] = json.dumps([*names])  # whatever characters they have
    options = ReadOptions.of(texts)
    pushed_where(options.where, version)
    names_of = tuple(column.name for column in select_columns(every, options.columns))
    _check_cases(names_of)
    return Export(version, options, texts, names_of)


def _check_cases(names: Iterable[str]) -> None:
    """Raise InvalidInputError for names that Spark and most other readers take for one."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.lower(), name)
        if other != name:
            raise InvalidInputError(
                f"columns {other!r} and {name!r} differ in upper and lower case only: "
                "leave one out with --columns, or rename it"
            )


def plan_export(
    url: str, namespace: str, out: str, *, format: str = "parquet", **asked_for: Any
) -> ExportPlan:
    """Return what `export` would copy.

    Writes nothing, and raises the same errors, except those about `out`.

    What is asked for is said as `find_export` takes it.
    """
    kind = output_format(format)
    found = find_export(url, namespace, is_held=False, **asked_for)
    every = spark_columns(found.version.face, found.version.columns)
    options = found.options
    scan = Scan(
        found.version,
        select_columns(every, options.columns),
        pushed_where(options.where, found.version),
        options.batch_bytes,
    )
    ranges = plan_scan(
        scan, partition_bytes=options.partition_bytes, min_partitions=options.min_partitions
    )
    return ExportPlan(
        found.version.ref.namespace,
        found.version.lsn,
        kind,
        out,
        found.columns,
        max(1, len(ranges)),
        sum(ref.rows for ref in found.segments()),
        found.bytes,
    )
