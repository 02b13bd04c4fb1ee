"""What Reef counts about itself, in this process, for people and for programs.

Every metric stands in one table, `METRICS`, with its type, its labels and what it tells. `text` gives
them in the Prometheus exposition format, `snapshot` as a dict.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from reef.errors import InvariantError
from reef.fork import abandon_in_child

_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_LAYERS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
_SIZES = tuple(1 << power for power in range(8, 31, 2))  # 256 B to 1 GiB


class Metric(NamedTuple):
    """A metric: a line of the table."""

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Of a histogram: the upper bound, inclusive, of every bucket but the last, which has none."""


def _counter(text: str, *labels: str) -> Metric:
    return Metric("counter", text, labels)


def _gauge(text: str, *labels: str) -> Metric:
    return Metric("gauge", text, labels)


def _histogram(text: str, bounds: tuple[float, ...]) -> Metric:
    return Metric("histogram", text, (), bounds)


METRICS: Mapping[str, Metric] = {
    "reef_commits_total": _counter("Client batches that became durable."),
    "reef_commit_seconds": _histogram("From a batch's arrival to its receipt.", _SECONDS),
    "reef_put_seconds": _histogram("Duration of a put-if-absent, whatever its outcome.", _SECONDS),
    "reef_group_batches": _histogram("Client batches in one log object.", _BATCHES),
    "reef_group_bytes": _histogram("Bytes of one log object.", _SIZES),
    "reef_fenced_total": _counter("Handles that ended because another writer took over."),
    "reef_unknown_outcomes_total": _counter("Writes whose outcome could not be found out."),
    "reef_write_stalls_total": _counter("Writes that had to wait for a flush."),
    "reef_flushes_total": _counter("Memtables published as segments."),
    "reef_flush_seconds": _histogram("From a flush's start to its manifest.", _SECONDS),
    "reef_memtable_bytes": _gauge("Bytes of rows in memory that no segment holds.", "namespace"),
    "reef_unfolded_log_bytes": _gauge("Bytes of log that no segment holds.", "namespace"),
    "reef_unfolded_log_slots": _gauge("Log objects that no segment holds.", "namespace"),
    "reef_segments": _gauge("Live segments.", "namespace", "level"),
    "reef_cache_hits_total": _counter("Reads that a cache answered.", "cache"),
    "reef_cache_misses_total": _counter("Reads that a cache could not answer.", "cache"),
    "reef_bloom_skips_total": _counter("Segments passed over because a filter ruled a key out."),
    "reef_page_read_layers": _histogram(
        "Layers that a read of one page looked into; every 64th read counts.", _LAYERS
    ),
    "reef_requests_total": _counter("Requests to the store, failed ones too.", "kind"),
    "reef_request_bytes_total": _counter("Bytes sent to and received from the store.", "kind"),
    "reef_request_errors_total": _counter(
        "Requests that failed otherwise than because an object is absent, or exists already.",
        "kind",
    ),
    "reef_gc_deleted_total": _counter("Objects deleted by garbage collection.", "kind"),
    "reef_gc_deleted_bytes_total": _counter("Bytes deleted by garbage collection.", "kind"),
    "reef_worker_rounds_total": _counter("Rounds of a worker, failed ones too."),
    "reef_worker_failures_total": _counter("Rounds of a worker that failed as a whole."),
    "reef_worker_failing": _gauge("Namespaces in which a worker's last pass failed."),
    "reef_worker_backlog": _gauge("Namespaces that a worker has still to look into."),
    "reef_worker_round_seconds": _gauge("Duration of a worker's last round."),
    "reef_worker_last_success_timestamp_seconds": _gauge(
        "When a worker's last round that did not fail ended, in seconds since 1970."
    ),
    "reef_worker_rows_total": _counter("Rows written by a worker's passes.", "kind"),
    "reef_worker_bytes_total": _counter("Bytes read by a worker's passes.", "kind"),
}

_RECORDED_MAX = 256

Histogram: TypeAlias = dict[str, float | dict[str, int]]
"""A histogram in a snapshot: `count`, `sum` and, by upper bound, `buckets` (not cumulative)."""


