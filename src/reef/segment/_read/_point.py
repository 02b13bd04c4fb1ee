"""Point reads that need more than one block in memory.

A read of one key, or of many, of one segment or of several: first the tails that are missing, then
the blocks, each step with its requests side by side. A multi-get of more than a few blocks goes in
portions, and keeps the rows it found, not the blocks, so that its memory is bounded by its result.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import pyarrow as pa

from reef.format import hash_keys
from reef.segment._read._block import ColumnBlock, RowBlock, TailEntry
from reef.segment._read._block_cache import BlockCache
from reef.segment._read._fetch import cut_by_bytes
from reef.segment._read._loader import Loader, Wanted
from reef.segment._row_source import Clip, RowVersion


class _Lookup(NamedTuple):
    """A key that may be in some blocks, and the place of its answer."""

    wanted: tuple[Wanted, ...]
    """The answer is in the first of them that has one."""
    key: bytes
    file_lsn: int
    clipped: Clip
    answers: list[RowVersion | None]
    at: int


def get_many(
    loader: Loader, keys_by_source: Sequence[tuple[Clip, Sequence[bytes]]], lsn: int, *, wide: bool
) -> list[list[RowVersion | None]]:
    """Return the newest version at or below `lsn` of each key of each segment, or None.

    Without `wide`, rows lack the columns that lie in blocks of their own.
    """
    answers: list[list[RowVersion | None]] = [[None] * len(keys) for _, keys in keys_by_source]
    visible: list[tuple[Clip, Sequence[bytes], list[int], list[RowVersion | None]]] = []
    for (clipped, keys), into in zip(keys_by_source, answers, strict=True):
        inside = [i for i, key in enumerate(keys) if clipped.key_min <= key < clipped.key_end]
        if inside and clipped.file_lsn(lsn):
            visible.append((clipped, keys, inside, into))
    entries = loader.tails([clipped for clipped, *_ in visible])
    lookups: list[_Lookup] = []
    for entry, (clipped, keys, inside, into) in zip(entries, visible, strict=True):
        file_lsn = clipped.file_lsn(lsn)
        found = [
            _Lookup(tuple([Wanted(entry, n) for n in numbers]), key, file_lsn, clipped, into, i)
            for i in inside
            if (numbers := entry.blocks_of(key := keys[i], file_lsn))
        ]
        lookups += _filtered(loader, entry, found)
    lookups.sort(key=lambda one: (one.wanted[0].entry.tail.key, one.wanted[0].number))
    parts = [*cut_by_bytes(lookups, _sizes(lookups))]
    for part in parts:
        _answer(loader, part, compact=len(parts) > 1, wide=wide)
    return answers


def _is_cold(loader: Loader, wanted: Sequence[Wanted]) -> bool:
    """Return whether a block would have to be fetched."""
    find = loader.cache.find
    return any(find(want.cache_key) is None for want in wanted)


def _filtered(loader: Loader, entry: TailEntry, lookups: list[_Lookup]) -> list[_Lookup]:
    """Return the lookups that the bloom filter lets through; blocks in memory need no filter."""
    is_cold = [_is_cold(loader, one.wanted) for one in lookups]
    cold = [one.key for one, is_one in zip(lookups, is_cold, strict=True) if is_one]
    if not cold:
        return lookups
    may = entry.tail.bloom.may_contain_many(hash_keys(pa.array(cold, pa.binary()))).tolist()
    if skips := may.count(False):
        loader.metrics.count("reef_bloom_skips_total", skips)
    admitted = iter(may)
    return [
        one for one, is_one in zip(lookups, is_cold, strict=True) if not is_one or next(admitted)
    ]


def _sizes(lookups: list[_Lookup]) -> Iterator[int]:
    """Yield about how many bytes each lookup reads that earlier ones have not read."""
    counted: set[Wanted] = set()
    for one in lookups:
        size = sum(want.place.length for want in one.wanted if want not in counted)
        yield size + _column_bytes(one.wanted[0].entry)
        counted.update(one.wanted)


def _column_bytes(entry: TailEntry) -> int:
    """Return about how much has to be read for the values of one row's wide columns."""
    return sum(int(places.length.max()) for places in entry.tail.column_places.values())


def _answer(loader: Loader, lookups: Sequence[_Lookup], *, compact: bool, wide: bool) -> None:
    """Fill in the answers from the blocks."""
    wanted = [*dict.fromkeys(want for one in lookups for want in one.wanted)]
    blocks = dict(zip(wanted, loader.blocks(wanted), strict=True))
    found: dict[Wanted, list[tuple[_Lookup, int]]] = {}
    for one in lookups:
        for want in one.wanted:
            loader.keys(want, blocks[want])
            row = blocks[want].find(one.key, one.file_lsn)
            if row >= 0:
                found.setdefault(want, []).append((one, row))
                break
    columns = _column_blocks(loader, found, blocks) if wide else None
    for want, rows in found.items():
        _put(want, blocks[want], rows, columns)
    if compact:
        _compact(lookups)


