"""Named points in the protocols of the kernel, and processes that end, or fall asleep, exactly there.

A process opens the bucket through a `PointStore` and arms it with a point; the request that the
point names kills the process, before it is sent or after it was carried out. `tests` start such
processes with `crash`, and look at what they left with `fresh`, each in a process of its own.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeVar

from typing_extensions import Buffer

from reef.clock import Clock, SystemClock
from reef.database import Database
from reef.errors import FencedError
from reef.kv import KeyValue
from reef.store import Store, open_store
from reef.testing import Operation, WrapperStore
from tests.support.engine.collecting import collect_garbage
from tests.support.jobs.compactor import Compactor
from tests.support.waiting import until

T = TypeVar("T")
NAMESPACE = "ns"
BIG = 14 << 20
"""Bytes of a segment that is uploaded in parts: S3 has them at 5 MiB."""


@dataclass(frozen=True)
class Point:
    """A place in a protocol: at the nth request of a kind to a folder of the namespace."""

    when: Literal["before", "after", "during"]
    operation: Operation
    folder: str = ""


POINTS = {
    "before wal put": Point("before", "put_if_absent", "wal"),
    "after wal put": Point("after", "put_if_absent", "wal"),
    "before segment upload": Point("before", "upload", "segments"),
    "during segment upload": Point("during", "upload", "segments"),
    "after segment upload": Point("after", "upload", "segments"),
    "after dedup upload": Point("after", "upload", "dedup"),
    "before manifest put": Point("before", "put_if_absent", "manifest"),
    "after manifest put": Point("after", "put_if_absent", "manifest"),
    "before delete": Point("before", "delete"),
    "after delete": Point("after", "delete"),
}


class PointStore(WrapperStore):
    """Ends its process at the point that it is armed with, or stops it there until it is woken.

    Log PUTs that are in flight at once can be made to arrive in slot order (`in_order`), or so that
    the lowest never does (`lowest_last`): what is left is then the same each time.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._cond = threading.Condition()
        self._point: Point | None = None
        self._left = 0
        self._how = signal.SIGKILL
        self._order = ""
        self._slots: list[str] = []
        self.requests = 0

    def arm(
        self,
        name: str,
        nth: int = 1,
        *,
        how: signal.Signals = signal.SIGKILL,
        order: Literal["", "in_order", "lowest_last"] = "",
    ) -> None:
        """From now on, the nth request that `POINTS[name]` describes is the one."""
        with self._cond:
            self._point, self._left, self._how = POINTS[name], nth, how
            self._order, self._slots = order, []

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        if self._is_here("during", "upload", key):
            parts = self._interrupted(parts)
        super().upload(key, parts)

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        with self._cond:
            self.requests += 1
        if self._is_here("before", operation, key):
            self._end()
        if not self._order or operation != "put_if_absent" or "/wal/" not in key:
            result = call()
        else:
            self._wait_for_turn(key)
            result = call()
        if self._is_here("after", operation, key):
            self._end()
        self._done(key)
        return result

    def _is_here(self, when: str, operation: Operation, key: str) -> bool:
        with self._cond:
            point = self._point
            if point is None or (point.when, point.operation) != (when, operation):
                return False
            if point.folder and f"/{point.folder}/" not in key:
                return False
            self._left -= 1
            if self._left:
                return False
            if self._how != signal.SIGKILL:
                self._point = None  # whoever wakes up goes on
            return True

    def _end(self) -> None:
        # To this very thread, so that it does not get any further.
        signal.pthread_kill(threading.get_ident(), self._how)
        while self._how == signal.SIGKILL:
            time.sleep(1)  # until it is over

    def _interrupted(self, parts: Iterable[Buffer]) -> Iterator[Buffer]:
        """Yield nearly all parts, then end: some of them have been sent by then."""
        held = [bytes(part) for part in parts]
        assert len(held) >= 4, "too small to be interrupted"
        yield from held[:-1]
        self._end()
        yield held[-1]

    def _wait_for_turn(self, key: str) -> None:
        """Let log PUTs through in the order that was asked for, once all of them are there."""
        with self._cond:
            self._slots.append(key)
            self._cond.notify_all()
            while len(self._slots) < PARALLEL_MAX:
                self._cond.wait()
            self._slots.sort()
            if self._order == "lowest_last":
                while key == self._slots[0]:
                    self._cond.wait()
            else:
                while self._slots[0] != key:
                    self._cond.wait()

    def _done(self, key: str) -> None:
        with self._cond:
            if self._order == "in_order" and key in self._slots:
                # The list keeps its length: who has arrived stays counted.
                self._slots = [*self._slots[1:], "~"]
                self._cond.notify_all()


PARALLEL_MAX = 8


class SkewedClock(SystemClock):
    """A machine whose clock is wrong."""

    def __init__(self, seconds: float) -> None:
        self._skew_us = round(seconds * 1e6)

    def now_us(self) -> int:
        return super().now_us() + self._skew_us


