"""A namespace that is written, compacted and collected, on a clock that the test owns."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from reef.clock import Clock
from reef.database import Database
from reef.engine import Context
from reef.format import (
    KEY,
    LSN,
    DedupWindow,
    Manifest,
    SegmentOrigin,
    SegmentRef,
    decode_segment,
    dedup_key,
    encode_dedup,
    segment_key,
    segment_schema,
    with_field_id,
)
from reef.gc import CollectionPlan, CollectionReport, ObjectCount, Reason, collect, plan_collection
from reef.kv import KeyValue
from reef.manifest import (
    Head,
    ManifestChain,
    end_intent,
    register_intent,
    replace_segments,
    retained_points,
    set_retention,
)
from reef.segment import write_segment
from reef.settings import Settings, load_settings
from reef.store import MemoryStore, ObjectMeta, Store
from reef.testing import ManualClock, Operation, WrapperStore
from reef.types import new_ulid

T = TypeVar("T")

NAMESPACE = "ns"
GRACE_S = 900.0
DAY_S = 86400.0


def collect_garbage(context: Context, namespace: str) -> CollectionReport:
    """Delete what nothing needs any more, by the settings and the clock of `context`."""
    return collect(
        context.chain(namespace),
        context.store,
        settings=context.settings,
        clock=context.clock,
        apply=True,
    )


class HookedStore(WrapperStore):
    """Calls `before` with every request before it is carried out."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.before: Callable[[Operation, str], None] = lambda operation, key: None
        self.requests: list[tuple[Operation, str]] = []

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        self.requests.append((operation, key))
        self.before(operation, key)
        return call()

    def once(self, operation: Operation, part: str, hook: Callable[[], object]) -> None:
        """Call `hook` before the next such request whose key contains `part`, and then no more."""

        def before(asked: Operation, key: str) -> None:
            if asked == operation and part in key:
                self.before = lambda operation, key: None
                hook()

        self.before = before


