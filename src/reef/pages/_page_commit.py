"""The commits of a page store: pages, and the number of pages.

Most go into the log side by side with others: a commit that reaches further than the store did adds
the row that says so, under the writer's lock. One that cuts the store, or says how far it is to
extend, or does not fit into a log object, goes alone: what it finds is what it replaces.

What is cut off gets tombstones: the store may grow again over pages that were cut off, and these read
as absent then, not as what they were; and at an older LSN, they are there.

Crash points: before the PUT of the log object nothing is visible; of a large commit there are segments
then that nothing names, whose ids say that this writer's epoch made them: collection finds them when
there is another. After the PUT, all of it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.engine import (
    Context,
    ReadState,
    Resolved,
    View,
    Writer,
    WriteRequest,
    check_number,
    plain_codes,
)
from reef.errors import InvalidInputError, NotWrittenError, UnavailableError
from reef.format import KEY, SegmentOptions, SegmentOrigin, SegmentRef, segment_schema
from reef.pages._page_rows import (
    DATA_FIELD,
    EXTENT_KEY,
    check_pages,
    extent_of,
    extent_row,
    gone,
    gone_rows,
    keys_of,
    page_key,
    page_rows,
)
from reef.pages._turns import Turns
from reef.segment import write_segment
from reef.types import LSN_MAX, new_ulid

_ROW_BYTES = 16  # a key, its offsets, a flag
_EXTENT_BYTES = 64  # the row of the extent, and what rounding adds
_SMALL_CUT = 1 << 20  # up to this many pages get a tombstone each, whether they exist or not
_PIECE_BYTES = 4 << 20
_LEVEL = 0
_SEGMENT_SCHEMA = segment_schema([DATA_FIELD])


class PageCommit(NamedTuple):
    """The pages and the size that one call commits."""

    versions: Sequence[tuple[int | None, Mapping[int, bytes]]]
    """LSNs, if the caller gives them, and the pages of each."""
    n_pages: int | None
    key: bytes | None

    @property
    def is_nothing(self) -> bool:
        """Whether it can be left out if it changes no page: it has neither a key nor an LSN."""
        return self.key is None and self.versions[-1][0] is None

    @property
    def digest(self) -> bytes | None:
        """Its digest, for its idempotency key."""
        if self.key is None:
            return None
        digest = hashlib.blake2b(repr(self.n_pages).encode(), digest_size=16)
        for lsn, pages in self.versions:
            ids = sorted(pages)
            digest.update(repr((lsn, [*map(int, ids)])).encode())
            digest.update(b"".join([pages[id] for id in ids]))
        return digest.digest()


class Commits:
    """The commit path of one open store."""

    def __init__(self, context: Context, writer: Writer, page_size: int) -> None:
        self._context = context
        self._writer = writer
        self._page_size = page_size
        self._turns = Turns(context.threads)

    def commit(self, commit: PageCommit) -> int:
        """Make it durable; return the LSN of its last version."""
        tops = [self._top(pages) for _, pages in commit.versions]
        for lsn, _ in commit.versions:
            if lsn is not None:
                check_number("lsn", lsn)
        if commit.n_pages is not None and tops[-1] > commit.n_pages:
            raise InvalidInputError.of(
                "page_id", tops[-1] - 1, f"a number below n_pages = {commit.n_pages}"
            )
        if len(tops) > 1:
            _check_rising([lsn for lsn, _ in commit.versions])
            if commit.key is not None:
                raise InvalidInputError(
                    "idempotency_key is given for records of several LSNs: write one "
                    "LSN at a time, or leave the key out"
                )
        count = sum(len(pages) for _, pages in commit.versions)
        size = _EXTENT_BYTES + count * (self._page_size + _ROW_BYTES)
        if commit.n_pages is None and size <= self._writer.bytes_max:
            if not any(tops) and commit.is_nothing:
                return self._writer.lsn
            with self._turns.together():
                return self._send([self._growing(commit, *one) for one in self._each(commit, tops)])
        with self._turns.alone():
            self._writer.settle()
            return self._commit_alone(commit, tops, size)

    def _top(self, pages: Mapping[int, bytes]) -> int:
        """Return how many pages a store has at least that holds these. Raises InvalidInputError."""
        check_pages(pages, self._page_size)
        if not pages:
            return 0
        try:
            low, high = min(pages), max(pages)
        except TypeError:
            raise InvalidInputError.of(
                "pages", list(pages)[:8], "a dict of page numbers to bytes"
            ) from None
        page_key(low)
        page_key(high)
        return int(high) + 1  # of a narrow type, it would come round to 0

    def _each(
        self, commit: PageCommit, tops: Sequence[int]
    ) -> Iterator[tuple[int | None, Mapping[int, bytes], int]]:
        for (lsn, pages), top in zip(commit.versions, tops, strict=True):
            yield lsn, pages, top

    def _send(self, requests: Sequence[WriteRequest]) -> int:
        if len(requests) == 1:
            return self._writer.write(requests[0]).lsn
        return self._writer.write_all(requests)[-1].lsn

    # Side by side with others.

    def _growing(
        self, commit: PageCommit, lsn: int | None, pages: Mapping[int, bytes], top: int
    ) -> WriteRequest:
        """Return the request for pages, and for the row of the extent if they lie beyond it."""
        batch = page_rows(pages, self._page_size)

        def resolve(state: ReadState) -> Resolved:
            rows = batch
            if top > extent_of(state.one(EXTENT_KEY, LSN_MAX)):
                rows = pa.concat_batches([batch, extent_row(top)])
            return Resolved(rows, plain_codes(rows))

        return WriteRequest(
            batch=batch,
            nbytes=len(pages) * (self._page_size + _ROW_BYTES),
            resolve=resolve,
            prepare=_read_extent,
            idempotency_key=commit.key,
            digest=commit.digest,
            lsn=lsn,
        )

    # Alone.

    def _commit_alone(self, commit: PageCommit, tops: Sequence[int], size: int) -> int:
        """Commit with the knowledge of how far the store extends."""
        *before, (lsn, pages, _) = self._each(commit, tops)
        extra = self._writer.look_first(lambda view: [*_beside(view, commit, tops)])
        size += sum(rows.nbytes for rows in extra)
        if size <= self._writer.bytes_max:
            rows = pa.concat_batches([page_rows(pages, self._page_size), *extra])
            if not rows.num_rows and commit.is_nothing:
                return self._writer.lsn
            last = WriteRequest(
                batch=rows,
                nbytes=size,
                idempotency_key=commit.key,
                digest=commit.digest,
                lsn=lsn,
            )
            return self._send([*(self._growing(commit, *one) for one in before), last])
        if before:
            raise InvalidInputError(
                f"the records have {size} bytes of {len(commit.versions)} LSNs: "
                f"expected at most log_segment_max_bytes = {self._writer.bytes_max} "
                "where there are several LSNs; split them, or give fewer"
            )
        return self._commit_large(commit, lsn, pages, extra)

    # What does not fit into a log object.

    def _commit_large(
        self,
        commit: PageCommit,
        lsn: int | None,
        pages: Mapping[int, bytes],
        extra: Sequence[pa.RecordBatch],
    ) -> int:
        """Upload the rows as segments of this writer's epoch, and attach them."""
        digest = commit.digest
        if commit.key is not None and digest is not None:
            known = self._writer.known(commit.key, digest)
            if known is not None:
                return known.lsn
        try:
            refs = [self._upload(rows) for rows in self._layers(pages, extra)]
        except UnavailableError as error:
            raise NotWrittenError(
                f"the pages could not be uploaded ({error}); nothing was committed: retry"
            ) from error
        return self._writer.attach(refs, idempotency_key=commit.key, digest=digest, lsn=lsn).lsn

    def _layers(
        self, pages: Mapping[int, bytes], extra: Sequence[pa.RecordBatch]
    ) -> Iterator[list[pa.RecordBatch]]:
        """Yield the rows of each segment, in order of keys.

        Tombstones and the extent lie behind all pages.
        """
        target_bytes = self._context.settings.delta_layer_target_bytes
        layer: list[pa.RecordBatch] = []
        size = 0
        for rows in chain(self._pieces(pages), extra):
            layer.append(rows)
            size += rows.nbytes
            if size >= target_bytes:
                yield layer
                layer, size = [], 0
        if layer:
            yield layer

    def _pieces(self, pages: Mapping[int, bytes]) -> Iterator[pa.RecordBatch]:
        ordered = sorted(pages)
        most = min(_PIECE_BYTES, self._context.settings.delta_layer_target_bytes)
        step = max(1, most // self._page_size)
        for first in range(0, len(ordered), step):
            some = {page_id: pages[page_id] for page_id in ordered[first : first + step]}
            yield page_rows(some, self._page_size)

    def _upload(self, batches: Sequence[pa.RecordBatch]) -> SegmentRef:
        context, writer = self._context, self._writer
        origin = SegmentOrigin(
            id=f"{new_ulid(context.clock, context.rng)}-e{writer.epoch}",
            namespace=writer.namespace,
            level=_LEVEL,
            author=context.author,
            created_at_us=context.clock.now_us(),
        )
        options = SegmentOptions(row_block_bytes=context.settings.row_block_bytes)
        rows = map(_of_segment, batches)
        return write_segment(
            context.store, writer.namespace, _SEGMENT_SCHEMA, origin, options, rows
        )


def _read_extent(view: View) -> object:
    return view.one(EXTENT_KEY)


def _beside(view: View, commit: PageCommit, tops: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the other rows of the last version: tombstones of pages it cuts off, and the extent."""
    extent = max([extent_of(view.one(EXTENT_KEY)), *tops[:-1]])
    n_pages = max(extent, tops[-1]) if commit.n_pages is None else commit.n_pages
    if extent - n_pages > _SMALL_CUT:
        # Few of them may be there at all; those of the versions before this one are not there yet.
        ids = {id for _, pages in commit.versions[:-1] for id in pages if id >= n_pages}
        new = pa.array(keys_of(ids), pa.binary())
        for batch in view.scan(start=page_key(n_pages), end=EXTENT_KEY, columns=[]):
            keys = batch.column(KEY)
            new = new.filter(pc.invert(pc.is_in(new, value_set=keys)))
            yield gone(keys)
        yield gone(new)
    elif extent > n_pages:
        yield gone_rows(n_pages, extent)
    if n_pages != extent:
        yield extent_row(n_pages)


def _check_rising(lsns: Sequence[int | None]) -> None:
    for lsn, following in pairwise(lsns):
        if lsn is None or following is None or lsn >= following:
            raise InvalidInputError.of(
                "lsn",
                following,
                f"None for every record, or a number above {lsn}, the LSN of the record before",
            )


def _of_segment(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as segments have them; the log gives them their version."""
    keys, tombstones, data = rows.columns
    lsns = pa.array(np.ones(rows.num_rows, np.int64))
    return pa.RecordBatch.from_arrays([keys, lsns, tombstones, data], schema=_SEGMENT_SCHEMA)
