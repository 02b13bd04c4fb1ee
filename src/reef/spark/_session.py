"""Sessions: one that runs already, Spark Connect, a cluster, or this machine's cores."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import IO, Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from reef.errors import InvalidInputError, UnavailableError
from reef.spark._archive import use_archive

LOCAL = "local[*,4]"
"""Every core, and four tries for a task whose Python worker was lost; `local[*]` gives it one."""

LOOPBACK = "127.0.0.1"
CONNECT_PORT = 15002
CONNECT_SECONDS_MAX = 15
END_SECONDS_MAX = 30
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SOCKETS = "spark.python.unix.domain.socket"
_TMP = "/tmp"
# Of 104 on macOS and 108 on Linux, PySpark's own name for a socket takes 43.
_SOCKET_FOLDER_BYTES_MAX = 60

# What a session can be asked for at any time, and what must be there when its JVM starts.
_RUNTIME = {"spark.sql.python.filterPushdown.enabled": "true"}
_STATIC = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_WORDS_LINES = 10
_starting = threading.Lock()
_launched: Any = None
"""The gateway to the JVM that was started here last."""


def open_session(
    app_name: str = "reef",
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    is_quiet: bool = True,
) -> SparkSession:
    """Return a Spark session: the running one, or a new one.

    `remote` is the address of a Spark Connect server, by default that of `SPARK_REMOTE`; `master`
    is Spark's own word for where to run, by default this machine's cores. `conf` are Spark's
    settings. Unless `is_quiet` is false, what the JVM says does not reach the terminal.

    Raises InvalidInputError if a session with other settings runs, or if Spark Connect's packages
    are not installed; UnavailableError if none can be started.
    """
    if master and remote:
        raise InvalidInputError(
            f"both master {master!r} and remote {public_address(remote)!r} were given; give one of them"
        )
    settings = dict(conf or {})
    with _starting:
        spark = _running()
        if spark is not None:
            _check_running(spark, master, remote, settings)
        elif address := remote or (not master and os.environ.get("SPARK_REMOTE")):
            spark = _connect_remote(app_name, address, settings)
        else:
            spark = start_session(app_name, master, settings, use_archive(), is_quiet=is_quiet)
    return spark


def start_session(
    app_name: str,
    master: str | None,
    conf: Mapping[str, str],
    java_options: str = "",
    *,
    is_quiet: bool = True,
) -> SparkSession:
    """Start a JVM and a session in it, as `conf` says. Raises UnavailableError.

    If other code has started a JVM without a session, the session uses that one.
    """
    global _launched
    _let_go()
    settings = _settings(master, conf, java_options)
    spark_conf = SparkConf(loadDefaults=False).setAppName(app_name)
    for name, value in settings.items():
        spark_conf.set(name, value)
    if _is_here(settings.get("spark.master", "")):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)  # or some of its servers take another
    context: SparkContext | None = None
    with tempfile.TemporaryFile() as log:
        try:
            if SparkContext._gateway is None:
                output = {"stdout": log, "stderr": log} if is_quiet else {}
                _launched = launch_gateway(spark_conf, output)
            context = SparkContext(conf=spark_conf, gateway=SparkContext._gateway or _launched)
            context.setLogLevel("ERROR" if is_quiet else "WARN")
            return SparkSession(context)
        # Java's own errors come in many classes, those of a JVM that is gone among them. Of a master
        # that does not answer, the context is there and has stopped.
        except Exception as error:
            if context is not None:
                context.stop()
            raise UnavailableError(
                f"no Spark session could be started on {settings.get('spark.master')!r}: "
                f"{_last_words(log) or error}; Java 17 or later is needed, see docs/pipeline.md"
            ) from error


def _let_go() -> None:
    """End and forget the JVM that was started here before, if any; also forget one that has died.

    PySpark would keep using it, dead or alive, and a JVM keeps the memory that it was started with.
    """
    gateway = SparkContext._gateway
    if gateway is not None and (gateway is _launched or not _is_alive(gateway)):
        SparkContext._gateway = SparkContext._jvm = None
        _end_jvm(gateway)


def _is_alive(gateway: Any) -> bool:
    """Return whether the JVM behind a gateway answers."""
    try:
        gateway.jvm.java.lang.System.nanoTime()
    except (Py4JError, OSError):
        return False
    return True


def _end_jvm(gateway: Any) -> None:
    """End a JVM that no session runs in, if it has not ended."""
    with suppress(Py4JError, OSError):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)  # None: spark-submit's, which ends with us
    if process is not None:
        with suppress(OSError, subprocess.TimeoutExpired):
            process.stdin.close()  # by which it knows
            process.wait(END_SECONDS_MAX)


def _settings(master: str | None, conf: Mapping[str, str], java_options: str) -> dict[str, str]:
    """Return all of Spark's settings: the caller's override Reef's defaults."""
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has chosen where to run
    chosen = {**_STATIC, **_RUNTIME}
    if not is_submitted or master:
        chosen["spark.master"] = master or conf.get("spark.master", LOCAL)
    if _is_here(chosen.get("spark.master", "")):
        chosen |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(_import_paths()),
            **_sockets(),
        }
    settings = {**chosen, **conf}
    if master:
        settings["spark.master"] = master
    if java_options:
        settings[JAVA_OPTIONS] = f"{java_options} {conf.get(JAVA_OPTIONS, '')}".strip()
    return settings


