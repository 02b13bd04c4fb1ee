"""Forks: what a forked process has of its parent is closed there, and says so.

A fork copies memory and no thread. A copied handle shares its epoch and its next slot with the
parent's; its locks may be held by threads that are not there, and so may a client's connections. So
whatever must not be used on both sides registers itself here when it is made, and the child abandons
all of it before any of its code runs. No call looks at the process id.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

from reef.errors import ClosedError


class ParentOwned(Protocol):
    """What only the process that made it may use."""

    def abandon(self) -> None:
        """Be closed, in a forked process: neither wait, nor take a lock, nor use the parent's I/O."""
        ...


_owned: WeakSet[ParentOwned] = WeakSet()


def abandon_in_child(one: ParentOwned) -> None:
    """Have `one` abandoned in every process that is forked from this one."""
    _owned.add(one)


def forked_error(what: str) -> ClosedError:
    """Return the error for the use of `what`, which is the parent's, in a forked process."""
    return ClosedError(
        f"{what} was opened before this process was forked, and is its parent's: connect again in "
        "this process, or start it by spawn or forkserver, as in "
        'multiprocessing.get_context("forkserver")'
    )


def _abandon_all() -> None:
    for one in list(_owned):
        one.abandon()
    _owned.clear()


os.register_at_fork(after_in_child=_abandon_all)
