"""What tests of many files begin with: buckets, and commands on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reef.database import Database
from reef.documents import Documents
from reef.store import Store, open_store
from tests.support.commands import Run, RunJson, json_runner, runner
from tests.support.doctor.damaged_buckets import Bucket, make_bucket
from tests.support.engine.branching import Grove
from tests.support.engine.chains import ChainWorld, open_world
from tests.support.engine.open_database import database
from tests.support.engine.segments import Bench
from tests.support.jobs.shop import Shop


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty one, in memory."""
    with open_store("memory://") as opened:
        yield opened


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    """Three generations, two segments of several blocks, thirteen log objects, two dedup windows."""
    return make_bucket(tmp_path)


@pytest.fixture
def serial(tmp_path: Path) -> Bucket:
    """The same, by a writer that is told to have one log object in flight."""
    return make_bucket(tmp_path, max_parallel_writes=1)


@pytest.fixture(params=[1, 8])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    """The same, by a writer with one log object in flight, or with eight."""
    return make_bucket(tmp_path, max_parallel_writes=request.param)


@pytest.fixture
def collected(tmp_path: Path) -> Bucket:
    """A namespace whose log and older generations are gone."""
    bucket = make_bucket(tmp_path, gc_grace=0, retained_generations=1)
    bucket.collect()
    assert len(bucket.files("wal")) <= 3  # fences
    return bucket


@pytest.fixture
def grove() -> Grove:
    """An empty one, for a namespace and its branches."""
    return Grove()


@pytest.fixture
def shop() -> Shop:
    """A namespace without runs yet."""
    return Shop()


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChainWorld]:
    """A chain of manifests without any yet, in memory or in files."""
    with open_world(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def bench() -> Bench:
    """A store to write segments to and to read them from, counted and faulty at will."""
    return Bench()


@pytest.fixture
def db() -> Iterator[Database]:
    """A database on an empty memory store."""
    with database() as opened:
        yield opened


@pytest.fixture
def ns(db: Database) -> Iterator[Documents]:
    """A namespace of documents in `db`, empty, open for writing."""
    with db.namespace("ns") as opened:
        yield opened


@pytest.fixture
def run(bucket: Bucket, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command on the bucket: `run("verify", NAMESPACE)`; returns its code, stdout and stderr."""
    return runner(bucket.url, capfdbinary)


@pytest.fixture
def run_json(run: Run) -> RunJson:
    """Runs a command with --json; returns its code and what it printed."""
    return json_runner(run)
