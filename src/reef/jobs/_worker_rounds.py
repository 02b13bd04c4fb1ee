"""A worker: folds, compacts and collects namespaces round after round, wherever it is worth it.

It has no lock, and needs none: of two workers that fold the same log one publishes, and a compaction
that begins later fences the earlier one. So it may be killed at any moment, and be started twice. An
interrupt, such as Ctrl-C, ends a round early and leaves no intent.

What a round costs, when it goes over all namespaces: one LIST for every thousand objects of the bucket.
A namespace that is listed as it was when nothing was left to do there takes no request. One that has
changed takes six: a GET of its manifest; LIST and GET of the manifest's head and a LIST of the log for
the fold; the head again for the compaction. Namespaces that are named take the last five in each round.

A fold and a compaction are worth it by the manifest and the log alone. What time brings about (snapshots and
branches expire, grace periods and windows end) is the collection's, which comes in longer intervals and
looks into every namespace: about 13 requests for each.

After a failure a namespace is left out for a while, twice as long each time: every try costs
generations and records of passes, which push older records out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Any

import msgspec

from reef.compaction import CompactionOptions
from reef.database import Database
from reef.engine import Listed, are_live, list_namespaces
from reef.errors import NotFoundError, ReefError
from reef.jobs._by_size import BySize
from reef.jobs._collect_pass import CollectOptions
from reef.jobs._fold._unfolded_log import IndexOptions
from reef.jobs._pass_protocol import PassResult
from reef.jobs._passes import Namespaces, collect, compact, index
from reef.jobs._tasks import Runner
from reef.jobs._worker_health import WorkerHealth
from reef.settings import SECONDS_MAX

REST_SECONDS_MAX = 3600.0
"""A namespace that keeps failing is left out for at most this long."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When a worker folds, compacts and collects."""

    interval: float = 60.0
    """Seconds from the end of a round to the start of the next."""
    gc_interval: float = 21600.0
    """Delete what nothing needs in the first round, and then this often. 0: never."""
    index: IndexOptions = IndexOptions(min_slots=64)
    """How to fold, and how much of a log is worth folding."""
    compact: CompactionOptions = CompactionOptions()
    collect: CollectOptions = CollectOptions(small_objects=100_000)
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
    runner: Runner | BySize,
    options: WorkerOptions | None = None,
    report: Report,
    wait: Wait,
    health: WorkerHealth | None = None,
) -> None:
    """Fold, compact and collect, round by round, until `wait` says to end.

    An error of a whole round, such as a store that does not answer, is reported, and the next round
    tries again. A namespace that fails is left out for twice as long each time, up to an hour. New
    namespaces are found in every round. `health` is kept up to date. Raises the error of the last of
    `failures_max` failed rounds in a row: the runner's Spark session may be gone for good.
    """
    options = options or WorkerOptions()
    names = (
        None
        if namespaces is None
        else [*([namespaces] if isinstance(namespaces, str) else namespaces)]
    )
    health = health or worker_health(db, options)
    rounds = _Rounds(db, names, runner, options, report, health)
    while True:
        health.begin_round()
        try:
            rounds.run()
        except ReefError as error:
            failures = health.end_round(has_failed=True)
            report(error)
            if failures >= options.failures_max:
                raise
        else:
            failures = health.end_round(has_failed=False)
        # Twice as long after each failure in a row, up to half an hour.
        pause = options.interval * 2 ** min(failures, 10)
        if wait(min(pause, max(options.interval, 1800.0), SECONDS_MAX)):
            return


def worker_health(db: Database, options: WorkerOptions) -> WorkerHealth:
    """Return the health of a worker that has not begun, for `work` and for whoever asks."""
    context = db.context()
    return WorkerHealth(context.clock, context.metrics, options.failures_max)


