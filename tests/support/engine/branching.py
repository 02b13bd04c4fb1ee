"""A namespace and its branches, written, compacted and collected on a clock that the test owns."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from reef.database import Database
from reef.errors import NotFoundError
from reef.format import Manifest, Pin
from reef.gc import CollectionReport, PinReason, collect
from reef.kv import KeyValue
from reef.manifest import ManifestChain
from reef.settings import Settings, load_settings
from reef.store import MemoryStore, Store
from reef.testing import ManualClock
from reef.types import namespace_of
from tests.support.engine.collecting import GRACE_S, HookedStore
from tests.support.jobs.compactor import Compactor
from tests.support.jobs.dying_tasks import CHANGES, Killed, Mortal

NS = "ns"


class Grove:
    """A bucket with one namespace and its branches, and whoever works on them."""

    def __init__(self, *, seed: int = 1, store: Store | None = None, **settings: object) -> None:
        self.clock = ManualClock()
        self.inner = store or MemoryStore(clock=self.clock)
        self.store = HookedStore(self.inner)
        self.arguments = {"gc_grace": GRACE_S, "retained_generations": 1, **settings}
        self.rng = random.Random(seed)
        self.db = self.database()

    @property
    def settings(self) -> Settings:
        return load_settings(self.arguments, environ={})

    def database(self, store: Store | None = None) -> Database:
        """Return another process's view of the bucket."""
        return Database(
            store or self.store,
            clock=self.clock,
            rng=random.Random(self.rng.random()),
            **{"maintenance": "off", **self.arguments},
        )

    def kv(self, branch: str | None = None, *, mode: str = "w", **settings: object) -> KeyValue:
        return self.db.kv(NS, branch=branch, mode=mode, **settings)

    def contents(self, branch: str | None = None, lsn: int | None = None) -> dict[bytes, bytes]:
        """Return what a fresh reader finds."""
        with self.database(self.inner) as db, db.kv(NS, branch=branch, mode="r") as kv:
            return dict(kv.items() if lsn is None else kv.at(lsn=lsn).items())

    def chain(self, branch: str | None = None) -> ManifestChain:
        return self.database(self.inner).context().chain(namespace_of(NS, branch))

    def manifest(self, branch: str | None = None) -> Manifest:
        head = self.chain(branch).load()
        assert head is not None
        return head.manifest

    def pins(self, branch: str | None = None) -> tuple[Pin, ...]:
        return self.manifest(branch).pins

    def publish(
        self, branch: str | None = None, change: Callable[[Manifest], Manifest] = lambda m: m
    ) -> None:
        self.chain(branch).publish(lambda head: change(head.manifest))  # type: ignore[union-attr]

    def age(self, *branches: str | None, seconds: float = GRACE_S + 1) -> None:
        """Let everything up to now become old, and superseded in some namespaces."""
        for _ in range(2):
            for branch in branches or (None,):
                for _ in range(4):
                    self.publish(branch)
            self.clock.advance(seconds)

    def collect(self, branch: str | None = None, **arguments: Any) -> CollectionReport:
        context = self.database(arguments.pop("store", None)).context()
        return collect(
            context.chain(namespace_of(NS, branch)),
            context.store,
            settings=self.settings,
            clock=self.clock,
            **{"apply": True, **arguments},
        )

    def pin_reasons(self, branch: str | None = None) -> dict[str, PinReason]:
        """Return what a collection would do to each pin."""
        plan = self.collect(branch, apply=False).plan
        return {judged.pin.child: judged.reason for judged in plan.pins}

    def compact(self, branch: str | None = None, floor_lsn: int | None = None) -> None:
        Compactor(self.db.context(), namespace_of(NS, branch)).run(floor_lsn=floor_lsn)

    def objects(self, branch: str | None, folder: str) -> list[str]:
        prefix = f"namespaces/{namespace_of(NS, branch)}/{folder}/"
        return [meta.key[len(prefix) :].split(".")[0] for meta in self.inner.list(prefix)]


def grown(grove: Grove) -> KeyValue:
    """Open the namespace and write: some of it is in segments, and some only in the log."""
    kv = grove.kv()
    for number in range(8):
        kv.put(b"k%d" % number, b"old")
    kv.flush()
    for number in range(4):
        kv.put(b"k%d" % number, b"new")
    kv.flush()
    kv.put(b"log", b"unfolded")
    kv.delete(b"k7")
    return kv


def branched_early(grove: Grove) -> int:
    """Make the branch b of a version that lies inside of a segment, {k: 1}; return its LSN."""
    kv = grove.kv()
    early = kv.put(b"k", b"1").lsn
    kv.put(b"k", b"2")
    kv.put(b"late", b"2")
    kv.flush()
    kv.branch("b", lsn=early)
    return early


def is_there(grove: Grove, branch: str | None) -> bool:
    try:
        grove.contents(branch)
    except NotFoundError:
        return False
    return True


def root() -> Grove:
    """A bucket whose namespace has grown, and nobody has open."""
    grove = Grove()
    grown(grove).close()
    return grove


def with_b() -> Grove:
    """The same with a branch, which was written to."""
    grove = root()
    grove.kv(mode="r").branch("b")
    with grove.kv("b") as branch:
        branch.put(b"k2", b"branch")
        branch.flush()
        branch.put(b"k3", b"branch")
    return grove


def with_a_dead_maker(changes: int) -> Grove:
    """A pin stands for a branch that was never made: its maker died after so many changes."""
    grove = root()
    mortal = Mortal(grove.inner, changes + 1, is_sent=False, among=CHANGES)
    with pytest.raises(Killed):
        grove.database(mortal).kv(NS, mode="r").branch("b")
    assert grove.pins()
    return grove


def die() -> None:
    """Be killed, where a hook calls it."""
    raise KeyboardInterrupt


def die_branching(grove: Grove, kv: KeyValue) -> None:
    """Die in making the branch b of `kv`: its pin stands, and there is no manifest of it."""
    grove.store.once("upload", "ns@b/segments", die)
    with pytest.raises(KeyboardInterrupt):
        kv.branch("b")
