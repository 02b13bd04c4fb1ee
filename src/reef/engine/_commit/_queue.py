"""The commit queue: which batches wait for the log or are in flight, and the outcome of each.

A pure state machine, without I/O, locks, threads, clocks or callbacks; `CommitPath` drives it, under
its lock. A batch passes three steps:

    admit   it joins the last group that waits, and takes its version
    seal    the first group that waits is closed and gets its slot in flight: its object may be sent
    settle  answers to PUTs become receipts and errors, in slot order

`settlement` returns what is decided and changes nothing; `settled` changes the queue after the driver
has carried that out. A driver that is interrupted in between carries it out once more.

Invariants:

- Groups are sealed in slot order, at most `parallel` at a time, each naming the one before.
- A batch is acknowledged after the PUT of its slot and of all slots below is known to be durable.
- Every batch gets one answer, once. After "unknown" it never gets "failed".
- Nothing is sealed behind a slot that was answered and is not durable. A refused slot is free again
  only if nothing was sent behind it; otherwise the queue ends, and what landed behind it is void.
- The version of a batch that failed is given out again only after a settlement whose `lsn_end` cuts
  its rows off. A held (unknown) slot keeps its rows and versions until its outcome is known.
- Another writer's object in a slot ends the queue. So does `step_down`, when only the manifest shows
  a newer epoch so far; a batch in flight then may still be in time: its own PUT decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa

from reef.engine._commit._receipt import Receipt
from reef.engine._commit._request import WriteRequest
from reef.errors import (
    ClosedError,
    DroppedError,
    FencedError,
    InvalidInputError,
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
)
from reef.format import LogKind, LogRecord, log_key
from reef.log import ChainPoint
from reef.store import Data
from reef.threads import Signal
from reef.types import LSN_MAX, pack_lsn


class Answer(NamedTuple):
    """The answer to a PUT."""

    kind: Literal["durable", "refused", "unknown", "lost"]
    """refused: certainly not carried out; lost: another writer's object is in the slot."""
    error: ReefError | None = None


DURABLE = Answer("durable")


class Limits(NamedTuple):
    """The size of a log object, and the number of objects in flight."""

    parallel: int
    batches: int
    nbytes: int


class Ticket:
    """A batch that was admitted, and its answer."""

    __slots__ = (
        "batch",
        "callers",
        "codes",
        "error",
        "lsn",
        "nbytes",
        "receipt",
        "request",
        "waiters",
    )

    def __init__(
        self,
        request: WriteRequest,
        batch: pa.RecordBatch,
        codes: bytes,
        *,
        nbytes: int,
        callers: int = 1,
    ) -> None:
        """`batch` has the rows to log; `callers` is 0 if its caller waits for a later ticket."""
        self.request = request
        self.batch = batch
        self.codes = codes
        self.nbytes = nbytes
        self.callers = callers
        self.lsn = 0
        self.receipt: Receipt | None = None
        self.error: ReefError | None = None
        self.waiters: list[Signal] = []
        """The driver's, for callers that wait for the answer, or for their turn to send."""

    @property
    def stream(self) -> pa.Buffer | None:
        """Its rows as they are logged, if they are encoded already."""
        return self.request.stream if self.batch is self.request.batch else None

    @property
    def is_done(self) -> bool:
        return self.receipt is not None or self.error is not None


class Group:
    """The batches of one log object."""

    __slots__ = (
        "answer",
        "before",
        "callers",
        "created_at_us",
        "data",
        "data_bytes",
        "is_held",
        "is_sent",
        "kind",
        "nbytes",
        "nonce",
        "opened_at",
        "point",
        "records",
        "sender",
        "slot",
        "tickets",
    )

    def __init__(self, slot: int, kind: LogKind) -> None:
        self.slot = slot
        self.kind = kind
        self.tickets: list[Ticket] = []
        self.callers = 0
        """How many callers wait for its batches."""
        self.nbytes = 0
        self.before: ChainPoint | None = None
        """The log object that it names, once it is sealed."""
        self.sender: object = None
        """Who sealed it, sends it, and reports the answer."""
        self.is_sent = False
        """Its object may be in the bucket, or in flight."""
        self.opened_at: float | None = None
        """The driver's: when its first batch came, if that matters."""
        # The driver sets these between sealing and sending.
        self.nonce = b""
        self.created_at_us = 0
        self.records: tuple[LogRecord, ...] = ()
        self.data: Data = b""
        self.data_bytes = 0
        self.point: ChainPoint | None = None
        """Its own chain point, which the next object names."""
        self.answer: Answer | None = None
        self.is_held = False
        """Its outcome is unknown, and its callers have been told so."""

    @property
    def lsn_last(self) -> int:
        return self.tickets[-1].lsn


