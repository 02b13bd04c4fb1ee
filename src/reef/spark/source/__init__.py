"""The data source "reef": reads, the change feed, and their options.

ReefDataSource     what Spark calls; loaded on first use, because it needs PySpark
NamespaceRef, NAMESPACE_OPTIONS, check_names
                   which namespace the options of a read or a write name
ReadOptions        how a namespace is read
ReadVersion, find_version, open_version
                   the version that is read: found once, opened by every task
Scan, plan_scan, pushed_where
                   a read in key ranges, and the option `where`
spark_columns, select_columns
                   the columns that Spark sees, and some of them by name
"""

from importlib import import_module
from typing import TYPE_CHECKING

from reef.spark.source._read_options import (
    NAMESPACE_OPTIONS,
    NamespaceRef,
    ReadOptions,
    check_names,
)
from reef.spark.source._read_version import ReadVersion, find_version, open_version
from reef.spark.source._scan_plan import Scan, plan_scan, pushed_where
from reef.spark.source._spark_columns import select_columns, spark_columns

if TYPE_CHECKING:
    from reef.spark.source._data_source import ReefDataSource

__all__ = [
    "NAMESPACE_OPTIONS",
    "NamespaceRef",
    "ReadOptions",
    "ReadVersion",
    "ReefDataSource",
    "Scan",
    "check_names",
    "find_version",
    "open_version",
    "plan_scan",
    "pushed_where",
    "select_columns",
    "spark_columns",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name == "ReefDataSource":
        return import_module("reef.spark.source._data_source").ReefDataSource
    raise AttributeError(f"module 'reef.spark.source' has no attribute {name!r}")
