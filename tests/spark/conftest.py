"""One Spark session for all tests of this folder: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import reef
from reef.jobs import Bucket
from reef.spark._archive import use_archive
from reef.spark._session import start_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores of this machine, which tries a lost task again."""
    spark = start_session("reef-tests", "local[2,4]", {}, use_archive())
    yield spark
    gateway = spark.sparkContext._gateway
    spark.stop()
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    assert gateway.proc.wait() is not None


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    """An empty bucket in a folder."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    with reef.connect(f"file://{folder}?fsync=off") as db:
        return Bucket.of(db.context())
