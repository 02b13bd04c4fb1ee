"""A bucket of many namespaces of mixed sizes with backlog: folded and compacted in a few jobs."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import reef
from reef.database import Database
from reef.jobs import CompactionOptions, IndexOptions, compact, index, standing_intents
from reef.spark import spark_runner

NAMESPACES = 400
Contents = dict[str, dict[bytes, bytes]]


@pytest.fixture(params=[400, pytest.param(2000, marks=pytest.mark.nightly)], autouse=True)
def namespaces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "NAMESPACES", request.param)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with reef.connect(f"file://{tmp_path}/bucket?fsync=off") as db:
        yield db


def write_to_all(db: Database, rng: random.Random, contents: Contents) -> None:
    """Write to every namespace: most are small, one of a hundred is not, one of ten has deletes."""
    for number in range(NAMESPACES):
        name = f"tenant-{number:04}"
        rows = 3000 if number % 100 == 0 else rng.randrange(1, 40)
        puts = {b"%05d" % rng.randrange(20_000): rng.randbytes(20) for _ in range(rows)}
        held = contents.setdefault(name, {})
        gone = [key for key in list(held)[:3] if key not in puts] if number % 10 == 0 else []
        with db.kv(name) as kv:
            kv.write(puts=puts, deletes=gone)
        held.update(puts)
        for key in gone:
            del held[key]


def stored(db: Database, names: list[str]) -> Contents:
    found = {}
    for name in names:
        with db.kv(name, mode="r") as kv:
            found[name] = dict(kv.items())
    return found


def test_many_namespaces_are_folded_and_compacted(spark: SparkSession, db: Database) -> None:
    rng = random.Random(7)
    runner = spark_runner(db.context(), spark)
    contents: Contents = {}
    for _ in range(2):
        write_to_all(db, rng, contents)
        folded = index(db, runner=runner)
        assert len(folded.records) == NAMESPACES
        assert {record.state for record in folded.records} == {"done"}
    # One huge namespace among them is split into many tasks, which share a job with the others'.
    with db.kv("huge") as kv:
        for i in range(40):
            kv.write(puts={b"%08d" % key: rng.randbytes(200) for key in range(i, 40_000, 40)})
    split = index(db, runner=runner, options=IndexOptions(task_bytes=1 << 20))
    assert [record.namespace for record in split.records if record.state == "done"] == ["huge"]
    assert split.tasks.count > 4
    merged = compact(db, runner=runner, options=CompactionOptions(min_input_files=2))
    assert not merged.failed
    assert sum(record.state == "done" for record in merged.records) == NAMESPACES + 1
    names = [*contents][::10]
    assert stored(db, names) == {name: contents[name] for name in names}
    assert merged.totals["dropped"] > 0
    assert all(standing_intents(db.context(), name) == () for name in [*names, "huge"])
    with db.kv("huge", mode="r") as kv:
        assert sum(batch.num_rows for batch in kv.scan()) == 40_000
