"""What goes wrong: processes, drivers and executors that die, tasks that run twice or late, rivals."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeVar, Unpack, get_args

import msgspec

from reef.database import Database
from reef.engine import Context
from reef.errors import UnavailableError
from reef.jobs import InProcess, RunArguments, Task, TaskOutcome, TaskWire
from reef.store import Store
from reef.testing import Operation, WrapperStore

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
T = TypeVar("T")

D = TypeVar("D", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

PUTS: tuple[Operation, ...] = ("put_if_absent", "upload")
CHANGES: tuple[Operation, ...] = (*PUTS, "delete")


class Killed(BaseException):
    """The process ends here."""


class Mortal(WrapperStore):
    """Ends its process before or after one of its requests; nothing is sent from then on.

    With `among`, it is one of those operations: requests for others are not counted.
    """

    def __init__(
        self, inner: Store, at: int, *, is_sent: bool, among: Collection[Operation] = OPERATIONS
    ) -> None:
        super().__init__(inner)
        self._left = at
        self._is_sent = is_sent
        self._among = among

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        if self._left > 0 and operation not in self._among:
            return call()
        self._left -= 1
        if self._left > 0:
            return call()
        if self._left == 0 and self._is_sent:
            call()
        raise Killed


class Interrupted(WrapperStore):
    """Lets others do something before one of its requests; with `part`, of those whose key has it."""

    def __init__(self, inner: Store, at: int, others: Callable[[], object], part: str = "") -> None:
        super().__init__(inner)
        self._left = at
        self._others = others
        self._part = part

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        if not self._part or (operation == "put_if_absent" and self._part in key):
            self._left -= 1
            if self._left == 0:
                self._others()
        return call()


class Unruly(InProcess):
    """Runs tasks in any order, some of them more than once; executors die, and some come back late.

    Of several attempts that end, any one's result counts. `late` holds attempts that are still to run,
    long after their driver is done or dead, on `alive`. `fails` is how likely a task is to end with an error of the store.
    """

    parallelism = 2

    def __init__(
        self,
        open_database: Callable[[Store], Database],
        store: Store,
        rng: random.Random,
        late: list[Callable[[], object]],
        *,
        alive: Store | None = None,
        fails: float = 0.0,
    ) -> None:
        super().__init__(open_database(store).context())
        self._open = open_database
        self._store = store
        self._rng = rng
        self._late = late
        self._alive = alive or store
        self._fails = fails
        self.failed = 0

    def run(
        self,
        task: Task[D, R],
        descriptors: Sequence[D],
        result: type[R],
        **how: Unpack[RunArguments],
    ) -> list[TaskOutcome[R]]:
        """Run each in its own way; return what came back, in their order."""
        wire, packed = TaskWire.pack(task, descriptors, result)
        order = list(range(len(packed)))
        self._rng.shuffle(order)
        progress = how.get("progress")
        outcomes: dict[int, TaskOutcome[R]] = {}
        for done, at in enumerate(order, 1):
            outcomes[at] = wire.unpack(self._attempts(wire, packed[at]))
            if progress is not None:
                progress(done, len(packed))
        return [outcomes[at] for at in range(len(packed))]

    def _attempts(self, wire: TaskWire[D, R], payload: bytes) -> bytes:
        rng = self._rng
        if rng.random() < self._fails:
            self.failed += 1
            return wire.refuse(UnavailableError("the store is away"))
        back = []
        if rng.random() < 0.2:
            mortal = Mortal(self._store, rng.randrange(1, 15), is_sent=rng.random() < 0.5)
            with suppress(Killed):
                back.append(self._once(wire, payload, self._open(mortal).context()))
        times = 1 + (rng.random() < 0.25)
        back += [self._once(wire, payload, self._context) for _ in range(times)]
        if rng.random() < 0.1:
            self._late.append(lambda: self._once(wire, payload, self._open(self._alive).context()))
        # What only a duplicate meets, such as inputs that are gone, does not count.
        sound = [one for one in back if wire.unpack(one).error is None]
        return rng.choice(sound or back)

    def _once(self, wire: TaskWire[D, R], payload: bytes, context: Context) -> bytes:
        return wire.perform(context, payload)
