"""Racing creators: teams of threads and of processes, and the rule that judges a round.

A round is one name that every racer tries to create at the same moment, each with its own bytes and
through `reef.store.create`, as a commit does. Afterwards the object is read: its bytes, and not
what the racers were told, say who won.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import multiprocessing
import random
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Self, TypeAlias

from reef.clock import Clock, SystemClock
from reef.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    ReefError,
    UnavailableError,
)
from reef.settings import Settings
from reef.store._base import Store
from reef.store._check._probe import Probe, ViolationError, require

PROCESSES_MAX = 4
_LEAVE_SECONDS_MAX = 10.0
# A server that looks for the name before it has read the body races longer with a large one.
_BYTES = (1 << 10, 32 << 10)


class RaceOutcome(enum.Enum):
    """What `create` told a racer."""

    WON = "won"
    LOST = "lost"
    UNKNOWN = "unknown"
    FAILED = "failed"


@dataclass(frozen=True)
class RaceAttempt:
    """One racer's part in one round. Bytes are named by their digest."""

    author: int
    outcome: RaceOutcome
    wrote: bytes
    found: bytes = b""
    """What it lost to."""
    why: str = ""


Race: TypeAlias = Callable[[str, int], Sequence[RaceAttempt]]
"""Lets every racer of a team create a key at once, with so many bytes; returns all their answers."""


@dataclass(frozen=True)
class RaceResult:
    """What a number of rounds showed."""

    rounds: int
    undecided: int
    """Rounds in which no outcome was certain."""
    unknown: int
    """Racers that were left without a certain outcome."""
    violations: Sequence[str]
    """What a store that can back a log never does, a line for each such round."""


def digest(data: bytes) -> bytes:
    """Return what stands for `data` when racers are compared."""
    return hashlib.sha256(data).digest()


def run_rounds(
    store: Store, race: Race, keys: Iterable[str], on_round: Callable[[int], None]
) -> RaceResult:
    """Race once for each key, and judge each round by what the store holds afterwards."""
    number = undecided = unknown = 0
    violations = []
    for number, key in enumerate(keys, start=1):
        attempts = race(key, _BYTES[number % len(_BYTES)])
        unknown += len(_attempts_with(RaceOutcome.UNKNOWN, attempts))
        problem = judge_answers(attempts)
        if not problem:
            try:
                final = _final(store, key)
            except UnavailableError:
                undecided += 1
            else:
                undecided += final is None
                problem = judge_bytes(attempts, final)
        if problem:
            violations.append(f"round {number}: {problem}")
        on_round(number)
    return RaceResult(number, undecided, unknown, violations)


def judge_rounds(result: RaceResult, racers: int) -> str:
    """Return what was seen, in words. Raises ViolationError if that is not what a log needs."""
    unknown = f"; outcomes unknown: {result.unknown}" if result.unknown else ""
    if result.violations:
        raise ViolationError(
            f"{len(result.violations)} of {result.rounds} rounds went wrong; "
            f"{result.violations[0]}{unknown}"
        )
    decided = result.rounds - result.undecided
    require(
        2 * decided > result.rounds,
        f"only {decided} of {result.rounds} rounds were decided{unknown}",
    )
    return f"{decided} rounds of {racers}: one winner each, and its bytes stay{unknown}"


def judge_answers(attempts: Sequence[RaceAttempt]) -> str:
    """Return what is wrong with what the racers of one round were told, or ""."""
    if failed := _attempts_with(RaceOutcome.FAILED, attempts):
        return f"racer {failed[0].author}: {failed[0].why}"
    winners = len(_attempts_with(RaceOutcome.WON, attempts))
    if winners > 1:
        return f"{winners} of {len(attempts)} racers were told that they created the object"
    if not winners and not _attempts_with(RaceOutcome.UNKNOWN, attempts):
        return "nobody created the object, and every racer was told that it exists"
    return ""


def judge_bytes(attempts: Sequence[RaceAttempt], final: bytes | None) -> str:
    """Return how `final`, what the store holds, contradicts what the racers were told, or ""."""
    winner = next(iter(_attempts_with(RaceOutcome.WON, attempts)), None)
    losers = _attempts_with(RaceOutcome.LOST, attempts)
    if final is None:
        if winner:
            return f"racer {winner.author} created the object, and it is not there"
        return f"racer {losers[0].author} lost to an object that is not there" if losers else ""
    author = next((a for a in attempts if a.wrote == final), None)
    if author is None:
        return "the object holds the bytes of none of the racers"
    if winner and winner is not author:
        return (
            f"racer {winner.author} was told that it created the object, "
            f"and the bytes are those of racer {author.author}"
        )
    if author.outcome is RaceOutcome.LOST:
        return f"racer {author.author} was told that it lost, and the bytes are its own"
    if replaced := [a for a in losers if a.found != final]:
        return f"racer {replaced[0].author} lost to an object that has been replaced since"
    return ""