class Scene:
    """What a process has at hand: the bucket through a `PointStore`, and its parent to talk to."""

    def __init__(
        self, url: str, told: Connection, settings: dict[str, object], skew: float
    ) -> None:
        self.store = PointStore(open_store(url))
        clock: Clock = SkewedClock(skew) if skew else SystemClock()
        self.db = Database(self.store, clock=clock, rng=random.SystemRandom(), **settings)
        self._told = told
        self._lock = threading.Lock()

    def open(self, parallel: int = 1, **settings: object) -> KeyValue:
        """Open the namespace for writing, each batch in a log object of its own."""
        return self.db.kv(
            NAMESPACE, max_parallel_writes=parallel, group_commit_max_batches=1, **settings
        )

    def tell(self, *message: object) -> None:
        """Send something to the parent."""
        with self._lock:
            self._told.send(message)

    def hear(self) -> Any:
        """Wait for something from the parent."""
        return self._told.recv()

    def put(self, kv: KeyValue, name: bytes, *, key: bytes | None = None) -> None:
        """Write the batch `name` and tell what came of it."""
        self.tell("try", name)
        try:
            receipt = kv.write(rows_of(name), idempotency_key=key)
        except FencedError:
            self.tell("fenced", name)
        else:
            self.tell("ack", name, receipt.lsn, receipt.replayed)

    def put_together(self, kv: KeyValue, names: Iterable[bytes]) -> None:
        """Write batches from as many threads."""
        threads = [threading.Thread(target=self.put, args=(kv, name)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def collect(self) -> None:
        """Collect garbage once."""
        context = self.db.context()
        collect_garbage(context, NAMESPACE)

    def compactor(self) -> Compactor:
        """Return a compactor of the namespace."""
        return Compactor(self.db.context(), NAMESPACE)


def rows_of(name: bytes) -> dict[bytes, bytes]:
    """Return the rows of a batch: some of its own, and one that every batch writes."""
    return {b"%s/%d" % (name, n): name * 20 for n in range(3)} | {b"hot": name}


def big_rows() -> dict[bytes, bytes]:
    """Return rows that nothing can compress, enough for an upload in parts."""
    rng = random.Random(1)
    return {b"big/%03d" % n: rng.randbytes(1 << 18) for n in range(BIG >> 18)}


# Processes.

Body = Callable[..., object]


LOADED = ["numpy.ma", "reef.database", "reef.gc"]
LOADED += ["tests.support.crash.writer_scenes", "tests.support.crash.rival_writers"]


@functools.cache
def forking() -> multiprocessing.context.ForkServerContext:
    """Return the context to start processes in: forked from a server that has the engine loaded."""
    # One that other tests have started has loaded less, and keeps to that.
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    start = multiprocessing.get_context("forkserver")
    start.set_forkserver_preload(LOADED)
    return start


class Child:
    """A process that runs `body(scene, *args)`. Use it as a context manager."""

    def __init__(
        self, url: str, body: Body, *args: object, skew: float = 0.0, **settings: object
    ) -> None:
        start = forking()
        self._told, child = start.Pipe()
        self._process = start.Process(target=_run, args=(url, child, settings, skew, body, args))
        self._process.start()
        child.close()
        self.heard: list[tuple[Any, ...]] = []

    def until(self, kind: str) -> tuple[Any, ...]:
        """Return the next message of that kind."""
        while True:
            message: tuple[Any, ...] = self._told.recv()
            self.heard.append(message)
            if message[0] == kind:
                return message

    def say(self, message: object) -> None:
        """Send something to the process."""
        self._told.send(message)

    def wait_until_asleep(self) -> None:
        """Return when the process has stopped itself."""
        stat = Path(f"/proc/{self._process.pid}/stat")
        until(
            lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T", "a process to stop itself"
        )

    def wake(self) -> None:
        """Let a process that stopped itself go on."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> int | None:
        """Wait until the process has ended, take in what it told, and return its exit code."""
        while True:
            try:
                self.heard.append(self._told.recv())
            except (EOFError, ConnectionResetError):
                break
        self._process.join()
        return self._process.exitcode

    def all(self, kind: str) -> list[tuple[Any, ...]]:
        """Return what was told of that kind, without its name."""
        return [message[1:] for message in self.heard if message[0] == kind]

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._told.close()


def crash(url: str, body: Body, *args: object, **how: Any) -> Child:
    """Run a process that has to end by SIGKILL at its point; return it, with what it told."""
    with Child(url, body, *args, **how) as child:
        assert child.end() == -signal.SIGKILL, "nothing was killed"
    return child


def fresh(url: str, body: Callable[..., T], *args: object, **how: Any) -> T:
    """Run `body(scene, *args)` in a process of its own and return what it returns."""
    with Child(url, body, *args, **how) as child:
        code = child.end()
        assert code == 0, f"it ended with {code}; see above"
        (result,) = child.all("result")
    return result[0]  # type: ignore[no-any-return]


def _run(
    url: str,
    told: Connection,
    settings: dict[str, object],
    skew: float,
    body: Body,
    args: tuple[object, ...],
) -> None:
    scene = Scene(url, told, settings, skew)
    scene.tell("result", body(scene, *args))
