"""The lives of the kernel's simulation: whoever works on one namespace, and what each was told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from reef.database import Database
from reef.engine import CreateOnly, Receipt, change_settings
from reef.errors import DamagedError, FencedError, InvariantError, NotWrittenError, ReefError
from reef.gc import collect
from reef.jobs import InProcess
from reef.kv import KeyValue, KeyValueSnapshot, KeyValueView
from reef.manifest import release_snapshot as without_snapshot
from reef.testing import Operation, WrapperStore
from tests.support.engine.attaching import begin_load, upload
from tests.support.engine.open_handles import context_of, writer_of
from tests.support.engine.write_history import (
    EVERYTHING,
    FAILED_FOR_CERTAIN,
    Violation,
    Write,
    WriteHistory,
)
from tests.support.jobs.compactor import Compactor, Run
from tests.support.jobs.passes import index
from tests.support.simulation import Process, Simulation

NAMESPACE = "ns"
KEYS = [b"k%d" % i for i in range(6)]
PARALLEL = (1, 2, 8)
TRIES = 4

BUGS = (InvariantError, DamagedError)
"""What no fault of the network excuses: nothing is damaged where it lies."""

T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """What a run is about: each kind looks for trouble elsewhere."""

    writers: tuple[int, ...]
    clients: tuple[int, ...]
    openings: tuple[int, ...]
    writes: int
    """How often a client writes, or does something else, until it ends."""
    parallel: tuple[int, ...]
    pause: float
    """How long a client thinks at most between two writes."""
    faults: tuple[float, ...]
    slow: tuple[float, ...]
    readers: tuple[int, ...]
    collections: tuple[int, ...]
    compactors: tuple[int, ...]
    strikes: tuple[int, ...]
    dozes: float
    """How often somebody falls asleep before a request."""
    naps: tuple[float, ...]
    closes: float
    """How often a writer closes its handle, before it opens another one or ends."""
    settings: Mapping[str, tuple[object, ...]]


@dataclass
class Taken:
    """A snapshot that somebody was promised."""

    id: str
    lsn: int
    rows: dict[bytes, bytes]


@dataclass
class Open:
    """A write of which nobody knows what came of it; with its token anybody may send it again."""

    write: Write
    token: bytes
    is_new: bool
    is_load: bool


@dataclass
class KernelWorld:
    """One run: its processes, and what they were told."""

    sim: Simulation
    history: WriteHistory
    shape: Shape
    settings: dict[str, Any]
    taken: list[Taken] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)
    writers: list[Process] = field(default_factory=list)
    others: list[Process] = field(default_factory=list)
    values: int = 0

    def database(self, process: Process, **settings: object) -> Database:
        return Database(
            Dozing(process, self.shape),
            clock=process.clock,
            rng=process.rng,
            threads=process.threads,
            **{"maintenance": "off", **self.settings, **settings},
        )

    def value(self) -> bytes:
        self.values += 1
        return b"v%d" % self.values


class Dozing(WrapperStore):
    """The store of somebody who falls asleep now and then, just before a request."""

    def __init__(self, process: Process, shape: Shape) -> None:
        super().__init__(process.store)
        self._process = process
        self._shape = shape

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        rng = self._process.rng
        if rng.random() < self._shape.dozes:
            self._process.clock.sleep(rng.choice(self._shape.naps) * rng.random())
        return call()


class RepeatableRunner(InProcess):
    """Reports no time and no memory, which the record of a pass would hold: they never repeat."""

    def run(self, *args: Any, **options: Any) -> Any:
        outcomes = super().run(*args, **options)
        return [msgspec.structs.replace(one, seconds=0.0, peak_rss_bytes=0) for one in outcomes]


def tolerated(action: Callable[[], T]) -> T | None:
    """Return what came of it, or None if it failed as it may."""
    try:
        return action()
    except BUGS:
        raise
    except ReefError:
        return None


def opened(
    world: KernelWorld, process: Process, open_it: Callable[[], KeyValue]
) -> KeyValue | None:
    for _ in range(TRIES):
        kv = tolerated(open_it)
        if kv is not None:
            return kv
        process.clock.sleep(process.rng.uniform(0, 2))
    return None


# Writers.


def live_as_writer(world: KernelWorld, process: Process, *, openings: int) -> None:
    """Open, let clients write, and open again when another has taken over."""
    shape = world.shape
    for _ in range(openings):
        process.clock.sleep(process.rng.uniform(0, 4 * shape.pause))
        parallel = process.rng.choice(shape.parallel)
        db = world.database(process, max_parallel_writes=parallel)
        kv = opened(world, process, lambda db=db: db.kv(NAMESPACE))  # type: ignore[misc]
        if kv is None:
            return
        clients = process.rng.choice(shape.clients)
        started = [
            process.threads.start(
                lambda n=n, kv=kv: Client(world, process, kv, f"{process.name}.{n}").live(
                    shape.writes
                ),  # type: ignore[misc]
                name=f"client-{n}",
            )
            for n in range(clients)
        ]
        for client in started:
            client.join()
        if process.rng.random() < shape.closes:
            tolerated(kv.close)


class Client:
    """A thread that writes through a handle that others use as well, and reads what it wrote."""

    def __init__(self, world: KernelWorld, process: Process, kv: KeyValue, name: str) -> None:
        self.world = world
        self.process = process
        self.rng = process.rng
        self.kv = kv
        self.name = name
        self.is_fenced = False
        self.acked_lsn = 0
        """The highest that this handle told this client of: it can't show less from then on."""

    def live(self, writes: int) -> None:
        for _ in range(writes):
            choice = self.rng.random()
            if choice < 0.65:
                self.write()
            elif choice < 0.75:
                tolerated(self.kv.flush)
            elif choice < 0.95:
                self.read()
            elif len(self.world.taken) < 2:
                take_snapshot(self.world, self.kv)
            else:
                release_snapshot(self.world, self.process)
            if self.is_fenced:
                return
            if self.rng.random() < 0.5:
                self.process.clock.sleep(self.rng.uniform(0, self.world.shape.pause))

    def write(self) -> None:
        """Write something; or again what it, or somebody who died, does not know the outcome of."""
        world, history = self.world, self.world.history
        if world.open and self.rng.random() < 0.3:
            again = self.rng.choice(world.open)
            history.retry(again.write, self.sender(again.token, again.is_new, again.is_load))
            return
        some = self.rng.sample(KEYS, self.rng.randrange(1, 4))
        deletes = some[1:] if self.rng.random() < 0.3 else []
        puts = {key: world.value() for key in some if key not in deletes}
        is_new = not deletes and self.rng.random() < 0.2
        is_load = not is_new and self.rng.random() < 0.2
        token = b"%032x" % self.rng.getrandbits(128) if self.rng.random() < 0.6 else None
        send = self.sender(token, is_new, is_load)
        expects = dict.fromkeys(puts) if is_new else None
        write = history.attempt(self.name, send, puts, deletes, expects=expects)
        while write.fate == "unknown" and token is not None and self.rng.random() < 0.5:
            self.process.clock.sleep(self.rng.uniform(0, 1.0))
            history.retry(write, send)
        if write.fate != "unknown" and self.rng.random() < 0.8:
            world.open = [other for other in world.open if other.write is not write]

    def sender(self, token: bytes | None, is_new: bool, is_load: bool) -> Callable[[Write], int]:
        """Return what sends a write; who comes after may send it again if it has a token."""

        def send(write: Write) -> int:
            condition = CreateOnly() if is_new else None
            if token is not None and all(other.write is not write for other in self.world.open):
                self.world.open.append(Open(write, token, is_new, is_load))
            try:
                if is_load:
                    receipt = self.load(write, token)
                else:
                    receipt = self.kv.write(
                        write.puts, write.deletes, condition=condition, idempotency_key=token
                    )
            except FencedError:
                self.is_fenced = True
                raise
            self.acked_lsn = max(self.acked_lsn, receipt.lsn)
            return receipt.lsn

        return send

    def load(self, write: Write, token: bytes | None) -> Receipt:
        """Write by attaching segments: new ones each time, as a load that is tried again does."""
        context, writer = context_of(self.kv), writer_of(self.kv)
        rows: dict[bytes, bytes | None] = {**write.puts, **dict.fromkeys(write.deletes)}
        ordered = sorted(rows)
        cut = self.rng.randrange(len(ordered))
        try:
            job = begin_load(context, NAMESPACE)
            refs = [
                upload(context, job, {key: rows[key] for key in part})
                for part in (ordered[:cut], ordered[cut:])
                if part
            ]
        except BUGS:
            raise
        except ReefError as error:
            raise NotWrittenError(f"nothing was attached: {error}") from error
        try:
            receipt = writer.attach(refs, idempotency_key=token)
        except FAILED_FOR_CERTAIN:
            tolerated(job.end)  # the segments may be collected: nothing will ever name them
            raise
        tolerated(job.end)
        return receipt

    def read(self) -> None:
        """Read the newest through the writer: all that this client was told of is there."""
        acked, key = self.acked_lsn, self.rng.choice(KEYS)

        def get() -> bool:
            self.world.history.record_read(
                f"{self.name} of its writer", None, {key: self.kv.get(key)}, min_lsn=acked
            )
            return True

        def scan() -> bool:
            lsn = self.kv.lsn
            rows = dict(self.kv.at(lsn=lsn).items())
            self.world.history.record_read(
                f"{self.name} of its writer", lsn, rows, span=EVERYTHING, min_lsn=acked
            )
            return True

        tolerated(self.rng.choice((get, scan)))


