"""A namespace that is written in every way, and what its change feed must tell."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from reef.format import (
    LogKind,
    LogObject,
    LogRecord,
    Prev,
    encode_log,
    log_key,
    segment_schema,
    with_field_id,
)
from reef.kv import KeyValue
from reef.manifest import end_intent, register_intent
from reef.types import pack_lsn
from tests.support.engine.collecting import NAMESPACE, World
from tests.support.engine.open_handles import writer_of
from tests.support.engine.versions import log_batch

Change = tuple[int, str, bytes, bytes | None, bytes | None]
"""Its version, what it did, the key, the value, and the value before."""


def told(batches: Iterator[pa.RecordBatch]) -> list[Change]:
    """Return changes as the model has them; without before images, None for those."""
    return [
        (
            row["_lsn"],
            row["_op"],
            row["key"],
            row["value"],
            row["_before"]["value"] if row.get("_before") else None,
        )
        for batch in batches
        for row in batch.to_pylist()
    ]


def bare(changes: list[Change]) -> list[Change]:
    return [(*change[:4], None) for change in changes]


def above(changes: list[Change], after: int, upto: int = 1 << 62) -> list[Change]:
    return [change for change in changes if after < change[0] <= upto]


@dataclass
class FeedHistory:
    """A namespace that is written to, and the model of its feed."""

    world: World
    kv: KeyValue
    rng: random.Random
    state: dict[bytes, bytes] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    lsns: list[int] = field(default_factory=lambda: [0])
    serial: int = 0

    def value(self) -> bytes:
        self.serial += 1
        return b"%d" % self.serial

    def note(self, lsn: int, rows: list[tuple[bytes, bytes | None]]) -> None:
        for key, value in rows:
            op = "delete" if value is None else "upsert"
            self.changes.append((lsn, op, key, value, self.state.get(key)))
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value
        self.lsns.append(lsn)

    def key(self) -> bytes:
        return b"k%02d" % self.rng.randrange(12)

    def write(self) -> None:
        keys = self.rng.sample([b"k%02d" % i for i in range(12)], self.rng.randint(1, 4))
        cut = self.rng.randint(0, len(keys))
        puts = {key: self.value() for key in keys[:cut]}
        lsn = self.kv.write(puts, keys[cut:]).lsn
        self.note(lsn, [*puts.items(), *((key, None) for key in keys[cut:])])

    def attach(self) -> None:
        """Attach two segments with keys of their own and tombstones."""
        job = f"load-{self.serial}-{len(self.lsns)}"
        self.world.publish(
            lambda m: register_intent(m, id=job, kind="load", author="t", opened_at_us=0)
        )
        keys = sorted(self.rng.sample([b"k%02d" % i for i in range(12)], 4))
        rows = [(key, None if self.rng.random() < 0.3 else self.value()) for key in keys]
        refs = [self.world.write_segment(job, table(part)) for part in (rows[:2], rows[2:])]
        writer = writer_of(self.kv)
        lsn = writer.attach(list(reversed(refs))).lsn
        self.world.publish(lambda m: end_intent(m, job))
        self.note(lsn, rows)

    def reopen(self) -> None:
        """Another writer takes over: fences."""
        self.kv = self.world.kv()

    def void(self) -> None:
        """Let an object land that was in flight behind a write that lost its slot; then take over."""
        slot = self.world.slots()[-1] + 1
        log = LogObject(
            kind=LogKind.DATA,
            slot=slot,
            epoch=self.world.manifest.writer_epoch,
            writer_id=bytes(16),
            nonce=b"\7" * 16,
            created_at_us=0,
            prev=Prev(),
            records=(LogRecord(lsn=pack_lsn(slot, 0), batch=log_batch({b"void": b"void"})),),
        )
        self.world.inner.put_if_absent(log_key(NAMESPACE, slot), encode_log(log))
        self.reopen()
        self.write()


def table(rows: list[tuple[bytes, bytes | None]]) -> pa.Table:
    schema = segment_schema([with_field_id(pa.field("value", pa.binary()), 1)])
    columns = [
        [key for key, _ in rows],
        [1] * len(rows),
        [value is None for _, value in rows],
        [value for _, value in rows],
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def history(seed: int, **settings: object) -> FeedHistory:
    world = World(seed=seed, **settings)
    return FeedHistory(world, world.kv(), random.Random(seed))
