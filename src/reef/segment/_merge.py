"""Reading from several sources at once: the newest visible version of each key wins.

The merge works in rounds, on a piece of each source at a time. A position is a key and an LSN, in
the order of the sources: keys as asked, and for each key from the newest version to the oldest. What
lies at or before the least of the pieces' last positions is complete: whatever comes later from any
source lies behind it. So those rows are sorted, and the first of each key is the version to show.
What has been decided is remembered as one key: older versions of it, however many pieces they
fill, are dropped as they come. Memory holds one piece of each source, and once more the round's.

A source is asked for its first piece only when the merge reaches its range of keys, and where one
source alone has rows, they go through as they are: runs that follow upon each other cost no more
than one run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from reef.errors import InvalidInputError
from reef.format import KEY, LSN, segment_schema
from reef.segment._columns import align, alive, at_or_below, changes, union, visible
from reef.segment._model import Found, RowSource
from reef.types import LSN_MAX

BATCH_BYTES_DEFAULT = 1 << 20
_BLOCK_ROWS = 512  # no more than a block of a segment: not worth asking Arrow how large it is
_JOINED_MAX = 16  # blocks: a batch of a few columns keeps the whole of each in memory
_JOINED_BYTES_MAX = 16 << 20  # of all sources together
_BATCH_ROWS_MAX = 1 << 16
_SYSTEM = 3  # _key, _lsn, _tombstone

_Position: TypeAlias = tuple[bytes, int]


def lookup(sources: Sequence[RowSource], key: bytes, lsn: int) -> Found | None:
    """Return the newest version of `key` at or below `lsn`, a tombstone too, or None.

    `sources` are in descending order of `lsn_max`; one that still grows comes first.
    """
    best = None
    newest = -1
    for source in sources:
        if source.lsn_max <= newest:
            break
        if source.lsn_min <= lsn and source.key_min <= key <= source.key_max:
            found = source.get(key, lsn)
            if found is not None and found[0] > newest:
                best = found
                newest = found[0]
    return best


def lookup_many(
    sources: Sequence[RowSource], keys: Sequence[bytes], lsn: int
) -> list[Found | None]:
    """Return for each key what `lookup` would, asking each source once."""
    best: list[Found | None] = [None] * len(keys)
    newest = [-1] * len(keys)
    open_keys: Sequence[int] = range(len(keys))
    for source in sources:
        most = source.lsn_max
        open_keys = [i for i in open_keys if newest[i] < most]
        if not open_keys:
            break
        if source.lsn_min > lsn:
            continue
        low, high = source.key_min, source.key_max
        inside = [i for i in open_keys if low <= keys[i] <= high]
        found = source.get_many([keys[i] for i in inside], lsn) if inside else []
        for i, version in zip(inside, found, strict=True):
            if version is not None and version[0] > newest[i]:
                best[i] = version
                newest[i] = version[0]
    return best


def merge(
    sources: Sequence[RowSource],
    *,
    start: bytes,
    end: bytes | None,
    lsn: int,
    columns: Sequence[str] | None,
    reverse: bool = False,
    ordered: bool = True,
    passed: Callable[[bytes], None] | None = None,
    batch_bytes: int = BATCH_BYTES_DEFAULT,
    schema: pa.Schema | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are visible at `lsn`, from `start` up to `end`, in the order of keys.

    Without `ordered`, all is done for the least cost of reading everything: sources whose keys lie
    between each other's are not put in order, and nothing is sorted where no key is in several of
    them; small blocks are joined first, up to `batch_bytes`. `passed` is told a key, now and then, up
    to which (inclusive) all rows have been yielded.

    The columns are `_key`, `_lsn`, then those of `columns` in their order (None: all). `sources` are
    in descending order of `lsn_max`. `schema` has the columns of the namespace: with it, every batch
    has them all, and `columns` that it lacks raise InvalidInputError. Without it, a batch has the
    columns that the sources have shown so far. A batch is at most about `batch_bytes`.
    """

    def open_source(source: RowSource) -> Iterator[pa.RecordBatch]:
        found = source.batches(start, end, columns=columns, reverse=reverse, lsn=lsn)
        return _pieces(found if ordered else _joined(found, joined_bytes), batch_bytes)

    inside = [
        source
        for source in sources
        if source.lsn_min <= lsn
        and source.key_max >= start
        and (end is None or source.key_min < end)
    ]
    joined_bytes = min(batch_bytes, _JOINED_BYTES_MAX // max(1, len(inside)))
    layout = _Layout(columns, schema)
    merging = _Merge(inside, open_source, lsn, layout, reverse=reverse, ordered=ordered)
    for rows in merging.rounds():
        if len(rows) == 1:
            yield from _pieces(iter(map(layout.shown, rows)), batch_bytes)
        else:  # pieces of their sources, as they are
            yield from (layout.shown(part) for part in rows if part.num_rows)
        if passed is not None and merging.past is not None:
            passed(merging.past)


@dataclass(slots=True)
class _Kind:
    """Columns that some sources have alike, and the ranks of the newest and the oldest of those."""

    schema: pa.Schema
    newest: int
    oldest: int


class _Layout:
    """The columns that come out: those asked for, as far as they are known by now."""

    def __init__(self, columns: Sequence[str] | None, schema: pa.Schema | None) -> None:
        self._columns = None if columns is None else list(columns)
        self._is_fixed = schema is not None
        self._fields: list[pa.Field] = []
        self._kinds: list[_Kind] = []
        if self._columns is not None and len(set(self._columns)) != len(self._columns):
            raise InvalidInputError.of("columns", self._columns, "names of columns, each once")
        if schema is not None:
            unknown = [name for name in self._columns or () if name not in schema.names]
            if unknown:
                raise InvalidInputError.of("columns", unknown, f"some of {schema.names}")
            self._fields = [field.with_nullable(True) for field in schema]
        self._set()

    def learn(self, schema: pa.Schema, rank: int) -> None:
        """Take note of the columns of the source that is the `rank`-th newest."""
        if self._is_fixed:
            return
        known = next((kind for kind in self._kinds if kind.schema.equals(schema)), None)
        if known is None:
            self._kinds.append(_Kind(schema, rank, rank))
        elif known.newest <= rank <= known.oldest:
            return
        else:
            known.newest, known.oldest = min(known.newest, rank), max(known.oldest, rank)
            if len(self._kinds) == 1:
                return
        # The newest that has a column says its type, the oldest its place.
        ranks = [(rank, kind) for kind in self._kinds for rank in (kind.newest, kind.oldest)]
        self._fields = []
        for _, kind in sorted(ranks, key=itemgetter(0)):
            self._fields = union(self._fields, list(kind.schema)[_SYSTEM:])
        self._set()

    def _set(self) -> None:
        fields = self._fields
        if self._columns is not None:
            known = {field.name: field for field in fields}
            fields = [known[name] for name in self._columns if name in known]
        self._schema = segment_schema(fields)
        self._shown = [KEY, LSN, *(field.name for field in fields)]

    def align(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return align(batch, self._schema)

    def shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as a reader gets them: they are no tombstones."""
        return align(batch, self._schema).select(self._shown)


class _Cursor:
    """Where the merge is in one source: the rows of it that come next."""

    def __init__(self, rank: int, pieces: Iterator[pa.RecordBatch]) -> None:
        self.rank = rank
        self._pieces = pieces
        self._rows: pa.RecordBatch | None = None
        self.first = b""
        self.last: _Position = (b"", 0)

    def advance(self, lsn: int, past: bytes | None, layout: _Layout) -> bool:
        """Have rows at or below `lsn` that are not of the key `past`. Return False at the end."""
        while True:
            if self._rows is None:
                piece = next(self._pieces, None)
                if piece is None:
                    return False
                layout.learn(piece.schema, self.rank)
                self._set(at_or_below(piece, lsn))
            elif self.first == past:
                self._set(self._rows.slice(self._count(lambda position: position[0] != past)))
            else:
                return True

    def cut(self, bound: _Position, *, reverse: bool) -> pa.RecordBatch | None:
        """Take away the rows at or before `bound`, and return them, if there are any."""
        bound_key, bound_lsn = bound

        def is_behind(position: _Position) -> bool:
            key, lsn = position
            if key == bound_key:
                return lsn < bound_lsn
            return key < bound_key if reverse else key > bound_key

        rows = self._rows
        if not is_behind(self.last):
            self._rows = None
            return rows
        count = self._count(is_behind)
        if not count:
            return None
        assert rows is not None
        self._set(rows.slice(count))
        return rows.slice(0, count)

    def _set(self, rows: pa.RecordBatch) -> None:
        self._rows = rows if rows.num_rows else None
        if rows.num_rows:
            self.first = rows.column(0)[0].as_py()
            self.last = rows.column(0)[-1].as_py(), rows.column(1)[-1].as_py()

    def _count(self, is_behind: Callable[[_Position], bool]) -> int:
        """Return how many rows come before the first one that is behind."""
        assert self._rows is not None
        keys, lsns = self._rows.column(0), self._rows.column(1)
        return bisect_left(
            range(len(keys)), True, key=lambda i: is_behind((keys[i].as_py(), lsns[i].as_py()))
        )


class _Merge:
    """The sources that the merge is in, those that it has not reached, and the last key decided."""

    def __init__(
        self,
        sources: Sequence[RowSource],
        open_source: Callable[[RowSource], Iterator[pa.RecordBatch]],
        lsn: int,
        layout: _Layout,
        *,
        reverse: bool,
        ordered: bool,
    ) -> None:
        self._ordered = ordered
        self._open = open_source
        self._lsn = lsn
        self._layout = layout
        self._reverse = reverse
        # The one that is reached next is at the end.
        self._waiting = sorted(
            (
                (source.key_max if reverse else source.key_min, rank, source)
                for rank, source in enumerate(sources)
            ),
            key=lambda waiting: waiting[0],
            reverse=not reverse,
        )
        self._cursors: list[_Cursor] = []
        self.past: bytes | None = None

    def rounds(self) -> Iterator[list[pa.RecordBatch]]:
        """Yield the visible rows of each round, with the columns of segments: in order, or none."""
        while True:
            self._cursors = [cursor for cursor in self._cursors if self._advance(cursor)]
            self._reach()
            if not self._cursors:
                return
            bound = self._bound()
            cuts = (cursor.cut(bound, reverse=self._reverse) for cursor in self._cursors)
            parts = [part for part in cuts if part is not None]
            furthest = min if self._reverse else max
            self.past = furthest(part.column(0)[-1].as_py() for part in parts)
            if len(parts) == 1:
                yield [visible(parts[0])]
            elif not self._ordered and _is_disjoint(parts):
                yield [alive(part) for part in parts]
            else:
                rows = pa.concat_batches([self._layout.align(part) for part in parts])
                yield [_visible_of_several(rows, reverse=self._reverse)]

    def _advance(self, cursor: _Cursor) -> bool:
        return cursor.advance(self._lsn, self.past, self._layout)

    def _reach(self) -> None:
        """Enter the sources whose keys begin at or before the first row at hand."""
        nearest = max if self._reverse else min
        while self._waiting:
            edge, rank, source = self._waiting[-1]
            if self._cursors:
                first = nearest(cursor.first for cursor in self._cursors)
                if edge < first if self._reverse else edge > first:
                    return
            self._waiting.pop()
            cursor = _Cursor(rank, self._open(source))
            if self._advance(cursor):
                self._cursors.append(cursor)
                self._cursors.sort(key=lambda cursor: cursor.rank)

    def _bound(self) -> _Position:
        """Return the position up to which no source has anything that is not at hand."""
        positions = [cursor.last for cursor in self._cursors]
        if self._waiting:
            positions.append((self._waiting[-1][0], LSN_MAX + 1))  # before all of its versions
        if self._reverse:
            return max(positions)
        return min(positions, key=lambda position: (position[0], -position[1]))


def _pieces(batches: Iterator[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield `batches` in slices of at most about so many bytes, which share their memory."""
    for batch in batches:
        if 0 < batch.num_rows <= _BLOCK_ROWS:
            yield batch
        elif batch.num_rows:
            nbytes = pa.ipc.get_record_batch_size(batch)  # in a fifth of the time of its `nbytes`
            step = min(_BATCH_ROWS_MAX, -(-batch.num_rows // max(1, round(nbytes / most_bytes))))
            for first in range(0, batch.num_rows, step):
                yield batch.slice(first, step)


def _joined(batches: Iterator[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield `batches`, those together that come to no more than about so many bytes.

    A batch takes a few hundred steps of Python, whatever its size; to copy a small one takes less.
    """
    some: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        nbytes = batch.get_total_buffer_size()
        if some and (size + nbytes > most_bytes or not batch.schema.equals(some[0].schema)):
            yield some[0] if len(some) == 1 else pa.concat_batches(some)
            some, size = [], 0
        some.append(batch)
        size += nbytes
        if len(some) == _JOINED_MAX:
            yield pa.concat_batches(some)
            some, size = [], 0
    if some:
        yield some[0] if len(some) == 1 else pa.concat_batches(some)


def _is_disjoint(parts: Sequence[pa.RecordBatch]) -> bool:
    """Return whether no key is in several of them, or more than once in one."""
    keys = pa.concat_arrays([part.column(0) for part in parts])
    return len(keys.unique()) == len(keys)


def _visible_of_several(rows: pa.RecordBatch, *, reverse: bool) -> pa.RecordBatch:
    """Return the same of rows that come from several sources, newer ones first, sorting them."""
    direction = "descending" if reverse else "ascending"
    order = pc.array_sort_indices(rows.column(0), order=direction)
    keep = changes(rows.column(0).take(order))
    index = order.to_numpy()
    # The sort is stable, and LSNs rarely overlap between sources whose keys do: then versions are in
    # order already. They do overlap between a memtable and what was attached to the log meanwhile.
    lsns = rows.column(1).to_numpy()[index]
    if (~keep[1:] & (lsns[1:] > lsns[:-1])).any():
        keys = [(KEY, direction), (LSN, "descending")]
        index = pc.sort_indices(rows, sort_keys=keys).to_numpy()
    keep &= ~rows.column(2).to_numpy(zero_copy_only=False)[index]
    return rows.take(pa.array(index[keep]))