class World:
    """A bucket with one namespace, and whoever works on it."""

    def __init__(self, inner: Store | None = None, *, seed: int = 1, **settings: object) -> None:
        self.clock = ManualClock()
        self.inner = inner or MemoryStore(clock=self.clock)
        self.store = HookedStore(self.inner)
        self.arguments = {
            "maintenance": "off",
            "gc_grace": GRACE_S,
            "retained_generations": 2,
            **settings,
        }
        self.rng = random.Random(seed)
        self.db = self.database()

    def database(self, store: Store | None = None, clock: Clock | None = None) -> Database:
        return Database(
            store or self.store,
            clock=clock or self.clock,
            rng=random.Random(self.rng.random()),
            **self.arguments,
        )

    @property
    def settings(self) -> Settings:
        return load_settings(self.arguments, environ={})

    def kv(self, mode: str = "w", **settings: object) -> KeyValue:
        return self.db.kv(NAMESPACE, mode=mode, **settings)

    def chain(self, store: Store | None = None, clock: Clock | None = None) -> ManifestChain:
        return ManifestChain(
            store or self.store,
            NAMESPACE,
            author="collector",
            settings=self.settings,
            clock=clock or self.clock,
            rng=random.Random(self.rng.random()),
        )

    @property
    def head(self) -> Head:
        head = self.chain(self.inner).load()
        assert head is not None
        return head

    @property
    def manifest(self) -> Manifest:
        return self.head.manifest

    def publish(self, change: Callable[[Manifest], Manifest] = lambda m: m) -> Head:
        """Publish a generation; without a change, one that says the same."""
        return self.chain(self.inner).publish(lambda head: change(head.manifest))  # type: ignore[union-attr]

    def age(self, generations: int = 5, seconds: float = GRACE_S + 1) -> None:
        """Let everything up to now become old and superseded."""
        for _ in range(generations):
            self.publish()
        self.clock.advance(seconds)
        self.publish()
        self.clock.advance(seconds)

    def collect(self, store: Store | None = None, **arguments: Any) -> CollectionReport:
        store = store or self.store
        clock = arguments.pop("clock", self.clock)
        return collect(
            self.chain(store, clock),
            store,
            settings=self.settings,
            clock=clock,
            **{"apply": True, **arguments},
        )

    def plan(self, now_us: int | None = None) -> CollectionPlan:
        return plan_collection(
            self.chain(), self.store, settings=self.settings, clock=self.clock, now_us=now_us
        )

    def contents(self) -> Mapping[bytes, bytes]:
        """Return what a fresh reader finds."""
        with self.database(self.inner).kv(NAMESPACE, mode="r") as kv:
            return dict(kv.items())

    # What is there.

    def list(self, folder: str = "") -> dict[str, ObjectMeta]:
        """Return what lies in a folder of the namespace, by its name there."""
        prefix = f"namespaces/{NAMESPACE}/" + (f"{folder}/" if folder else "")
        return {meta.key[len(prefix) :]: meta for meta in self.inner.list(prefix)}

    def slots(self) -> Sequence[int]:
        return [int(name[:20]) for name in self.list("wal")]

    def generations(self) -> Sequence[int]:
        return [int(name[:20]) for name in self.list("manifest")]

    def segments(self) -> set[str]:
        return {name.removesuffix(".seg") for name in self.list("segments")}

    def windows(self) -> set[str]:
        return {name.removesuffix(".dedup") for name in self.list("dedup")}

    # What others do.

    def put_segment(self, owner: str, *, id: str | None = None) -> str:
        """Upload a segment that no manifest names; return its id."""
        return self.write_segment(owner, _rows([b"stray"]), id=id).id

    def write_segment(self, owner: str, rows: pa.Table, *, id: str | None = None) -> SegmentRef:
        id = id or new_ulid(self.clock, self.rng) + (f"-{owner}" if owner else "")
        origin = SegmentOrigin(
            id=id, namespace=NAMESPACE, level=1, author="job", created_at_us=self.clock.now_us()
        )
        return write_segment(
            self.inner, NAMESPACE, rows.schema, origin, None, rows.combine_chunks().to_batches()
        )

    def compact(self, job: str = "compact-1", *, ends: bool = True) -> tuple[SegmentRef, ...]:
        """Merge all segments into one, dropping nothing; return those that it replaced."""
        head = self.publish(
            lambda m: register_intent(m, id=job, kind="compact", author="job", opened_at_us=0)
        )
        inputs = head.manifest.segments
        tables = [
            decode_segment(self.inner.get(segment_key(NAMESPACE, ref.id)))[1] for ref in inputs
        ]
        merged = pa.concat_tables(tables).sort_by([(KEY, "ascending"), (LSN, "descending")])
        output = self.write_segment(job, merged)

        def replaced(m: Manifest) -> Manifest:
            done = replace_segments(
                m,
                compactor_epoch=None,
                intent=job,
                inputs=inputs,
                outputs=(output,),
                known_points=retained_points(m),
            )
            return end_intent(done, job) if ends else done

        self.publish(replaced)
        return inputs

    def set_grace(self, seconds: float) -> None:
        self.publish(lambda m: set_retention(m, grace_ms=round(seconds * 1000)))


def _rows(keys: list[bytes]) -> pa.Table:
    schema = segment_schema([with_field_id(pa.field("value", pa.binary()), 1)])
    columns = [keys, [1 << 20] * len(keys), [False] * len(keys), [b""] * len(keys)]
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def going(tallies: tuple[ObjectCount, ...]) -> dict[str, int]:
    """Return how many objects of each kind go."""
    counts: dict[str, int] = {}
    for tally in tallies:
        if tally.goes:
            counts[tally.kind] = counts.get(tally.kind, 0) + tally.objects
    return counts


def filled(world: World, *, flushes: int = 2, keys: int = 4) -> KeyValue:
    """Open the namespace, and write and flush; the last write stays in the log."""
    kv = world.kv()
    for flush in range(flushes):
        for key in range(keys):
            kv.put(b"k%d" % key, b"v%d" % flush, idempotency_key=f"{flush}-{key}")
        kv.flush()
    kv.put(b"unfolded", b"u")
    return kv


def reasons(world: World, kind: str) -> dict[Reason, int]:
    """Return how many objects of a kind stay or go, by reason."""
    return {
        tally.reason: tally.objects for tally in world.plan().object_counts if tally.kind == kind
    }


def reason_of(world: World, segment: str) -> Reason:
    """Return why the only unnamed segment stays or goes."""
    found = reasons(world, "segment")
    found.pop(Reason.NAMED, None)
    assert len(found) == 1, (segment, found)
    return next(iter(found))


def window(world: World, last_lsn: int) -> str:
    """Upload a dedup window that no manifest names."""
    id = new_ulid(world.clock, world.rng)
    world.inner.put_if_absent(dedup_key(NAMESPACE, id), encode_dedup(DedupWindow(last_lsn, (), ())))
    return id
