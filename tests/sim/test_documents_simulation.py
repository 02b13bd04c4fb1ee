"""Documents of several writers that take over from one another, under every fault, by seed.

Each write has a key, and a document of its own beside what else it writes: its marker. It was committed
if, and only if, that is there in the end, at the version of the marker. Writes that are committed, done
to a dict in that order, give what there must be; and what their clients were told must fit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from reef.database import Database
from reef.doctor import verify
from reef.documents import DocumentReceipt, Documents
from reef.errors import (
    ClosedError,
    ConditionFailedError,
    FencedError,
    InvalidInputError,
    NotWrittenError,
    OutcomeUnknownError,
    UnavailableError,
)
from reef.format import KEY, LSN
from tests.support.engine import simulated_rivals as rivals
from tests.support.engine.open_handles import handle_of
from tests.support.engine.simulated_rivals import TRIES, Handles
from tests.support.engine.write_history import Violation, check_replay
from tests.support.simulation import Process, Simulation

FIRST = int(os.environ.get("SIM_FIRST", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "200")) // 8)
NAMESPACE = "ns"
SHARED = ["a", "b", "c"]
CLAIMED = [f"claim {n}" for n in range(4)]
OWN = ["x", "y", "z"]
WRITES = 8

Names = dict[str, Any]


@dataclass(eq=False)
class Write:
    """One logical write, however often it was sent."""

    number: int
    upserts: list[Names] = field(default_factory=list)
    patches: list[Names] = field(default_factory=list)
    deletes: list[str] = field(default_factory=list)
    condition: Any = None
    holds: Callable[[dict[str, Names]], bool] = lambda documents: True
    lsn: int | None = None
    """Of its receipt."""
    is_unknown: bool = False

    @property
    def marker(self) -> str:
        return f"~{self.number:06}"

    def send(self, ns: Documents) -> DocumentReceipt:
        return ns.write(
            upserts=[{"id": self.marker, "by": self.number}, *self.upserts],
            patches=self.patches or None,
            deletes=self.deletes or None,
            condition=self.condition,
            atomic=self.condition is not None,
            idempotency_key=self.marker,
        )

    def apply(self, documents: dict[str, Names]) -> None:
        """Do it to a dict. A patch of what is not there is left out."""
        documents[self.marker] = {"id": self.marker, "by": self.number}
        for row in self.upserts:
            documents[row["id"]] = dict(row)
        for row in self.patches:
            if row["id"] in documents:
                documents[row["id"]].update(row)
        for id in self.deletes:
            documents.pop(id, None)


class DocumentsWorld(rivals.RivalsWorld):
    """One run: its processes, and what they were told."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.writes: list[Write] = []


class Client:
    """A thread that writes through its process's handle, and has another opened when that fails."""

    def __init__(
        self, world: DocumentsWorld, process: Process, handles: Handles[Documents]
    ) -> None:
        self.world = world
        self.rng = process.rng
        self.clock = process.clock
        self.handles = handles

    def live(self) -> None:
        for _ in range(WRITES):
            ns = self.handles.open()
            if ns is None:
                return
            self.attempt(ns, self.a_write(ns))
            if self.rng.random() < 0.2:
                tolerated(self.rng.choice([ns.flush, lambda ns=ns: self.alter(ns)]))  # type: ignore[misc]
            if self.rng.random() < 0.5:
                self.clock.sleep(self.rng.uniform(0, 0.5))

    def alter(self, ns: Documents) -> None:
        name = f"added {self.rng.randrange(3)}"
        with suppress(InvalidInputError):  # another client was faster
            ns.alter(drop=[name]) if name in ns.schema else ns.alter(add={name: "string"})

    def a_write(self, ns: Documents) -> Write:
        """Return something to write, by what there is."""
        write = Write(len(self.world.writes))
        self.world.writes.append(write)
        choice, own = self.rng.random(), self.rng.choice(OWN)
        if choice < 0.4:
            ids = self.rng.sample(SHARED, self.rng.randint(1, 3))
            write.upserts = [{"id": id, "by": write.number, own: write.number} for id in ids]
        elif choice < 0.55:
            write.patches = [{"id": self.rng.choice(SHARED), own: write.number}]
        elif choice < 0.65:
            write.deletes = [self.rng.choice(SHARED)]
        elif choice < 0.8:
            id = self.rng.choice(CLAIMED)
            write.upserts = [{"id": id, "by": write.number}]
            write.condition = ("id", "IsNull")
            write.holds = lambda documents: id not in documents
        else:
            found = tolerated(lambda: ns.get("counter"))
            n = found["n"] if found else 0
            write.upserts = [{"id": "counter", "n": n + 1}]
            write.condition = ("Or", [("id", "IsNull"), ("n", "Eq", n)])
            write.holds = lambda documents: documents.get("counter", {}).get("n", n) == n
        return write

    def attempt(self, ns: Documents, write: Write) -> None:
        """Send a write until it is known what became of it, or the patience is at an end."""
        for _ in range(TRIES):
            was_unknown, write.is_unknown = write.is_unknown, True  # until it is answered
            try:
                receipt = write.send(ns)
            except ConditionFailedError:
                write.is_unknown = was_unknown
                return
            except (NotWrittenError, FencedError, ClosedError) as error:
                write.is_unknown = was_unknown
                if not isinstance(error, NotWrittenError):
                    self.handles.give_up(ns)
            except (OutcomeUnknownError, UnavailableError):
                if self.rng.random() < 0.3:
                    self.handles.give_up(ns)
            else:
                if write.lsn not in (None, receipt.lsn):
                    raise Violation(f"{write} was acked at {write.lsn} and at {receipt.lsn}")
                write.lsn = receipt.lsn
                if not receipt.replayed or self.rng.random() < 0.9:
                    return
            self.clock.sleep(self.rng.uniform(0, 1))
            again = self.handles.open()
            if again is None:
                return
            ns = again


