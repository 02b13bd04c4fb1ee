"""Metrics: what is counted is what is told, in numbers and in Prometheus' text."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.errors import InvariantError
from reef.metrics import METRICS, Metrics

_SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"(?:\{(?P<labels>(?:[a-zA-Z_]\w*=\"(?:[^\"\\\n]|\\[\\n\"])*\",?)*)\})?"
    r" (?P<value>\S+)"
)
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parse(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples of a Prometheus text, and fail on anything that is none of its lines."""
    assert text.endswith("\n")
    samples = {}
    typed: set[str] = set()
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind == METRICS[name].kind
            assert name not in typed
            typed.add(name)
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, line
        labels = tuple(
            (name, re.sub(r"\\.", lambda found: _UNESCAPED[found[0]], value))
            for name, value in _LABEL.findall(match["labels"] or "")
        )
        base = re.sub(r"_(bucket|sum|count)$", "", match["name"])
        assert match["name"] in typed or base in typed, "a sample before its type"
        assert (match["name"], labels) not in samples, "a sample twice"
        samples[match["name"], labels] = float(match["value"])
    assert typed == METRICS.keys()
    return samples


def test_every_metric_is_declared_properly() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"reef_[a-z_]+", name)
        assert name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")
        assert "\n" not in metric.help
        assert bool(metric.bounds) == (metric.kind == "histogram")
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert "le" not in metric.labels


def test_a_fresh_one_says_zero_where_there_is_nothing_to_choose() -> None:
    samples = parse(Metrics().text())
    assert samples["reef_commits_total", ()] == 0
    assert samples["reef_commit_seconds_count", ()] == 0
    assert set(samples.values()) == {0.0}
    assert not any(name.startswith("reef_requests") for name, _ in samples)
    assert not any(name == "reef_segments" for name, _ in samples)


def test_counters_add_up() -> None:
    metrics = Metrics()
    metrics.count("reef_commits_total")
    metrics.count("reef_commits_total", 41)
    metrics.count("reef_requests_total", kind="get")
    metrics.count("reef_requests_total", 2, kind="put_if_absent")
    metrics.count("reef_requests_total", kind="get")
    found = metrics.snapshot()
    assert found["reef_commits_total"] == 42
    assert found['reef_requests_total{kind="get"}'] == 2
    assert found['reef_requests_total{kind="put_if_absent"}'] == 2
    samples = parse(metrics.text())
    assert samples["reef_requests_total", (("kind", "get"),)] == 2


def test_a_recorder_counts_and_observes_in_one_step() -> None:
    metrics = Metrics()
    record = metrics.recorder("reef_requests_total", "reef_put_seconds", kind="get")
    assert 'reef_requests_total{kind="get"}' not in metrics.snapshot()
    record(1, 0.02)
    record(2, 40)
    found = metrics.snapshot()
    assert found['reef_requests_total{kind="get"}'] == 3
    assert isinstance(seconds := found["reef_put_seconds"], dict)
    assert (seconds["count"], seconds["sum"]) == (2, 40.02)
    assert isinstance(buckets := seconds["buckets"], dict)
    assert (buckets["0.025"], buckets["+Inf"]) == (1, 1)
    with pytest.raises(InvariantError, match="1 numbers"):
        record(1)


