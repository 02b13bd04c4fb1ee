"""A worker: folds and compacts namespaces round after round, wherever it is worth it.

It has no lock, and needs none: of two workers that fold the same log one publishes, and a compaction
that begins later fences the earlier one. So it may be killed at any moment, and be started twice.

After a failure a namespace is left out for a while, twice as long each time: every try costs
generations and records of passes, which push older records out.

A round over a namespace with nothing to do costs four requests: LIST and GET of the manifest's head and
a LIST of the log for the fold, and the head again for the compaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from reef.compaction import CompactionOptions
from reef.database import Database
from reef.errors import NotFoundError, ReefError
from reef.jobs._fold._unfolded_log import IndexOptions
from reef.jobs._pass_protocol import PassResult
from reef.jobs._passes import Namespaces, compact, index
from reef.jobs._tasks import Runner
from reef.settings import SECONDS_MAX

REST_SECONDS_MAX = 3600.0
"""A namespace that keeps failing is left out for at most this long."""


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
"""Called with each pass that did something, or with the error that ended a round."""
Wait = Callable[[float], bool]
"""Waits so many seconds; returns True, at once, when the worker should end."""


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
    tries again. A namespace that fails is left out for twice as long each time, up to an hour. New
    namespaces are found in every round. Raises the error of the last of `failures_max` failed rounds
    in a row: the runner's Spark session may be gone for good.
    """
    options = options or WorkerOptions()
    names = (
        None
        if namespaces is None
        else [*([namespaces] if isinstance(namespaces, str) else namespaces)]
    )
    failures = 0
    backoff = _Backoff(db, options.interval)
    while True:
        try:
            due = backoff.names_due(names)
            folded = index(db, due, runner=runner, options=options.index)
            merged = compact(db, due, runner=runner, options=options.compact)
        except ReefError as error:
            failures += 1
            report(error)
            if failures >= options.failures_max:
                raise
        else:
            failures = 0
            backoff.note(folded, merged)
            for result in (folded, merged):
                if any(record.state != "idle" for record in result.records):
                    report(result)
        # Twice as long after each failure in a row, up to half an hour.
        pause = options.interval * 2 ** min(failures, 10)
        if wait(min(pause, max(options.interval, 1800.0), SECONDS_MAX)):
            return


class _Backoff:
    """Namespaces that have failed, and until when each is left out."""

    def __init__(self, db: Database, interval: float) -> None:
        self._db = db
        self._clock = db.context().clock
        self._interval = interval
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def names_due(self, names: list[str] | None) -> list[str] | None:
        """Return the namespaces of the next round; None: all."""
        now = self._clock.monotonic()
        resting = {name for name, until in self._until.items() if until > now}
        if not resting:
            return names
        every = self._db.namespaces() if names is None else names
        return [name for name in every if name not in resting]

    def note(self, *results: PassResult[Any]) -> None:
        """Take note of a round. A missing namespace is tried each time: it costs little, and may be made."""
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
