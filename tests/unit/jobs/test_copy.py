"""Copies of a namespace in another bucket: what they hold, and what they refuse."""

from __future__ import annotations

import pytest

from reef.database import Database
from reef.doctor import verify
from reef.errors import CorruptError, InvalidInputError, NotFoundError, RetentionError
from reef.format import dedup_key, log_key, segment_key
from reef.jobs import (
    CompactionOptions,
    CopyResult,
    PassProgress,
    bulk_load,
    collect,
    compact,
    copy_namespace,
    index,
)
from reef.kv import KeyValue
from reef.store import MemoryStore
from reef.testing import ManualClock, Operation
from tests.support.engine.collecting import GRACE_S, HookedStore

NAME = "ns"


class Buckets:
    """A source and a destination, on one clock that the test owns."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.source_store = HookedStore(MemoryStore(clock=self.clock))
        self.target_store = HookedStore(MemoryStore(clock=self.clock))
        settings = {"gc_grace": GRACE_S, "retained_generations": 2}
        self.source = Database(self.source_store, clock=self.clock, **settings)
        self.target = Database(self.target_store, clock=self.clock, **settings)

    def copy(self, name: str = NAME, **at: object) -> CopyResult:
        return copy_namespace(self.source.context(), self.target.context(), name, **at)  # type: ignore[arg-type]

    def pairs(self, db: Database, name: str = NAME, **at: int) -> dict[bytes, bytes]:
        base, _, branch = name.partition("@")
        with db.kv(base, branch=branch or None, mode="r") as kv:
            return dict((kv.at(**at) if at else kv).items())

    def check(self, name: str = NAME) -> None:
        """The copy holds what the source holds, and nothing is wrong with it."""
        assert self.pairs(self.target, name) == self.pairs(self.source, name)
        self.check_sound(name)

    def check_sound(self, name: str = NAME) -> None:
        assert verify(self.target.context(), name, deep=True).problems == ()

    def keys(self, store: HookedStore, part: str = "") -> set[str]:
        return {
            meta.key
            for meta in store.inner.list(
                f"namespaces/{NAME}/{part}/" if part else f"namespaces/{NAME}/"
            )
        }


@pytest.fixture
def buckets() -> Buckets:
    return Buckets()


def fill(db: Database, name: str = NAME) -> None:
    """Segments of two levels, a window, a tombstone, and unfolded log."""
    kv = db.kv(name)
    for n in range(6):
        kv.put(b"a%d" % n, b"1", idempotency_key=f"a{n}")
        kv.flush()
    compact(db, [name], options=CompactionOptions(full=True))
    kv.delete(b"a0")
    kv.put(b"b", b"2")
    kv.flush()
    kv.put(b"c", b"3", idempotency_key="c")
    kv.put(b"d", b"4")
    kv.close()


def test_a_copy_holds_what_its_source_holds(buckets: Buckets) -> None:
    fill(buckets.source)
    done = buckets.copy()
    buckets.check()
    assert done.is_changed
    with buckets.source.kv(NAME, mode="r") as kv:
        assert done.lsn == kv.lsn
        assert kv.snapshots() == []  # the one that held it is gone
    # It is a database of its own: it can be written, and knows the requests of before.
    with buckets.target.kv(NAME) as kv:
        assert kv.put(b"a1", b"1", idempotency_key="a1").replayed
        assert kv.put(b"c", b"3", idempotency_key="c").replayed
        assert kv.put(b"d", b"4").lsn > done.lsn
    buckets.check_sound()


def test_objects_are_the_same_bytes_and_the_manifest_is_last(buckets: Buckets) -> None:
    fill(buckets.source)
    puts: list[str] = []

    def note(operation: Operation, key: str) -> None:
        if operation in ("put_if_absent", "upload"):
            puts.append(key)

    buckets.target_store.before = note
    buckets.copy()
    assert "/manifest/" in puts[-1]
    assert not any("/manifest/" in key for key in puts[:-1])
    for part in ("segments", "wal", "dedup"):
        for key in buckets.keys(buckets.target_store, part):
            assert buckets.target_store.inner.get(key) == buckets.source_store.inner.get(key)
    with buckets.target.kv(NAME, mode="r") as kv:
        manifest = kv._handle.manifest
    assert (manifest.lease, manifest.intents, manifest.pins) == (None, (), ())


def test_the_history_comes_along(buckets: Buckets) -> None:
    kv = buckets.source.kv(NAME, pitr_window="1d")
    receipts = [kv.put(b"k", b"%d" % n) for n in range(5)]
    kv.flush()
    held = kv.snapshot(None, id="kept")
    kv.put(b"k", b"last")
    buckets.copy()
    for n, receipt in enumerate(receipts):
        assert buckets.pairs(buckets.target, lsn=receipt.lsn) == {b"k": b"%d" % n}
    with buckets.target.kv(NAME, mode="r") as copied:
        assert copied.at(snapshot="kept").get(b"k") == held.get(b"k")
        assert sum(batch.num_rows for batch in copied.changes()) == 6


def test_a_later_copy_brings_what_is_missing(buckets: Buckets) -> None:
    fill(buckets.source)
    first = buckets.copy()
    assert buckets.copy().is_changed is False
    with buckets.source.kv(NAME) as kv:
        kv.put(b"e", b"5")
        kv.flush()
        kv.put(b"f", b"6")
    second = buckets.copy()
    buckets.check()
    assert second.generation == first.generation + 2  # the new epoch, then its log
    assert second.objects < first.objects
    # What a compaction replaced waits for collection of the copy, and goes then.
    compact(buckets.source, [NAME], options=CompactionOptions(full=True))
    buckets.copy()
    buckets.check()
    before = buckets.keys(buckets.target_store, "segments")
    for _ in range(4):
        buckets.clock.advance(GRACE_S + 1)
        with buckets.source.kv(NAME) as kv:
            kv.put(b"g", b"%d" % buckets.clock.now_us())
        buckets.copy()
        collect(buckets.target, [NAME], apply=True)
    assert len(buckets.keys(buckets.target_store, "segments")) < len(before)
    buckets.check()


@pytest.mark.parametrize("part", ["/segments/", "/wal/", "/dedup/", "/manifest/"])
@pytest.mark.parametrize("operation", ["put_if_absent", "upload", "get", "get_range"])
def test_a_copy_that_dies_is_taken_up_again(
    buckets: Buckets, part: str, operation: Operation
) -> None:
    fill(buckets.source)

    def die() -> None:
        raise KeyboardInterrupt

    buckets.target_store.once(operation, part, die)
    try:
        buckets.copy()
    except KeyboardInterrupt:
        with buckets.source.kv(NAME, mode="r") as kv:
            assert kv.snapshots() == []  # released on the way out
    buckets.target_store.before = lambda operation, key: None
    buckets.copy()
    buckets.check()


def test_what_was_there_whole_is_not_sent_again(buckets: Buckets) -> None:
    fill(buckets.source)

    def die() -> None:
        raise KeyboardInterrupt

    buckets.target_store.once("put_if_absent", "/manifest/", die)
    with pytest.raises(KeyboardInterrupt):
        buckets.copy()
    sent: list[str] = []
    buckets.target_store.before = lambda operation, key: (
        sent.append(key) if operation == "upload" else None
    )
    buckets.copy()
    assert sent == []
    buckets.check()


def test_writes_compactions_and_collections_go_on_meanwhile(buckets: Buckets) -> None:
    """Each object that is fetched meets a write, and some a compaction and a collection."""
    fill(buckets.source)
    writer = buckets.source.kv(NAME)
    counted = [0]

    def meddle(operation: Operation, key: str) -> None:
        if operation != "upload" and "/wal/" not in key:
            return
        buckets.target_store.before = lambda operation, key: None
        counted[0] += 1
        writer.put(b"late%d" % counted[0], b"x")
        if counted[0] % 2:
            writer.flush()
            compact(buckets.source, [NAME], options=CompactionOptions(full=True))
            buckets.clock.advance(GRACE_S + 1)
            collect(buckets.source, [NAME], apply=True)
        buckets.target_store.before = meddle

    before = buckets.pairs(buckets.source)
    buckets.target_store.before = meddle
    done = buckets.copy()
    assert counted[0] > 3
    buckets.target_store.before = lambda operation, key: None
    assert buckets.pairs(buckets.target) == before
    assert buckets.pairs(buckets.target, lsn=done.lsn) == before
    buckets.check_sound()
    buckets.copy()
    buckets.check()


def test_a_branch_is_copied_with_what_it_shares_and_no_more(buckets: Buckets) -> None:
    with buckets.source.kv(NAME, pitr_window="1d") as kv:
        kv.write({b"%02d" % n: b"old" for n in range(20)})
        branched = kv.lsn
        kv.write({b"%02d" % n: b"new" for n in range(10)})
        kv.flush()
        kv.branch("trial", lsn=branched)
    branch = f"{NAME}@trial"
    with buckets.source.kv(NAME, branch="trial") as trial:
        trial.put(b"own", b"1")
    first = buckets.copy(branch)
    buckets.check(branch)
    keys = {meta.key for meta in buckets.target_store.inner.list("namespaces/")}
    assert all(key.startswith(f"namespaces/{branch}/") for key in keys)
    segments = [key for key in keys if "/segments/" in key]
    assert not any(b"new" in buckets.target_store.inner.get(key) for key in segments)
    assert not buckets.copy(branch).is_changed
    with buckets.source.kv(NAME, branch="trial") as trial:
        trial.put(b"own", b"2")
    again = buckets.copy(branch)
    assert again.objects < first.objects  # what was written anew is known again
    buckets.check(branch)


def test_a_past_version_is_copied_without_what_came_later(buckets: Buckets) -> None:
    with buckets.source.kv(NAME, pitr_window="1d") as kv:
        kv.write({b"%02d" % n: b"old" for n in range(20)})
        kv.flush()
        then = kv.lsn
        buckets.clock.advance(60)
        time_us = buckets.clock.now_us()
        buckets.clock.advance(60)
        kv.write({b"%02d" % n: b"secret" for n in range(20)})
        kv.delete(b"00")
        kv.flush()
        compact(buckets.source, [NAME], options=CompactionOptions(full=True))
    buckets.copy(lsn=then)
    assert buckets.pairs(buckets.target) == {b"%02d" % n: b"old" for n in range(20)}
    buckets.check_sound()
    with buckets.target.kv(NAME, mode="r") as kv:
        assert kv.lsn == then
    assert [*buckets.source.namespaces()] == [NAME]  # nothing is left that held it
    # Later, what came after it.
    buckets.copy()
    buckets.check()
    other = Buckets()
    other.source, other.source_store = buckets.source, buckets.source_store
    assert other.copy(time=time_us).lsn == then
    with pytest.raises(InvalidInputError, match="at most one"):
        buckets.copy(lsn=then, time=time_us)


def test_a_version_below_the_floor_is_refused(buckets: Buckets) -> None:
    fill(buckets.source)
    compact(buckets.source, [NAME], options=CompactionOptions(full=True))
    with pytest.raises(RetentionError):
        buckets.copy(lsn=1 << 20)
    assert buckets.keys(buckets.target_store) == set()


def test_attached_segments_come_along(buckets: Buckets) -> None:
    buckets.source.namespace(NAME).close()
    bulk_load(buckets.source, NAME, [{"id": str(n), "n": n} for n in range(100)], job_key="j")
    buckets.copy()
    with buckets.target.namespace(NAME, mode="r") as ns:
        assert ns.count() == 100
    buckets.check_sound()
    index(buckets.source, [NAME])
    buckets.copy()
    with buckets.target.namespace(NAME, mode="r") as ns:
        assert ns.count() == 100
    buckets.check_sound()


@pytest.mark.parametrize("change", ["open", "fold"])
def test_a_destination_with_a_history_of_its_own_is_refused(buckets: Buckets, change: str) -> None:
    fill(buckets.source)
    buckets.copy()
    if change == "open":
        buckets.target.kv(NAME).close()
    else:
        index(buckets.target, [NAME])
    with buckets.source.kv(NAME) as kv:
        kv.put(b"more", b"1")
    before = buckets.keys(buckets.target_store)
    with pytest.raises(InvalidInputError, match="copy into an empty bucket"):
        buckets.copy()
    assert buckets.keys(buckets.target_store) == before


def test_a_namespace_that_is_no_copy_is_never_written_over(buckets: Buckets) -> None:
    fill(buckets.source)
    with buckets.target.kv(NAME) as kv:
        kv.put(b"mine", b"1")
    before = buckets.keys(buckets.target_store)
    with pytest.raises(InvalidInputError, match="is not a copy"):
        buckets.copy()
    assert buckets.keys(buckets.target_store) == before


def test_a_copy_of_another_life_is_refused(buckets: Buckets) -> None:
    fill(buckets.source)
    buckets.copy()
    buckets.source.drop(NAME)
    fill(buckets.source)
    with pytest.raises(InvalidInputError, match="another namespace of that name"):
        buckets.copy()


def test_a_copy_of_another_history_is_refused(buckets: Buckets) -> None:
    """Of a namespace of that name in a third bucket, which is further on: only the log tells."""
    with buckets.source.kv(NAME) as kv:
        kv.put(b"a", b"1")
    buckets.copy()
    other = Database(MemoryStore(clock=buckets.clock), clock=buckets.clock)
    with other.kv(NAME) as kv:
        for n in range(3):
            kv.put(b"b", b"%d" % n)
    before = buckets.keys(buckets.target_store)
    with pytest.raises(InvalidInputError, match="another namespace of that name"):
        copy_namespace(other.context(), buckets.target.context(), NAME)
    assert buckets.keys(buckets.target_store) == before
    buckets.check()


def test_a_copy_does_not_go_back(buckets: Buckets) -> None:
    with buckets.source.kv(NAME) as kv:
        lsn = kv.put(b"a", b"1").lsn
        kv.put(b"b", b"2")
    buckets.copy()
    with pytest.raises(InvalidInputError, match="is further on"):
        buckets.copy(lsn=lsn)
    buckets.check()


def test_an_object_of_something_else_is_not_taken_for_a_copy(buckets: Buckets) -> None:
    """Left behind in the destination, without a manifest that would tell."""
    fill(buckets.source)
    key = max(buckets.keys(buckets.source_store, "wal"))
    buckets.target_store.inner.put_if_absent(key, b"something else")
    with pytest.raises(InvalidInputError, match="is not the source's"):
        buckets.copy()


@pytest.mark.parametrize("part", ["segments", "wal", "dedup"])
def test_damage_is_not_copied(buckets: Buckets, part: str) -> None:
    fill(buckets.source)
    head = buckets.source.context().chain(NAME).load()
    assert head is not None
    manifest = head.manifest
    assert manifest.dedup is not None
    key = {
        "segments": segment_key(NAME, manifest.segments[0].id),
        "wal": log_key(NAME, manifest.wal_floor),
        "dedup": dedup_key(NAME, manifest.dedup.id),
    }[part]
    data = bytearray(buckets.source_store.inner.get(key))
    data[len(data) // 2] ^= 1
    buckets.source_store.inner.delete(key)
    buckets.source_store.inner.put_if_absent(key, bytes(data))
    with pytest.raises(CorruptError):
        buckets.copy()
    assert buckets.keys(buckets.target_store, "manifest") == set()


def test_damage_on_the_way_is_found(buckets: Buckets) -> None:
    """A store that keeps other bytes than it was given is found out before the manifest."""
    fill(buckets.source)
    inner = buckets.target_store.inner
    upload = inner.upload

    def damaged(key: str, parts: object) -> None:
        data = bytearray(b"".join(bytes(part) for part in parts))  # type: ignore[attr-defined]
        data[len(data) // 2] ^= 1
        upload(key, [bytes(data)])

    inner.upload = damaged  # type: ignore[method-assign, assignment]
    with pytest.raises(CorruptError):
        buckets.copy()
    assert buckets.keys(buckets.target_store, "manifest") == set()


def test_what_is_missing_or_the_same_is_refused(buckets: Buckets) -> None:
    with pytest.raises(NotFoundError):
        buckets.copy()
    fill(buckets.source)
    with pytest.raises(InvalidInputError, match="is not a copy"):
        copy_namespace(buckets.source.context(), buckets.source.context(), NAME)


def _die_before_the_manifest(buckets: Buckets, at: int | None = None) -> None:
    """Let a copy end where it would publish, or at so many log objects."""
    left = [at]

    def before(operation: Operation, key: str) -> None:
        if operation != "put_if_absent":
            return
        if left[0] is not None and "/wal/" in key:
            left[0] -= 1
        if left[0] == 0 or (left[0] is None and "/manifest/" in key):
            raise KeyboardInterrupt

    buckets.target_store.before = before
    with pytest.raises(KeyboardInterrupt):
        buckets.copy()
    buckets.target_store.before = lambda operation, key: None


def _write_and_collect(buckets: Buckets, kv: KeyValue) -> None:
    """Write until log was collected that no copy has."""
    for n in range(8):
        kv.put(b"folded", b"%d" % n)
        kv.flush()
        buckets.clock.advance(GRACE_S + 1)
        collect(buckets.source, [NAME], apply=True)


@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("meanwhile", ["", "collected", "reopened"])
def test_a_later_copy_that_dies_can_be_opened(buckets: Buckets, at: int, meanwhile: str) -> None:
    """Its bucket may be all that is left: log objects that nothing names are no damage there."""
    kv = buckets.source.kv(NAME, maintenance="off", flush_interval=0)
    kv.put(b"first", b"1")
    buckets.copy()
    if meanwhile == "collected":
        _write_and_collect(buckets, kv)
    for _ in range(3 if meanwhile == "reopened" else 0):
        kv.close()
        kv = buckets.source.kv(NAME, maintenance="off", flush_interval=0)
    for n in range(8):
        kv.put(b"%d" % n, b"1")
    _die_before_the_manifest(buckets, at)
    found = buckets.pairs(buckets.target)
    whole = buckets.pairs(buckets.source)
    assert found.items() <= whole.items()
    numbers = [int(key) for key in found if key.isdigit()]
    assert numbers == [*range(len(numbers))]
    with buckets.target.kv(NAME) as copied:
        assert dict(copied.items()) == found
        copied.put(b"mine", b"1")
    assert buckets.pairs(buckets.target) == {**found, b"mine": b"1"}


def test_what_the_log_attaches_is_there_before_the_log(buckets: Buckets) -> None:
    with buckets.source.namespace(NAME) as ns:
        ns.upsert([{"id": "first", "n": 1}])
    buckets.copy()
    bulk_load(buckets.source, NAME, [{"id": str(n), "n": n} for n in range(100)], job_key="j")

    def before(operation: Operation, key: str) -> None:
        if operation == "upload":  # slower than all else
            raise KeyboardInterrupt

    buckets.target_store.before = before
    with pytest.raises(KeyboardInterrupt):
        buckets.copy()
    buckets.target_store.before = lambda operation, key: None
    with buckets.target.namespace(NAME) as ns:
        assert ns.count() == 1
        ns.flush()
        assert ns.count() == 1
    buckets.check_sound()


def test_a_later_copy_goes_on_behind_collected_log(buckets: Buckets) -> None:
    kv = buckets.source.kv(NAME, maintenance="off", flush_interval=0)
    kv.put(b"first", b"1")
    buckets.copy()
    _write_and_collect(buckets, kv)
    kv.snapshot(None, id="folded")
    kv.put(b"unfolded", b"1")
    kv.snapshot(None, id="unfolded")
    buckets.copy()
    buckets.check()
    with buckets.target.kv(NAME, mode="r") as copied:
        for id in ("folded", "unfolded"):
            then = dict(kv.at(snapshot=id).items())
            assert dict(copied.at(snapshot=id).items()) == then
    assert buckets.copy().is_changed is False


def test_a_copy_is_of_the_newest_generation_whatever_snapshots_share(buckets: Buckets) -> None:
    kv = buckets.source.kv(NAME, maintenance="off", flush_interval=0)
    for n in range(4):
        kv.put(b"%d" % n, b"1")
        kv.flush()
    kv.snapshot(None, id="shared")
    compact(buckets.source, [NAME], options=CompactionOptions(full=True))
    buckets.copy()
    for _ in range(3):
        with Database(buckets.source_store, clock=buckets.clock).kv(NAME) as again:
            again.put(b"unfolded", b"1")
            again.snapshot(None, id=f"shared-{again.lsn}")
    buckets.copy()
    buckets.check()
    with buckets.source.kv(NAME, mode="r") as source, buckets.target.kv(NAME, mode="r") as copied:
        assert [one.id for one in copied.snapshots()] == [one.id for one in source.snapshots()]
        assert copied._handle.manifest.writer_epoch == source._handle.manifest.writer_epoch
    with buckets.target.kv(NAME) as opened:
        opened.put(b"mine", b"1")


def test_an_object_that_a_fence_skips_is_copied(buckets: Buckets) -> None:
    with buckets.source.kv(NAME) as kv:
        kv.put(b"a", b"1")
        torn = log_key(NAME, (kv.lsn >> 20) + 1)
    buckets.source_store.inner.put_if_absent(torn, b"torn")
    with buckets.source.kv(NAME) as kv:
        kv.put(b"b", b"2")
    buckets.copy()
    buckets.check()
    assert buckets.pairs(buckets.target) == {b"a": b"1", b"b": b"2"}


def test_log_of_a_newer_version_does_not_come_into_an_older_one(buckets: Buckets) -> None:
    kv = buckets.source.kv(NAME)
    then = kv.put(b"a", b"1").lsn
    kv.put(b"b", b"2")
    _die_before_the_manifest(buckets)
    with pytest.raises(InvalidInputError, match="newer version than the one to copy"):
        buckets.copy(lsn=then)
    buckets.copy()
    buckets.check()


def test_a_past_version_is_copied_while_the_source_is_opened(buckets: Buckets) -> None:
    kv = buckets.source.kv(NAME)
    then = kv.put(b"a", b"1").lsn

    def reopen() -> None:
        for _ in range(3):
            with Database(buckets.source_store, clock=buckets.clock).kv(NAME) as again:
                again.put(b"c", b"3")

    # Its head was read, and the branch that holds the version is not made yet.
    buckets.source_store.once("list", "@copy-", reopen)
    buckets.copy(lsn=then)
    assert buckets.pairs(buckets.target) == {b"a": b"1"}
    buckets.check_sound()


def test_progress_counts_bytes(buckets: Buckets) -> None:
    fill(buckets.source)
    seen: list[PassProgress] = []
    done = copy_namespace(
        buckets.source.context(), buckets.target.context(), NAME, watch=seen.append
    )
    assert seen[-1].tasks_done == seen[-1].tasks == done.objects
    assert seen[-1].bytes_done == seen[-1].bytes == done.bytes


def test_copies_at_once_to_one_target_agree(buckets: Buckets) -> None:
    """Another one begins and ends while this one is under way."""
    fill(buckets.source)
    buckets.target_store.once("upload", "/segments/", buckets.copy)
    buckets.copy()
    buckets.check()
    with buckets.source.kv(NAME) as kv:
        assert kv.snapshots() == []
        kv.put(b"more", b"1")
    buckets.target_store.once("put_if_absent", "/manifest/", buckets.copy)
    buckets.copy()
    buckets.check()


def test_a_copy_does_not_go_back_behind_what_was_folded_since(buckets: Buckets) -> None:
    with buckets.source.kv(NAME, pitr_window="1d") as kv:
        old = kv.put(b"a", b"1").lsn
        kv.put(b"b", b"2")
        buckets.copy()
        kv.flush()
    with pytest.raises(InvalidInputError, match="is further on"):
        buckets.copy(lsn=old)
    buckets.check()


def test_snapshots_that_were_taken_of_a_copy_stay(buckets: Buckets) -> None:
    fill(buckets.source)
    buckets.copy()
    with buckets.target.kv(NAME, mode="r") as copied:
        copied.snapshot(None, id="here")
        before = dict(copied.items())
    with buckets.source.kv(NAME) as kv:
        kv.snapshot(None, id="there")
        kv.put(b"more", b"1")
        kv.flush()
    buckets.copy()
    buckets.check()
    with buckets.target.kv(NAME, mode="r") as copied:
        assert {one.id for one in copied.snapshots()} == {"here", "there"}
        assert dict(copied.at(snapshot="here").items()) == before
