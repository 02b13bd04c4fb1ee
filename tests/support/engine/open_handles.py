"""A look inside an open namespace. No other helper or test reaches for its private attributes."""

from __future__ import annotations

from typing import Any

from reef.engine import Context, Namespace, Reader, ReadState, Writer
from reef.errors import ReefError
from tests.support.waiting import until


def handle_of(ns: Namespace) -> Writer | Reader:
    """Return the handle below a face: a writer or a reader."""
    return ns._handle


def writer_of(ns: Namespace) -> Writer:
    """Return the writer below a face that is open for writing."""
    assert ns._writer is not None
    return ns._writer


def context_of(ns: Namespace) -> Context:
    """Return what the namespace was opened with."""
    return ns._context


def read_state(ns: Namespace) -> ReadState:
    """Return the segments and layers that reads of the newest version look into."""
    return ns._handle._live.state


def commit_path(ns: Namespace) -> Any:
    """Return the commit path of an open writer."""
    return writer_of(ns)._commits


def commit_queue(ns: Namespace) -> Any:
    """Return the state machine of an open writer's commits."""
    return commit_path(ns)._queue


def count_queued(ns: Namespace) -> int:
    """Return how many batches wait for their PUT to begin."""
    with commit_path(ns)._cond:
        return sum(len(group.tickets) for group in commit_queue(ns).pending)


def count_waiters(ns: Namespace) -> int:
    """Return how many batches somebody waits for: for their PUT, or for a turn to send."""
    with commit_path(ns)._cond:
        return sum(bool(ticket.waiters) for ticket in commit_queue(ns).tickets())


def flush_failure(ns: Namespace) -> ReefError | None:
    """Return why the last flush failed, or None."""
    return writer_of(ns)._flush_failure


def await_flush(ns: Namespace) -> None:
    """Return when no flush is going on."""
    until(lambda: not writer_of(ns)._is_flush_begun, "the end of a flush")
