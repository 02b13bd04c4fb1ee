"""Any history of writers, readers, jobs, snapshots and collections: nothing that is needed ever goes."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from reef.errors import FencedError, OutcomeUnknownError
from reef.format import dedup_key, segment_key
from reef.kv import KeyValue
from reef.manifest import end_intent, register_intent
from reef.types import unpack_lsn
from tests.support.engine.collecting import DAY_S, GRACE_S, NAMESPACE, World

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
VALUES = st.binary(min_size=1, max_size=3)


class Collecting(RuleBasedStateMachine):
    """The bucket against a dict and its history."""

    world: World
    writer: KeyValue

    @initialize(
        retained=st.integers(1, 3),
        parallel=st.sampled_from([1, 2, 8]),
        pitr=st.sampled_from([None, 10 * GRACE_S]),
    )
    def open(self, retained: int, parallel: int, pitr: float | None) -> None:
        self.world = World(
            retained_generations=retained,
            max_parallel_writes=parallel,
            pitr_window=pitr,
            snapshot_ttl=3 * GRACE_S,
            flush_interval=0,
        )
        self.model: dict[bytes, bytes] = {}
        self.last: tuple[str, bytes, bytes, int, int] | None = None
        self.snapshots: dict[str, tuple[dict[bytes, bytes], int]] = {}
        self.sleepers: list[KeyValue] = []
        self.readers: list[KeyValue] = []
        self.jobs: list[str] = []
        self.count = 0
        self.writer = self.world.kv()

    # Writing.

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        self.count += 1
        name, now_us = f"r{self.count}", self.world.clock.now_us()
        receipt = self.writer.put(key, value, idempotency_key=name)
        self.last = name, key, value, receipt.lsn, now_us
        self.model[key] = value

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.writer.delete(key)
        self.model.pop(key, None)

    @precondition(lambda self: self.last)
    @rule()
    def repeat(self) -> None:
        """The last request, sent again: within the window it is known, whatever was collected."""
        assert self.last is not None
        name, key, value, lsn, at_us = self.last
        if self.world.clock.now_us() - at_us < DAY_S * 1e6:
            receipt = self.writer.put(key, value, idempotency_key=name)
            assert (receipt.replayed, receipt.lsn) == (True, lsn)

    @rule()
    def flush(self) -> None:
        self.writer.flush()

    @rule(seconds=st.sampled_from([1.0, GRACE_S + 1, 10 * GRACE_S]))
    def flush_slowly(self, seconds: float) -> None:
        """Its objects are uploaded, time passes, a collection runs, and then it publishes."""

        def sleep() -> None:
            self.world.clock.advance(seconds)
            self.world.collect()

        self.world.store.once("put_if_absent", "manifest/", sleep)
        try:
            self.writer.flush()
        except OutcomeUnknownError:
            pass  # it slept so long that nobody can tell whether its generation counted
        finally:
            self.world.store.before = lambda operation, key: None

    @rule()
    def take_over(self) -> None:
        """Another process opens the namespace; the one before does not know."""
        self.sleepers = [self.writer, *self.sleepers][:3]
        self.writer = self.world.kv()

    @rule()
    def take_over_slowly(self) -> None:
        """A collection runs between the epoch and the fences."""
        self.sleepers = [self.writer, *self.sleepers][:3]

        def sleep() -> None:
            self.world.clock.advance(2 * GRACE_S)
            self.world.collect()

        self.world.store.once("put_if_absent", "wal/", sleep)
        self.writer = self.world.kv()

    @precondition(lambda self: self.sleepers)
    @rule(key=KEYS)
    def wake_up(self, key: bytes) -> None:
        with pytest.raises((FencedError, OutcomeUnknownError)):
            self.sleepers.pop().put(key, b"never")

    # Jobs.

    @precondition(lambda self: len(self.world.manifest.segments) > 1)
    @rule()
    def compact(self) -> None:
        self.count += 1
        self.world.compact(f"compact-{self.count}")

    @precondition(lambda self: len(self.world.manifest.segments) > 1)
    @rule(seconds=st.sampled_from([1.0, 10 * GRACE_S]))
    def compact_slowly(self, seconds: float) -> None:
        self.count += 1
        write_segment = self.world.write_segment

        def slowly(*arguments: object, **more: object) -> object:
            ref = write_segment(*arguments, **more)  # type: ignore[arg-type]
            self.world.clock.advance(seconds)
            self.world.collect()
            return ref

        self.world.write_segment = slowly  # type: ignore[method-assign, assignment]
        try:
            self.world.compact(f"compact-{self.count}")
        finally:
            self.world.write_segment = write_segment  # type: ignore[method-assign]

    @rule()
    def crash_a_job(self) -> None:
        """It leaves a segment, and an intent that stands."""
        self.count += 1
        job = f"job-{self.count}"
        self.world.publish(
            lambda m: register_intent(m, id=job, kind="index", author="job", opened_at_us=0)
        )
        self.jobs.append(self.world.put_segment(job))

    @precondition(lambda self: self.jobs)
    @rule()
    def end_a_job(self) -> None:
        self.world.publish(lambda m: end_intent(m, self.jobs[0].partition("-")[2]))
        self.jobs.pop(0)

    @rule(back=st.integers(0, 2))
    def crash_a_flush(self, back: int) -> None:
        self.world.put_segment(f"e{max(0, self.world.manifest.writer_epoch - back)}")

    # Reading.

    @rule()
    def open_reader(self) -> None:
        self.readers = [self.world.kv(mode="r"), *self.readers][:3]

    @rule(keep_log=st.booleans(), by_reader=st.booleans())
    def snapshot(self, keep_log: bool, by_reader: bool) -> None:
        self.count += 1
        ttl_s = 3 * GRACE_S
        id = f"{'followed' if keep_log else 's'}{self.count}"
        handle = self.readers[0] if by_reader and self.readers else self.writer
        handle.snapshot(ttl=ttl_s, id=id, keep_log=keep_log)
        until = self.world.clock.now_us() + round(ttl_s * 1e6)
        self.snapshots[id] = dict(self.model), until

    @rule(seconds=st.sampled_from([0.0, GRACE_S / 2, 2 * GRACE_S]))
    def set_grace(self, seconds: float) -> None:
        self.writer.configure(gc_grace=seconds)

    # Time, and collecting.

    @rule(seconds=st.sampled_from([1.0, GRACE_S / 2, GRACE_S, GRACE_S + 1, DAY_S / 4]))
    def wait(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    @rule(times=st.integers(1, 2))
    def collect(self, times: int) -> None:
        for _ in range(times):
            assert self.world.collect().problems == ()

    @rule()
    def collect_twice_at_once(self) -> None:
        self.world.store.once("delete", "", self.world.collect)
        self.world.collect()
        self.world.store.before = lambda operation, key: None

    @invariant()
    def everything_is_there(self) -> None:
        world = self.world
        assert world.contents() == self.model
        for reader in self.readers:
            reader.refresh()
            assert dict(reader.items()) == self.model
        for id, (expected, until) in self.snapshots.items():
            if world.clock.now_us() < until:
                assert dict(self.writer.at(snapshot=id).items()) == expected
        for job in self.jobs:
            assert job in world.segments()

    @invariant()
    def what_is_retained_is_whole(self) -> None:
        world = self.world
        manifest = world.manifest
        chain = world.chain(world.inner)
        boundary = manifest.gc.boundary
        numbers = {*range(boundary.generation, manifest.generation + 1)}
        numbers |= {s.generation for s in manifest.snapshots}
        there = {meta.key for meta in world.list().values()}
        floors = {}
        for number in numbers:
            found = chain.at(number).manifest
            floors[number] = found.wal_floor
            assert {segment_key(NAMESPACE, s.id) for s in found.segments} <= there
            assert found.dedup is None or dedup_key(NAMESPACE, found.dedup.id) in there
        slots = world.slots()
        followed = {s.generation for s in manifest.snapshots if s.id.startswith("followed")}
        assert {*manifest.followed} == followed
        assert boundary.slot <= min(
            floor for n, floor in floors.items() if n >= boundary.generation or n in followed
        )
        assert {*range(boundary.slot, slots[-1] + 1)} <= {*slots}
        for snapshot in manifest.snapshots:
            slot_last, _ = unpack_lsn(snapshot.lsn)
            assert {*range(floors[snapshot.generation], slot_last + 1)} <= {*slots}


TestCollecting = Collecting.TestCase
TestCollecting.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
