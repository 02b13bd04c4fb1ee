"""A store that fails: by an explicit plan, by a seeded random generator, or both.

faults = FaultyStore(store, plan=[Fault("reply_lost", on="put_if_absent", key="wal/*")])
faults.arm(Fault("error_before", on="get", nth=2, times=3))
faults = FaultyStore(store, rates={"reply_lost": 0.01}, rng=random.Random(7))
faults.fired                                     # what happened, in order
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Literal, NamedTuple, cast, get_args

from reef.clock import Clock, SystemClock
from reef.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    IncompleteError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from reef.store import ObjectMeta, Store
from reef.testing._wrapper import LIST_PAGE, OPERATIONS, Operation, T, WrapperStore

FaultKind = Literal[
    "reply_lost",  # done, then UnavailableError
    "lands_late",  # UnavailableError; done when the test calls `land`
    "conflict",  # 409: AlreadyExistsError, and nothing was created
    "false_conflict",  # done, then AlreadyExistsError: what a client that repeats would say
    "error_before",  # 500: UnavailableError, and nothing was done
    "error_after",  # 500: done, then UnavailableError
    "timeout_before",  # UnavailableError, and nothing was done
    "timeout_after",  # done, then UnavailableError
    "denied",  # 403: AccessDeniedError, and nothing was done
    "not_found",  # NotFoundError, whatever is there
    "stall",  # done, after `seconds` on the clock, or when the test calls `release`
    "short_read",  # `get` gives half of the bytes, `get_range` raises IncompleteError
    "flipped_bit",  # one bit of what was read is wrong
    "missing_entry",  # `list` leaves out the entry; the fault's `key` is the entry's
    "slow_list",  # `list` sleeps for `seconds` before each 1000 entries
]

# The other two happen to a part of a list.
_OF_REQUESTS = frozenset(get_args(FaultKind)) - {"missing_entry", "slow_list"}
_READS: tuple[Operation, ...] = ("get", "get_range")
_APPLIES: Mapping[str, tuple[Operation, ...]] = {
    "lands_late": ("put_if_absent", "put", "copy", "delete"),
    "conflict": ("put_if_absent",),
    "false_conflict": ("put_if_absent",),
    "not_found": ("get", "get_range", "head"),
    "short_read": _READS,
    "flipped_bit": _READS,
    "missing_entry": ("list",),
    "slow_list": ("list",),
}
_AFTER = {
    "reply_lost": (UnavailableError, "the connection was closed before the reply"),
    "error_after": (UnavailableError, "500 Internal Server Error"),
    "timeout_after": (UnavailableError, "no reply in time"),
    "false_conflict": (AlreadyExistsError, "412 Precondition Failed"),
}
_INSTEAD = {
    "error_before": (UnavailableError, "500 Internal Server Error"),
    "timeout_before": (UnavailableError, "no reply in time"),
    "lands_late": (UnavailableError, "no reply in time"),
    "conflict": (AlreadyExistsError, "409 Conflict"),
    "denied": (AccessDeniedError, "403 Forbidden"),
    "not_found": (NotFoundError, "404 Not Found"),
}


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, and which of the matching requests it happens to.

    `on` is an operation, or "*" for each that this fault can happen to; `key` is a pattern such as
    `wal/*`, for `list` of the prefix. It happens at the `nth` request that matches from when it was
    armed, and at the next ones, `times` in all (0: forever).
    """

    kind: FaultKind
    on: Operation | Literal["*"] = "*"
    key: str = "*"
    nth: int = 1
    times: int = 1
    seconds: float | None = None
    """For `stall` and `slow_list`: how long, on the store's clock."""
    at: int | None = None
    """For `flipped_bit`: which bit, counted from the start; without it, a random one."""

    def __post_init__(self) -> None:
        """Raises InvalidInputError for a fault that could never happen."""
        if self.kind not in get_args(FaultKind):
            allowed = "one of " + ", ".join(get_args(FaultKind))
            raise InvalidInputError.of("fault", self.kind, allowed)
        if self.on != "*" and self.on not in self.operations:
            allowed = "'*' or one of " + ", ".join(_APPLIES.get(self.kind, OPERATIONS))
            raise InvalidInputError(f"{self.kind} cannot happen on {self.on!r}: expected {allowed}")
        if self.nth < 1 or self.times < 0:
            allowed = "nth at least 1, times at least 0"
            raise InvalidInputError(f"nth = {self.nth}, times = {self.times}: expected {allowed}")
        if self.kind == "slow_list" and self.seconds is None:
            raise InvalidInputError("a slow_list needs seconds: give how long it waits")

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What this fault can happen to."""
        able = _APPLIES.get(self.kind, OPERATIONS)
        return able if self.on == "*" else tuple(name for name in able if name == self.on)

    def matches(self, operation: Operation, key: str) -> bool:
        """Return whether this request, or for `missing_entry` this entry, is one of those meant."""
        return operation in self.operations and fnmatchcase(key, self.key)


class Fired(NamedTuple):
    """A fault that happened."""

    kind: FaultKind
    operation: Operation
    key: str


@dataclass
class _Armed:
    fault: Fault
    seen: int = 0

    def strikes(self) -> bool:
        self.seen += 1
        late = self.seen - self.fault.nth
        return late >= 0 and (self.fault.times == 0 or late < self.fault.times)


class FaultyStore(WrapperStore):
    """Makes faults happen to the requests that a plan names, and at given rates to any others.

    At most one fault happens to a request, the one armed first, and those armed after it do not
    count that request: a plan of two for the same key strikes twice in a row. Rates are asked in
    the order given when the plan is silent. Safe among threads; with one thread and a seeded
    `rng`, the same faults happen again.
    """

    def __init__(
        self,
        inner: Store,
        plan: Iterable[Fault] = (),
        *,
        rates: Mapping[FaultKind | Fault, float] | None = None,
        rng: random.Random | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Raises InvalidInputError for a fault that could never happen, or rates without `rng`."""
        super().__init__(inner)
        self._lock = threading.Condition()
        self._armed: list[_Armed] = []
        self._fired: list[Fired] = []
        self._late: list[Callable[[], object]] = []
        self._stalled = 0
        self._releases = 0
        self._clock = clock or SystemClock()
        if rates and rng is None:
            raise InvalidInputError("rates are given without rng: give a random.Random")
        self._rng = rng or random.Random(0)
        self._rates = [
            (fault if isinstance(fault, Fault) else Fault(fault), rate)
            for fault, rate in (rates or {}).items()
        ]
        if any(fault.kind == "stall" and fault.seconds is None for fault, _ in self._rates):
            raise InvalidInputError(
                "a stall in rates needs its length: give Fault('stall', seconds=...)"
            )
        self.arm(*plan)

    def arm(self, *faults: Fault) -> None:
        """Add to the plan; their `nth` counts from now."""
        with self._lock:
            self._armed += map(_Armed, faults)

    def disarm(self) -> None:
        """Forget the plan and the rates, and release stalled requests."""
        with self._lock:
            self._armed.clear()
            self._rates.clear()
        self.release()

    @property
    def fired(self) -> Sequence[Fired]:
        """What has happened so far, in order."""
        with self._lock:
            return tuple(self._fired)

    def wait_for_stalled(self, count: int = 1) -> None:
        """Return when `count` requests are stalled at once."""
        with self._lock:
            self._lock.wait_for(lambda: self._stalled >= count)

    def release(self) -> None:
        """Let every request go on that is stalled now."""
        with self._lock:
            self._releases += 1
            self._lock.notify_all()

    def land(self) -> Sequence[Exception | None]:
        """Carry out what `lands_late` held back, in order; return what the store said to each."""
        with self._lock:
            late, self._late = self._late, []
        return [_outcome(call) for call in late]

    def close(self) -> None:
        self.disarm()
        super().close()

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        # Faults of the whole request strike in `_request`; here are those of a part of it.
        slow = self._strike("list", prefix, ("slow_list",))
        pause = slow.seconds if slow is not None else None
        if pause is not None:
            self._clock.sleep(pause)
        for i, entry in enumerate(super().list(prefix, start_after)):
            if pause is not None and i and i % LIST_PAGE == 0:
                self._clock.sleep(pause)
            if self._strike("list", entry.key, ("missing_entry",)) is None:
                yield entry

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        fault = self._strike(operation, key, _OF_REQUESTS)
        if fault is None:
            return call()
        where = f"{operation} of {key!r} (injected {fault.kind})"
        if fault.kind == "lands_late":
            with self._lock:
                self._late.append(call)
        if fault.kind in _INSTEAD:
            kind, why = _INSTEAD[fault.kind]
            raise kind(f"{self.url}: {why}: {where}")
        if fault.kind == "stall":
            self._stall(fault)
        result = call()
        if fault.kind in _AFTER:
            kind, why = _AFTER[fault.kind]
            raise kind(f"{self.url}: {why}: {where}")
        if operation in _READS:
            return cast(T, self._misread(operation, key, cast(bytes, result), fault))
        return result

    def _strike(self, operation: Operation, key: str, kinds: Container[FaultKind]) -> Fault | None:
        """Return the fault of one of these kinds that happens to this request, and write it down."""

        def may_happen(fault: Fault) -> bool:
            return fault.kind in kinds and fault.matches(operation, key)

        with self._lock:
            planned = (a.fault for a in self._armed if may_happen(a.fault) and a.strikes())
            by_chance = (
                f for f, rate in self._rates if may_happen(f) and self._rng.random() < rate
            )
            fault = next(chain(planned, by_chance), None)
            if fault is not None:
                self._fired.append(Fired(fault.kind, operation, key))
            return fault

    def _stall(self, fault: Fault) -> None:
        if fault.seconds is not None:
            self._clock.sleep(fault.seconds)
            return
        with self._lock:
            until = self._releases + 1
            self._stalled += 1
            self._lock.notify_all()
            self._lock.wait_for(lambda: self._releases >= until)
            self._stalled -= 1

    def _misread(self, operation: Operation, key: str, data: bytes, fault: Fault) -> bytes:
        half = len(data) // 2
        if fault.kind == "short_read":
            if operation == "get_range":
                raise IncompleteError(key, half, f"{len(data)} bytes", f"{half} (injected)")
            return data[:half]
        if fault.kind == "flipped_bit" and data:
            with self._lock:
                at = self._rng.randrange(len(data) * 8) if fault.at is None else fault.at
            wrong = bytearray(data)
            wrong[at // 8] ^= 1 << at % 8
            return bytes(wrong)
        return data


def _outcome(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 whatever the store says is the answer
        return error
    return None
