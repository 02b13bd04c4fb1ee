"""Tasks: plain functions from a small descriptor to a small result, and who runs them.

A task is a module-level function `task(context, descriptor) -> result`. Descriptor and result are
msgspec Structs and cross between processes as msgpack; payload never does, it goes through the
bucket. A task may run twice, even side by side, and may die anywhere: what it writes has names that
no other attempt uses, and counts only when its driver publishes what came back.
"""

from __future__ import annotations

import pickle
import resource
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Required, TypeAlias, TypedDict, TypeVar, Unpack

import msgspec

from reef.engine import Context
from reef.errors import InvalidInputError, ReefError
from reef.threads import for_each

D = TypeVar("D", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)
Task: TypeAlias = Callable[[Context, D], R]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with how many descriptors are done, and how many there are."""


class TaskOutcome(msgspec.Struct, Generic[R], frozen=True):
    """What came of one descriptor: a result, or the error that its task raised."""

    result: R | None
    error: ReefError | None
    seconds: float
    peak_rss_bytes: int
    """The most memory that the process had while the task ran, where the kernel tells."""
    attempt: int
    """0 for the first try; the one that came back."""

    def returned(self) -> R:
        """Return the result, or raise the task's error."""
        if self.result is None:
            assert self.error is not None
            raise self.error
        return self.result


class RunArguments(TypedDict, total=False):
    """How tasks are run."""

    name: Required[str]
    """What people see of the run."""
    weights: Sequence[int] | None
    """How much work each descriptor is, in any unit."""
    progress: Progress | None


class Runner(Protocol):
    """Runs tasks."""

    @property
    def parallelism(self) -> int:
        """How many tasks run side by side."""
        ...

    def run(
        self,
        task: Task[D, R],
        descriptors: Sequence[D],
        result: type[R],
        **how: Unpack[RunArguments],
    ) -> list[TaskOutcome[R]]:
        """Run `task` for each descriptor; return an outcome each, in their order.

        A ReefError of a task is an outcome and is not retried; anything else is retried where the
        runner can, and then raises.
        """
        ...


_LIGHT_WEIGHT_MAX = 1 << 20


class InProcess:
    """Runs tasks in this process, on a context that is given: one after the other, or light ones side by side.

    Descriptors and results go through msgpack all the same.
    """

    parallelism = 1

    def __init__(self, context: Context, *, light_tasks: int = 1) -> None:
        """Run up to `light_tasks` side by side, of less than 1 MiB each: they mostly wait for requests."""
        self._context = context
        self._light_tasks = light_tasks

    def run(
        self,
        task: Task[D, R],
        descriptors: Sequence[D],
        result: type[R],
        **how: Unpack[RunArguments],
    ) -> list[TaskOutcome[R]]:
        """Run `task` for each descriptor; whatever is no ReefError raises at once."""
        wire, payloads = TaskWire.pack(task, descriptors, result)
        progress, weights = how.get("progress"), how.get("weights")
        outcomes: dict[int, TaskOutcome[R]] = {}
        lock = threading.Lock()

        def perform(position: int) -> None:
            outcome = wire.unpack(wire.perform(self._context, payloads[position]))
            with lock:
                outcomes[position] = outcome
                if progress is not None:
                    progress(len(outcomes), len(payloads))

        is_light = weights is not None and max(weights, default=0) <= _LIGHT_WEIGHT_MAX
        width = min(self._light_tasks, len(payloads)) if is_light else 1
        for_each(range(len(payloads)), perform, width=width, threads=self._context.threads)
        return [outcomes[position] for position in range(len(payloads))]


# How descriptors and outcomes cross between processes.


class _WireOutcome(msgspec.Struct, array_like=True):
    """An outcome as it crosses: the result packed, the error pickled."""

    result: bytes | None
    error: bytes | None
    seconds: float
    peak_rss_bytes: int
    attempt: int


@dataclass(frozen=True)
class TaskWire(Generic[D, R]):
    """One kind of task, as a runner sends its descriptors away and gets outcomes back, all as bytes.

    Small, and can be pickled: the process that runs the task needs it too.
    """

    task: Task[D, R]
    descriptor: type[D]
    result: type[R]

    @classmethod
    def pack(
        cls, task: Task[D, R], descriptors: Sequence[D], result: type[R]
    ) -> tuple[TaskWire[D, R], list[bytes]]:
        """Return each descriptor packed, and what runs and unpacks them.

        Raises InvalidInputError unless all descriptors are of one class.
        """
        kinds = {type(descriptor) for descriptor in descriptors}
        if len(kinds) > 1:
            names = ", ".join(sorted(kind.__qualname__ for kind in kinds))
            raise InvalidInputError(
                f"descriptors of several classes: {names}; run those of each class by themselves"
            )
        kind: type[Any] = kinds.pop() if kinds else msgspec.Struct
        return cls(task, kind, result), [msgspec.msgpack.encode(one) for one in descriptors]

    def perform(self, context: Context, payload: bytes, *, attempt: int = 0) -> bytes:
        """Run the task for one packed descriptor; return its outcome, packed."""
        descriptor = msgspec.msgpack.decode(payload, type=self.descriptor)
        result = error = None
        _reset_peak()
        begun = context.clock.monotonic()
        try:
            result = msgspec.msgpack.encode(self.task(context, descriptor))
        except ReefError as raised:
            error = pickle.dumps(raised)
        seconds = context.clock.monotonic() - begun
        return msgspec.msgpack.encode(_WireOutcome(result, error, seconds, _peak_bytes(), attempt))

    @staticmethod
    def refuse(error: ReefError, *, attempt: int = 0) -> bytes:
        """Return the packed outcome of a task that could not begin."""
        refused = _WireOutcome(None, pickle.dumps(error), 0.0, _peak_bytes(), attempt)
        return msgspec.msgpack.encode(refused)

    def unpack(self, packed: bytes) -> TaskOutcome[R]:
        """Return the outcome that `perform` or `refuse` packed."""
        sent = msgspec.msgpack.decode(packed, type=_WireOutcome)
        return TaskOutcome(
            None if sent.result is None else msgspec.msgpack.decode(sent.result, type=self.result),
            # A process that runs our own code pickled it, and is trusted with the bucket too.
            None if sent.error is None else pickle.loads(sent.error),
            sent.seconds,
            sent.peak_rss_bytes,
            sent.attempt,
        )


def _reset_peak() -> None:
    """Reset the kernel's count of peak memory, where it can: a process runs many tasks."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _peak_bytes() -> int:
    with suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