def take_snapshot(world: KernelWorld, kv: KeyValue) -> KeyValueSnapshot | None:
    """Take a snapshot, and remember what it must show from now on."""

    def taken() -> KeyValueSnapshot:
        acked = world.history.acked_lsn()
        snapshot = kv.snapshot(ttl=None)
        rows = dict(snapshot.items())
        world.taken.append(Taken(snapshot.id, snapshot.lsn, rows))
        # A writer that was fenced knows no newer version than its own.
        floor = acked if kv._reader is not None else 0
        name = f"snapshot {snapshot.id}"
        world.history.record_read(name, snapshot.lsn, rows, span=EVERYTHING, min_lsn=floor)
        return snapshot

    return tolerated(taken)


def release_snapshot(world: KernelWorld, process: Process) -> None:
    """Let a snapshot go: as soon as that is begun, nothing is promised any more."""
    taken = world.taken.pop(process.rng.randrange(len(world.taken)))
    chain = world.database(process).context().chain(NAMESPACE)
    tolerated(lambda: chain.publish(lambda head: without_snapshot(head.manifest, taken.id)))


# Readers.


def live_as_reader(world: KernelWorld, process: Process, *, rounds: int) -> None:
    """Follow the namespace, and look back."""
    kv = opened(
        world, process, lambda: world.database(process).kv(NAMESPACE, mode="r", max_staleness="2s")
    )
    if kv is None:
        return
    rng = process.rng
    for number in range(rounds):
        choice = rng.random()
        if choice < 0.5:
            tolerated(lambda: follow(world, process, kv))
        elif choice < 0.65:
            key = rng.choice(KEYS)
            tolerated(lambda key=key: note(world, process, {key: kv.get(key)}))  # type: ignore[misc]
        elif choice < 0.85:
            lsn = rng.randrange(kv.lsn + 1)
            name = f"{process.name} back {number}"
            tolerated(lambda lsn=lsn, name=name: look_back(world, name, kv.at(lsn=lsn)))  # type: ignore[misc]
        elif choice < 0.92 and world.taken:
            look_at_snapshot(world, rng.choice(world.taken), kv)
        elif world.taken:
            release_snapshot(world, process)
        else:
            take_snapshot(world, kv)
        process.clock.sleep(rng.choice((0.1, 1.0, 30.0)) * rng.random())


