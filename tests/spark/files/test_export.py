"""What `reef export` writes, value for value, and what keeps it from doing so."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import reef
from reef.errors import CorruptError, InvalidInputError, UnavailableError
from reef.jobs import Bucket
from reef.spark import register
from reef.spark.files._export import export


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_text_formats_keep_values_as_they_are(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    """Blanks at the ends, and times to the microsecond, whatever the time zone of the session."""
    at, old = "2026-01-02T03:04:05.123456Z", "0001-01-01T00:00:00.000001Z"
    with reef.connect(bucket.url) as db, db.namespace("ns") as ns:
        ns.alter(add={"s": "string", "at": "datetime", "all": "[]datetime"})
        ns.upsert([{"id": " a ", "s": "  x\t", "at": at, "all": [at, old]}])
        ns.upsert([{"id": "b", "s": " ", "at": old, "all": []}])
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        for format in ("csv", "jsonl"):
            export(spark, bucket.url, "ns", str(tmp_path / format), format=format)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    lines = [row for part in (tmp_path / "csv").glob("*.csv") for row in csv_rows(part)]
    assert sorted(lines, key=str) == [
        {"id": " a ", "s": "  x\t", "at": at, "all": json.dumps([at, old], separators=(",", ":"))},
        {"id": "b", "s": " ", "at": old, "all": "[]"},
    ]
    texts = [path.read_text() for path in (tmp_path / "jsonl").glob("*.json")]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    assert {"id": " a ", "s": "  x\t", "at": at, "all": [at, old]} in rows


def csv_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_what_keeps_an_export_from_being_written_is_told_in_a_line(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    with reef.connect(bucket.url) as db, db.namespace("ns") as ns:
        ns.upsert([{"id": "a", "X": 1, "x": 2}])
        ns.flush()
    out = tmp_path / "out"
    with pytest.raises(InvalidInputError, match=r"'X' and 'x' differ.*--columns"):
        export(spark, bucket.url, "ns", str(out))
    (tmp_path / "file").write_text("")
    for where, text in (
        (
            str(tmp_path / "file" / "out"),
            "could not write .*/file/out: .*Parent path is not a directory",
        ),
        ("none://b/out", "No FileSystem for scheme.*remove what was written there"),
    ):
        with pytest.raises(UnavailableError, match=text) as told:
            export(spark, bucket.url, "ns", where, columns=["x"])
        assert "\n" not in str(told.value)
    (segment,) = (tmp_path / "bucket").rglob("*.seg")
    content = bytearray(segment.read_bytes())
    content[40:200] = bytes(160)
    segment.chmod(0o644)
    segment.write_bytes(content)
    with pytest.raises(CorruptError, match="reef repair") as damaged:
        export(spark, bucket.url, "ns", str(out), columns=["x"])
    assert damaged.value.key.endswith(segment.name)
    assert str(damaged.value).count(damaged.value.advice) == 1
    assert damaged.value.advice[:10] not in damaged.value.got
    assert not out.exists()
