"""A story of pairs and documents in one bucket: anything that may happen to them, by seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from reef import jobs
from reef.clock import Clock
from reef.database import Database
from reef.errors import (
    FencedError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
    StalePlanError,
    UnavailableError,
)
from reef.format import Manifest
from reef.jobs import (
    CollectOptions,
    CompactionOptions,
    IndexOptions,
    RebuildOptions,
    VerifyOptions,
    bulk_load,
    end_job,
    standing_intents,
)
from reef.jobs.load import abandon_load, commit_load, find_load, write_part
from reef.store import MemoryStore, Store
from reef.testing import ManualClock
from tests.support.jobs.dying_tasks import Interrupted, Killed, Mortal, Unruly
from tests.support.jobs.loads import begin_load
from tests.support.jobs.pipeline_model import KEYS, Asked, Pairs, Papers, Rows, Subject

GRACE_S = 900.0
DAY_US = 86_400_000_000
NAMES = ("pairs", "papers")

Drive = Callable[[Database, Unruly], object]


class PipelineStory:
    """A bucket, whoever works on it, and what it must show."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.window_s = rng.choice((None, None, None, 600.0, 40_000.0))
        self.settings = {
            "flush_interval": 0,
            "gc_grace": GRACE_S,
            "retained_generations": rng.randint(1, 3),
            "row_block_bytes": rng.choice((100, 1000, 4096)),
            "pitr_window": self.window_s,
        }
        self.subjects: list[Subject] = [Pairs(), Papers()]
        self.late: list[Callable[[], object]] = []
        self.told: list[str] = []
        self.seen: Counter[str] = Counter()
        self.serial = 0
        self.loading: tuple[Subject, Rows, str] | None = None
        self.floors = dict.fromkeys(NAMES, 0)
        for subject in self.subjects:
            subject.writer = subject.open(self.database())
            self.write(subject)
            subject.reader = subject.open(self.database(), "r")

    def database(self, store: Store | None = None, clock: Clock | None = None) -> Database:
        rng = random.Random(self.rng.random())
        return Database(
            store or self.store,
            clock=clock or self.clock,
            rng=rng,
            maintenance="off",
            **self.settings,
        )

    def next(self) -> int:
        self.serial += 1
        self.clock.advance(self.rng.choice((0.001, 1, 60)))
        return self.serial

    def tell(self, what: object) -> None:
        self.told.append(f"{len(self.told)}: {what}")

    # Writing.

    def absorb(self) -> None:
        """Note the load that is under way, if it has been committed, or its attributes have."""
        if self.loading is None:
            return
        subject, rows, key = self.loading
        context = self.database().context()
        receipt = find_load(context, subject.name, key)
        if receipt is not None:
            subject.history.commit(receipt.lsn, rows, self.clock.now_us())
            subject.loads.append(receipt.lsn)
            self.loading = None
        self.absorb_schema(subject)

    def absorb_schema(self, subject: Subject) -> None:
        """Note that attributes were added and nothing else: all that a load may leave."""
        with subject.open(self.database(), "r") as reader:
            lsn = reader.refresh()
        if lsn > subject.history.lsn:
            assert subject.face == "documents"
            subject.history.commit(lsn, {}, self.clock.now_us())

    def write(self, subject: Subject) -> None:
        serial = self.next()
        request = subject.request(self.rng, serial)
        key = f"w{serial}" if self.rng.random() < 0.5 else None
        self.absorb()
        if request[1] and subject.writer.lsn < subject.history.lsn:
            self.reopen(subject)  # fenced, and what is patched may not be known to it
        try:
            lsn = subject.send(request, key)
        except FencedError:  # by a load
            self.absorb()
            self.reopen(subject)
            self.absorb()
            lsn = subject.send(request, key)
        subject.history.commit(lsn, subject.apply(request), self.clock.now_us())
        if key is not None:
            subject.asked[key] = Asked(request, lsn, self.clock.now_us())

    def write_some(self, subject: Subject) -> None:
        for _ in range(self.rng.randint(1, 6)):
            self.write(subject)
            if self.rng.random() < 0.7:
                self.flush(subject)

    def flush(self, subject: Subject) -> None:
        try:
            subject.writer.flush()
        except FencedError:
            self.reopen(subject)
            subject.writer.flush()

    def reopen(self, subject: Subject) -> None:
        if self.rng.random() < 0.5:
            with suppress(FencedError):
                subject.writer.close()
        subject.writer = subject.open(self.database())

    def repeat(self, subject: Subject) -> None:
        """Send requests again that were acknowledged: nothing happens, and they are known."""
        recent = [
            (key, asked)
            for key, asked in subject.asked.items()
            if self.clock.now_us() - asked.at_us < DAY_US // 2
        ]
        if recent and self.rng.random() < 0.5:
            self.reopen(subject)
        for key, asked in self.rng.sample(recent, min(3, len(recent))):
            try:
                lsn = subject.send(asked.request, key)
            except FencedError:
                self.reopen(subject)
                lsn = subject.send(asked.request, key)
            assert lsn == asked.lsn, key

    def take_snapshot(self, subject: Subject) -> None:
        self.absorb()
        snapshot = subject.reader.snapshot(ttl=None)
        assert snapshot.lsn == subject.history.lsn
        subject.snapshots[snapshot.id] = snapshot

    def release_snapshot(self, subject: Subject) -> None:
        if subject.snapshots:
            subject.snapshots.pop(self.rng.choice(sorted(subject.snapshots))).release()

    # Loads.

    def load(self, subject: Subject) -> None:
        """Load by name, or through the writer; the driver may die, and is then tried again."""
        rng, serial = self.rng, self.next()
        rows, key = subject.loaded(rng, serial), f"load{serial}"
        self.absorb()
        self.loading = subject, rows, key
        how = rng.choice(("by name", "by handle", "killed", "killed", "interrupted"))
        self.tell(f"  load {how}")
        before = subject.history.lsn
        options: dict[str, Any] = {
            "job_key": key,
            "face": subject.face,
            "target_bytes": rng.choice((1, 300, 1 << 20)),
            "budget_bytes": rng.choice((50, 1 << 20)),
        }
        into: Any = subject.name
        store: Store = self.store
        if how == "by handle":
            self.reopen(subject)
            into = subject.writer
        elif how == "killed":
            store = self.mortal(60)
        elif how == "interrupted":
            store = Interrupted(self.store, self.when(60), self.intrude)
        try:
            bulk_load(self.database(store), into, subject.table(rows), **options)
        except Killed:
            self.seen["load killed"] += 1
        except (FencedError, OutcomeUnknownError, NotWrittenError, UnavailableError):
            assert how == "interrupted"
            self.seen["load overtaken"] += 1
        self.absorb()
        is_committed = self.loading is None
        self.seen[f"load {how}, {is_committed}"] += 1
        if how in ("by name", "by handle"):
            assert is_committed
            assert subject.history.lsn > before
        if how == "interrupted" or rng.random() < 0.3:
            self.loading = None  # nobody knows who might still commit: but nothing may
            return
        again = bulk_load(self.database(), subject.name, subject.table(rows), **options)
        assert again.replayed == is_committed
        self.absorb()
        assert self.loading is None

    def load_in_parts(self, subject: Subject) -> None:
        """Load by tasks, some of which run twice; what one of the attempts wrote is committed."""
        rng, serial = self.rng, self.next()
        self.absorb()
        rows = subject.loaded(rng, serial)
        table = subject.table(rows)
        context = self.database().context()
        columns = table.schema if subject.face == "documents" else None
        plan = begin_load(
            context,
            subject.name,
            job_key=f"parts{serial}",
            face=subject.face,  # type: ignore[arg-type]
            columns=columns,
            target_bytes=rng.choice((1, 1 << 20)),
        )
        cut = rng.choice(KEYS)
        parts = []
        for wanted in ([k for k in rows if k < cut], [k for k in rows if k >= cut]):
            some = subject.table({k: rows[k] for k in sorted(wanted)}) if wanted else None
            if some is None:
                continue
            stored = [plan.stored(some)]
            tries = [write_part(context, plan, stored) for _ in range(rng.randint(1, 2))]
            parts.append(rng.choice(tries))
        if rng.random() < 0.3:
            self.intrude()
        if rng.random() < 0.2:
            abandon_load(context, plan)
            with pytest.raises(StalePlanError):
                commit_load(context, plan, parts)
            self.absorb_schema(subject)
            return
        self.loading = subject, rows, plan.job_key
        try:
            commit_load(context, plan, parts)
        except (FencedError, NotWrittenError):  # somebody has ended it, or added attributes
            self.absorb()
            assert self.loading is not None
            self.loading = None
            self.seen["parts refused"] += 1
            return
        self.absorb()
        assert self.loading is None

    # Passes.

    def chosen(self) -> list[str] | None:
        return self.rng.choice((None, ["pairs"], ["papers"], ["papers", "pairs"]))

    def some_pass(self) -> tuple[str, Drive]:
        """Return any pass with any options."""
        rng, names = self.rng, self.chosen()
        kind = rng.choice(("index", "compact", "compact", "compact", "rebuild", "gc"))
        options: Any
        if kind == "index":
            options = self.index_options()
            return f"index {names} {options}", lambda db, runner: jobs.index(
                db, names, runner=runner, options=options
            )
        if kind == "compact":
            options = self.compaction_options()
            return f"compact {names} {options}", lambda db, runner: jobs.compact(
                db, names, runner=runner, options=options
            )
        if kind == "rebuild":
            options = RebuildOptions(
                fold=self.index_options(), verify=VerifyOptions(task_bytes=rng.choice((1, 1 << 20)))
            )
            return f"rebuild {names} {options}", lambda db, runner: jobs.rebuild(
                db, names, runner=runner, options=options
            )
        options = CollectOptions(
            small_objects=rng.choice((0, 3, 2000)), task_objects=rng.choice((1, 3, 5000))
        )
        return f"gc {names} {options}", lambda db, runner: jobs.collect(
            db, names, runner=runner, options=options, apply=True
        )

    def index_options(self) -> IndexOptions:
        return IndexOptions(
            task_bytes=self.rng.choice((1, 500, 2000, 1 << 20)),
            task_slots=self.rng.choice((1, 2, 5, 100)),
            memory_bytes=self.rng.choice((300, 2000, 1 << 20)),
        )

    def compaction_options(self) -> CompactionOptions:
        rng = self.rng
        start, end = sorted(rng.sample(KEYS, 2))
        is_ranged = rng.random() < 0.3
        return CompactionOptions(
            target_size_bytes=rng.choice((1, 700, 2500, 1 << 20)),
            min_input_files=rng.choice((2, 2, 3, 4)),
            concurrency=rng.randint(1, 3),
            group_size_bytes=rng.choice((1, 1500, 8 << 30)),
            max_bytes=rng.choice((None, None, 1000, 5000)),
            start=start.encode() if is_ranged else b"",
            end=end.encode() if is_ranged and rng.random() < 0.7 else None,
            full=rng.random() < 0.2,
            keep_floor=rng.random() >= 0.6,
            memory_bytes=(64 + 18 * rng.choice((2, 3, 10))) << 20,
        )

    def runner(self, store: Store, *, fails: float = 0.0) -> Unruly:
        rng = random.Random(self.rng.random())
        return Unruly(self.database, store, rng, self.late, alive=self.store, fails=fails)

    def when(self, most: int) -> int:
        return int(most ** self.rng.random())

    def mortal(self, most: int) -> Mortal:
        return Mortal(self.store, self.when(most), is_sent=self.rng.random() < 0.5)

    def do_pass(self) -> None:
        """Make a pass, with nobody in its way but its executors: it is done."""
        what, drive = self.some_pass()
        self.tell(what)
        result: Any = drive(self.database(), self.runner(self.store))
        self.seen[f"{result.kind} {','.join(sorted({r.state for r in result.records}))}"] += 1
        assert result.failed == ()
        assert all(one.error is None for one in result.namespaces)

    def pass_with_failing_tasks(self) -> None:
        what, drive = self.some_pass()
        self.tell(f"failing: {what}")
        runner = self.runner(self.store, fails=0.3)
        result: Any = drive(self.database(), runner)
        self.seen[f"failing {result.kind} {bool(result.failed)}"] += 1
        assert runner.failed or not result.failed

    def killed_pass(self) -> None:
        """Kill the driver of a pass before or after any request of its own or of its tasks."""
        what, drive = self.some_pass()
        self.tell(f"killed: {what}")
        store = self.mortal(150)
        try:
            drive(self.database(store), self.runner(store))
        except Killed:
            self.seen[f"killed {what.split()[0]}"] += 1

    def interrupted_pass(self) -> None:
        """Let others do something in the midst of a pass."""
        what, drive = self.some_pass()
        self.tell(f"interrupted: {what}")
        store: Store = self.store
        for _ in range(self.rng.randint(1, 2)):
            if self.rng.random() < 0.5:
                store = Interrupted(store, self.when(100), self.intrude)
            else:
                store = Interrupted(store, self.rng.randint(1, 4), self.intrude, "/manifest/")
        result: Any = drive(self.database(store), self.runner(store))
        self.seen[f"interrupted {result.kind}"] += 1
        for one in result.namespaces:
            if one.error is not None:
                self.seen[f"interrupted {result.kind}: {type(one.error).__name__}"] += 1
                assert isinstance(one.error, FencedError | UnavailableError | OutcomeUnknownError)

    def intrude(self) -> None:
        """Do what others may do at any time."""
        subject = self.rng.choice(self.subjects)
        what, drive = self.some_pass()
        does = self.rng.choice(("write", "flush", "snapshot", "pass", "pass", "end", "sleep"))
        self.tell(f"  in between: {does} {subject.name} {what if does == 'pass' else ''}")
        if does == "write":
            self.write_some(subject)
        elif does == "flush":
            self.flush(subject)
        elif does == "snapshot":
            self.take_snapshot(subject)
        elif does == "pass":
            drive(self.database(), self.runner(self.store))
        elif does == "end":
            self.end_jobs(subject)
        else:
            self.clock.advance(self.rng.choice((10, GRACE_S / 3, GRACE_S + 1)))
            jobs.collect(self.database(), runner=self.runner(self.store), apply=True)

    def end_jobs(self, subject: Subject) -> None:
        context = self.database().context()
        for intent in standing_intents(context, subject.name):
            with suppress(NotFoundError):  # a load that has come to its end meanwhile
                end_job(context, subject.name, intent.id)

    def run_late(self) -> None:
        """Let executors go on whose drivers are long done."""
        while self.late and self.rng.random() < 0.8:
            self.seen["late"] += 1
            self.late.pop(self.rng.randrange(len(self.late)))()

    def pass_time(self) -> None:
        self.clock.advance(self.rng.choice((10, GRACE_S + 1, 7200)))

    def age(self) -> None:
        """Let what is there become old, and superseded by some generations."""
        for _ in range(2):
            for subject in self.subjects:
                for _ in range(self.rng.randrange(1, 3)):
                    chain = self.database().context().chain(subject.name)
                    chain.publish(lambda head: head.manifest)  # type: ignore[union-attr]
            self.clock.advance(GRACE_S + 1)

    def collect(self) -> None:
        """Let what is there become old, and collect it."""
        self.age()
        runner = self.runner(self.store)
        result = jobs.collect(self.database(), runner=runner, apply=True)
        self.seen[f"collected {min(9, result.totals.get('objects', 0))}"] += 1
        assert result.failed == ()

    # What must hold.

    def check(self, *, is_whole: bool = False) -> None:
        self.absorb()
        for subject in self.subjects:
            db = self.database()
            manifest = subject.check(db, self.rng, is_whole=is_whole)
            self.check_floor(subject, manifest)
            assert subject.reader.refresh() == subject.history.lsn
            subject.check_view(subject.reader, subject.history.lsn, self.rng)
            if subject.writer.is_open:  # perhaps fenced: what it shows is what it knows of
                subject.check_view(subject.writer, subject.writer.lsn, self.rng)

    def check_floor(self, subject: Subject, manifest: Manifest) -> None:
        """Nothing that the window for time travel holds may be given up, and the floor never falls."""
        floor = manifest.retention.floor_lsn
        assert floor >= self.floors[subject.name]
        if floor > self.floors[subject.name] and self.window_s is not None:
            edge_us = self.clock.now_us() - round(self.window_s * 1e6)
            older = [lsn for lsn, at in subject.history.times.items() if at <= edge_us]
            # With the one that was the newest when it began.
            assert floor <= max(older, default=0)
        self.floors[subject.name] = floor

    def check_end(self) -> None:
        """When all jobs are ended and everything is old, nothing is left that nothing names."""
        self.check(is_whole=True)
        for subject in self.subjects:
            self.reopen(subject)  # whoever writes may still publish what it has uploaded
            self.end_jobs(subject)
            assert standing_intents(self.database().context(), subject.name) == ()
        # Windows wait for a fold that goes beyond them.
        for subject in self.subjects:
            self.write(subject)
        assert jobs.index(self.database(), runner=self.runner(self.store)).failed == ()
        self.late.clear()
        for _ in range(2):
            for subject in self.subjects:
                self.database().context().chain(subject.name).publish(
                    lambda head: head.manifest  # type: ignore[union-attr]
                )
            self.clock.advance(7 * 86400)
            jobs.collect(self.database(), runner=self.runner(self.store), apply=True)
            self.late.clear()
        result = jobs.verify(
            self.database(),
            runner=self.runner(self.store),
            options=VerifyOptions(small_bytes=self.rng.choice((0, 1 << 20)), task_bytes=300),
        )
        for one in result.namespaces:
            assert one.result is not None
            assert one.result.problems == ()
            subject = next(some for some in self.subjects if some.name == one.namespace)
            attached = subject.attached(self.database().context())
            assert {*one.result.orphans} <= attached  # the log still has it
        self.check(is_whole=True)

    def step(self) -> bool:
        """Do anything; return whether it is worth looking at everything."""
        subject = self.rng.choice(self.subjects)
        of_one: list[tuple[int, Callable[[Subject], None]]] = [
            (8, self.write_some),
            (1, self.flush),
            (1, self.reopen),
            (2, self.repeat),
            (3, self.take_snapshot),
            (1, self.release_snapshot),
            (3, self.load),
            (2, self.load_in_parts),
            (1, self.end_jobs),
        ]
        of_all: list[tuple[int, Callable[[], None]]] = [
            (10, self.do_pass),
            (2, self.pass_with_failing_tasks),
            (6, self.killed_pass),
            (5, self.interrupted_pass),
            (2, self.run_late),
            (1, self.pass_time),
            (4, self.collect),
        ]
        weights = [weight for weight, _ in (*of_one, *of_all)]
        at = self.rng.choices(range(len(weights)), weights)[0]
        if at < len(of_one):
            does = of_one[at][1]
            self.tell(f"{does.__name__} {subject.name}")
            does(subject)
            return self.rng.random() < 0.3
        all_does = of_all[at - len(of_one)][1]
        self.tell(all_does.__name__)
        all_does()
        return True
