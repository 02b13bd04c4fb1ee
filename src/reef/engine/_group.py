"""Batches on their way into the log: a request, its ticket, and the group that shares an object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import pyarrow as pa

from reef.engine._conditions import Condition
from reef.engine._receipt import Receipt
from reef.errors import ReefError
from reef.format import LogKind, LogObject, LogRecord, encode_log, log_checksum
from reef.log import ChainPoint


class Answer(NamedTuple):
    """What is known of a PUT that is over."""

    kind: Literal["durable", "refused", "unknown", "lost"]
    """refused: not carried out, for certain; lost: somebody else's object is in the slot."""
    error: ReefError | None = None


DURABLE = Answer("durable")


@dataclass(frozen=True, kw_only=True)
class WriteRequest:
    """One client batch, as its face hands it over."""

    batch: pa.RecordBatch
    """`_key`, `_tombstone` and the columns of the face; each key once."""
    nbytes: int
    """Of the batch, roughly: Arrow takes its time to tell, and the face often knows."""
    condition: Condition | None = None
    atomic: bool = True
    """All rows or none; else each row by itself."""
    idempotency_key: bytes | None = None
    digest: bytes | None = None
    """Of the logical request; goes with the key."""
    source: str | None = None
    sequence: int | None = None
    lsn: int | None = None
    """Given by the caller where the namespace takes its versions from there."""


@dataclass(eq=False)
class Ticket:
    """A batch on its way, and what becomes of it."""

    request: WriteRequest
    record: LogRecord
    codes: bytes
    receipt: Receipt | None = None
    error: ReefError | None = None

    @property
    def is_done(self) -> bool:
        return self.receipt is not None or self.error is not None


@dataclass(eq=False)
class Group:
    """The batches of one log object."""

    slot: int
    tickets: list[Ticket] = field(default_factory=list)
    nbytes: int = 0
    data: bytes = b""
    nonce: bytes = b""
    point: ChainPoint = field(default_factory=lambda: ChainPoint(0, 0, 0))
    """Itself, as the next one names it."""
    created_at_us: int = 0
    answer: Answer | None = None
    """What became of its PUT, once that is over."""

    @property
    def lsn_last(self) -> int:
        return self.tickets[-1].record.lsn

    def encode(self, before: ChainPoint, *, epoch: int, writer_id: bytes) -> None:
        """Make the bytes of the log object that follows `before`."""
        log = LogObject(
            kind=LogKind.DATA,
            slot=self.slot,
            epoch=epoch,
            writer_id=writer_id,
            nonce=self.nonce,
            created_at_us=self.created_at_us,
            prev=before.prev,
            records=tuple(ticket.record for ticket in self.tickets),
        )
        self.data = encode_log(log)
        self.point = ChainPoint(self.slot, log_checksum(self.data), epoch)
