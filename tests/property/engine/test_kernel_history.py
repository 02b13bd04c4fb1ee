"""The kernel against a plain history: what was written is what is read, at every version.

100,000 keys, 20 versions of each, written in batches of any size, through flushes, crashes, compactions
and collections. Its history is kept in arrays, and as a plain dict for some of the keys.
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

from reef.errors import RetentionError, SnapshotExpiredError
from reef.kv import KeyValue, KeyValueSnapshot, KeyValueView
from reef.types import LSN_MAX
from tests.support.engine.collecting import NAMESPACE, World
from tests.support.jobs.compactor import Compactor, Run, fold_log

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
