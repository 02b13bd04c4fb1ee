"""Buckets that tests of many files begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reef.store import Store, open_store
from tests.branching import Grove
from tests.damaged_buckets import Bucket
from tests.shop import Shop


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty one, in memory."""
    with open_store("memory://") as opened:
        yield opened


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    """Three generations, two segments of several blocks, thirteen log objects, two dedup windows."""
    bucket = Bucket(tmp_path / "b", row_block_bytes=500)
    bucket.write("flush", "flush", "leave")
    return bucket


@pytest.fixture
def grove() -> Grove:
    """An empty one, for a namespace and its branches."""
    return Grove()


@pytest.fixture
def shop() -> Shop:
    """A namespace without runs yet."""
    return Shop()
