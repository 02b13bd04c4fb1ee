"""The commit path of an open writer: from a request to its receipt.

It drives the commit queue, and owns the lock, the PUTs and the waiting. `Admission` checks and
resolves a request under the lock, and puts its batch into the queue and its rows into the memtable.
No lock is held while an object is encoded or sent.

It starts no threads. A caller that waits for its own batch may send the objects of other callers:
the path wakes one waiter when there is a group to send, and each waiter when its result is known.
An interrupted caller hands its work over to another one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

from reef.context import Context
from reef.engine._commit._admission import Admission, Admitted
from reef.engine._commit._dedup_index import DedupIndex
from reef.engine._commit._log_writer import LogWriter
from reef.engine._commit._queue import Answer, CommitQueue, Group, Limits, Settlement, Ticket
from reef.engine._commit._receipt import Receipt
from reef.engine._commit._request import WriteRequest
from reef.engine._live import LiveRows
from reef.errors import (
    ClosedError,
    DroppedError,
    FencedError,
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
)
from reef.format import LogKind, log_key
from reef.manifest import ManifestChain
from reef.threads import Condition, Signal

# Without a window that is set, gathering ends after so long, or after this part of a PUT's time
# without arrivals.
_GATHERING_S = 0.002
_GATHERING_PAUSES = 4


class CommitPath:
    """The commits of one open writer. Threads may share it."""

    def __init__(
        self,
        context: Context,
        chain: ManifestChain,
        live: LiveRows,
        dedup: DedupIndex,
        log: LogWriter,
        cond: Condition,
    ) -> None:
        """`cond` has the lock of the writer; it is notified when what it guards changes."""
        settings, manifest, tail = context.settings, live.manifest, live.tail
        self._cond = cond
        self._context = context
        self._window_s = settings.group_commit_window
        self._clock = context.clock
        self._chain = chain
        self._live = live
        self._dedup = dedup
        self._log = log
        self._parallel = settings.max_parallel_writes or manifest.max_parallel_writes
        self._queue = CommitQueue(
            chain.namespace,
            slot=tail.replay.next_slot,
            lsn=tail.lsn,
            point=tail.replay.point,
            limits=Limits(
                self._parallel, settings.group_commit_max_batches, settings.log_segment_max_bytes
            ),
        )
        self._admission = Admission(settings, chain, live, dedup, self._queue)
        self._is_closed = False
        self._queue_watchers = 0
        """How many threads wait for a change of the queue itself, not of a ticket."""
        self._is_gathering = False
        self._asking = context.threads.condition()
        """Held while a caller asks the store again about a slot whose outcome is unknown."""
        self._put_s = 0.0
        """The seconds a PUT takes, as a running mean."""
        self._note_seconds = context.metrics.recorder("reef_commit_seconds")
        self._note_group = context.metrics.recorder(
            "reef_commits_total", "reef_group_batches", "reef_group_bytes"
        )

    @property
    def failure(self) -> ReefError | None:
        """The error that ended this writer for good, or None."""
        return self._queue.failure

    def slot_ended(self) -> int | None:
        """Return the slot at which this writer has ended, after `close`.

        None while it is open, and for good if it failed, or if the outcome of anything is unknown.
        """
        with self._cond:
            return self._queue.slot_ended() if self._is_closed else None

    @property
    def bytes_max(self) -> int:
        """How large one batch may be."""
        return self._admission.bytes_max

    def check_bytes(self, rows_bytes: int) -> None:
        """Raise InvalidInputError if a batch of that size does not fit, whatever else there is."""
        self._admission.check_bytes(rows_bytes)

    def has_room(self, nbytes: int) -> bool:
        """Return whether a batch of that size fits into memory and the log now. Lock held."""
        return self._admission.has_room(nbytes)

    def commit(self, request: WriteRequest) -> Receipt:
        """Make one batch durable and return its receipt.

        Raises FencedError, OutcomeUnknownError, NotWrittenError, ConditionFailedError,
        IdempotencyError, InvalidInputError; NoRoomError, and NotFoundError if a segment that the
        condition needs is gone: nothing was written.
        """
        self._admission.check_size(request)
        return self._run(partial(self._admission.admit, request))

    def commit_all(self, requests: Sequence[WriteRequest]) -> list[Receipt]:
        """Make several batches durable in one log object, all or none, each of its own version.

        They have neither keys nor streams. Each is resolved against those before it. Raises like
        `commit`, and InvalidInputError if one log object cannot hold them.
        """
        self._admission.check_together(requests)
        tickets: list[Ticket] = []
        last = self._run(partial(self._admission.admit_all, requests, tickets))
        return [Receipt(ticket.lsn, ticket.codes) for ticket in tickets[:-1]] + [last]

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
        with self._cond:
            return self._admission.durable(key, digest, source, sequence)

    def settle(self) -> None:
        """Find the outcome of every earlier write: unknown ones, and those of interrupted callers.

        Raises what ended this writer, or NotWrittenError if the store gives no answer.
        """
        self.settle_unknown()
        self._drain()
        self.settle_unknown()

    def step_down(self, error: FencedError | DroppedError) -> None:
        """Send nothing more, because a newer writer is known. Lock held.

        A batch in flight may still get its slot before that writer's fences: its own PUT decides.
        Batches that were not sent get `error`, and so do later requests.
        """
        if self._queue.failure is None:
            self._context.metrics.count("reef_fenced_total")
        self._queue.step_down(error)
        self._settle()
        self._cond.notify_all()  # callers that wait for room must stop waiting

    def push(self) -> None:
        """Send the next group if no caller does: they may have been interrupted."""
        me = object()
        try:
            with self._cond:
                group = self._take(me) if self._may_take() else None
            if group is not None:
                self._send(group)
        except BaseException:
            self._hand_over_despite_interrupts(me, None, None)
            raise

    def close(self) -> None:
        """Admit nothing more; send and settle what was admitted."""
        with self._cond:
            self._is_closed = True
            self._cond.notify_all()  # callers that wait for room must stop waiting
        self._drain()

    # The path of a batch.

    def _run(self, admit: Callable[[], Admitted]) -> Receipt:
        """Admit under the lock; then send or wait until there is an answer, and return it."""
        started = self._clock.monotonic()
        admitted: Admitted | None = None
        turn: Group | Signal | None = None
        try:
            while True:
                with self._cond:
                    if admitted is None and not self._queue.is_blocked():
                        self._check_open()
                        admitted = admit()
                        if self._window_s is not None:
                            self._note_arrival()
                        elif self._is_gathering and self._queue.has_all_callers():
                            self._cond.notify_all()  # the gathering caller stops waiting
                    if admitted is not None:
                        ticket = admitted.ticket
                        if ticket is None or ticket.is_done:
                            break
                        if self._may_take():
                            turn = self._take(admitted)
                        else:
                            turn = self._context.threads.signal()
                            ticket.waiters.append(turn)
                if admitted is None:
                    self.settle_unknown()
                elif isinstance(turn, Group):
                    self._send(turn)
                elif turn is not None:
                    turn.wait()
                turn = None
                if admitted is not None and ticket is not None and ticket.is_done:
                    break  # `done` never reverts, so no lock is needed to read it
        except BaseException:
            self._hand_over_despite_interrupts(
                admitted, None if admitted is None else admitted.ticket, turn
            )
            raise
        receipt = self._result(admitted)
        self._note_seconds(self._clock.monotonic() - started)
        return receipt

    def _check_open(self) -> None:
        """Raise ClosedError, or what ended this writer."""
        if self._is_closed:
            raise ClosedError(f"namespace {self._chain.namespace!r} was closed: open it again")
        if self._queue.failure is not None:
            raise copy.copy(self._queue.failure)

    def _result(self, admitted: Admitted) -> Receipt:
        """Return the receipt of a request whose ticket is done, or raise its error."""
        ticket = admitted.ticket
        if ticket is not None and ticket.error is not None:
            error = ticket.error
            if admitted.is_own or isinstance(error, FencedError | DroppedError):
                raise copy.copy(error)
            raise NotWrittenError(
                f"this write depends on an earlier write to namespace {self._chain.namespace!r} that "
                f"may not be durable ({error}). Nothing of this write was sent: retry"
            ) from error
        if admitted.refusal is not None:
            raise admitted.refusal
        receipt = admitted.receipt or (ticket.receipt if ticket is not None else None)
        assert receipt is not None
        return receipt

    def _send(self, group: Group) -> None:
        """Encode the object of a taken group, PUT it, and settle what the answer decides."""
        started = self._clock.monotonic()
        answer = self._log.encode(group)
        if answer is None:
            if self._parallel == 1:
                self._queue.send(group)
            else:
                with self._cond:
                    is_to_be_sent = self._queue.send(group)
                    self._wake_waiters()
                if not is_to_be_sent:
                    return
            answer = self._log.put(group)
        with self._cond:
            self._put_s += (self._clock.monotonic() - started - self._put_s) / 4
            self._queue.answer(group, answer)
            self._settle()
            self._wake_waiters()

    def _hand_over_despite_interrupts(
        self, sender: object, ticket: Ticket | None, turn: Group | Signal | None
    ) -> None:
        """Hand the work of an interrupted caller to others; another interrupt has to wait."""
        while True:
            try:
                self._hand_over(sender, ticket, turn)
                return
            except KeyboardInterrupt:  # the caller raises the first one
                continue

    def _hand_over(
        self, sender: object, ticket: Ticket | None, turn: Group | Signal | None
    ) -> None:
        with self._cond:
            if ticket is not None and turn in ticket.waiters:
                ticket.waiters.remove(turn)
            group = None if sender is None else self._queue.sealed_by(sender)
            if group is not None and group.is_sent:
                key = log_key(self._chain.namespace, group.slot)
                error = OutcomeUnknownError(key, "its sender was interrupted")
                self._queue.answer(group, Answer("unknown", error))
            elif group is not None:
                self._queue.unseal(group)
            self._settle()
            self._wake_waiters()

    def settle_unknown(self) -> None:
        """Ask the store again about every slot whose outcome is unknown.

        Raises NotWrittenError if the store still gives no answer, or what ended this writer.
        """
        while True:
            with self._asking:  # an interrupt releases it, and the next caller asks
                with self._cond:
                    self._settle()
                    if self._queue.failure is not None:
                        raise copy.copy(self._queue.failure)
                    group = self._queue.unknown()
                    if group is None:
                        self._wake_waiters()
                        return
                answer = self._log.put(group)
                with self._cond:
                    self._queue.answer(group, answer)
                    self._settle()
                    self._wake_waiters()
            if answer.kind not in ("durable", "lost"):
                raise NotWrittenError(
                    f"log object {group.slot} of namespace {self._chain.namespace!r} may or may not "
                    f"have been written and the store gives no answer ({answer.error}); nothing "
                    "more was sent: retry"
                ) from answer.error

    def _drain(self) -> None:
        """Send and settle everything admitted, also batches of interrupted callers."""
        queue, me = self._queue, object()
        try:
            while True:
                with self._cond:
                    while (queue.in_flight or self._is_gathering) and not (
                        queue.is_blocked() or self._may_take()
                    ):
                        self._wait_for_queue_change()
                    if not self._may_take():
                        return
                    group = self._take(me)
                if group is not None:
                    self._send(group)
        except BaseException:
            self._hand_over_despite_interrupts(me, None, None)
            raise

    @property
    def has_queue(self) -> bool:
        """Whether batches wait for the log object under way. A guess, without the lock."""
        return bool(self._queue.pending)

    # Everything from here on runs under the lock. First, sending.

    def _may_take(self) -> bool:
        return not self._is_gathering and self._queue.may_seal()

    def _take(self, sender: object) -> Group | None:
        """Take the next group, for `sender` to send it; None if none is left."""
        queue = self._queue
        if self._window_s is not None or queue.callers_expected > 1:
            if self._window_s is None:
                self._gather(queue.pending[0])
            else:
                self._gather_for(self._window_s, queue.pending[0])
            if not queue.may_seal():
                self._cond.notify_all()
                return None  # the queue ended while this caller gathered
        return queue.seal(sender)

    def _gather(self, group: Group) -> None:
        """Wait shortly for the callers of the last groups, while they keep arriving."""
        queue, clock = self._queue, self._clock
        deadline = clock.monotonic() + min(_GATHERING_S, self._put_s)
        self._is_gathering = True
        try:
            while (
                (gathered := group.callers) < queue.callers_expected
                and queue.pending
                and queue.pending[0] is group is queue.pending[-1]
                and (left := deadline - clock.monotonic()) > 0
            ):
                self._wait_for_queue_change(min(left, self._put_s / _GATHERING_PAUSES))
                if group.callers == gathered:
                    return
        finally:
            self._is_gathering = False

    def _gather_for(self, window_s: float, group: Group) -> None:
        """Wait until the window that was set is over, unless the group is complete before."""
        queue, clock = self._queue, self._clock
        opened_at = clock.monotonic() if group.opened_at is None else group.opened_at
        self._is_gathering = True
        try:
            while (
                not self._is_closed
                and queue.pending
                and queue.pending[0] is group
                and not queue.is_complete(group)
                and (left := opened_at + window_s - clock.monotonic()) > 0
            ):
                self._wait_for_queue_change(left)
        finally:
            self._is_gathering = False

    def _note_arrival(self) -> None:
        """Begin the window of a group with its first batch; wake its sender when it is complete."""
        pending = self._queue.pending
        if pending and pending[-1].opened_at is None:
            pending[-1].opened_at = self._clock.monotonic()
        if self._is_gathering and pending and self._queue.is_complete(pending[0]):
            self._cond.notify_all()

    def _wake_waiters(self) -> None:
        """Wake the waiters whose condition may have changed.

        A waiter sends only if it is woken. The caller whose batch is next may be busy sending another
        group, so callers that wait for groups in flight are woken, too.
        """
        if self._queue.pending and self._may_take():
            groups = (*self._queue.pending, *self._queue.in_flight)
            any(_wake(ticket) for group in groups for ticket in group.tickets)
        if self._queue_watchers:
            self._cond.notify_all()

    def _wait_for_queue_change(self, timeout: float | None = None) -> None:
        """Wait for a change of the queue itself, which no ticket tells."""
        self._queue_watchers += 1
        try:
            self._cond.wait(timeout)
        finally:
            self._queue_watchers -= 1

    # Settling.

    def _settle(self) -> None:
        """Carry out the settlement, in slot order. Doing a part of it twice does no harm."""
        queue = self._queue
        while (step := queue.settlement()) is not None:
            if step.durable is not None:
                self._acknowledge(step.durable)
            else:
                self._fail(step)
            queue.settled(step)

    def _acknowledge(self, group: Group) -> None:
        tail = self._live.tail
        if group.slot == tail.replay.next_slot:
            assert group.point is not None
            tail.committed(group.point, group.data_bytes, group.lsn_last)
        if group.kind is LogKind.SCHEMA:
            tail.schema = group.tickets[0].request.schema
        for ticket, record in zip(group.tickets, group.records, strict=True):
            if record.idempotency_key is not None or record.source is not None:
                self._dedup.add(record, group.created_at_us)
            if not ticket.is_done:
                ticket.receipt = Receipt(ticket.lsn, ticket.codes)
            if ticket.waiters:
                _wake(ticket)
        batches = len(group.tickets)
        self._note_group(batches, batches, group.data_bytes)

    def _fail(self, step: Settlement) -> None:
        """Give callers their errors, and drop every row that is no longer in a log object."""
        if isinstance(step.failure, FencedError | DroppedError) and self._queue.failure is None:
            self._context.metrics.count("reef_fenced_total")
        answered = [(ticket, error) for ticket, error in step.errors if not ticket.is_done]
        if answered and isinstance(answered[0][1], OutcomeUnknownError):
            self._context.metrics.count("reef_unknown_outcomes_total")
        for ticket, error in answered:
            ticket.error = error
        for ticket, _ in step.errors:
            _wake(ticket)
        self._admission.truncate(step.lsn_end)
        self._cond.notify_all()  # callers that wait for room must see a failure


def _wake(ticket: Ticket) -> bool:
    """Wake the callers that wait for a ticket; return whether there were any."""
    is_any = bool(ticket.waiters)
    while ticket.waiters:
        ticket.waiters[-1].give()
        ticket.waiters.pop()  # last: if an interrupt comes before it, the signal is given again
    return is_any