def _sockets() -> dict[str, str]:
    """Return how Python workers are spoken to: by sockets in a folder, where there is one for them.

    By TCP, rows cost about a fifth more CPU to come over. The folder is set explicitly: Java's own
    for temporary files may be too long for the name of a socket, or not be writable.
    """
    for folder in (_TMP, tempfile.gettempdir()) if hasattr(socket, "AF_UNIX") else ():
        is_short = len(os.fsencode(folder)) <= _SOCKET_FOLDER_BYTES_MAX
        if is_short and os.access(folder, os.W_OK | os.X_OK):
            return {f"{_SOCKETS}.enabled": "true", f"{_SOCKETS}.dir": folder}
    return {f"{_SOCKETS}.enabled": "false"}


def _is_here(master: str) -> bool:
    """Return whether the executors run on this machine, with its files and its Python."""
    return master.startswith(("local", f"spark://{LOOPBACK}", "spark://localhost"))


def _import_paths() -> list[str]:
    """Return where this process imports from, beyond what every process of its Python does."""
    own = (sys.prefix, sys.base_prefix)
    return [
        path
        for path in dict.fromkeys(os.path.abspath(entry) for entry in sys.path if entry)
        if os.path.isdir(path) and not path.startswith(tuple(os.path.join(p, "lib") for p in own))
    ]


def _running() -> SparkSession | None:
    """Return the session of this process, whichever thread made it; not one whose JVM is gone."""
    _forget_dead()
    try:
        return SparkSession.active()
    except PySparkException:
        # A context that somebody made without a session is one to use, and there can be no second.
        if SparkContext._active_spark_context is None:
            return None
        return SparkSession.builder.getOrCreate()


def _forget_dead() -> None:
    """Make PySpark forget a session whose JVM is gone: it would give it out again and again."""
    context = SparkContext._active_spark_context
    if context is not None and not _is_alive(context._gateway):
        context._jsc = None  # or the JVM would be asked to stop
        context.stop()
    session = SparkSession._instantiatedSession
    if session is not None and session._sc._jsc is None:
        SparkSession._instantiatedSession = SparkSession._activeSession = None


def _check_running(
    spark: SparkSession, master: str | None, remote: str | None, conf: Mapping[str, str]
) -> None:
    """Apply the requested settings to a running session. Raises InvalidInputError if it cannot."""
    runs_on = spark.conf.get("spark.master", None)
    if master and runs_on != master:
        raise InvalidInputError(
            f"master is {master!r}, and a session runs on {runs_on!r}; stop that session first"
        )
    if remote and hasattr(spark, "_jsparkSession"):
        raise InvalidInputError(
            f"remote is {public_address(remote)!r}, and a session runs on {runs_on!r}; "
            "stop that session first"
        )
    for name, value in conf.items():
        if spark.conf.get(name, None) == value:
            continue
        try:
            spark.conf.set(name, value)
        except PySparkException as error:
            raise InvalidInputError(
                f"the setting {name} cannot be changed while a session runs; stop that session first"
            ) from error


def _connect_remote(app_name: str, address: str, conf: Mapping[str, str]) -> SparkSession:
    """Return a session of a Spark Connect server."""
    if find_spec("grpc") is None:
        raise InvalidInputError(
            f"Spark Connect at {public_address(address)!r} needs packages that are not installed: "
            "pip install 'pyspark[connect]'"
        )
    _check_listens(address)
    builder = SparkSession.builder.remote(address).appName(app_name)
    for name, value in {**_RUNTIME, **conf}.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise UnavailableError(
            f"no Spark Connect server answers at {public_address(address)!r}: "
            f"{str(error).replace(address, public_address(address))}"
        ) from error


def public_address(address: str) -> str:
    """Return an address of Spark Connect without its parameters: a token may be among them."""
    return address.split(";")[0]


def _check_listens(address: str) -> None:
    """Raise UnavailableError if no server listens: Spark's client would try for ten minutes."""
    where = urlsplit(address)
    if where.scheme != "sc" or any(name.lower() in _PROXIES for name in os.environ):
        return  # a server that PySpark starts by itself; or one that only a proxy can reach
    try:
        host = (where.hostname or LOOPBACK, where.port or CONNECT_PORT)
        socket.create_connection(host, timeout=CONNECT_SECONDS_MAX).close()
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"no Spark Connect server answers at {public_address(address)!r}: {error}"
        ) from error


def _last_words(log: IO[bytes]) -> str:
    """Return the last output of a JVM that did not start."""
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return "\n".join([line for line in lines if not line.startswith("\t")][-_WORDS_LINES:])
