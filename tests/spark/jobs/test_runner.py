"""SparkRunner: one outcome for each descriptor, whatever becomes of the tasks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reef.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    InvariantError,
    NotFoundError,
    ReefError,
)
from reef.jobs import Bucket
from reef.spark._runner import SparkRunner
from reef.threads import SystemThreads
from tests.support.spark import runner_tasks as tasks
from tests.support.spark.runner_tasks import Ask, Told
from tests.support.waiting import until


@pytest.fixture
def runner(spark: SparkSession, bucket: Bucket) -> SparkRunner:
    return SparkRunner(spark, bucket)


def asks(count: int, folder: Path | str = "") -> list[Ask]:
    return [Ask(number, str(folder)) for number in range(count)]


def jobs_so_far(spark: SparkSession) -> int:
    """Return how many jobs the session has begun: the number of the next one."""
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    return int(scheduler.numTotalJobs())


def test_outcomes_come_in_the_order_of_the_descriptors(
    spark: SparkSession, runner: SparkRunner, bucket: Bucket
) -> None:
    outcomes = runner.run(tasks.double, asks(7), Told, name="double")
    assert [outcome.returned().number for outcome in outcomes] == [0, 2, 4, 6, 8, 10, 12]
    assert {outcome.attempt for outcome in outcomes} == {0}
    assert all(outcome.seconds >= 0 and outcome.peak_rss_bytes > 1 << 20 for outcome in outcomes)
    assert {outcome.returned().url for outcome in outcomes} == {bucket.url}


def test_nothing_to_do_starts_no_job(spark: SparkSession, runner: SparkRunner) -> None:
    before = jobs_so_far(spark)
    assert runner.run(tasks.double, [], Told, name="nothing") == []
    assert jobs_so_far(spark) == before


def test_one_run_is_one_job_however_many_descriptors(
    spark: SparkSession, runner: SparkRunner
) -> None:
    before = jobs_so_far(spark)
    outcomes = runner.run(tasks.double, asks(2000), Told, name="many", weights=[*range(2000)])
    assert [outcome.returned().number for outcome in outcomes] == [*range(0, 4000, 2)]
    assert jobs_so_far(spark) == before + 1


def test_descriptors_larger_than_what_spark_sends_in_line(
    runner: SparkRunner, bucket: Bucket
) -> None:
    payload = bytes(64 << 10)
    many = [Ask(number, payload=payload) for number in range(64)]
    assert len(runner.run(tasks.put, many, Told, name="large")) == 64
    store = bucket.open().store
    assert sorted(meta.size for meta in store.list("made/")) == [len(payload)] * 64


def test_errors_of_reef_are_outcomes_and_keep_their_class_and_text(runner: SparkRunner) -> None:
    outcomes = runner.run(tasks.fail_by_number, asks(6), Told, name="errors")
    assert [outcome.error is None for outcome in outcomes] == [True, False, False] * 2
    corrupt, conflict = outcomes[4].error, outcomes[5].error
    assert isinstance(corrupt, CorruptError)
    assert isinstance(conflict, ConflictError)
    assert str(corrupt) == str(CorruptError("segments/4.seg", 17, "abc", "abd"))
    assert (corrupt.key, corrupt.offset, conflict.found) == ("segments/4.seg", 17, b"theirs")
    assert {outcome.attempt for outcome in outcomes} == {0}  # none was tried again
    with pytest.raises(CorruptError):
        outcomes[4].returned()


def test_what_the_store_says_is_an_outcome(runner: SparkRunner) -> None:
    (outcome,) = runner.run(tasks.miss, asks(1), Told, name="miss")
    assert isinstance(outcome.error, NotFoundError)


def test_a_bucket_that_cannot_be_opened_is_an_outcome_of_every_task(spark: SparkSession) -> None:
    bucket = Bucket("file:///proc/nowhere/bucket", {"gc_grace": "soon"})
    outcomes = SparkRunner(spark, bucket).run(tasks.double, asks(3), Told, name="closed")
    assert [type(outcome.error) for outcome in outcomes] == [InvalidInputError] * 3


@pytest.mark.parametrize("task", [tasks.fail_first, tasks.die_first])
def test_a_task_that_fails_or_dies_is_tried_again(
    runner: SparkRunner, tmp_path: Path, task: object
) -> None:
    assert callable(task)
    outcomes = runner.run(task, asks(3, tmp_path), Told, name="again")
    assert [outcome.returned().number for outcome in outcomes] == [0, 2, 4]
    assert {outcome.attempt for outcome in outcomes} == {1}


def test_a_task_that_always_fails_raises_and_says_why(runner: SparkRunner) -> None:
    with pytest.raises(InvariantError) as raised:
        runner.run(tasks.fail_always, asks(1), Told, name="index of ns")
    assert "index of ns" in str(raised.value)
    assert "ZeroDivisionError: number 0 has no inverse" in str(raised.value)
    assert isinstance(raised.value, ReefError)


def test_progress_reaches_the_end_and_never_goes_back(runner: SparkRunner, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        (tmp_path / "go").touch()  # the last task waits for this: it was told of before the end

    runner.run(tasks.last_waits, asks(9, tmp_path), Told, name="progress", progress=progress)
    assert seen == sorted(seen)
    assert seen[-1] == (9, 9)
    assert 0 < seen[0][0] < 9


def test_a_run_leaves_the_threads_job_group_as_it_was(
    spark: SparkSession, runner: SparkRunner
) -> None:
    context = spark.sparkContext
    context.setJobGroup("mine", "my own work")
    try:
        runner.run(tasks.double, asks(1), Told, name="double")
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
        assert context.getLocalProperty("spark.job.description") == "my own work"
        assert spark.getTags() == set()
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]


def test_an_interrupted_run_leaves_no_job_behind(
    spark: SparkSession, runner: SparkRunner, tmp_path: Path
) -> None:
    def interrupt() -> None:
        until(lambda: list(tmp_path.glob("begun-*")))
        os.kill(os.getpid(), signal.SIGINT)

    # Python's own handler: PySpark's would cancel every job of the process by itself.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        watcher = SystemThreads().start(interrupt, name="interrupt")
        with pytest.raises(KeyboardInterrupt):
            runner.run(tasks.wait_for_word, asks(2, tmp_path), Told, name="stopped")
        watcher.join()
    finally:
        signal.signal(signal.SIGINT, before)
    tracker = spark.sparkContext.statusTracker()
    until(lambda: not tracker.getActiveJobsIds())
    assert len(runner.run(tasks.double, asks(3), Told, name="afterwards")) == 3


def test_a_bucket_in_memory_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidInputError, match="memory"):
        SparkRunner(spark, Bucket("memory://trial", {}))


def test_a_session_is_opened_for_the_first_task_and_once(
    spark: SparkSession, bucket: Bucket
) -> None:
    opened: list[SparkSession] = []

    def open_session() -> SparkSession:
        opened.append(spark)
        return spark

    runner = SparkRunner(open_session, bucket)
    assert runner.run(tasks.double, [], Told, name="nothing") == []
    assert opened == []
    for _ in range(2):
        assert len(runner.run(tasks.double, asks(2), Told, name="some")) == 2
    assert opened == [spark]
