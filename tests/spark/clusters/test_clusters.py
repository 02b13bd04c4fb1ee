"""One life of a namespace where executors are other processes, on other hosts, or behind Spark Connect.

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
from urllib.parse import urlencode

import pyspark
import pytest

from reef.spark._archive import use_archive
from tests.support.servers.object_stores import REGION, SeaweedFS
from tests.support.servers.process import LOOPBACK, Server
from tests.support.waiting import DEADLINE_SECONDS, until

pytestmark = pytest.mark.timeout(6 * DEADLINE_SECONDS)  # many JVMs start, one after another
HERE = Path(__file__).resolve().parents[3]
SPARK_HOME = Path(pyspark.__file__).parent
WORK = SPARK_HOME / "work"
"""Where executors of a local cluster run: nothing can be set to change that."""
MARK = "CLUSTER_TEST_MARK"
JAVA = f"{use_archive()} -XX:TieredStopAtLevel=1".strip()
"""What makes a JVM start sooner and take less of a machine, if it does not live for long."""
CONF = (
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
    f"spark.executor.extraJavaOptions={JAVA}",
)
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
        until(lambda: not processes_of(mark))
    finally:
        for folder in set(WORK.glob("*")) - before:
            shutil.rmtree(folder, ignore_errors=True)
        for pid in processes_of(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def lived(
    mark: str,
    master: str,
    url: str,
    folder: Path,
    *conf: str,
    acts: str = "",
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run one life of a namespace to its end, in a process of its own; return what it told."""
    command = [sys.executable, "-m", "tests.spark.clusters.drive", master, url, str(folder), acts]
    mine = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    mine |= {MARK: mark, "PYTHONPATH": PYTHONPATH, **(environment or {})}
    process = subprocess.Popen(
        [*command, *conf], cwd=HERE, env=mine, stdout=subprocess.PIPE, text=True
    )
    try:
        output, _ = process.communicate(timeout=4 * DEADLINE_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0
    told: dict[str, Any] = json.loads(output)
    print(told["seconds"])  # for whoever looks where the time goes
    assert told["rows"] > 3000
    assert min(told["runs"][kind] for kind in ("index", "compact", "verify")) > 3, told["runs"]
    assert told["numbers"] == [2 * n if n % 3 == 0 else None for n in range(100)]
    assert told["errors"][:3] == ["NoneType", "CorruptError", "ConflictError"]
    assert told["seen"] == sorted(told["seen"])
    assert told["seen"][-1] == 100
    assert told["parallelism"] == 2
    return told


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An empty bucket in a folder."""
    (tmp_path / "bucket").mkdir()
    return f"file://{tmp_path}/bucket?fsync=off"


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
            "SPARK_DAEMON_JAVA_OPTS": JAVA,
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
            *("--conf", f"spark.driver.extraJavaOptions={JAVA}"),
            "spark-internal",
        )

    @property
    def url(self) -> str:
        return f"sc://{self.host}:{self.port}"


def test_an_executor_killed_in_every_step_costs_nothing(
    mark: str, url: str, tmp_path: Path
) -> None:
    steps = ("index", "compact", "read", "load", "stream")
    acts = ",".join(f"{step}=die" for step in steps)
    told = lived(mark, "local-cluster[2,1,1024]", url, tmp_path, *CONF, acts=acts)
    dead = {told[step][0] for step in steps}
    assert len(dead) == len(steps)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in dead), "their end")


def test_of_a_straggler_and_its_duplicate_one_is_published(
    mark: str, url: str, tmp_path: Path
) -> None:
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
        told = lived(
            mark, master.url, url, tmp_path, *settings, *CONF, acts="index=lead,compact=lag"
        )
    assert len({*told["index"], *told["compact"]}) == 2  # one executor on each host


def test_the_same_life_through_spark_connect(mark: str, url: str, tmp_path: Path) -> None:
    with ConnectServer(mark) as server:
        told = lived(mark, "", url, tmp_path, environment={"SPARK_REMOTE": server.url})
        command = [
            sys.executable,
            "-m",
            "reef",
            "verify",
            url,
            "--all",
            "--deep",
            "--remote",
            server.url,
        ]
        environment = {**os.environ, MARK: mark, "PYTHONPATH": PYTHONPATH}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert told["session"].startswith("pyspark.sql.connect")


@pytest.mark.servers
def test_the_same_life_on_an_object_server(mark: str, seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    options = urlencode({"endpoint": seaweedfs.endpoint, "region": REGION})
    url = f"s3://{seaweedfs.shared_bucket}/{uuid.uuid4().hex}?{options}"
    told = lived(mark, "local[2]", url, tmp_path, *CONF, environment=seaweedfs.environment())
    assert told["session"] == "pyspark.sql.session"