def tolerated(action: Callable[[], Any]) -> Any:
    """Return what came of it, or None if it failed as it may."""
    try:
        return rivals.tolerated(action)
    except InvalidInputError as error:
        # Two that alter at once: what one has read of the schema may be so no more.
        if "attribute = 'added" not in str(error):
            raise
        return None


def opened(db: Database, parallel: int) -> Documents:
    return db.namespace(NAMESPACE, max_parallel_writes=parallel)


def live_as_writer(world: DocumentsWorld, process: Process) -> None:
    handles = Handles(world, process, opened)
    rivals.live_as_writer(process, lambda: Client(world, process, handles).live())


# The verdict.


def check(world: DocumentsWorld, process: Process, mode: str) -> int:
    """Compare with what a fresh handle finds; return how many writes are committed."""
    db = world.database(process)
    ns = db.namespace(NAMESPACE, mode=mode)
    lsns: dict[str, int] = {}
    for batch in handle_of(ns).view().scan(columns=[]):
        ids = batch.column(KEY).to_pylist()
        for id, lsn in zip(ids, batch.column(LSN).to_pylist(), strict=True):
            if lsns.setdefault(id.decode(), lsn) != lsn:
                raise Violation(f"{id!r} is there twice")
    committed = sorted(
        (lsns[write.marker], write.number) for write in world.writes if write.marker in lsns
    )
    documents: dict[str, Names] = {}
    past = []
    for lsn, number in committed:
        write = world.writes[number]
        if not write.holds(documents):
            raise Violation(f"{write} was committed at {lsn} although its condition did not hold")
        write.apply(documents)
        past.append((lsn, {id: dict(row) for id, row in documents.items()}))
    for write in world.writes:
        found = lsns.get(write.marker)
        if write.lsn is not None and found != write.lsn:
            raise Violation(f"{write} was acked at {write.lsn} and is there at {found}")
        if write.lsn is None and found is not None and not write.is_unknown:
            raise Violation(f"{write} failed for certain and is there at {found}")
    compare("in the end", ns, documents)
    for lsn, then in process.rng.sample(past, min(5, len(past))):
        compare(f"at {lsn}", ns.at(lsn=lsn), then)
    if problems := verify(db.context(), NAMESPACE).problems:
        raise Violation(f"`reef verify` finds {problems}")
    return len(committed)


def compare(when: str, view: Any, documents: dict[str, Names]) -> None:
    rows = [row for batch in view.scan() for row in batch.to_pylist()]
    found = [{name: v for name, v in row.items() if v is not None} for row in rows]
    wanted = [documents[id] for id in sorted(documents)]
    if found != wanted:
        differing = [pair for pair in zip(found, wanted, strict=False) if pair[0] != pair[1]]
        raise Violation(f"{when} there are {len(found)} of {len(wanted)}: {differing[:3]}")
    if view.get_many([*documents]) != [*documents.values()] or view.count() != len(documents):
        raise Violation(f"{when} points and scans differ")


def run(seed: int) -> Simulation:
    return rivals.run(seed, DocumentsWorld, live_as_writer, check)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_run_is_one_that_can_be(seed: int) -> None:
    run(seed)


def test_a_run_repeats_itself() -> None:
    check_replay(run, 0)
