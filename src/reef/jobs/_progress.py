"""How far a pass is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from reef.jobs._tasks import Progress

Unit: TypeAlias = Literal["bytes", "objects", "namespaces"]


@dataclass(frozen=True)
class PassProgress:
    """How far a pass is."""

    tasks_done: int
    tasks: int
    """Known so far: more may follow."""
    bytes_done: int
    """An estimate, from the number of tasks that are done."""
    bytes: int
    """What the tasks known so far read; 0 where only they find out."""
    rows: int
    """In what has been published."""
    namespaces: int
    """Done; an estimate while tasks take whole namespaces."""
    namespaces_known: int = 0
    """Taken up so far, where tasks take whole namespaces; else 0."""
    objects_done: int = 0
    objects: int = 0
    """To be deleted, or deleted, by the tasks known so far."""


Watch: TypeAlias = Callable[[PassProgress], None]
"""Called with how far a pass is, perhaps from another thread."""


class Meter:
    """Adds up the progress of all runs of tasks of a pass. Safe among threads."""

    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch
        self._lock = threading.Lock()
        self._sums = dict.fromkeys((field.name for field in fields(PassProgress)), 0)

    def begin(self, tasks: int, size: int, unit: Unit) -> Progress:
        """Add a run of tasks that have so much to do; return what to call as they are done."""
        total = "namespaces_known" if unit == "namespaces" else unit
        done_name = "namespaces" if unit == "namespaces" else f"{unit}_done"
        self._add(tasks=tasks, **{total: size})
        before = 0

        def report(done: int, _: int) -> None:
            nonlocal before
            share = size * done // tasks - size * before // tasks
            self._add(tasks_done=done - before, **{done_name: share})
            before = done
            self._tell()

        return report

    def finish_portion(self, rows: int, namespaces: int) -> None:
        """Take note of what was published; `namespaces` of the pass are done now."""
        with self._lock:
            self._sums["rows"] += rows
            self._sums["namespaces"] = namespaces
        self._tell()

    def _add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                self._sums[name] += count

    def _tell(self) -> None:
        if self._watch is not None:
            with self._lock:
                seen = PassProgress(**self._sums)
            self._watch(seen)
