"""Verify: whatever is damaged, missing or in disagreement is found, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import reef
from reef.database import Database
from reef.doctor import VerifyReport, verify
from reef.doctor._restore_rows import own_rows
from reef.format import (
    Manifest,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    SegmentWriter,
    decode_manifest,
    encode_manifest,
    segment_key,
    segment_schema,
)
from reef.jobs import InProcess
from reef.manifest import Head
from reef.segment import check_segment, write_segment
from reef.store import Store, open_store
from tests.support.doctor.damaged_buckets import (
    NAMESPACE,
    SORTED_ROWS,
    Bucket,
    cut,
    flip,
    publish_rows,
)
from tests.support.engine.log_script import NS, LogScript
from tests.support.jobs.compactor import Compactor
from tests.support.jobs.passes import index

_replace = msgspec.structs.replace


def look(bucket: Bucket, *, deep: bool = True) -> VerifyReport:
    before = bucket.everything()
    report = verify(bucket.context(), NAMESPACE, deep=deep)
    assert bucket.everything() == before, "verify wrote something"
    return report


def kinds(report: VerifyReport) -> list[str]:
    return [problem.kind for problem in report.problems]


def test_nothing_is_wrong_with_what_was_just_written(bucket: Bucket) -> None:
    report = look(bucket)
    assert (report.problems, report.notes, report.orphans) == ((), (), ())
    assert report.generation == 3
    assert report.checked["manifests"] == 3
    assert report.checked["log_objects"] == 13
    assert report.checked["segments"] == 2
    assert report.checked["blocks"] > 10
    assert look(bucket, deep=False).checked["blocks"] == 0


def test_a_namespace_that_is_not_there(bucket: Bucket) -> None:
    with pytest.raises(reef.NotFoundError, match="there is no namespace 'other'"):
        verify(bucket.context(), "other")


@pytest.mark.slow
def test_a_flipped_byte_anywhere_is_found(bucket: Bucket) -> None:
    rng = random.Random(1)
    looked_at = 0
    for folder in ("manifest", "wal", "segments", "dedup"):
        for path in bucket.files(folder):
            data = path.read_bytes()
            for at in {0, len(data) - 1, *(rng.randrange(len(data)) for _ in range(6))}:
                flip(path, at)
                found = {f.key for f in look(bucket).problems}
                assert bucket.key(path) in found, (path.name, at)
                looked_at += 1
                path.write_bytes(data)
    assert looked_at > 100
    assert look(bucket).problems == ()


@pytest.mark.parametrize("folder", ["manifest", "wal", "segments", "dedup"])
@pytest.mark.parametrize(
    "harm", [cut, lambda path: path.write_bytes(path.read_bytes() + b"\0"), Path.unlink]
)
def test_what_is_cut_extended_or_gone_is_found(
    bucket: Bucket, folder: str, harm: Callable[[Path], None]
) -> None:
    """Save for the end of a chain: without its last object, it is a shorter chain."""
    for path in bucket.files(folder)[: -1 if folder in ("manifest", "wal") else None]:
        data = path.read_bytes()
        harm(path)
        report = look(bucket, deep=False)
        assert bucket.key(path) in {f.key for f in report.problems}, path.name
        path.write_bytes(data)
    assert look(bucket).problems == ()


def test_a_damaged_block_takes_a_deep_look(bucket: Bucket) -> None:
    path = bucket.segment(bucket.manifest.segments[0])
    flip(path, 60)
    assert look(bucket, deep=False).problems == ()
    (problem,) = look(bucket).problems
    assert (problem.kind, problem.key) == ("segment-damaged", bucket.key(path))
    assert "byte 16" in problem.text


def test_no_generation_can_be_read(bucket: Bucket) -> None:
    for path in bucket.files("manifest"):
        flip(path)
    report = look(bucket)
    assert report.generation is None
    assert kinds(report) == ["manifest-damaged"] * 3


def test_the_log_missing_in_the_middle_and_at_a_known_end(bucket: Bucket) -> None:
    floor = bucket.manifest.wal_floor
    bucket.slot(floor + 1).unlink()
    (problem,) = look(bucket).problems
    assert problem.kind == "log-missing"
    assert f"slot {floor + 1} is not there; the log goes on" in problem.text
    # A snapshot's manifest has seen how far the log goes.
    fresh = Bucket(bucket.root.parent / "c")
    fresh.write("leave")
    with fresh.open() as db, db.kv(NAMESPACE, mode="r") as kv:
        kv.snapshot(ttl="1h")
    fresh.files("wal")[-1].unlink()
    assert kinds(look(fresh)) == ["log-missing"]


def test_what_was_in_flight_behind_the_end_of_the_log_is_a_note(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "b", max_parallel_writes=3)
    bucket.write("leave")
    slots = bucket.files("wal")
    slots[-2].unlink()  # as if the writer had been killed while two of its PUTs were under way
    report = look(bucket)
    assert report.problems == ()
    (note,) = report.notes
    assert (note.kind, note.key) == ("log-ahead", bucket.key(slots[-1]))
    slots[-3].unlink()
    slots[-4].unlink()  # but not that many
    assert kinds(look(bucket)) == ["log-missing"]


def test_unreferenced_objects_are_notes(bucket: Bucket) -> None:
    live = bucket.segment(bucket.manifest.segments[0])
    stray = live.with_name("01J9ZQ3V5N8W2X4Y6Z7A8B9C0K-e1.seg")
    stray.write_bytes(live.read_bytes())
    report = look(bucket)
    assert report.problems == ()
    assert report.orphans == (bucket.key(stray),)
    (note,) = report.notes
    assert note.kind == "orphan"
    assert "reef gc" in note.text


def test_what_only_the_folded_log_attaches_is_not_said_to_be_left_by_a_crash() -> None:
    with open_store("memory://") as store:
        script = LogScript(store)
        script.data({b"a": b"1"})
        attached = script.attach({b"b": b"2"})
        context = Database(store).context()
        index(context, NS, InProcess(context))
        Compactor(context, NS).run(floor_lsn=0)

        def forgotten(head: Head | None) -> Manifest:
            """Collection has passed the generations, and the log is kept for time travel."""
            assert head is not None
            m = head.manifest
            boundary = _replace(m.gc.boundary, generation=m.generation)
            return _replace(m, gc=_replace(m.gc, boundary=boundary, pending=()))

        context.chain(NS).publish(forgotten)
        report = verify(context, NS)
        assert segment_key(NS, attached.id) in report.orphans
        (note,) = (note for note in report.notes if note.kind == "orphan")
        assert "nothing names" not in note.text
        assert "folded log objects, kept for time travel" in note.text


def test_a_namespace_that_changes_is_looked_at_again(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "b", gc_grace=0, retained_generations=1)
    bucket.write("flush", "flush")
    inputs = [bucket.segment(ref) for ref in bucket.manifest.segments]

    def compacted_meanwhile(what: str, done: int, total: int) -> None:
        if what == "log" and all(path.exists() for path in inputs):
            bucket.compact()
            bucket.collect()
            assert not any(path.exists() for path in inputs)

    report = verify(bucket.context(), NAMESPACE, deep=True, progress=compacted_meanwhile)
    assert report.problems == ()
    assert report.generation == bucket.manifest.generation


def test_a_log_object_of_another_format_version_is_not_taken_for_damage(bucket: Bucket) -> None:
    path = bucket.slot(bucket.commits[0].slot)
    path.write_bytes(path.read_bytes()[:8] + b"\2" + path.read_bytes()[9:])
    (problem,) = look(bucket).problems
    assert (problem.kind, problem.key) == ("format-version", bucket.key(path))


# What has a right checksum and is wrong all the same.


def forge(bucket: Bucket, generation: int, **changes: object) -> None:
    """Write a generation anew, well-formed, but not as it was."""
    path = bucket.generation(generation)
    manifest = decode_manifest(path.read_bytes(), key=bucket.key(path))
    path.write_bytes(encode_manifest(msgspec.structs.replace(manifest, **changes)))


def test_a_generation_that_another_took_the_place_of(bucket: Bucket) -> None:
    forge(bucket, 2, nonce="ab" * 16)
    (problem,) = look(bucket).problems
    assert (problem.kind, problem.key) == (
        "manifest-unlinked",
        bucket.key(bucket.generation(3)),
    )


def test_a_generation_that_breaks_a_rule(bucket: Bucket) -> None:
    forge(bucket, 3, compactor_epoch=7)
    assert kinds(look(bucket)) == ["manifest-rule"]


def test_a_manifest_and_a_log_that_do_not_fit(bucket: Bucket) -> None:
    anchor = bucket.manifest.wal_anchor
    forge(bucket, 3, wal_anchor=msgspec.structs.replace(anchor, checksum=anchor.checksum ^ 1))
    assert "log-unlinked" in kinds(look(bucket))


@pytest.mark.parametrize("name", ["rows", "tombstones", "checksum", "lsn_min", "footer_length"])
def test_a_manifest_and_a_segment_that_do_not_fit(bucket: Bucket, name: str) -> None:
    first, *others = bucket.manifest.segments
    changed = msgspec.structs.replace(first, **{name: getattr(first, name) - 1})
    forge(bucket, 3, segments=(changed, *others))
    assert "segment-damaged" in kinds(look(bucket, deep=False))


def test_a_manifest_and_a_dedup_window_that_do_not_fit(bucket: Bucket) -> None:
    dedup = bucket.manifest.dedup
    assert dedup is not None
    forge(bucket, 3, dedup=msgspec.structs.replace(dedup, checksum=dedup.checksum ^ 1))
    assert kinds(look(bucket)) == ["dedup-damaged"]


# Columns in blocks of their own.

VECTORS = segment_schema(
    [pa.field("price", pa.float64()), pa.field("v", pa.list_(pa.float32(), 8))]
)


def write_vectors(root: Path) -> tuple[Store, SegmentRef, pa.RecordBatch]:
    """Write a segment whose vectors are cut into other blocks than its rows."""
    store = open_store(f"file://{root}?fsync=off")
    rows = 500
    vectors = np.random.default_rng(1).random(rows * 8, np.float32)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([b"k%04d" % n for n in range(rows)], pa.binary()),
            pa.array(range(1, rows + 1), pa.int64()),
            pa.array([False] * rows),
            pa.array(np.arange(rows) / 2),
            pa.FixedSizeListArray.from_arrays(pa.array(vectors), 8),
        ],
        schema=VECTORS,
    )
    origin = SegmentOrigin(
        id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0K", namespace="n", level=1, author="test", created_at_us=0
    )
    options = SegmentOptions(row_block_bytes=2000, column_block_bytes=3500, stripe_bytes=9000)
    return store, write_segment(store, "n", VECTORS, origin, options, [batch]), batch


@pytest.mark.slow
def test_blocks_of_wide_columns_are_looked_at_too(tmp_path: Path) -> None:
    store, ref, _ = write_vectors(tmp_path / "b")
    sound = check_segment(store, "n", ref, ref.size, deep=True)
    assert sound.is_sound
    assert sound.tail is not None
    path = tmp_path / "b" / sound.key
    places = sound.tail.column_places["v"]
    assert len(places) > 3
    for number, place in enumerate(places):
        flip(path, place.offset + 30)
        facts = check_segment(store, "n", ref, ref.size, deep=True)
        assert [error.offset for error in facts.errors] == [place.offset]
        hit = {
            n
            for n, rows in enumerate(sound.tail.row_places)
            if rows.row < place.row + place.rows and place.row < rows.row + rows.rows
        }
        assert set(facts.bad_rows) == hit, number
        flip(path, place.offset + 30)
    for at in range(0, ref.size, 97):
        flip(path, at)
        assert not check_segment(store, "n", ref, ref.size, deep=True).is_sound, at
        flip(path, at)


def test_sound_blocks_are_read_with_their_wide_columns(tmp_path: Path) -> None:
    store, ref, batch = write_vectors(tmp_path / "b")
    sound = check_segment(store, "n", ref, ref.size, deep=True)
    assert sound.tail is not None
    place = sound.tail.column_places["v"][2]
    flip(tmp_path / "b" / sound.key, place.offset + 30)
    facts = check_segment(store, "n", ref, ref.size, deep=True)
    places = list(sound.tail.row_places)
    good = [n for n in range(len(places)) if n not in facts.bad_rows]
    assert 0 < len(good) < len(places)
    found = pa.Table.from_batches(own_rows(store, facts, good))
    expected = pa.concat_tables(
        pa.Table.from_batches([batch.slice(places[n].row, places[n].rows)]) for n in good
    )
    assert found.combine_chunks().equals(expected.combine_chunks())


def no_problem(*_: object) -> str:
    return ""


def test_rows_in_order_are_no_problem(bucket: Bucket) -> None:
    publish_rows(bucket, SORTED_ROWS)
    assert look(bucket).problems == ()


@pytest.mark.parametrize(
    ("rows", "block_bytes", "says"),
    [
        ([(b"a", 5), (b"b", 4), (b"b", 9), (b"c", 6)], 1 << 20, "not sorted by key, newest"),
        ([(b"a", 5), (b"b", 4), (b"b", 4), (b"c", 6)], 1 << 20, "not sorted by key, newest"),
        ([(b"a", 5), (b"c", 4), (b"b", 9), (b"c", 6)], 1 << 20, "not sorted by key, newest"),
        ([(b"a", 5), (b"b", 4), (b"b", 9), (b"c", 6)], 1, "do not sort behind"),
    ],
)
def test_rows_that_are_not_sorted(
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[tuple[bytes, int]],
    block_bytes: int,
    says: str,
) -> None:
    monkeypatch.setattr(SegmentWriter, "_order_problem", no_problem)
    publish_rows(bucket, rows, block_bytes)
    assert look(bucket, deep=False).problems == ()
    (problem,) = look(bucket).problems
    assert says in problem.text


def test_segments_that_overlap(bucket: Bucket) -> None:
    publish_rows(bucket, SORTED_ROWS)
    publish_rows(bucket, [(b"bb", 9)])
    (problem,) = look(bucket, deep=False).problems
    assert problem.kind == "segments-overlap"
