"""Sessions: reused, quiet, on loopback, with the data source, and with or without an archive."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import reef.spark
from reef.errors import InvalidInputError, UnavailableError
from reef.spark import _archive, _session
from reef.spark._session import JAVA_OPTIONS, LOCAL, LOOPBACK, _is_here, _settings
from reef.threads import SystemThreads

HERE = Path(__file__).resolve().parents[2]


def test_a_running_session_is_reused_from_any_thread(spark: SparkSession) -> None:
    found = [reef.spark.session()]
    SystemThreads().start(lambda: found.append(reef.spark.session()), name="other").join()
    assert [one.sparkContext for one in found] == [spark.sparkContext] * 2


def test_the_data_source_is_registered(spark: SparkSession) -> None:
    reef.spark.register(spark)
    # Known by its name: what is asked of it is refused by Reef, not by Spark's search for it.
    with pytest.raises(Exception, match="url"):
        spark.read.format("reef").load()
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"


def test_settings_that_can_change_do_so_in_a_running_session(spark: SparkSession) -> None:
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    assert before is not None
    try:
        reef.spark.session(conf={name: "3"})
        assert spark.conf.get(name) == "3"
    finally:
        spark.conf.set(name, before)


@pytest.mark.parametrize(
    "asked",
    [
        {"master": "local[7]"},
        {"remote": "sc://127.0.0.1:1"},
        {"conf": {"spark.driver.memory": "7g"}},
    ],
)
def test_what_a_running_session_is_not_is_refused(
    spark: SparkSession, asked: dict[str, str]
) -> None:
    with pytest.raises(InvalidInputError, match="stop that session"):
        reef.spark.session(**asked)  # type: ignore[arg-type]


def test_a_master_and_a_remote_exclude_each_other() -> None:
    with pytest.raises(InvalidInputError):
        reef.spark.session(master="local[2]", remote="sc://127.0.0.1:1")


def test_sessions_of_this_machine_stay_on_loopback(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == LOOPBACK
    assert conf.get("spark.driver.bindAddress") == LOOPBACK
    assert conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.pythonExec == os.environ["PYSPARK_PYTHON"]


def test_what_is_asked_for_comes_before_what_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    settings = _settings(None, {"spark.driver.memory": "9g", JAVA_OPTIONS: "-Da=1"}, "-Db=2")
    assert settings["spark.master"] == LOCAL
    assert settings["spark.driver.memory"] == "9g"
    assert settings[JAVA_OPTIONS] == "-Db=2 -Da=1"
    assert _settings("local[3]", {"spark.master": "yarn"}, "")["spark.master"] == "local[3]"
    elsewhere = _settings("spark://10.0.0.1:7077", {}, "")
    assert not {"spark.driver.host", "spark.executorEnv.PYTHONPATH"} & elsewhere.keys()


def test_under_spark_submit_the_master_is_not_ours_to_choose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert "spark.master" not in _settings(None, {}, "")


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local[*,4]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://10.0.0.1:7077", False),
        ("yarn", False),
        ("k8s://https://10.0.0.1", False),
    ],
)
def test_where_executors_run(master: str, here: bool) -> None:
    assert _is_here(master) is here


def test_the_archive_is_of_this_java_and_this_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = _archive.archive_path()
    assert before.is_relative_to(sys.prefix)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert _archive.archive_path() != before
    assert _archive.use_archive() == ""


SCRIPT = """
import reef.spark
spark = reef.spark.session(master="local[1,4]")
assert spark.range(3).count() == 3
spark.stop()
"""


def run_script(
    environment: dict[str, str], script: str = SCRIPT
) -> subprocess.CompletedProcess[str]:
    bare = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=HERE,
        env={**bare, "PYTHONPATH": str(HERE / "src"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_after_a_session_that_stopped_or_died_another_starts_in_a_jvm_of_its_own() -> None:
    script = """
