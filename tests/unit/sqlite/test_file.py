"""The logic of one database file, as SQLite would call it: buffering, cutting, locks and commits."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from reef.clock import Clock
from reef.errors import (
    FencedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    ReefError,
    RetentionError,
    SnapshotExpiredError,
    UnavailableError,
)
from reef.pages import PageView
from reef.sqlite._database_file import EXCLUSIVE, NONE, RESERVED, SHARED, DatabaseFile
from reef.sqlite._database_version import TransactionPages, merged_transactions
from reef.sqlite._header import size_in_header
from reef.sqlite._shared import Busy, SharedStore
from reef.store import Store, open_store
from reef.testing import CountingStore, Fault, FaultyStore, ManualClock
from tests.support.engine.open_database import database
from tests.support.waiting import DEADLINE_SECONDS

PAGE = 512
LOG = "*/wal/*"


def shared_store(
    store: Store | None = None, *, clock: Clock | None = None, **settings: object
) -> SharedStore:
    options: dict[str, object] = {"max_staleness": 0, "cas_max_retries": 0, **settings}
    return SharedStore(database(store, clock=clock, **options), "app.db", page_size=PAGE)


def opened(shared: SharedStore) -> DatabaseFile:
    return DatabaseFile(shared, read_only=False)


def write(file: DatabaseFile, *writes: tuple[bytes, int], cut: int | None = None) -> None:
    file.lock(SHARED)
    file.lock(RESERVED)
    for data, offset in writes:
        file.write(data, offset)
    if cut is not None:
        file.truncate(cut)
    file.lock(EXCLUSIVE)


def put(file: DatabaseFile, *writes: tuple[bytes, int], cut: int | None = None) -> None:
    write(file, *writes, cut=cut)
    file.commit()
    file.unlock(NONE)


def two_writers(store: Store) -> tuple[DatabaseFile, DatabaseFile]:
    """Return the files of two processes: whichever writes fences the other."""
    return opened(shared_store(store)), opened(shared_store(store))


def leave_unknown(file: DatabaseFile, faults: FaultyStore, *armed: Fault) -> None:
    """Commit b"b" over b"a", without ever learning whether that is durable."""
    put(file, (b"a" * PAGE, 0))
    write(file, (b"b" * PAGE, 0))
    faults.arm(*armed)
    with pytest.raises(OutcomeUnknownError):
        file.commit()
    file.unlock(NONE)


def whole(file: DatabaseFile) -> bytes:
    file.lock(SHARED)
    try:
        return file.read(file.size(), 0)
    finally:
        file.unlock(NONE)


def test_what_is_written_is_seen_before_the_commit_by_its_own_file_only() -> None:
    shared = shared_store()
    one, other = opened(shared), opened(shared)
    put(one, (b"a" * 3 * PAGE, 0))
    write(one, (b"b" * 10, PAGE - 5))
    assert one.read(20, PAGE - 10) == b"a" * 5 + b"b" * 10 + b"a" * 5
    assert whole(other) == b"a" * 3 * PAGE
    one.commit()
    assert whole(other)[PAGE - 5 : PAGE + 5] == b"b" * 10


def test_a_transaction_reads_one_version() -> None:
    shared = shared_store()
    one, other = opened(shared), opened(shared)
    put(one, (b"a" * 4 * PAGE, 0))
    other.lock(SHARED)
    assert other.read(PAGE, 0) == b"a" * PAGE
    put(one, (b"b" * PAGE, 0), cut=2 * PAGE)
    assert other.size() == 4 * PAGE
    assert other.read(4 * PAGE, 0) == b"a" * 4 * PAGE
    other.unlock(NONE)
    assert whole(other) == b"b" * PAGE + b"a" * PAGE


def test_a_rollback_leaves_nothing() -> None:
    shared = shared_store()
    file = opened(shared)
    put(file, (b"a" * 2 * PAGE, 0))
    write(file, (b"b" * PAGE, 0), cut=PAGE)
    file.unlock(SHARED)
    assert file.read(2 * PAGE, 0) == b"a" * 2 * PAGE
    file.unlock(NONE)
    assert whole(file) == b"a" * 2 * PAGE


def test_what_was_cut_off_does_not_come_back() -> None:
    shared = shared_store()
    file = opened(shared)
    put(file, (b"a" * 4 * PAGE, 0))
    write(file)
    file.truncate(PAGE + 10)
    file.truncate(3 * PAGE)
    file.write(b"c", 4 * PAGE - 1)
    expected = b"a" * (PAGE + 10) + bytes(3 * PAGE - 11) + b"c"
    assert file.read(4 * PAGE, 0) == expected
    file.commit()
    file.unlock(NONE)
    assert whole(file) == expected
    assert whole(opened(shared_store(shared._db.store))) == expected


def test_reads_end_where_the_file_does() -> None:
    file = opened(shared_store())
    put(file, (b"a" * PAGE, 0))
    file.lock(SHARED)
    assert file.read(100, PAGE - 10) == b"a" * 10
    assert file.read(100, 5 * PAGE) == b""


def test_any_writes_and_cuts_are_those_of_a_plain_file() -> None:
    rng = random.Random(5)
    shared = shared_store()
    file = opened(shared)
    model = bytearray()
    for _ in range(150):
        before = bytes(model)
        write(file)
        for _ in range(rng.randrange(1, 6)):
            if rng.random() < 0.3:
                size = rng.randrange(8 * PAGE)
                file.truncate(size)
                del model[size:]
                model.extend(bytes(size - len(model)))
            else:
                data = rng.randbytes(rng.choice((1, 100, PAGE, 2 * PAGE + 7)))
                offset = rng.randrange(8 * PAGE)
                file.write(data, offset)
                model.extend(bytes(max(0, offset - len(model))))
                model[offset : offset + len(data)] = data
            assert file.size() == len(model)
            assert file.read(len(model), 0) == bytes(model)
        if rng.random() < 0.3:
            file.unlock(NONE)
            model = bytearray(before)
        else:
            size = -(-len(model) // PAGE) * PAGE  # a store ends with a page
            model.extend(bytes(size - len(model)))
            file.commit()
            file.unlock(NONE)
        assert whole(file) == bytes(model)
    assert whole(opened(shared_store(shared._db.store))) == bytes(model)


def test_the_header_says_where_a_file_of_smaller_pages_ends() -> None:
    header = bytearray(b"SQLite format 3\0" + bytes(PAGE - 16))
    header[16:18] = (128).to_bytes(2, "big")
    header[28:32] = (9).to_bytes(4, "big")
    assert size_in_header(bytes(header)) == 9 * 128
    shared = shared_store()
    file = opened(shared)
    put(file, (bytes(header), 0), (b"x" * 640, PAGE))
    assert opened(shared).shared.size_of(shared.begin()) == 9 * 128


def test_one_writes_at_a_time() -> None:
    shared = shared_store()
    one, other = opened(shared), opened(shared)
    write(one, (b"a" * PAGE, 0))
    other.lock(SHARED)
    with pytest.raises(Busy, match="another connection"):
        other.lock(RESERVED)
    assert other.is_reserved()
    one.commit()
    one.unlock(NONE)
    with pytest.raises(Busy, match="has changed"):  # what it has read is not the newest any more
        other.lock(RESERVED)
    assert other.level == SHARED
    other.unlock(NONE)
    put(other, (b"b" * PAGE, 0))
    assert whole(one) == b"b" * PAGE


def test_a_commit_is_one_put_and_reading_it_again_asks_for_nothing() -> None:
    store = CountingStore(open_store("memory://"))
    shared = shared_store(store, max_staleness=60)
    file = opened(shared)
    put(file, (b"a" * PAGE, 0))
    before = store.counts
    put(file, (b"b" * PAGE, 0), (b"c" * PAGE, PAGE))
    assert whole(file) == b"b" * PAGE + b"c" * PAGE
    assert (store.counts - before).requests == {"put_if_absent": 1}


def test_a_transaction_that_writes_nothing_sends_nothing() -> None:
    store = CountingStore(open_store("memory://"))
    shared = shared_store(store, max_staleness=60)
    file = opened(shared)
    put(file, (b"a" * PAGE, 0))
    before = store.counts
    put(file)
    assert store.counts == before


def test_a_refused_commit_leaves_what_was_there() -> None:
    faults = FaultyStore(open_store("memory://"))
    shared = shared_store(faults)
    file = opened(shared)
    put(file, (b"a" * PAGE, 0))
    write(file, (b"b" * PAGE, 0))
    faults.arm(Fault("denied", on="put_if_absent", key=LOG))
    with pytest.raises(ReefError, match="403"):
        file.commit()
    with pytest.raises(UnavailableError, match=r"a commit to .* failed"):
        file.read(PAGE, 0)
    file.unlock(NONE)
    assert whole(file) == b"a" * PAGE
    put(file, (b"c" * PAGE, 0))
    assert whole(file) == b"c" * PAGE


@pytest.mark.parametrize("landed", [True, False])
def test_an_unknown_outcome_is_settled_before_anything_is_read(landed: bool) -> None:
    faults = FaultyStore(open_store("memory://"))
    shared = shared_store(faults)
    file, other = opened(shared), opened(shared)
    if landed:
        lost = Fault("reply_lost", on="put_if_absent", key=LOG)
        leave_unknown(file, faults, lost, Fault("error_before", on="get", key=LOG, times=2))
    else:
        leave_unknown(file, faults, Fault("error_before", on="put_if_absent", key=LOG))
    faults.arm(Fault("error_before", on="list", times=0), Fault("error_before", on="get", times=0))
    with pytest.raises(UnavailableError):
        other.lock(SHARED)
    faults.disarm()
    assert whole(other) == whole(file) == (b"b" if landed else b"a") * PAGE
    put(file, (b"c" * PAGE, 0))
    assert whole(opened(shared_store(shared._db.store))) == b"c" * PAGE


def test_what_lands_after_it_was_settled_does_not_count() -> None:
    faults = FaultyStore(open_store("memory://"))
    file = opened(shared_store(faults))
    leave_unknown(file, faults, Fault("lands_late", on="put_if_absent", key=LOG))
    assert whole(file) == b"a" * PAGE
    assert [type(answer).__name__ for answer in faults.land()] == ["AlreadyExistsError"]
    assert whole(file) == whole(opened(shared_store(faults))) == b"a" * PAGE


def test_a_fenced_writer_reads_on_and_may_write_again() -> None:
    file, rival = two_writers(open_store("memory://"))
    put(file, (b"a" * PAGE, 0))
    write(file, (b"b" * PAGE, 0))
    put(rival, (b"r" * PAGE, 0))
    with pytest.raises(FencedError):
        file.commit()
    file.unlock(NONE)
    assert whole(file) == b"r" * PAGE
    put(file, (b"c" * PAGE, 0))
    assert whole(rival) == b"c" * PAGE
    assert whole(file) == b"c" * PAGE


def test_a_writer_that_is_idle_finds_out_that_it_was_superseded() -> None:
    file, rival = two_writers(open_store("memory://"))
    put(file, (b"a" * PAGE, 0))
    put(rival, (b"r" * PAGE, 0))
    assert whole(file) == b"r" * PAGE


def test_a_reader_turned_writer_does_not_write_over_what_it_has_not_read() -> None:
    file, rival = two_writers(open_store("memory://"))
    put(rival, (b"a" * PAGE, 0))
    file.lock(SHARED)
    put(rival, (b"b" * PAGE, 0))
    with pytest.raises(Busy):
        file.lock(RESERVED)
    file.unlock(NONE)
    put(file, (b"c" * PAGE, PAGE))
    assert whole(rival) == b"b" * PAGE + b"c" * PAGE


def test_caches_of_another_version_are_dropped_even_if_the_header_looks_the_same() -> None:
    shared = shared_store()
    file, other = opened(shared), opened(shared)
    put(file, (b"h" * PAGE, 0), (b"a" * PAGE, PAGE))
    whole(other)
    put(file, (b"b" * PAGE, PAGE))
    other.lock(SHARED)
    assert other.read(16, 24) == b"\xff" * 16
    assert other.read(16, 24) == b"h" * 16  # once is enough
    other.unlock(NONE)
    other.lock(SHARED)
    assert other.read(16, 24) == b"h" * 16


def test_a_file_at_a_version_stays_there_and_is_not_written() -> None:
    shared = shared_store()
    file = opened(shared)
    put(file, (b"a" * PAGE, 0))
    then = file.lsn
    put(file, (b"b" * 2 * PAGE, 0))
    old = DatabaseFile(shared, lsn=then, read_only=False)
    assert old.is_read_only
    assert whole(old) == b"a" * PAGE
    old.lock(SHARED)
    with pytest.raises(InvalidInputError):
        old.lock(RESERVED)


def test_a_writer_that_was_superseded_finds_the_versions_of_others() -> None:
    store = open_store("memory://")
    mine = shared_store(store, max_staleness=3600)
    file, rival = opened(mine), opened(shared_store(store))
    put(file, (b"a" * PAGE, 0))
    put(rival, (b"r" * PAGE, 0))
    assert whole(DatabaseFile(mine, lsn=rival.lsn, read_only=True)) == b"r" * PAGE
    with pytest.raises(UnavailableError, match="not exist yet"):
        DatabaseFile(mine, lsn=rival.lsn + 1, read_only=True)


@pytest.mark.parametrize("error", [SnapshotExpiredError, RetentionError])
def test_a_read_of_an_expired_version_gets_a_newer_one_next(
    monkeypatch: pytest.MonkeyPatch, error: type[ReefError]
) -> None:
    def expired(*_: object) -> bytes:
        raise error("it was collected")

    store = open_store("memory://")
    writer = opened(shared_store(store))
    put(writer, (b"a" * PAGE, 0))
    reader = opened(shared_store(store, max_staleness=3600))
    put(writer, (b"b" * PAGE, 0))
    monkeypatch.setattr(PageView, "get_page", expired)
    with pytest.raises(error):
        whole(reader)
    monkeypatch.undo()
    assert whole(reader) == b"b" * PAGE


@pytest.mark.parametrize("mode", ["wal", "WAL", "off", "'OFF'", "w", "oF"])
def test_journals_that_cannot_be_are_refused(mode: str) -> None:
    file = opened(shared_store())
    with pytest.raises(InvalidInputError, match="journal_mode"):
        file.pragma("journal_mode", mode)
    assert file.pragma("journal_mode", "memory") is None


def test_ctrl_c_while_locking_does_not_leave_it_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = shared_store()
    file, other = opened(shared), opened(shared)
    reserve = shared.reserve

    def interrupted(*args: Any) -> None:
        reserve(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(shared, "reserve", interrupted)
    file.lock(SHARED)
    with pytest.raises(KeyboardInterrupt):
        file.lock(RESERVED)
    file.unlock(NONE)
    monkeypatch.undo()
    put(other, (b"a" * PAGE, 0))


def test_a_file_can_be_closed_while_its_thread_has_the_lock() -> None:
    shared = shared_store()
    file = opened(shared)

    def close() -> None:  # as the collector does, at any moment
        write(file, (b"a" * PAGE, 0))
        with shared._cond:
            file.close()

    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    put(opened(shared), (b"b" * PAGE, 0))


@pytest.mark.parametrize("page_size", [PAGE // 2, PAGE, 4 * PAGE])
def test_a_transaction_goes_on_reading_what_was_there_whatever_has_its_name_now(
    page_size: int,
) -> None:
    store = open_store("memory://")
    shared = shared_store(store)
    file = opened(shared)
    put(file, (b"a" * 3 * PAGE, 0))
    fixed = DatabaseFile(shared, lsn=file.lsn, read_only=True)
    file.lock(SHARED)
    with database(store) as db:
        db.drop("app.db")
        with db.pages("app.db", page_size=page_size) as pages:
            pages.write({0: b"b" * page_size, 1: b"b" * page_size})
    shared.cache.clear()
    assert whole(opened(shared)) == b"b" * 2 * page_size
    for one in (file, fixed):
        assert (one.size(), one.read(3 * PAGE, 0)) == (3 * PAGE, b"a" * 3 * PAGE)


def test_what_was_dropped_is_not_served_from_memory() -> None:
    store = open_store("memory://")
    file = opened(shared_store(store))
    put(file, (b"a" * PAGE, 0))
    with database(store) as db:
        db.drop("app.db")
    for _ in range(3):
        with pytest.raises(NotFoundError):
            file.lock(SHARED)


def test_a_reader_goes_on_to_the_next_database_of_that_name() -> None:
    store, clock = open_store("memory://"), ManualClock()
    put(opened(shared_store(store, clock=clock, gc_grace=60)), (b"a" * PAGE, 0))
    reader = opened(shared_store(store, clock=clock))
    assert whole(reader) == b"a" * PAGE
    with database(store) as db:
        db.drop("app.db")
    clock.advance(31)
    for _ in range(2):
        with pytest.raises(NotFoundError):
            reader.lock(SHARED)
    put(opened(shared_store(store, clock=clock)), (b"b" * 2 * PAGE, 0))
    assert whole(reader)[PAGE:] == b"b" * PAGE  # before, the number of the schema is another
    with database(store) as db:
        db.drop("app.db")
    put(opened(shared_store(store, clock=clock)), (b"c" * 3 * PAGE, 0))
    clock.advance(86400)
    assert whole(reader)[PAGE:] == b"c" * 2 * PAGE


def test_merging_commits_is_doing_one_after_the_other() -> None:
    rng = random.Random(3)
    for _ in range(200):
        base = {i: bytes([rng.randrange(1, 256)]) for i in range(rng.randrange(6))}
        model, n_pages = dict(base), len(base)
        commits = []
        for _ in range(rng.randrange(1, 5)):
            n_pages = rng.randrange(8)
            pages = {i: rng.randbytes(1) for i in range(n_pages) if rng.random() < 0.4}
            model = {i: model.get(i, b"\0") for i in range(n_pages)} | pages
            commits.append(TransactionPages(pages, n_pages))
        one = merged_transactions(commits, len(base), b"\0")
        found = {i: base.get(i, b"\0") for i in range(one.n_pages)} | dict(one.pages)
        assert found == model
        assert one.n_pages == n_pages


def test_an_epoch_without_its_fence_settles_nothing() -> None:
    faults = FaultyStore(open_store("memory://"))
    file = opened(shared_store(faults))
    leave_unknown(file, faults, Fault("lands_late", on="put_if_absent", key=LOG))
    faults.arm(Fault("error_before", on="put_if_absent", key=LOG))  # the fence, not the manifest
    with pytest.raises(OutcomeUnknownError):
        file.lock(SHARED)
    assert whole(file) == b"a" * PAGE
    faults.land()
    assert whole(file) == whole(opened(shared_store(faults))) == b"a" * PAGE


def test_what_another_writer_has_settled_is_not_fenced_again() -> None:
    store = open_store("memory://")
    faults = FaultyStore(store)
    file, rival = opened(shared_store(faults)), opened(shared_store(store))
    leave_unknown(file, faults, Fault("error_before", on="put_if_absent", key=LOG))
    write(rival, (b"r" * PAGE, 0))
    assert whole(file) == b"a" * PAGE
    rival.commit()  # it was left in peace
    rival.unlock(NONE)
    assert whole(file) == b"r" * PAGE
