"""The writer: the one handle of a namespace that commits.

It sends nothing by itself: commits begin flushes. Every row in its memory is in the log as well, so
a crash at any moment loses nothing.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from reef.context import Context
from reef.engine._commit._admission import NoRoomError
from reef.engine._commit._attach import attach_request, check_spared, check_uploaded
from reef.engine._commit._conditions import Resolve
from reef.engine._commit._dedup_index import DedupIndex
from reef.engine._commit._flush import plan_flush, publish_flush, write_flush
from reef.engine._commit._log_writer import LogWriter
from reef.engine._commit._path import CommitPath
from reef.engine._commit._receipt import Receipt
from reef.engine._commit._request import WriteRequest
from reef.engine._handle import Handle
from reef.engine._holes import log_object_gone
from reef.engine._maintenance._maintenance import Maintenance
from reef.engine._read._view import View
from reef.engine._tail import Tail
from reef.errors import (
    DroppedError,
    FencedError,
    InvalidInputError,
    InvariantError,
    NotFoundError,
    NotWrittenError,
    OverloadedError,
    ReefError,
    SnapshotExpiredError,
    StalePlanError,
    UnavailableError,
)
from reef.format import Manifest, SegmentRef, log_schema
from reef.log import list_log
from reef.manifest import Head, ManifestChain, end_writer

_FLUSH_PAUSE_S = 1.0  # after a flush that failed
_PLANS_MAX = 10
_STALL_S = 1.0  # between two looks at whether a flush can be begun

_T = TypeVar("_T")
_log = logging.getLogger("reef.engine")


class Writer(Handle):
    """An open namespace that can be written. Threads may share it."""

    def __init__(
        self,
        context: Context,
        namespace: str,
        chain: ManifestChain,
        head: Head,
        tail: Tail,
        *,
        writer_id: bytes,
        dedup: DedupIndex,
    ) -> None:
        super().__init__(context, namespace, chain, head, tail)
        manifest = head.manifest
        self.epoch = manifest.writer_epoch
        self._dedup = dedup
        log = LogWriter(context, chain, self._log, self.epoch, writer_id)
        self._cond = context.threads.condition()
        """Its lock guards the handle and the commit path."""
        self._commits = CommitPath(context, chain, self._live, dedup, log, self._cond)
        self._flush_turn = context.threads.condition()
        """Held while flushing: one flush at a time."""
        self._is_flush_begun = False
        """Whether a background flush is running."""
        self._flush_failure: ReefError | None = None
        self._flush_not_before = 0.0
        self._flushed_at = context.clock.monotonic()
        self._own_from = tail.replay.next_slot
        self._others_in_flight = 0
        """Attaches and schema changes, of which it is not known that they have ended."""
        self._maintenance = Maintenance(context, self, chain, self._flush_turn)
        self._maintenance.adopted(manifest)
        self._is_ended = False
        """Whether its end has been published, or was tried to be."""
        if (tracer := context.metrics.tracer) is not None:
            for name, call in (("commit", "write"), ("commit", "write_all"), ("flush", "_flush")):
                traced = tracer.traced(f"reef.{name}", getattr(self, call), namespace=namespace)
                setattr(self, call, traced)

    def write(self, request: WriteRequest) -> Receipt:
        """Make one batch durable and return its receipt.

        Raises OverloadedError if there is no room for it, and what `CommitPath.commit` raises.
        """
        self.check_open()
        deadline: float | None = None
        while True:
            if request.prepare is not None:
                self.look_first(request.prepare)
            try:
                receipt = self._commits.commit(request)
                break
            except NotFoundError:
                self.reload()  # a segment was compacted away; nothing was written
            except NoRoomError:
                deadline = self._wait_for_room(request.nbytes, deadline)
        self._flush_if_due()
        return receipt

    def write_all(self, requests: Sequence[WriteRequest]) -> list[Receipt]:
        """Make several batches durable by one log object, all or none, each of its own version.

        They have neither idempotency keys nor streams. Raises OverloadedError, and what
        `CommitPath.commit_all` raises.
        """
        self.check_open()
        deadline: float | None = None
        while True:
            for request in requests:
                if request.prepare is not None:
                    self.look_first(request.prepare)
            try:
                receipts = self._commits.commit_all(requests)
                break
            except NotFoundError:
                self.reload()
            except NoRoomError:
                nbytes = sum(request.nbytes for request in requests)
                deadline = self._wait_for_room(nbytes, deadline)
        self._flush_if_due()
        return receipts

    def _wait_for_room(self, nbytes: int, deadline: float | None) -> float:
        """Begin a flush and wait for room to change; return the time to give up.

        Raises OverloadedError at the deadline, which is `write_stall_timeout` from the first call.
        """
        self._commits.push()
        now = self._context.clock.monotonic()
        if deadline is None:
            deadline = now + self._context.settings.write_stall_timeout
        with self._cond:
            if self._is_closed or self.failure is not None or self._commits.has_room(nbytes):
                return deadline
            self._context.metrics.count("reef_write_stalls_total")
            failed = self._begin_flush()
            if now >= deadline:
                why = f"the last flush failed ({failed})" if failed else "flushing does not keep up"
                tail = self._live.tail
                raise OverloadedError(
                    f"namespace {self.namespace!r} holds {tail.memtable.nbytes} bytes in memory and "
                    f"{tail.log_bytes} of unfolded log, and {why}: nothing was written; retry "
                    "later, or raise memtable_max_bytes or unfolded_log_max_bytes"
                )
            self._cond.wait(min(deadline - now, _STALL_S))
        return deadline

    def known(
        self,
        key: bytes | None,
        digest: bytes | None,
        source: str | None = None,
        sequence: int | None = None,
    ) -> Receipt | None:
        """Return the receipt of a durable request of the same key, or past this one in its stream.

        Raises IdempotencyError.
        """
        self.check_open()
        return self._commits.known(key, digest, source, sequence)

    @property
    def bytes_max(self) -> int:
        """The largest batch; `attach` commits larger ones as segments."""
        return self._commits.bytes_max

    def settle(self) -> None:
        """Find the outcome of every earlier write: unknown ones, and those of interrupted callers.

        Raises like `write`.
        """
        self.check_open()
        self._commits.settle()

    def look_first(self, read: Callable[[View], _T]) -> _T:
        """Return what `read` reads for a write before the write takes the lock.

        Raises like `write`.
        """
        try:
            return read(self.view())
        except SnapshotExpiredError:
            # A superseded writer reads an old version, until its segments are collected.
            if self.failure is not None:
                raise copy.copy(self.failure) from None
            raise
        except UnavailableError as error:
            raise NotWrittenError(
                f"rows that its condition or patch needs could not be read ({error}); nothing was "
                "written: retry"
            ) from error

    def check_bytes(self, rows_bytes: int) -> None:
        """Raise InvalidInputError if a batch of that size would be refused."""
        self._commits.check_bytes(rows_bytes)

    def change_schema(self, schema: pa.Schema) -> Receipt:
        """Make `schema` the columns of the face from now on, durably; raises like `write`."""
        nobody = pa.RecordBatch.from_pylist([], schema=log_schema([]))
        return self._write_other(
            WriteRequest(batch=nobody, nbytes=schema.serialize().size, schema=schema)
        )

    def _write_other(self, request: WriteRequest) -> Receipt:
        """Write a log object that collection has to look at: `own_slots` begin behind it."""
        with self._cond:
            self._others_in_flight += 1
        receipt = self.write(request)
        with self._cond:
            self._others_in_flight -= 1
            self._own_from = self._live.tail.replay.next_slot
        return receipt

    def attach(
        self,
        segments: Sequence[SegmentRef],
        *,
        idempotency_key: bytes | None = None,
        digest: bytes | None = None,
        source: str | None = None,
        sequence: int | None = None,
        lsn: int | None = None,
        resolve: Resolve | None = None,
    ) -> Receipt:
        """Make the rows of uploaded `segments` visible at one version, all or none.

        They have no keys in common, and their ids end in an intent that stands, or in `e` and this
        writer's epoch. Whatever versions
        their rows have, they get that of the receipt, which has no codes. A request of the same key,
        or of a place in its stream that was reached before, attaches nothing and returns the old
        receipt; without a `digest`, two attaches of one key are the same request. What `resolve`
        raises, looking at all rows under the writer's lock, comes out, and nothing is attached.

        Raises InvalidInputError, also for a segment that is not there; StalePlanError if the intent was
        ended; and what `write` raises.
        """
        self.check_open()
        request = attach_request(
            segments,
            bytes_max=self._commits.bytes_max,
            idempotency_key=idempotency_key,
            digest=digest,
            source=source,
            sequence=sequence,
            lsn=lsn,
            resolve=resolve,
        )
        # First: the segments may have been compacted away since.
        receipt = self.known(idempotency_key, request.digest, source, sequence)
        if receipt is not None:
            return receipt
        try:
            self.reload()
        except UnavailableError as error:
            raise NotWrittenError(
                f"the manifest could not be read ({error}); nothing was attached: retry"
            ) from error
        if self.failure is not None:
            raise copy.copy(self.failure)
        check_spared(request.segments, self.manifest, self.epoch)
        self._check_foreign(request.segments)
        check_uploaded(self._context, self.namespace, request.segments)
        return self._write_other(request)

    def _check_foreign(self, segments: Sequence[SegmentRef]) -> None:
        """Raise InvalidInputError for what this writer has flushed: maintenance may delete it."""
        for segment in segments:
            if self._maintenance.owns(segment.id):
                raise InvalidInputError(
                    f"segment {segment.id} was written by a flush or a compaction of namespace "
                    f"{self.namespace!r}: upload a segment of its own, and attach that"
                )

    def flush(self) -> None:
        """Write committed rows as a level-0 segment, so that opening need not replay them.

        Raises FencedError, OutcomeUnknownError, UnavailableError; nothing committed is lost by it.
        """
        self.check_open()
        self._commits.settle_unknown()
        with self._flush_turn:
            self._flush()

    def close(self) -> None:
        """Wait for writes in flight, then release the handle. Commits stay in the log, for replay.

        If nothing is unknown, a manifest records that this writer has ended: the next one needs no
        fence. That is never waited for twice: a failure only costs that fence.
        """
        if self._is_abandoned:
            return  # whatever is in flight is the parent's
        self._is_closed = True
        self._commits.close()
        with self._cond:
            while self._is_flush_begun:
                self._cond.wait()
        with self._flush_turn:
            pass
        # First: nothing of this writer is on the way when its end is published.
        self._maintenance.close()
        with self._flush_turn:
            self._publish_end()

    def _publish_end(self) -> None:
        """Tell the next writer that no request of this one is on the way. The caller has the turn."""
        slot = self._commits.slot_ended()
        if slot is None or self._is_ended:
            return
        self._is_ended = True
        try:
            self._chain.publish(lambda head: _ended(head, self.epoch, slot))
        except ReefError as error:
            _log.info("the next writer of %r has to put fences: %s", self.namespace, error)

    def stats(self, mode: str) -> dict[str, Any]:
        return {**super().stats(mode), "maintenance": self._maintenance.stats()}

    @property
    def own_slots(self) -> range:
        """Slots that this writer has filled with rows, behind all that it wrote else."""
        with self._cond:
            # A writer that was superseded follows the log into the fences of the next one.
            if self._others_in_flight or self.failure is not None:
                return range(0)
            return range(self._own_from, self._live.tail.replay.next_slot)

    @property
    def has_queue(self) -> bool:
        """Whether commits wait for the one under way."""
        return self._commits.has_queue

    def newest_lsn(self) -> int:
        if self.failure is not None:
            raise copy.copy(self.failure)
        return self.lsn

    def catch_up(self, lsn: int) -> None:
        if lsn > self.lsn and self.failure is not None:
            raise copy.copy(self.failure)
        super().catch_up(lsn)

    @property
    def failure(self) -> ReefError | None:
        """The error that ended this writer for good, or None."""
        return self._commits.failure

    def reload(self) -> None:
        """Look for a newer manifest and use it, and whether the unfolded log is still whole.

        If an object of it was deleted, its rows are in memory: they are flushed, so that they are not
        lost with this process. Raises CorruptError that names the object if that fails.
        """
        self._look_at_head()
        tail, manifest = self._live.tail, self.manifest
        slot_end = tail.replay.next_slot
        if self.failure is not None or slot_end <= manifest.wal_floor:
            return
        listed = list_log(self._context.store, self.namespace, manifest.wal_floor)
        if listed.end >= slot_end:
            return
        self._look_at_head()
        if self.manifest.wal_floor > listed.end or self.failure is not None:
            return  # folded since, and perhaps collected
        gone = log_object_gone(self.manifest, listed.end)
        _log.error("%s; the rows of this log object are in memory, and are flushed now", gone)
        try:
            with self._flush_turn:
                self._flush()
        except ReefError as error:
            raise gone from error

    def _look_at_head(self) -> None:
        head = self._chain.load()
        if head is not None:
            self.adopt(head)

    def adopt(self, head: Head) -> None:
        with self._cond:
            if head.manifest.generation <= self.manifest.generation:
                return
            if self._is_over(head.manifest):
                self._commits.step_down(
                    DroppedError(
                        f"namespace {self.namespace!r} was dropped; a namespace of that name is now "
                        "a different one: open it again"
                    )
                )
                return
            if head.manifest.writer_epoch > self.epoch:
                self._commits.step_down(
                    FencedError(
                        f"namespace {self.namespace!r} was taken over by a writer of epoch "
                        f"{head.manifest.writer_epoch} (this one's is {self.epoch}): open it again "
                        "to go on"
                    )
                )
                if head.manifest.wal_floor < self.manifest.wal_floor:
                    return  # repair went back: rows that this handle shows are only in the log now
            self._stand_on(head.manifest)
            self._maintenance.adopted(head.manifest)
            self._cond.notify_all()  # there may be room again

    def _tail_behind(self, manifest: Manifest) -> Tail:
        # Never another tail: the commit path keeps using this one. A job may have folded what is
        # durable and not answered yet; the answers take the tail up to there.
        self._live.tail.drop_folded(manifest)
        return self._live.tail

    def _flush_if_due(self) -> None:
        settings, tail = self._context.settings, self._live.tail
        if self._is_flush_begun:
            return
        if (
            tail.log_slots >= settings.flush_threshold_slots
            or tail.memtable.nbytes >= settings.flush_threshold_bytes
            or (
                settings.flush_interval
                and self._context.clock.monotonic() - self._flushed_at >= settings.flush_interval
            )
        ):
            with self._cond:
                self._begin_flush()

    def _begin_flush(self) -> ReefError | None:
        """Flush in the background, unless one runs, is pointless or has just failed. Lock held.

        Returns why the last one failed, if it did.
        """
        now = self._context.clock.monotonic()
        is_idle = self._live.tail.replay.next_slot <= self.manifest.wal_floor
        if self._is_flush_begun or self._is_closed or is_idle or now < self._flush_not_before:
            return self._flush_failure
        try:
            self._is_flush_begun = True
            self._context.threads.start(self._flush_behind, name=f"reef-flush-{self.namespace}")
        except RuntimeError as error:  # no more threads: committed rows are safe in the log
            _log.warning("no thread to flush namespace %r: %s", self.namespace, error)
            self._is_flush_begun = False
            self._flush_not_before = now + _FLUSH_PAUSE_S
        except BaseException:
            self._is_flush_begun = False
            raise
        return self._flush_failure

    def _flush_behind(self) -> None:
        try:
            with self._flush_turn:
                self._flush()
        except ReefError as error:
            _log.warning("flushing namespace %r failed: %s", self.namespace, error)
        finally:
            with self._cond:
                self._is_flush_begun = False
                self._cond.notify_all()

    def _flush(self) -> None:
        """Run one flush. The caller has the turn."""
        clock = self._context.clock
        started = clock.monotonic()
        not_before = started + _FLUSH_PAUSE_S
        failure: ReefError | None = None
        try:
            if self._flush_once():
                self._maintenance.ask()
                self._context.metrics.count("reef_flushes_total")
                self._context.metrics.observe("reef_flush_seconds", clock.monotonic() - started)
                _log.info(
                    "flushed namespace %r: generation %d", self.namespace, self.manifest.generation
                )
            not_before = 0.0
        except (FencedError, DroppedError) as error:
            failure = error
            with self._cond:
                self._commits.step_down(error)
            raise
        except ReefError as error:
            failure = error
            raise
        finally:
            with self._cond:
                self._flush_failure = failure
                self._flush_not_before = not_before
                self._flushed_at = started
                self._cond.notify_all()

    def _flush_once(self) -> bool:
        """Write and publish the durable rows; return whether there were any."""
        for _ in range(_PLANS_MAX):
            with self._cond:
                now_us = self._chain.estimated_now_us
                plan = plan_flush(self.manifest, self._live.tail, self._dedup, now_us)
            if plan is None:
                return False
            written = write_flush(self._context, self.namespace, self.epoch, plan)
            made = written.made(plan)
            try:
                unlisted = self._maintenance.unlisted
                head = publish_flush(self._chain, self.epoch, plan, written, unlisted)
            except ReefError as error:
                self._maintenance.failed(made, error)
                if not isinstance(error, StalePlanError):
                    raise
                self._look_at_head()  # another job has folded: drop that part from memory
                continue
            self._maintenance.published(head, made)
            self.adopt(head)
            return True
        raise UnavailableError(
            f"other jobs folded the log of namespace {self.namespace!r} during each of {_PLANS_MAX} "
            "attempts to flush it: retry"
        )


def _ended(head: Head | None, epoch: int, slot: int) -> Manifest:
    if head is None:
        raise InvariantError("a namespace that was open has no manifest")
    return end_writer(head.manifest, epoch=epoch, slot=slot)
