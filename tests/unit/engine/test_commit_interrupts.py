"""Ctrl-C on the commit path, at every line and a second time: nothing is lost, and nobody hangs."""

from __future__ import annotations

import itertools
import linecache
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import pytest

import reef
from reef.database import Database
from reef.engine._commit._log_writer import LogWriter
from reef.engine._commit._path import CommitPath
from reef.engine._commit._queue import Answer, CommitQueue, Group
from reef.engine._memtable._memtable import Memtable
from reef.errors import OutcomeUnknownError, ReefError
from reef.kv import KeyValue
from reef.store import Data, Store, open_store
from reef.testing import Fault, FaultyStore
from reef.threads import Signal, SystemThreads
from tests.support.engine.calls_beside import Beside
from tests.support.engine.held_puts import Gate
from tests.support.engine.interrupts import interrupt_next_write
from tests.support.engine.open_database import contents, database
from tests.support.engine.open_handles import commit_path, commit_queue, count_waiters
from tests.support.waiting import DEADLINE_SECONDS, until

TraceFunction: TypeAlias = Callable[[FrameType, str, object], object]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_row_that_was_not_logged_is_never_seen(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], when: str
) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    apply = Memtable.apply

    def interrupted(self: Memtable, *args: Any) -> None:
        if when == "after":
            apply(self, *args)
        raise error

    monkeypatch.setattr(Memtable, "apply", interrupted)
    with pytest.raises(error):
        kv.put(b"phantom", b"1")
    monkeypatch.undo()
    kv.put(b"b", b"2")
    kv.flush()
    assert dict(kv.items()) == contents(store) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize(
    ("owner", "where"),
    [
        *((CommitPath, "_gather"), (CommitPath, "_gather_for")),
        *((CommitQueue, "seal"), (LogWriter, "encode"), (LogWriter, "put")),
    ],
)
def test_an_interrupted_sender_leaves_its_group_to_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch, owner: type, where: str
) -> None:
    kv = database(store).kv("ns", group_commit_window=1e-3 if where == "_gather_for" else None)
    kv.put(b"a", b"1")
    commit_queue(kv).callers_expected = 2  # so that it gathers
    original = getattr(owner, where)

    def interrupted(*_: object, **__: object) -> None:
        monkeypatch.setattr(owner, where, original)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        kv.put(b"mine", b"1")
    assert isinstance(Beside(lambda: kv.put(b"other", b"2").lsn).finish(), int)
    assert dict(kv.items()) == contents(store) == {b"a": b"1", b"mine": b"1", b"other": b"2"}


