"""Rows in any order → rows in the order of keys, in bounded memory.

What comes in is gathered up to a quarter of the budget, sorted, and spilled to a local file of Arrow
batches; in the end the files are merged. Duplicate keys are refused by name, or the last one given
stays. Within a run each key occurs once, so one round of the merge has all rows of a key, those of
earlier runs first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from reef.errors import InvalidInputError
from reef.segment._row_columns import align

Duplicates = Literal["error", "last"]

_PIECE_BYTES_MAX = 1 << 20
_RUN_BYTES_MAX = 512 << 20  # a run must fit 32-bit offsets


class UniqueKeys:
    """Passes sorted batches on, each key once. `dropped` counts the rows that it leaves out."""

    def __init__(self, duplicates: Duplicates) -> None:
        self._duplicates = duplicates
        self.dropped = 0

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `batches`, which are sorted by their first column, each key once.

        Raises InvalidInputError for a key that comes again, unless the last one is to stay, and for
        rows that are not in order.
        """
        last_row: pa.RecordBatch | None = None  # which the next batch may replace
        before: bytes | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            keys = batch.column(0)
            first = keys[0].as_py()
            self._check(keys, before, first)
            if last_row is not None and first != before:
                yield last_row
            elif last_row is not None:
                self.dropped += 1
            before = keys[-1].as_py()
            if self._duplicates == "error":
                yield batch
                continue
            kept = self._last_of_each(batch)
            if kept.num_rows > 1:
                yield kept.slice(0, kept.num_rows - 1)
            last_row = kept.slice(kept.num_rows - 1)
        if last_row is not None:
            yield last_row

    def _check(self, keys: pa.Array, before: bytes | None, first: bytes) -> None:
        may_be_equal = self._duplicates == "last"
        if before is not None and (before > first or (before == first and not may_be_equal)):
            _refuse(before, first)
        least = pc.less_equal if may_be_equal else pc.less
        in_order = least(keys.slice(0, len(keys) - 1), keys.slice(1))
        if in_order.true_count < len(in_order):
            at = in_order.index(False).as_py()
            _refuse(keys[at].as_py(), keys[at + 1].as_py())

    def _last_of_each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows < 2:
            return batch
        keys = batch.column(0)
        differs = pc.not_equal(keys.slice(0, len(keys) - 1), keys.slice(1))
        if differs.true_count == len(differs):
            return batch
        self.dropped += len(differs) - differs.true_count
        return batch.filter(pa.concat_arrays([differs, pa.array([True])]))


class SortedRuns:
    """Takes rows in any order and gives them back in the order of their first column."""

    def __init__(self, folder: Path, *, budget_bytes: int, duplicates: Duplicates) -> None:
        """Spill to `folder`, which the caller creates and removes."""
        self._folder = folder
        self._run_bytes = min(_RUN_BYTES_MAX, max(1, budget_bytes // 4))
        self._piece_bytes = min(_PIECE_BYTES_MAX, max(1, budget_bytes // 256))
        self._duplicates: Duplicates = duplicates
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_bytes = 0
        self._files: list[Path] = []
        self.dropped = 0
        self.spilled_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows. Those that come later may have more columns. Raises InvalidInputError."""
        if not batch.num_rows:
            return
        self._buffered.append(batch)
        self._buffered_bytes += batch.nbytes
        if self._buffered_bytes >= self._run_bytes:
            self._spill()

    def merged(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield all rows in the columns of `schema`, in order of keys, each key once. Call it once.

        Raises InvalidInputError for a key that is there twice, unless the last is to stay.
        """
        if not self._files:
            yield from self._sorted(schema)
            return
        if self._buffered:
            self._spill()
        unique = UniqueKeys(self._duplicates)
        yield from unique.batches(merge_runs([self._read(path, schema) for path in self._files]))
        self.dropped += unique.dropped

    def _spill(self) -> None:
        path = self._folder / f"{len(self._files):06d}.arrow"
        schema = self._buffered[-1].schema  # attributes are only ever added
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as out:
            for piece in self._sorted(schema):
                out.write_batch(piece)
        self._files.append(path)
        self.spilled_bytes += path.stat().st_size

    def _sorted(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the buffered rows in order, each key once, and free them."""
        if not self._buffered:
            return
        whole = pa.concat_batches([align(batch, schema) for batch in self._buffered])
        self._buffered, buffered_bytes, self._buffered_bytes = [], self._buffered_bytes, 0
        order = pc.array_sort_indices(whole.column(0))  # stable: the last given stays the last
        step = max(1, whole.num_rows * self._piece_bytes // max(1, buffered_bytes))
        pieces = (whole.take(order.slice(first, step)) for first in range(0, whole.num_rows, step))
        unique = UniqueKeys(self._duplicates)
        yield from unique.batches(pieces)
        self.dropped += unique.dropped

    def _read(self, path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        # Memory-mapped: the system can drop pages that were read.
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as run:
            for number in range(run.num_record_batches):
                yield align(run.get_batch(number), schema)


def merge_runs(runs: list[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of sorted runs in order; of equal keys, those of earlier runs first."""
    at_hand: dict[int, pa.RecordBatch] = {}
    while True:
        for number, run in enumerate(runs):
            if number not in at_hand and (piece := next(run, None)) is not None:
                at_hand[number] = piece
        if not at_hand:
            return
        # Up to this key, all rows of all runs are in memory.
        bound = min(piece.column(0)[-1].as_py() for piece in at_hand.values())
        parts = []
        for number in sorted(at_hand):
            piece = at_hand.pop(number)
            keys = piece.column(0)
            count = _count_through(keys, bound)
            if count:
                parts.append(piece.slice(0, count))
            if count < len(keys):
                at_hand[number] = piece.slice(count)
        rows = pa.concat_batches(parts)
        yield rows if len(parts) == 1 else rows.take(pc.array_sort_indices(rows.column(0)))


def _count_through(keys: pa.Array, bound: bytes) -> int:
    """Return how many of some sorted keys are at most `bound`."""
    return bisect_right(range(len(keys)), bound, key=lambda i: keys[i].as_py())


def _refuse(key: bytes, other: bytes) -> None:
    if key == other:
        raise InvalidInputError(
            f"id {_key_text(key)!r} appears more than once in the load: give each id once, "
            "or duplicates='last'"
        )
    raise InvalidInputError(
        f"rows are not in the order of their ids: {_key_text(other)!r} comes after "
        f"{_key_text(key)!r}; sort them by id"
    )


def _key_text(key: bytes) -> str | bytes:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key
