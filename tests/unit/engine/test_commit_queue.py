"""The commit queue, through every order of events at small sizes.

A world beside the queue knows which objects landed in the bucket. From the empty queue every event
that can come next is tried in every state: a batch is admitted or retracted, a group is sealed,
sent or put back, a PUT is answered, an unknown slot is asked for again, the writer steps down. After
each, the settlements are carried out, and what the queue promises is checked against the world.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator

import pyarrow as pa
import pytest

from reef.engine._commit._queue import (
    DURABLE,
    Answer,
    CommitQueue,
    Group,
    Limits,
    Settlement,
    Ticket,
)
from reef.engine._commit._receipt import Receipt
from reef.engine._commit._request import WriteRequest
from reef.errors import (
    FencedError,
    InvalidInputError,
    InvariantError,
    OutcomeUnknownError,
    ReefError,
    UnavailableError,
)
from reef.format import LogKind, log_schema
from reef.log import ChainPoint
from reef.types import pack_lsn

NO_ROWS = pa.RecordBatch.from_pylist([], schema=log_schema([]))
SLOT = 5
LSN = pack_lsn(SLOT - 1, 0)
REQUESTS = [
    WriteRequest(batch=NO_ROWS, nbytes=1, idempotency_key=b"%d" % number, digest=bytes(16))
    for number in range(8)
]
Event = tuple[str, ...]


def queue_of(parallel: int = 1, batches: int = 1, lsn: int = LSN) -> CommitQueue:
    limits = Limits(parallel, batches, 1 << 20)
    return CommitQueue("ns", slot=SLOT, lsn=lsn, point=point_of(SLOT - 1), limits=limits)


def answer_of(kind: str) -> Answer:
    if kind == "refused":
        return Answer("refused", UnavailableError("503"))
    if kind == "lost":
        return Answer("lost", FencedError("somebody else's object"))
    return Answer("unknown", OutcomeUnknownError("key", "no reply"))


def point_of(slot: int) -> ChainPoint:
    return ChainPoint(slot, 100 + slot, 1)


def ticket_of(number: int, **more: object) -> Ticket:
    return Ticket(REQUESTS[number], NO_ROWS, b"", nbytes=1, **more)  # type: ignore[arg-type]


class QueueWorld:
    """A queue, its driver reduced to what it must carry out, and the bucket."""

    def __init__(self, parallel: int, batches: int, admits: int, *, twice: bool) -> None:
        self.queue = queue_of(parallel, batches)
        self.parallel = parallel
        self.admits = admits
        self.twice = twice
        """Carry out each settlement a second time, as after an interruption."""
        self.tickets: list[Ticket] = []
        self.groups: dict[int, Group] = {}
        """Those that were sent, by slot."""
        self.slots: dict[int, int] = {}
        """Of each ticket that was sent, by its number."""
        self.rows: dict[int, int] = {}
        """The memtable: the ticket of each version."""
        self.landed: dict[int, tuple[int, ...]] = {}
        """The bucket: the tickets of each slot; none: somebody else's object."""
        self.acked = SLOT - 1
        self.loose: list[Group] = []
        """Groups with a PUT that was thought lost, and may land yet."""
        self.bad: list[int] = []
        """Tickets whose object could not be made."""

    # Events.

    def events(self) -> Iterator[Event]:
        queue = self.queue
        if queue.is_blocked():
            group = queue.unknown()
            if group is not None:
                yield from (("ask", str(group.slot), kind) for kind in self.outcomes(group))
        elif queue.failure is None and len(self.tickets) < self.admits:
            yield ("admit",)
            yield ("admit and retract",)
        if queue.may_seal():
            yield ("seal",)
        for group in queue.in_flight:
            if not group.is_sent and group.answer is None:
                yield from (("send",), ("unseal",), ("cannot encode",))
        for group in self.groups.values():
            if group.answer is None:
                yield from (("answer", str(group.slot), kind) for kind in self.outcomes(group))
        for number, group in enumerate(self.loose):
            if group.slot not in self.landed:
                yield ("land", str(number))
        yield ("step down",)

    def outcomes(self, group: Group) -> Iterator[str]:
        """Yield what a PUT of `group` may end with, by what is in the slot."""
        there = self.landed.get(group.slot)
        yield "unknown"
        if there == ():
            yield "lost"
        else:
            yield from ("durable", "unknown but landed")
        if there is None:
            yield from ("lost", "refused")

    def do(self, event: Event) -> None:
        kind = event[0]
        if kind in ("ask", "answer"):
            slot = int(event[1])
            self.answer(self.groups[slot], event[2])
        elif kind == "land":
            self.land(self.loose[int(event[1])])
        else:
            getattr(self, kind.replace(" ", "_"))()
        self.settle()
        self.check()

    def admit(self) -> None:
        ticket = ticket_of(len(self.tickets))
        assert not self.queue.is_blocked()
        self.queue.admit(ticket)
        assert ticket.lsn not in self.rows, "a version whose rows were not cut off"
        assert not self.rows or ticket.lsn > max(self.rows)
        self.rows[ticket.lsn] = len(self.tickets)
        self.tickets.append(ticket)

    def admit_and_retract(self) -> None:
        before = self.queue.lsn_given
        groups = [list(group.tickets) for group in self.queue.pending]
        self.queue.admit(ticket_of(7))
        self.queue.retract(before)
        assert self.queue.lsn_given == before
        assert [group.tickets for group in self.queue.pending] == groups

    def seal(self) -> None:
        queue = self.queue
        assert queue.failure is None
        assert all(group.answer in (None, DURABLE) for group in queue.in_flight)
        group = queue.seal(self)
        assert queue.sealed_by(self) is not None
        assert group.before == point_of(group.slot - 1)
        assert len(queue.in_flight) <= self.parallel
        assert [one.slot for one in queue.in_flight] == list(
            range(self.acked + 1, self.acked + 1 + len(queue.in_flight))
        )
        group.point = point_of(group.slot)

    def unsent(self) -> Group:
        (group,) = (
            group for group in self.queue.in_flight if not group.is_sent and not group.answer
        )
        return group

    def send(self) -> None:
        group = self.unsent()
        if not self.queue.send(group):
            assert self.parallel > 1
            assert group not in self.queue.in_flight
            return
        before = self.groups.get(group.slot)
        behind = list(self.queue.in_flight)[:-1]
        assert all(one.answer in (None, DURABLE) for one in behind), "sent behind a failed slot"
        if before is not None:  # only what was not carried out, for certain, frees its slot
            assert before not in self.loose
            assert before.answer is not None
            assert before.answer.kind == "refused"
            assert group.slot not in self.landed
        self.groups[group.slot] = group
        self.slots |= {self.tickets.index(ticket): group.slot for ticket in group.tickets}

    def unseal(self) -> None:
        group = self.unsent()
        self.queue.unseal(group)
        assert self.queue.failure is not None or self.queue.pending[0] is group

    def cannot_encode(self) -> None:
        self.bad += map(self.tickets.index, self.unsent().tickets)
        self.queue.answer(self.unsent(), Answer("refused", InvariantError("a bad batch")))

    def answer(self, group: Group, kind: str) -> None:
        if kind in ("durable", "unknown but landed"):
            self.land(group)
        if kind == "unknown" and group.slot not in self.landed and group not in self.loose:
            self.loose.append(group)
        if kind == "lost":
            self.landed[group.slot] = ()
        if kind == "durable":
            self.queue.answer(group, DURABLE)
        else:
            self.queue.answer(group, answer_of(kind))

    def land(self, group: Group) -> None:
        self.landed[group.slot] = tuple(map(self.tickets.index, group.tickets))

    def step_down(self) -> None:
        before, error = self.queue.failure, FencedError("a newer writer")
        self.queue.step_down(error)
        assert self.queue.failure is (before or error)
        assert not self.queue.may_seal()

    # The driver.

    def settle(self) -> None:
        while (step := self.queue.settlement()) is not None:
            self.carry_out(step)
            if self.twice:
                again = self.queue.settlement()
                assert again is not None
                assert again.durable is step.durable
                self.carry_out(again)
            self.queue.settled(step)

    def carry_out(self, step: Settlement) -> None:
        if step.durable is not None:
            assert step.durable.slot in (self.acked, self.acked + 1)
            self.acked = step.durable.slot
            for ticket in step.durable.tickets:
                if not ticket.is_done:
                    ticket.receipt = Receipt(ticket.lsn, ticket.codes)
            return
        for ticket, error in step.errors:
            assert ticket.receipt is None, "an acknowledged batch was told of an error"
            if ticket.error is None:
                ticket.error = error
        self.rows = {lsn: row for lsn, row in self.rows.items() if lsn <= step.lsn_end}

    # What must hold.

    def is_valid(self, slot: int) -> bool:
        """Return whether every reader takes our object in a slot for committed."""
        return all(self.landed.get(below) for below in range(SLOT, slot + 1))

    def check(self) -> None:
        queue = self.queue
        live = [self.tickets.index(ticket) for ticket in queue.tickets()]
        for number, ticket in enumerate(self.tickets):
            slot = self.slots.get(number)
            is_there = slot is not None and number in self.landed.get(slot, ())
            if ticket.receipt is not None:
                assert slot is not None
                assert is_there
                assert self.is_valid(slot)
                assert slot <= self.acked
                assert ticket.error is None
            elif ticket.error is None:
                assert number in live, "a batch without an answer that nobody will answer"
            elif isinstance(ticket.error, OutcomeUnknownError):
                assert slot is not None or number in self.bad, "nothing was sent that is unknown"
            elif is_there:
                assert slot is not None
                assert not self.is_valid(slot), "a batch that failed is in the log"
                assert queue.failure is not None
        if queue.in_flight and (answer := queue.in_flight[0].answer) is not None:
            assert answer.kind == "unknown", "an answer that was not settled"
            assert queue.unknown() is queue.in_flight[0]
        committed = [n for n, slot in self.slots.items() if slot <= self.acked and n not in live]
        committed = [n for n in committed if n in self.landed.get(self.slots[n], ())]
        assert sorted(self.rows.values()) == sorted({*committed, *live}), "rows nobody logs"
        assert set(queue.keys.values()) == {self.tickets[number] for number in live}
        assert queue.lsn_given >= max(self.rows, default=LSN)
        assert queue.lsn_durable == max(
            (lsn for lsn, number in self.rows.items() if number not in live), default=LSN
        )
        if queue.failure is not None:
            assert not queue.may_seal()
            assert not queue.pending
            if isinstance(queue.failure, FencedError):
                assert queue.failure.durable_lsn == queue.lsn_durable
        elif queue.pending and not queue.in_flight:
            assert queue.may_seal(), "nobody would ever send it"

    def key(self) -> Hashable:
        """Return what tells states apart."""

        def told(error: ReefError | None) -> str:
            return type(error).__name__

        queue = self.queue
        groups = [
            (
                group.slot,
                tuple(map(self.tickets.index, group.tickets)),
                group.answer and group.answer.kind,
                (group.is_sent, group.is_held),
                group in queue.in_flight,
            )
            for group in {
                **self.groups,
                **dict(enumerate((*queue.in_flight, *queue.pending))),
            }.values()
        ]
        tickets = [
            (ticket.lsn, ticket.receipt is None, told(ticket.error)) for ticket in self.tickets
        ]
        bucket = (sorted(self.landed.items()), [one.slot for one in self.loose], self.bad)
        return repr((groups, tickets, bucket, self.acked, told(queue.failure), len(queue.pending)))


