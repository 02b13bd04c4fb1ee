"""Closing a database: all namespaces at once, and every one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from reef.errors import ClosedError, UnavailableError
from reef.kv import KeyValue
from reef.store import open_store
from tests.support.engine.held_puts import Gate
from tests.support.engine.open_database import contents, database
from tests.support.waiting import DEADLINE_SECONDS


def closing(kv: KeyValue, first: Callable[[], object]) -> None:
    """Have `first` run when `kv` is closed."""
    close = kv.close

    def slowly() -> None:
        first()
        close()

    kv.close = slowly  # type: ignore[method-assign]


def test_namespaces_are_closed_side_by_side() -> None:
    db = database()
    together = threading.Barrier(8)
    opened = [db.kv(f"ns{i}") for i in range(8)]
    for kv in opened:
        closing(kv, lambda: together.wait(DEADLINE_SECONDS))
    db.close()
    assert not any(kv.is_open for kv in opened)


def test_threads_that_close_are_bounded() -> None:
    db = database()
    opened = [db.kv(f"ns{i}") for i in range(100)]
    before, most = threading.active_count(), 0

    def count() -> None:
        nonlocal most
        most = max(most, threading.active_count() - before)

    for kv in opened:
        closing(kv, count)
    db.close()
    assert 0 < most <= 16
    assert not any(kv.is_open for kv in opened)


def test_a_namespace_that_cannot_be_closed_keeps_no_other_open() -> None:
    def fail() -> None:
        raise UnavailableError("the store is away")

    db = database()
    opened = [db.kv(f"ns{i}") for i in range(3)]
    closing(opened[1], fail)
    with pytest.raises(UnavailableError, match="the store is away"):
        db.close()
    assert [kv.is_open for kv in opened] == [False, True, False]
    with pytest.raises(ClosedError):
        db.kv("ns3")


def test_closing_waits_for_what_is_in_flight() -> None:
    store = open_store("memory://")
    gate = Gate(store)
    db = database(gate)
    opened = [db.kv(f"ns{i}") for i in range(4)]
    gate.is_open = False
    writers = [threading.Thread(target=kv.put, args=(b"k", b"v")) for kv in opened]
    for writer in writers:
        writer.start()
    gate.wait_until_held(4)
    closer = threading.Thread(target=db.close)
    closer.start()
    gate.is_open = True
    gate.let(4)
    for thread in (closer, *writers):
        thread.join()
    assert [contents(store, f"ns{i}") for i in range(4)] == [{b"k": b"v"}] * 4