def live_as_prober(world: KernelWorld, process: Process, *, rounds: int) -> None:
    """Look for the end of the log slowly, while it grows, is folded and taken over."""
    rng, pause = process.rng, world.shape.pause
    slow = Dozing(process, replace(world.shape, dozes=0.2, naps=(4 * pause,)))
    for _ in range(rounds):
        process.clock.sleep(rng.uniform(0, pause))
        db = Database(slow, clock=process.clock, rng=rng, threads=process.threads, **world.settings)
        tolerated(lambda db=db: db.kv(NAMESPACE, mode="r"))  # type: ignore[misc]


def note(world: KernelWorld, process: Process, rows: dict[bytes, bytes | None]) -> bool:
    world.history.record_read(process.name, None, rows)
    return True


def follow(world: KernelWorld, process: Process, kv: KeyValue) -> bool:
    """Refresh and read everything: all that anybody was told of before is there."""
    acked = world.history.acked_lsn()
    lsn = kv.refresh()
    rows = dict(kv.at(lsn=lsn).items())
    world.history.record_read(process.name, lsn, rows, span=EVERYTHING, min_lsn=acked)
    return True


def look_back(world: KernelWorld, name: str, view: KeyValueView) -> bool:
    world.history.record_read(name, view.lsn, dict(view.items()), span=EVERYTHING)
    return True


