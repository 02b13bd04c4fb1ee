"""Groups of batches on their way into the log, and what becomes of them.

Invariants:

- A log object is sent only with the next slots in order, at most `parallel` at a time, each naming
  the one before. Acks are given in slot order, after the PUT of that slot and of all below.
- Whoever waits for its own batch may send the object of others: there is no thread but the callers'.
  One of those who wait is woken when there is something to send, and each when its own is settled.
- A batch that failed for certain is never visible: its rows are cut off the memtable, and its
  segments off what is read, before its version is given to another.
- An unknown outcome stops everything: nothing more is sent until that slot has been asked for
  again, with the same bytes. Its writer was told `OutcomeUnknownError`; its rows appear or not.
- Somebody else's object in a slot of ours ends the writer for good, and everyone above the durable
  version gets that one error. A newer epoch that only the manifest shows yet ends it too, but what is
  in flight then may still have been in time: its own PUT tells.

Crash points: before the PUT nothing happened; after it the batch is durable, told or not.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from reef.engine._context import Context
from reef.engine._group import DURABLE, Answer, Group, Ticket
from reef.engine._receipt import Receipt
from reef.engine._tail import Tail
from reef.errors import (
    ClosedError,
    ConflictError,
    CorruptError,
    DroppedError,
    FencedError,
    InvariantError,
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
)
from reef.format import LogKind, log_key
from reef.log import Damaged, LogReader
from reef.store import create
from reef.threads import Condition, Signal
from reef.types import new_nonce

_WORTH_WAITING = 4  # a pause of this part of the time that a PUT takes ends the wait for company


class Joined(NamedTuple):
    """What a group was before others joined it."""

    tickets: int
    callers: int
    nbytes: int
    lsn_given: int


class Waiting(NamedTuple):
    """Somebody who waits for a batch, or for its turn to send."""

    ticket: Ticket
    signal: Signal


class Outbox:
    """The log objects of one open writer that are not durable yet. Its caller's `cond` guards it."""

    def __init__(
        self,
        context: Context,
        namespace: str,
        cond: Condition,
        *,
        epoch: int,
        writer_id: bytes,
        parallel: int,
        tail: Tail,
        reader: LogReader,
        is_collected: Callable[[int], bool],
        now_us: Callable[[], int],
        committed: Callable[[Group], None],
        dropped: Callable[[Ticket], None],
        rebuild: Callable[[], None],
    ) -> None:
        """`committed` is told of a durable group, `dropped` of a batch that will never be.

        `rebuild` makes reads go by the segments of the tail, when those on their way have changed.
        """
        self.cond = cond
        self._context = context
        self._settings = context.settings
        self._namespace = namespace
        self._epoch = epoch
        self._writer_id = writer_id
        self._parallel = parallel
        self._tail = tail
        self._reader = reader
        self._is_collected = is_collected
        self._now_us = now_us
        self._committed = committed
        self._dropped = dropped
        self._rebuild = rebuild
        self._count_commits = context.metrics.counter("reef_commits_total")
        self._note_batches = context.metrics.histogram("reef_group_batches")
        self._note_bytes = context.metrics.histogram("reef_group_bytes")
        self.pending: deque[Group] = deque()
        self._in_flight: deque[Group] = deque()
        self.lsn_given = tail.lsn
        self._company = 1
        self._put_s = 0.0
        self._is_gathering = False
        self._is_asking = False
        self._taking: Group | Waiting | None = None
        """What the one who holds the lock is about to do."""
        self.failure: ReefError | None = None

    # Joining. Everything here runs under the lock.

    def tickets(self) -> Iterator[Ticket]:
        """Yield the batches that are on their way, in order."""
        for group in (*self._in_flight, *self.pending):
            yield from group.tickets

    def check_open(self) -> None:
        """Raise what ended this writer, or NotWrittenError while an outcome is unknown."""
        if self.failure is not None:
            raise copy.copy(self.failure)
        if self.is_blocked():
            raise NotWrittenError(
                f"an earlier write to namespace {self._namespace!r} has an unknown outcome; this "
                "one was not sent: retry, and that will be asked for first"
            )

    def joinable(self, kind: LogKind, nbytes: int, count: int = 1) -> Group:
        """Return the group that `count` batches of that size go into; perhaps a new one.

        A schema and an attach share their log objects with nobody.
        """
        group = self.pending[-1] if self.pending else None
        if (
            group is None
            or not group.kind is kind is LogKind.DATA
            or group.nbytes + nbytes > self._settings.log_segment_max_bytes
            or len(group.tickets) + count > self._settings.group_commit_max_batches
        ):
            newest = self.pending or self._in_flight
            return Group(newest[-1].slot + 1 if newest else self._tail.fold.next_slot, kind)
        return group

    def join(self, group: Group, ticket: Ticket, nbytes: int) -> None:
        """Add a batch to a group that `joinable` gave, and its rows to what later ones are held against."""
        lsn, batch, segments = ticket.record.lsn, ticket.record.batch, ticket.record.segments
        try:
            if batch is not None:
                known = ticket.request.nbytes if batch is ticket.request.batch else None
                self._tail.memtable.apply(lsn, batch, known)
            if segments:
                self._tail.attach(segments)
                self._rebuild()
            if not group.tickets:
                self.pending.append(group)
            group.tickets.append(ticket)
            self.lsn_given = lsn
        except BaseException:
            # A row that is in no log object must not be seen, and no object is without a row.
            if self.lsn_given < lsn:
                if group.tickets and group.tickets[-1] is ticket:
                    group.tickets.pop()
                self._truncate()
            if self.pending and not group.tickets and self.pending[-1] is group:
                self.pending.pop()
            raise
        group.nbytes += nbytes
        group.callers += ticket.callers
        if self._is_gathering and self.pending[0].callers >= self._company:
            self.cond.notify_all()  # the company that is waited for is complete

    def leave(self, group: Group, before: Joined) -> None:
        """Take back the batches that joined a group since `before`, as if they never had."""
        dropped = group.tickets[before.tickets :]
        del group.tickets[before.tickets :]
        group.callers, group.nbytes = before.callers, before.nbytes
        if not group.tickets and self.pending and self.pending[-1] is group:
            self.pending.pop()
        self.lsn_given = before.lsn_given
        self._truncate()
        for ticket in dropped:
            self._dropped(ticket)

    def joined(self, group: Group) -> Joined:
        """Return what a group is now, for `leave`."""
        return Joined(len(group.tickets), group.callers, group.nbytes, self.lsn_given)

    # Sending.

    def run(self, take: Callable[[], Group | Waiting | None]) -> None:
        """Call `take` under the lock and do what it gives: send a group, wait, or nothing.

        Whoever is interrupted leaves nothing behind that others would wait for.
        """
        taken: Group | Waiting | None = None
        answer: Answer | None = None
        clock = self._context.clock
        started = 0.0
        try:
            with self.cond:
                self._taking = None
                try:
                    taken = take()
                except BaseException:
                    self._give_back(self._taking)
                    raise
                self._taking = None  # it would keep its batches
            if isinstance(taken, Group):
                started = clock.monotonic()
                answer = self._encode(taken) or self._put(taken)
            elif taken is not None:
                taken.signal.wait()
        except BaseException:
            if isinstance(taken, Waiting):
                with self.cond:
                    self._give_back(taken)
            raise
        finally:
            if isinstance(taken, Group):
                with self.cond:
                    if answer is None and not taken.is_encoded:
                        self._give_back(taken)
                    else:
                        self._put_s += (clock.monotonic() - started - self._put_s) / 4
                        taken.answer = answer or self._interrupted(taken)
                        self._settle()
                    self._pass_on()
                    self.cond.notify_all()

    def _give_back(self, taken: Group | Waiting | None) -> None:
        """Leave to others what an interrupted one was about to do. Lock held."""
        if isinstance(taken, Waiting):
            if taken.signal in taken.ticket.waiting:
                taken.ticket.waiting.remove(taken.signal)
        elif taken is not None and taken in self._in_flight:
            self._in_flight.remove(taken)
            if taken not in self.pending:
                self.pending.appendleft(taken)
            self._settle()  # one before it may have been answered, and waited for this one's end
        self._pass_on()
        self.cond.notify_all()

    def _encode(self, group: Group) -> Answer | None:
        """Make the bytes of a group, or return why there will be none. No lock held.

        Until it is over nothing else is sent: the next one has to name this one's checksum.
        """
        group.nonce = new_nonce(self._context.rng)
        group.created_at_us = self._now_us()
        try:
            group.encode(epoch=self._epoch, writer_id=self._writer_id)
        except Exception as error:  # noqa: BLE001 nothing was sent, and everyone must be told
            return Answer(
                "refused",
                InvariantError(f"a batch, or one beside it, cannot be logged: {error!r}"),
            )
        if self._parallel > 1:
            with self.cond:
                self._pass_on()
                self.cond.notify_all()
        return None

    def _interrupted(self, group: Group) -> Answer:
        key = log_key(self._namespace, group.slot)
        return Answer("unknown", OutcomeUnknownError(key, "its sender was interrupted"))

    def wait_for(self, ticket: Ticket) -> None:
        """Return when `ticket` is done, having sent what was there to be sent if it was our turn."""
        while not ticket.is_done:  # once it is, it stays so: no lock is needed to see it
            self.run(lambda: self.turn(ticket))

    def turn(self, ticket: Ticket) -> Group | Waiting | None:
        """Return what whoever waits for `ticket` does next: send a group, wait, or nothing more.

        Lock held; `run` does it.
        """
        if ticket.is_done:
            return None
        if self.may_send():
            return self.next_group()
        waiting = Waiting(ticket, self._context.threads.signal())
        self._taking = waiting
        ticket.waiting.append(waiting.signal)
        return waiting

    def pass_on(self) -> None:
        """Let somebody else send what there is: whoever calls will not look any more."""
        with self.cond:
            self._pass_on()

    def _pass_on(self) -> None:
        """If something can be sent, wake one of those who wait to send it. Lock held.

        Call it whenever that may have become true: nobody looks without being woken. Whoever owns the
        next batch may be busy sending another's, so those who wait for what is in flight are asked too.
        """
        if self.may_send():
            groups = (*self.pending, *self._in_flight)
            any(ticket.wake() for group in groups for ticket in group.tickets)

    def drain(self) -> None:
        """Send and settle whatever is on its way, also what nobody waits for any more."""
        is_over = False

        def take() -> Group | None:
            nonlocal is_over
            while (self._in_flight or self._is_gathering) and not (
                self.is_blocked() or self.may_send()
            ):
                self.cond.wait()
            is_over = not self.may_send()
            return None if is_over else self.next_group()

        while not is_over:
            self.run(take)

    def may_send(self) -> bool:
        """Return whether a group is waiting and nothing keeps it. Lock held."""
        return (
            bool(self.pending)
            and not self._is_gathering
            and len(self._in_flight) < self._parallel
            and not self._has_failed()
            and (not self._in_flight or self._in_flight[-1].is_encoded)  # it has to be named
        )

    def is_blocked(self) -> bool:
        """Return whether a slot was answered and is not durable: none behind it can be. Lock held."""
        return bool(self._in_flight) and self._in_flight[0].answer is not None

    def _has_failed(self) -> bool:
        """Return whether any slot was answered and will not be durable by that. Lock held."""
        return any(group.answer not in (None, DURABLE) for group in self._in_flight)

    def next_group(self) -> Group | None:
        """Take the next group, ready to be sent; None if there is none any more. Lock held."""
        self._is_gathering = True
        try:
            self._gather(self.pending[0])
        finally:
            self._is_gathering = False
        if not self.pending or self._has_failed():
            self.cond.notify_all()
            return None  # it ended while company was waited for
        group = self.pending[0]
        group.before = self._in_flight[-1].point if self._in_flight else self._tail.fold.point
        self._taking = group
        self._in_flight.append(group)
        self.pending.popleft()
        return group

    def _gather(self, group: Group) -> None:
        """Wait, within the window, for those who were here a moment ago, while they keep coming."""
        if self._company <= 1:
            return  # a lone writer never waits
        clock = self._context.clock
        deadline = clock.monotonic() + min(self._settings.group_commit_window, self._put_s)
        while (
            (came := group.callers) < self._company
            and self.pending
            and self.pending[0] is group is self.pending[-1]
            and (left := deadline - clock.monotonic()) > 0
        ):
            self.cond.wait(min(left, self._put_s / _WORTH_WAITING))
            if group.callers == came:
                return

    def _put(self, group: Group) -> Answer:
        """Create the log object, and find out what that means. No lock held."""
        key = log_key(self._namespace, group.slot)
        try:
            create(
                self._context.store,
                key,
                group.data,
                nonce=group.nonce,
                is_collected=lambda: self._is_collected(group.slot),
                settings=self._settings,
                clock=self._context.clock,
                rng=self._context.rng,
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
        """Return what it means that somebody else's object is in our slot."""
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

    # Settling. Everything here but `settle_unknown` runs under the lock.

    def settle_unknown(self) -> None:
        """Ask again for every slot whose outcome is unknown.

        Raises NotWrittenError if the store still gives no answer, or what ended this writer.
        """
        while True:
            with self.cond:
                if self.failure is not None:
                    raise copy.copy(self.failure)
                if not self.is_blocked():
                    return
                group = self._in_flight[0]
                if self._is_asking or group.answer is None or group.answer.kind != "unknown":
                    self.cond.wait()
                    continue
                self._is_asking = True
            answer = group.answer
            try:
                answer = self._put(group)
            finally:
                with self.cond:
                    self._is_asking = False
                    if answer.kind in ("durable", "lost"):
                        group.answer = answer
                        self._settle()
                        self._pass_on()
                    self.cond.notify_all()
            if answer.kind not in ("durable", "lost"):
                raise NotWrittenError(
                    f"log object {group.slot} of namespace {self._namespace!r} may or may not have "
                    f"been written and the store gives no answer ({answer.error}); nothing more "
                    "was sent: retry"
                ) from answer.error

    def step_down(self, error: FencedError | DroppedError) -> None:
        """Send nothing more: a newer writer is known, whose fences may not stand yet.

        What is in flight may still get its slot before them, and counts then: it is told when it
        is answered. What was not sent gets `error`, and so does everyone who comes.
        """
        if self.failure is None:
            error.durable_lsn = self._tail.lsn
            self.failure = error
            self._context.metrics.count("reef_fenced_total")
        self._drop_pending(self.failure)

    def _stop(self, error: ReefError) -> None:
        """End this writer: everyone who waits, and everyone who comes, gets `error`."""
        if self.failure is None:
            self.failure = error
            if isinstance(error, FencedError):
                error.durable_lsn = self._tail.lsn  # every slot below was answered, and told
                self._context.metrics.count("reef_fenced_total")
        for group in self._in_flight:
            self._tell(group, self.failure)
        self._in_flight.clear()
        self._drop_pending(self.failure)

    def _settle(self) -> None:
        """Tell everyone what is known, in slot order."""
        while self._in_flight and (answer := self._in_flight[0].answer) is not None:
            group = self._in_flight[0]
            if answer is not DURABLE:
                self._fail(group, *answer)
                return
            self._ack(group)
            self._in_flight.popleft()  # last: whoever is interrupted leaves it to be done again

    def _ack(self, group: Group) -> None:
        # Those who are told now may come again, those who wait already are there.
        self._company = group.callers + sum(other.callers for other in self.pending)
        if group.slot == self._tail.fold.next_slot:
            self._tail.committed(group.point, group.data_bytes, group.lsn_last)
            if isinstance(
                self.failure, FencedError | DroppedError
            ):  # it stepped down, and this was in time
                self.failure.durable_lsn = self._tail.lsn
        if group.kind is LogKind.SCHEMA:
            self._tail.schema = group.tickets[0].record.schema
        self._committed(group)
        for ticket in group.tickets:
            ticket.tell(Receipt(ticket.record.lsn, ticket.codes))
        self._count_commits(len(group.tickets))
        self._note_batches(len(group.tickets))
        self._note_bytes(group.data_bytes)

    def _fail(self, group: Group, kind: str, error: ReefError | None) -> None:
        """Deal with `error`, the answer for the lowest slot that is not durable."""
        assert error is not None
        if kind == "lost":
            self._stop(error)
        elif kind == "unknown":
            self._hold(str(getattr(error, "why", error)))
        elif len(self._in_flight) == 1:
            # It was not carried out, for certain, and nothing was sent behind it: its slot is free.
            self._in_flight.clear()
            self._tell(group, error)
            self._drop_pending()
        elif all(other.answer is not None for other in self._in_flight):
            # What landed behind it is void: whoever opens next puts a fence into its slot.
            what = f"log object {group.slot} of namespace {self._namespace!r} was refused ({error})"
            for other in self._in_flight:
                self._tell(
                    other, NotWrittenError(f"{what} while later ones were on their way: open again")
                )
            self._stop(ClosedError(f"{what}, which ended this handle: open it again to go on"))

    def _hold(self, why: str) -> None:
        """Tell those who were sent that nobody knows; send nothing more until it is known."""
        if not self._in_flight[0].tickets[0].is_done:
            self._context.metrics.count("reef_unknown_outcomes_total")
        for group in self._in_flight:
            for ticket in group.tickets:
                if not ticket.is_done:
                    key = log_key(self._namespace, group.slot)
                    ticket.tell(None, OutcomeUnknownError(key, why))
        self._drop_pending()

    def _drop_pending(self, error: ReefError | None = None) -> None:
        """Drop what was never sent, and its rows."""
        told = error or NotWrittenError(
            f"a write before this one to namespace {self._namespace!r} did not succeed; this one "
            "was not sent: retry"
        )
        for group in self.pending:
            self._tell(group, told)
        self.pending.clear()
        self.lsn_given = self._in_flight[-1].lsn_last if self._in_flight else self._tail.lsn
        self._truncate()
        self.cond.notify_all()

    def _truncate(self) -> None:
        """Drop every row that is in no log object any more."""
        if self._tail.truncate(self.lsn_given):
            self._rebuild()  # before anything else can be given one of those versions

    def _tell(self, group: Group, error: ReefError) -> None:
        for ticket in group.tickets:
            if not ticket.is_done:
                ticket.tell(None, error)
            self._dropped(ticket)
