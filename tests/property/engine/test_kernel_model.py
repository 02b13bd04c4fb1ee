"""The kernel against a plain dict: a machine that does anything in any order, on few keys."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reef.engine import Condition, CreateOnly, Equals, MustExist, Receipt
from reef.errors import (
    ConditionFailedError,
    FencedError,
    IdempotencyError,
    NotFoundError,
    RetentionError,
    SnapshotExpiredError,
)
from reef.jobs import InProcess
from reef.kv import KeyValue, KeyValueSnapshot, KeyValueView
from tests.support.engine.attaching import begin_load, upload
from tests.support.engine.collecting import NAMESPACE, World
from tests.support.engine.open_handles import writer_of
from tests.support.jobs.compactor import Compactor
from tests.support.jobs.passes import index

FEW = [b"", b"a", b"a\0", b"a\xff", b"ab", b"b", b"b\xff\xff", b"\xff", b"\xff\xff"]
VALUES = [b"", b"0", b"1", b"2" * 300]
PARALLEL = (1, 2, 8)
DAY_US = 86_400_000_000

Rows = dict[bytes, bytes]
Request = tuple[object, ...]
ATTACHED: Request = ("attached",)

some_keys = st.lists(st.sampled_from(FEW), unique=True, min_size=1, max_size=5)
places = st.floats(0, 1, exclude_max=True)


@dataclass
class Held:
    """A snapshot that was taken, and what it shows."""

    snapshot: KeyValueSnapshot
    rows: Rows
    expires_at_us: int


@dataclass
class Answered:
    """An idempotent request that was acknowledged."""

    request: Request
    receipt: Receipt
    at_us: int


class Kernel(RuleBasedStateMachine):
    """One namespace, whoever works on it, and a dict of what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(retained_generations=2, flush_interval=0, row_block_bytes="4KiB")
        self.rows: Rows = {}
        self.past: list[tuple[int, Rows]] = [(0, {})]
        self.held: list[Held] = []
        self.answered: dict[bytes, Answered] = {}
        self.streams: dict[str, tuple[int, int]] = {}
        self.generations: dict[int, int] = {}
        self.fenced: list[KeyValue] = []
        self.kv = self.open(1)
        self.reader = self.world.database().kv(NAMESPACE, mode="r")

    def open(self, parallel: int) -> KeyValue:
        return self.world.database().kv(NAMESPACE, max_parallel_writes=parallel)

    @property
    def now_us(self) -> int:
        return self.world.clock.now_us()

    # Writing.

    @rule(
        keys=some_keys,
        deletes=st.integers(0, 2),
        value=st.sampled_from(VALUES),
        condition=st.sampled_from(
            [None, None, CreateOnly(), MustExist(), *(Equals(value=v) for v in VALUES[:3])]
        ),
        atomic=st.booleans(),
        key=st.sampled_from([None, None, b"k1", b"k2", b"k3"]),
    )
    def write(
        self,
        keys: list[bytes],
        deletes: int,
        value: bytes,
        condition: Condition | None,
        atomic: bool,
        key: bytes | None,
    ) -> None:
        gone = keys[len(keys) - deletes :] if deletes else []
        puts = {
            k: value + b"%d" % (i % 2) * bool(i) for i, k in enumerate(keys[: -deletes or None])
        }
        if not puts and not gone:
            return
        request: Request = (tuple(puts.items()), tuple(gone), repr(condition), atomic)

        def send() -> Receipt:
            return self.kv.write(
                puts or None, gone, condition=condition, atomic=atomic, idempotency_key=key
            )

        earlier = self.answered.get(key or b"")
        if earlier is not None and self.now_us - earlier.at_us <= DAY_US:
            if earlier.request != request:
                with pytest.raises(IdempotencyError):
                    send()
                return
            again = send()
            assert again == earlier.receipt
            assert again.replayed
            return
        codes = self.expected(puts, gone, condition)
        refused = [code not in ("written", "deleted") for code in codes]
        if atomic and any(refused):
            with pytest.raises(ConditionFailedError) as caught:
                send()
            told = [code if no else "not applied" for code, no in zip(codes, refused, strict=True)]
            assert list(caught.value.outcomes) == told
            return
        receipt = send()
        assert list(receipt.outcomes) == codes
        assert not receipt.replayed
        if key is not None:
            self.answered[key] = Answered(request, receipt, self.now_us)
        if key is None and all(refused):
            assert receipt.lsn == self.past[-1][0]
            return
        changes = {**puts, **dict.fromkeys(gone)}
        applied = zip(changes.items(), refused, strict=True)
        self.commit(receipt, {k: v for (k, v), no in applied if not no})

    def expected(self, puts: Rows, gone: list[bytes], condition: Condition | None) -> list[str]:
        """Return what becomes of each row."""
        codes = []
        for key in (*puts, *gone):
            code = "written" if key in puts else "deleted"
            held = self.rows.get(key)
            if isinstance(condition, CreateOnly) and held is not None:
                code = "exists"
            if isinstance(condition, MustExist | Equals) and held is None:
                code = "missing"
            elif isinstance(condition, Equals) and held != condition.expected["value"]:
                code = "differs"
            codes.append(code)
        return codes

    def commit(self, receipt: Receipt, changes: dict[bytes, bytes | None]) -> None:
        assert receipt.lsn > self.past[-1][0]
        for key, value in changes.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        self.past.append((receipt.lsn, dict(self.rows)))

    @rule(source=st.sampled_from(["s", "t"]), step=st.integers(-2, 3), key=st.sampled_from(FEW))
    def write_stream(self, source: str, step: int, key: bytes) -> None:
        last, lsn = self.streams.get(source, (0, 0))
        sequence = max(0, last + step)
        value = b"%d" % sequence
        receipt = self.kv.write({key: value}, source=source, sequence=sequence)
        if source in self.streams and sequence <= last:
            assert receipt.replayed
            assert receipt.lsn == lsn
            return
        assert not receipt.replayed
        self.streams[source] = sequence, receipt.lsn
        self.commit(receipt, {key: value})

    @rule(
        keys=some_keys,
        deletes=st.integers(0, 2),
        value=st.sampled_from(VALUES),
        cuts=st.integers(1, 3),
        key=st.sampled_from([None, None, b"k1", b"load"]),
        is_ended=st.booleans(),
    )
    def attach(
        self,
        keys: list[bytes],
        deletes: int,
        value: bytes,
        cuts: int,
        key: bytes | None,
        is_ended: bool,
    ) -> None:
        rows: dict[bytes, bytes | None] = {
            k: None if i < deletes else value for i, k in enumerate(sorted(keys))
        }
        context, writer = self.world.database().context(), writer_of(self.kv)
        job = begin_load(context, NAMESPACE)
        step = -(-len(rows) // cuts)
        ordered = sorted(rows)
        parts = [ordered[i : i + step] for i in range(0, len(ordered), step)]
        refs = [upload(context, job, {k: rows[k] for k in part}) for part in parts]
        earlier = self.answered.get(key or b"")
        if earlier is not None and self.now_us - earlier.at_us <= DAY_US:
            if earlier.request != ATTACHED:
                with pytest.raises(IdempotencyError):
                    writer.attach(refs, idempotency_key=key)
                return
            assert writer.attach(refs, idempotency_key=key) == earlier.receipt
            return
        receipt = writer.attach(refs, idempotency_key=key)
        assert not receipt.replayed
        if key is not None:
            self.answered[key] = Answered(ATTACHED, receipt, self.now_us)
        self.commit(receipt, rows)
        if is_ended:
            job.end()

    @precondition(lambda self: self.fenced)
    @rule(which=places, key=st.sampled_from(FEW))
    def write_of_the_fenced(self, which: float, key: bytes) -> None:
        kv = self.fenced[int(which * len(self.fenced))]
        with pytest.raises(FencedError):
            kv.put(key, b"late")
        with pytest.raises(FencedError):
            kv.flush()

    # What else happens.

    @rule()
    def flush(self) -> None:
        self.kv.flush()

    @rule()
    def fold(self) -> None:
        context = self.world.database().context()
        index(context, NAMESPACE, InProcess(context))

    @rule(parallel=st.sampled_from(PARALLEL), closes=st.booleans())
    def reopen(self, parallel: int, closes: bool) -> None:
        if closes:
            self.kv.close()
        else:
            self.fenced.append(self.kv)
        self.kv = self.open(parallel)

    @rule(
        floor=st.none() | places,
        first=st.integers(0, 3),
        count=st.integers(1, 4),
        cuts=st.integers(1, 3),
    )
    def compact(self, floor: float | None, first: int, count: int, cuts: int) -> None:
        lsn = None if floor is None else self.past[int(floor * len(self.past))][0]
        compactor = Compactor(self.world.database().context(), NAMESPACE)
        compactor.run(floor_lsn=lsn, choose=lambda runs: runs[first : first + count], cuts=cuts)

    @rule(generations=st.integers(0, 3))
    def collect(self, generations: int) -> None:
        self.world.age(generations=generations)
        self.world.collect()
        self.world.collect()

    @rule(seconds=st.sampled_from([1, 600, 7200]))
    def pass_time(self, seconds: int) -> None:
        self.world.clock.advance(seconds)

    @rule(by_reader=st.booleans(), ttl=st.sampled_from([None, 3600]))
    def take_snapshot(self, by_reader: bool, ttl: int | None) -> None:
        snapshot = (self.reader if by_reader else self.kv).snapshot(ttl=ttl)
        assert snapshot.lsn == self.past[-1][0]
        at_us = 0 if ttl is None else self.now_us + ttl * 1_000_000
        self.held.append(Held(snapshot, dict(self.rows), at_us))

    @precondition(lambda self: self.held)
    @rule(which=places)
    def release_snapshot(self, which: float) -> None:
        held = self.held.pop(int(which * len(self.held)))
        held.snapshot.release()
        with pytest.raises(NotFoundError):
            self.reader.at(snapshot=held.snapshot.id)

    @rule(is_new=st.booleans())
    def refresh(self, is_new: bool) -> None:
        if is_new:
            self.reader = self.world.database().kv(NAMESPACE, mode="r")
        assert self.reader.refresh() == self.past[-1][0]
        self.check(self.reader, self.rows)

    # What is read.

    def check(self, view: KeyValueView | KeyValue, rows: Rows) -> None:
        ordered = sorted(rows.items())
        assert [*view.items()] == ordered
        assert [*view.items(reverse=True)] == ordered[::-1]
        assert view.get_many(FEW) == [rows.get(key) for key in FEW]
        for key in FEW:
            assert view.get(key) == rows.get(key)

    @rule(start=st.sampled_from(FEW), end=st.sampled_from(FEW), prefix=st.sampled_from(FEW))
    def read_range(self, start: bytes, end: bytes, prefix: bytes) -> None:
        wanted = [
            (key, value)
            for key, value in sorted(self.rows.items())
            if start <= key < end and key.startswith(prefix)
        ]
        assert [*self.kv.items(start=start, end=end, prefix=prefix)] == wanted

    @rule(which=places, by_reader=st.booleans(), before=st.integers(0, 1))
    def read_at(self, which: float, by_reader: bool, before: int) -> None:
        place = int(which * len(self.past))
        lsn, rows = self.past[place]
        if before and place:
            lsn, rows = lsn - 1, self.past[place - 1][1]
        try:
            view = (self.reader if by_reader else self.kv).at(lsn=lsn)
            self.check(view, rows)
        except RetentionError:
            assert lsn < self.world.manifest.retention.floor_lsn

    @precondition(lambda self: self.held)
    @rule(which=places, by_reader=st.booleans())
    def read_snapshot(self, which: float, by_reader: bool) -> None:
        held = self.held[int(which * len(self.held))]
        handle = self.reader if by_reader else self.kv
        try:
            self.check(held.snapshot, held.rows)
            self.check(handle.at(snapshot=held.snapshot.id), held.rows)
        except (NotFoundError, SnapshotExpiredError):
            assert 0 < held.expires_at_us < self.now_us

    @precondition(lambda self: self.generations)
    @rule(which=places)
    def read_generation(self, which: float) -> None:
        generation = [*self.generations][int(which * len(self.generations))]
        lsn = self.generations[generation]
        rows = next(rows for at, rows in reversed(self.past) if at <= lsn)
        manifest = self.world.manifest
        try:
            self.check(self.kv.at(generation=generation), rows)
        except SnapshotExpiredError:
            assert generation < manifest.gc.boundary.generation
            assert generation not in {s.generation for s in manifest.snapshots}

    @invariant()
    def newest_is_read(self) -> None:
        self.check(self.kv, self.rows)
        manifest = self.world.manifest
        self.generations[manifest.generation] = manifest.last_applied_lsn


KernelTest = Kernel.TestCase
KernelTest.settings = settings(max_examples=80, stateful_step_count=40)
