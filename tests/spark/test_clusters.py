"""The same runner where executors are other processes, on other hosts, or behind Spark Connect.

Every cluster is a real one from the PySpark wheel, on loopback addresses only. What a test starts
carries a mark in its environment, by which it is seen to be gone afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest

from reef.pipeline._archive import use_archive
from tests.process import LOOPBACK, Server
from tests.spark.tasks import DEADLINE_SECONDS, wait_until

HERE = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
WORK = SPARK_HOME / "work"
"""Where executors of a local cluster run: nothing can be set to change that."""
MARK = "CLUSTER_TEST_MARK"
PYTHONPATH = os.pathsep.join((str(HERE / "src"), str(HERE)))


def processes_of(mark: str) -> list[int]:
    """Return the processes that were started, at whatever remove, with `mark`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark whose processes must be gone when the test is over."""
    mark = uuid.uuid4().hex
    before = set(WORK.glob("*"))
    try:
        yield mark
        wait_until(lambda: not processes_of(mark))
    finally:
        for folder in set(WORK.glob("*")) - before:
            shutil.rmtree(folder, ignore_errors=True)
        for pid in processes_of(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def driver(mark: str, where: str, task: str, count: int, folder: Path, *conf: str) -> Any:
    """Start a driver; `finished` gives what it printed."""
    command = [sys.executable, "-m", "tests.spark.drive", where, task, str(count), str(folder)]
    environment = {**os.environ, MARK: mark, "PYTHONPATH": PYTHONPATH}
    environment.pop("SPARK_REMOTE", None)
    return subprocess.Popen(
        [*command, *conf], cwd=HERE, env=environment, stdout=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=2 * DEADLINE_SECONDS)
    assert process.returncode == 0
    told: dict[str, Any] = json.loads(output)
    return told


class SparkServer(Server):
    """A server of the PySpark wheel."""

    stop_signal = signal.SIGTERM
    host = LOOPBACK

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    def environment(self) -> Mapping[str, str]:
        java = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
        return {
            MARK: self.mark,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": self.host,
            "SPARK_LOCAL_DIRS": str(self.folder),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": PYTHONPATH,
            **java,
        }

    def round_trip(self) -> None:
        socket.create_connection((self.host, self.port)).close()


class Master(SparkServer):
    name = "spark-master"
    ports_needed = 2

    def command(self) -> Sequence[str]:
        return (
            str(SPARK_HOME / "bin" / "spark-class"),
            "org.apache.spark.deploy.master.Master",
            *("--host", self.host, "--port", str(self.ports[0])),
            *("--webui-port", str(self.ports[1])),
        )

    @property
    def url(self) -> str:
        return f"spark://{self.host}:{self.port}"


class Worker(SparkServer):
    name = "spark-worker"
    ports_needed = 2

    def __init__(self, mark: str, host: str, master: str) -> None:
        super().__init__(mark)
        self.host = host
        self.master = master

    def command(self) -> Sequence[str]:
        return (
            str(SPARK_HOME / "bin" / "spark-class"),
            "org.apache.spark.deploy.worker.Worker",
            *("--host", self.host, "--port", str(self.ports[0])),
            *("--webui-port", str(self.ports[1])),
            *("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder)),
            self.master,
        )


class ConnectServer(SparkServer):
    name = "spark-connect"

    def command(self) -> Sequence[str]:
        return (
            str(SPARK_HOME / "bin" / "spark-submit"),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--master", "local[2,4]"),
            *("--conf", f"spark.connect.grpc.binding.address={self.host}"),
            *("--conf", f"spark.connect.grpc.binding.port={self.port}"),
            *("--conf", f"spark.driver.host={self.host}"),
            *("--conf", f"spark.driver.bindAddress={self.host}"),
            *("--conf", "spark.ui.enabled=false"),
            *("--conf", f"spark.driver.extraJavaOptions={use_archive()}"),
            "spark-internal",
        )

    @property
    def url(self) -> str:
        return f"sc://{self.host}:{self.port}"


def test_an_executor_killed_in_mid_job_costs_no_outcome(mark: str, tmp_path: Path) -> None:
    process = driver(mark, "local-cluster[2,1,1024]", "wait_for_word", 4, tmp_path)

    def executors() -> set[int]:
        return {int(begun.read_text()) for begun in tmp_path.glob("begun-?-*[0-9]")}

    def both_are_at_work() -> bool:
        assert process.poll() is None, "the driver ended before its tasks began"
        return len(executors()) == 2

    try:
        wait_until(both_are_at_work)
        os.kill(min(executors()), signal.SIGKILL)
        (tmp_path / "go").touch()
        told = finished(process)
    finally:
        process.kill()
    assert told["numbers"] == [0, 2, 4, 6]
    assert max(told["attempts"]) >= 1


def test_a_straggler_is_run_twice_and_counts_once(mark: str, tmp_path: Path) -> None:
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.efficiency.enabled": "false",
        "spark.executor.memory": "512m",
    }
    settings = (f"{name}={value}" for name, value in conf.items())
    with (
        Master(mark) as master,
        Worker(mark, "127.0.0.2", master.url),
        Worker(mark, "127.0.0.3", master.url),
    ):
        told = finished(driver(mark, master.url, "straggle", 6, tmp_path, *settings))
    assert told["numbers"] == [0, 2, 4, 6, 8, 10]
    assert len(list(tmp_path.glob("attempt-*"))) == 2
    assert told["attempts"][0] == 1  # the second attempt is the one that came back


def test_the_same_runner_goes_through_spark_connect(mark: str, tmp_path: Path) -> None:
    with ConnectServer(mark) as server:
        told = finished(driver(mark, server.url, "fail_by_number", 100, tmp_path))
    assert told["session"].startswith("pyspark.sql.connect")
    assert told["numbers"] == [2 * n if n % 3 == 0 else None for n in range(100)]
    assert told["errors"][:3] == ["NoneType", "CorruptError", "ConflictError"]
    assert told["parallelism"] == 2
    assert told["seen"] == sorted(told["seen"])
    assert told["seen"][-1] == 100
