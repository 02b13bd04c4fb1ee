"""A worker: one Spark session that stays, folding and compacting what has become worth it.

It holds nothing that another worker, or a command beside it, could not do at the same time: of two that
fold the same log one publishes, and a compaction that begins later ends the earlier one. So it may be
killed at any moment, and be started twice.

A namespace that fails is left alone for a while, twice as long each time: to try it costs generations
and records of passes, which push older ones out.

A round over a namespace with nothing to do costs four requests: LIST and GET of the manifest's head and
a LIST of the log for the fold, and the head again for the compaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from reef.database import Database
from reef.errors import NotFoundError, ReefError
from reef.jobs._compaction._options import CompactionOptions
from reef.jobs._fold._plan import IndexOptions
from reef.jobs._pass import Namespaces, PassResult
from reef.jobs._passes import compact, index
from reef.jobs._tasks import Runner
from reef.settings import SECONDS_MAX

REST_SECONDS_MAX = 3600.0
"""So long a namespace that goes on failing is left alone, at most."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When a worker folds and compacts."""

    interval: float = 60.0
    """Seconds from the end of a round to the start of the next."""
    index: IndexOptions = IndexOptions(min_slots=64)
    """How to fold, and how much of a log is worth folding."""
    compact: CompactionOptions = CompactionOptions()
    failures_max: int = 10
    """End with an error after this many failed rounds in a row."""


Report = Callable[[PassResult[Any] | ReefError], None]
"""Told of each pass that did something, or of why a round could not be made."""
Wait = Callable[[float], bool]
"""Waits so many seconds; returns True if the worker is to end, at once if that is known before."""


def work(
    db: Database,
    namespaces: Namespaces = None,
    *,
    runner: Runner,
    options: WorkerOptions | None = None,
    report: Report,
    wait: Wait,
) -> None:
    """Fold and compact, round by round, until `wait` says to end.

    An error of a whole round, such as a store that does not answer, is reported, and the next round
    tries again; a namespace that fails is left alone for twice as long each time, up to an hour; new
    namespaces are found by themselves. Raises the error of the last of
    `failures_max` rounds in a row: its Spark session may be gone for good.
    """
    options = options or WorkerOptions()
    names = (
        None
        if namespaces is None
        else [*([namespaces] if isinstance(namespaces, str) else namespaces)]
    )
    failures = 0
    sick = _Sick(db, options.interval)
    while True:
        try:
            well = sick.left_out(names)
            folded = index(db, well, runner=runner, options=options.index)
            merged = compact(db, well, runner=runner, options=options.compact)
        except ReefError as error:
            failures += 1
            report(error)
            if failures >= options.failures_max:
                raise
        else:
            failures = 0
            sick.note(folded, merged)
            for result in (folded, merged):
                if any(record.state != "idle" for record in result.records):
                    report(result)
        # Twice as long after each failure in a row, up to half an hour.
        pause = options.interval * 2 ** min(failures, 10)
        if wait(min(pause, max(options.interval, 1800.0), SECONDS_MAX)):
            return


class _Sick:
    """Namespaces that have failed, and until when each is left alone."""

    def __init__(self, db: Database, interval: float) -> None:
        self._db = db
        self._clock = db.context().clock
        self._interval = interval
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def left_out(self, names: list[str] | None) -> list[str] | None:
        """Return the namespaces of the next round, None if those are all."""
        now = self._clock.monotonic()
        resting = {name for name, until in self._until.items() if until > now}
        if not resting:
            return names
        every = self._db.namespaces() if names is None else names
        return [name for name in every if name not in resting]

    def note(self, *results: PassResult[Any]) -> None:
        """Take in what became of a round. What is not there costs nothing, and may come to be."""
        failed = {record.namespace for result in results for record in result.failed} - {
            one.namespace
            for result in results
            for one in result.namespaces
            if isinstance(one.error, NotFoundError)
        }
        for name in {record.namespace for result in results for record in result.records}:
            if name not in failed:
                self._failures.pop(name, None)
                self._until.pop(name, None)
                continue
            self._failures[name] = self._failures.get(name, 0) + 1
            pause = self._interval * 2 ** min(self._failures[name], 20)
            most = max(self._interval, REST_SECONDS_MAX)
            self._until[name] = self._clock.monotonic() + min(pause, most)
