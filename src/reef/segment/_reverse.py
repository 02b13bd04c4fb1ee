"""Rows from the last key to the first, versions of a key still from new to old."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.segment._block import TailEntry


def reversed_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return sorted rows with their keys in descending order; each key's rows stay as they are."""
    keys = batch.column(0)
    count = batch.num_rows
    is_new = pc.not_equal(keys.slice(1), keys.slice(0, max(count - 1, 0)))
    if is_new.true_count == len(is_new):
        order = np.arange(count - 1, -1, -1)
    else:
        group = np.append(0, np.cumsum(is_new.to_numpy(zero_copy_only=False)))
        order = np.argsort(-group, kind="stable")
    return batch.take(pa.array(order))


def blocks_in_reverse(
    entry: TailEntry,
    numbers: list[int],
    blocks: Iterable[list[pa.RecordBatch]],
    file_lsn: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of blocks, given from the last to the first, in reverse.

    Versions above `file_lsn` are left out. The versions of a key may go on from block to block: they wait
    in memory until the block comes in which they begin.
    """
    waiting: list[pa.RecordBatch] = []
    for i, (number, pieces) in enumerate(zip(numbers, blocks, strict=True)):
        if entry.lsn_max[number] > file_lsn:
            pieces = [piece.filter(pc.less_equal(piece.column(1), file_lsn)) for piece in pieces]
        waiting = [*pieces, *waiting]
        key = entry.key_first[number]
        goes_on = i + 1 < len(numbers) and entry.key_last[numbers[i + 1]] == key
        if goes_on and entry.key_last[number] == key:
            continue  # nothing but versions of one key
        if not waiting:
            continue
        rows = pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]
        waiting = []
        if goes_on:
            head = pc.equal(rows.column(0), pa.scalar(key, pa.binary())).true_count
            waiting, rows = [rows.slice(0, head)], rows.slice(head)
        if rows.num_rows:
            yield reversed_rows(rows)