class Interrupt:
    """Ctrl-C at the nth line that this thread runs in the modules of the commit path."""

    MODULES = (
        "_commit/_admission.py",
        "_commit/_path.py",
        "_commit/_queue.py",
        "_commit/_log_writer.py",
        "_commit/_dedup_index.py",
        "_memtable/_memtable_rows.py",
        "engine/_tail.py",
        "engine/_writer.py",
        "log/_replay.py",
    )

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __enter__(self) -> None:
        sys.settrace(self._enter)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    @property
    def has_struck(self) -> bool:
        return self.left <= 0

    def _enter(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        path = "/".join(Path(frame.f_code.co_filename).parts[-2:])
        return self._line if path in self.MODULES else None

    @staticmethod
    def _is_lock(frame: FrameType) -> bool:
        # A trace may raise between a block and the exit of its `with`; no signal does.
        return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()[:5] == "with "

    def _line(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        if event == "line" and not self._is_lock(frame):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._line


def test_the_modules_that_are_interrupted_exist() -> None:
    source = Path(reef.__file__).parent
    assert [module for module in Interrupt.MODULES if not [*source.rglob(module)]] == []


@pytest.mark.parametrize("trouble", ["", "refused", "unknown"])
@pytest.mark.parametrize("parallel", [1, 2])
def test_an_interrupt_at_any_line_leaves_no_trace_and_hangs_nobody(
    parallel: int, trouble: str
) -> None:
    for nth in itertools.count(1):
        store = open_store("memory://")
        faulty = FaultyStore(store)
        kv = database(faulty).kv("ns", max_parallel_writes=parallel)
        kv.put(b"a", b"1")
        if trouble == "refused":
            faulty.arm(Fault("denied", on="put_if_absent", key="*/wal/*"))
        elif trouble == "unknown":
            faulty.arm(Fault("reply_lost", on="put_if_absent", key="*/wal/*"))
            faulty.arm(Fault("error_before", on="get", key="*/wal/*", times=1))
        interrupt = Interrupt(nth)
        was_interrupted = False
        try:
            with interrupt:
                kv.put(b"mine", b"2", idempotency_key="k")
        except KeyboardInterrupt:
            was_interrupted = True
        except ReefError:
            assert trouble
        other = Beside(lambda kv=kv: kv.put(b"other", b"3").lsn).finish()  # type: ignore[misc]
        if not isinstance(other, int):  # the fault has waited for it
            assert trouble
            assert isinstance(Beside(lambda kv=kv: kv.put(b"other", b"3").lsn).finish(), int)  # type: ignore[misc]
        kv.put(b"mine", b"2", idempotency_key="k")
        expected = {b"a": b"1", b"mine": b"2", b"other": b"3"}
        assert dict(kv.items()) == contents(store) == expected, f"line {nth}"
        kv.flush()
        assert contents(store) == expected, f"line {nth}"
        kv.close()
        if not was_interrupted and interrupt.left > 0:
            break
    assert nth > 100


def test_an_interrupt_at_any_line_of_a_flush_keeps_nobody_from_flushing() -> None:
    for nth in itertools.count(1):
        store = open_store("memory://")
        kv = database(store).kv("ns")
        kv.put(b"a", b"1")
        interrupt = Interrupt(nth)
        was_interrupted = False
        try:
            with interrupt:
                kv.flush()
        except KeyboardInterrupt:
            was_interrupted = True
        assert Beside(kv.flush).finish() is None
        assert contents(store) == {b"a": b"1"}, f"line {nth}"
        assert Beside(kv.close).finish() is None
        if not was_interrupted and interrupt.left > 0:
            break
    assert nth > 20


def test_closing_sends_what_nobody_waits_for_any_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = database(store)
    kv = db.kv("ns")
    interrupt_next_write(monkeypatch, db)
    with pytest.raises(KeyboardInterrupt):
        kv.put(b"a", b"1")
    assert Beside(kv.close).finish() is None
    assert contents(store) == {b"a": b"1"}


# A second Ctrl-C, while the first one's work is handed over.


class SecondInterrupt:
    """Ctrl-C at the nth line of the first hand-over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
        self.interrupt = Interrupt(nth)
        hand_over = CommitPath._hand_over

        def interrupted(path: CommitPath, *work: object) -> None:
            monkeypatch.setattr(CommitPath, "_hand_over", hand_over)
            with self.interrupt:
                path._hand_over(*work)  # type: ignore[arg-type]

        monkeypatch.setattr(CommitPath, "_hand_over", interrupted)


class InterruptibleThreads(SystemThreads):
    """Threads, of which one is interrupted as it begins to wait for its batch."""

    def __init__(self) -> None:
        self.interrupted = 0
        """The thread; 0: none."""

    def signal(self) -> Signal:
        if threading.get_ident() != self.interrupted:
            return super().signal()
        self.interrupted = 0
        return _Interrupted()


class _Interrupted:
    """A signal whose wait ends with Ctrl-C."""

    def wait(self) -> None:
        raise KeyboardInterrupt

    def give(self) -> None:
        pass


@pytest.mark.parametrize("where", ["encode", "put"])
@pytest.mark.parametrize("parallel", [1, 2])
def test_a_second_interrupt_at_any_line_of_the_hand_over_leaves_the_group_to_the_others(
    parallel: int, where: str
) -> None:
    original = getattr(LogWriter, where)
    for nth in itertools.count(1):
        store = open_store("memory://")
        kv = database(store).kv("ns", max_parallel_writes=parallel)
        kv.put(b"a", b"1")
        with pytest.MonkeyPatch.context() as patch:

            def interrupted(*_: object, patch: pytest.MonkeyPatch = patch) -> None:
                patch.setattr(LogWriter, where, original)
                raise KeyboardInterrupt

            patch.setattr(LogWriter, where, interrupted)
            second = SecondInterrupt(patch, nth).interrupt
            with pytest.raises(KeyboardInterrupt):
                kv.put(b"mine", b"2")
            assert isinstance(Beside(lambda kv=kv: kv.put(b"other", b"3").lsn).finish(), int)  # type: ignore[misc]
        assert dict(kv.items()) == contents(store) == {b"a": b"1", b"mine": b"2", b"other": b"3"}
        kv.close()
        if not second.has_struck:
            break
    assert nth > 5


def test_a_second_interrupt_of_a_waiter_keeps_nobody_from_being_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal that a waiter left behind would be woken in place of one that still waits."""
    for nth in itertools.count(1):
        gate = Gate(open_store("memory://"))
        threads = InterruptibleThreads()
        kv = database(gate, threads=threads).kv("ns", max_parallel_writes=1)
        gate.is_open = False
        sender = Beside(lambda kv=kv: kv.put(b"sender", b"1").lsn)  # type: ignore[misc]
        gate.wait_until_held()
        threads.interrupted = threading.get_ident()
        with pytest.MonkeyPatch.context() as patch:
            second = SecondInterrupt(patch, nth).interrupt
            with pytest.raises(KeyboardInterrupt):
                kv.put(b"left", b"2")
        waiter = Beside(lambda kv=kv: kv.put(b"waiter", b"3").lsn)  # type: ignore[misc]
        until(lambda kv=kv: count_waiters(kv) == 1)  # type: ignore[misc]
        gate.is_open = True
        gate.let()
        assert isinstance(sender.finish(), int)
        assert isinstance(waiter.finish(), int)
        assert contents(gate) == {b"sender": b"1", b"left": b"2", b"waiter": b"3"}
        kv.close()
        if not second.has_struck:
            break
    assert nth > 5


def test_an_interrupt_at_any_line_after_the_put_keeps_nobody_waiting() -> None:
    """The sender wakes the others: a signal that it has taken and not given would be lost."""
    for nth in itertools.count(1):
        store = BeforePut(open_store("memory://"))
        kv = database(store).kv("ns", max_parallel_writes=1)
        interrupt = Interrupt(sys.maxsize)
        others: list[Beside] = []

        def join(
            kv: KeyValue = kv,
            interrupt: Interrupt = interrupt,
            others: list[Beside] = others,
            nth: int = nth,
        ) -> None:
            trace = sys.gettrace()
            sys.settrace(None)
            others += [Beside(lambda i=i: kv.put(b"other %d" % i, b"2").lsn) for i in range(2)]  # type: ignore[misc]
            until(lambda: count_waiters(kv) == 2)
            interrupt.left = nth
            sys.settrace(trace)

        store.before_put = join
        try:
            with interrupt:
                kv.put(b"mine", b"1")
        except KeyboardInterrupt:
            assert interrupt.has_struck
        answers = [other.finish() for other in others]
        assert all(isinstance(answer, int | ReefError) for answer in answers), f"line {nth}"
        written = [b"other %d" % i for i, answer in enumerate(answers) if isinstance(answer, int)]
        assert {*contents(store)} >= {*written}
        kv.close()
        if not interrupt.has_struck:
            break
    assert nth > 20


class BeforePut(FaultyStore):
    """Calls something once, before the next object is put."""

    before_put: Callable[[], None] | None = None

    def put_if_absent(self, key: str, data: Data) -> None:
        before, self.before_put = self.before_put, None
        if before is not None:
            before()
        super().put_if_absent(key, data)


# Work that interrupted callers have left.


def test_a_write_that_waits_for_room_sends_what_an_interrupted_caller_left(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for that batch, and no flush can fold it: it would fill the memory for good."""
    db, kv = full_memory(store)
    interrupt_next_write(monkeypatch, db)
    with pytest.raises(KeyboardInterrupt):
        kv.put(b"left", bytes(12_000))
    assert isinstance(Beside(lambda: kv.put(b"other", bytes(12_000)).lsn).finish(), int)
    assert list(contents(store)) == [b"left", b"other"]
    kv.close()


def full_memory(store: Store) -> tuple[Database, KeyValue]:
    """Return a database, and a namespace of it whose memory one row of 12,000 bytes fills."""
    settings = {"memtable_max_bytes": "24KiB", "flush_threshold_bytes": "1MiB", "flush_interval": 0}
    db = database(store)
    return db, db.kv("ns", **settings)


def test_an_interrupt_at_any_line_of_sending_it_leaves_it_to_the_next_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    push = CommitPath.push
    for nth in itertools.count(1):
        store = open_store("memory://")
        db, kv = full_memory(store)
        with pytest.MonkeyPatch.context() as patch:
            interrupt_next_write(patch, db)
            with pytest.raises(KeyboardInterrupt):
                kv.put(b"left", bytes(12_000))
        interrupt = Interrupt(nth)

        def interrupted(path: CommitPath, interrupt: Interrupt = interrupt) -> None:
            with interrupt:
                push(path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CommitPath, "push", interrupted)
            try:
                kv.put(b"mine", bytes(12_000))
            except KeyboardInterrupt:
                assert interrupt.has_struck
        assert isinstance(Beside(lambda kv=kv: kv.put(b"other", bytes(12_000)).lsn).finish(), int)  # type: ignore[misc]
        assert {*contents(store)} >= {b"left", b"other"}
        kv.close()
        if not interrupt.has_struck:
            break
    assert nth > 20


# Asking again for a slot whose outcome is unknown.


def unknown_outcome(store: Store, **settings: object) -> KeyValue:
    """Return a namespace of whose last write, of b"x", nobody knows whether it is durable."""
    faulty = FaultyStore(store)
    kv = database(faulty).kv("ns", **settings)
    faulty.arm(Fault("reply_lost", on="put_if_absent", key="*/wal/*"))
    faulty.arm(Fault("error_before", on="get", key="*/wal/*"))
    with pytest.raises(OutcomeUnknownError):
        kv.put(b"x", b"1")
    return kv


@pytest.mark.parametrize("parallel", [1, 2])
def test_an_interrupt_at_any_line_of_asking_again_lets_the_next_caller_ask(parallel: int) -> None:
    for nth in itertools.count(1):
        store = open_store("memory://")
        kv = unknown_outcome(store, max_parallel_writes=parallel)
        interrupt = Interrupt(nth)
        try:
            with interrupt:
                commit_path(kv).settle_unknown()
        except KeyboardInterrupt:
            assert interrupt.has_struck
        assert isinstance(Beside(lambda kv=kv: kv.put(b"other", b"2").lsn).finish(), int)  # type: ignore[misc]
        assert dict(kv.items()) == contents(store) == {b"x": b"1", b"other": b"2"}, f"line {nth}"
        assert Beside(kv.close).finish() is None
        if not interrupt.has_struck:
            break
    assert nth > 20


def test_callers_that_wait_for_an_interrupted_asker_ask_themselves(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = unknown_outcome(store)
    put = LogWriter.put
    asking, go = threading.Event(), threading.Event()

    def interrupted(self: LogWriter, group: Group) -> Answer:
        monkeypatch.setattr(LogWriter, "put", put)
        asking.set()
        assert go.wait(DEADLINE_SECONDS)
        raise KeyboardInterrupt

    monkeypatch.setattr(LogWriter, "put", interrupted)
    asker = Beside(lambda: kv.put(b"asker", b"2"))
    assert asking.wait(DEADLINE_SECONDS)
    others = [Beside(lambda i=i: kv.put(b"other %d" % i, b"3").lsn) for i in range(3)]  # type: ignore[misc]
    go.set()
    assert isinstance(asker.finish(), KeyboardInterrupt)
    assert all(isinstance(other.finish(), int) for other in others)
    assert {*contents(store)} == {b"x", b"other 0", b"other 1", b"other 2"}