class Settlement(msgspec.Struct, frozen=True):
    """Decided results. The driver carries out one settlement before it asks for the next."""

    durable: Group | None
    """Its batches get their receipts. None: the rest counts."""
    errors: tuple[tuple[Ticket, ReefError], ...] = ()
    """The answers of batches; those that have one already keep it."""
    still_in_flight: int = 0
    """How many groups stay in flight."""
    lsn_end: int = 0
    """Drop the rows above this version: later batches will get those versions."""
    failure: ReefError | None = None
    """The error that ends the queue, or None."""


class CommitQueue:
    """The log objects of one open writer that are not durable yet."""

    def __init__(
        self, namespace: str, *, slot: int, lsn: int, point: ChainPoint, limits: Limits
    ) -> None:
        """`slot` is the first one to fill; `lsn` and `point` are of the last valid object below."""
        self._namespace = namespace
        self._slot = slot
        self._point = point
        self._limits = limits
        self.lsn_durable = lsn
        self.lsn_given = lsn
        """The last version that a batch was given."""
        self.pending: deque[Group] = deque()
        self.in_flight: deque[Group] = deque()
        self.keys: dict[bytes, Ticket] = {}
        """The batches that are not settled yet, by idempotency key."""
        self.callers_expected = 1
        """How many callers may write again soon: those just answered, and those that wait."""
        self.failure: ReefError | None = None
        """The error that ended the queue, or None."""
        self._slot_failed = 0
        """The last slot for which an object was sent and refused."""

    def slot_ended(self) -> int | None:
        """Return the first slot that is not durable, if nothing that was sent can still come there.

        A store that refused an object is not relied upon: None until that slot is taken.
        """
        if self.in_flight or self.pending or self.failure is not None:
            return None
        return None if self._slot_failed == self._slot else self._slot

    # Admitting.

    def tickets(self) -> Iterator[Ticket]:
        """Yield the batches that are not settled yet, in order."""
        return chain.from_iterable(group.tickets for group in (*self.in_flight, *self.pending))

    @property
    def newest(self) -> Ticket | None:
        """The batch admitted last, if it is not settled yet."""
        groups = self.pending or self.in_flight
        return groups[-1].tickets[-1] if groups else None

    def is_blocked(self) -> bool:
        """Return whether the outcome of the first slot is unknown: then nothing more is sent."""
        return bool(self.in_flight) and self.in_flight[0].answer is not None

    def joinable(self, kind: LogKind, nbytes: int, count: int = 1) -> Group:
        """Return the group that `count` batches of `nbytes` together go into; perhaps a new one.

        A schema or an attach is alone in its log object.
        """
        if self.pending:
            group = self.pending[-1]
            if (
                group.kind is kind is LogKind.DATA
                and group.nbytes + nbytes <= self._limits.nbytes
                and len(group.tickets) + count <= self._limits.batches
            ):
                return group
            return Group(group.slot + 1, kind)
        return Group(self.in_flight[-1].slot + 1 if self.in_flight else self._slot, kind)

    def admit(self, ticket: Ticket, group: Group | None = None) -> None:
        """Give a batch its version and its place in `group`, which `joinable` returned.

        Raises InvalidInputError if the caller gave a version that is not above all others.
        """
        request = ticket.request
        if group is None:
            group = self.joinable(request.kind, ticket.nbytes)
        if request.lsn is None:
            lsn = pack_lsn(group.slot, len(group.tickets))
        elif self.lsn_given < request.lsn <= LSN_MAX:
            lsn = request.lsn
        else:
            raise InvalidInputError.of(
                "lsn", request.lsn, f"above {self.lsn_given}, up to {LSN_MAX}"
            )
        ticket.lsn = lsn
        group.nbytes += ticket.nbytes
        group.callers += ticket.callers
        group.tickets.append(ticket)
        if len(group.tickets) == 1:
            self.pending.append(group)
        self.lsn_given = lsn
        if request.idempotency_key is not None:
            self.keys[request.idempotency_key] = ticket

    def retract(self, lsn: int) -> None:
        """Forget the batches admitted above version `lsn`: none of them is sealed yet."""
        while self.pending and self.pending[-1].lsn_last > lsn:
            group = self.pending[-1]
            kept = [ticket for ticket in group.tickets if ticket.lsn <= lsn]
            self._forget_keys(group.tickets[len(kept) :])
            if not kept:
                self.pending.pop()
                continue
            group.nbytes = sum(ticket.nbytes for ticket in kept)
            group.callers = sum(ticket.callers for ticket in kept)
            group.tickets = kept
        self.lsn_given = lsn

    # Sealing.

    def has_all_callers(self) -> bool:
        """Return whether every caller that may write again soon has joined the first group."""
        return bool(self.pending) and self.pending[0].callers >= self.callers_expected

    def is_complete(self, group: Group) -> bool:
        """Return whether nothing more may join the first group that waits."""
        return (
            group.kind is not LogKind.DATA
            or len(group.tickets) >= self._limits.batches
            or group is not self.pending[-1]
        )

    def may_seal(self) -> bool:
        """Return whether a group waits and may be sent now."""
        if not self.pending or self.failure is not None:
            return False
        flight = self.in_flight
        return not flight or (
            len(flight) < self._limits.parallel
            and flight[-1].is_sent  # before that it has no checksum for the next one to name
            and not self._has_failed()
        )

    def seal(self, sender: object) -> Group:
        """Take the first waiting group. The driver encodes its object next, then calls `send`."""
        group = self.pending[0]
        group.sender = sender
        group.before = self.in_flight[-1].point if self.in_flight else self._point
        self.in_flight.append(group)
        self.pending.popleft()
        return group

    def sealed_by(self, sender: object) -> Group | None:
        """Return the group in flight that `sender` has sealed, unless it has its answer."""
        for group in self.in_flight:
            if group.sender is sender and group.answer is None:
                return group
        return None

    def send(self, group: Group) -> bool:
        """Return whether the object of a sealed group is to be sent: False if one before it failed.

        With one write in flight it always is, and the lock need not be held.
        """
        if self._limits.parallel > 1:
            if group not in self.in_flight:
                return False
            if self._has_failed():
                self.unseal(group)
                return False
        group.is_sent = True
        return True

    def unseal(self, group: Group) -> None:
        """Put a sealed group back that was not sent: another caller will take it."""
        flight = self.in_flight
        if flight and flight[-1] is group and not group.is_sent and group.answer is None:
            if not self.pending or self.pending[0] is not group:
                self.pending.appendleft(group)
            flight.pop()
            group.sender = None

    def _has_failed(self) -> bool:
        """Return whether a slot in flight has an answer that does not make it durable."""
        for group in self.in_flight:
            if group.answer is not None and group.answer.kind != "durable":
                return True
        return False

    # Settling.

    def answer(self, group: Group, answer: Answer) -> None:
        """Record the answer to a PUT.

        Asking again about an unknown slot decides only if it finds an object: an earlier PUT may
        still be carried out.
        """
        if group.answer is not None and answer.kind not in ("durable", "lost"):
            return
        group.is_held = False
        group.answer = answer

    def unknown(self) -> Group | None:
        """Return the group whose slot the driver must ask about before it sends anything else."""
        return self.in_flight[0] if self.is_blocked() else None

    def step_down(self, error: ReefError) -> None:
        """End the queue: a newer writer is known, even if its fences are not in the log yet."""
        if self.failure is None:
            if isinstance(error, FencedError | DroppedError):
                error.durable_lsn = self.lsn_durable
            self.failure = error

    def settlement(self) -> Settlement | None:
        """Return the next settlement; None if nothing new is decided."""
        first = self.in_flight[0] if self.in_flight else None
        answer = None if first is None else first.answer
        if first is not None and answer is not None and not first.is_held:
            if answer.kind == "durable":
                return Settlement(first)
            assert answer.error is not None
            if answer.kind == "lost":
                return self._end(self.failure or answer.error)
            if answer.kind == "unknown":
                return self._hold(answer.error)
            return self._refuse(first, answer.error)
        if self.failure is not None and self.pending:
            return self._drop(self.failure, len(self.in_flight))
        return None

    def settled(self, done: Settlement) -> None:
        """Apply a settlement that was carried out."""
        flight = self.in_flight
        if done.durable is not None:
            group = done.durable
            if flight and flight[0] is group:
                assert group.point is not None
                self.callers_expected = group.callers
                for waiting in self.pending:
                    self.callers_expected += waiting.callers
                self._slot, self._point = group.slot + 1, group.point
                self.lsn_durable = group.lsn_last
                failure = self.failure
                if failure is not None and isinstance(failure, FencedError | DroppedError):
                    failure.durable_lsn = self.lsn_durable  # stepped down, but this was in time
                if self.keys:
                    self._forget_keys(group.tickets)
                flight.popleft()
            return
        # A caller interrupted here computes the same settlement again, with less to do.
        for group in (*list(flight)[done.still_in_flight :], *self.pending):
            self._forget_keys(group.tickets)
            if group.is_sent:
                self._slot_failed = group.slot
        self.failure = self.failure or done.failure
        self.pending.clear()
        self.lsn_given = done.lsn_end
        if flight and done.still_in_flight and flight[0].answer is not None:
            flight[0].is_held = flight[0].answer.kind == "unknown"
        while len(flight) > done.still_in_flight:
            flight.pop()

    def _end(self, failure: ReefError) -> Settlement:
        """Fail every batch above the durable version: another writer owns the first slot."""
        if isinstance(failure, FencedError | DroppedError):
            failure.durable_lsn = self.lsn_durable
        errors = tuple((ticket, failure) for ticket in self.tickets())
        return Settlement(None, errors, 0, self.lsn_durable, failure)

    def _hold(self, error: ReefError) -> Settlement:
        """The outcome is unknown: send nothing more until it is known."""
        why = str(getattr(error, "why", error))
        unknown = tuple(
            (ticket, OutcomeUnknownError(log_key(self._namespace, group.slot), why))
            for group in list(self.in_flight)[: self._sent()]
            for ticket in group.tickets
        )
        rest = self._drop(self.failure or self._not_sent(), self._sent())
        return msgspec.structs.replace(rest, errors=unknown + rest.errors)

    def _refuse(self, first: Group, error: ReefError) -> Settlement:
        """The first slot was not written, for certain."""
        sent = list(self.in_flight)[: self._sent()]
        unsent = self.failure or self._not_sent()
        if len(sent) > 1:
            # What lands behind it is void: the next writer to open puts a fence into its slot.
            what = f"log object {first.slot} of namespace {self._namespace!r} was refused ({error})"
            error = NotWrittenError(f"{what} while later ones were in flight: open it again")
            unsent = self.failure or ClosedError(
                f"{what}, which ended this handle: open it again to go on"
            )
        failed = tuple((ticket, error) for group in sent for ticket in group.tickets)
        rest = self._drop(unsent, len(sent))
        failure = unsent if len(sent) > 1 else None
        return Settlement(None, failed + rest.errors, 0, self.lsn_durable, failure)

    def _drop(self, error: ReefError, still_in_flight: int) -> Settlement:
        """Give `error` to every batch behind the first `still_in_flight` groups in flight."""
        groups = (*list(self.in_flight)[still_in_flight:], *self.pending)
        errors = tuple((ticket, error) for group in groups for ticket in group.tickets)
        end = self.in_flight[still_in_flight - 1].lsn_last if still_in_flight else self.lsn_durable
        return Settlement(None, errors, still_in_flight, end)

    def _sent(self) -> int:
        """Return how many groups in flight may have been sent: all but perhaps the last."""
        flight = self.in_flight
        return len(flight) - (not flight[-1].is_sent and flight[-1].answer is None)

    def _not_sent(self) -> ReefError:
        return NotWrittenError(
            f"an earlier write to namespace {self._namespace!r} did not succeed, so this one "
            "was not sent: retry"
        )

    def _forget_keys(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            key = ticket.request.idempotency_key
            if key is not None and self.keys.get(key) is ticket:
                del self.keys[key]
