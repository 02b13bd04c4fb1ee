"""Passes over many namespaces: one run of tasks, each namespace with its own fate, and a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from reef.database import Database
from reef.engine import Context
from reef.errors import InvalidInputError, NotFoundError, ReefError, UnavailableError
from reef.format import log_key
from reef.jobs import (
    CollectOptions,
    CompactionOptions,
    CompactionPlan,
    IndexOptions,
    InProcess,
    Job,
    PassProgress,
    PassResult,
    VerifyOptions,
    WorkerOptions,
    collect,
    compact,
    end_job,
    find_pass,
    index,
    passes,
    preview_compaction,
    preview_index,
    preview_rebuild,
    rebuild,
    standing_intents,
    verify,
    work,
)
from reef.jobs._driver import PassRun, run_pass
from reef.jobs._pass_protocol import Figures, Round, Work
from reef.store import MemoryStore
from reef.testing import ManualClock
from tests.support.engine.damage import flip
from tests.support.jobs.passes import Meddling

EAGER = CompactionOptions(min_input_files=2)


def filled(names: Sequence[str], rounds: int = 3, clock: ManualClock | None = None) -> Database:
    """Return a bucket of key-value namespaces whose logs are not folded."""
    db = Database(MemoryStore())
    if clock is not None:
        store = MemoryStore(clock=clock)
        db = Database(store, clock=clock, gc_grace=0, retained_generations=1, flush_interval=0)
    for number, name in enumerate(names):
        with db.kv(name) as kv:
            for i in range(rounds):
                kv.write(puts={b"%d" % key: b"%d/%d" % (i, number) for key in range(10 + number)})
    return db


def contents(db: Database, name: str) -> dict[bytes, bytes]:
    with db.kv(name, mode="r") as kv:
        return dict(kv.items())


def test_many_namespaces_share_one_run_of_tasks() -> None:
    names = [f"ns{i:02}" for i in range(12)]
    db = filled(names)
    before = {name: contents(db, name) for name in names}
    runner = Meddling(db.context())
    result = index(db, runner=runner)
    assert runner.runs == [("index 12 namespaces", 12)]
    assert [one.namespace for one in result.namespaces] == names
    assert {one.state for one in result.records} == {"done"}
    assert result.totals["rows"] == sum(3 * (10 + i) for i in range(12))
    assert result.tasks.count == 12
    assert {name: contents(db, name) for name in names} == before
    again = index(db, runner=runner)
    assert {one.state for one in again.records} == {"idle"}
    assert len(runner.runs) == 1


def test_namespaces_go_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reef.jobs._driver.PORTION", 5)
    db = filled([f"ns{i:02}" for i in range(12)], rounds=1)
    runner = Meddling(db.context())
    seen: list[PassProgress] = []
    assert not index(db, runner=runner, watch=seen.append).failed
    assert [count for _, count in runner.runs] == [5, 5, 2]
    assert seen[-1].namespaces == 12
    assert (seen[-1].tasks_done, seen[-1].tasks) == (12, 12)
    assert seen[-1].bytes_done == seen[-1].bytes > 0
    assert seen[-1].rows == sum(10 + i for i in range(12))


def test_a_failing_namespace_does_not_stop_the_others() -> None:
    names = ["a", "b", "c"]
    db = filled(names)
    flip(db.store, log_key("b", 2))
    result = index(db)
    assert [one.state for one in result.records] == ["done", "failed", "done"]
    assert [one.namespace for one in result.failed] == ["b"]
    assert "CorruptError" in result.records[1].error
    assert standing_intents(db.context(), "b") == ()
    missing = index(db, ["a", "nobody"])
    assert isinstance(missing.namespaces[1].error, NotFoundError)
    with pytest.raises(NotFoundError):
        find_pass(db.store, missing.id)
    again = index(db, ["a", "b", "nobody"])
    assert find_pass(db.store, again.id).states == {"failed": 2, "idle": 1}


def folded(names: Sequence[str], runs: int = 4) -> Database:
    """Return a bucket whose namespaces have that many runs each."""
    db = filled(names, rounds=1)
    for round in range(runs - 1):
        index(db)
        for name in names:
            with db.kv(name) as kv:
                kv.write(puts={b"%d" % key: b"again %d" % round for key in range(5)})
    index(db)
    return db


def test_compactions_of_many_namespaces_share_runs_too() -> None:
    names = ["a", "b", "c"]
    db = folded(names)
    before = {name: contents(db, name) for name in names}
    plans = preview_compaction(db, options=EAGER)
    assert all(one.result is not None and one.result.groups for one in plans)
    runner = Meddling(db.context())
    result = compact(db, runner=runner, options=EAGER)
    assert runner.runs == [("compact 3 namespaces", 3)]
    assert {one.state for one in result.records} == {"done"}
    assert result.totals["segments"] == 3
    assert result.totals["replaced"] == 12
    assert result.totals["dropped"] == result.totals["rows_in"] - result.totals["rows"] > 0
    assert {name: contents(db, name) for name in names} == before
    assert all(one.result is None for one in preview_compaction(db, options=EAGER))
    assert all(standing_intents(db.context(), name) == () for name in names)


def merge_all(db: Database, clock: ManualClock) -> None:
    """Leave no more than segments, for whose rows there is no log any more."""
    index(db)
    compact(db, options=CompactionOptions(full=True))
    for _ in range(3):
        clock.advance(10)
        collect(db, apply=True)


def test_rebuilds_of_many_namespaces_share_runs() -> None:
    names = [f"ns{i:02}" for i in range(12)]
    db = filled(names)
    index(db)
    before = {name: contents(db, name) for name in names}
    old = {name: segments(db, name) for name in names}
    runner, seen = Meddling(db.context()), list[PassProgress]()
    result = rebuild(db, runner=runner, watch=seen.append)
    assert runner.runs == [
        ("rebuild 12 namespaces", 12)
    ]  # nothing stays: there is no more to check
    assert {one.state for one in result.records} == {"done"}
    assert [one.namespace for one in result.namespaces] == names
    assert result.totals["rows"] == sum(3 * (10 + i) for i in range(12))
    assert {name: contents(db, name) for name in names} == before
    assert all(not segments(db, name) & old[name] for name in names)
    assert all(standing_intents(db.context(), name) == () for name in names)
    assert (seen[-1].tasks, seen[-1].namespaces) == (12, 12)
    assert seen[-1].bytes_done == seen[-1].bytes == result.totals["bytes_in"]


def test_what_stays_of_many_namespaces_is_checked_in_one_run() -> None:
    clock = ManualClock()
    db = filled(["a", "b", "c"], clock=clock)
    merge_all(db, clock)
    runner, seen = Meddling(db.context()), list[PassProgress]()
    result = rebuild(db, runner=runner, watch=seen.append)
    assert runner.runs == [("rebuild 3 namespaces", 3)]
    assert {one.state for one in result.records} == {"idle"}
    assert seen[-1].bytes == sum(
        ref.size for one in result.namespaces if one.result for ref in one.result.kept
    )


def test_a_namespace_that_cannot_be_rebuilt_stops_no_other() -> None:
    names = ["a", "b", "c", "d"]
    db = filled(names)
    index(db)
    before = {name: contents(db, name) for name in ("a", "d")}
    flip(db.store, next(iter(db.store.list("namespaces/b/manifest/", ""))).key)
    (segment,) = db.store.list("namespaces/c/segments/")
    flip(db.store, log_key("c", 2))
    flip(db.store, segment.key)
    newest = [meta.key for meta in db.store.list("namespaces/b/manifest/")][-1]
    flip(db.store, newest)
    result = rebuild(db)
    assert [one.state for one in result.records] == ["done", "failed", "failed", "done"]
    assert "repair" in result.records[1].error
    assert segment.key in result.records[2].error
    assert all(standing_intents(db.context(), name) == () for name in ("a", "c", "d"))
    assert {name: contents(db, name) for name in ("a", "d")} == before


def test_a_flush_under_one_of_many_rebuilds_is_planned_anew() -> None:
    names = ["a", "b"]
    db = filled(names)
    index(db)

    def flush(run: int) -> None:
        if run == 1:
            with db.kv("b") as kv:
                kv.put(b"new", b"one")
                kv.flush()

    runner = Meddling(db.context(), flush)
    result = rebuild(db, runner=runner)
    assert [count for _, count in runner.runs] == [2, 1]
    assert [one.result.plans for one in result.namespaces if one.result] == [1, 2]
    assert contents(db, "b")[b"new"] == b"one"


def test_a_preview_of_a_rebuild_says_what_is_folded_and_what_stays() -> None:
    db = filled(["a", "b"])
    index(db, "a")
    keys = [meta.key for meta in db.store.list("")]
    first, second, nobody = preview_rebuild(db, ["a", "b", "nobody"])
    assert [meta.key for meta in db.store.list("")] == keys
    assert first.result is not None
    start = first.result.lowest
    assert start.slot == 1
    assert sum(first.result.sizes(start)) > 0
    assert len(start.replaced) == 1
    assert start.kept == ()
    assert second.result is not None
    assert second.result.starts == ()
    assert not second.result.sizes(second.result.lowest)
    assert isinstance(nobody.error, NotFoundError)


def segments(db: Database, name: str) -> set[str]:
    head = db.context().chain(name).load()
    assert head is not None
    return {ref.id for ref in head.manifest.segments}


@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
def test_progress_of_verify_and_gc_says_how_much_there_is(small_bytes: int) -> None:
    names, clock = ["a", "b", "c"], ManualClock()
    db = filled(names, clock=clock)
    seen: list[PassProgress] = []
    options = VerifyOptions(small_bytes=small_bytes)
    verify(db, watch=seen.append, options=options)
    if small_bytes:  # they are read by whoever finds out how small they are
        assert seen[0].namespaces_known == 3
        assert 0 < seen[0].namespaces < 3
    else:
        assert seen[-1].bytes_done == seen[-1].bytes > 0
    assert seen[-1].tasks_done == seen[-1].tasks
    assert seen[-1].namespaces == 3
    seen.clear()
    for name in names:
        with db.kv(name) as kv:
            kv.put(b"x", b"y")
            kv.flush()
    clock.advance(10)
    cut_fine = CollectOptions(small_objects=0, task_objects=2)
    collect(db, watch=seen.append, apply=True, options=cut_fine)
    assert seen[0].namespaces_known == 3
    assert seen[-1].namespaces == 3
    assert seen[-1].objects_done == seen[-1].objects > 0
    assert [one.tasks_done for one in seen] == sorted(one.tasks_done for one in seen)


def test_a_compaction_that_is_overtaken_is_planned_anew() -> None:
    db = folded(["a", "b"])
    before = contents(db, "a")

    def overtake(run: int) -> None:
        if run == 1:
            compact(db, "a", options=EAGER)

    result = compact(db, runner=Meddling(db.context(), overtake), options=EAGER)
    assert [one.state for one in result.records] == ["failed", "done"]
    assert "StalePlanError" in result.records[0].error
    assert contents(db, "a") == before
    assert standing_intents(db.context(), "a") == ()


def test_a_kept_plan_is_carried_out() -> None:
    db = folded(["a"])
    (found,) = preview_compaction(db, "a", options=EAGER)
    assert found.result is not None
    result = compact(db, plan=found.result)
    assert result.totals["groups"] == len(found.result.groups)
    with pytest.raises(InvalidInputError):
        compact(db, "b", plan=found.result)
    # It is of the past now: what is left to do is planned anew, and that is nothing.
    assert not compact(db, plan=found.result).failed


def broken(db: Database) -> InProcess:
    """Return a runner whose Spark is gone."""

    def gone(run: int) -> None:
        raise UnavailableError("the cluster is gone")

    return Meddling(db.context(), before=gone)


@pytest.mark.parametrize("what", [index, compact, rebuild])
def test_a_run_that_fails_leaves_no_intent(what: Callable[..., Any]) -> None:
    db = folded(["a", "b"])
    for name in ("a", "b"):
        with db.kv(name) as kv:
            kv.put(b"new", b"one")
    options: dict[str, Any] = {"options": EAGER} if what is compact else {}
    with pytest.raises(UnavailableError):
        what(db, runner=broken(db), **options)
    assert standing_intents(db.context(), "a") == standing_intents(db.context(), "b") == ()


def test_a_preview_writes_nothing() -> None:
    db = filled(["a", "b"])
    keys = [meta.key for meta in db.store.list("")]
    found = preview_index(db)
    assert [one.result is not None and one.result.is_worth(IndexOptions()) for one in found] == [
        True,
        True,
    ]
    assert [meta.key for meta in db.store.list("")] == keys


def test_the_record_of_a_pass_stays_in_the_bucket() -> None:
    db = filled(["a", "b"])
    first = index(db, "a")
    second = index(db)
    newest, older = sorted(passes(db.store), key=lambda one: one.id == first.id)
    assert (newest.id, older.id) == (second.id, first.id)
    assert older.kind == "index"
    assert older.totals == first.totals
    assert older.options["task_bytes"] == IndexOptions().task_bytes
    assert [one.namespace for one in newest.namespaces] == ["b"]
    assert newest.states == {"done": 1, "idle": 1}
    assert find_pass(db.store, first.id.lower()) == older
    with pytest.raises(NotFoundError):
        find_pass(db.store, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
    with pytest.raises(InvalidInputError):
        find_pass(db.store, "../x")


def test_a_killed_job_is_seen_and_can_be_ended() -> None:
    db = filled(["a"])
    job = Job.begin(db.context(), "a", "index")
    (intent,) = standing_intents(db.context(), "a")
    assert (intent.id, intent.kind) == (job.id, "index")
    end_job(db.context(), "a", job.id)
    assert standing_intents(db.context(), "a") == ()
    with pytest.raises(NotFoundError):
        end_job(db.context(), "a", job.id)


def test_a_worker_does_what_is_worth_it_round_by_round() -> None:
    db = filled(["a"], rounds=1)
    options = WorkerOptions(interval=5.0, index=IndexOptions(min_slots=3), compact=EAGER)
    told: list[Any] = []
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        with db.kv("a") as kv:
            kv.put(b"%d" % len(waited), b"x")
        return len(waited) == 12

    work(db, runner=InProcess(db.context()), options=options, report=told.append, wait=wait)
    assert waited == [5.0] * 12
    kinds = [one.kind for one in told if isinstance(one, PassResult)]
    assert kinds.count("index") >= 2
    assert "compact" in kinds
    assert not any(one.failed for one in told)
    assert len(contents(db, "a")) == 13  # 0 to 9, and those that were put while it waited


def test_a_worker_tries_again_after_a_round_that_failed() -> None:
    db = filled(["a"])
    told: list[Any] = []
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) == 3

    work(
        db,
        runner=broken(db),
        options=WorkerOptions(interval=1.0, gc_interval=0.0),
        report=told.append,
        wait=wait,
    )
    assert waited == [1.0] * 3  # too little to fold: nothing was run
    work(
        db,
        "a",
        runner=broken(db),
        options=WorkerOptions(interval=1.0, gc_interval=0.0, index=IndexOptions()),
        report=told.append,
        wait=lambda seconds: wait(seconds) or len(waited) > 5,
    )
    assert [isinstance(one, ReefError) for one in told] == [True, True, True]
    assert waited[3:] == [2.0, 4.0, 8.0]


def test_a_worker_whose_rounds_all_fail_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    db = filled(["a"])
    told: list[Any] = []
    options = WorkerOptions(interval=1.0, index=IndexOptions(), failures_max=3)
    with pytest.raises(UnavailableError):
        work(
            db,
            runner=broken(db),
            options=options,
            report=told.append,
            wait=lambda _: False,
        )
    assert len(told) == 3


def test_a_worker_leaves_a_sick_namespace_alone_for_twice_as_long_each_time() -> None:
    clock = ManualClock()
    db = filled(["a", "b"], clock=clock)
    flip(db.store, log_key("a", 2))
    told: list[PassResult[Any]] = []
    failed_at: list[float] = []
    begun = clock.monotonic()

    def report(result: PassResult[Any] | ReefError) -> None:
        assert not isinstance(result, ReefError)
        told.append(result)
        failed_at.extend(clock.monotonic() - begun for one in result.failed)

    def wait(seconds: float) -> bool:
        clock.advance(seconds)
        return clock.monotonic() - begun >= 15_000

    options = WorkerOptions(interval=60.0, index=IndexOptions(), compact=EAGER)
    work(db, runner=InProcess(db.context()), options=options, report=report, wait=wait)
    # After 2, 4, 8, ... rounds, at last every hour.
    assert failed_at == [0, 120, 360, 840, 1800, 3720, 7320, 10920, 14520]
    assert any(record.namespace == "b" for result in told for record in result.records)
    head = db.context().chain("a").load()
    assert head is not None
    assert head.generation < 30
    work(
        db,
        ["nobody"],
        runner=InProcess(db.context()),
        options=options,
        report=report,
        wait=lambda seconds: wait(seconds) or len(told) > 30,
    )
    assert told[-1].failed  # what may come to be is looked for each time


class Toy:
    """Two rounds of tasks in each namespace; "bad" fails in the first, and "odd" has one round only."""

    kind = "toy"
    recorded_options = None

    def __init__(self) -> None:
        self.closed: list[str] = []

    def work(self, run: PassRun, namespace: str) -> Work[int]:
        sums = 0
        try:
            for task in (add_one,) if namespace == "odd" else (add_one, add_two):
                number = -1 if namespace == "bad" else sums
                outcomes = yield Round(task, [Number(number)], Number, [10])
                sums = outcomes[0].returned().value
        except GeneratorExit:
            self.closed.append(namespace)
            raise
        return sums

    def figures(self, result: int) -> Figures:
        return Figures({"rows": result}, generation=result)


class Number(msgspec.Struct, frozen=True):
    value: int


def add_one(context: Context, number: Number) -> Number:
    if number.value < 0:
        raise UnavailableError("too small")
    return Number(number.value + 1)


def add_two(context: Context, number: Number) -> Number:
    return Number(number.value + 2)


def test_rounds_of_many_namespaces_go_together_and_each_has_its_own_end() -> None:
    db = Database(MemoryStore())
    runner, seen = Meddling(db.context()), list[PassProgress]()
    names = ["a", "bad", "odd", "z"]
    result = run_pass(db.context(), Toy(), names, runner=runner, watch=seen.append)
    assert runner.runs == [("toy 4 namespaces", 4), ("toy 2 namespaces", 2)]
    assert [one.namespace for one in result.namespaces] == names
    assert [one.result for one in result.namespaces] == [3, None, 1, 3]
    assert isinstance(result.namespaces[1].error, UnavailableError)
    assert result.totals == {"rows": 7}
    assert (seen[-1].tasks_done, seen[-1].tasks, seen[-1].bytes_done) == (6, 6, 60)
    assert (seen[-1].rows, seen[-1].namespaces) == (7, 4)
    assert list(passes(db.store)) == []  # it leaves no record


def test_work_is_closed_when_its_tasks_cannot_be_run() -> None:
    db = Database(MemoryStore())
    toy = Toy()
    with pytest.raises(UnavailableError, match="the cluster is gone"):
        run_pass(db.context(), toy, ["a", "b"], runner=broken(db))
    assert sorted(toy.closed) == ["a", "b"]


def test_what_was_done_before_a_run_failed_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reef.jobs._driver.PORTION", 1)
    db = filled(["a", "b"])

    def fail(run: int) -> None:
        if run == 2:
            raise UnavailableError("the cluster is gone")

    with pytest.raises(UnavailableError):
        index(db, runner=Meddling(db.context(), before=fail))
    (record,) = passes(db.store)
    assert [one.namespace for one in record.namespaces] == ["a"]


def test_collection_keeps_the_newest_records_and_verify_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reef.jobs._pass_records.KEPT", 2)
    db = filled(["a", "b", "c"])
    made = [index(db, name).id for name in ("a", "b", "c")]
    assert not verify(db).failed
    assert not collect(db).failed
    assert {one.id for one in passes(db.store)} == {*made}
    collect(db, apply=True)
    assert len(list(passes(db.store))) == 2


def test_options_are_checked_before_anything_runs() -> None:
    db = filled(["a"])
    with pytest.raises(InvalidInputError):
        index(db, options=IndexOptions(task_bytes=0))
    with pytest.raises(InvalidInputError):
        CompactionOptions(min_input_files=1)
    with pytest.raises(InvalidInputError):
        index(db, "../a")
    with pytest.raises(InvalidInputError, match="name them"):
        index(db.context())
    plan = CompactionPlan("a", 1, EAGER, ())
    with pytest.raises(InvalidInputError, match="its own options"):
        compact(db, options=EAGER, plan=plan)
    with pytest.raises(InvalidInputError, match="plan is for namespace 'a'"):
        compact(db, "b", plan=plan)
