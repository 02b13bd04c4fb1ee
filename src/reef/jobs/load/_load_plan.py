"""The plan of a bulk load: how its rows are stored, and under which intent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Literal

import msgspec
import pyarrow as pa

from reef.documents import FACE as DOCUMENTS_FACE
from reef.documents.types import Schema
from reef.engine import (
    Context,
    Face,
    check_idempotency_key,
    open_for_reading,
    open_for_writing,
)
from reef.errors import FencedError, InvalidInputError, NotFoundError
from reef.jobs.load._segment_rows import (
    PAIRS_SCHEMA,
    row_schema,
    schema_for,
    stored_pairs,
    stored_rows,
)
from reef.kv import FACE as KV_FACE
from reef.segment import Duplicates
from reef.types import new_ulid

FaceName = Literal["documents", "kv"]
TARGET_BYTES_DEFAULT = 128 << 20
LOAD_KIND = "load"
"""The kind of a load's intent, with which its id begins."""

FACES: dict[FaceName, Face] = {"documents": DOCUMENTS_FACE, "kv": KV_FACE}


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A load that has been begun. Small: it may go to another process, and be kept for a retry."""

    namespace: str
    face: FaceName
    job: str
    """The intent: its segments have the id in their names."""
    job_key: str
    base: bytes
    """Documents: the schema that the namespace had, as an Arrow IPC schema."""
    schema: bytes
    """Documents: the same with the attributes that the load adds."""
    target_bytes: int
    duplicates: Duplicates
    codec: Literal["lz4", "zstd"]
    attempts: str = ""
    """A prefix of the intents of all attempts, if there may be others."""

    @property
    def base_schema(self) -> Schema:
        """Documents: the schema that the namespace had."""
        return _unpacked_schema(self.base)

    @property
    def document_schema(self) -> Schema:
        """Documents: the schema that rows are stored by."""
        return _unpacked_schema(self.schema)

    def stored(self, batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
        """Return rows in the columns of segments. Raises InvalidInputError as `upsert` does."""
        if self.face == "kv":
            return stored_pairs(batch)
        return stored_rows(self.document_schema, batch, duplicates=self.duplicates)

    @property
    def row_schema(self) -> pa.Schema:
        """The columns that `write_part` takes."""
        return PAIRS_SCHEMA if self.face == "kv" else row_schema(self.document_schema)


def plan_load(
    context: Context,
    namespace: str,
    *,
    job_key: str,
    job: str | None = None,
    face: FaceName = "documents",
    columns: pa.Schema | None = None,
    declared: Mapping[str, str] | None = None,
    target_bytes: int = TARGET_BYTES_DEFAULT,
    duplicates: Duplicates = "error",
    codec: Literal["lz4", "zstd"] = "lz4",
    attempts: str = "",
) -> LoadPlan:
    """Decide how rows are stored, by the schema that the namespace has now; make it if need be.

    Registers no intent: `job` is its id, by default a new one. `columns` are those of the tables to come, by which new attributes get their
    types; `declared` says what Arrow cannot. Raises InvalidInputError, UnavailableError.
    """
    check_idempotency_key(job_key)
    if target_bytes < 1:
        raise InvalidInputError(f"target_bytes is {target_bytes}; expected 1 or more")
    if duplicates not in ("error", "last"):
        raise InvalidInputError(f"duplicates is {duplicates!r}; give 'error' or 'last'")
    if face not in FACES:
        raise InvalidInputError(f"face is {face!r}; give 'documents' or 'kv'")
    arrow = _current_schema(context, namespace, FACES[face])
    base = schema = b""
    if face == "documents":
        current = Schema.from_arrow(arrow)
        base = packed_schema(current)
        schema = packed_schema(
            current if columns is None else schema_for(current, columns, declared)
        )
    return LoadPlan(
        namespace=namespace,
        face=face,
        job=job or f"{LOAD_KIND}-{new_ulid(context.clock, context.rng).lower()}",
        job_key=job_key,
        base=base,
        schema=schema,
        target_bytes=target_bytes,
        duplicates=duplicates,
        codec=codec,
        attempts=attempts,
    )


def packed_schema(schema: Schema) -> bytes:
    """Return a schema as the Arrow IPC message that plans carry."""
    return bytes(schema.to_arrow().serialize().to_pybytes())


def _current_schema(context: Context, namespace: str, face: Face) -> pa.Schema:
    """Return the columns of a namespace, which is made if there is none; fences no writer."""
    try:
        reader = open_for_reading(context, namespace, face)
    except NotFoundError:
        with suppress(FencedError):  # another load has made it at the same time
            open_for_writing(context, namespace, face).close()
        reader = open_for_reading(context, namespace, face)
    schema = reader.tail.schema
    reader.close()
    return face.schema if schema is None else schema


def _unpacked_schema(data: bytes) -> Schema:
    return Schema.from_arrow(pa.ipc.read_schema(pa.py_buffer(data)))
