"""A manifest chain: the bucket, what goes wrong on the way to it, and actors that share it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reef.format import Boundary, Manifest, decode_manifest, manifest_key
from reef.manifest import Head, ManifestChain, add_snapshot, advance_boundary, open_writer
from reef.settings import Settings
from reef.store import FileStore, MemoryStore, Store
from reef.testing import CountingStore, FaultyStore, ManualClock, WrapperStore

NAMESPACE = "products"
GRACE_S = 900.0
SETTINGS = Settings(cas_max_retries=4)


def key(generation: int) -> str:
    return manifest_key(NAMESPACE, generation)


def first() -> Manifest:
    return Manifest.first(NAMESPACE, author="nobody", nonce="0" * 32, created_at_us=0)


def opened(head: Head | None) -> Manifest:
    """The change that every test publishes: one more epoch."""
    return open_writer(first() if head is None else head.manifest)


def snapshotted(id: str) -> Callable[[Head | None], Manifest]:
    """Return a change that can be found again."""

    def change(head: Head | None) -> Manifest:
        m = first() if head is None else head.manifest
        return add_snapshot(m, id=id, lsn=0, expires_at_us=0)

    return change


class ChainWorld:
    """A bucket, what goes wrong on the way to it, and actors that share it."""

    def __init__(self, inner: Store, clock: ManualClock) -> None:
        self.inner = inner
        self.clock = clock
        self.faults = FaultyStore(inner, clock=clock)
        self.store = CountingStore(self.faults)

    def chain(self, author: str = "writer", *, store: Store | None = None) -> ManifestChain:
        return ManifestChain(
            store or self.store,
            NAMESPACE,
            author=author,
            settings=SETTINGS,
            clock=self.clock,
            rng=random.Random(author),
        )

    def grow(self, generations: int) -> None:
        """Let somebody else publish that many."""
        other = self.chain("other", store=self.inner)
        for _ in range(generations):
            other.publish(opened)

    def collect(self, boundary: int) -> None:
        """Do what garbage collection does: record the boundary, then delete below it."""
        collector = self.chain("collector", store=self.inner)

        def change(head: Head | None) -> Manifest:
            assert head is not None
            m = head.manifest
            return advance_boundary(m, Boundary(slot=m.wal_floor, generation=boundary))

        kept = {s.generation for s in collector.publish(change).manifest.snapshots}
        for found in collector.generations():
            if found.number < boundary and found.number not in kept:
                self.inner.delete(key(found.number))

    def damage(self, generation: int) -> None:
        """Flip a bit of a generation where it lies."""
        data = bytearray(self.inner.get(key(generation)))
        data[200] ^= 1
        self.overwrite(generation, bytes(data))

    def overwrite(self, generation: int, data: bytes) -> None:
        self.inner.delete(key(generation))
        self.inner.put_if_absent(key(generation), data)

    def stored(self, generation: int) -> Manifest:
        return decode_manifest(self.inner.get(key(generation)), key=key(generation))

    def numbers(self) -> list[int]:
        return [found.number for found in self.chain(store=self.inner).generations()]


@contextmanager
def open_world(kind: str, folder: Path) -> Iterator[ChainWorld]:
    """Yield a world on a store of that kind: memory, or file."""
    clock = ManualClock()
    inner: Store
    if kind == "memory":
        inner = MemoryStore(clock=clock)
    else:
        inner = FileStore(folder / "bucket", fsync=False)
    with inner:
        yield ChainWorld(inner, clock)


class Intruder(WrapperStore):
    """Runs something once, before the next request of one kind is carried out."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._before: dict[str, Callable[[], object]] = {}

    def before(self, operation: str, act: Callable[[], object]) -> None:
        self._before[operation] = act

    def _request(self, operation, key, call):  # type: ignore[no-untyped-def]
        act = self._before.pop(operation, None)
        if act is not None:
            act()
        return call()