import os, signal
import reef.spark
first = reef.spark.session(master="local[1,4]")
jvm = first.sparkContext._gateway.proc
first.stop()
second = reef.spark.session(master="local[1,4]", conf={"spark.driver.memory": "1g"})
assert jvm.poll() is not None, "the first JVM still runs"
runtime = second.sparkContext._jvm.java.lang.Runtime.getRuntime()
assert runtime.maxMemory() == 1 << 30, runtime.maxMemory()
jvm = second.sparkContext._gateway.proc
os.kill(jvm.pid, signal.SIGKILL)
jvm.wait()
third = reef.spark.session(master="local[2,4]")
assert third.range(3).count() == 3
third.stop()
"""
    done = run_script({}, script)
    assert done.returncode == 0, done.stderr


def test_a_long_folder_for_temporary_files_keeps_no_session_from_starting(tmp_path: Path) -> None:
    """The name of a socket has no more than some hundred bytes."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    script = """
import reef.spark
spark = reef.spark.session(master="local[1,4]")
assert spark.range(3).rdd.map(lambda row: row.id).collect() == [0, 1, 2]
spark.stop()
"""
    options = f"-Djava.io.tmpdir={folder}"
    done = run_script({"JAVA_TOOL_OPTIONS": options, "TMPDIR": str(folder)}, script)
    assert done.returncode == 0, done.stderr


def test_workers_are_spoken_to_by_sockets_where_there_is_a_folder_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = "spark.python.unix.domain.socket"
    assert _settings("local[1]", {}, "")[f"{name}.enabled"] == "true"
    monkeypatch.setattr(_session, "_TMP", str(tmp_path / "nowhere"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    assert _settings("local[1]", {}, "")[f"{name}.enabled"] == "false"
    assert not any(key.startswith(name) for key in _settings("yarn", {}, ""))


def test_an_archive_that_does_not_fit_is_done_without_and_not_a_word_is_said(
    tmp_path: Path,
) -> None:
    wrong = tmp_path / "wrong.jsa"
    wrong.write_bytes(b"no archive at all" * 1000)
    patch = (
        "import pathlib, reef.spark._archive as a\n"
        f"a.archive_path = lambda: pathlib.Path({str(wrong)!r})\n"
    )
    done = run_script({}, patch + SCRIPT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_java_is_told_clearly(tmp_path: Path) -> None:
    script = (
        "import reef, reef.spark\n"
        "try:\n    reef.spark.session(master='local[1]')\n"
        "except reef.errors.UnavailableError as error:\n    print(error)\n"
    )
    done = run_script({"JAVA_HOME": str(tmp_path / "nowhere")}, script)
    assert done.returncode == 0
    assert "no Spark session could be started" in done.stdout
    assert "nowhere/bin/java" in done.stdout
    assert "Java 17" in done.stdout


def test_no_connect_server_is_told_clearly() -> None:
    script = (
        "import reef, reef.spark\n"
        "try:\n    reef.spark.session()\n"
        "except reef.errors.UnavailableError as error:\n    print(error)\n"
    )
    done = run_script({"SPARK_REMOTE": "sc://127.0.0.1:1"}, script)
    assert done.returncode == 0
    assert "no Spark Connect server answers" in done.stdout


def test_a_master_that_does_not_answer_is_told_in_few_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark makes the context, and stops it a minute later: here, at once."""
    stopped: list[bool] = []

    class Context:
        _gateway = None

        def __init__(self, **_: object) -> None:
            pass

        def setLogLevel(self, level: str) -> None:
            pass

        def stop(self) -> None:
            stopped.append(True)

    def launched(conf: object, output: dict[str, Any]) -> object:
        output["stderr"].write(b"ERROR All masters are unresponsive! Giving up.\n\tat a.b(C:1)\n")
        return object()

    def refused(context: object) -> None:
        raise RuntimeError("Cannot call methods on a stopped SparkContext.")

    for name, fake in (
        ("SparkContext", Context),
        ("launch_gateway", launched),
        ("SparkSession", refused),
        ("_launched", None),
    ):
        monkeypatch.setattr(_session, name, fake)
    with pytest.raises(UnavailableError, match=r"'spark://host:7077'.*unresponsive") as told:
        _session.start_session("x", "spark://host:7077", {})
    assert "\n" not in str(told.value)
    assert stopped
