"""Spark as a client of Reef: sessions, tasks on them, and the data source "reef".

session       a Spark session with the data source: the running one, or a new one
register      add the data source to a session that somebody else made
write         a DataFrame into a namespace, as the data source does; returns a WriteResult
bulk_load     a DataFrame into a namespace, sorted by Spark, committed all at once
spark_runner  runs the tasks of `reef.jobs` on a session
WriteOptions  how rows are written
files         a sub-package: `ingest` and `export`
make_archive, archive_path
              Spark's classes archived for this Java, so that sessions start sooner
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from reef.errors import InvalidInputError

if TYPE_CHECKING:
    from reef.spark._archive import archive_path, make_archive
    from reef.spark._register import register, session
    from reef.spark._runner import spark_runner
    from reef.spark._write._batch_write import bulk_load, write
    from reef.spark._write._write_commit import WriteResult
    from reef.spark._write._write_options import WriteOptions

# Loaded when they are asked for: plans and their options need no PySpark.
_HOMES = {
    "WriteOptions": "reef.spark._write._write_options",
    "WriteResult": "reef.spark._write._write_commit",
    "archive_path": "reef.spark._archive",
    "bulk_load": "reef.spark._write._batch_write",
    "make_archive": "reef.spark._archive",
    "register": "reef.spark._register",
    "session": "reef.spark._register",
    "spark_runner": "reef.spark._runner",
    "write": "reef.spark._write._batch_write",
}

__all__ = [
    "WriteOptions",
    "WriteResult",
    "archive_path",
    "bulk_load",
    "make_archive",
    "register",
    "session",
    "spark_runner",
    "write",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'reef.spark' has no attribute {name!r}")
    if find_spec("pyspark") is None:
        raise InvalidInputError(
            "this runs on Spark, which is not installed: pip install 'reefdb[spark]'"
        )
    return getattr(import_module(_HOMES[name]), name)
