"""Sessions that have the data source "reef"."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from reef.spark._session import open_session
from reef.spark.source import ReefDataSource


def session(
    app_name: str = "reef",
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session that has the data source "reef": the running one, or a new one.

    `remote` is the address of a Spark Connect server, by default that of `SPARK_REMOTE`; `master` is
    Spark's own word for where to run, by default this machine's cores. `conf` are Spark's settings.
    Raises InvalidInputError if a session with other settings runs, or if Spark Connect's packages
    are not installed; UnavailableError if none can be started.
    """
    spark = open_session(app_name, master, remote, conf)
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("reef")` and `df.write.format("reef")` known to a session."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(ReefDataSource)
