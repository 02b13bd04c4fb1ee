"""The log objects of one writer: made from groups of batches, and created by one conditional PUT.

Crash points: before the PUT nothing happened; after it the batches are durable, whether or not
a caller got the answer.
"""

from __future__ import annotations

from reef.context import Context
from reef.engine._commit._attach import at_version
from reef.engine._commit._queue import DURABLE, Answer, Group, Ticket
from reef.engine._commit._receipt import pack_codes
from reef.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    InvariantError,
    OutcomeUnknownError,
    ReefError,
)
from reef.format import LogObject, LogRecord, log_key, seal_log
from reef.log import ChainPoint, Damaged, LogReader
from reef.manifest import ManifestChain
from reef.store import create
from reef.types import new_nonce


class LogWriter:
    """Writes the log objects of one epoch of a namespace. Takes no lock and keeps no state."""

    def __init__(
        self,
        context: Context,
        chain: ManifestChain,
        reader: LogReader,
        epoch: int,
        writer_id: bytes,
    ) -> None:
        self._context = context
        self._chain = chain
        self._reader = reader
        self._namespace = chain.namespace
        self._epoch = epoch
        self._writer_id = writer_id

    def encode(self, group: Group) -> Answer | None:
        """Make the object of a sealed group, or return why it cannot be made."""
        assert group.before is not None
        group.nonce = new_nonce(self._context.rng)
        group.created_at_us = self._chain.estimated_now_us
        try:
            group.records = tuple(map(record_of, group.tickets))
            log = LogObject(
                kind=group.kind,
                slot=group.slot,
                epoch=self._epoch,
                writer_id=self._writer_id,
                nonce=group.nonce,
                created_at_us=group.created_at_us,
                prev=group.before.prev,
                records=group.records,
            )
            sealed = seal_log(log, streams=[ticket.stream for ticket in group.tickets])
        except Exception as error:  # noqa: BLE001 nothing was sent, and every caller must be told
            return Answer(
                "refused",
                InvariantError(f"a batch of this log object cannot be logged: {error!r}"),
            )
        group.data, group.data_bytes = sealed.data, sealed.nbytes
        group.point = ChainPoint(group.slot, sealed.checksum, self._epoch)
        return None

    def put(self, group: Group) -> Answer:
        """Create the object of a group, and return what the store's answer means."""
        context, key = self._context, log_key(self._namespace, group.slot)
        try:
            create(
                context.store,
                key,
                group.data,
                nonce=group.nonce,
                is_collected=lambda: is_collected(context.chain(self._namespace), group.slot),
                settings=context.settings,
                clock=context.clock,
                rng=context.rng,
            )
        except ConflictError as conflict:
            return Answer("lost", self._meaning(group, conflict))
        except CorruptError as error:
            return Answer("unknown", OutcomeUnknownError(key, f"it came back damaged: {error}"))
        except OutcomeUnknownError as error:
            return Answer("unknown", error)
        except ReefError as error:
            return Answer("refused", error)
        return DURABLE

    def _meaning(self, group: Group, conflict: ConflictError) -> ReefError:
        """Return the answer when another writer's object is in the slot."""
        try:
            found = self._reader.decode(group.slot, conflict.found)
        except ReefError as error:
            return error
        if isinstance(found, Damaged):
            return found.error
        log = found[0]
        if log.epoch > self._epoch:
            return FencedError(
                f"namespace {self._namespace!r} was taken over by a writer of epoch {log.epoch} "
                f"(this one's is {self._epoch}): open it again to go on"
            )
        return InvariantError(
            f"log object {group.slot} of namespace {self._namespace!r} was written by epoch "
            f"{log.epoch}, which epoch {self._epoch} had fenced; nothing was written over it"
        )


def record_of(ticket: Ticket) -> LogRecord:
    """Return the record of an admitted batch."""
    request, lsn = ticket.request, ticket.lsn
    key, condition = request.idempotency_key, request.condition
    is_rows = request.schema is None and not request.segments
    return LogRecord(
        lsn=lsn,
        batch=ticket.batch if is_rows else None,
        segments=at_version(request.segments, lsn) if request.segments else (),
        schema=request.schema,
        idempotency_key=key,
        digest=request.digest,
        condition=condition,
        outcomes=None if key is None and condition is None else pack_codes(ticket.codes),
        source=request.source,
        sequence=request.sequence,
    )


def is_collected(chain: ManifestChain, slot: int) -> bool:
    """Return whether a log slot lies below what garbage collection may have deleted."""
    head = chain.load()
    return head is not None and slot < head.manifest.gc.boundary.slot
