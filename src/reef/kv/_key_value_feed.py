"""Changes of keys and values, as people see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from reef.engine import BEFORE, COMMITTED_AT, OP, operations
from reef.format import KEY, LSN, TOMBSTONE
from reef.kv._key_value_rows import FACE, VALUE

COLUMNS = list(FACE.schema)
_BEFORE = pa.struct([pa.field(VALUE, pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field(OP, pa.string(), nullable=False),
        pa.field(LSN, pa.int64(), nullable=False),
        pa.field(COMMITTED_AT, pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)
SCHEMA_WITH_BEFORE = SCHEMA.append(pa.field(BEFORE, _BEFORE))


def key_value_changes(
    batches: Iterable[pa.RecordBatch], *, before_image: bool
) -> Iterator[pa.RecordBatch]:
    """Yield changes with the columns `_op`, `_lsn`, `_committed_at`, `key`, `value`.

    With the before image also `_before`, a struct of `value`, null where the key had none.
    """
    schema = SCHEMA_WITH_BEFORE if before_image else SCHEMA
    for rows in batches:
        arrays = [operations(rows.column(TOMBSTONE))]
        arrays += [rows.column(name) for name in (LSN, COMMITTED_AT, KEY, VALUE)]
        if before_image:
            arrays.append(rows.column(BEFORE).cast(_BEFORE))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
