"""Callbacks from C: a number comes back, whatever is raised, and wherever Ctrl-C comes."""

from __future__ import annotations

import _thread
import operator
import signal
from collections.abc import Iterator
from functools import partial

import apsw
import pytest

from reef.sqlite._file import NONE, RESERVED, SHARED, DatabaseFile
from reef.sqlite._guard import guarded
from reef.sqlite._shared import SharedStore
from reef.sqlite._vfs_apsw import ApswFile
from tests.support.kernel import database


@pytest.fixture(autouse=True)
def _listens() -> Iterator[None]:
    """Ctrl-C counts here, also where whoever started the tests has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(call: object) -> list[object]:
    """Call with Ctrl-C pending, and no Python in between that could meet it before."""
    return list(map(operator.call, (_thread.interrupt_main, call)))  # type: ignore[arg-type]


def test_what_is_raised_becomes_a_number() -> None:
    seen: list[BaseException] = []

    def failed(error: BaseException) -> int:
        seen.append(error)
        return 10

    assert guarded(lambda a, b: a // b, failed)(7, 2) == 3
    assert guarded(lambda a, b: a // b, failed)(7, 0) == 10
    assert isinstance(seen[0], ZeroDivisionError)


@pytest.mark.parametrize(("again", "number"), [(False, 10), (True, 0)])
def test_ctrl_c_at_the_entry_becomes_a_number(again: bool, number: int) -> None:
    calls: list[int] = []

    def call() -> int:
        calls.append(1)
        return 0

    run = guarded(call, lambda _: 10, again=again)
    assert interrupted(run) == [None, number]
    assert len(calls) == again


def test_ctrl_c_at_the_entry_of_a_commit_is_an_io_error_to_sqlite() -> None:
    with database() as db:
        file = ApswFile(DatabaseFile(SharedStore(db, "app.db"), read_only=False))
        with pytest.raises(KeyboardInterrupt) as caught:
            interrupted(partial(file.xFileControl, apsw.SQLITE_FCNTL_COMMIT_PHASETWO, 0))
        assert isinstance(caught.value, apsw.IOError)


def test_ctrl_c_at_the_entry_of_an_unlock_leaves_nothing_locked() -> None:
    with database() as db:
        inner = DatabaseFile(SharedStore(db, "app.db"), read_only=False)
        file = ApswFile(inner)
        for level in (SHARED, RESERVED):
            inner.lock(level)
        with pytest.raises(KeyboardInterrupt):
            interrupted(partial(file.xUnlock, NONE))
        assert (inner.level, inner.is_reserved()) == (NONE, False)
