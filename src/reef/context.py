"""What a database shares with the namespaces opened through it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from reef.clock import Clock
from reef.maintenance import MaintenancePool
from reef.manifest import ManifestChain
from reef.metrics import Metrics
from reef.segment import BlockCache, DiskCache, SegmentReader
from reef.settings import Settings
from reef.store import Store
from reef.threads import Threads


@dataclass(frozen=True)
class Context:
    """A store and all other external dependencies: time, randomness, threads, memory."""

    store: Store
    settings: Settings
    clock: Clock
    rng: random.Random
    threads: Threads
    metrics: Metrics
    cache: BlockCache
    disk: DiskCache | None
    maintenance: MaintenancePool
    author: str
    """The writer's name, for people: a process on a host."""
    host: str

    def chain(self, namespace: str) -> ManifestChain:
        """Return a fresh view of a namespace's manifests."""
        return ManifestChain(
            self.store,
            namespace,
            author=self.author,
            settings=self.settings,
            clock=self.clock,
            rng=self.rng,
        )

    def segments(self, namespace: str) -> SegmentReader:
        """Return a reader of a namespace's segments, on the shared caches."""
        return SegmentReader(
            self.store, namespace, cache=self.cache, disk=self.disk, metrics=self.metrics
        )
