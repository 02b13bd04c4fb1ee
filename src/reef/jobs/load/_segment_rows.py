"""Input of a bulk load → rows in the columns of segments.

Documents are read as `upsert` reads them, with the same errors; keys and values as `kv` does. Rows come
out in the order they came in. Their version is a placeholder: their real one is that of the log record
that attaches them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.input import ID, Duplicates, is_vector_name, read_rows
from reef.documents.types import Schema, Type, is_list, is_number_or_null
from reef.errors import InvalidInputError
from reef.format import segment_schema
from reef.kv import FACE as KV_FACE
from reef.kv import binary_column
from reef.types import KEY_BYTES_MAX

ROW_LSN = 1
"""The placeholder in files, where every version is at least 1."""

PAIRS_SCHEMA = segment_schema(list(KV_FACE.schema))


def stored_rows(
    schema: Schema, batch: object, *, duplicates: Duplicates = "error"
) -> pa.RecordBatch:
    """Return documents in the columns of segments, each attribute of `schema` one of them.

    `batch` is a pyarrow RecordBatch or Table with a column `id`, or anything else that `upsert` takes,
    with rows in any order. Raises InvalidInputError like `upsert`, and for an attribute that `schema`
    does not have.
    """
    rows, wider = widening_rows(schema, batch, duplicates=duplicates)
    if wider is not schema:
        new = next(a for a in wider.attributes if schema.find(a.name) is None)
        known = ", ".join(schema.names) or "none"
        raise InvalidInputError(
            f"attribute {new.name!r} is not among those that the load was planned with ({known}); "
            "name it in the columns of the plan"
        )
    return rows


def widening_rows(
    schema: Schema, batch: object, *, duplicates: Duplicates = "error"
) -> tuple[pa.RecordBatch, Schema]:
    """Return what `stored_rows` does, and `schema` with the attributes that are new in `batch`."""
    rows = read_rows(batch, schema, duplicates=duplicates)
    if rows.new:
        schema = schema.added(rows.new)
    columns = [
        rows.columns[attribute.name]
        if attribute.name in rows.columns
        else pa.nulls(len(rows), attribute.type.physical)
        for attribute in schema.attributes
    ]
    return _batch_of(rows.ids, columns, row_schema(schema)), schema


def row_schema(schema: Schema) -> pa.Schema:
    """Return the columns of segments that hold documents of `schema`."""
    return segment_schema(list(schema.to_arrow()))


def schema_for(
    schema: Schema, arrow: pa.Schema, declared: Mapping[str, str] | None = None
) -> Schema:
    """Return `schema` with the attributes that tables of `arrow` add to it, without reading a row.

    Types are those that `upsert` infers; `declared` gives those that Arrow does not have. Columns
    without a type (all null) add nothing. Raises InvalidInputError.
    """
    types = {name: Type.parse(text) for name, text in (declared or {}).items()}
    new: dict[str, Type] = {}
    for field in arrow:
        if field.name == ID or schema.find(field.name) is not None:
            continue
        if field.name in types:
            new[field.name] = types[field.name]
        elif not pa.types.is_null(field.type):
            new[field.name] = _type_of(field)
    return schema.added(new) if new else schema


def _type_of(field: pa.Field) -> Type:
    arrow = field.type
    if not (is_list(arrow) and is_vector_name(field.name) and is_number_or_null(arrow.value_type)):
        return Type.of_arrow(arrow)
    if not pa.types.is_fixed_size_list(arrow):
        raise InvalidInputError(
            f"attribute {field.name!r} has type {arrow}, which does not say how long vectors are; "
            "declare its type, such as vector[128]"
        )
    return Type.vector(arrow.list_size, half=pa.types.is_float16(arrow.value_type))


def stored_pairs(batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    """Return keys and values in the columns of segments. Raises InvalidInputError."""
    missing = {"key", "value"} - set(batch.schema.names)
    if missing:
        raise InvalidInputError(
            f"the rows have the columns {batch.schema.names}; give a table with key and value"
        )
    keys, values = binary_column(batch, "key"), binary_column(batch, "value")
    longest = pc.max(pc.binary_length(keys)).as_py() or 0
    if longest > KEY_BYTES_MAX:
        raise InvalidInputError(
            f"a key has {longest} bytes; keys have at most {KEY_BYTES_MAX} bytes"
        )
    return _batch_of(keys, [values], PAIRS_SCHEMA)


def _batch_of(keys: pa.Array, columns: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    lsns = pa.array(np.full(len(keys), ROW_LSN, np.int64))
    tombstones = pa.array(np.zeros(len(keys), np.bool_))
    return pa.RecordBatch.from_arrays([keys, lsns, tombstones, *columns], schema=schema)
