"""Reading from several sources at once: the newest visible version of each key wins.

A source gives its keys in the order asked, and for each key the newest version first. The merge
works in rounds:

1. Take one piece of rows from each open source. Drop the rows of a key that the source has given
   before: they are older versions.
2. The smallest of the pieces' last keys bounds the round (the largest, in reverse): no source can
   give another row up to there that matters.
3. A round costs a step for each open source. So while it has few rows, replace the piece that ends
   first by the next one of its source, until there is a share of rows for every open source. Many
   small sources then cost what their rows do.
4. Cut off the rows up to the bound, sort them, and yield the first row of each key, unless it is a
   tombstone.

A source is opened when the merge reaches its key range. Where one source alone has rows, they go
through as they are: runs that follow each other cost no more than one run. A round is extended by no
more rows than all rounds before it had: a caller that takes only the first rows does not pay for many
more. Memory holds one piece of each source, the share, and the rows of the round once more.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, gt, itemgetter, lt

import pyarrow as pa
import pyarrow.compute as pc

from reef.errors import InvalidInputError
from reef.format import KEY, LSN, segment_schema
from reef.segment._merge._piece_queue import Ends, PieceQueue, Within
from reef.segment._row_columns import (
    align,
    at_or_below,
    changes,
    union,
    visible,
    without_tombstones,
)
from reef.segment._row_source import RowSource, RowVersion

BATCH_BYTES_DEFAULT = 1 << 20
_BLOCK_ROWS = 512  # at most a block of a segment: not worth asking Arrow for its size
_JOINED_MAX = 16  # blocks: a batch of a few columns keeps the whole of each in memory
_JOINED_BYTES_MAX = 16 << 20  # in all sources together
_BATCH_ROWS_MAX = 1 << 16
_SHARE_ROWS = 64  # rows of a round for each open source: about the cost of cutting one
_SYSTEM = 3  # _key, _lsn, _tombstone


def lookup(sources: Sequence[RowSource], key: bytes, lsn: int) -> RowVersion | None:
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
) -> list[RowVersion | None]:
    """Return for each key what `lookup` would, asking each source once."""
    best: list[RowVersion | None] = [None] * len(keys)
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
    them; small blocks are joined first, up to `batch_bytes`. `passed` is called now and
    then with a key up to which (inclusive) all rows have been yielded.

    The columns are `_key`, `_lsn`, then those of `columns` in their order (None: all). `sources` are
    in descending order of `lsn_max`. `schema` has the columns of the namespace: with it, every batch
    has them all, and `columns` that it lacks raise InvalidInputError. Without it, a batch has the
    columns that the sources have shown so far. A batch is at most about `batch_bytes`.
    """

    def open_source(source: RowSource) -> Iterator[pa.RecordBatch]:
        found = source.batches(start, end, columns=columns, reverse=reverse, lsn=lsn)
        return _sliced(found if ordered else _concatenated(found, joined_bytes), batch_bytes)

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
            yield from _sliced(iter(map(layout.reader_rows, rows)), batch_bytes)
        else:  # pieces of their sources, as they are
            yield from (layout.reader_rows(part) for part in rows if part.num_rows)
        if passed is not None and merging.past is not None:
            passed(merging.past)


@dataclass(slots=True)
class _Kind:
    """Columns that several sources share, and the ranks of the newest and the oldest of them."""

    schema: pa.Schema
    newest: int
    oldest: int


