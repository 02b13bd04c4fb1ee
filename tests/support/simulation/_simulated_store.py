"""A store on the other side of a simulated network.

A request is a message. It is sent, carried out when it arrives, and answered; its sender, its arrival
and its answer each can fail without the others. So a killed process's PUT may still land, a paused
one's lands while it is paused, and one that was reported as failed can land hours later.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from typing_extensions import Buffer

from reef.errors import IncompleteError, UnavailableError
from reef.store import Data, ObjectMeta, Store, bytes_of
from reef.testing import Operation, WrapperStore
from tests.support.simulation._network import (
    MISREADS,
    NOT_DONE,
    Network,
    SimulatedFault,
    between_us,
    told,
)
from tests.support.simulation._scheduler import Actor, Scheduler

T = TypeVar("T")

if TYPE_CHECKING:
    from tests.support.simulation._process import Process

InFlight = Literal["dropped", "landed", "late"]
"""What becomes of a request that a killed process has sent: never, just before, or some time after."""
IN_FLIGHT: tuple[InFlight, ...] = get_args(InFlight)


@dataclass(eq=False)
class Flight:
    """One request under way."""

    actor: str
    request: str
    call: Callable[[], Any]
    is_dropped: bool = False
    is_done: bool = False
    result: Any = None
    error: Exception | None = None

    def carry_out(self, scheduler: Scheduler, note: str = "") -> None:
        """Do what was asked for; keep what the store said."""
        try:
            self.result = self.call()
            said = _said(self.result)
        except Exception as error:  # noqa: BLE001 whatever the store says is the answer
            self.error = error
            said = type(error).__name__
        self.is_done = True
        scheduler.record(self.actor, self.request, f"{said}{note}")


class SimulatedStore(WrapperStore):
    """The bucket as one process reaches it. Outside of `run` there is no network: it is asked directly."""

    def __init__(
        self,
        inner: Store,
        scheduler: Scheduler,
        process: Process,
        network: Callable[[], Network],
        *,
        list_page: int,
    ) -> None:
        super().__init__(inner)
        self.flights: list[Flight] = []
        """What was sent and has neither arrived nor been answered."""
        self._scheduler = scheduler
        self._process = process
        self._network = network
        self._list_page = list_page
        self._misread: dict[tuple[Actor, str], None] = {}

    def put_if_absent(self, key: str, data: Data) -> None:
        sent = bytes_of(data)
        self._ask("put_if_absent", key, lambda: self.inner.put_if_absent(key, sent), _shown(sent))

    def put(self, key: str, data: Buffer) -> None:
        sent = bytes(data)
        self._ask("put", key, lambda: cast(Any, self.inner).put(key, sent), _shown(sent))

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        sent = b"".join(parts)
        self._ask("upload", key, lambda: self.inner.upload(key, [sent]), _shown(sent))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        what = f" {start}+{length}"
        return self._ask("get_range", key, lambda: self.inner.get_range(key, start, length), what)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        while True:
            what = f" after {start_after}" if start_after else ""
            ask = partial(self._page, prefix, start_after)
            page = self._ask("list", prefix, ask, what)
            yield from page
            if len(page) < self._list_page:
                return
            start_after = page[-1].key

    def leave_in_flight(self, fate: InFlight | None) -> None:
        """Decide what becomes of what a killed process has under way: `fate`, or by chance."""
        rng = self._scheduler.rng
        for flight in self.flights:
            if flight.is_done:
                continue
            flight.is_dropped = True
            chosen = fate or rng.choice(IN_FLIGHT)
            self._scheduler.record(
                flight.actor, flight.request, f"in flight of a killed process: {chosen}"
            )
            if chosen == "landed":
                flight.carry_out(self._scheduler)
            elif chosen == "late":
                again = Flight(flight.actor, flight.request, flight.call)
                self._land_later(again, between_us(self._network().late, rng))
        self.flights.clear()

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        return self._ask(operation, key, call, "")

    def _ask(self, operation: Operation, key: str, call: Callable[[], T], what: str) -> T:
        scheduler = self._scheduler
        actor = scheduler.enter(self._process)
        if actor is None:
            return call()
        flight = Flight(actor.name, f"{operation} {key}{what}", call)
        fault = self._network().draw(operation, scheduler.rng)
        if fault in MISREADS and (actor, key) in self._misread:
            fault = None
        self._send(actor, flight, fault)
        self.flights.append(flight)
        scheduler.park(actor, flight.request)
        if flight in self.flights:
            self.flights.remove(flight)
        error = told(fault, flight.request) if fault else None
        if error is None and not flight.is_done:
            error = UnavailableError(f"no reply in time: {flight.request} (simulated)")
        if error is not None:
            scheduler.record(actor.name, flight.request, f"told {error}")
            raise error
        if flight.error is not None:
            raise flight.error
        if operation in ("get", "get_range"):
            return cast(T, self._read(actor, operation, key, flight.result, fault))
        return cast(T, flight.result)

    def _page(self, prefix: str, after: str) -> Sequence[ObjectMeta]:
        return [*islice(self.inner.list(prefix, after), self._list_page)]

    def _send(self, actor: Actor, flight: Flight, fault: SimulatedFault | None) -> None:
        """Put the message, and what comes back, into the queue of what will happen."""
        scheduler, network = self._scheduler, self._network()
        rng = scheduler.rng
        there, back = network.way_us(rng), network.way_us(rng)
        patience = int(network.timeout * 1_000_000)
        answered = min(there + back, patience)
        if fault in ("timeout_before", "timeout_after"):
            answered = patience
        if fault == "lands_late":
            answered = rng.choice((answered, patience))
            self._land_later(flight, answered + between_us(network.late, rng))
        elif fault not in NOT_DONE:
            # What is answered after it was done, arrives before the answer.
            there = there if fault is None else min(there, answered - 1)
            scheduler.call(there, lambda: self._arrive(flight))
        if fault == "lands_twice":
            again = Flight(flight.actor, flight.request, flight.call)
            self._land_later(again, answered + between_us(network.late, rng))
        scheduler.wake(actor, answered)

    def _arrive(self, flight: Flight) -> None:
        if not flight.is_dropped:
            flight.carry_out(self._scheduler)

    def _land_later(self, flight: Flight, delay_us: int) -> None:
        def land() -> None:
            if not flight.is_dropped:
                flight.carry_out(self._scheduler, " (landed late)")

        self._scheduler.call(delay_us, land)

    def _read(
        self,
        actor: Actor,
        operation: Operation,
        key: str,
        data: bytes,
        fault: SimulatedFault | None,
    ) -> bytes:
        """Return what was read, or something else, once."""
        if fault not in MISREADS or not data:
            if self._misread:
                self._misread.pop((actor, key), None)
            return data
        self._misread[actor, key] = None
        self._scheduler.record(actor.name, f"{operation} {key}", f"simulated {fault}")
        if fault == "flipped_bit":
            at = int(self._scheduler.rng.random() * len(data) * 8)
            wrong = bytearray(data)
            wrong[at // 8] ^= 1 << at % 8
            return bytes(wrong)
        half = len(data) // 2
        if operation == "get_range":
            raise IncompleteError(key, half, f"{len(data)} bytes", f"{half} (simulated)")
        return data[:half]


def _shown(data: bytes) -> str:
    """Return what tells these bytes from others, in a trace."""
    return f" [{len(data)} B, {zlib.crc32(data):08x}]"


def _said(result: object) -> str:
    if isinstance(result, bytes):
        return f"{len(result)} B, {zlib.crc32(result):08x}"
    if isinstance(result, list):
        return f"{len(result)} entries, to {result[-1].key}" if result else "no entries"
    if isinstance(result, ObjectMeta):
        return f"{result.size} B of {result.last_modified_us}"
    return "done"
