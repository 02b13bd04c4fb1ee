"""Rows through the log: batch after batch, each atomic by itself.

Rows come in order of keys, and a batch is cut by what its rows take, whatever portions they come in.
So a write that is tried again is cut alike: batch number n has the idempotency key `<job key>/n`, and
what was committed before a crash is not written again. Of a stream, the last batch carries the number
of the micro-batch, which is kept for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents import DocumentReceipt, Documents
from reef.engine import DELETED, WRITTEN, CreateOnly, Namespace, Receipt
from reef.format import KEY
from reef.jobs.load import LoadPlan
from reef.kv import KeyValue
from reef.spark._write._stage import Write

_SYSTEM = 3


@dataclass
class LogWriteResult:
    """What a write through the log has done."""

    lsn: int | None = None
    rows: int = 0
    batches: int = 0
    replayed: int = 0
    """How many of the batches had been committed before."""
    skipped: int = 0

    def add(self, receipt: Receipt | DocumentReceipt, rows: int) -> None:
        """Count a batch in."""
        self.lsn = receipt.lsn
        self.batches += 1
        self.replayed += receipt.replayed
        if receipt.replayed:
            return
        applied = receipt.codes.count(WRITTEN) + receipt.codes.count(DELETED)
        self.rows += applied
        self.skipped += rows - applied


def write_batches(
    handle: Namespace,
    write: Write,
    plan: LoadPlan,
    rows: Iterable[pa.RecordBatch],
    bytes_max: int,
) -> LogWriteResult:
    """Write sorted rows, in the columns of `plan`, in batches of about `bytes_max`.

    Raises what `Documents.write` does.
    """
    written = LogWriteResult()
    if write.source is not None:
        earlier = stream_receipt(handle, write)
        if earlier is not None:
            written.add(earlier, 0)
            return written
    send = _sender(handle, write, plan)
    batches = cut_batches(rows, bytes_max)
    number, batch = 0, next(batches, None)
    while batch is not None:
        following = next(batches, None)
        identity: dict[str, Any] = {"idempotency_key": f"{write.job_key}/{number}"}
        if write.source is not None and following is None:
            identity = {"source": write.source, "sequence": write.sequence}
        written.add(send(batch, identity), batch.num_rows)
        number, batch = number + 1, following
    return written


def stream_receipt(handle: Namespace, write: Write) -> Receipt | None:
    """Return a receipt if a stream has come as far as this already."""
    return handle._writing().known(None, None, write.source, write.sequence)


def _sender(
    handle: Namespace, write: Write, plan: LoadPlan
) -> Callable[[pa.RecordBatch, dict[str, Any]], Receipt | DocumentReceipt]:
    """Return what commits a batch."""
    operation = write.options.operation
    if operation in ("create", "patch"):
        condition = CreateOnly() if operation == "create" else None
        how: dict[str, Any] = {"condition": condition, "atomic": not write.options.skips}
    else:
        how = {}
    if isinstance(handle, KeyValue):
        if operation == "delete":
            return lambda rows, identity: handle.write(
                deletes=rows.column(0).to_pylist(), **how, **identity
            )
        return lambda rows, identity: handle.write(
            pa.table({"key": rows.column(0), "value": rows.column(_SYSTEM)}), **how, **identity
        )
    assert isinstance(handle, Documents)
    if operation == "delete":
        return lambda rows, identity: handle.write(
            deletes=rows.column(0).cast(pa.string()), **identity
        )
    given = set(pa.ipc.read_schema(pa.py_buffer(write.columns)).names)
    names = {
        attribute.column: attribute.name
        for attribute in plan.document_schema.attributes
        if attribute.name in given
    }
    _declare(handle, _new(plan))
    word = "patches" if operation == "patch" else "upserts"
    return lambda rows, identity: handle.write(
        **{word: _document_table(rows, names)}, **how, **identity
    )


def _document_table(rows: pa.RecordBatch, names: dict[str, str]) -> pa.Table:
    """Return stored rows as a table of documents."""
    columns = {"id": rows.column(KEY).cast(pa.string())}
    columns |= {name: rows.column(column) for column, name in names.items()}
    return pa.table(columns)


def _new(plan: LoadPlan) -> dict[str, str]:
    base = plan.base_schema
    return {
        attribute.name: attribute.type.text
        for attribute in plan.document_schema.attributes
        if base.find(attribute.name) is None
    }


def _declare(handle: Documents, types: dict[str, str]) -> None:
    """Add the attributes that a write brings: their values alone do not tell JSON from text."""
    missing = {name: text for name, text in types.items() if name not in handle.schema}
    if missing:
        handle.alter(add=missing)


def cut_batches(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of at most `bytes_max`, or of one row that takes more.

    Where it is cut depends on the rows alone, not on how they were portioned.
    """
    waiting: list[pa.RecordBatch] = []
    taken = 0
    for batch in batches:
        while batch.num_rows:
            ends = np.cumsum(row_bytes(batch))
            count = int(np.searchsorted(ends, bytes_max - taken, side="right"))
            if count == batch.num_rows:
                waiting.append(batch)
                taken += int(ends[-1])
                break
            if count or not waiting:
                count = max(1, count)
                waiting.append(batch.slice(0, count))
                batch = batch.slice(count)
            yield pa.concat_batches(waiting)
            waiting, taken = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def row_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return about what each row takes, by its values alone."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        total += _value_bytes(column)
    return total


def _value_bytes(column: pa.Array) -> npt.NDArray[np.int64]:
    kind = column.type
    sizes = np.ones(len(column), np.int64)
    if pa.types.is_struct(kind):
        for child in column.flatten():
            sizes += _value_bytes(child)
    elif pa.types.is_fixed_size_list(kind):
        sizes += kind.list_size * kind.value_type.bit_width // 8
    elif pa.types.is_list(kind):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(lengths)
        items = np.concatenate([[0], np.cumsum(_value_bytes(column.flatten()))])
        sizes += items[ends] - items[ends - lengths]
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        sizes += pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    else:
        sizes += (kind.bit_width + 7) // 8
    return sizes
