"""How a worker is, for a supervisor that asks."""

from __future__ import annotations

from reef.clock import Clock
from reef.jobs._pass_protocol import PassResult
from reef.jobs._progress import PassProgress
from reef.metrics import Metrics

STALLED_SECONDS = 3600.0
"""A round in which nothing was done for so long has overrun."""


class WorkerHealth:
    """Whether rounds succeed. `work` keeps it up to date; any thread may ask."""

    def __init__(self, clock: Clock, metrics: Metrics, failures_max: int) -> None:
        self._clock = clock
        self._metrics = metrics
        self._failures_max = failures_max
        self._failures = 0
        self._begun = clock.monotonic()
        self._progress_at: float | None = None

    @property
    def problem(self) -> str:
        """What is wrong; empty: nothing."""
        failures, progress_at = self._failures, self._progress_at
        if failures and 2 * failures >= self._failures_max:
            return f"rounds that failed in a row: {failures}"
        if progress_at is not None:
            seconds = self._clock.monotonic() - progress_at
            if seconds > STALLED_SECONDS:
                return f"the round has done nothing for {seconds:.0f} seconds"
        return ""

    def begin_round(self) -> None:
        """Take note that a round begins."""
        self._begun = self._progress_at = self._clock.monotonic()

    def note_progress(self, _: PassProgress) -> None:
        """Take note that something was done."""
        self._progress_at = self._clock.monotonic()

    def note_due(self, namespaces: int) -> None:
        """Take note of how many namespaces the round has to look into."""
        self._metrics.gauge("reef_worker_backlog", namespaces)

    def note_pass(self, result: PassResult[object], failing: int) -> None:
        """Take note of what a pass did, and of how many namespaces fail now."""
        rows, read = result.totals.get("rows", 0), result.totals.get("bytes_in", 0)
        self._metrics.count("reef_worker_rows_total", rows, kind=result.kind)
        self._metrics.count("reef_worker_bytes_total", read, kind=result.kind)
        self._metrics.gauge("reef_worker_failing", failing)

    def end_round(self, *, has_failed: bool) -> int:
        """Take note of the end of a round; return how many have failed in a row."""
        self._progress_at = None
        self._metrics.count("reef_worker_rounds_total")
        self._metrics.gauge("reef_worker_round_seconds", self._clock.monotonic() - self._begun)
        if has_failed:
            self._failures += 1
            self._metrics.count("reef_worker_failures_total")
        else:
            self._failures = 0
            now_s = self._clock.now_us() / 1_000_000
            self._metrics.gauge("reef_worker_last_success_timestamp_seconds", now_s)
            self._metrics.gauge("reef_worker_backlog", 0)
        return self._failures
