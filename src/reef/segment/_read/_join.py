"""Many keys at once: joined with the blocks that may hold them, with no step for each key.

First the row blocks of all segments, to learn which segment has the newest version of each key; then
the wide columns, of those versions only. Requests go side by side, blocks are looked at in portions,
and only the rows that were found are kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reef.format import hash_keys
from reef.segment._read._block import TailEntry
from reef.segment._read._fetch import cut_by_bytes
from reef.segment._read._loader import Loader, Wanted
from reef.segment._row_source import Clip

_Numbers = npt.NDArray[np.int64]


class NewestRows(NamedTuple):
    """Rows of one segment that are the newest of their keys: columns without the system's."""

    rows: pa.RecordBatch
    at: _Numbers
    """Which of the keys each of them has."""


class _BlockKeys(NamedTuple):
    """A row block, and which of the keys it may hold."""

    segment: int
    want: Wanted
    at: _Numbers


class _BlockVersions(NamedTuple):
    """Versions that a row block holds."""

    rows: pa.RecordBatch
    numbers: _Numbers
    """Of the rows, in the segment."""
    at: _Numbers
    lsns: _Numbers
    is_dead: npt.NDArray[np.bool_]

    def only(self, chosen: npt.NDArray[np.bool_]) -> _BlockVersions:
        """Return some of them; no copy if that is all."""
        if chosen.all():
            return self
        return _BlockVersions(
            self.rows.filter(pa.array(chosen)),
            self.numbers[chosen],
            self.at[chosen],
            self.lsns[chosen],
            self.is_dead[chosen],
        )


def join(
    loader: Loader,
    segments: Sequence[Clip],
    keys: pa.BinaryArray,
    newest: _Numbers,
    lsn: int,
    *,
    wide: bool,
) -> list[NewestRows]:
    """Return the rows that segments have, at or below `lsn`, in newer versions than `newest`.

    `keys` are sorted, each once. `newest` is the version of each that other sources have, 0 for none;
    it is raised to what is found, tombstones included. Without `wide`, rows lack the columns that lie
    in blocks of their own.
    """
    visible = [clipped for clipped in segments if clipped.file_lsn(lsn)]
    entries = loader.tails(visible)
    listed = keys.to_pylist()
    asked = [
        one
        for number, (clipped, entry) in enumerate(zip(visible, entries, strict=True))
        for one in _blocks_to_read(loader, number, clipped, entry, (keys, listed), newest, lsn)
    ]
    found: list[list[_BlockVersions]] = [[] for _ in visible]
    for portion in cut_by_bytes(asked, [one.want.place.length for one in asked]):
        blocks = loader.blocks([one.want for one in portion])
        for one, block in zip(portion, blocks, strict=True):
            some = _versions_in_block(visible[one.segment], one, block.batch, keys, lsn)
            is_newer = some.lsns > newest[some.at]
            if is_newer.any():
                # The others alone: a key may go on in the next block under the same version, where a
                # whole segment has one.
                some = some.only(is_newer)
                newest[some.at] = some.lsns
                found[one.segment].append(some)
    return [
        joined
        for entry, some in zip(entries, found, strict=True)
        if some and (joined := _winners(loader, entry, some, newest, wide=wide)) is not None
    ]


