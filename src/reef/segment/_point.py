"""Point reads that have to look further than a block that is in memory.

A read of one key, or of many, of one segment or of several: first the tails that are missing, then
the blocks, each step with its requests side by side. A multi-get of more than a few blocks goes in
portions, and keeps the rows it found, not the blocks, so that its memory is bounded by its result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from reef.format import hash_keys
from reef.segment._block import ColumnBlock, RowBlock, TailEntry
from reef.segment._clip import Clipped
from reef.segment._load import Loader, Wanted
from reef.segment._model import Found

AT_ONCE_BYTES = 32 << 20


class _Lookup(NamedTuple):
    """A key that may be in some blocks, and where its answer goes."""

    wanted: tuple[Wanted, ...]
    """The answer is in the first of them that has one."""
    key: bytes
    file_lsn: int
    clipped: Clipped
    answers: list[Found | None]
    at: int


def get_one(loader: Loader, clipped: Clipped, key: bytes, lsn: int) -> Found | None:
    """Return the newest version of `key` at or below `lsn` in a segment, or None."""
    file_lsn = clipped.file_lsn(lsn)
    if not file_lsn or not clipped.key_min <= key < clipped.key_end:
        return None
    entry = loader.tail(clipped.object_key, clipped.ref)
    wanted = tuple([Wanted(entry, number) for number in entry.blocks_of(key, file_lsn)])
    if not wanted or (_is_cold(loader, wanted) and not loader.may_contain(entry, key)):
        return None
    answers: list[Found | None] = [None]
    _answer(loader, [_Lookup(wanted, key, file_lsn, clipped, answers, 0)], compact=False)
    return answers[0]


def get_many(
    loader: Loader, asked: Sequence[tuple[Clipped, Sequence[bytes]]], lsn: int
) -> list[list[Found | None]]:
    """Return for each segment what `get_one` would of each of its keys."""
    answers: list[list[Found | None]] = [[None] * len(keys) for _, keys in asked]
    visible: list[tuple[Clipped, Sequence[bytes], list[int], list[Found | None]]] = []
    for (clipped, keys), into in zip(asked, answers, strict=True):
        inside = [i for i, key in enumerate(keys) if clipped.key_min <= key < clipped.key_end]
        if inside and clipped.file_lsn(lsn):
            visible.append((clipped, keys, inside, into))
    entries = loader.tails([(clipped.object_key, clipped.ref) for clipped, *_ in visible])
    lookups: list[_Lookup] = []
    for entry, (clipped, keys, inside, into) in zip(entries, visible, strict=True):
        file_lsn = clipped.file_lsn(lsn)
        found = [
            _Lookup(tuple([Wanted(entry, n) for n in numbers]), key, file_lsn, clipped, into, i)
            for i in inside
            if (numbers := entry.blocks_of(key := keys[i], file_lsn))
        ]
        lookups += _filtered(loader, entry, found)
    portions = [*_portions(lookups)]
    for portion in portions:
        _answer(loader, portion, compact=len(portions) > 1)
    return answers


def _is_cold(loader: Loader, wanted: Sequence[Wanted]) -> bool:
    """Return whether a block would have to be fetched."""
    find = loader.cache.find
    return any(find(want.cache_key) is None for want in wanted)


def _filtered(loader: Loader, entry: TailEntry, lookups: list[_Lookup]) -> list[_Lookup]:
    """Return those that the filter does not rule out; it is not asked where blocks are in memory."""
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


def _portions(lookups: list[_Lookup]) -> Iterator[list[_Lookup]]:
    """Yield lookups by the blocks they need, as many at once as need a bounded amount of bytes."""
    lookups.sort(key=lambda one: (one.wanted[0].entry.tail.key, one.wanted[0].number))
    portion: list[_Lookup] = []
    counted: set[Wanted] = set()
    size = 0
    for one in lookups:
        portion.append(one)
        for wanted in one.wanted:
            if wanted not in counted:
                counted.add(wanted)
                size += wanted.place.length
        size += _column_bytes(one.wanted[0].entry)
        if size >= AT_ONCE_BYTES:
            yield portion
            portion, counted, size = [], set(), 0
    if portion:
        yield portion


def _column_bytes(entry: TailEntry) -> int:
    """Return about how much has to be read for the values of one row's wide columns."""
    return sum(int(places.length.max()) for places in entry.tail.column_places.values())


def _answer(loader: Loader, lookups: list[_Lookup], *, compact: bool) -> None:
    """Put into place what the blocks say."""
    wanted = [*dict.fromkeys(want for one in lookups for want in one.wanted)]
    blocks = dict(zip(wanted, loader.blocks(wanted), strict=True))
    found: dict[Wanted, list[tuple[_Lookup, int]]] = {}
    for one in lookups:
        for want in one.wanted:
            row = loader.find(want, blocks[want], one.key, one.file_lsn)
            if row >= 0:
                found.setdefault(want, []).append((one, row))
                break
    columns = _column_blocks(loader, found, blocks)
    for want, rows in found.items():
        block = blocks[want]
        for one, row in rows:
            one.answers[one.at] = _found(one.clipped, want, block, row, columns)
    if compact:
        _compact(lookups)


def _found(
    clipped: Clipped,
    want: Wanted,
    block: RowBlock,
    row: int,
    columns: dict[Wanted, ColumnBlock],
) -> Found:
    version = clipped.ref.version
    lsn = block.lsns[row] if version is None else version
    if block.tombstones is not None and block.tombstones[row]:
        return Found(lsn, True, block.batch, row)
    if not want.entry.wide:
        return Found(lsn, False, block.batch, row)
    return Found(lsn, False, _whole_row(want, block, row, columns), 0)


def _compact(lookups: Sequence[_Lookup]) -> None:
    """Let answers refer to a copy of their rows instead of to the blocks that hold them."""
    by_batch: dict[int, list[tuple[_Lookup, Found]]] = {}
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
    at = int(entry.tail.row_places.row[want.number]) + row
    places = []
    for column in entry.wide:
        number = entry.tail.column_places[column].of_rows(at, 1)[0]
        first = int(entry.tail.column_places[column].row[number])
        places.append((Wanted(entry, number, column), at - first))
    return places


def _whole_row(
    want: Wanted, block: RowBlock, row: int, columns: dict[Wanted, ColumnBlock]
) -> pa.RecordBatch:
    """Return one row with all its columns, in the segment's order."""
    values = {
        column.column: columns[column].values.slice(at, 1)
        for column, at in _column_places(want, row)
    }
    schema = want.entry.tail.schema
    arrays = [
        values[name] if name in values else block.batch.column(name).slice(row, 1)
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
