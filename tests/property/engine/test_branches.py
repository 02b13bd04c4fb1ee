"""Any history of branches, writes, drops, compactions and collections, against dicts at many LSNs.

Each branch is a list of versions: that of its parent up to where it left, and its own. Whatever else is
done to any of them, every version at or above its floor reads as it was written. Histories are drawn
from a seed, with weights that make branches live long enough to share something.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from reef.doctor import verify
from reef.errors import (
    DroppedError,
    InvalidInputError,
    NotFoundError,
    RetentionError,
    SnapshotExpiredError,
    StalePlanError,
)
from reef.jobs import CompactionOptions, InProcess, compact, detach, index, rebuild
from reef.kv import KeyValue
from reef.types import namespace_of
from tests.support.engine.attaching import begin_load, upload
from tests.support.engine.branching import NS, Grove
from tests.support.engine.collecting import GRACE_S
from tests.support.jobs.compactor import fold_log

KEYS = (b"a", b"b", b"c", b"d", b"e")
NAMES = ("one", "two", "three", "four", "five")

Rows = dict[bytes, bytes]


class Life:
    """What a branch holds at every version it has."""

    def __init__(self, parent: str | None, versions: dict[int, Rows]) -> None:
        self.parent = parent
        self.versions = versions
        self.is_detached = False

    @property
    def rows(self) -> Rows:
        return self.versions[max(self.versions)]


class History:
    """The bucket, its model, and whatever happens to both."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        pitr = self.rng.choice([None, 3 * GRACE_S])
        # No flush by the clock: that runs in a thread of its own, and no two runs would be alike.
        given: dict[str, object] = {"flush_interval": 0}
        if pitr is not None:
            given["pitr_window"] = pitr
        self.grove = Grove(
            seed=seed,
            retained_generations=self.rng.choice([1, 2]),
            max_parallel_writes=self.rng.choice([1, 4]),
            **given,
        )
        self.lives: dict[str | None, Life] = {None: Life(None, {0: {}})}
        self.ended: set[str] = set()
        self.writers: dict[str | None, KeyValue] = {}
        self.readers: list[tuple[KeyValue, Life]] = []
        self.writer(None)
        self.shared_at_end = 0
        self.weights: dict[Callable[[], None], int] = {
            self.write: 12,
            self.load: 2,
            self.take_over: 1,
            self.branch: 5,
            self.drop: 1,
            self.make_the_root_anew: 1,
            self.detach: 1,
            self.compact: 4,
            self.compact_as_the_pipeline_does: 2,
            self.index_as_the_pipeline_does: 1,
            self.rebuild_as_the_pipeline_does: 1,
            self.fold: 1,
            self.collect: 4,
            self.collect_all_after_long: 1,
            self.wait: 3,
            self.look: 4,
            self.open_reader: 2,
            self.look_through_readers: 3,
        }

    def run(self, steps: int) -> None:
        for do in self.rng.choices([*self.weights], [*self.weights.values()], k=steps):
            do()

    def pick(self) -> str | None:
        return self.rng.choice([*self.lives])

    def pick_branch(self) -> str | None:
        return self.rng.choice([name for name in self.lives if name is not None] or [None])

    def pick_lsn(self, name: str | None) -> int:
        lsns = sorted(self.lives[name].versions)
        return lsns[max(0, len(lsns) - 1 - self.rng.choice([0, 0, 1, 2, 4]))]

    def writer(self, name: str | None) -> KeyValue:
        if name not in self.writers:
            self.writers[name] = self.grove.kv(name)
        return self.writers[name]

    def children(self, name: str | None) -> list[str]:
        return [
            child
            for child, life in self.lives.items()
            if child is not None and life.parent == name and not life.is_detached
        ]

    # Writing.

    def rows(self) -> Rows:
        keys = self.rng.sample(KEYS, self.rng.randint(1, 3))
        return {key: self.rng.randbytes(2) for key in keys}

    def write(self) -> None:
        name = self.pick()
        puts = self.rows()
        deletes = [key for key in self.rng.sample(KEYS, 1) if key not in puts]
        lsn = self.writer(name).write(puts, deletes).lsn
        life = self.lives[name]
        assert lsn > max(life.versions)
        left = {key: value for key, value in life.rows.items() if key not in deletes}
        life.versions[lsn] = left | puts
        if self.rng.random() < 0.5:
            self.writer(name).flush()

    def load(self) -> None:
        """Attach a segment, which stays outside of the manifest until it is folded."""
        name, rows = self.pick(), self.rows()
        context = self.grove.db.context()
        job = begin_load(context, namespace_of(NS, name))
        lsn = self.writer(name)._writing().attach([upload(context, job, {**rows})]).lsn
        job.end()
        life = self.lives[name]
        life.versions[lsn] = life.rows | rows

    def take_over(self) -> None:
        name = self.pick()
        self.writers[name] = self.grove.kv(name)

    # Branching.

    def branch(self) -> None:
        free = [name for name in NAMES if name not in self.lives]
        if not free:
            return
        name, parent = self.rng.choice(free), self.pick()
        life, lsn = self.lives[parent], self.pick_lsn(parent)
        try:
            self.writer(parent).branch(name, lsn=lsn)
        except RetentionError:
            assert lsn < self.grove.manifest(parent).retention.floor_lsn
            return
        self.lives[name] = Life(parent, {n: rows for n, rows in life.versions.items() if n <= lsn})
        self.ended.discard(name)

    def drop(self) -> None:
        name = self.pick_branch()
        if name is None:
            return
        if refused := self.children(name):
            with pytest.raises(InvalidInputError, match=f"{NS}@{refused[0]}"):
                self.grove.db.drop(NS, branch=name)
            return
        try:
            self.grove.db.drop(NS, branch=name)
        except InvalidInputError:
            # A branch of a branch names its objects, or did so not long ago.
            assert self.grove.pins(name)
            return
        del self.lives[name]
        self.writers.pop(name, None)
        self.ended.add(name)
        with pytest.raises(NotFoundError):
            self.grove.contents(name)

    def make_the_root_anew(self) -> None:
        try:
            self.grove.db.drop(NS)
        except InvalidInputError:
            assert self.children(None) or self.grove.pins()
            return
        del self.writers[None]
        self.lives[None] = Life(None, {0: {}})
        self.writer(None)

    def detach(self) -> None:
        name = self.pick_branch()
        if name is None:
            return
        context = self.grove.db.context()
        try:
            detach(context, namespace_of(NS, name))
        except InvalidInputError:
            assert self.children(name) or self.grove.pins(name)
            return
        self.lives[name].is_detached = True
        assert not any(ref.namespace for ref in self.grove.manifest(name).segments)

    # What others do.

    def compact(self) -> None:
        name = self.pick()
        floor = self.pick_lsn(name) if self.rng.random() < 0.5 else None
        self.grove.compact(name, floor_lsn=floor)

    def compact_as_the_pipeline_does(self) -> None:
        name = namespace_of(NS, self.pick())
        options = CompactionOptions(min_input_files=2, full=self.rng.random() < 0.3)
        runner = InProcess(self.grove.db.context())
        assert not compact(self.grove.db, [name], runner=runner, options=options).failed

    def index_as_the_pipeline_does(self) -> None:
        name = namespace_of(NS, self.pick())
        runner = InProcess(self.grove.db.context())
        assert not index(self.grove.db, [name], runner=runner).failed

    def rebuild_as_the_pipeline_does(self) -> None:
        name = namespace_of(NS, self.pick())
        runner = InProcess(self.grove.db.context())
        assert not rebuild(self.grove.db, [name], runner=runner).failed

    def fold(self) -> None:
        try:
            fold_log(self.grove.db.context(), namespace_of(NS, self.pick()))
        except StalePlanError:
            return

    def collect(self) -> None:
        self.grove.collect(self.rng.choice([*self.lives, *sorted(self.ended)]))

    def collect_all_after_long(self) -> None:
        self.grove.age(*self.lives)
        for name in (*self.lives, *sorted(self.ended)):
            self.grove.collect(name)

    def wait(self) -> None:
        self.grove.clock.advance(self.rng.choice([1.0, GRACE_S / 3, GRACE_S + 1]))

    # Reading.

    def look(self) -> None:
        name = self.pick()
        self.check(name, self.pick_lsn(name))

    def open_reader(self) -> None:
        name = self.pick()
        reader = self.grove.database(self.grove.inner).kv(NS, branch=name, mode="r")
        self.readers = [*self.readers[-5:], (reader, self.lives[name])]

    def look_through_readers(self) -> None:
        """Whoever has it open sees all of a life, and never anything of another one."""
        for reader, life in [*self.readers]:
            is_live = life in self.lives.values()
            try:
                reader.refresh()
                rows = dict(reader.items())
            except (DroppedError, SnapshotExpiredError):
                assert not is_live
                self.readers.remove((reader, life))
                continue
            assert rows == life.rows if is_live else rows in life.versions.values()

    def check(self, name: str | None, lsn: int) -> None:
        life = self.lives[name]
        if lsn == max(life.versions):
            assert self.grove.contents(name) == life.rows
        try:
            found = self.grove.contents(name, lsn)
        except RetentionError:
            assert lsn < self.grove.manifest(name).retention.floor_lsn
            return
        assert found == life.versions[lsn], (name, lsn)

    def check_all(self) -> None:
        """Every version of every branch, and that no pin stands for nobody."""
        for name in self.lives:
            refs = self.grove.manifest(name).segments
            self.shared_at_end += sum(bool(ref.namespace) for ref in refs)
        for _ in range(2):
            self.collect_all_after_long()
        for name, life in self.lives.items():
            for lsn in life.versions:
                self.check(name, lsn)
            for pin in self.grove.pins(name):
                assert pin.child.partition("@")[2] in self.lives
        for name in (*self.lives, *sorted(self.ended)):
            assert verify(self.grove.db.context(), namespace_of(NS, name)).problems == ()


@pytest.mark.parametrize("seed", range(12))
def test_every_version_of_every_branch_reads_as_it_was_written(seed: int) -> None:
    history = History(seed)
    history.run(120)
    history.check_all()


def test_the_histories_are_worth_it() -> None:
    """Branches share segments in them, at the end and hence all the time."""
    history = History(seed=9)
    history.run(120)
    history.check_all()
    assert history.shared_at_end
