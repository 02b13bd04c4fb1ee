"""Deep verify on tasks: the same report as in one process, for any number of namespaces."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from reef.doctor import Examination, VerifyReport, verify
from reef.engine import Context
from reef.errors import InvalidInputError, UnavailableError
from reef.format import (
    LogKind,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    SegmentWriter,
    decode_manifest,
    encode_manifest,
    segment_schema,
)
from reef.jobs import InProcess, PassProgress, PassResult, VerifyOptions
from reef.jobs import verify as verify_deep
from reef.jobs._verify_pass import verify_parts
from reef.log import read_log_part
from reef.segment import (
    SegmentPart,
    check_segment,
    check_segment_part,
    cut_segment,
    join_parts,
    write_segment,
)
from reef.store import Store, open_store
from tests.support.doctor.damaged_buckets import NAMESPACE, Bucket, cut, flip
from tests.support.engine.collecting import HookedStore
from tests.support.engine.log_script import NS, LogScript
from tests.support.engine.open_database import database
from tests.support.jobs.passes import index

# Everything is large, and cut into as many parts as there can be.
APART = VerifyOptions(small_bytes=-1, task_bytes=700, task_objects=2)


def run(context: Context, *names: str, options: VerifyOptions | None = None) -> list[VerifyReport]:
    return reports(verify_deep(context, names, options=options))


def reports(result: PassResult[VerifyReport]) -> list[VerifyReport]:
    return [one.returned() for one in result.namespaces]


def check_same(bucket: Bucket, options: VerifyOptions = APART) -> VerifyReport:
    before = bucket.everything()
    expected = verify(bucket.context(), NAMESPACE, deep=True)
    (found,) = run(bucket.context(), NAMESPACE, options=options)
    assert bucket.everything() == before, "verify wrote something"
    assert found == expected
    return found


@pytest.mark.parametrize("options", [None, APART, VerifyOptions(small_bytes=-1)])
def test_a_sound_namespace(bucket: Bucket, options: VerifyOptions | None) -> None:
    report = check_same(bucket, options or VerifyOptions())
    assert (report.problems, report.notes, report.orphans) == ((), (), ())
    assert report.checked["log_objects"] == 13
    assert report.checked["blocks"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["manifest", "wal", "segments", "dedup"])
@pytest.mark.parametrize(
    "harm",
    [flip, cut, lambda path: path.write_bytes(path.read_bytes() + b"\0"), Path.unlink],
    ids=["flip", "cut", "longer", "gone"],
)
def test_the_same_is_told_of_every_harm(
    bucket: Bucket, folder: str, harm: Callable[[Path], None]
) -> None:
    told = 0
    for path in bucket.files(folder):
        data = path.read_bytes()
        harm(path)
        told += len(check_same(bucket).problems)
        path.write_bytes(data)
    assert told


def test_three_harms_at_once_and_what_repair_has_dealt_with(bucket: Bucket) -> None:
    flip(bucket.slot(bucket.manifest.wal_floor + 1))
    flip(bucket.segment(bucket.manifest.segments[0]), 60)
    bucket.files("dedup")[-1].unlink()
    stray = bucket.files("segments")[0].with_name("01J9ZQ3V5N8W2X4Y6Z7A8B9C0K-e1.seg")
    stray.write_bytes(b"junk")
    report = check_same(bucket)
    assert sorted(f.kind for f in report.problems) == [
        "dedup-missing",
        "log-damaged",
        "segment-damaged",
    ]
    assert report.orphans == (bucket.key(stray),)
    for path in bucket.files("manifest"):
        flip(path)
    assert check_same(bucket).generation is None


def test_compacted_collected_and_anchored(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "b", row_block_bytes=500, gc_grace=0, retained_generations=1)
    bucket.write("flush", "flush", "flush")
    bucket.compact()
    bucket.collect()
    bucket.write("flush", "leave")
    assert check_same(bucket).problems == ()
    anchor = bucket.manifest.wal_anchor
    path = bucket.files("manifest")[-1]
    manifest = decode_manifest(path.read_bytes(), key=bucket.key(path))
    wrong = msgspec.structs.replace(anchor, checksum=anchor.checksum ^ 1)
    path.write_bytes(encode_manifest(msgspec.structs.replace(manifest, wal_anchor=wrong)))
    assert "log-unlinked" in {f.kind for f in check_same(bucket).problems}


# The log: runs say as much as the objects themselves.


def test_a_log_of_every_kind_is_judged_alike() -> None:
    with open_store("memory://") as store:
        script = LogScript(store)
        for i in range(6):
            script.data({b"a": b"%d" % i})
        script.void({b"a": b"x"})
        script.void({b"a": b"y"}, behind_void=True)
        script.data({b"b": b"1"})
        script.schema()
        script.damaged()
        script.fence()
        script.data({b"c": b"1"})
        script.attach({b"d": b"2"})
        script.late({b"e": b"1"})
        script.data({b"f": b"1"})
        context = database(store).context()
        index(context, NS, InProcess(context))  # so that the chain is compared with a manifest
        script.data({b"g": b"1"})
        script.damaged()
        expected = verify(context, NS, deep=True)
        assert {f.kind for f in expected.problems} == {"log-damaged"}
        for slots in (1, 2, 3, 100):
            options = VerifyOptions(small_bytes=-1, task_objects=slots)
            assert run(context, NS, options=options) == [expected]


def test_segments_that_the_unfolded_log_attaches_are_checked_too() -> None:
    with open_store("memory://") as store:
        script = LogScript(store)
        script.data({b"a": b"1"})
        script.attach({b"d": b"2"})
        context = database(store).context()
        expected = verify(context, NS, deep=True)
        assert (expected.checked["segments"], expected.orphans) == (1, ())
        assert run(context, NS, options=APART) == [expected]
        (attached,) = store.list(f"namespaces/{NS}/segments/")
        store.delete(attached.key)
        expected = verify(context, NS, deep=True)
        assert [f.kind for f in expected.problems] == ["segment-missing"]
        assert run(context, NS, options=APART) == [expected]


def test_a_healthy_log_comes_back_as_a_few_runs(bucket: Bucket) -> None:
    store = bucket.context().store
    examination = Examination(store, NAMESPACE)
    (part,) = examination.log_parts(part_bytes=1 << 30, part_objects=1000)
    read = read_log_part(store, part)
    floors = [m.wal_floor for m in examination.finish().retained if m.wal_floor > 1]
    assert len(read.runs) == len({*floors}) + 2  # the fence, and one from each floor on
    assert read.runs[0].kind is LogKind.FENCE
    assert sum(run.slot_last - run.slot_first + 1 for run in read.runs) == 13


# Segments: parts say as much as the whole.


def test_parts_of_a_segment_find_what_the_whole_does(bucket: Bucket) -> None:
    store = bucket.context().store
    ref = bucket.manifest.segments[0]
    path = bucket.segment(ref)
    for at in range(0, ref.size, 211):
        flip(path, at)
        whole = check_segment(store, NAMESPACE, ref, ref.size, deep=True)
        for part_bytes in (300, 700, 1200):
            parts = [*cut_segment(NAMESPACE, ref, ref.size, part_bytes=part_bytes)]
            assert len(parts) > 1
            checked = [check_segment_part(store, part) for part in parts]
            joined = join_parts(NAMESPACE, ref, checked)
            assert [str(e) for e in joined.errors] == [str(e) for e in whole.errors], at
            assert joined.bad_rows == whole.bad_rows
            assert joined.blocks == whole.blocks
        flip(path, at)


def test_rows_out_of_order_between_two_parts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentWriter, "_order_problem", lambda *_: "")
    schema = segment_schema([pa.field("value", pa.binary())])
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([b"a", b"b", b"b", b"c"], pa.binary()),
            pa.array([5, 4, 9, 6], pa.int64()),
            pa.array([False] * 4),
            pa.array([b"v"] * 4, pa.binary()),
        ],
        schema=schema,
    )
    origin = SegmentOrigin(
        id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0K", namespace="n", level=0, author="test", created_at_us=0
    )
    with open_store("memory://") as store:
        options = SegmentOptions(row_block_bytes=1)
        ref = write_segment(store, "n", schema, origin, options, [batch])
        whole = check_segment(store, "n", ref, ref.size, deep=True)
        assert whole.blocks == 4
        assert whole.tail is not None
        offsets = [place.offset for place in whole.tail.row_places]
        edges = [0, *offsets[1:], ref.size]
        parts = [SegmentPart("n", ref, ref.size, span) for span in pairwise(edges)]
        checked = [check_segment_part(store, part) for part in parts]
        assert [one.blocks for one in checked] == [1, 1, 1, 1]
        assert [len(one.errors) for one in checked] == [0, 0, 1, 0]
        joined = join_parts("n", ref, checked)
        assert [str(error) for error in joined.errors] == [str(error) for error in whole.errors]


def test_parts_read_each_block_once_and_one_before(bucket: Bucket) -> None:
    ref = bucket.manifest.segments[0]
    parts = [*cut_segment(NAMESPACE, ref, ref.size, part_bytes=1000)]
    blocks = [check_segment_part(bucket.context().store, part).blocks for part in parts]
    assert (
        sum(blocks)
        == check_segment(bucket.context().store, NAMESPACE, ref, ref.size, deep=True).blocks
    )
    assert all(blocks)
    whole = SegmentPart(NAMESPACE, ref, ref.size)
    assert [*cut_segment(NAMESPACE, ref, ref.size, part_bytes=1 << 20)] == [whole]
    assert [*cut_segment(NAMESPACE, ref, None, part_bytes=1)] == [SegmentPart(NAMESPACE, ref, None)]


# Many namespaces.


class Runs(InProcess):
    """Takes note of how many tasks each run has."""

    parallelism = 4

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.tasks: list[tuple[str, int]] = []

    def run(self, task, descriptors, result, **named):  # type: ignore[no-untyped-def]
        self.tasks.append((task.__name__, len(descriptors)))
        return super().run(task, descriptors, result, **named)


def fill(store: Store, *names: str) -> None:
    for name in names:
        with database(store).kv(name) as kv:
            kv.put(b"a", name.encode() * 50)
            kv.flush()
            kv.put(b"b", b"2")


def segments(store: Store, name: str) -> tuple[SegmentRef, ...]:
    head = database(store).context().chain(name).load()
    assert head is not None
    return head.manifest.segments


def test_many_small_namespaces_share_tasks_and_a_large_one_is_split() -> None:
    with open_store("memory://") as store:
        names = [f"n{i:03d}" for i in range(100)]
        fill(store, *names)
        with database(store, row_block_bytes=500).kv("large") as kv:
            kv.write({b"%05d" % i: b"x" * 100 for i in range(500)})
            kv.flush()
        context = database(store).context()
        runner = Runs(context)
        options = VerifyOptions(small_bytes=20_000, task_bytes=10_000)
        seen: list[PassProgress] = []
        every = [*names, "large"]
        result = verify_deep(context, every, runner=runner, watch=seen.append, options=options)
        assert [one.namespace for one in result.namespaces] == every
        assert reports(result) == [verify(context, name, deep=True) for name in every]
        (first, small), (second, parts) = runner.tasks
        assert (first, small, second) == ("verify_small", 101, "verify_parts")
        assert parts > 2
        assert (seen[-1].tasks_done, seen[-1].tasks) == (101 + parts, 101 + parts)


@pytest.mark.parametrize("options", [VerifyOptions(), APART])
def test_a_sick_namespace_stops_no_other(options: VerifyOptions) -> None:
    with open_store("memory://") as store:
        fill(store, "a", "damaged", "lost", "z")
        (ref,) = segments(store, "damaged")
        key = f"namespaces/damaged/segments/{ref.id}.seg"
        data = bytearray(store.get(key))
        data[40] ^= 255
        store.delete(key)
        store.put_if_absent(key, bytes(data))
        for meta in [*store.list("namespaces/lost/manifest/")]:
            store.delete(meta.key)
        context = database(store).context()
        a, damaged, lost, gone, z = run(
            context, "a", "damaged", "lost", "gone", "z", options=options
        )
        assert a.problems == z.problems == ()
        assert [f.kind for f in damaged.problems] == ["segment-damaged"]
        assert [f.kind for f in lost.problems] == ["manifest-missing"]
        (problem,) = gone.problems
        assert problem.kind == "unverified"
        assert "there is no namespace" in problem.text


def test_what_cannot_be_reached_is_told_of_its_namespace_only() -> None:
    def refuse(operation: str, key: str) -> None:
        if operation == "get_range" and "/bad/segments/" in key:
            raise UnavailableError("no answer")

    with open_store("memory://") as store:
        fill(store, "bad", "good")
        hooked = HookedStore(store)
        hooked.before = refuse
        context = database(hooked).context()
        bad, good = run(context, "bad", "good", options=APART)
        assert good.problems == ()
        (problem,) = bad.problems
        assert problem.kind == "unverified"
        assert "no answer" in problem.text


def test_a_namespace_that_changes_is_looked_at_again(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "b", gc_grace=0, retained_generations=1)
    bucket.write("flush", "flush")
    inputs = [bucket.segment(ref) for ref in bucket.manifest.segments]
    context = bucket.context()

    class Meanwhile(InProcess):
        def run(self, task, descriptors, result, **named):  # type: ignore[no-untyped-def]
            if task is verify_parts and all(path.exists() for path in inputs):
                bucket.compact()
                bucket.collect()
            return super().run(task, descriptors, result, **named)

    (report,) = reports(verify_deep(context, NAMESPACE, runner=Meanwhile(context), options=APART))
    assert not any(path.exists() for path in inputs)
    assert report.problems == ()
    assert report.generation == bucket.manifest.generation


def test_options_that_make_no_sense(bucket: Bucket) -> None:
    with pytest.raises(InvalidInputError, match="task_bytes"):
        run(bucket.context(), NAMESPACE, options=VerifyOptions(task_bytes=0))
    assert run(bucket.context()) == []