class _Series:
    """One metric with one set of labels: a number, or the buckets of a histogram."""

    __slots__ = ("bounds", "buckets", "key", "labels", "name", "value")

    def __init__(self, name: str, labels: tuple[tuple[str, str], ...]) -> None:
        self.name = name
        self.labels = labels
        self.key = (name, *(value for _, value in labels))
        self.bounds = METRICS[name].bounds
        self.buckets = [0] * (len(self.bounds) + 1)
        self.value: float = 0  # of a histogram: the sum of what was observed


class _Recorded(NamedTuple):
    """What one recorder has taken, and nobody has added to its metrics yet."""

    names: tuple[str, ...]
    labels: Mapping[str, object]
    taken: list[tuple[float, ...]]


P = ParamSpec("P")
T = TypeVar("T")


class Tracer(Protocol):
    """Makes spans of what takes place, such as `reef.otel`."""

    def traced(self, name: str, call: Callable[P, T], **attributes: str) -> Callable[P, T]:
        """Return `call`, of which each run is a span of that name."""
        ...


class Metrics:
    """The metrics of one database. Safe among threads, and cheap enough for every request.

    A name that the table does not have, another type or other labels raise InvariantError.
    """

    def __init__(self) -> None:
        self.tracer: Tracer | None = None
        """Looked at where a handle is opened or a pass begins."""
        self.abandon()
        abandon_in_child(self)
        self._series: dict[tuple[str, ...], _Series] = {}
        # The same series, by kind, under their labels in whatever order and type they are given.
        self._counters: dict[object, _Series] = {}
        self._gauges: dict[object, _Series] = {}
        self._histograms: dict[object, _Series] = {}
        self._recorded: dict[object, _Recorded] = {}
        for name, metric in METRICS.items():
            if not metric.labels and metric.kind != "gauge":
                self._find(metric.kind, name, {})

    def abandon(self) -> None:
        """Take a new lock, in a forked process: a thread of the parent may hold the old one."""
        self._lock = threading.Lock()

    def recorder(self, *names: str, **labels: object) -> Callable[..., None]:
        """Return a function that takes a number for each of some counters and histograms at once.

        For frequent use: the numbers are kept as they come, and added later, many at once.
        `labels` are of each that has any.
        """
        key, count = (*names, *labels.items()), len(names)
        recorded = self._recorded.setdefault(key, _Recorded(names, labels, []))
        taken = recorded.taken

        def record(*numbers: float) -> None:
            if len(numbers) != count:
                raise InvariantError(f"{len(numbers)} numbers were recorded for {names}")
            taken.append(numbers)
            if len(taken) >= _RECORDED_MAX:
                self._add_recorded(recorded)

        return record

    def count(self, name: str, amount: float = 1, **labels: object) -> None:
        """Add `amount`, at least 0, to a counter."""
        series = self._counters.get((name, *labels.items()) if labels else name)
        if series is None:
            series = self._find("counter", name, labels)
        if amount < 0:
            raise InvariantError(f"counter {name} would fall by {-amount}")
        with self._lock:
            series.value += amount

    def gauge(self, name: str, value: float, **labels: object) -> None:
        """Set a gauge."""
        series = self._gauges.get((name, *labels.items()) if labels else name)
        if series is None:
            series = self._find("gauge", name, labels)
        with self._lock:
            series.value = value

    def observe(self, name: str, value: float, **labels: object) -> None:
        """Put a duration in seconds, or a size, into a histogram."""
        series = self._histograms.get((name, *labels.items()) if labels else name)
        if series is None:
            series = self._find("histogram", name, labels)
        bucket = bisect_left(series.bounds, value)
        with self._lock:
            series.buckets[bucket] += 1
            series.value += value

    def forget(self, **labels: object) -> None:
        """Drop every gauge that has these labels, such as those of a namespace that was closed."""
        wanted = {(name, str(value)) for name, value in labels.items()}
        with self._lock:
            gone = [key for key, s in self._gauges.items() if wanted <= set(s.labels)]
            for key in gone:
                series = self._gauges.pop(key)
                self._series.pop(series.key, None)

    def snapshot(self) -> dict[str, float | Histogram]:
        """Return every series by name and labels, as in `reef_requests_total{kind="get"}`.

        A counter or a gauge is a number, a histogram a dict of `count`, `sum` and `buckets`.
        """
        return {
            f"{series.name}{_braces(series.labels)}": (
                _histogram_of(buckets, series.bounds, value) if series.bounds else value
            )
            for series, value, buckets in self._read()
        }

    def samples(self, name: str) -> Iterator[tuple[dict[str, str], float, int]]:
        """Yield each series of a metric: its labels, its value (of a histogram the sum), its count."""
        self._add_all_recorded()
        with self._lock:
            read = [(s, s.value, sum(s.buckets)) for s in self._series.values() if s.name == name]
        yield from ((dict(series.labels), value, count) for series, value, count in read)

    def text(self) -> str:
        """Return every metric in the Prometheus text exposition format, version 0.0.4."""
        found: dict[str, list[tuple[_Series, float, list[int]]]] = {name: [] for name in METRICS}
        for read in self._read():
            found[read[0].name].append(read)
        lines: list[str] = []
        for name, metric in METRICS.items():
            lines += (f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}")
            for read in found[name]:
                lines += _lines(*read)
        return "\n".join(lines) + "\n"

    def _read(self) -> Iterator[tuple[_Series, float, list[int]]]:
        """Yield every series with its value and buckets, all of one moment, sorted."""
        self._add_all_recorded()
        with self._lock:
            read = [(s, s.value, s.buckets.copy()) for s in self._series.values()]
        yield from sorted(read, key=lambda one: (one[0].name, one[0].labels))

    def _add_all_recorded(self) -> None:
        for recorded in list(self._recorded.values()):
            self._add_recorded(recorded)

    def _add_recorded(self, recorded: _Recorded) -> None:
        """Add what a recorder has taken. Others may go on recording meanwhile."""
        names, labels, taken = recorded
        if not taken:  # a series shows only once something was counted
            return
        metrics = [METRICS[name] for name in names]
        found = [
            self._find(metric.kind, name, labels if metric.labels else {})
            for name, metric in zip(names, metrics, strict=True)
        ]
        with self._lock:
            rows = taken[:]
            del taken[: len(rows)]  # more may have come in between
            if not rows:
                return  # another thread has just added them
            for series, values in zip(found, zip(*rows, strict=True), strict=True):
                series.value += sum(values)
                if series.bounds:
                    for value in values:
                        series.buckets[bisect_left(series.bounds, value)] += 1

    def _find(self, kind: str, name: str, labels: Mapping[str, object]) -> _Series:
        """Return the series, made if it is not there yet."""
        metric = METRICS.get(name)
        if metric is None or metric.kind != kind or set(labels) != set(metric.labels):
            raise InvariantError(f"no {kind} {name} with labels {sorted(labels)} is declared")
        asked = {"counter": self._counters, "gauge": self._gauges, "histogram": self._histograms}
        found = _Series(name, tuple((label, str(labels[label])) for label in metric.labels))
        with self._lock:
            series = self._series.setdefault(found.key, found)
            asked[kind][(name, *labels.items()) if labels else name] = series
        return series


def _histogram_of(buckets: list[int], bounds: tuple[float, ...], total: float) -> Histogram:
    names = (*map(_number, bounds), "+Inf")
    return {"count": sum(buckets), "sum": total, "buckets": dict(zip(names, buckets, strict=True))}


def _lines(series: _Series, value: float, buckets: list[int]) -> Iterator[str]:
    if not series.bounds:
        yield f"{series.name}{_braces(series.labels)} {_number(value)}"
        return
    so_far = 0
    for bound, count in zip((*series.bounds, None), buckets, strict=True):
        so_far += count
        text = "+Inf" if bound is None else _number(bound)
        yield f"{series.name}_bucket{_braces((*series.labels, ('le', text)))} {so_far}"
    yield f"{series.name}_sum{_braces(series.labels)} {_number(value)}"
    yield f"{series.name}_count{_braces(series.labels)} {so_far}"


def _braces(labels: tuple[tuple[str, str], ...]) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inside}}}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)
