"""index: parts of the log folded side by side come to what one flush writes, published in one step."""

from __future__ import annotations

import itertools
import random
from array import array
from itertools import pairwise

import pyarrow as pa
import pytest

from reef import jobs
from reef.engine import load_dedup
from reef.errors import InvalidInputError, NotFoundError
from reef.format import decode_schema, decode_segment, segment_key
from reef.jobs import IndexOptions, IndexResult, InProcess
from reef.jobs._fold._index_pass import plan_index
from reef.jobs._fold._unfolded_log import UnfoldedLog
from reef.jobs._job import Job, new_segment_id
from reef.manifest import end_intent
from reef.store import Store
from tests.support.engine.collecting import HookedStore
from tests.support.engine.log_script import NS, LogScript, copied, flush_at_once
from tests.support.engine.open_database import contents, database
from tests.support.jobs.indexing import ONE_EACH, check_same_as_before, head, keys, run
from tests.support.jobs.passes import Meddling, index

# The job itself.


def test_a_job_registers_publishes_and_ends(store: Store) -> None:
    context = database(store).context()
    with pytest.raises(NotFoundError):
        Job.begin(context, NS, "index")
    database(store).kv(NS).close()
    job = Job.begin(context, NS, "index")
    assert job.id == job.id.lower()
    assert job.compactor_epoch is None
    assert [intent.id for intent in head(store).intents] == [job.id]
    assert new_segment_id(context, job.id).partition("-")[2] == job.id
    assert new_segment_id(context, job.id) != new_segment_id(context, job.id)
    segment_key(NS, new_segment_id(context, job.id))
    job.publish(lambda m: end_intent(m, job.id))
    assert not head(store).intents
    generation = head(store).generation
    job.end()
    assert head(store).generation == generation


def test_a_compactor_takes_its_epoch_in_the_same_generation(store: Store) -> None:
    database(store).kv(NS).close()
    context, generation = database(store).context(), head(store).generation
    first = Job.begin(context, NS, "compact", compactor=True)
    second = Job.begin(context, NS, "compact", compactor=True)
    assert (first.compactor_epoch, second.compactor_epoch) == (1, 2)
    assert head(store).generation == generation + 2
    first.end()
    second.end()
    assert not head(store).intents


# Nothing to do.


def test_nothing_to_fold_writes_nothing(store: Store) -> None:
    context = database(store).context()
    with pytest.raises(NotFoundError):
        run(store)
    with database(store).kv(NS) as kv:
        assert plan_index(context, NS, IndexOptions()) is None  # a fence only
        kv.put(b"a", b"1")
        kv.flush()
    before = [meta.key for meta in store.list()]
    result = run(store)
    assert result == IndexResult(NS)
    assert [meta.key for meta in store.list()] == before


def test_short_logs_are_left_alone(store: Store) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    script.data({b"b": b"2"})
    assert run(store, IndexOptions(min_slots=3)).generation is None
    assert run(store, IndexOptions(min_bytes=1 << 20)).generation is None
    assert not keys(store, "segments")
    assert run(store, IndexOptions(min_slots=2, min_bytes=500)).generation is not None
    with pytest.raises(InvalidInputError, match="task_bytes"):
        run(store, IndexOptions(task_bytes=0))


