"""Restoring: the new version equals the old one, in one step, and nothing else is lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from reef.documents import Documents
from reef.engine import CreateOnly, Restored
from reef.errors import (
    ConditionFailedError,
    FencedError,
    InvalidInputError,
    NotWrittenError,
    RetentionError,
)
from reef.kv import KeyValue
from reef.testing import Operation
from tests.support.engine.branching import NS, Grove
from tests.support.jobs.compactor import Compactor
from tests.support.jobs.dying_tasks import CHANGES, Killed, Mortal

SMALL_LOG = {"log_segment_max_bytes": 8 << 10, "delta_layer_target_bytes": 8 << 10}


def contents(kv: KeyValue, lsn: int | None = None) -> dict[bytes, bytes]:
    return dict(kv.items() if lsn is None else kv.at(lsn=lsn).items())


def replayed(rows: dict[bytes, bytes], kv: KeyValue, after: int) -> dict[bytes, bytes]:
    """Return what follows from `rows` by the change feed."""
    rows = dict(rows)
    for batch in kv.changes(after=after):
        for change in batch.to_pylist():
            if change["_op"] == "delete":
                rows.pop(change["key"], None)
            else:
                rows[change["key"]] = change["value"]
    return rows


@pytest.mark.parametrize("settings", [{}, SMALL_LOG])
@pytest.mark.parametrize("seed", range(3))
def test_the_new_version_equals_the_old_one(seed: int, settings: dict[str, Any]) -> None:
    rng = random.Random(seed)
    grove = Grove(seed=seed, pitr_window="7d", **settings)
    kv = grove.kv()
    history = {0: contents(kv)}
    for _ in range(40):
        grove.clock.advance(1)
        keys = [b"k%03d" % rng.randrange(150) for _ in range(rng.randrange(1, 30))]
        deletes = {key for key in keys if rng.random() < 0.4}
        puts = {key: rng.randbytes(rng.randrange(200)) for key in keys if key not in deletes}
        lsn = kv.write(puts, deletes).lsn
        history[lsn] = contents(kv)
        if rng.random() < 0.15:
            kv.flush()
        if rng.random() < 0.05:
            Compactor(grove.db.context(), NS).run()
        if rng.random() < 0.1:
            before = kv.lsn
            lsn = rng.choice([*history])
            restored = kv.restore(lsn=lsn)
            assert restored.restored_lsn == lsn
            assert contents(kv) == history[lsn] == grove.contents()
            assert replayed(history[before], kv, before) == history[lsn]
            history[restored.lsn] = history[lsn]
    for lsn, rows in [*history.items()][::5]:
        assert contents(kv, lsn) == rows


def test_a_time_is_restored_and_what_came_since_stays_readable(grove: Grove) -> None:
    kv = grove.kv()
    then = kv.write({b"a": b"1", b"b": b"1"}).lsn
    at_us = grove.clock.now_us()
    grove.clock.advance(10)
    late = kv.write({b"a": b"2", b"c": b"2"}, [b"b"]).lsn
    assert kv.restore(time=at_us) == Restored(kv.lsn, then, 2, 1)
    assert contents(kv) == {b"a": b"1", b"b": b"1"}
    assert contents(kv, late) == {b"a": b"2", b"c": b"2"}
    # Conditions see it.
    with pytest.raises(ConditionFailedError):
        kv.put(b"b", b"3", condition=CreateOnly())
    kv.put(b"c", b"3", condition=CreateOnly())


def test_where_nothing_was_written_since_nothing_is_written(grove: Grove) -> None:
    kv = grove.kv()
    lsn = kv.put(b"a", b"1").lsn
    slots = grove.objects(None, "wal")
    assert kv.restore(lsn=lsn) == Restored(lsn, lsn, 0, 0)
    assert grove.objects(None, "wal") == slots


def test_a_branch_returns_to_what_its_parent_was(grove: Grove) -> None:
    kv = grove.kv()
    kv.write({b"a": b"1", b"b": b"1"})
    kv.flush()
    early = kv.write({b"a": b"2"}, [b"b"]).lsn
    kv.put(b"a", b"3")
    kv.flush()
    kv.put(b"c", b"3")
    kv.branch("b")
    with grove.kv("b") as branch:
        branch.write({b"b": b"4", b"d": b"4"}, [b"a"])
        branch.flush()
        assert branch.restore(lsn=early)[1:] == (early, 1, 3)
        assert contents(branch) == {b"a": b"2"} == grove.contents("b")
    assert contents(kv) == {b"a": b"3", b"c": b"3"}


def test_what_is_refused(grove: Grove) -> None:
    kv = grove.kv()
    lsn = kv.put(b"a", b"1").lsn
    with pytest.raises(InvalidInputError, match="give lsn or time"):
        kv.restore()
    with pytest.raises(InvalidInputError, match="read-only"):
        grove.kv(mode="r").restore(lsn=lsn)
    kv.put(b"a", b"2")
    kv.snapshot(id="s")
    kept = kv.lsn
    kv.put(b"a", b"3")
    kv.delete(b"a")
    kv.put(b"b", b"3")
    kv.flush()
    Compactor(grove.db.context(), NS).run(floor_lsn=kv.lsn)
    kv.snapshots()  # a look at the manifest
    with pytest.raises(RetentionError):
        kv.restore(lsn=lsn)
    # A snapshot keeps its version below the floor: its tombstones have not lost what they hide.
    assert kv.restore(lsn=kept)[1:] == (kept, 1, 1)
    assert contents(kv) == {b"a": b"2"}
    grove.kv()
    with pytest.raises(FencedError):
        kv.restore(lsn=kept)


def between(grove: Grove, operation: Operation, part: str, hook: Callable[[], object]) -> None:
    """Call `hook` before each such request, but for those that it makes itself."""
    calls: list[int] = []

    def before(asked: Operation, key: str) -> None:
        if asked == operation and part in key and not calls:
            calls.append(1)
            hook()
            calls.clear()

    grove.store.before = before


@pytest.mark.parametrize("settings", [{}, SMALL_LOG])
def test_what_others_write_meanwhile_is_restored_too(settings: dict[str, Any]) -> None:
    grove = Grove(pitr_window="7d", block_cache_bytes=0, **settings)
    kv = grove.kv()
    rows = {b"k%03d" % number: bytes(100) for number in range(200)}
    for number in range(0, 200, 40):
        lsn = kv.write(dict([*rows.items()][number : number + 40])).lsn
    kv.flush()
    for number in range(0, 200, 40):
        kv.write(dict.fromkeys([*rows][number : number + 40], b"new"))
    kv.flush()
    writes = 0

    def write() -> None:
        nonlocal writes
        if writes < 5:
            writes += 1
            kv.write({b"k%03d" % (7 * writes): b"meanwhile", b"m%d" % writes: b"1"}, [b"k001"])

    # Small: while the old rows are read. Large: while the segments are uploaded.
    between(grove, "get_range" if not settings else "upload", "segments", write)
    restored = kv.restore(lsn=lsn)
    grove.store.before = lambda operation, key: None
    assert writes == 5
    assert contents(kv) == rows == grove.contents()
    assert restored.lsn == kv.lsn


def test_writes_without_a_pause_end_a_large_restore_without_an_effect() -> None:
    grove = Grove(pitr_window="7d", **SMALL_LOG)
    kv = grove.kv()
    for number in range(20):
        lsn = kv.put(b"k%d" % number, bytes(1000)).lsn
    then = contents(kv)
    for number in range(20):
        kv.put(b"k%d" % number, b"")
    before = contents(kv)
    between(grove, "head", "segments", lambda: kv.put(b"a", b"2"))
    with pytest.raises(NotWrittenError, match=f"to restore LSN {lsn}; nothing was restored"):
        kv.restore(lsn=lsn)
    grove.store.before = lambda operation, key: None
    assert contents(kv) == before | {b"a": b"2"}
    kv.restore(lsn=lsn)
    assert contents(kv) == then


def test_a_compaction_that_passes_the_version_ends_it_without_an_effect() -> None:
    grove = Grove(block_cache_bytes=0)
    kv = grove.kv()
    lsn = kv.write({b"a": b"1", b"b": b"1"}).lsn
    kv.write({b"a": b"2"}, [b"b"])
    kv.flush()

    def compact() -> None:
        grove.store.before = lambda operation, key: None
        Compactor(grove.database().context(), NS).run(floor_lsn=kv.lsn)
        grove.publish()
        kv.put(b"c", b"1")
        kv.snapshot(id="look")

    between(grove, "get_range", "segments", compact)
    with pytest.raises(RetentionError):
        kv.restore(lsn=lsn)
    assert contents(kv) == {b"a": b"2", b"c": b"1"}


# Documents.


def written(ns: Documents) -> int:
    ns.upsert([{"id": "a", "n": 1, "old": "x", "v": [1.0, 2.0]}, {"id": "b", "n": 2}])
    return ns.lsn


@pytest.mark.parametrize("settings", [{}, SMALL_LOG])
def test_dropped_attributes_stay_dropped_and_types_stay(
    grove: Grove, settings: dict[str, Any]
) -> None:
    with grove.db.namespace("docs", **settings) as ns:
        lsn = written(ns)
        ns.alter(drop=["old"], rename={"n": "number"}, add={"more": "string"})
        ns.alter(add={"old": "int64"})
        ns.upsert([{"id": "c", "more": "m" * 5000, "old": 5} | {"number": 3}])
        ns.upsert([{"id": "d", "more": "m" * 5000}])
        ns.patch([{"id": "a", "number": 10}])
        ns.delete(["b"])
        types = ns.schema
        restored = ns.restore(lsn=lsn)
        assert restored[1:] == (lsn, 2, 2)
        assert ns.schema == types
        assert types["old"] == "int64"
        found = {row["id"]: row for row in ns.query().to_pylist()}
        assert found.keys() == {"a", "b"}
        assert found["a"]["number"] == 1
        assert found["a"]["v"] == [1.0, 2.0]
        assert (found["a"]["old"], found["a"]["more"]) == (None, None)
        assert ns.get("b") == {"id": "b", "number": 2}
        changes = [row for batch in ns.changes(after=restored.lsn - 1) for row in batch.to_pylist()]
        assert [(row["_op"], row["id"]) for row in changes] == [
            ("upsert", "a"), ("upsert", "b"), ("delete", "c"), ("delete", "d"),
        ]  # fmt: skip


# Crashes.


@pytest.mark.parametrize("settings", [{}, SMALL_LOG])
@pytest.mark.parametrize("is_sent", [False, True])
def test_a_restore_whose_process_dies_is_there_whole_or_not_at_all(
    is_sent: bool, settings: dict[str, Any]
) -> None:
    outcomes = set()
    for dies_at in (1, 2, 3, 5, 8):
        grove = Grove(pitr_window="7d", **settings)
        with grove.kv() as kv:
            for number in range(30):
                lsn = kv.put(b"k%02d" % number, bytes(500)).lsn
            then = contents(kv)
            kv.write({b"k%02d" % number: b"new" for number in range(0, 30, 2)}, [b"k01", b"k03"])
            kv.put(b"late", b"1")
            before = contents(kv)
        # Opening behind a closed writer takes a PUT; from then on it may die anywhere.
        mortal = Mortal(grove.inner, dies_at + 1, is_sent=is_sent, among=CHANGES)
        try:
            grove.database(mortal).kv(NS).restore(lsn=lsn)
            outcomes.add("done")
        except Killed:
            outcomes.add("killed")
        after = grove.contents()
        assert after in (before, then)
        outcomes.add("restored" if after == then else "as before")
        with grove.kv() as kv:
            kv.restore(lsn=lsn)
            assert contents(kv) == then
            grove.age()
            grove.collect()
            assert grove.contents() == then
    assert {"done", "killed", "restored"} <= outcomes
