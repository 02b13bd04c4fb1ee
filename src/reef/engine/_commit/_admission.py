"""Admission: the checks before a batch enters the commit queue and the memtable.

All of it runs under the writer's lock. A request is checked against the dedup window and the room
in memory; its patches and conditions are resolved against everything committed or in flight; then
its batch gets its version, and its rows go into the memtable, above the version that readers see.

A refusal holds only if the writes it was checked against become durable, so it waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from reef.engine._commit._attach import at_version, check_new
from reef.engine._commit._conditions import Resolved, plain_codes
from reef.engine._commit._dedup_index import STREAM_CODES, DedupIndex, check_same
from reef.engine._commit._queue import CommitQueue, Group, Ticket
from reef.engine._commit._receipt import Receipt
from reef.engine._commit._request import WriteRequest
from reef.engine._live import LiveRows
from reef.errors import (
    ConditionFailedError,
    InvalidInputError,
    NotWrittenError,
    ReefError,
    UnavailableError,
)
from reef.format import LogKind
from reef.manifest import ManifestChain
from reef.settings import Settings

_OVERHEAD_BYTES = 1024  # what framing and Arrow add to a record


class NoRoomError(Exception):
    """The memtable or the unfolded log is full: flush, wait for room, and commit again."""


class Admitted(msgspec.Struct, frozen=True):
    """An admitted request: the ticket to await, and its result."""

    ticket: Ticket | None
    """None: there is nothing to wait for."""
    receipt: Receipt | None = None
    """None: the ticket has the receipt."""
    refusal: ReefError | None = None
    is_own: bool = False
    """Whether the ticket is of this request, or of an earlier attempt: the caller gets its error."""


class Admission:
    """Admits requests to the commit queue of one open writer."""

    def __init__(
        self,
        settings: Settings,
        chain: ManifestChain,
        live: LiveRows,
        dedup: DedupIndex,
        queue: CommitQueue,
    ) -> None:
        """`chain` knows the store's time: ages of idempotency keys must not depend on our clock."""
        self._settings = settings
        self._chain = chain
        self._live = live
        self._dedup = dedup
        self._queue = queue
        self._takes_lsns = live.manifest.lsn_policy == "caller"
        self.bytes_max = (
            min(settings.log_segment_max_bytes, settings.memtable_max_bytes) - _OVERHEAD_BYTES
        )
        """The most bytes of one batch; larger ones are attached as segments."""

    def check_size(self, request: WriteRequest) -> None:
        """Raise InvalidInputError for a request that can never be admitted. Needs no lock."""
        if request.nbytes > self.bytes_max:
            self.check_bytes(request.nbytes)
        if (request.lsn is not None) != self._takes_lsns:
            raise InvalidInputError.of(
                "lsn",
                request.lsn,
                "an LSN if lsn_policy is 'caller', else None",
            )

    def check_together(self, requests: Sequence[WriteRequest]) -> None:
        """Raise InvalidInputError for batches that one log object cannot hold. Needs no lock."""
        for request in requests:
            self.check_size(request)
        self.check_bytes(_together(requests) - _OVERHEAD_BYTES)

    def check_bytes(self, rows_bytes: int) -> None:
        """Raise InvalidInputError if a batch of that size would not even fit alone."""
        nbytes = rows_bytes + _OVERHEAD_BYTES
        for name in ("log_segment_max_bytes", "memtable_max_bytes"):
            limit = getattr(self._settings, name)
            if nbytes > limit:
                raise InvalidInputError.of(
                    "batch", f"{nbytes} bytes", f"at most {name} = {limit}: split it"
                )

    def has_room(self, nbytes: int) -> bool:
        """Return whether a batch of that size fits into memory and the log now."""
        settings, tail = self._settings, self._live.tail
        return tail.log_bytes <= settings.unfolded_log_max_bytes and (
            tail.memtable.nbytes + nbytes <= settings.memtable_max_bytes or not tail.memtable.rows
        )

    def admit(self, request: WriteRequest) -> Admitted:
        """Admit one batch, or find the answer to an earlier attempt.

        Raises NoRoomError, NotWrittenError, InvalidInputError, IdempotencyError; NotFoundError if a
        segment that the condition needs is gone. Then nothing was admitted.
        """
        if request.idempotency_key is not None or request.source is not None:
            earlier = self._earlier(request)
            if earlier is not None:
                return earlier
        if not self.has_room(request.nbytes):
            raise NoRoomError
        if request.segments:
            check_new(request.segments, self._live.tail, self._live.manifest)
        try:
            resolved = self._resolve(request)
        except ConditionFailedError as refusal:
            return Admitted(self._queue.newest, refusal=refusal)
        except UnavailableError as error:
            raise NotWrittenError(
                f"the condition could not be evaluated ({error}); nothing was written: retry"
            ) from error
        if not resolved.batch.num_rows and _is_nothing(request):
            receipt = Receipt(self._queue.lsn_given, resolved.codes)
            return Admitted(self._queue.newest, receipt)
        lsn = self._queue.lsn_given
        try:
            return Admitted(self._enqueue(request, resolved), is_own=True)
        except BaseException:
            self._retract(lsn)
            raise

    def admit_all(self, requests: Sequence[WriteRequest], tickets: list[Ticket]) -> Admitted:
        """Admit several batches to one group, or none of them; `tickets` takes theirs. Raises like `admit`."""
        nbytes = _together(requests)
        if not self.has_room(nbytes):
            raise NoRoomError
        group = self._queue.joinable(LogKind.DATA, nbytes, len(requests))
        lsn = self._queue.lsn_given
        tickets.clear()
        try:
            for request in requests:
                # Only the last counts as the caller: gathering must not expect one for each.
                callers = int(request is requests[-1])
                tickets.append(self._enqueue(request, self._resolve(request), group, callers))
        except UnavailableError as error:
            self._retract(lsn)
            raise NotWrittenError(
                f"rows that this write depends on could not be read ({error}); nothing was written: "
                "retry"
            ) from error
        except BaseException:
            self._retract(lsn)
            raise
        return Admitted(tickets[-1], is_own=True)

    def truncate(self, lsn: int) -> None:
        """Drop every row above version `lsn`: later batches will get those versions."""
        if self._live.tail.truncate(lsn):
            self._live.rebuild()  # before another batch can get one of those versions

    def durable(
        self, key: bytes | None, digest: bytes | None, source: str | None, sequence: int | None
    ) -> Receipt | None:
        """Return the receipt of a durable request of the same key, or as far on in the same stream.

        Raises IdempotencyError.
        """
        receipt = None
        if key is not None and digest is not None:
            receipt = self._dedup.find(key, digest, self._chain.estimated_now_us)
        if receipt is None and source is not None and sequence is not None:
            receipt = self._dedup.find_stream(source, sequence)
        return receipt

    def _enqueue(
        self,
        request: WriteRequest,
        resolved: Resolved,
        group: Group | None = None,
        callers: int = 1,
    ) -> Ticket:
        """Admit a batch to the queue; later requests are checked against its rows, too."""
        batch, tail = resolved.batch, self._live.tail
        known = request.nbytes if batch is request.batch else None
        nbytes = _OVERHEAD_BYTES + (batch.nbytes if known is None else known)
        ticket = Ticket(request, batch, resolved.codes, nbytes=nbytes, callers=callers)
        self._queue.admit(ticket, group)
        if request.segments:
            tail.attach(at_version(request.segments, ticket.lsn))
            self._live.rebuild()
        elif request.schema is None:
            flags = resolved.codes if request.resolve is None else None
            tail.memtable.apply(ticket.lsn, batch, known, flags)
        return ticket

    def _retract(self, lsn: int) -> None:
        """Undo the admission of everything above `lsn`."""
        self._queue.retract(lsn)
        self.truncate(lsn)

    def _resolve(self, request: WriteRequest) -> Resolved:
        if request.resolve is None:
            codes = plain_codes(request.batch) if request.codes is None else request.codes
            return Resolved(request.batch, codes)
        resolved = request.resolve(self._live.state)
        if resolved.batch is not request.batch:
            self.check_bytes(resolved.batch.nbytes)  # a patch is logged as a whole row
        return resolved

    def _earlier(self, request: WriteRequest) -> Admitted | None:
        """Return the receipt or ticket of an earlier request of the same key or stream, if any."""
        key, source = request.idempotency_key, request.source
        receipt = self.durable(key, request.digest, source, request.sequence)
        if receipt is not None:
            return Admitted(None, receipt)
        if key is not None and request.digest is not None:
            ticket = self._queue.keys.get(key)
            if ticket is not None:
                check_same(key, ticket.request.digest, ticket.lsn, request.digest)
                receipt = Receipt(ticket.lsn, ticket.codes, replayed=True)
                return Admitted(ticket, receipt, is_own=True)
        if source is not None and request.sequence is not None:
            for ticket in self._queue.tickets():
                sequence = ticket.request.sequence
                if ticket.request.source != source or sequence is None:
                    continue
                if sequence >= request.sequence:
                    receipt = Receipt(ticket.lsn, STREAM_CODES, replayed=True)
                    return Admitted(ticket, receipt, is_own=sequence == request.sequence)
        return None


def _together(requests: Sequence[WriteRequest]) -> int:
    """Return how many bytes requests take in one log object."""
    return sum(request.nbytes + _OVERHEAD_BYTES for request in requests)


def _is_nothing(request: WriteRequest) -> bool:
    """Return whether a request without rows can be left out: it has no key, stream or version."""
    is_rows = request.kind is LogKind.DATA
    return is_rows and (request.idempotency_key, request.source, request.lsn) == (None, None, None)
