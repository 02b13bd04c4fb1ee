"""Before images: the row that a key had before each operation.

A batch of changes is looked up as of the version before its first one, all keys at once. If the
batch has a key several times, each later before image is the row before it in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.engine._read._latest import Latest
from reef.engine._read._view import View
from reef.errors import RetentionError
from reef.format import KEY, LSN, TOMBSTONE, vector_columns
from reef.segment import align

EXISTED = "_existed"
BEFORE = "_before"
_KEY = pa.field(KEY, pa.binary())


def with_before(
    batch: pa.RecordBatch, columns: Sequence[pa.Field], at_lsn: Callable[[int], View]
) -> pa.RecordBatch:
    """Return a batch of changes, in order, with `_existed` and `_before`.

    Raises RetentionError if the version before it is not kept any more.
    """
    # The key as well: a batch without columns does not know its number of rows.
    layout = pa.schema([_KEY, *(field.with_nullable(True) for field in columns)])
    keys = batch.column(KEY).dictionary_encode()
    codes = keys.indices.to_numpy(zero_copy_only=False)
    found = _look_up(keys.dictionary, batch.column(LSN)[0].as_py() - 1, layout, at_lsn)
    # First the rows that were found, one for each key, then the batch's own.
    rows = pa.concat_batches([found.rows(layout), align(batch, layout)])
    is_row = ~batch.column(TOMBSTONE).to_numpy(zero_copy_only=False)
    exists = np.concatenate([found.exists, is_row])
    former = _former(codes)
    at = np.where(former < 0, codes, former + len(keys.dictionary))
    existed = exists[at]
    return _put_on(batch, rows.take(pa.array(at, mask=~existed)), existed, layout)


def _former(codes: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return for each row the position of the same key before it in the batch, or -1."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    same = ordered[1:] == ordered[:-1]
    former = np.full(len(codes), -1, np.int64)
    former[order[1:][same]] = order[:-1][same]
    return former


def _look_up(
    keys: pa.BinaryArray, lsn: int, layout: pa.Schema, at_lsn: Callable[[int], View]
) -> Latest:
    try:
        view = at_lsn(lsn)
    except RetentionError as error:
        raise RetentionError(
            f"the before images of changes from LSN {lsn + 1} on are not kept: {error}. Read these "
            "changes without before images, or set a longer `pitr_window` for later ones"
        ) from error
    return view.many(keys, wide=bool(vector_columns(layout)))


def _put_on(
    batch: pa.RecordBatch,
    before: pa.RecordBatch,
    existed: npt.NDArray[np.bool_],
    layout: pa.Schema,
) -> pa.RecordBatch:
    fields = [layout.field(i) for i in range(1, len(layout))]
    struct = pa.nulls(batch.num_rows, pa.struct([]))
    if fields:
        gone = pa.array(~existed)
        struct = pa.StructArray.from_arrays(before.columns[1:], fields=fields, mask=gone)
    schema = batch.schema.append(pa.field(EXISTED, pa.bool_(), nullable=False))
    schema = schema.append(pa.field(BEFORE, struct.type))
    return pa.RecordBatch.from_arrays([*batch.columns, pa.array(existed), struct], schema=schema)