def test_recorders_of_the_same_metrics_lose_nothing_among_threads() -> None:
    metrics = Metrics()
    counts: list[float] = []

    def record_many() -> None:
        record = metrics.recorder("reef_commits_total", "reef_group_bytes")
        for _ in range(2_000):
            record(1, 300)

    threads = [threading.Thread(target=record_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        count = metrics.snapshot()["reef_commits_total"]
        assert isinstance(count, float | int)
        counts.append(count)
    for thread in threads:
        thread.join()
    assert counts == sorted(counts)
    found = metrics.snapshot()
    assert found["reef_commits_total"] == 8_000
    assert isinstance(sizes := found["reef_group_bytes"], dict)
    assert (sizes["count"], sizes["sum"]) == (8_000, 8_000 * 300)


def test_a_gauge_is_what_it_was_last_set_to() -> None:
    metrics = Metrics()
    for value in (5, 3.5, -1):
        metrics.gauge("reef_memtable_bytes", value, namespace="a")
    assert metrics.snapshot()['reef_memtable_bytes{namespace="a"}'] == -1


def test_labels_may_come_in_any_order_and_as_numbers() -> None:
    metrics = Metrics()
    metrics.gauge("reef_segments", 1, namespace="a", level=0)
    metrics.gauge("reef_segments", 2, level="0", namespace="a")
    metrics.gauge("reef_segments", 7, level=1, namespace="a")
    found = {name: n for name, n in metrics.snapshot().items() if "segments" in name}
    assert found == {
        'reef_segments{namespace="a",level="0"}': 2,
        'reef_segments{namespace="a",level="1"}': 7,
    }


def test_a_histogram_knows_how_many_were_at_most_each_bound() -> None:
    metrics = Metrics()
    for size in (1, 1, 2, 3, 256, 5000):
        metrics.observe("reef_group_batches", size)
    found = metrics.snapshot()["reef_group_batches"]
    assert isinstance(found, dict)
    assert (found["count"], found["sum"]) == (6, 5263)
    buckets = found["buckets"]
    assert isinstance(buckets, dict)
    assert {bound: n for bound, n in buckets.items() if n} == {
        "1": 2,
        "2": 1,
        "4": 1,
        "256": 1,
        "+Inf": 1,
    }
    samples = parse(metrics.text())
    cumulative = [
        samples["reef_group_batches_bucket", (("le", bound),)]
        for bound in ("1", "2", "4", "256", "1024", "+Inf")
    ]
    assert cumulative == [2, 3, 4, 5, 5, 6]
    assert samples["reef_group_batches_count", ()] == 6
    assert samples["reef_group_batches_sum", ()] == 5263


@given(st.lists(st.floats(0, 1000), max_size=50))
def test_whatever_is_observed_the_buckets_agree_with_it(values: list[float]) -> None:
    metrics = Metrics()
    for value in values:
        metrics.observe("reef_put_seconds", value)
    samples = parse(metrics.text())
    for bound in METRICS["reef_put_seconds"].bounds:
        text = f"{bound:g}"
        assert samples["reef_put_seconds_bucket", (("le", text),)] == sum(
            value <= bound for value in values
        )
    assert samples["reef_put_seconds_count", ()] == len(values)
    assert samples["reef_put_seconds_sum", ()] == pytest.approx(sum(values))


@given(st.text(max_size=20) | st.text('\\"\nn,={}', max_size=8))
def test_any_label_comes_back_from_the_text(value: str) -> None:
    metrics = Metrics()
    metrics.gauge("reef_memtable_bytes", 3, namespace=value)
    assert parse(metrics.text())["reef_memtable_bytes", (("namespace", value),)] == 3


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.count("reef_commit_total"),
        lambda m: m.count("reef_put_seconds"),
        lambda m: m.observe("reef_commits_total", 1),
        lambda m: m.gauge("reef_commits_total", 1),
        lambda m: m.gauge("reef_requests_total", 1, kind="get"),
        lambda m: m.count("reef_requests_total"),
        lambda m: m.count("reef_requests_total", method="get"),
        lambda m: m.count("reef_commits_total", kind="get"),
        lambda m: m.gauge("reef_segments", 1, namespace="a"),
        lambda m: m.count("reef_commits_total", -1),
    ],
)
def test_what_is_not_in_the_table_is_a_bug(use: Callable[[Metrics], None]) -> None:
    metrics = Metrics()
    before = metrics.snapshot()
    for _ in range(2):
        with pytest.raises(InvariantError):
            use(metrics)
    assert metrics.snapshot() == before


def test_a_namespace_that_was_closed_is_forgotten() -> None:
    metrics = Metrics()
    for namespace in ("a", "b"):
        metrics.gauge("reef_memtable_bytes", 1, namespace=namespace)
        metrics.gauge("reef_segments", 1, namespace=namespace, level=0)
    metrics.count("reef_cache_hits_total", cache="block")
    metrics.forget(namespace="a")
    left = [name for name in metrics.snapshot() if "{" in name]
    assert left == [
        'reef_cache_hits_total{cache="block"}',
        'reef_memtable_bytes{namespace="b"}',
        'reef_segments{namespace="b",level="0"}',
    ]
    metrics.gauge("reef_memtable_bytes", 5, namespace="a")
    assert metrics.snapshot()['reef_memtable_bytes{namespace="a"}'] == 5
    metrics.forget(cache="block")
    assert metrics.snapshot()['reef_cache_hits_total{cache="block"}'] == 1  # counters stay


@pytest.fixture
def restless() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_nothing_is_lost_among_threads() -> None:
    metrics = Metrics()

    def work(number: int) -> None:
        for i in range(2000):
            metrics.count("reef_requests_total", kind="get")
            metrics.count("reef_requests_total", 2, kind=f"kind {i % 50}")
            metrics.observe("reef_group_batches", number)
            if i % 200 == 0:
                parse(metrics.text())
                metrics.gauge("reef_memtable_bytes", i, namespace=f"{number}")
                metrics.forget(namespace=f"{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    found = metrics.snapshot()
    assert found['reef_requests_total{kind="get"}'] == 16_000
    assert found['reef_requests_total{kind="kind 7"}'] == 8 * 40 * 2
    histogram = found["reef_group_batches"]
    assert isinstance(histogram, dict)
    assert (histogram["count"], histogram["sum"]) == (16_000, 2000 * 28)
