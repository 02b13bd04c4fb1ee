"""Compaction against a plain history: whatever lies in the bucket, no read that is allowed changes.

First layouts as no writer makes them in one go: runs cut by keys, attached segments among others, clipped
references, columns that came later, vectors. Then a writer, snapshots, compactions and collections in
any order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reef.database import Database
from reef.doctor import verify
from reef.engine import Context
from reef.errors import RetentionError
from reef.format import (
    Manifest,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    segment_schema,
)
from reef.jobs import CompactionOptions, CompactionResult, InProcess
from reef.jobs._compaction._compact_pass import plan_compaction
from reef.kv import KeyValueSnapshot
from reef.manifest import add_snapshot, overlaps, set_retention
from reef.segment import lookup_many, merge, write_segment
from reef.store import MemoryStore
from reef.types import new_ulid
from tests.support.engine.collecting import NAMESPACE, World
from tests.support.jobs.passes import compact

LSNS = 12
keys = st.sampled_from([b"", b"\0", b"a", b"a\0", b"aa", b"b", b"c", b"d", b"x" * 30, b"\xff"])
History = dict[bytes, dict[int, bool]]
"""For each key its versions: by LSN, whether it is a tombstone. The rows follow from key and LSN."""
histories = st.dictionaries(
    keys,
    st.dictionaries(st.integers(1, LSNS), st.booleans(), min_size=1, max_size=10),
    min_size=1,
    max_size=10,
)

COLUMNS = {
    "value": pa.field("value", pa.binary()),
    "number": pa.field("number", pa.int64()),
    "vector": pa.field("vector", pa.list_(pa.float32(), 3)),
}


SHAPES = [("value",), ("value", "number"), ("vector", "value")]


def cell(name: str, key: bytes, lsn: int) -> Any:
    return {"value": key + b"@%d" % lsn, "number": lsn, "vector": [lsn, len(key), 0.5]}[name]


Version = tuple[bytes, int, bool]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[History, list[dict[str, Any]]]:
    """Draw a history, and how it lies in segments: LSNs cut into runs, runs cut by keys."""
    history = draw(histories)
    versions = [(key, lsn, dead) for key, of in history.items() for lsn, dead in of.items()]
    edges = sorted(draw(st.sets(st.integers(2, LSNS), max_size=6)))
    pieces: list[dict[str, Any]] = []
    for low, high in pairwise([1, *edges, LSNS + 1]):
        # One version of a run may have been attached: it lies among those that were flushed.
        attached = draw(st.none() | st.integers(low, high - 1))
        cut = draw(st.just(b"") | keys)
        runs: dict[tuple[bool, bool], list[Version]] = {}
        for row in versions:
            if low <= row[1] < high:
                runs.setdefault((row[1] == attached, row[0] < cut), []).append(row)
        pieces += [
            {
                "rows": rows,
                "version": attached if is_attached else None,
                "columns": draw(st.sampled_from(SHAPES)),
                "clip": draw(st.sampled_from([None, None, "lsn", "keys"])),
            }
            for (is_attached, _), rows in runs.items()
        ]
    return history, pieces


class Bucket:
    """A namespace whose segments are written by hand."""

    def __init__(
        self, history: History, pieces: Sequence[dict[str, Any]], block_bytes: int
    ) -> None:
        self.store = MemoryStore()
        self.context: Context = Database(
            self.store, rng=random.Random(1), row_block_bytes=block_bytes
        ).context()
        self.history = history
        self.columns: dict[tuple[bytes, int], tuple[str, ...]] = {}
        refs = [self._write(piece) for piece in pieces]
        self.context.chain("ns").publish_again(self._first(refs))

    def _first(self, refs: Sequence[SegmentRef]) -> Manifest:
        m = Manifest.first(
            "ns", author="test", nonce="0" * 32, created_at_us=1, lsn_policy="caller"
        )
        return msgspec.structs.replace(m, segments=tuple(refs), last_applied_lsn=LSNS, wal_floor=1)

    def _write(self, piece: dict[str, Any]) -> SegmentRef:
        rows: list[Version] = sorted(piece["rows"])
        newest = max(lsn for _, lsn, _ in rows)
        low, high = rows[0][0], rows[-1][0]
        for key, lsn, _ in rows:
            self.columns[key, lsn] = piece["columns"]
        seen: dict[str, Any] = {}
        hidden: list[Version] = []
        if piece["clip"] == "lsn" and piece["version"] is None:
            # What its owner wrote later.
            hidden.append((low, newest + 3, False))
            if low + b"\0later" < high:  # the bounds of a run that was cut by keys stay apart
                hidden.append((low + b"\0later", newest + 5, False))
            seen["clip_lsn"] = newest
        if piece["clip"] == "keys":
            hidden.append((high + b"\0hidden", newest, False))
            seen |= {"clip_key_min": low, "clip_key_max": high + b"\0"}
        if piece["version"] is not None:
            seen |= dict.fromkeys(("version", "lsn_min", "lsn_max"), piece["version"])
        ref = self._upload(piece["columns"], [*rows, *hidden], is_attached="version" in seen)
        return msgspec.structs.replace(ref, **seen)

    def _upload(
        self, names: Sequence[str], rows: list[Version], *, is_attached: bool
    ) -> SegmentRef:
        rows.sort(key=lambda row: (row[0], -row[1]))
        schema = segment_schema([COLUMNS[name] for name in names])
        table: dict[str, Any] = {
            "_key": [key for key, _, _ in rows],
            # The file of an attached segment does not know what its version will be.
            "_lsn": [1 if is_attached else lsn for _, lsn, _ in rows],
            "_tombstone": [dead for _, _, dead in rows],
        } | {
            name: [None if dead else cell(name, key, lsn) for key, lsn, dead in rows]
            for name in names
        }
        batch = pa.record_batch(
            [pa.array(table[field.name], field.type) for field in schema], schema=schema
        )
        origin = SegmentOrigin(
            id=new_ulid(self.context.clock, self.context.rng),
            namespace="ns",
            level=0,
            author="test",
            created_at_us=1,
        )
        block_bytes = self.context.settings.row_block_bytes
        options = SegmentOptions(row_block_bytes=block_bytes, column_block_bytes=60)
        return write_segment(self.store, "ns", schema, origin, options, [batch])

    @property
    def manifest(self) -> Manifest:
        head = self.context.chain("ns").load()
        assert head is not None
        return head.manifest

    def publish(self, change: Any) -> None:
        self.context.chain("ns").publish(lambda head: change(head.manifest))

    def retained(self) -> list[int]:
        m = self.manifest
        return [*(s.lsn for s in m.snapshots), *range(m.retention.floor_lsn, LSNS + 2)]

    def check(self) -> None:
        """Compare every read at every retained LSN with the history; check what lies there."""
        m = self.manifest
        reader = self.context.segments("ns")
        sources = sorted(map(reader.open, m.segments), key=lambda s: s.lsn_max, reverse=True)
        for lsn in self.retained():
            expected = {}
            for key, versions in self.history.items():
                newest = max((at for at in versions if at <= lsn), default=None)
                if newest is not None and not versions[newest]:
                    expected[key] = self._row(key, newest)
            found = {}
            for batch in merge(sources, start=b"", end=None, lsn=lsn, columns=None):
                for row in batch.to_pylist():
                    key = row.pop("_key")
                    found[key] = {name: one for name, one in row.items() if one is not None}
            assert found == expected, lsn
            asked = list(self.history)
            for key, one in zip(asked, lookup_many(sources, asked, lsn), strict=True):
                assert (one is not None and not one.tombstone) == (key in expected)
        assert [*overlaps(m.segments)] == []
        assert verify(self.context, "ns", deep=True).problems == ()

    def _row(self, key: bytes, lsn: int) -> dict[str, Any]:
        return {"_lsn": lsn} | {name: cell(name, key, lsn) for name in self.columns[key, lsn]}

    def compact(self, options: CompactionOptions) -> CompactionResult:
        return compact(self.context, "ns", InProcess(self.context), options=options)


@st.composite
def options(draw: st.DrawFn) -> CompactionOptions:
    low = draw(st.none() | keys)
    return CompactionOptions(
        target_size_bytes=draw(st.sampled_from([1, 700, 2500, 1 << 20])),
        min_input_files=draw(st.integers(2, 4)),
        concurrency=draw(st.integers(1, 3)),
        group_size_bytes=draw(st.sampled_from([1, 1500, 8 << 30])),
        max_bytes=draw(st.sampled_from([None, None, 1000, 3000])),
        full=draw(st.booleans()),
        start=b"" if low is None else low,
        end=None if low is None or draw(st.booleans()) else low + b"\xff",
        keep_floor=draw(st.booleans()),
        memory_bytes=(64 + 18 * draw(st.sampled_from([2, 3, 10]))) << 20,
    )


@given(
    layouts(),
    st.integers(0, LSNS),
    st.lists(st.integers(0, LSNS), max_size=3),
    st.lists(options(), min_size=1, max_size=3),
    st.sampled_from([40, 120, 4096]),
)
@settings(max_examples=100)
def test_no_layout_reads_otherwise_after_it(
    layout: tuple[History, list[dict[str, Any]]],
    floor: int,
    snapshots: list[int],
    passes: list[CompactionOptions],
    block_bytes: int,
) -> None:
    history, pieces = layout
    bucket = Bucket(history, pieces, block_bytes)
    for n, lsn in enumerate(snapshots):
        bucket.publish(
            lambda m, n=n, lsn=lsn: add_snapshot(m, id=f"s{n}", lsn=lsn, expires_at_us=0)
        )
    bucket.publish(lambda m: set_retention(m, floor_lsn=floor))
    bucket.check()
    for asked in passes:
        result = bucket.compact(asked)
        event(f"groups: {min(3, len(result.published))}")
        event(f"tasks: {min(3, sum(len(group.tasks) for group in result.published))}")
        event(f"dropped: {result.rows_out < result.rows_in}")
        event(f"moved: {any(group.moved for group in result.groups)}")
        event(f"clipped: {any(group.clipped for group in result.groups)}")
        assert len(result.published) == len(result.groups)
        bucket.check()
        assert bucket.manifest.intents == ()


class Machine(RuleBasedStateMachine):
    """A writer, snapshots, compactions and collections, against a list of states."""

    @initialize(seed=st.integers(0, 3))
    def begin(self, seed: int) -> None:
        self.world = World(seed=seed, row_block_bytes=60, flush_interval=0)
        self.kv = self.world.kv()
        self.states: list[tuple[int, dict[bytes, bytes]]] = [(0, {})]
        self.snapshots: dict[str, KeyValueSnapshot] = {}

    @rule(puts=st.dictionaries(keys, st.binary(max_size=40), max_size=6), deletes=st.sets(keys))
    def write(self, puts: dict[bytes, bytes], deletes: set[bytes]) -> None:
        deletes -= puts.keys()
        if puts or deletes:
            state = {k: v for k, v in self.states[-1][1].items() if k not in deletes} | puts
            self.states.append((self.kv.write(puts, sorted(deletes)).lsn, state))

    @rule(rows=st.lists(st.dictionaries(keys, st.binary(max_size=9), min_size=1), max_size=5))
    def write_and_flush(self, rows: list[dict[bytes, bytes]]) -> None:
        for puts in rows:
            self.write(puts, set())
            self.kv.flush()

    @rule()
    def flush(self) -> None:
        self.kv.flush()

    @rule()
    def take_snapshot(self) -> None:
        snapshot = self.kv.snapshot(ttl=None)
        self.snapshots[snapshot.id] = snapshot

    @rule(data=st.data())
    def release_snapshot(self, data: st.DataObject) -> None:
        if self.snapshots:
            id = data.draw(st.sampled_from(sorted(self.snapshots)))
            self.snapshots.pop(id).release()

    @rule(asked=options())
    def compact(self, asked: CompactionOptions) -> None:
        context = self.world.database().context()
        result = compact(context, NAMESPACE, InProcess(context), options=asked)
        assert {group.state for group in result.groups} <= {"published"}
        assert self.world.manifest.intents == ()

    @rule(asked=options())
    def compact_late(self, asked: CompactionOptions) -> None:
        """Apply a plan after something has been written and another has compacted."""
        context = self.world.database().context()
        plan = plan_compaction(context, NAMESPACE, asked)
        self.write({b"a": b"meanwhile"}, {b"b"})
        self.kv.flush()
        self.compact(CompactionOptions(min_input_files=2))
        if plan is not None:
            compact(context, NAMESPACE, InProcess(context), plan=plan)

    @rule()
    def collect(self) -> None:
        self.world.age(generations=2)
        self.world.collect()

    @invariant()
    def reads_agree(self) -> None:
        reader = self.world.database().kv(NAMESPACE, mode="r")
        assert dict(reader.items()) == self.states[-1][1] == dict(self.kv.items())
        for id, snapshot in self.snapshots.items():
            assert dict(reader.at(snapshot=id).items()) == self._at(snapshot.lsn)
        for lsn, state in self.states[-6:]:
            try:
                found = dict(reader.at(lsn=lsn).items())
            except RetentionError:
                assert lsn < self.world.manifest.retention.floor_lsn
            else:
                assert found == state

    def _at(self, lsn: int) -> dict[bytes, bytes]:
        return next(state for at, state in reversed(self.states) if at <= lsn)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            context = self.world.database().context()
            assert verify(context, NAMESPACE, deep=True).problems == ()


Machine.TestCase.settings = settings(max_examples=25, stateful_step_count=12)
TestMachine = Machine.TestCase
