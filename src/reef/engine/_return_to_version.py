"""Restoring a version: a new version that is equal to an old one, as one change of the log.

What is written is the difference: a row for each key that had one then and was written since, a
tombstone for each key that has a row now and had none then. What the difference says of a key depends on
the old version alone; what was committed since says only for which keys it has to say it.

    small   one batch. Under the writer's lock the keys that were written after the difference was
            read are added, so no write comes in between, and no other writer of the handle can starve it
    large   sorted segments under the writer's epoch, attached by one log object. Under the lock it is
            only checked that nothing was written since. If something was, the key ranges that have it are
            read and uploaded anew

Invariants:

- The new version is the one before it and the difference, so it equals the old one.
- A key that was written since has its newest version in the sources, a tombstone too: compaction drops
  a tombstone only where no version at a retained point is left below it. So the old version has to be
  retained, which is checked on the very manifest whose segments are read.
- Nothing is erased: the versions between the two stay as they are.

Crash points: before the PUT of the log object nothing is visible; a large one leaves segments that
nothing names, which collection finds after the next open. After it all of it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.context import Context
from reef.engine._commit._conditions import Resolved, plain_codes
from reef.engine._commit._receipt import DELETED, Receipt
from reef.engine._commit._request import WriteRequest
from reef.engine._read._view import ReadState, View
from reef.engine._writer import Writer
from reef.errors import NotFoundError, NotWrittenError, RetentionError, UnavailableError
from reef.format import (
    KEY,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    log_schema,
    segment_schema,
)
from reef.segment import Prune, RowSource, RowVersion, merge, write_segment
from reef.types import LSN_MAX, new_ulid

_BATCH_BYTES = 8 << 20
_BATCH_ROWS_MAX = 1 << 16
_FIRST_ROWS = 1 << 6
_ROUNDS_MAX = 20
_NO_LSN = 1  # in files, where every version is at least 1


class Restored(NamedTuple):
    """What restoring a version has done."""

    lsn: int
    """The new version; the newest one before if there was nothing to restore."""
    restored_lsn: int
    """The version that it is equal to."""
    written: int
    deleted: int


class _MovedOnError(Exception):
    """Something was committed after the difference was read."""


def restore_version(context: Context, writer: Writer, lsn: int, schema: pa.Schema) -> Restored:
    """Make the version at `lsn` the newest again, in the columns of `schema`, durably.

    Raises RetentionError below the retention floor, SnapshotExpiredError if a compaction passes it
    meanwhile, NotWrittenError if others keep writing while a large difference is uploaded, and what
    `Writer.write` raises.
    """
    for _ in range(_ROUNDS_MAX):
        try:
            return _restore_once(context, writer, lsn, schema)
        except NotFoundError as error:  # a segment was compacted away and collected meanwhile
            gone = error
            writer.reload()
    raise gone


def _restore_once(context: Context, writer: Writer, lsn: int, schema: pa.Schema) -> Restored:
    writer.settle()
    restoring = _Restoring(context, writer, writer.at_kept(lsn), schema)
    now = writer.view()
    batches: list[pa.RecordBatch] = []
    nbytes = 0
    # Half of what a batch may have: more may be committed before its turn.
    rows = restoring.difference(now.read(lambda state: state), lsn, now.lsn)
    for batch in rows:
        batches.append(batch)
        nbytes += batch.nbytes
        if nbytes > writer.bytes_max // 2:
            return restoring.attach(chain(batches, rows), now.lsn)
    batch = pa.concat_batches(batches) if batches else restoring.no_rows
    try:
        return restoring.commit(batch, nbytes, now.lsn)
    except _MovedOnError:
        return restoring.attach(iter(batches), now.lsn)


class _Portion(NamedTuple):
    """The difference of a key range, uploaded."""

    start: bytes
    end: bytes | None
    ref: SegmentRef | None
    """None: there is no difference."""


class _Restoring:
    """The restoring of one version."""

    def __init__(self, context: Context, writer: Writer, then: View, schema: pa.Schema) -> None:
        self._context = context
        self._writer = writer
        self._then = then
        self._schema = pa.schema([field.with_nullable(True) for field in schema])
        self._log_schema = log_schema(list(self._schema))
        self.no_rows = pa.RecordBatch.from_pylist([], schema=self._log_schema)

    def difference(
        self,
        state: ReadState,
        above: int,
        upto: int,
        start: bytes = b"",
        end: bytes | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows to write for the keys that have a version above one LSN and up to another."""
        count = _FIRST_ROWS
        for changed in self._changed_keys(state, above, upto, start, end):
            at = 0
            while at < len(changed):
                keys = changed.slice(at, count)
                at += len(keys)
                rows = self._rows(state, upto, keys)
                if rows.num_rows:
                    yield rows
                fitting = _BATCH_BYTES * len(keys) // max(1, rows.nbytes)
                count = max(1, min(fitting, 4 * count, _BATCH_ROWS_MAX))

    def commit(self, batch: pa.RecordBatch, nbytes: int, noted: int) -> Restored:
        """Commit a small difference, as it was up to the version `noted`, and what came since.

        Raises _MovedOnError if that is too much for a batch.
        """

        def resolve(state: ReadState) -> Resolved:
            if _newest(state) <= noted:
                return Resolved(batch, plain_codes(batch))
            rows = batch
            for later in self.difference(state, noted, LSN_MAX):
                is_new = pc.invert(pc.is_in(later.column(KEY), value_set=batch.column(KEY)))
                rows = pa.concat_batches([rows, later.filter(is_new)])
                if rows.nbytes > self._writer.bytes_max:
                    raise _MovedOnError
            return Resolved(rows, plain_codes(rows))

        receipt = self._writer.write(WriteRequest(batch=batch, nbytes=nbytes, resolve=resolve))
        deleted = receipt.codes.count(DELETED)
        return self._restored(receipt, len(receipt.codes) - deleted, deleted)

    def attach(self, rows: Iterator[pa.RecordBatch], noted: int) -> Restored:
        """Upload a large difference, as it was up to the version `noted`, and attach it."""
        portions = [*self._upload(b"", None, rows)]

        def check(state: ReadState) -> Resolved:
            if _newest(state) > noted:
                raise _MovedOnError
            return Resolved(self.no_rows, b"")

        for _ in range(_ROUNDS_MAX):
            refs = [portion.ref for portion in portions if portion.ref is not None]
            try:
                receipt = self._writer.attach(refs, resolve=check)
            except _MovedOnError:
                self._writer.settle()
                now = self._writer.view()
                state = now.read(lambda state: state)
                portions = [*self._renewed(portions, state, noted, now.lsn)]
                noted = now.lsn
                continue
            deleted = sum(ref.tombstones for ref in refs)
            return self._restored(receipt, sum(ref.rows for ref in refs) - deleted, deleted)
        raise NotWrittenError(
            f"others wrote to namespace {self._writer.namespace!r} during each of {_ROUNDS_MAX} "
            f"attempts to restore LSN {self._then.lsn}; nothing was restored: let them pause, and retry"
        )

    def _restored(self, receipt: Receipt, written: int, deleted: int) -> Restored:
        return Restored(receipt.lsn, self._then.lsn, written, deleted)

    def _changed_keys(
        self, state: ReadState, above: int, upto: int, start: bytes, end: bytes | None
    ) -> Iterator[pa.BinaryArray]:
        """Yield, in order, the keys that have a version above one LSN and up to another."""
        self._check_kept(state)
        sources = [_WithoutTombstones(one) for one in state.sources if one.lsn_max > above]
        for batch in merge(sources, start=start, end=end, lsn=upto, columns=[]):
            is_changed = batch.column(1).to_numpy() > above
            yield batch.column(0).filter(pa.array(is_changed))

    def _check_kept(self, state: ReadState) -> None:
        manifest, lsn = state.manifest, self._then.lsn
        if lsn < manifest.retention.floor_lsn and all(s.lsn != lsn for s in manifest.snapshots):
            raise RetentionError(
                f"LSN {lsn} of namespace {manifest.namespace!r} was passed by the retention floor "
                f"{manifest.retention.floor_lsn} while it was being restored; nothing was restored. "
                "Next time take a snapshot of it first"
            )

    def _rows(self, state: ReadState, upto: int, keys: pa.BinaryArray) -> pa.RecordBatch:
        old = self._then.many(keys)
        is_there = state.many(keys, upto, wide=False).exists
        rows = pa.RecordBatch.from_arrays(
            [keys, pa.array(~old.exists), *old.rows(self._schema).columns], schema=self._log_schema
        )
        wanted = old.exists | is_there
        return rows if wanted.all() else rows.filter(pa.array(wanted))

    # Large ones.

    def _upload(
        self, start: bytes, end: bytes | None, rows: Iterator[pa.RecordBatch]
    ) -> Iterator[_Portion]:
        """Upload the difference of a key range as segments; yield the portions, in order."""
        target_bytes = self._context.settings.delta_layer_target_bytes
        batch = next(rows, None)
        if batch is None:
            yield _Portion(start, end, None)
        while batch is not None:
            gathered, nbytes = [batch], batch.nbytes
            while (batch := next(rows, None)) is not None and nbytes < target_bytes:
                gathered.append(batch)
                nbytes += batch.nbytes
            ref = self._write(gathered)
            stop = end if batch is None else ref.key_max + b"\0"
            yield _Portion(start, stop, ref)
            start = ref.key_max + b"\0"

    def _write(self, batches: Sequence[pa.RecordBatch]) -> SegmentRef:
        context, writer = self._context, self._writer
        origin = SegmentOrigin(
            id=f"{new_ulid(context.clock, context.rng)}-e{writer.epoch}",
            namespace=writer.namespace,
            level=0,
            author=context.author,
            created_at_us=context.clock.now_us(),
        )
        options = SegmentOptions(row_block_bytes=context.settings.row_block_bytes)
        schema = segment_schema(list(self._schema))
        rows = (_of_segment(batch, schema) for batch in batches)
        try:
            return write_segment(context.store, writer.namespace, schema, origin, options, rows)
        except UnavailableError as error:
            raise NotWrittenError(
                f"the rows to restore could not be uploaded ({error}); nothing was restored: retry"
            ) from error

    def _renewed(
        self, portions: Sequence[_Portion], state: ReadState, noted: int, upto: int
    ) -> Iterator[_Portion]:
        """Yield the portions with those replaced in which a key was written since `noted`."""
        starts = [portion.start for portion in portions]
        touched: set[int] = set()
        for keys in self._changed_keys(state, noted, upto, b"", None):
            touched.update(bisect_right(starts, key) - 1 for key in keys.to_pylist())
        for number, portion in enumerate(portions):
            if number not in touched:
                yield portion
                continue
            start, end = portion.start, portion.end
            rows = self.difference(state, self._then.lsn, upto, start, end)
            yield from self._upload(start, end, rows)