def explore(world: QueueWorld) -> tuple[int, set[str]]:
    """Try every event in every state; return how many states there are, and what tickets were told."""
    seen = {world.key()}
    ends: set[str] = set()
    stack = [world]
    shared: dict[int, object] = {id(one): one for one in (*REQUESTS, NO_ROWS, DURABLE)}
    while stack:
        state = stack.pop()
        for event in list(state.events()):
            following = copy.deepcopy(state, dict(shared))
            following.do(event)
            key = following.key()
            if key not in seen:
                seen.add(key)
                stack.append(following)
        ends |= {type(ticket.error or ticket.receipt).__name__ for ticket in state.tickets}
    return len(seen), ends


@pytest.mark.parametrize("twice", [False, True], ids=["", "interrupted"])
@pytest.mark.parametrize(("parallel", "batches"), [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)])
def test_every_order_of_events_keeps_the_promises(parallel: int, batches: int, twice: bool) -> None:
    states, answers = explore(QueueWorld(parallel, batches, 3, twice=twice))
    assert states > 1000
    expected = {"Receipt", "NotWrittenError", "UnavailableError", "OutcomeUnknownError"}
    expected |= {"FencedError", "InvariantError", "NoneType"}
    if parallel > 1:
        expected.add("ClosedError")  # a slot was refused while later ones were on their way
    assert answers == expected


