"""The kernel against a plain history: what was written is what is read, at every version.

First a large one: 100,000 keys, 20 versions of each, written in batches of any size, through flushes,
crashes, compactions and collections. Its history is kept in arrays, and as a plain dict for some of the
keys. Then a machine that does anything in any order, on few keys, against a dict.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
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
from reef.kv import KeyValue
from reef.kv._views import KeyValueSnapshot, KeyValueView
from reef.pipeline import InProcess
from reef.pipeline._index import index
from reef.types import LSN_MAX
from tests.attaching import begin_load, upload
from tests.collecting import NAMESPACE, World
from tests.compactor import Compactor, Run, fold_log

KEYS = 100_000
VERSIONS = 20
BATCH_ROWS_MAX = 30_000
DELETES = 0.1
NOTHING = -1
"""In place of a value's number: deleted, or never there."""

Numbers = npt.NDArray[np.int64]


def make_keys(rng: np.random.Generator) -> pa.Array:
    """Return keys in order: of several lengths, many with prefixes in common, any bytes in them."""
    words = [b"", b"a", b"a\0", b"a\xff", b"user/", b"user/\xff\xff", b"\0", b"\xff", b"z" * 40]
    count = KEYS * 5 // 4  # some come twice
    prefixes = rng.integers(0, len(words), count).tolist()
    ends = np.cumsum(rng.integers(3, 9, count)).tolist()
    noise = rng.bytes(ends[-1])
    made = {words[p] + noise[a:b] for p, (a, b) in zip(prefixes, pairwise([0, *ends]), strict=True)}
    some = rng.permutation(np.array(sorted(made), object))[:KEYS]
    return pa.array(sorted(some), pa.binary())


def values_of(numbers: Numbers) -> pa.Array:
    """Return the value that each number stands for: its eight bytes."""
    offsets = pa.py_buffer(np.arange(len(numbers) + 1, dtype=np.int32) * 8)
    data = pa.py_buffer(numbers.astype(">i8").tobytes())
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, offsets, data])


def value_of(number: int) -> bytes | None:
    return None if number == NOTHING else number.to_bytes(8, "big")


@dataclass
class Commit:
    """One batch: what it set each of its keys to."""

    lsn: int
    keys: npt.NDArray[np.intp]
    numbers: Numbers


