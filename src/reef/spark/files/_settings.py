"""Settings of a session that hold while Reef reads or writes files by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession


@contextmanager
def set_for_a_while(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings while the body runs, and restore them afterwards."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        with suppress(PySparkException, Py4JError, ConnectionError):  # the JVM may be gone
            for name, was in before.items():
                spark.conf.unset(name) if was is None else spark.conf.set(name, was)
