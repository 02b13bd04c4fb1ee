"""The commit: what a batch is held against before it goes into the log.

Under the writer's lock, in this order: is this the repetition of an earlier request; is there room
for it in memory and in the unfolded log; does its condition hold, against everything committed or on
its way. What is left joins the outbox, which gives it its version; its rows go into the memtable at
once, so that later conditions see them, and readers see nothing above the durable version.

A refusal is true only if what it was held against becomes durable, so it waits for that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

from reef.engine._attach import at_version, check_new
from reef.engine._conditions import Resolved, plain_codes
from reef.engine._context import Context
from reef.engine._dedup import STREAM_CODES, Dedup, check_same
from reef.engine._group import Group, Ticket, WriteRequest
from reef.engine._outbox import Outbox, Waiting
from reef.engine._receipt import Receipt, pack_codes
from reef.engine._tail import Tail
from reef.engine._view import ReadState
from reef.errors import (
    ClosedError,
    ConditionFailedError,
    DroppedError,
    FencedError,
    InvalidInputError,
    NotWrittenError,
    OverloadedError,
    ReefError,
    UnavailableError,
)
from reef.format import LogKind, LogRecord
from reef.log import LogReader
from reef.types import LSN_MAX, pack_lsn

_OVERHEAD_BYTES = 1024  # what framing and Arrow add to a record
_STALL_S = 1.0  # between two looks at whether a flush can be begun


class _Admitted(NamedTuple):
    """Whom to wait for, and what to tell then."""

    ticket: Ticket | None
    """None: there is nobody to wait for."""
    receipt: Receipt | None = None
    """None: that of the ticket."""
    refusal: ReefError | None = None
    is_own: bool = False
    """The ticket is of this request, or of the same one before: its error is ours."""


class Committer:
    """The commit path of one open writer."""

    def __init__(
        self,
        context: Context,
        namespace: str,
        *,
        epoch: int,
        writer_id: bytes,
        parallel: int,
        takes_lsns: bool,
        tail: Tail,
        dedup: Dedup,
        reader: LogReader,
        is_collected: Callable[[int], bool],
        now_us: Callable[[], int],
        relieve: Callable[[], ReefError | None],
        rebuild: Callable[[], None],
    ) -> None:
        """`now_us` is the store's time: ages of idempotency keys must not hang on our clock.

        `relieve` begins a flush, if it can, and tells why the last one failed. `rebuild` makes reads
        go by the segments of the tail. Both under the lock.
        """
        self.cond = context.threads.condition()
        self._context = context
        self._settings = context.settings
        self._namespace = namespace
        self._takes_lsns = takes_lsns
        self._tail = tail
        self._dedup = dedup
        self._now_us = now_us
        self._relieve = relieve
        self._keys: dict[bytes, Ticket] = {}
        self._last: Ticket | None = None
        self._is_closed = False
        self._note_seconds = context.metrics.histogram("reef_commit_seconds")
        self.outbox = Outbox(
            context,
            namespace,
            self.cond,
            epoch=epoch,
            writer_id=writer_id,
            parallel=parallel,
            tail=tail,
            reader=reader,
            is_collected=is_collected,
            now_us=now_us,
            committed=self._remember,
            dropped=self._forget,
            rebuild=rebuild,
        )

    def commit(self, request: WriteRequest, state: Callable[[], ReadState]) -> Receipt:
        """Make one batch durable and return its receipt.

        `state` tells under the lock where rows are, those on their way included. Raises
        FencedError, OutcomeUnknownError, NotWrittenError, OverloadedError, ConditionFailedError,
        IdempotencyError, InvalidInputError, and NotFoundError if a segment that the condition needs
        is gone: nothing was written.
        """
        self._check_size(request)
        return self._sent(lambda: self._admit(request, state))

    def commit_all(
        self, requests: Sequence[WriteRequest], state: Callable[[], ReadState]
    ) -> list[Receipt]:
        """Make several batches durable in one log object, all or none, each of its own version.

        They have neither keys nor streams. Each is resolved against those before it. Raises like
        `commit`, and InvalidInputError if one log object cannot hold them.
        """
        for request in requests:
            self._check_size(request)
        nbytes = sum(request.nbytes + _OVERHEAD_BYTES for request in requests)
        self.check_bytes(nbytes - _OVERHEAD_BYTES)
        tickets: list[Ticket] = []

        def admit() -> _Admitted:
            self._make_room(nbytes)
            tickets[:] = self._enqueue_all(requests, state)
            return _Admitted(tickets[-1], is_own=True)

        last = self._sent(admit)
        return [Receipt(ticket.record.lsn, ticket.codes) for ticket in tickets[:-1]] + [last]

    def _sent(self, admit: Callable[[], _Admitted]) -> Receipt:
        """Call `admit` under the lock, once nothing is unknown, and wait for what it leads to."""
        clock, outbox = self._context.clock, self.outbox
        started = clock.monotonic()
        admitted: _Admitted | None = None

        def enter() -> Group | Waiting | None:
            nonlocal admitted
            if outbox.is_blocked():
                return None
            admitted = admit()
            return None if admitted.ticket is None else outbox.turn(admitted.ticket)

        try:
            outbox.run(enter)
            while admitted is None:
                outbox.settle_unknown()
                outbox.run(enter)
            receipt = self._told(admitted)
        except BaseException:
            outbox.pass_on()  # it may have been woken to send, and does not look any more
            raise
        self._note_seconds(clock.monotonic() - started)
        return receipt

    def known(
        self,
        key: bytes | None,
        digest: bytes | None,
        source: str | None = None,
        sequence: int | None = None,
    ) -> Receipt | None:
        """Return the receipt of a durable request of the same key, or as far on in the same stream.

        Raises IdempotencyError.
        """
        with self.cond:
            return self._durable(key, digest, source, sequence)

    def close(self) -> None:
        """Take nothing more, and see to what is on its way."""
        with self.cond:
            self._is_closed = True
            self.cond.notify_all()  # whoever waits for room waits in vain
        self.outbox.drain()

    def _told(self, admitted: _Admitted) -> Receipt:
        """Wait for whatever it depends on, and return or raise what is to be told."""
        ticket = admitted.ticket
        if ticket is not None:
            self.outbox.wait_for(ticket)
            error = ticket.error  # once: what is unknown now may be settled by somebody meanwhile
            if error is not None:
                if admitted.is_own or isinstance(error, FencedError | DroppedError):
                    raise copy.copy(error)
                raise NotWrittenError(
                    f"what this write to namespace {self._namespace!r} was held against did not "
                    f"become durable, or may not have ({error}); nothing of it was sent: retry"
                ) from error
        if admitted.refusal is not None:
            raise admitted.refusal
        receipt = admitted.receipt or (ticket.receipt if ticket is not None else None)
        assert receipt is not None
        return receipt

    # Everything from here on runs under the lock.

    def _admit(self, request: WriteRequest, state: Callable[[], ReadState]) -> _Admitted:
        earlier = self._make_room(request.nbytes, request)
        if earlier is not None:
            return earlier
        if request.segments:
            check_new(request.segments, self._tail, state().manifest)
        try:
            resolved = self._resolve(request, state)
        except ConditionFailedError as refusal:
            return _Admitted(self._newest(), refusal=refusal)
        except UnavailableError as error:
            raise NotWrittenError(
                f"the condition could not be evaluated ({error}); nothing was written: retry"
            ) from error
        named = (request.idempotency_key, request.source, request.lsn)
        is_rows = request.kind is LogKind.DATA
        if is_rows and not resolved.batch.num_rows and named == (None, None, None):
            return _Admitted(self._newest(), Receipt(self.outbox.lsn_given, resolved.codes))
        return _Admitted(self._enqueue(request, resolved), is_own=True)

    def _make_room(self, nbytes: int, request: WriteRequest | None = None) -> _Admitted | None:
        """Wait until so much fits; return what is known of an earlier request like `request`."""
        deadline: float | None = None
        while True:
            if self._is_closed:
                raise ClosedError(f"namespace {self._namespace!r} was closed: open it again")
            self.outbox.check_open()
            earlier = None if request is None else self._earlier(request)
            if earlier is not None or self._has_room(nbytes):
                return earlier
            if deadline is None:
                deadline = self._context.clock.monotonic() + self._settings.write_stall_timeout
            self._stall(deadline)

    def _resolve(self, request: WriteRequest, state: Callable[[], ReadState]) -> Resolved:
        if request.resolve is None:
            return Resolved(request.batch, plain_codes(request.batch))
        resolved = request.resolve(state())
        if resolved.batch is not request.batch:
            self.check_bytes(resolved.batch.nbytes)  # a patch brings along what it leaves as it is
        return resolved

    def _check_size(self, request: WriteRequest) -> None:
        self.check_bytes(request.nbytes)
        if (request.lsn is not None) != self._takes_lsns:
            raise InvalidInputError.of(
                "lsn",
                request.lsn,
                "given if, and only if, the namespace takes them from its caller",
            )

    @property
    def bytes_max(self) -> int:
        """How large one batch may be, whatever else there is."""
        settings = self._settings
        return min(settings.log_segment_max_bytes, settings.memtable_max_bytes) - _OVERHEAD_BYTES

    def check_bytes(self, rows_bytes: int) -> None:
        """Raise InvalidInputError if a batch of that size does not fit, whatever else there is."""
        nbytes = rows_bytes + _OVERHEAD_BYTES
        for name in ("log_segment_max_bytes", "memtable_max_bytes"):
            limit = getattr(self._settings, name)
            if nbytes > limit:
                raise InvalidInputError.of(
                    "batch", f"{nbytes} bytes", f"at most {name} = {limit}: split it"
                )

    def _earlier(self, request: WriteRequest) -> _Admitted | None:
        """Return what is known of an earlier request of the same key or stream, if anything is."""
        key = request.idempotency_key
        receipt = self._durable(key, request.digest, request.source, request.sequence)
        if receipt is not None:
            return _Admitted(None, receipt)
        if key is not None and request.digest is not None:
            ticket = self._keys.get(key)
            if ticket is not None:
                check_same(key, ticket.record, request.digest)
                receipt = Receipt(ticket.record.lsn, ticket.codes, replayed=True)
                return _Admitted(ticket, receipt, is_own=True)
        if request.source is not None and request.sequence is not None:
            for other in self.outbox.tickets():
                sequence = other.request.sequence
                if other.request.source != request.source or sequence is None:
                    continue
                if sequence >= request.sequence:
                    receipt = Receipt(other.record.lsn, STREAM_CODES, replayed=True)
                    return _Admitted(other, receipt, is_own=sequence == request.sequence)
        return None

    def _durable(
        self, key: bytes | None, digest: bytes | None, source: str | None, sequence: int | None
    ) -> Receipt | None:
        receipt = None
        if key is not None and digest is not None:
            receipt = self._dedup.find(key, digest, self._now_us())
        if receipt is None and source is not None and sequence is not None:
            receipt = self._dedup.find_stream(source, sequence)
        return receipt

    def _has_room(self, nbytes: int) -> bool:
        memtable = self._tail.memtable
        fits = memtable.nbytes + nbytes <= self._settings.memtable_max_bytes or not memtable.rows
        return fits and self._tail.log_bytes <= self._settings.unfolded_log_max_bytes

    def _stall(self, deadline: float) -> None:
        self._context.metrics.count("reef_write_stalls_total")
        failed = self._relieve()
        left = deadline - self._context.clock.monotonic()
        if left <= 0:
            why = f"the last flush failed ({failed})" if failed else "flushing does not keep up"
            raise OverloadedError(
                f"namespace {self._namespace!r} holds {self._tail.memtable.nbytes} bytes in memory "
                f"and {self._tail.log_bytes} of unfolded log, and {why}: nothing was written; retry "
                "later, or raise memtable_max_bytes or unfolded_log_max_bytes"
            )
        self.cond.wait(min(left, _STALL_S))

    def _newest(self) -> Ticket | None:
        last = self._last
        return None if last is None or last.is_done else last

    def _enqueue(
        self,
        request: WriteRequest,
        resolved: Resolved,
        group: Group | None = None,
        callers: int = 1,
    ) -> Ticket:
        is_same = resolved.batch is request.batch
        nbytes = _OVERHEAD_BYTES + (request.nbytes if is_same else resolved.batch.nbytes)
        if group is None:
            group = self.outbox.joinable(request.kind, nbytes)
        is_recorded = request.idempotency_key is not None or request.condition is not None
        lsn = self._next_lsn(group, request)
        record = LogRecord(
            lsn=lsn,
            batch=resolved.batch if request.kind is LogKind.DATA else None,
            segments=at_version(request.segments, lsn),
            schema=request.schema,
            idempotency_key=request.idempotency_key,
            digest=request.digest,
            condition=request.condition,
            outcomes=pack_codes(resolved.codes) if is_recorded else None,
            source=request.source,
            sequence=request.sequence,
        )
        ticket = Ticket(request, record, resolved.codes, callers)
        self.outbox.join(group, ticket, nbytes)
        self._last = ticket
        if request.idempotency_key is not None:
            self._keys[request.idempotency_key] = ticket
        return ticket

    def _enqueue_all(
        self, requests: Sequence[WriteRequest], state: Callable[[], ReadState]
    ) -> list[Ticket]:
        """Put batches into one group, or none of them."""
        outbox = self.outbox
        nbytes = sum(request.nbytes + _OVERHEAD_BYTES for request in requests)
        group = outbox.joinable(LogKind.DATA, nbytes, len(requests))
        before, last = outbox.joined(group), self._last
        try:
            for request in requests:
                # Only the last stands for the caller: nobody has to wait for as many to come again.
                callers = int(request is requests[-1])
                self._enqueue(request, self._resolve(request, state), group, callers)
        except BaseException as error:
            outbox.leave(group, before)
            self._last = last
            if isinstance(error, UnavailableError):
                raise NotWrittenError(
                    f"what it depends on could not be read ({error}); nothing was written: retry"
                ) from error
            raise
        return group.tickets[before.tickets :]

    def _next_lsn(self, group: Group, request: WriteRequest) -> int:
        if request.lsn is None:
            return pack_lsn(group.slot, len(group.tickets))
        if not self.outbox.lsn_given < request.lsn <= LSN_MAX:
            raise InvalidInputError.of(
                "lsn", request.lsn, f"above {self.outbox.lsn_given}, up to {LSN_MAX}"
            )
        return request.lsn

    def _remember(self, group: Group) -> None:
        for ticket in group.tickets:
            self._dedup.add(ticket.record, group.created_at_us)
            self._forget(ticket)

    def _forget(self, ticket: Ticket) -> None:
        key = ticket.request.idempotency_key
        if key is not None and self._keys.get(key) is ticket:
            del self._keys[key]
        if self._last is ticket:
            self._last = None  # it would keep its batch
