"""A look inside an open writer, for the tests of its commit path."""

from __future__ import annotations

from reef.engine._commit._path import CommitPath
from reef.kv import KeyValue


def commits(kv: KeyValue) -> CommitPath:
    """Return the commit path of an open writer."""
    assert kv._writer is not None
    return kv._writer._commits


def waiters(kv: KeyValue) -> int:
    """Return how many batches somebody waits for: for their PUT, or for a turn to send."""
    with commits(kv).cond:
        return sum(bool(ticket.waiters) for ticket in commits(kv)._queue.tickets())