def look_at_snapshot(world: KernelWorld, taken: Taken, kv: KeyValue) -> None:
    """A snapshot shows the same for ever, to everybody."""

    def look() -> None:
        view = kv.at(snapshot=taken.id)
        if view.lsn != taken.lsn or dict(view.items()) != taken.rows:
            raise Violation(f"snapshot {taken.id} at {taken.lsn} has changed")

    tolerated(look)


# Jobs.


def live_as_collector(world: KernelWorld, process: Process, *, rounds: int) -> None:
    for _ in range(rounds):
        process.clock.sleep(process.rng.uniform(0, 30))
        context = world.database(process).context()
        if process.rng.random() < 0.3:
            grace = {"gc_grace": process.rng.choice((1, 20, 300))}
            tolerated(
                lambda context=context, grace=grace: change_settings(  # type: ignore[misc]
                    context.chain(NAMESPACE), grace
                )
            )
        tolerated(
            lambda context=context: collect(  # type: ignore[misc]
                context.chain(NAMESPACE),
                context.store,
                settings=context.settings,
                clock=process.clock,
                threads=process.threads,
                apply=True,
            )
        )


def live_as_compactor(world: KernelWorld, process: Process, *, rounds: int) -> None:
    rng = process.rng

    def choose(runs: list[Run]) -> list[Run]:
        first = rng.randrange(max(1, len(runs)))
        return runs[first : first + rng.randrange(1, 5)]

    for _ in range(rounds):
        process.clock.sleep(rng.uniform(0, 20))
        context = world.database(process).context()
        compactor = Compactor(context, NAMESPACE)
        floor = rng.randrange(world.history.acked_lsn() + 1) if rng.random() < 0.3 else None
        if rng.random() < 0.3:
            tolerated(lambda context=context: index(context, NAMESPACE, RepeatableRunner(context)))  # type: ignore[misc]
        else:
            tolerated(
                lambda compactor=compactor, floor=floor: compactor.run(  # type: ignore[misc]
                    floor_lsn=floor, choose=choose, cuts=rng.randrange(1, 3)
                )
            )


def live_as_nemesis(world: KernelWorld, process: Process, *, strikes: int) -> None:
    """Kill some, put others to sleep; often somebody else takes over."""
    rng = process.rng
    for number in range(strikes):
        process.clock.sleep(rng.uniform(0, 15))
        everybody = [*world.writers, *world.writers, *world.others]
        victim = rng.choice([process for process in everybody if not process.is_killed])
        if rng.random() < 0.7:
            victim.pause(rng.choice(world.shape.naps) * rng.random())
        else:
            victim.kill()
        if victim in world.writers and rng.random() < 0.7:
            again = world.sim.process(f"writer-again-{number}")
            world.writers.append(again)
            again.start(lambda again=again: live_as_writer(world, again, openings=1))  # type: ignore[misc]
