"""The data source "reef": reads, the change feed, and their options.

ReefDataSource             what Spark calls; loaded when it is asked for, because it needs PySpark
NamespaceRef, PLACE, check_names
                           which namespace the options of a read or a write name
ReadOptions                how a namespace is read
ReadVersion, find_version, open_version
                           the version that is read: found once, opened by every task
Scan, plan, pushed_where   a read in key ranges, and the option `where`
columns_of, chosen         the columns that Spark sees, and some of them by name
"""

from importlib import import_module
from typing import TYPE_CHECKING

from reef.spark.source._read_options import PLACE, NamespaceRef, ReadOptions, check_names
from reef.spark.source._read_version import ReadVersion, find_version, open_version
from reef.spark.source._scan_plan import Scan, plan, pushed_where
from reef.spark.source._spark_columns import chosen, columns_of

if TYPE_CHECKING:
    from reef.spark.source._data_source import ReefDataSource

__all__ = [
    "PLACE",
    "NamespaceRef",
    "ReadOptions",
    "ReadVersion",
    "ReefDataSource",
    "Scan",
    "check_names",
    "chosen",
    "columns_of",
    "find_version",
    "open_version",
    "plan",
    "pushed_where",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name == "ReefDataSource":
        return import_module("reef.spark.source._data_source").ReefDataSource
    raise AttributeError(f"module 'reef.spark.source' has no attribute {name!r}")