def _put(
    want: Wanted,
    block: RowBlock,
    rows: list[tuple[_Lookup, int]],
    columns: dict[Wanted, ColumnBlock] | None,
) -> None:
    """Put the rows of one block into place; those with wide columns as one batch."""
    dead = block.tombstones
    alive: list[tuple[_Lookup, int]] = []
    for one, row in rows:
        version = one.clipped.ref.version
        lsn = block.lsns[row] if version is None else version
        is_dead = dead is not None and dead[row] == 1
        one.answers[one.at] = RowVersion(lsn, is_dead, block.batch, row)
        if not is_dead:
            alive.append((one, row))
    if alive and columns is not None and want.entry.wide:
        alive.sort(key=itemgetter(1))
        whole = _whole_rows(want, block, [row for _, row in alive], columns)
        for i, (one, _) in enumerate(alive):
            found = one.answers[one.at]
            assert found is not None
            one.answers[one.at] = found._replace(batch=whole, row=i)


def _compact(lookups: Sequence[_Lookup]) -> None:
    """Let answers refer to a copy of their rows instead of to the blocks that hold them."""
    by_batch: dict[int, list[tuple[_Lookup, RowVersion]]] = {}
    for one in lookups:
        found = one.answers[one.at]
        if found is not None:
            by_batch.setdefault(id(found.batch), []).append((one, found))
    for some in by_batch.values():
        few = some[0][1].batch.take(pa.array([found.row for _, found in some]))
        for row, (one, found) in enumerate(some):
            one.answers[one.at] = found._replace(batch=few, row=row)


# Wide columns: a row's values lie in blocks of their own.


def _column_blocks(
    loader: Loader,
    found: dict[Wanted, list[tuple[_Lookup, int]]],
    blocks: dict[Wanted, RowBlock],
) -> dict[Wanted, ColumnBlock]:
    """Return the column blocks that hold the values of the rows that were found."""
    wanted = [
        column
        for want, rows in found.items()
        for _, row in rows
        if not (blocks[want].tombstones and blocks[want].tombstones[row])  # type: ignore[index]
        for column, _ in _column_places(want, row)
    ]
    wanted = [*dict.fromkeys(wanted)]
    return dict(zip(wanted, loader.blocks(wanted), strict=True)) if wanted else {}


def _column_places(want: Wanted, row: int) -> list[tuple[Wanted, int]]:
    """Return, for each wide column, the block that holds a row's value, and where in it."""
    entry = want.entry
    at = entry.row_first[want.number] + row
    places = []
    for column, firsts in zip(entry.wide, entry.wide_first, strict=True):
        number = bisect_right(firsts, at) - 1
        places.append((Wanted(entry, number, column), at - firsts[number]))
    return places


def cached_row(cache: BlockCache, want: Wanted, block: RowBlock, row: int) -> pa.RecordBatch | None:
    """Return one row with all its columns, or None if a block of a wide one is not in memory."""
    entry = want.entry
    arrays = block.batch.slice(row, 1).columns
    at, key = entry.row_first[want.number] + row, entry.tail.key
    for column, firsts in zip(entry.wide, entry.wide_first, strict=True):
        number = bisect_right(firsts, at) - 1
        found = cache.find((key, number, column))
        if found is None:
            return None
        arrays.append(found.values.slice(at - firsts[number], 1))
    return pa.RecordBatch.from_arrays(
        [arrays[i] for i in entry.wide_order], schema=entry.tail.schema
    )


def _whole_rows(
    want: Wanted, block: RowBlock, rows: list[int], columns: dict[Wanted, ColumnBlock]
) -> pa.RecordBatch:
    """Return ascending rows of a block with all their columns, in the segment's order."""
    arrays = block.batch.take(pa.array(rows)).columns
    for places in zip(*(_column_places(want, row) for row in rows), strict=True):
        parts = [
            columns[wide].values.take(pa.array([at for _, at in some]))
            for wide, some in groupby(places, key=itemgetter(0))
        ]
        arrays.append(pa.concat_arrays(parts) if len(parts) > 1 else parts[0])
    return pa.RecordBatch.from_arrays(
        [arrays[i] for i in want.entry.wide_order], schema=want.entry.tail.schema
    )
