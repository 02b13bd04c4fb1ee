"""Where buckets are for a benchmark: a folder on a disk, or a SeaweedFS of its own on 127.0.0.1."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from reef.store import Store
from reef.testing import Operation, WrapperStore
from tests.support.servers.object_stores import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, SeaweedFS
from tests.support.servers.process import LOOPBACK

T = TypeVar("T")

CACHE = Path(__file__).resolve().parent.parent / ".cache"


@dataclass(frozen=True)
class Place:
    """An empty bucket for Reef and one for its rival, on the same disk or server."""

    name: str
    url: str
    """Reef's."""
    rival_kind: Literal["local", "s3"]
    rival_options: Mapping[str, str]
    """The rival's, as the `object_store` crate calls them."""


@contextmanager
def file_place() -> Iterator[Place]:
    """Yield a place below `.cache`: a temporary folder might lie in memory, where fsync is free."""
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=CACHE) as folder:
        ours, rival = Path(folder, "reef"), Path(folder, "rival")
        ours.mkdir()
        rival.mkdir()
        yield Place("file://", f"file://{ours}", "local", {"local_path": str(rival)})


@contextmanager
def seaweedfs_place() -> Iterator[Place]:
    """Yield a place on a server that is started for it, and stopped."""
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), LOOPBACK, "localhost"]))
    with SeaweedFS() as server:
        ours, rival = server.make_bucket("reef"), server.make_bucket("rival")
        options = {
            "endpoint": server.endpoint,
            "bucket": rival,
            "region": REGION,
            "access_key_id": ACCESS_KEY_ID,
            "secret_access_key": SECRET_ACCESS_KEY,
            "allow_http": "true",
        }
        yield Place("SeaweedFS", server.url(ours), "s3", options)


class TimedStore(WrapperStore):
    """Takes the time of requests."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.seconds = 0.0
        self.requests: list[Operation] = []

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        started = time.perf_counter()
        try:
            return call()
        finally:
            self.seconds += time.perf_counter() - started
            self.requests.append(operation)