@pytest.mark.parametrize("seed", range(20))
def test_parts_are_of_one_size_and_leave_nothing_out(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    sizes = array("q", [rng.choice([0, 100, 300, 999]) for _ in range(rng.randint(1, 400))])
    unfolded = UnfoldedLog(LogScript(store).head(), sizes)
    options = IndexOptions(task_bytes=rng.choice([1, 5000, 20_000, 1 << 30]))
    parts = list(unfolded.parts("index-x", options))
    assert sum(part.log_bytes for part in parts) == sum(sizes)
    edges = [(part.slot_first, part.slot_last) for part in parts]
    assert edges[0][0] == unfolded.manifest.wal_floor
    assert edges[-1][1] == unfolded.slot_last
    assert all(a[1] + 1 == b[0] for a, b in pairwise(edges))
    if options.task_bytes > 1:
        wanted = max(1, -(-sum(sizes) // options.task_bytes))
        assert len(parts) == wanted
        assert all(abs(part.log_bytes - sum(sizes) / wanted) <= 1000 for part in parts)
    few = list(unfolded.parts("index-x", IndexOptions(task_slots=7)))
    assert [part.slot_last - part.slot_first + 1 for part in few[:-1]] == [7] * (len(few) - 1)


# Content.


@pytest.mark.parametrize("options", [None, ONE_EACH, IndexOptions(task_slots=3, memory_bytes=1)])
def test_the_content_is_that_of_a_flush(store: Store, options: IndexOptions | None) -> None:
    script = LogScript(store)
    for i in range(10):
        script.data({b"k%d" % (i % 4): b"%d" % i, b"only%d" % i: b"x"}, {b"k%d" % (i % 3): None})
    result, manifest = check_same_as_before(script, options)
    assert result.rows == 30
    assert result.slot_last == script.slot - 1
    assert result.segments == manifest.segments
    assert all(ref.level == 0 and ref.id.endswith(result.job_id or "?") for ref in result.segments)
    again = run(store, options)
    assert again.generation is None


def test_segments_of_full_memory_are_disjoint_and_name_their_slots(store: Store) -> None:
    script = LogScript(store)
    for i in range(12):
        script.data({b"k%d" % (i % 5): bytes(1000)})
    script.fence()
    result, manifest = check_same_as_before(script, IndexOptions(memory_bytes=3000))
    assert len(result.tasks) == 1
    assert len(result.segments) >= 4
    covered: list[tuple[int, int]] = []
    for ref in reversed(result.segments):  # from old to new
        tail, _ = decode_segment(store.get(segment_key(NS, ref.id)))
        assert tail.footer.replaced_slots is not None
        covered.append(tail.footer.replaced_slots)
    assert covered[0][0] == 1 or covered[0][0] == result.slot_first
    assert covered[-1][1] <= manifest.wal_floor - 1
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(covered))
    ordered = sorted(manifest.segments, key=lambda ref: ref.lsn_min)
    assert all(a.lsn_max < b.lsn_min for a, b in itertools.pairwise(ordered))


def test_many_small_batches_and_changing_columns(store: Store) -> None:
    script = LogScript(store)
    script.data(*({b"%d" % (i % 700): b"v%d" % i} for i in range(3000)))
    script.schema()
    for i in range(40):
        script.data({b"%d" % (i % 7): b"w"}, extra=i if i % 3 else None)
    script.lsns = [*script.lsns[:3000:500], *script.lsns[3000::7]]
    result, manifest = check_same_as_before(script, IndexOptions(task_slots=9))
    assert len(result.tasks) > 3
    schema = decode_schema(pa.py_buffer(manifest.schema), "", 0)
    assert schema.names == ["value", "extra"]


# The dedup window.


@pytest.mark.parametrize("task_slots", [1, 2, 100])
def test_a_retry_after_it_gets_the_old_receipt(store: Store, task_slots: int) -> None:
    with database(store, seed=2).kv(NS) as kv:
        old = kv.put(b"old", b"0", idempotency_key="old")
        kv.flush()
        first = kv.put(b"a", b"1", idempotency_key="k1")
        second = kv.put(b"b", b"1", idempotency_key="k2")
        kv.put(b"a", b"2")
        third = kv.write({b"s": b"1"}, source="stream", sequence=5)
        both = kv.write({b"t": b"1"}, idempotency_key="k3", source="other", sequence=1)
    assert run(store, IndexOptions(task_slots=task_slots)).generation is not None
    assert head(store).dedup is not None
    with database(store, seed=4).kv(NS) as kv:
        for receipt, key, name in ((old, b"old", "old"), (first, b"a", "k1"), (second, b"b", "k2")):
            value = b"0" if name == "old" else b"1"
            again = kv.put(key, value, idempotency_key=name)
            assert again.replayed
            assert again.lsn == receipt.lsn
        again = kv.write({b"s": b"1"}, source="stream", sequence=5)
        assert again.replayed
        assert again.lsn == third.lsn
        again = kv.write({b"t": b"1"}, idempotency_key="k3", source="other", sequence=1)
        assert again.replayed
        assert again.lsn == both.lsn
        assert not kv.write({b"s": b"2"}, source="stream", sequence=6).replayed
        assert kv.get(b"a") == b"2"


def test_the_window_is_the_one_that_a_flush_writes(store: Store) -> None:
    script = LogScript(store)
    for i in range(9):
        script.data({b"a": b"%d" % i}, key=b"%d-" % (i % 4), sequence=i + 1)
    script.void({b"a": b"void"}, key=b"void")
    settings = {"dedup_max_keys": 3, "dedup_max_age": 3e9}
    other = copied(store)
    flush_at_once(database(other, seed=4, **settings).context())
    context = database(store, seed=9, **settings).context()
    index(context, NS, InProcess(context), options=IndexOptions(task_slots=2))
    ours, theirs = (
        load_dedup(database(s, **settings).context(), head(s)).window(1 << 62, 0)
        for s in (store, other)
    )
    assert ours == theirs
    assert len(ours.entries) == 3


# Requests, and many namespaces.


def test_it_reads_every_log_object_once(store: Store) -> None:
    script = LogScript(store)
    for i in range(50):
        script.data({b"k%d" % i: b"v"})
    hooked = HookedStore(store)
    context = database(hooked, seed=3).context()
    index(context, NS, InProcess(context), options=IndexOptions(task_slots=10))
    asked = [key for name, key in hooked.requests if name == "get" and "/wal/" in key]
    assert len(asked) == len(set(asked)) == script.slot - 1


def test_parts_of_many_namespaces_share_a_run(store: Store) -> None:
    database(store).kv("empty").close()
    for n in range(5):
        with database(store, seed=n).kv(f"n{n}") as kv:
            for i in range(n + 1):
                kv.put(b"%d" % i, b"%d" % n)
    context = database(store, seed=20).context()
    names = [*(f"n{n}" for n in range(5)), "empty"]
    runner = Meddling(context)
    result = jobs.index(context, names, runner=runner, options=ONE_EACH)
    assert [one.returned().rows for one in result.namespaces] == [1, 2, 3, 4, 5, 0]
    assert len(runner.runs) == 1
    for n in range(5):
        assert len(contents(store, f"n{n}")) == n + 1
