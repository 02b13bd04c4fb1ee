"""Calls from SQLite: a number comes back, whatever is raised, and wherever Ctrl-C comes."""

from __future__ import annotations

import _thread
import asyncio
import operator
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import apsw
import pytest

import reef.sqlite
from reef.errors import NotFoundError
from reef.sqlite import _interrupts
from reef.sqlite._database_file import NONE, RESERVED, SHARED, DatabaseFile
from reef.sqlite._interrupts import (
    all_through,
    defer_interrupts,
    guarded,
    restore_interrupts,
)
from reef.sqlite._registry import registry
from reef.sqlite._shared import SharedStore
from reef.sqlite._vfs_apsw import ApswFile
from tests.support.engine.open_database import database
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _listens() -> Iterator[None]:
    """Python's own handler is in place, also where whoever started the tests ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    defer_interrupts()
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(call: Callable[[], object]) -> object:
    """Return what a call returns that meets Ctrl-C at its entry; it comes, but only after the call."""
    answers: list[object] = []
    with pytest.raises(KeyboardInterrupt):
        # No Python stands between the two, which could meet it before.
        answers.extend(map(operator.call, (_thread.interrupt_main, call)))
        while True:  # the test's time limit ends this, if it never comes
            time.sleep(0.001)
    assert len(answers) == 2, "Ctrl-C came before the call was through"
    return answers[1]


def test_ctrl_c_ends_a_statement_that_reads_no_pages() -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        is_in_sqlite = lambda: sys._current_frames()[main].f_code is execute.__code__  # noqa: E731
        begun.wait()
        until(is_in_sqlite)
        signal.pthread_kill(main, signal.SIGINT)

    def execute() -> None:
        connection.execute(
            "WITH RECURSIVE c(x) AS (SELECT begun() UNION ALL SELECT x + 1 FROM c)"
            " SELECT count(*) FROM c"
        ).fetchall()

    begun = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    with database() as db:
        connection = reef.sqlite.connect("app.db", database=db)
        connection.create_scalar_function("begun", lambda: begun.set() or 1)
        with pytest.raises(KeyboardInterrupt):
            execute()
        thread.join()
        assert connection.execute("SELECT 1").get == 1
        connection.close()


def test_what_is_raised_becomes_a_number() -> None:
    seen: list[BaseException] = []

    def failed(error: BaseException) -> int:
        seen.append(error)
        return 10

    assert guarded(lambda a, b: a // b, failed)(7, 2) == 3
    assert guarded(lambda a, b: a // b, failed)(7, 0) == 10
    assert isinstance(seen[0], ZeroDivisionError)


def test_ctrl_c_at_the_entry_comes_after_the_call() -> None:
    assert interrupted(guarded(lambda: 7, lambda _: 10)) == 7


@pytest.mark.parametrize(("again", "number"), [(False, 10), (True, 7)])
def test_ctrl_c_in_what_is_called_becomes_a_number(again: bool, number: int) -> None:
    calls: list[int] = []

    def call() -> int:
        calls.append(1)
        if len(calls) == 1:
            _thread.interrupt_main()
        return 7

    assert guarded(call, lambda _: 10, again=again)() == number
    assert len(calls) == 1 + again


def test_a_second_ctrl_c_waits_until_the_first_has_become_a_number() -> None:
    steps: list[str] = []

    @all_through
    def failed(_: BaseException) -> int:
        _thread.interrupt_main()
        steps.append("told")
        return 10

    def call() -> int:
        raise OSError("no")

    with pytest.raises(KeyboardInterrupt):
        steps.append(str(guarded(call, failed)()))
        while True:
            time.sleep(0.001)
    assert steps == ["told", "10"]


def test_ctrl_c_at_the_entry_of_a_commit_leaves_it_committed() -> None:
    with database() as db:
        inner = DatabaseFile(SharedStore(db, "app.db"), read_only=False)
        file = ApswFile(inner)
        for level in (SHARED, RESERVED):
            inner.lock(level)
        inner.write(b"page".ljust(4096), 0)
        assert interrupted(partial(file.xFileControl, apsw.SQLITE_FCNTL_COMMIT_PHASETWO, 0)) is True
        inner.unlock(NONE)
        with db.pages("app.db", mode="r") as pages:
            page = pages.get_page(0)
            assert page is not None
            assert page.startswith(b"page")


def test_ctrl_c_at_the_entry_of_an_unlock_leaves_nothing_locked() -> None:
    with database() as db:
        inner = DatabaseFile(SharedStore(db, "app.db"), read_only=False)
        file = ApswFile(inner)
        for level in (SHARED, RESERVED):
            inner.lock(level)
        interrupted(partial(file.xUnlock, NONE))
        assert (inner.level, inner.is_reserved()) == (NONE, False)


def test_a_handler_of_the_program_stays() -> None:
    mine = signal.signal(signal.SIGINT, lambda *_: None)
    handler = signal.getsignal(signal.SIGINT)
    defer_interrupts()
    assert signal.getsignal(signal.SIGINT) is handler
    assert mine is not handler


@pytest.fixture
def nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """No database is open yet, and `sqlite3` knows of none."""
    monkeypatch.setattr(registry, "_open", {})
    monkeypatch.setattr(_interrupts, "_is_for_good", False)
    restore_interrupts()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("nothing_open")
def test_the_last_database_that_is_closed_gives_pythons_own_handler_back() -> None:
    first, second = (reef.sqlite.connect(f"memory://ctrl-c/{i}.db") for i in range(2))
    first.close()
    assert signal.getsignal(signal.SIGINT) is _interrupts._interrupt
    second.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    third = reef.sqlite.connect("memory://ctrl-c/0.db")
    assert signal.getsignal(signal.SIGINT) is _interrupts._interrupt
    third.close()


@pytest.mark.usefixtures("nothing_open")
def test_a_database_that_cannot_be_opened_leaves_pythons_own_handler() -> None:
    with pytest.raises(NotFoundError):
        reef.sqlite.connect("memory://ctrl-c-nothing/app.db", mode="r")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("nothing_open")
def test_sqlite3_needs_the_handler_for_good() -> None:
    defer_interrupts(for_good=True)
    reef.sqlite.connect("memory://ctrl-c-for-good/app.db").close()
    assert signal.getsignal(signal.SIGINT) is _interrupts._interrupt


@pytest.mark.usefixtures("nothing_open")
def test_another_thread_leaves_the_handler_alone() -> None:
    with ThreadPoolExecutor(1) as pool:
        connection = pool.submit(reef.sqlite.connect, "memory://ctrl-c-thread/app.db").result()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        pool.submit(connection.close).result()


@pytest.mark.usefixtures("nothing_open")
def test_asyncio_cancels_its_task_first_only_while_no_database_is_open() -> None:
    seen: list[type[BaseException]] = []

    async def work() -> None:
        try:
            _thread.interrupt_main()
            await asyncio.sleep(3600)
        except BaseException as error:
            seen.append(type(error))
            raise

    connection = reef.sqlite.connect("memory://ctrl-c-asyncio/app.db")
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    connection.close()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())
    assert seen == [KeyboardInterrupt, asyncio.CancelledError]
