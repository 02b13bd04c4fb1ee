"""The class-data archive: Spark's classes as a JVM has them in memory, so that the next one starts
sooner.

`make setup` makes it once for this environment. The JVM checks by itself that an archive fits it and
its class path, and does without it otherwise.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyspark

from reef.errors import UnavailableError


def _java_release(java: Path) -> str:
    """Return what a Java installation says of itself, without running it."""
    path = java.resolve().parents[1] / "release"
    return path.read_text() if path.is_file() else ""


def archive_path() -> Path:
    """Return where the archive for this environment's PySpark and Java is, or would be."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    jars = Path(pyspark.__file__).with_name("jars").stat().st_mtime_ns  # another, once reinstalled
    key = hashlib.sha256(f"{java.resolve()} {_java_release(java)} {jars}".encode()).hexdigest()[:12]
    # Beside the jars that it lists by their paths: no other environment could use it.
    return Path(sys.prefix, "share", "reef", f"spark-{pyspark.__version__}-{key}.jsa")


def use_archive() -> str:
    """Return the JVM options that use the archive, "" if there is none."""
    path = archive_path()
    # Without a word if it does not fit: the JVM would warn on the terminal.
    return f"-XX:SharedArchiveFile={path} -Xshare:auto -Xlog:disable" if path.is_file() else ""


def make_archive() -> Path:
    """Make the archive if there is none yet, by running a session like ours; return its path.

    Raises UnavailableError if the JVM did not write one.
    """
    from reef.spark._session import start_session

    path = archive_path()
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    spark = start_session("reef-archive", "local[2,4]", {}, f"-XX:ArchiveClassesAtExit={partial}")
    try:
        ids = spark.range(0, 4, 1, 2).mapInArrow(_same, "id long")
        ids.collect()
        ids.repartition(2).orderBy("id").toArrow()
        ids.selectExpr("id % 2 as odd").groupBy("odd").count().collect()
    finally:
        gateway = spark.sparkContext._gateway
        spark.stop()
        assert gateway is not None
        gateway.shutdown()
        process = gateway.proc
        process.stdin.close()  # which is what ends the JVM, and an archive is written at its end
        process.wait()
    if not partial.is_file():
        raise UnavailableError(
            f"Java wrote no class-data archive to {partial}: sessions start without one; look for "
            "room on that disk, or use another Java"
        )
    for old in path.parent.glob("spark-*.jsa"):
        old.unlink()  # of another Java or PySpark: 160 MB that nothing uses
    partial.replace(path)
    return path


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