def test_batches_share_a_group_within_its_limits() -> None:
    queue = CommitQueue(
        "ns", slot=SLOT, lsn=LSN, point=point_of(SLOT - 1), limits=Limits(1, batches=3, nbytes=10)
    )
    for number in range(8):
        queue.admit(ticket_of(number))
    assert [len(group.tickets) for group in queue.pending] == [3, 3, 2]
    assert [ticket.lsn for ticket in queue.tickets()] == [
        *(pack_lsn(SLOT, n) for n in range(3)),
        *(pack_lsn(SLOT + 1, n) for n in range(3)),
        *(pack_lsn(SLOT + 2, n) for n in range(2)),
    ]
    assert queue.joinable(LogKind.DATA, 8) is queue.pending[-1]
    assert queue.joinable(LogKind.DATA, 9).slot == SLOT + 3  # too many bytes
    assert queue.joinable(LogKind.DATA, 2, count=2).slot == SLOT + 3  # too many batches
    for kind in (LogKind.SCHEMA, LogKind.ATTACH):
        assert queue.joinable(kind, 1).slot == SLOT + 3


def test_batches_are_taken_back_out_of_a_group_that_has_others() -> None:
    queue = queue_of(batches=2)
    queue.admit(ticket_of(0))
    kept = queue.lsn_given
    for number in (1, 2, 3):
        queue.admit(ticket_of(number))
    queue.retract(kept)
    (group,) = queue.pending
    assert [ticket.lsn for ticket in group.tickets] == [kept]
    assert (group.nbytes, group.callers) == (1, 1)
    assert list(queue.keys) == [b"0"]
    assert queue.newest is group.tickets[0]


def test_versions_of_the_caller_only_rise() -> None:
    queue = queue_of(batches=4, lsn=7)

    def admit(lsn: int) -> None:
        request = WriteRequest(batch=NO_ROWS, nbytes=1, lsn=lsn)
        queue.admit(Ticket(request, NO_ROWS, b"", nbytes=1))

    admit(9)
    for lsn in (7, 9, 1 << 63):
        with pytest.raises(InvalidInputError, match="above 9"):
            admit(lsn)
    admit(10)
    assert [ticket.lsn for ticket in queue.tickets()] == [9, 10]


def test_callers_expected_are_those_who_were_told_and_those_who_wait() -> None:
    queue = queue_of(batches=2)
    for number in range(3):
        queue.admit(ticket_of(number, callers=number))  # the first goes with the next one's caller
    group = queue.seal(queue)
    group.point = point_of(SLOT)
    assert queue.send(group)
    queue.answer(group, DURABLE)
    step = queue.settlement()
    assert step is not None
    queue.settled(step)
    assert queue.callers_expected == 0 + 1 + 2
