"""What can happen to a request between a simulated process and the bucket, and how likely it is."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from reef.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotWrittenError,
    ReefError,
    UnavailableError,
)
from reef.testing import Operation

SimulatedFault = Literal[
    "reply_lost",  # done, then UnavailableError
    "lands_late",  # UnavailableError; done much later
    "lands_twice",  # done and said so; done once more, much later
    "conflict",  # 409: AlreadyExistsError, and nothing was created
    "false_conflict",  # done, then AlreadyExistsError: what a client that repeats would say
    "not_written",  # NotWrittenError, and nothing was done
    "error_before",  # 500: UnavailableError, and nothing was done
    "error_after",  # 500: done, then UnavailableError
    "timeout_before",  # UnavailableError after a long time, and nothing was done
    "timeout_after",  # done, then UnavailableError after a long time
    "short_read",  # `get` gives half of the bytes, `get_range` raises IncompleteError; once
    "flipped_bit",  # one bit of what was read is wrong; once
]
"""As of `reef.testing.FaultKind`, where the names are the same. "Once": the same actor's next reading
of that object is right, because two wrong ones in a row are damage, and not a fault of the network."""

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
FAULTS: tuple[SimulatedFault, ...] = get_args(SimulatedFault)
MISREADS = ("short_read", "flipped_bit")
NOT_DONE = ("conflict", "not_written", "error_before", "timeout_before")

_CHANGES: tuple[Operation, ...] = ("put_if_absent", "upload", "delete", "put", "copy")
_APPLIES: Mapping[SimulatedFault, tuple[Operation, ...]] = {
    "lands_late": _CHANGES,
    "lands_twice": ("put_if_absent",),
    "conflict": ("put_if_absent",),
    "false_conflict": ("put_if_absent",),
    "not_written": ("put_if_absent", "upload", "put", "copy"),
    "short_read": ("get", "get_range"),
    "flipped_bit": ("get", "get_range"),
}
_TOLD: Mapping[str, tuple[type[ReefError], str]] = {
    "reply_lost": (UnavailableError, "the connection was closed before the reply"),
    "lands_late": (UnavailableError, "the connection was closed before the reply"),
    "conflict": (AlreadyExistsError, "409 Conflict"),
    "false_conflict": (AlreadyExistsError, "412 Precondition Failed"),
    "not_written": (NotWrittenError, "507 Insufficient Storage"),
    "error_before": (UnavailableError, "500 Internal Server Error"),
    "error_after": (UnavailableError, "500 Internal Server Error"),
    "timeout_before": (UnavailableError, "no reply in time"),
    "timeout_after": (UnavailableError, "no reply in time"),
}


@dataclass(frozen=True)
class Network:
    """How long requests take and what goes wrong with them. Times are in (virtual) seconds.

    Each way takes a time from `latency`, short ones and long ones as likely on a logarithmic scale;
    at the rate `slow`, one from `slow_latency`. What is not answered after `timeout` raises
    UnavailableError, and may be carried out all the same. `rates` are per request that the fault
    can happen to.
    """

    rates: Mapping[SimulatedFault, float] = field(default_factory=dict)
    latency: tuple[float, float] = (0.0005, 0.02)
    slow: float = 0.0
    slow_latency: tuple[float, float] = (0.1, 40.0)
    timeout: float = 30.0
    late: tuple[float, float] = (0.1, 7200.0)
    """How long after the error was reported `lands_late` lands, and the second time of `lands_twice`."""

    def __post_init__(self) -> None:
        """Raises InvalidInputError for a fault that there is not, or a rate or a time that can't be."""
        for kind, rate in self.rates.items():
            if kind not in FAULTS:
                raise InvalidInputError.of("fault", kind, "one of " + ", ".join(FAULTS))
            if not 0 <= rate <= 1:
                raise InvalidInputError.of(f"rate of {kind}", rate, "from 0 to 1")
        for name in ("latency", "slow_latency", "late"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise InvalidInputError.of(name, (low, high), "0 < shortest <= longest, in seconds")
        for operation in OPERATIONS:
            total = sum(self.rates[kind] for kind in self.rates if _applies(kind, operation))
            if total > 1:
                raise InvalidInputError.of(f"rates for {operation}", total, "at most 1 together")

    @classmethod
    def swarm(cls, rng: random.Random, rate_max: float = 0.3) -> Network:
        """Return a network of its own character: some faults never, others often, at any speed.

        Up to `rate_max` of all requests go wrong. Runs that each lack some faults find more than
        runs that all have all of them.
        """
        weights = {kind: rng.random() for kind in FAULTS if rng.random() < 0.5}
        share = rng.uniform(0, rate_max) / max(1.0, sum(weights.values()))
        longest = 0.0005 * 1000 ** rng.random()
        return cls(
            rates={kind: weight * share for kind, weight in weights.items()},
            latency=(0.0005, longest),
            slow=rng.choice((0.0, 0.0, 0.01, 0.1)),
        )

    def draw(self, operation: Operation, rng: random.Random) -> SimulatedFault | None:
        """Return what goes wrong with a request, if anything does."""
        if not self.rates:
            return None
        at = rng.random()
        for kind, rate in self.rates.items():
            if _applies(kind, operation):
                at -= rate
                if at < 0:
                    return kind
        return None

    def way_us(self, rng: random.Random) -> int:
        """Return how long a request or a reply is under way."""
        span = self.slow_latency if self.slow and rng.random() < self.slow else self.latency
        return between_us(span, rng)


def _applies(kind: SimulatedFault, operation: Operation) -> bool:
    return operation in _APPLIES.get(kind, OPERATIONS)


def between_us(span: tuple[float, float], rng: random.Random) -> int:
    """Return a time from `span`, evenly on a logarithmic scale; at least a microsecond."""
    low, high = span
    return max(1, int(low * (high / low) ** rng.random() * 1_000_000))


def told(kind: str, where: str) -> ReefError | None:
    """Return what the client of a request with that fault is told; None: whatever the store said."""
    if kind not in _TOLD:
        return None
    error, why = _TOLD[kind]
    return error(f"{why}: {where} (simulated {kind})")