@dataclass
class History:
    """Every commit, and the state after some of them, so that any other is near."""

    keys: pa.Array
    sampled: set[int]
    commits: list[Commit] = field(default_factory=list)
    plain: dict[int, dict[int, int]] = field(default_factory=dict)
    """Of the sampled keys: for each its versions, as a plain dict."""
    _states: list[Numbers] = field(default_factory=list)

    EVERY = 16

    def add(self, commit: Commit) -> None:
        if len(self.commits) % self.EVERY == 0:
            self._states.append(self.at_commit(len(self.commits)))
        self.commits.append(commit)
        for key, number in zip(commit.keys.tolist(), commit.numbers.tolist(), strict=True):
            if key in self.sampled:
                self.plain.setdefault(key, {})[commit.lsn] = number

    @property
    def versions(self) -> int:
        return sum(len(commit.keys) for commit in self.commits)

    def at_commit(self, count: int) -> Numbers:
        """Return the number of each key's value after the first `count` commits."""
        near = min(count // self.EVERY, len(self._states) - 1)
        if near < 0:
            return np.full(len(self.keys), NOTHING, np.int64)
        state = self._states[near].copy()
        for commit in self.commits[near * self.EVERY : count]:
            state[commit.keys] = commit.numbers
        return state

    def at(self, lsn: int) -> Numbers:
        """Return the number of each key's value at a version."""
        lsns = [commit.lsn for commit in self.commits]
        state = self.at_commit(int(np.searchsorted(lsns, lsn, side="right")))
        for key in self.sampled:
            versions = self.plain.get(key, {})
            newest = max((at for at in versions if at <= lsn), default=0)
            assert state[key] == versions.get(newest, NOTHING)
        return state


class Reading:
    """Compares what a view shows with what it should show: a state, in arrays."""

    def __init__(self, keys: pa.Array, state: Numbers, rng: random.Random) -> None:
        self._keys = keys
        self._state = state
        self._rng = rng

    def check(self, view: KeyValueView | KeyValue, *, whole: bool = False) -> None:
        """Read in every way there is. `whole`: scan all of it too."""
        self._points(view)
        self._range(view)
        self._prefix(view)
        if whole:
            self._compare(view, 0, len(self._keys), reverse=self._rng.random() < 0.5)

    def _points(self, view: KeyValueView | KeyValue) -> None:
        some = [self._rng.randrange(len(self._keys)) for _ in range(200)]
        asked = [self._keys[i].as_py() for i in some]
        wanted = [value_of(int(self._state[i])) for i in some]
        assert view.get_many(asked) == wanted
        assert [view.get(key) for key in asked[:10]] == wanted[:10]
        absent = asked[0] + b"\0absent"
        assert view.get(absent) is None
        assert view.get_many([absent, asked[0]]) == [None, wanted[0]]

    def _range(self, view: KeyValueView | KeyValue) -> None:
        low, high = sorted(self._rng.sample(range(len(self._keys)), 2))
        high = min(high, low + self._rng.choice((1, 50, 3000)))
        start, end = self._keys[low].as_py(), self._keys[high].as_py()
        for reverse in (False, True):
            self._compare(view, low, high, reverse=reverse, start=start, end=end)

    def _prefix(self, view: KeyValueView | KeyValue) -> None:
        key = self._keys[self._rng.randrange(len(self._keys))].as_py()
        prefix = key[: self._rng.randrange(1, 4) + self._rng.randrange(3)]
        inside = pc.starts_with(self._keys, prefix).to_numpy(zero_copy_only=False)
        places = np.flatnonzero(inside)
        low, high = int(places[0]), int(places[-1]) + 1
        self._compare(view, low, high, reverse=self._rng.random() < 0.5, prefix=prefix)

    def _compare(
        self, view: KeyValueView | KeyValue, low: int, high: int, *, reverse: bool, **asked: bytes
    ) -> None:
        there = np.flatnonzero(self._state[low:high] != NOTHING) + low
        if reverse:
            there = there[::-1]
        found = [*view.scan(reverse=reverse, **asked)]
        keys = pa.concat_arrays([batch.column(0) for batch in found] or [self._keys[:0]])
        values = pa.concat_arrays([batch.column(1) for batch in found] or [self._keys[:0]])
        assert keys.equals(self._keys.take(pa.array(there)))
        assert values.equals(values_of(self._state[there]))


class Story:
    """A namespace, what was written to it, and whoever writes, reads, compacts and collects."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        numbers = np.random.default_rng(seed)
        self.keys = make_keys(numbers)
        sampled = set(self.rng.sample(range(KEYS), 200))
        self.history = History(self.keys, sampled)
        self.world = World(
            seed=seed, retained_generations=3, row_block_bytes="32KiB", block_cache_bytes="32MiB"
        )
        self.kv = self.open_writer()
        self.reader = self.world.database().kv(NAMESPACE, mode="r")
        self.snapshots: list[KeyValueSnapshot] = []
        self.generations: dict[int, int] = {}
        self._order = numbers.permutation(np.repeat(np.arange(KEYS), VERSIONS))
        self._numbers = numbers
        self._written = 0
        self._left = self._order[:0]

    def open_writer(self) -> KeyValue:
        """Open for writing, somewhere else; nobody closes the one before."""
        parallel = self.rng.choice((1, 2, 8))
        return self.world.database().kv(NAMESPACE, max_parallel_writes=parallel, flush_interval=0)

    def batches(self) -> Iterator[int]:
        """Write all versions of all keys, in batches of any size; yield how many there are by then."""
        while len(self._order) or len(self._left):
            size = int(BATCH_ROWS_MAX ** self.rng.uniform(0.3, 1))
            taken = np.concatenate([self._left, self._order[:size]])
            self._order = self._order[size:]
            # A key is once in a batch: what is left over comes with the next.
            _, firsts = np.unique(taken, return_index=True)
            self._left = np.delete(taken, firsts)
            self._write(taken[np.sort(firsts)])
            yield self._written

    def _write(self, keys: npt.NDArray[np.intp]) -> None:
        numbers = np.arange(self._written, self._written + len(keys), dtype=np.int64)
        self._written += len(keys)
        numbers[self._numbers.random(len(keys)) < DELETES] = NOTHING
        put = numbers != NOTHING
        table = pa.table(
            {"key": self.keys.take(pa.array(keys[put])), "value": values_of(numbers[put])}
        )
        deletes = self.keys.take(pa.array(keys[~put])).to_pylist()
        receipt = self.kv.write(table if put.any() else None, deletes)
        self.history.add(Commit(receipt.lsn, keys, numbers))

    # What others do.

    def flush(self) -> None:
        self.kv.flush()
        self._note_generation()

    def fold(self) -> None:
        fold_log(self.world.database().context(), NAMESPACE)
        self._note_generation()

    def _note_generation(self) -> None:
        manifest = self.world.manifest
        self.generations[manifest.generation] = manifest.last_applied_lsn

    def crash(self) -> None:
        self.kv = self.open_writer()

    def compact(self, *, floor_lsn: int | None = None) -> None:
        def choose(live: Sequence[Run]) -> Sequence[Run]:
            first = self.rng.randrange(max(1, len(live)))
            return live[first : first + self.rng.randrange(2, 6)]

        compactor = Compactor(self.world.database().context(), NAMESPACE, row_block_bytes=32 << 10)
        whole = floor_lsn is not None or self.rng.random() < 0.2
        compactor.run(
            floor_lsn=floor_lsn,
            choose=list if whole else choose,
            cuts=self.rng.randrange(1, 4),
        )

    def raise_floor(self) -> None:
        """Give up what lies further back than a quarter of the commits."""
        commits = self.history.commits
        self.compact(floor_lsn=commits[len(commits) * 3 // 4].lsn)

    def collect(self) -> None:
        self.world.age(generations=2)
        self.world.collect()

    def take_snapshot(self) -> None:
        handle = self.rng.choice((self.kv, self.reader))
        self.snapshots.append(handle.snapshot(ttl=None))

    def release_snapshot(self) -> None:
        if len(self.snapshots) > 4:
            self.snapshots.pop(self.rng.randrange(len(self.snapshots))).release()

    # What must hold.

    def check(self, view: KeyValueView | KeyValue, lsn: int, *, whole: bool = False) -> None:
        Reading(self.keys, self.history.at(lsn), self.rng).check(view, whole=whole)

    def check_reader(self) -> None:
        self.check(self.reader, self.reader.refresh())

    def check_some(self) -> None:
        """Read the newest, the past, a snapshot and a generation, through one handle or another."""
        self.check(self.kv, LSN_MAX)
        handle = self.rng.choice((self.kv, self.reader))
        newest = self.history.commits[-1].lsn
        self.check_lsn(handle, self.rng.choice(self.history.commits).lsn - self.rng.randrange(2))
        self.check_lsn(handle, self.rng.randrange(newest + 1))
        if self.snapshots:
            snapshot = self.rng.choice(self.snapshots)
            view = self.rng.choice((snapshot, handle.at(snapshot=snapshot.id)))
            self.check(view, snapshot.lsn)
        if self.generations:
            self.check_generation(handle, self.rng.choice([*self.generations]))

    def check_lsn(self, handle: KeyValue, lsn: int) -> None:
        floor = self.world.manifest.retention.floor_lsn
        try:
            self.check(handle.at(lsn=lsn), lsn)
        except RetentionError:
            assert lsn < floor

    def check_generation(self, handle: KeyValue, generation: int) -> None:
        manifest = self.world.manifest
        held = {s.generation for s in manifest.snapshots}
        try:
            self.check(handle.at(generation=generation), self.generations[generation])
        except SnapshotExpiredError:
            assert generation < manifest.gc.boundary.generation
            assert generation not in held
        except RetentionError:
            raise AssertionError(f"generation {generation} has lost its rows") from None

    def check_end(self) -> None:
        newest = self.history.commits[-1].lsn
        reader = self.world.database().kv(NAMESPACE, mode="r")
        self.check(reader, LSN_MAX, whole=True)
        self.check(self.open_writer(), LSN_MAX, whole=True)
        for snapshot in self.snapshots:
            self.check(reader.at(snapshot=snapshot.id), snapshot.lsn, whole=True)
        floor = self.world.manifest.retention.floor_lsn
        assert 0 < floor < newest
        with pytest.raises(RetentionError):
            reader.at(lsn=floor - 1)
        for lsn in (floor, (floor + newest) // 2):
            self.check(reader.at(lsn=lsn), lsn, whole=True)


def test_100_000_keys_of_20_versions_read_as_a_plain_history_at_any_version() -> None:
    story = Story(seed=7)
    counts: list[tuple[int, Callable[[], None]]] = [
        (36, story.flush),
        (6, story.fold),
        (6, story.crash),
        (8, story.compact),
        (2, story.raise_floor),
        (10, story.collect),
        (12, story.take_snapshot),
        (8, story.release_snapshot),
        (16, story.check_reader),
        (22, story.check_some),
    ]
    happens = [happens for count, happens in counts for _ in range(count)]
    story.rng.shuffle(happens)
    when = sorted(story.rng.randrange(KEYS * VERSIONS) for _ in happens)
    for written in story.batches():
        while when and when[0] <= written:
            when.pop(0)
            happens.pop()()
    assert story.history.versions == KEYS * VERSIONS
    assert not happens
    story.flush()
    story.raise_floor()
    story.collect()
    story.check_end()


# Anything in any order.

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
        context, writer = self.world.database().context(), self.kv._writer
        assert writer is not None
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
