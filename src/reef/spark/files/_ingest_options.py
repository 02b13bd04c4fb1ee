"""Options of `reef ingest`: the part that needs no Spark."""

from __future__ import annotations

from typing import Any

import msgspec

from reef.errors import InvalidInputError
from reef.jobs.load import BUDGET_BYTES_DEFAULT, TARGET_BYTES_DEFAULT
from reef.segment import Duplicates
from reef.spark._write._write_options import Method, Operation
from reef.spark.files._input_format import InputFormat


class IngestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How files are loaded."""

    format: InputFormat | None = None
    """The format of the files. None: from their names."""
    id: str = "id"
    """The column that holds the ids."""
    operation: Operation = "upsert"
    """What to do with the rows: upsert whole documents, patch or delete existing ones, or create
    new ones."""
    duplicates: Duplicates = "error"
    """What to do if an id occurs twice: fail, or keep the last one."""
    skip: bool = False
    """Skip documents that cannot be patched or created, instead of failing."""
    job_key: str | None = None
    """A name for this load. A second load under the same name writes nothing."""
    method: Method = "auto"
    """How to write: through the log; bulk, which attaches sorted segments at once; or auto, which
    decides by size."""
    target_size_bytes: int = TARGET_BYTES_DEFAULT
    """The size of the segments of a bulk load."""
    memory_bytes: int = BUDGET_BYTES_DEFAULT
    """About how much one task of a bulk load holds in memory."""
    multiline: bool = False
    """CSV: allow line breaks in quoted values. One task reads each file."""

    def __post_init__(self) -> None:
        for name in ("target_size_bytes", "memory_bytes"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} is {getattr(self, name)}; give at least 1")

    def as_dict(self) -> dict[str, Any]:
        """Return them as arguments of `ingest`: those of a size are options of the data source."""
        arguments = msgspec.structs.asdict(self)
        arguments["target_bytes"] = arguments.pop("target_size_bytes")
        arguments["memory"] = arguments.pop("memory_bytes")
        return arguments