def _blocks_to_read(
    loader: Loader,
    number: int,
    clipped: Clip,
    entry: TailEntry,
    keys: tuple[pa.BinaryArray, list[bytes]],
    newest: _Numbers,
    lsn: int,
) -> Iterator[_BlockKeys]:
    """Yield the blocks of a segment that may hold newer versions than the known ones."""
    column, listed = keys
    low, high = bisect_left(listed, clipped.key_min), bisect_left(listed, clipped.key_end)
    at = np.flatnonzero(newest[low:high] < clipped.lsn_max) + low
    if not len(at):
        return
    file_lsn = clipped.file_lsn(lsn)
    ordered = np.array(listed[low:high], dtype=object)[at - low]
    first = np.searchsorted(np.array(entry.key_last, dtype=object), ordered, side="left")
    last = np.searchsorted(np.array(entry.key_first, dtype=object), ordered, side="right") - 1
    # The index has no entry past the last block: there, `last` lies below `first`.
    is_one = last == first
    is_one[is_one] &= np.array(entry.lsn_min)[first[is_one]] <= file_lsn
    blocks, places = [first[is_one]], [at[is_one]]
    for i in np.flatnonzero(last > first).tolist():  # keys whose versions go on from block to block
        some = entry.blocks_of(listed[at[i]], file_lsn)
        blocks.append(np.array(some, np.int64))
        places.append(np.full(len(some), at[i], np.int64))
    block, place = np.concatenate(blocks), np.concatenate(places)
    if any(loader.cache.find((entry.tail.key, n)) is None for n in np.unique(block).tolist()):
        may = entry.tail.bloom.may_contain_many(hash_keys(column.take(pa.array(place))))
        if skips := len(may) - int(may.sum()):
            loader.metrics.count("reef_bloom_skips_total", skips)
            block, place = block[may], place[may]
    order = np.lexsort((place, block))
    block, place = block[order], place[order]
    edges = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(block)]
    for a, b in pairwise(edges):
        if b > a:
            yield _BlockKeys(number, Wanted(entry, int(block[a])), place[a:b])


def _versions_in_block(
    clipped: Clip, block_keys: _BlockKeys, batch: pa.RecordBatch, keys: pa.BinaryArray, lsn: int
) -> _BlockVersions:
    """Return the newest version of each key in a block."""
    few = keys.take(pa.array(block_keys.at))
    place = pc.index_in(batch.column(0), value_set=few)
    rows = np.flatnonzero(place.is_valid().to_numpy(zero_copy_only=False))
    which = place.drop_null().to_numpy().astype(np.int64)
    lsns = batch.column(1).to_numpy()[rows]
    is_seen = lsns <= clipped.file_lsn(lsn)
    rows, which, lsns = rows[is_seen], which[is_seen], lsns[is_seen]
    is_first = np.ones(len(rows), np.bool_)  # the newest of its key comes first
    is_first[1:] = which[1:] != which[:-1]
    rows, which, lsns = rows[is_first], which[is_first], lsns[is_first]
    if clipped.ref.version is not None:
        lsns = np.full(len(lsns), clipped.ref.version, np.int64)
    taken = batch.take(pa.array(rows))
    entry, number = block_keys.want.entry, block_keys.want.number
    return _BlockVersions(
        rows=taken.select(taken.schema.names[3:]),
        numbers=rows + entry.row_first[number],
        at=block_keys.at[which],
        lsns=lsns,
        is_dead=taken.column(2).to_numpy(zero_copy_only=False),
    )


def _winners(
    loader: Loader,
    entry: TailEntry,
    found: Sequence[_BlockVersions],
    newest: _Numbers,
    *,
    wide: bool,
) -> NewestRows | None:
    """Return a segment's rows that are the newest of their keys, without tombstones."""
    at = np.concatenate([some.at for some in found])
    wins = np.concatenate([some.lsns for some in found]) == newest[at]
    wins &= ~np.concatenate([some.is_dead for some in found])
    if not wins.any():
        return None
    rows = pa.concat_batches([some.rows for some in found])
    numbers = np.concatenate([some.numbers for some in found])
    if not wins.all():
        rows, at, numbers = rows.filter(pa.array(wins)), at[wins], numbers[wins]
    if wide:
        for column in entry.wide:
            values = _wide_values(loader, entry, column, numbers)
            rows = rows.append_column(entry.tail.schema.field(column), values)
    return NewestRows(rows, at)


def _wide_values(loader: Loader, entry: TailEntry, column: str, rows: _Numbers) -> pa.Array:
    """Return the values of a wide column in ascending rows."""
    places = entry.tail.column_places[column]
    blocks = np.searchsorted(places.row, rows, side="right") - 1
    edges = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(rows)]
    asked = [
        _BlockKeys(0, Wanted(entry, int(blocks[a]), column), rows[a:b] - places.row[blocks[a]])
        for a, b in pairwise(edges)
    ]
    values = []
    for portion in cut_by_bytes(asked, [one.want.place.length for one in asked]):
        found = loader.blocks([one.want for one in portion])
        values += [
            block.values.take(pa.array(one.at)) for one, block in zip(portion, found, strict=True)
        ]
    return pa.concat_arrays(values)