class _Layout:
    """The columns of the output: the requested ones, as far as they are known by now."""

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
                raise InvalidInputError(
                    f"there are no columns {unknown}: expected some of {schema.names}"
                )
            self._fields = [field.with_nullable(True) for field in schema]
        self._set()

    def learn(self, schema: pa.Schema, rank: int) -> None:
        """Add the columns of the `rank`-th newest source."""
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
        # The newest source with a column gives its type, the oldest its place.
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
        self._reader_columns = [KEY, LSN, *(field.name for field in fields)]

    def align(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return align(batch, self._schema)

    def reader_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as a reader gets them; none is a tombstone."""
        return align(batch, self._schema).select(self._reader_columns)


class _Merge:
    """The sources in the merge, those not reached yet, and the last key decided."""

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
        self._is_before = gt if reverse else lt
        # The next source to reach is at the end.
        self._waiting = sorted(
            (
                (source.key_max if reverse else source.key_min, rank, source)
                for rank, source in enumerate(sources)
            ),
            key=lambda waiting: waiting[0],
            reverse=not reverse,
        )
        self._queues: list[PieceQueue] = []
        """From the newest source to the oldest."""
        self._taken = 0
        """Rows, in all rounds so far."""
        self.past: bytes | None = None

    def rounds(self) -> Iterator[list[pa.RecordBatch]]:
        """Yield the visible rows of each round, with the columns of segments: in order, or none."""
        while True:
            self._queues = [queue for queue in self._queues if queue.fill()]
            is_within = self._reach()
            cuts = [cut for queue in self._queues if (cut := queue.cut(is_within))]
            if not cuts:
                return
            furthest = min if self._reverse else max
            self.past = furthest(cut[-1].column(0)[-1].as_py() for cut in cuts)
            parts = [part for cut in cuts for part in cut]
            count = sum(part.num_rows for part in parts)
            self._taken += count
            if len(cuts) == 1:
                yield [visible(part) for part in parts]
                continue
            is_disjoint = not self._ordered and _is_disjoint(parts)
            if is_disjoint and count > _SHARE_ROWS * len(parts):
                yield [without_tombstones(part) for part in parts]
                continue
            rows = pa.concat_batches([self._layout.align(part) for part in parts])
            yield [
                without_tombstones(rows) if is_disjoint else _newest(rows, reverse=self._reverse)
            ]

    def _reach(self) -> Within:
        """Fetch the pieces that a round needs, and return which keys are within it.

        Those at or before the least of the last keys at hand, and before the keys of all sources that
        are not entered. A source without more pieces bounds nothing.
        """
        ends = Ends(self._queues, reverse=self._reverse)
        rows = 0
        while True:
            share = min(_SHARE_ROWS * (len(self._queues) - 1), self._taken)
            end, edge = ends.nearest, self._waiting[-1][0] if self._waiting else None
            if edge is not None and (end is None or not self._is_before(end, edge)):
                if ends.have_before(edge) and (rows >= share or ends.are_before(edge)):
                    return edge.__lt__ if self._reverse else edge.__gt__
                queue = self._enter()
            elif end is not None:
                queue = ends.pop()
                rows += queue.weight
                if rows >= share:
                    return end.__le__ if self._reverse else end.__ge__
            else:
                return lambda key: True
            if queue.pull():
                ends.add(queue)

    def _enter(self) -> PieceQueue:
        """Open the next source."""
        _, rank, source = self._waiting.pop()
        queue = PieceQueue(rank, self._pieces_of(rank, source))
        insort(self._queues, queue, key=attrgetter("rank"))
        return queue

    def _pieces_of(self, rank: int, source: RowSource) -> Iterator[pa.RecordBatch]:
        for piece in self._open(source):
            self._layout.learn(piece.schema, rank)
            yield at_or_below(piece, self._lsn)


def _sliced(batches: Iterator[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield `batches` in slices of at most about so many bytes, which share their memory."""
    for batch in batches:
        if 0 < batch.num_rows <= _BLOCK_ROWS:
            yield batch
        elif batch.num_rows:
            nbytes = pa.ipc.get_record_batch_size(batch)  # in a fifth of the time of its `nbytes`
            step = min(_BATCH_ROWS_MAX, -(-batch.num_rows // max(1, round(nbytes / most_bytes))))
            for first in range(0, batch.num_rows, step):
                yield batch.slice(first, step)


def _concatenated(batches: Iterator[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
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
    """Return whether no key is in two of them, or twice in one."""
    keys = pa.concat_arrays([part.column(0) for part in parts])
    return len(keys.unique()) == len(keys)


def _newest(rows: pa.RecordBatch, *, reverse: bool) -> pa.RecordBatch:
    """Return what `visible` does of rows of several sources, newer ones first, sorting them."""
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
