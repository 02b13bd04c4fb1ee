"""OpenTelemetry, with the SDK's own exporters: what takes place is a span, what is counted a metric."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import reef
import reef.otel
from reef import jobs
from reef.database import Database
from reef.errors import ConditionFailedError, InvalidInputError
from reef.metrics import METRICS


class Telemetry:
    """A database, and what it exports."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        self._tracers = TracerProvider()
        self._tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._meters = MeterProvider([self._metrics])
        self.db = reef.connect("memory://")
        self.instrument(self.db)

    def instrument(self, db: Database) -> None:
        reef.otel.instrument(db, tracer_provider=self._tracers, meter_provider=self._meters)

    def spans(self) -> list[ReadableSpan]:
        """Return the spans that have ended since the last call."""
        found = [*self._spans.get_finished_spans()]
        self._spans.clear()
        return found

    def named(self) -> list[tuple[str, str | None]]:
        """Return their names, each with its operation or kind."""
        return [
            (one.name, one.attributes.get("reef.operation") or one.attributes.get("reef.kind"))
            for one in self.spans()
        ]

    def values(self) -> dict[str, dict[Any, float]]:
        """Return the value of each series, by metric."""
        found: dict[str, dict[Any, float]] = {}
        data = self._metrics.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        assert isinstance(point, NumberDataPoint)
                        labels = tuple(sorted((point.attributes or {}).items()))
                        found.setdefault(metric.name, {})[labels] = point.value
        return found

    def close(self) -> None:
        self.db.close()
        self._tracers.shutdown()
        self._meters.shutdown()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.close()


def test_commits_flushes_and_passes_are_spans(telemetry: Telemetry) -> None:
    kv = telemetry.db.kv("ns")
    receipt = kv.put(b"k", b"v")
    (span,) = telemetry.spans()
    assert span.name == "reef.commit"
    assert span.attributes == {"reef.namespace": "ns", "reef.lsn": receipt.lsn}
    assert span.start_time < span.end_time
    kv.flush()
    assert telemetry.named() == [("reef.flush", None)]
    jobs.compact(telemetry.db.context(), ["ns"])
    assert ("reef.pass", "compact") in telemetry.named()


def test_reads_of_every_face_are_spans(telemetry: Telemetry) -> None:
    kv, docs, pages = (open("ns-" + open.__name__) for open in faces(telemetry.db))
    kv.put(b"k", b"v")
    docs.upsert([{"id": "a", "n": 1}])
    pages.write({1: bytes(4096)})
    telemetry.spans()
    kv.get(b"k")
    kv.get_many([b"k"])
    docs.get("a")
    docs.query(where="n = 1")
    docs.sql("select * from docs")
    pages.get_page(1)
    found = telemetry.named()
    wanted = ["get", "get_many", "get", "query", "sql", "get_page"]
    assert found == [("reef.read", operation) for operation in wanted]


def faces(db: Database) -> tuple[Any, ...]:
    return db.kv, db.namespace, db.pages


def test_the_span_of_a_scan_ends_with_its_last_row(telemetry: Telemetry) -> None:
    kv = telemetry.db.kv("ns")
    kv.write({b"%d" % i: b"v" for i in range(3)})
    telemetry.spans()
    rows = kv.items()
    assert next(rows) == (b"0", b"v")
    assert telemetry.spans() == []
    assert len([*rows]) == 2
    assert telemetry.named() == [("reef.read", "items")]
    rows = kv.items()
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    (span,) = telemetry.spans()
    assert span.status.status_code is StatusCode.UNSET


def test_a_span_below_one_of_the_program(telemetry: Telemetry) -> None:
    kv = telemetry.db.kv("ns")
    with telemetry._tracers.get_tracer("program").start_as_current_span("request") as request:
        kv.put(b"k", b"v")
        kv.get(b"k")
    commit, read, _ = telemetry.spans()
    assert commit.parent.span_id == read.parent.span_id == request.get_span_context().span_id


def test_an_error_is_on_its_span(telemetry: Telemetry) -> None:
    kv = telemetry.db.kv("ns")
    kv.put(b"k", b"v")
    telemetry.spans()
    with pytest.raises(ConditionFailedError):
        kv.put(b"k", b"w", condition=reef.CreateOnly())
    (span,) = telemetry.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]


def test_every_metric_is_exported_with_the_value_that_is_counted(telemetry: Telemetry) -> None:
    kv = telemetry.db.kv("ns")
    for _ in range(3):
        kv.put(b"k", b"v")
    kv.flush()
    kv.put(b"k", b"v")
    values = telemetry.values()
    assert values["reef.commits"] == {(): 4}
    assert values["reef.commit_seconds.count"] == {(): 4}
    assert 0 < values["reef.commit_seconds.sum"][()] < 60
    assert values["reef.unfolded_log_slots"] == {(("namespace", "ns"),): 1}
    assert values["reef.segments"] == {(("level", "0"), ("namespace", "ns")): 1}
    assert values["reef.requests"][(("kind", "put_if_absent"),)] > 4
    of_all = {"reef." + name.removeprefix("reef_").removesuffix("_total") for name in METRICS}
    exported = {name.removesuffix(".sum").removesuffix(".count") for name in values}
    assert exported <= of_all
    telemetry.db.close()
    assert telemetry.values()["reef.commits"] == {(): 4}


def test_a_database_that_is_not_instrumented_has_no_wrappers() -> None:
    with reef.connect("memory://") as db, db.kv("ns") as kv:
        assert not {"get", "scan"} & vars(kv).keys()
        assert "write" not in vars(kv._writer)


def test_it_is_done_once(telemetry: Telemetry) -> None:
    with pytest.raises(InvalidInputError, match="instrumented already"):
        telemetry.instrument(telemetry.db)


def test_without_opentelemetry_it_says_what_to_install() -> None:
    code = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "import reef\n"
        "try:\n"
        "    reef.otel\n"
        "except reef.InvalidInputError as error:\n"
        "    assert \"pip install 'reefdb[otel]'\" in str(error)\n"
        "    raise SystemExit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 7


def test_nothing_of_opentelemetry_is_loaded_unless_asked_for() -> None:
    code = (
        "import sys, reef\n"
        "with reef.connect('memory://') as db: db.kv('ns').put(b'k', b'v')\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