class _WithoutTombstones:
    """A source whose deleted keys count as rows: without its columns."""

    def __init__(self, source: RowSource) -> None:
        self._source = source
        self.lsn_min, self.lsn_max = source.lsn_min, source.lsn_max
        self.key_min, self.key_max = source.key_min, source.key_max

    def get(self, key: bytes, lsn: int) -> RowVersion | None:
        return self._source.get(key, lsn)

    def get_many(self, keys: Sequence[bytes], lsn: int) -> list[RowVersion | None]:
        return self._source.get_many(keys, lsn)

    def batches(
        self,
        start: bytes,
        end: bytes | None,
        *,
        columns: Sequence[str] | None,
        reverse: bool,
        lsn: int,
        prune: Prune | None = None,
    ) -> Iterator[pa.RecordBatch]:
        schema = segment_schema([])
        for batch in self._source.batches(
            start, end, columns=[], reverse=reverse, lsn=lsn, prune=prune
        ):
            alive = pa.array(np.zeros(batch.num_rows, np.bool_))
            yield pa.RecordBatch.from_arrays(
                [batch.column(0), batch.column(1), alive], schema=schema
            )


def _newest(state: ReadState) -> int:
    """Return the newest version of any row, those in flight included."""
    return max(source.lsn_max for source in state.sources)


def _of_segment(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as segments have them; the log gives them their version."""
    keys, tombstones, *columns = batch.columns
    lsns = pa.array(np.full(batch.num_rows, _NO_LSN, np.int64))
    return pa.RecordBatch.from_arrays([keys, lsns, tombstones, *columns], schema=schema)