def _attempts_with(outcome: RaceOutcome, attempts: Sequence[RaceAttempt]) -> list[RaceAttempt]:
    return [a for a in attempts if a.outcome is outcome]


def _final(store: Store, key: str) -> bytes | None:
    try:
        return digest(store.get(key))
    except NotFoundError:
        return None


@dataclass(frozen=True)
class _Racer:
    """One creator with a number, and a probe whose randomness is its own."""

    author: int
    probe: Probe

    def create(self, key: str, size: int, start: threading.Barrier) -> RaceAttempt:
        data = self.probe.new_data(size)
        wrote = digest(data)
        start.wait()
        try:
            self.probe.create(key, data)
        except ConflictError as error:
            return RaceAttempt(self.author, RaceOutcome.LOST, wrote, digest(error.found))
        except OutcomeUnknownError as error:
            return RaceAttempt(self.author, RaceOutcome.UNKNOWN, wrote, why=error.why)
        except InvalidInputError:
            raise
        except ReefError as error:
            return RaceAttempt(self.author, RaceOutcome.FAILED, wrote, why=str(error))
        return RaceAttempt(self.author, RaceOutcome.WON, wrote)


class ThreadTeam:
    """Racers that are threads of this process."""

    def __init__(
        self, store: Store, seeds: Sequence[int], settings: Settings, clock: Clock, first: int = 1
    ) -> None:
        """Use one racer for each seed, numbered from `first`."""
        self._racers = [
            _Racer(
                author,
                Probe(store, "", settings=settings, clock=clock, rng=random.Random(seed)),
            )
            for author, seed in enumerate(seeds, start=first)
        ]
        self._start = threading.Barrier(len(seeds))
        self._pool = ThreadPoolExecutor(len(seeds), thread_name_prefix="reef-racer")

    def race(self, key: str, size: int) -> Sequence[RaceAttempt]:
        return list(
            self._pool.map(lambda racer: racer.create(key, size, self._start), self._racers)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Return when no racer has a request under way any more."""
        self._start.abort()
        self._pool.shutdown(cancel_futures=True)


class ProcessTeam:
    """Racers shared out among processes of their own, each with its own client of the store.

    The processes end by themselves when this one is gone: their pipe ends.
    """

    def __init__(self, store: Store, seeds: Sequence[int], settings: Settings) -> None:
        """Share out one racer for each seed. The processes start when the context is entered."""
        context = multiprocessing.get_context("spawn")
        count = min(PROCESSES_MAX, len(seeds))
        self._pipes: list[Connection] = []
        self._theirs: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        for i in range(count):
            ours, theirs = context.Pipe()
            share = range(i * len(seeds) // count, (i + 1) * len(seeds) // count)
            process = context.Process(
                target=_serve,
                args=(theirs, store, [seeds[n] for n in share], settings, share.start + 1),
                name=f"reef-racers-{i}",
                daemon=True,
            )
            self._pipes.append(ours)
            self._theirs.append(theirs)
            self._processes.append(process)

    def __enter__(self) -> Self:
        try:
            self._start()
            for i in range(len(self._pipes)):
                self._receive(i)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        # Ctrl-C goes to the whole process group: the racers must leave it to this process from
        # their first instruction on, and a signal blocked now stays blocked in what is started.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for process, theirs in zip(self._processes, self._theirs, strict=True):
                process.start()
                theirs.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def race(self, key: str, size: int) -> Sequence[RaceAttempt]:
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):  # receiving says more
                pipe.send((key, size))
        return [attempt for i in range(len(self._pipes)) for attempt in self._receive(i)]

    def _receive(self, i: int) -> Sequence[RaceAttempt]:
        try:
            answer: Sequence[RaceAttempt] | ReefError = self._pipes[i].recv()
        except (EOFError, ConnectionResetError):
            self._processes[i].join(_LEAVE_SECONDS_MAX)
            raise UnavailableError(
                f"a racing process ended early with exit code {self._processes[i].exitcode}; "
                "look above for its last words, and run the check again"
            ) from None
        if isinstance(answer, ReefError):
            raise answer
        return answer

    def __exit__(self, *_: object) -> None:
        """Return when no racer has a request under way any more, or has been given time to end."""
        for pipe in (*self._pipes, *self._theirs):
            pipe.close()
        for process in self._processes:
            if process.pid is None:
                continue  # never started
            process.join(_LEAVE_SECONDS_MAX)
            if process.exitcode is None:
                process.kill()
                process.join()
            process.close()


def _serve(
    pipe: Connection, store: Store, seeds: Sequence[int], settings: Settings, first: int
) -> None:
    """Race whenever the pipe says so, until it ends."""
    with store, ThreadTeam(store, seeds, settings, SystemClock(), first) as team:
        answer: Sequence[RaceAttempt] | ReefError = ()
        try:
            while True:
                pipe.send(answer)
                key, size = pipe.recv()
                try:
                    answer = team.race(key, size)
                except ReefError as error:
                    answer = error
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
