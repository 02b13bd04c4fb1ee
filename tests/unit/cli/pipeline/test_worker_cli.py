"""`reef worker` towards its supervisor: options, exit codes, metrics and health."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import reef
from reef.cli.pipeline._worker_endpoint import served
from reef.jobs import WorkerHealth
from reef.testing import ManualClock
from tests.support.commands import Run, runner
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A bucket with a namespace that is not folded, and with a snapshot that has expired."""
    url = f"file://{tmp_path}/bucket?fsync=off"
    with reef.connect(url) as db, db.kv("a") as kv:
        kv.put(b"k", b"v")
        kv.snapshot(ttl=0.001)
    return url


@pytest.fixture
def run(url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return runner(url, capfdbinary)


def answer(address: str) -> tuple[int, str]:
    try:
        with urlopen(address, timeout=DEADLINE_SECONDS) as got:
            return got.status, got.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_and_health_are_answered(url: str) -> None:
    clock = ManualClock()
    with reef.connect(url) as db:
        health = WorkerHealth(clock, db.metrics, failures_max=2)
        with served("127.0.0.1:0", db, health) as address:
            assert address is not None
            code, text = answer(f"{address}/metrics")
            assert code == 200
            assert "\nreef_worker_rounds_total 0\n" in text
            assert answer(f"{address}/health") == (200, "ok\n")
            health.end_round(has_failed=True)
            assert answer(f"{address}/health?x") == (503, "rounds that failed in a row: 1\n")
            health.end_round(has_failed=False)
            assert answer(f"{address}/health") == (200, "ok\n")
            assert answer(f"{address}/other")[0] == 404
        with pytest.raises(OSError):
            answer(f"{address}/health")


@pytest.mark.parametrize("given", ["0", ":0"])
def test_without_a_host_only_this_machine_is_answered(url: str, given: str) -> None:
    with reef.connect(url) as db:
        health = WorkerHealth(ManualClock(), db.metrics, failures_max=2)
        with served(given, db, health) as address:
            assert address is not None
            assert address.startswith("http://127.0.0.1:")


def test_an_address_that_is_none_or_taken_is_refused(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for given in (f"127.0.0.1:{port}", "127.0.0.1", "x:y", "h:1/p", "h:70000", ""):
            code, _, err = run("worker", "--once", "--in-process", "--metrics", given)
            assert (code, "--metrics" in err, err.count("\n")) == (1, True, 1), given


def test_one_round_does_everything(run: Run, url: str) -> None:
    code, out, _ = run("worker", "--once", "--in-process", "--min-slots", "1", "--json")
    assert code == 0
    assert [json.loads(line)["pass"] for line in out.splitlines()] == ["index", "gc"]
    with reef.connect(url) as db, db.kv("a", mode="r") as kv:
        assert kv.snapshots() == []
        assert kv.get(b"k") == b"v"


def test_collection_can_be_switched_off(run: Run) -> None:
    options = ("--once", "--in-process", "--min-slots", "1", "--gc-interval", "off", "--json")
    code, out, _ = run("worker", *options)
    assert code == 0
    assert [json.loads(line)["pass"] for line in out.splitlines()] == ["index"]
    assert run("worker", "--once", "--gc-interval", "often")[0] == 1
    assert run("worker", "--once", "--small-size", "x")[0] == 1


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "reef", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_worker_that_waits_ends_with_0(url: str) -> None:
    """With Ctrl-C ignored, as in the background of a shell, too."""
    options = ("--in-process", "--min-slots", "1", "--metrics", "127.0.0.1:0", "--json")
    with started("worker", url, *options) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        first = process.stderr.readline()
        found = re.search(r"metrics at (\S+)/metrics$", first)
        assert found, first
        assert json.loads(process.stdout.readline())["pass"] == "index"
        assert answer(f"{found[1]}/health") == (200, "ok\n")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
        assert (process.returncode, err) == (0, "")
