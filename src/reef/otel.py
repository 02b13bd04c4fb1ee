"""OpenTelemetry: spans for commits, flushes, reads and passes, and every metric of a database.

    db = reef.connect(url)
    reef.otel.instrument(db)              # before namespaces are opened

It comes with the extra `reefdb[otel]`. Spans are made where a handle is opened, so a database that is
not instrumented pays nothing. Metrics are read when an exporter asks; counting stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from weakref import ref

from reef.errors import InvalidInputError
from reef.metrics import METRICS

try:
    from opentelemetry import metrics as otel_metrics
    from opentelemetry import trace
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Status, StatusCode, Tracer, TracerProvider
except ModuleNotFoundError as error:
    raise InvalidInputError(
        f"reef.otel needs OpenTelemetry ({error}): pip install 'reefdb[otel]'"
    ) from error

if TYPE_CHECKING:
    from reef.database import Database

P = ParamSpec("P")
T = TypeVar("T")

__all__ = ["instrument"]


def instrument(
    db: Database,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Give a database spans and metrics; without providers, those that the program has set globally.

    Namespaces that are open already get no spans. Raises InvalidInputError if it was done before.
    """
    metrics = db.metrics
    if metrics.tracer is not None:
        raise InvalidInputError(
            f"the database at {db.store.url} is instrumented already: do it once"
        )
    metrics.tracer = _Spans(trace.get_tracer("reef", tracer_provider=tracer_provider))
    meter = otel_metrics.get_meter("reef", meter_provider=meter_provider)
    database = ref(db)  # an exporter must not keep it in memory
    for name, metric in METRICS.items():
        base = "reef." + name.removeprefix("reef_").removesuffix("_total")
        unit = "s" if "seconds" in name else "By" if "bytes" in name else "1"
        if metric.kind == "gauge":
            read = partial(_observed, database, name, 0)
            meter.create_observable_gauge(base, [read], unit, metric.help)
        elif metric.kind == "counter":
            read = partial(_observed, database, name, 0)
            meter.create_observable_counter(base, [read], unit, metric.help)
        else:
            for at, part in enumerate(("sum", "count")):
                read = partial(_observed, database, name, at)
                meter.create_observable_counter(
                    f"{base}.{part}", [read], unit if part == "sum" else "1", metric.help
                )


def _observed(
    database: Callable[[], Database | None], name: str, at: int, _: CallbackOptions
) -> Iterable[Observation]:
    db = database()
    if db is None:
        return
    # The property updates the gauges of all open namespaces: for the first metric, not for each.
    metrics = db.metrics if name == next(iter(METRICS)) else db.context().metrics
    for labels, *values in metrics.samples(name):
        yield Observation(values[at], labels)


class _Spans:
    """Makes calls that are spans; the `Tracer` of `reef.metrics`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def traced(self, name: str, call: Callable[P, T], **attributes: str) -> Callable[P, T]:
        """Return `call`, of which each run is a span of that name.

        What returns an iterator ends its span with the last item.
        """
        given = {f"reef.{key}": value for key, value in attributes.items()}

        @wraps(call)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            span = self._tracer.start_span(name, attributes=given)
            try:
                with trace.use_span(span):
                    result = call(*args, **kwargs)
            except BaseException:
                span.end()
                raise
            if isinstance(result, Iterator):
                return _to_the_end(result, span)  # type: ignore[return-value]
            lsn = getattr(result, "lsn", None)
            if isinstance(lsn, int):
                span.set_attribute("reef.lsn", lsn)
            span.end()
            return result

        return run


def _to_the_end(items: Any, span: trace.Span) -> Iterator[Any]:
    """Yield `items`, and end the span with them."""
    try:
        yield from items
    except GeneratorExit:
        raise
    except BaseException as error:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        raise
    finally:
        span.end()
