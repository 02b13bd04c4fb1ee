"""Batches on their way into the log: a request, its ticket, and the group that shares an object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa

from reef.engine._conditions import Resolve
from reef.engine._receipt import Receipt
from reef.engine._view import View
from reef.errors import ReefError
from reef.format import LogKind, LogObject, LogRecord, SegmentRef, seal_log
from reef.log import ChainPoint
from reef.threads import Signal


class Answer(NamedTuple):
    """What is known of a PUT that is over."""

    kind: Literal["durable", "refused", "unknown", "lost"]
    """refused: not carried out, for certain; lost: somebody else's object is in the slot."""
    error: ReefError | None = None


DURABLE = Answer("durable")
_NOWHERE = ChainPoint(0, 0, 0)


class WriteRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One client batch, as its face hands it over."""

    batch: pa.RecordBatch
    """`_key`, `_tombstone` and the columns of the face; each key once."""
    stream: pa.Buffer | None = None
    """The batch as it is logged, if its face has encoded it (`reef.format.owned_rows`)."""
    nbytes: int
    """Of the batch, roughly: Arrow takes its time to tell, and the face often knows."""
    resolve: Resolve | None = None
    """Makes the rows that are logged from what they replace; None: they are those of `batch`."""
    prepare: Callable[[View], object] | None = None
    """Reads what `resolve` will need, so that nobody has to wait for it under the lock."""
    condition: bytes | None = None
    """What `resolve` decides by, for the log."""
    schema: pa.Schema | None = None
    """The columns of the face from now on, instead of rows."""
    segments: tuple[SegmentRef, ...] = ()
    """Uploaded beforehand, instead of rows: all of theirs take the version of the request."""
    idempotency_key: bytes | None = None
    digest: bytes | None = None
    """Of the logical request; goes with the key."""
    source: str | None = None
    sequence: int | None = None
    lsn: int | None = None
    """Given by the caller where the namespace takes its versions from there."""

    @property
    def kind(self) -> LogKind:
        """What kind of log object it goes into."""
        if self.segments:
            return LogKind.ATTACH
        return LogKind.DATA if self.schema is None else LogKind.SCHEMA


@dataclass(eq=False)
class Ticket:
    """A batch on its way, and what becomes of it."""

    request: WriteRequest
    record: LogRecord
    codes: bytes
    callers: int = 1
    """Who waits for it: 0 for one that goes with the next one of the same caller."""
    receipt: Receipt | None = None
    error: ReefError | None = None
    waiting: list[Signal] = field(default_factory=list)
    """Of those who wait for it, or for their turn to send."""

    @property
    def stream(self) -> pa.Buffer | None:
        """Its rows as they are logged, if they are encoded already."""
        return self.request.stream if self.record.batch is self.request.batch else None

    @property
    def is_done(self) -> bool:
        return self.receipt is not None or self.error is not None

    def tell(self, receipt: Receipt | None, error: ReefError | None = None) -> None:
        """Say what became of it; whoever waits goes on."""
        self.receipt, self.error = receipt, error
        self.wake()

    def wake(self) -> bool:
        """Let those who wait look again; return whether there were any."""
        signals, self.waiting = self.waiting, []
        for signal in signals:
            signal.give()
        return bool(signals)


@dataclass(eq=False)
class Group:
    """The batches of one log object."""

    slot: int
    kind: LogKind = LogKind.DATA
    tickets: list[Ticket] = field(default_factory=list)
    callers: int = 0
    """Whose batches they are: how many may come again when they are told."""
    nbytes: int = 0
    data: bytes | tuple[bytes | pa.Buffer, ...] = b""
    data_bytes: int = 0
    nonce: bytes = b""
    before: ChainPoint = _NOWHERE
    """The log object that it names."""
    point: ChainPoint = _NOWHERE
    """Itself, as the next one names it."""
    created_at_us: int = 0
    answer: Answer | None = None
    """What became of its PUT, once that is over."""

    @property
    def lsn_last(self) -> int:
        return self.tickets[-1].record.lsn

    @property
    def is_encoded(self) -> bool:
        return self.point is not _NOWHERE

    def encode(self, *, epoch: int, writer_id: bytes) -> None:
        """Make the bytes of the log object."""
        log = LogObject(
            kind=self.kind,
            slot=self.slot,
            epoch=epoch,
            writer_id=writer_id,
            nonce=self.nonce,
            created_at_us=self.created_at_us,
            prev=self.before.prev,
            records=tuple(ticket.record for ticket in self.tickets),
        )
        streams = [ticket.stream for ticket in self.tickets]
        self.data, self.data_bytes, checksum = seal_log(log, streams=streams)
        self.point = ChainPoint(self.slot, checksum, epoch)
