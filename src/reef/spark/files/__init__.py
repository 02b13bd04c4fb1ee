"""Files into a namespace (`reef ingest`) and out of one (`reef export`).

ingest, plan_ingest    read CSV, JSON lines, Parquet, Delta or Iceberg; IngestPlan says what would be read
IngestOptions          how files are loaded, for the command line
export, plan_export    write them
input_format, output_format
                       which format a path or an option names
check_options          refuse options that the format does not have
"""

from importlib import import_module
from typing import TYPE_CHECKING

from reef.spark.files._ingest_options import IngestOptions
from reef.spark.files._input_format import IngestPlan, check_options, input_format, plan_ingest
from reef.spark.files._output_format import output_format

if TYPE_CHECKING:
    from reef.spark.files._export import export
    from reef.spark.files._export_plan import plan_export
    from reef.spark.files._ingest import ingest

# Loaded when they are asked for: they need PySpark.
_HOMES = {
    "export": "reef.spark.files._export",
    "ingest": "reef.spark.files._ingest",
    "plan_export": "reef.spark.files._export_plan",
}

__all__ = [
    "IngestOptions",
    "IngestPlan",
    "check_options",
    "export",
    "ingest",
    "input_format",
    "output_format",
    "plan_export",
    "plan_ingest",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'reef.spark.files' has no attribute {name!r}")