class _Rounds:
    """What is known of the namespaces from round to round."""

    def __init__(
        self,
        db: Database,
        names: list[str] | None,
        runner: Runner | BySize,
        options: WorkerOptions,
        report: Report,
        health: WorkerHealth,
    ) -> None:
        self._db = db
        self._names = names
        self._runner = runner
        self._options = options
        self._report = report
        self._health = health
        self._clock = db.context().clock
        self._collect_at = self._clock.monotonic()
        self._listed: dict[str, Listed] = {}
        """Namespaces with nothing to do, as they were listed before they were looked into."""
        self._backoff = _Backoff(self._clock.monotonic, options.interval)
        self._uncollected: set[str] = set()

    def run(self) -> None:
        """Fold and compact what has changed, and collect if it is time."""
        changed = self._changed()
        due = self._backoff.without_resting(self._live(changed) if self._names is None else changed)
        self._health.note_due(len(due))
        if due:
            folded = index(
                self._db,
                due,
                runner=self._runner,
                options=self._options.index,
                watch=self._health.note_progress,
            )
            merged = compact(
                self._db,
                due,
                runner=self._runner,
                options=self._options.compact,
                watch=self._health.note_progress,
            )
            failed = _failed(folded) | _failed(merged)
            self._backoff.note(due, failed)
            for name in due:
                if name not in failed and (one := changed[name]) is not None and one.is_whole:
                    self._listed[name] = one
            self._note(folded)
            self._note(merged)
        if self._options.gc_interval and self._clock.monotonic() >= self._collect_at:
            self._collect()

    def _changed(self) -> dict[str, Listed | None]:
        """Return the namespaces that may have something to do, and how they are listed."""
        if self._names is not None:
            return dict.fromkeys(self._names)
        listed = {one.name: one for one in list_namespaces(self._db.store)}
        self._listed = {name: one for name, one in self._listed.items() if listed.get(name) == one}
        return {name: one for name, one in listed.items() if name not in self._listed}

    def _live(self, changed: dict[str, Listed | None]) -> list[str]:
        """Return those that are not dropped. A dropped one has nothing to do until it changes."""
        names: list[str] = []
        left = (one for one in changed.values() if one is not None)
        while some := [*islice(left, self._db.store.concurrency)]:
            for one, is_live in zip(some, are_live(self._db.context(), some), strict=True):
                if is_live:
                    names.append(one.name)
                elif one.is_whole:
                    self._listed[one.name] = one
        return names

    def _collect(self) -> None:
        result = collect(
            self._db,
            self._names,
            apply=True,
            runner=self._runner,
            options=self._options.collect,
            watch=self._health.note_progress,
        )
        self._collect_at = self._clock.monotonic() + self._options.gc_interval
        self._uncollected = _failed(result)
        self._note(result)

    def _note(self, result: PassResult[Any]) -> None:
        failing = self._uncollected | self._backoff.failing
        self._health.note_pass(result, len(failing))
        if any(record.state != "idle" for record in result.records):
            self._report(result)


def _failed(result: PassResult[Any]) -> set[str]:
    """Return where a pass failed. A missing namespace is not failing: it may be made."""
    missing = {one.namespace for one in result.namespaces if isinstance(one.error, NotFoundError)}
    return {record.namespace for record in result.failed} - missing


class _Backoff:
    """Namespaces that have failed, and until when each is left out."""

    def __init__(self, now: Callable[[], float], interval: float) -> None:
        self._now = now
        self._interval = interval
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    @property
    def failing(self) -> set[str]:
        """The namespaces that failed when they were last tried."""
        return {*self._failures}

    def without_resting(self, names: Iterable[str]) -> list[str]:
        """Return the namespaces that are not left out now."""
        now = self._now()
        return [name for name in names if self._until.get(name, now) <= now]

    def note(self, tried: Iterable[str], failed: Collection[str]) -> None:
        """Take note of a round."""
        for name in tried:
            if name not in failed:
                self._failures.pop(name, None)
                self._until.pop(name, None)
                continue
            self._failures[name] = self._failures.get(name, 0) + 1
            pause = self._interval * 2 ** min(self._failures[name], 20)
            most = max(self._interval, REST_SECONDS_MAX)
            self._until[name] = self._now() + min(pause, most)
