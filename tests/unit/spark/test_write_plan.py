"""Writes of the data source without Spark: options, staging by tasks, and commits."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import reef
from reef.errors import (
    ConditionFailedError,
    IdempotencyError,
    InvalidInputError,
    StalePlanError,
)
from reef.format import Manifest
from reef.jobs import end_job
from reef.manifest import Head, ManifestChain
from reef.spark._write import _merge_parts, _stage, _write_commit, _write_log
from reef.spark._write._stage import Staged, Write, inline_bytes_max, stage
from reef.spark._write._write_commit import WriteResult, abort, commit
from reef.spark._write._write_log import cut_batches, row_bytes
from reef.spark._write._write_options import WriteOptions, parse_declared

COLUMNS = pa.schema([("id", pa.string()), ("n", pa.int64())])


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return f"file://{tmp_path}/bucket?fsync=off"


def options(url: str, **said: object) -> WriteOptions:
    texts = {name: str(value) for name, value in said.items()}
    return WriteOptions.of({"url": url, "namespace": "ns", **texts})


def begin(url: str, columns: pa.Schema = COLUMNS, **said: object) -> Write:
    asked = options(url, **said)
    write = Write.begin(asked.ref.bucket.open(), asked, columns)
    return pickle.loads(pickle.dumps(write))  # as it comes to tasks


def rows(ids: Sequence[int], add: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"id": [f"{i:05d}" for i in ids], "n": [i + add for i in ids]}, schema=COLUMNS
    )


def staged(write: Write, tasks: Sequence[Sequence[pa.RecordBatch]]) -> list[Staged]:
    return [
        msgspec.msgpack.decode(msgspec.msgpack.encode(stage(write, batches, number)), type=Staged)
        for number, batches in enumerate(tasks)
    ]


def test_without_pyspark_it_is_said_what_to_install() -> None:
    script = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "import reef.spark\n"
        "try: reef.spark.session\n"
        "except reef.errors.InvalidInputError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pip install 'reefdb[spark]'" in done.stdout


def written(write: Write, *tasks: Sequence[pa.RecordBatch]) -> WriteResult:
    return commit(write, staged(write, tasks))


def content(url: str) -> dict[str, Any]:
    with reef.connect(url) as db, db.namespace("ns", mode="r") as ns:
        return {row.pop("id"): row for batch in ns.scan() for row in batch.to_pylist()}


def numbers(url: str) -> dict[int, int]:
    return {int(id): row["n"] for id, row in content(url).items()}


def intents(url: str) -> list[str]:
    with reef.connect(url) as db:
        head = db.context().chain("ns").load()
    return [] if head is None else [intent.id for intent in head.manifest.intents]


def segments(url: str) -> list[str]:
    with reef.connect(url) as db:
        keys = [meta.key for meta in db.store.list("namespaces/ns/segments/")]
    return [key for key in keys if key.endswith(".seg")]


# Options.


def test_options_have_defaults(url: str) -> None:
    found = options(url)
    assert (found.operation, found.method, found.duplicates, found.face) == (
        "upsert",
        "auto",
        "error",
        "documents",
    )
    assert found.job_key is None
    assert not found.skips
    assert not found.is_sorted


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"operation": "replace"}, "one of upsert, patch, delete, create"),
        ({"method": "fast"}, "one of auto, log, bulk"),
        ({"duplicates": "first"}, "one of error, last"),
        ({"method": "bulk", "operation": "delete"}, "goes through the log"),
        ({"face": "kv", "operation": "patch"}, "'patch' is for documents"),
        ({"skip": "true"}, "given without operation patch or create"),
        ({"jobkey": "x"}, "no option 'jobkey'"),
        ({"query_id": "q"}, "no option 'query_id'"),
        ({"job_key": "x" * 481}, "at most 480 bytes"),
        ({"declared": "a"}, "NAME=TYPE"),
        ({"declared": "a=vectr[3]"}, "vector"),
    ],
)
def test_options_that_cannot_be_are_refused(url: str, said: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        options(url, **said)
    assert text in str(caught.value)


def test_a_stream_has_options_of_its_own(url: str) -> None:
    texts = {"url": url, "namespace": "ns", "checkpointLocation": "/x", "query_id": "q"}
    assert WriteOptions.of(texts, is_stream=True).query_id == "q"
    with pytest.raises(InvalidInputError, match="given for a stream"):
        WriteOptions.of({**texts, "job_key": "k"}, is_stream=True)


def test_types_are_declared_as_text_or_json() -> None:
    assert parse_declared("a=vector[3], b=json") == {"a": "vector[3]", "b": "json"}
    assert parse_declared('{"a,b": "[]string"}') == {"a,b": "[]string"}


# Staging.


def test_a_small_write_touches_nothing_but_the_log(url: str) -> None:
    write = begin(url)
    some = staged(write, [[rows([3, 1])], [], [rows([2])]])
    assert [one.part for one in some] == [None, None, None]
    assert intents(url) == []
    assert segments(url) == []
    result = commit(write, some)
    assert (result.method, result.rows, result.segments) == ("log", 3, 0)
    assert numbers(url) == {1: 1, 2: 2, 3: 3}
    assert intents(url) == []
    assert segments(url) == []


def test_what_comes_back_in_messages_is_bounded_for_any_number_of_tasks(url: str) -> None:
    asked = options(url)
    assert sum(inline_bytes_max(asked, task) for task in range(10_000)) < 256 << 20
    assert inline_bytes_max(asked, 0) == 2 << 20
    assert inline_bytes_max(options(url, method="bulk"), 0) == 0


def test_a_task_with_more_rows_uploads_them_under_the_intent(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stage, "INLINE_BYTES_MAX", 100)
    write = begin(url)
    some = staged(write, [[rows([5, 9]), rows(range(100, 120))], [rows([1])]])
    assert some[0].part is not None
    assert some[0].part.rows == 22
    assert some[1].inline is not None
    assert intents(url) == [write.job]
    assert numbers(url) == {}
    result = commit(write, some)
    assert (result.method, result.rows) == ("bulk", 23)
    assert numbers(url) == {1: 1, 5: 5, 9: 9, **{i: i for i in range(100, 120)}}
    assert intents(url) == []


def test_columns_that_a_write_needs_are_asked_for_at_once(url: str) -> None:
    with pytest.raises(InvalidInputError, match="have no 'id' among them"):
        begin(url, pa.schema([("key", pa.string())]))
    with pytest.raises(InvalidInputError, match="appear more than once"):
        begin(url, pa.schema([("id", pa.string()), ("a", pa.int64()), ("a", pa.int64())]))
    vectors = pa.schema([("id", pa.string()), ("vector", pa.list_(pa.float32()))])
    with pytest.raises(InvalidInputError, match="declare it"):
        begin(url, vectors)
    assert begin(url, vectors, declared="vector=vector[2]").plan is not None


# Bulk.


def test_parts_without_common_keys_are_committed_as_they_are(url: str) -> None:
    write = begin(url, method="bulk")
    some = staged(write, [[rows(range(50))], [rows(range(50, 99))]])
    assert all(one.part is not None for one in some)
    result = commit(write, some)
    assert (result.method, result.rows, result.segments) == ("bulk", 99, 2)
    assert len(segments(url)) == 2
    assert numbers(url) == {i: i for i in range(99)}


def test_parts_with_common_keys_are_merged_into_disjoint_ones(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_merge_parts, "FAN_IN", 3)
    rng = np.random.default_rng(7)
    order = rng.permutation(2000)
    tasks = [[rows(part.tolist())] for part in np.array_split(order, 11)]
    write = begin(url, method="bulk", target_bytes=4000, memory=8192)
    result = written(write, *tasks)
    assert result.rows == 2000
    assert result.segments > 2
    assert numbers(url) == {i: i for i in range(2000)}
    assert intents(url) == []


@pytest.mark.parametrize("method", ["log", "bulk"])
def test_an_id_in_two_tasks_is_refused_by_name_or_the_later_task_has_it(
    url: str, method: str
) -> None:
    tasks = [[rows([1, 2], 10)], [rows([2, 3], 20)], [rows([2, 2], 30)]]
    with pytest.raises(InvalidInputError, match="00002"):
        written(begin(url, method=method), *tasks[:2])
    with pytest.raises(InvalidInputError, match="00002"):
        written(begin(url, method=method), tasks[2])
    assert numbers(url) == {}
    result = written(begin(url, method=method, duplicates="last"), *tasks)
    assert numbers(url) == {1: 11, 2: 32, 3: 23}
    assert (result.rows, result.dropped) == (3, 3)


def test_rows_said_to_be_sorted_have_to_be(url: str) -> None:
    write = begin(url, method="bulk", sorted="true")
    with pytest.raises(InvalidInputError, match="in the order of their ids"):
        written(write, [rows([1, 2]), rows([0])])
    assert written(write, [rows([1, 2]), rows([3])]).rows == 3


@pytest.mark.slow
def test_what_was_aborted_is_not_visible_and_its_intent_ends(url: str) -> None:
    write = begin(url, method="bulk")
    some = staged(write, [[rows([1])]])
    abort(write, [*some, None])
    assert intents(url) == []
    with pytest.raises(StalePlanError):
        commit(replace(write, options=replace(write.options)), some)
    assert numbers(url) == {}


def test_an_abort_after_a_commit_takes_nothing_back(url: str) -> None:
    write = begin(url, method="bulk")
    some = staged(write, [[rows([1])]])
    commit(write, some)
    abort(write, some)
    assert numbers(url) == {1: 1}


@pytest.mark.parametrize("said", [{}, {"job_key": "k"}, {"operation": "delete"}])
def test_a_task_that_comes_after_the_commit_stages_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch, said: dict[str, str]
) -> None:
    monkeypatch.setattr(_stage, "INLINE_BYTES_MAX", 0)
    written(begin(url), [rows([1])])
    write = begin(url, **said)
    commit(write, staged(write, [[rows([1])], [rows([2])]]))
    check_too_late(url, write)


def check_too_late(url: str, write: Write) -> None:
    before = segments(url)
    with pytest.raises(StalePlanError, match="is over"):
        staged(write, [[rows([1])]])
    assert segments(url) == before
    assert intents(url) == []


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_task_that_goes_on_after_the_abort_stages_nothing(url: str, is_begun: bool) -> None:
    write = begin(url, method="bulk")
    if is_begun:
        staged(write, [[rows([1])]])
    abort(write, [None, None])
    check_too_late(url, write)


@pytest.mark.slow
def test_a_task_that_goes_on_after_its_job_was_ended_stages_nothing(url: str) -> None:
    write = begin(url, method="bulk")
    some = staged(write, [[rows([1])]])
    end_job(write.open(), "ns", write.job)
    check_too_late(url, write)
    with pytest.raises(StalePlanError, match="does not stand"):
        commit(write, some)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_task_that_is_overtaken_while_it_begins_stages_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    write = begin(url, method="bulk")
    publish = ManifestChain.publish

    def overtaken(chain: ManifestChain, change: Callable[[Head | None], Manifest | None]) -> Head:
        """The first manifest that the task publishes registers its intent."""
        monkeypatch.setattr(ManifestChain, "publish", publish)
        if is_committed:
            assert written(write, [rows([1])]).rows == 1  # by the other attempt
        else:
            abort(write, [None])
        return publish(chain, change)

    monkeypatch.setattr(ManifestChain, "publish", overtaken)
    with pytest.raises(StalePlanError, match="is over"):
        staged(write, [[rows([1])]])
    assert intents(url) == []
    assert numbers(url) == ({1: 1} if is_committed else {})


def test_a_schema_that_changes_meanwhile_is_found(url: str) -> None:
    write = begin(url, method="bulk")
    some = staged(write, [[rows([1])]])
    with reef.connect(url) as db, db.namespace("ns") as ns:
        ns.upsert([{"id": "x", "other": "text"}])
    with pytest.raises(StalePlanError):
        commit(write, some)


# A job key.


@pytest.mark.parametrize("method", ["auto", "log", "bulk"])
def test_a_job_key_writes_once(url: str, method: str) -> None:
    first = written(begin(url, method=method, job_key="k"), [rows([1, 2])])
    with reef.connect(url) as db, db.namespace("ns") as ns:
        ns.delete("00001")
    again = written(begin(url, method=method, job_key="k"), [rows([2])], [rows([1])])
    assert again.replayed
    assert again.rows == 0
    assert again.lsn == first.lsn
    assert numbers(url) == {2: 2}
    assert intents(url) == []


def test_a_job_key_goes_the_way_it_went_first(url: str) -> None:
    first = written(begin(url, method="log", job_key="k"), [rows([1, 2])])
    again = written(begin(url, method="bulk", job_key="k"), [rows([1, 2])])
    assert (again.method, again.replayed, again.lsn) == ("log", True, first.lsn)
    written(begin(url, method="bulk", job_key="b"), [rows([7])])
    assert written(begin(url, method="log", job_key="b"), [rows([7])]).replayed


def test_a_job_key_for_other_rows_is_refused(url: str) -> None:
    written(begin(url, method="log", job_key="k"), [rows([1, 2])])
    with pytest.raises(IdempotencyError):
        written(begin(url, method="log", job_key="k"), [rows([1, 3])])


def test_a_job_key_of_a_load_stands_for_no_other_operation(url: str) -> None:
    written(begin(url, method="bulk", job_key="k"), [rows([1])])
    for operation in ("delete", "patch", "create"):
        with pytest.raises(IdempotencyError, match=f"'k' was used for a load.*'{operation}'"):
            written(begin(url, operation=operation, job_key="k"), [rows([1], add=5)])
    assert numbers(url) == {1: 1}


def test_a_write_through_the_log_goes_on_where_it_was_cut_off(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = {"reef.log_segment_max_bytes": "4096B"}
    write = begin(url, method="log", job_key="k", **setting)
    some = staged(write, [[rows(range(0, 300, 2))], [rows(range(1, 300, 2))]])
    sent: list[int] = []
    real = _write_commit.write_batches  # type: ignore[attr-defined]

    def dies(handle: Any, *rest: Any) -> Any:
        write_it = handle.write

        def write(**said: Any) -> Any:
            if len(sent) == 2:
                raise KeyboardInterrupt
            sent.append(1)
            return write_it(**said)

        handle.write = write
        return real(handle, *rest)

    monkeypatch.setattr(_write_commit, "write_batches", dies)
    with pytest.raises(KeyboardInterrupt):
        commit(write, some)
    monkeypatch.undo()
    before = len(numbers(url))
    assert 0 < before < 300
    # Tried again with other tasks, and uploaded this time.
    monkeypatch.setattr(_stage, "INLINE_BYTES_MAX", 10)
    again = begin(url, method="log", job_key="k", **setting)
    result = written(again, [rows(range(299, 99, -1))], [rows(range(100))])
    assert result.rows == 300 - before
    assert not result.replayed
    assert numbers(url) == {i: i for i in range(300)}
    assert intents(url) == []


# Other operations.


def test_patches_change_some_attributes_and_null_takes_one_away(url: str) -> None:
    with reef.connect(url) as db, db.namespace("ns") as ns:
        ns.upsert([{"id": "a", "n": 1, "t": "x"}, {"id": "b", "n": 2, "t": "y"}])
    columns = pa.schema([("id", pa.string()), ("t", pa.string())])
    batch = pa.RecordBatch.from_pydict({"id": ["b", "a"], "t": [None, "z"]}, schema=columns)
    assert written(begin(url, columns, operation="patch"), [batch]).rows == 2
    assert content(url) == {"a": {"n": 1, "t": "z"}, "b": {"n": 2, "t": None}}
    lost = pa.RecordBatch.from_pydict({"id": ["c", "a"], "t": ["q", "q"]}, schema=columns)
    with pytest.raises(ConditionFailedError):
        written(begin(url, columns, operation="patch"), [lost])
    result = written(begin(url, columns, operation="patch", skip="true"), [lost])
    assert (result.rows, result.skipped) == (1, 1)


def test_creations_leave_what_is_there_alone(url: str) -> None:
    written(begin(url), [rows([1])])
    with pytest.raises(ConditionFailedError):
        written(begin(url, operation="create"), [rows([1, 2], 5)])
    assert numbers(url) == {1: 1}
    result = written(begin(url, operation="create", skip="true"), [rows([1, 2], 5)])
    assert (result.rows, result.skipped) == (1, 1)
    assert numbers(url) == {1: 1, 2: 7}


def test_deletions_need_ids_only(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written(begin(url), [rows(range(100))])
    columns = pa.schema([("id", pa.string()), ("unknown", pa.float32())])
    batch = pa.RecordBatch.from_pydict({"id": ["00003", "zz"], "unknown": [1, 2]}, schema=columns)
    assert written(begin(url, columns, operation="delete"), [batch]).rows == 2
    monkeypatch.setattr(_stage, "INLINE_BYTES_MAX", 10)
    written(begin(url, operation="delete"), [rows(range(10, 100))])
    assert sorted(numbers(url)) == [i for i in range(10) if i != 3]
    with reef.connect(url) as db, db.namespace("ns", mode="r") as ns:
        assert ns.schema == {"n": "int64"}


def test_keys_and_values(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = pa.schema([("value", pa.binary()), ("key", pa.binary())])

    def pairs(keys: Sequence[int]) -> pa.RecordBatch:
        given = {"key": [b"%03d" % i for i in keys], "value": [b"v%d" % i for i in keys]}
        return pa.RecordBatch.from_pydict(given, schema=columns)

    def found() -> list[bytes]:
        with reef.connect(url) as db, db.kv("ns", mode="r") as ns:
            return [key for key, value in ns.items() if value == b"v%d" % int(key)]

    written(begin(url, columns, face="kv"), [pairs([3, 1])])
    written(begin(url, columns, face="kv", method="bulk"), [pairs([7, 5])], [pairs([6])])
    assert found() == [b"001", b"003", b"005", b"006", b"007"]
    only = pa.schema([("key", pa.binary())])
    gone = pa.RecordBatch.from_pydict({"key": [b"003"]}, schema=only)
    written(begin(url, only, face="kv", operation="delete"), [gone])
    monkeypatch.setattr(_stage, "INLINE_BYTES_MAX", 1)
    written(begin(url, columns, face="kv", operation="delete"), [pairs([7, 1])])
    assert found() == [b"005", b"006"]


# Streams.


def micro_batch(url: str, number: int, run: int = 0, **said: object) -> Write:
    columns = COLUMNS.serialize().to_pybytes()
    return Write.numbered(options(url, **said), columns, "q", number, run=str(run))


@pytest.mark.parametrize("method", ["auto", "bulk"])
def test_a_micro_batch_is_committed_once(url: str, method: str) -> None:
    for run, number in enumerate((0, 1, 1, 0)):
        write = micro_batch(url, number, run, method=method)
        result = written(write, [rows([number], 100 * number)], [rows([number + 10])])
        if number == 1:
            with reef.connect(url) as db, db.namespace("ns") as ns:
                ns.delete("00001")
    assert result.replayed
    assert sorted(numbers(url)) == [0, 10, 11]
    assert intents(url) == []


def test_a_micro_batch_of_many_deletions_is_passed_over_too(url: str) -> None:
    written(begin(url), [rows(range(300))])
    setting = {"reef.log_segment_max_bytes": "2KiB", "operation": "delete"}
    first = written(micro_batch(url, 4, **setting), [rows(range(200))])
    assert first.rows == 200
    written(begin(url), [rows([1])])
    assert written(micro_batch(url, 4, **setting), [rows(range(200))]).replayed
    assert sorted(numbers(url)) == [1, *range(200, 300)]


@pytest.mark.parametrize("operation", ["upsert", "delete"])
def test_the_commit_of_a_micro_batch_ends_what_killed_runs_have_left(
    url: str, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(_stage, "INLINE_BYTES_MAX", 0)
    written(begin(url), [rows([1])])
    runs = [micro_batch(url, 7, run, operation=operation) for run in range(3)]
    dead = staged(runs[0], [[rows([1])]])
    staged(runs[1], [[rows([1])]])
    other = micro_batch(url, 77)
    staged(other, [[rows([2])]])
    assert intents(url) == [runs[0].job, runs[1].job, other.job]
    assert commit(runs[2], staged(runs[2], [[rows([1])]])).rows == 1
    assert intents(url) == [other.job]
    # The first was not dead, but slow.
    assert commit(runs[0], dead).replayed
    assert intents(url) == [other.job]
    assert numbers(url) == ({1: 1} if operation == "upsert" else {})


def test_an_abort_of_which_no_task_has_told_ends_all_runs_of_the_micro_batch(url: str) -> None:
    for run in range(2):
        staged(micro_batch(url, 7, run, method="bulk"), [[rows([1])]])
    other = micro_batch(url, 77, method="bulk")
    staged(other, [[rows([2])]])
    abort(micro_batch(url, 7, 2), [None])
    assert intents(url) == [other.job]
    for run in range(2):
        with pytest.raises(StalePlanError, match="is over"):
            staged(micro_batch(url, 7, run, method="bulk"), [[rows([1])]])


def test_a_numbered_write_that_died_between_its_batches_goes_on_with_the_next(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = options(url, operation="create", **{"reef.log_segment_max_bytes": "2KiB"})
    add, batches = _write_log.LogWriteResult.add, []

    def died(self: _write_log.LogWriteResult, *args: Any) -> None:
        add(self, *args)
        batches.append(args)
        if len(batches) == 2:
            raise KeyboardInterrupt

    def once() -> WriteResult:
        context = asked.ref.bucket.open()
        return written(
            Write.begin(context, asked, COLUMNS, source="q", sequence=0), [rows(range(200))]
        )

    monkeypatch.setattr(_write_log.LogWriteResult, "add", died)
    with pytest.raises(KeyboardInterrupt):
        once()
    assert 0 < len(numbers(url)) < 200
    assert not once().replayed  # part of it
    assert len(numbers(url)) == 200
    assert once().replayed
    with reef.connect(url) as db, db.namespace("ns", mode="r") as ns:
        assert sum(batch.num_rows for batch in ns.changes()) == 200


# Batches of the log.


def many() -> pa.RecordBatch:
    rng = np.random.default_rng(3)
    words = [None if i % 7 == 0 else "w" * int(rng.integers(0, 40)) for i in range(200)]
    lists = [None if i % 5 == 0 else ["x" * (i % 4)] * (i % 3) for i in range(200)]
    return pa.RecordBatch.from_pydict(
        {
            "words": words,
            "lists": pa.array(lists, pa.list_(pa.string())),
            "vectors": pa.array([[1.0, 2.0]] * 200, pa.list_(pa.float32(), 2)),
            "sparse": pa.array(
                [{"indices": [1] * (i % 3), "values": [1.0] * (i % 3)} for i in range(200)],
                pa.struct([("indices", pa.list_(pa.uint32())), ("values", pa.list_(pa.float32()))]),
            ),
            "is": [True] * 200,
        }
    )


def portions(batch: pa.RecordBatch, step: int) -> Iterator[pa.RecordBatch]:
    return (batch.slice(first, step) for first in range(0, batch.num_rows, step))


@pytest.mark.parametrize("step", [1, 7, 64, 200])
def test_where_rows_are_cut_does_not_depend_on_how_they_come(step: int) -> None:
    batch = many()
    sizes = [one.num_rows for one in cut_batches(portions(batch, step), 700)]
    assert sizes == [one.num_rows for one in cut_batches([batch], 700)]
    assert sum(sizes) == 200
    assert len(sizes) > 5
    assert pa.Table.from_batches(cut_batches(portions(batch, step), 700)).equals(
        pa.Table.from_batches([batch])
    )
    for one in cut_batches(portions(batch, step), 700):
        assert row_bytes(one).sum() <= 700


def test_a_row_larger_than_a_batch_is_one() -> None:
    assert [one.num_rows for one in cut_batches([many()], 1)] == [1] * 200
