"""Commits of pages: several versions in one log object, large ones, and writers that lose."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from reef.database import Database
from reef.doctor import verify
from reef.errors import (
    FencedError,
    InvalidInputError,
    NotWrittenError,
    OutcomeUnknownError,
    UnavailableError,
)
from reef.format import LogKind, LogObject
from reef.gc import collect
from reef.log import Damaged, LogReader
from reef.manifest import open_writer
from reef.pages import Pages, WalRecord
from reef.pages._page_rows import page_rows
from reef.store import MemoryStore
from reef.testing import ManualClock, Operation, WrapperStore
from tests.support.engine.interrupts import interrupt_next_write
from tests.support.engine.open_handles import commit_queue, handle_of
from tests.support.waiting import DEADLINE_SECONDS

T = TypeVar("T")

SIZE = 16
NAME = "main.db"


def page(text: str) -> bytes:
    return text.encode().ljust(SIZE, b".")


class Bucket(WrapperStore):
    """A store that notes what is asked, and fails or calls somebody where a test wants it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__(MemoryStore(clock=self.clock))
        self.requests: list[tuple[Operation, str]] = []
        self.before: Callable[[Operation, str], None] = lambda operation, key: None
        self.after: Callable[[Operation, str], None] = lambda operation, key: None

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        self.requests.append((operation, key))
        self.before(operation, key)
        answer = call()
        self.after(operation, key)
        return answer

    def puts(self, folder: str) -> int:
        """Return how many objects were put into a folder since the last call of `forget`."""
        kinds = ("put_if_absent", "upload")
        return sum(op in kinds and f"/{folder}/" in key for op, key in self.requests)

    def forget(self) -> None:
        self.requests.clear()

    def objects(self, folder: str) -> int:
        return sum(1 for _ in self.inner.list(f"namespaces/{NAME}/{folder}/"))

    def open(self, **settings: Any) -> Database:
        arguments = {
            "maintenance": "off",
            "flush_interval": 0,
            "gc_grace": 900,
            "retained_generations": 1,
            **settings,
        }
        return Database(self, clock=self.clock, rng=random.Random(len(self.requests)), **arguments)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def caller(bucket: Bucket, **settings: Any) -> Pages:
    db = bucket.open(**settings)
    return db.pages(NAME, page_size=SIZE, lsn_policy="caller")


def records(*triples: tuple[int, int | None, str]) -> list[WalRecord]:
    return [WalRecord(page_id, lsn, page(text)) for page_id, lsn, text in triples]


# Versions from the caller.


def test_several_versions_are_one_log_object(bucket: Bucket) -> None:
    store = caller(bucket)
    bucket.forget()
    assert store.append_wal(records((1, 10, "a"), (2, 10, "b"), (1, 12, "c"), (3, 15, "d"))) == 15
    assert [operation for operation, _ in bucket.requests] == ["put_if_absent"]
    expected = {9: [None] * 3, 10: "ab", 11: "ab", 12: "cb", 14: "cb", 15: "cbd"}
    for lsn, texts in expected.items():
        if lsn <= 15:
            found = store.get_pages([1, 2, 3], lsn)
            assert found == [text and page(text) for text in [*texts, None, None][:3]]
    assert [store.at(lsn=lsn).n_pages for lsn in (10, 12, 15)] == [3, 3, 4]
    assert [record.lsn for record in logged(bucket, 2).records] == [10, 12, 15]
    again = bucket.open().pages(NAME)
    assert (again.lsn_policy, again.head) == ("caller", 15)
    assert again.get_pages([1, 2, 3], 12) == [page("c"), page("b"), None]


def logged(bucket: Bucket, slot: int) -> LogObject:
    data = bucket.inner.get(f"namespaces/{NAME}/wal/{slot:020}.wal")
    found = LogReader(bucket, NAME, "caller").decode(slot, data)
    assert not isinstance(found, Damaged)
    return found[0]


def test_versions_that_do_not_rise_are_refused_and_nothing_is_left_of_them(bucket: Bucket) -> None:
    store = caller(bucket)
    store.append_wal(records((1, 10, "a")))
    slots = bucket.objects("wal")
    for wrong in (
        records((1, 11, "x"), (2, 11, "x"), (3, 11, "x"), (1, 10, "x")),
        records((1, 11, "x"), (1, None, "x")),
        records((1, 10, "x"), (2, 12, "x")),
        records((1, 9, "x")),
        records((1, None, "x")),
        records((1, 11, "x"), (2, 1 << 63, "x")),
    ):
        with pytest.raises(InvalidInputError, match="lsn"):
            store.append_wal(wrong)
    with pytest.raises(InvalidInputError, match="of several LSNs"):
        store.append_wal(records((1, 11, "x"), (1, 12, "x")), idempotency_key="k")
    assert bucket.objects("wal") == slots
    assert (store.head, store.n_pages, store.get_pages([1, 2])) == (10, 2, [page("a"), None])
    assert store.append_wal(records((2, 11, "b"))) == 11  # not taken by what was refused
    assert store.get_pages([1, 2]) == [page("a"), page("b")]


def test_a_version_of_the_caller_is_one_though_it_changes_nothing(bucket: Bucket) -> None:
    store = caller(bucket)
    store.append_wal(records((1, 10, "a")))
    assert store.truncate(2, lsn=20) == store.head == 20
    assert store.write({}, lsn=30) == store.head == 30
    for lsn in (5, 30):
        with pytest.raises(InvalidInputError, match="lsn"):
            store.truncate(2, lsn=lsn)
        with pytest.raises(InvalidInputError, match="lsn"):
            store.write({}, lsn=lsn)
    store.close()
    again = bucket.open().pages(NAME)
    assert (again.head, again.n_pages, again.at(lsn=25).get_page(1)) == (30, 2, page("a"))
    assert again.append_wal([]) == again.head


@pytest.mark.parametrize("lsn", [11.5, True, "11", -1])
def test_a_version_that_is_no_number_is_refused_before_it_meets_others(
    bucket: Bucket, lsn: Any
) -> None:
    store = caller(bucket)
    with pytest.raises(InvalidInputError, match="lsn"):
        store.write({1: page("a")}, lsn=lsn)
    with pytest.raises(InvalidInputError, match="lsn"):
        store.append_wal([WalRecord(1, 10, page("a")), WalRecord(1, lsn, page("b"))])
    assert store.head == 0


def test_a_store_of_the_kernel_gives_versions_itself(bucket: Bucket) -> None:
    store = bucket.open().pages(NAME, page_size=SIZE)
    with pytest.raises(InvalidInputError, match="lsn"):
        store.append_wal(records((1, 10, "a")))
    with pytest.raises(InvalidInputError, match="lsn"):
        store.append_wal(records((1, None, "a"), (1, 12, "a")))


def test_versions_and_cuts_go_together(bucket: Bucket) -> None:
    store = caller(bucket)
    store.append_wal(records(*((i, 10, f"{i}") for i in range(8))))
    bucket.forget()
    store.append_wal(records((9, 11, "x"), (1, 12, "y")), n_pages=3)
    assert bucket.puts("wal") == 1
    assert [store.at(lsn=lsn).n_pages for lsn in (10, 11, 12)] == [8, 10, 3]
    assert store.get_pages([1, 2, 5, 9], 11) == [page("1"), page("2"), page("5"), page("x")]
    assert store.get_pages([1, 2, 5, 9]) == [page("y"), page("2"), None, None]
    assert store.truncate(1, lsn=20) == 20
    assert store.get_pages([0, 1]) == [page("0"), None]


def test_a_thin_store_is_cut_behind_versions_of_the_same_commit(bucket: Bucket) -> None:
    store = caller(bucket)
    store.append_wal(records((0, 1, "a"), (6_000_000, 2, "b")))
    store.append_wal(
        records((6_000_000, 10, "c"), (5_000_000, 10, "d"), (7_000_000, 11, "e"), (1, 12, "f")),
        n_pages=2,
    )
    pages = [0, 1, 5_000_000, 6_000_000, 7_000_000]
    assert store.get_pages(pages, 11) == [page("a"), None, page("d"), page("c"), page("e")]
    assert store.get_pages(pages) == [page("a"), page("f"), None, None, None]
    assert [store.at(lsn=lsn).n_pages for lsn in (11, 12)] == [7_000_001, 2]


def test_many_versions_share_one_object_whatever_a_group_may_hold(bucket: Bucket) -> None:
    store = caller(bucket, group_commit_max_batches=4)
    bucket.forget()
    store.append_wal(records(*((lsn % 5, lsn, f"{lsn}") for lsn in range(1, 41))))
    assert bucket.puts("wal") == 1
    assert [store.get_page(3, lsn) for lsn in (2, 3, 7, 8, 40)] == [
        None,
        *(page(f"{lsn}") for lsn in (3, 3, 8, 38)),
    ]


def test_versions_that_no_log_object_holds_are_refused(bucket: Bucket) -> None:
    store = caller(bucket, log_segment_max_bytes=8192)
    wide = records(*((i, lsn, f"{i}") for lsn in (1, 2) for i in range(200)))
    with pytest.raises(InvalidInputError, match="split"):
        store.append_wal(wide)
    many = records(*((1, lsn, f"{lsn}") for lsn in range(1, 10)))  # small, but framed each
    with pytest.raises(InvalidInputError, match="log_segment_max_bytes"):
        store.append_wal(many)
    assert store.head == 0
    assert store.append_wal(many[:3]) == 3


# Large commits.


def large(count: int, text: str = "") -> dict[int, bytes]:
    return {i: page(f"{text}{i}") for i in range(count)}


def test_a_page_that_just_fits_is_committed_one_way_or_the_other() -> None:
    for spare in range(0, 80, 3):
        bucket = Bucket()
        store = bucket.open(log_segment_max_bytes=5120 + spare).pages(NAME)
        store.write({1: bytes(4096)})  # and the row of the extent
        assert (store.n_pages, store.get_page(1)) == (2, bytes(4096))


def test_a_large_commit_is_uploaded_piece_by_piece(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bucket.open(log_segment_max_bytes=8192, delta_layer_target_bytes=4096).pages(
        NAME, page_size=SIZE
    )
    made: list[int] = []
    most = 0

    def noted(pages: dict[int, bytes], page_size: int) -> Any:
        made.append(len(pages))
        return page_rows(pages, page_size)

    def uploaded(operation: Operation, key: str) -> None:
        nonlocal most
        if operation == "upload":
            most = max(most, sum(made))
            made.clear()

    monkeypatch.setattr("reef.pages._page_commit.page_rows", noted)
    bucket.before = uploaded
    store.write(large(3000))
    assert 0 < most < 600
    assert store.get_pages(range(3000)) == [*large(3000).values()]


@pytest.mark.slow
def test_a_dense_store_is_cut_without_reading_what_is_cut_off(bucket: Bucket) -> None:
    store = bucket.open().pages(NAME, page_size=SIZE)
    store.write(large(70_000))
    store.flush()
    store = bucket.open().pages(NAME)
    bucket.forget()
    store.truncate(3)
    assert sum(operation == "get_range" for operation, _ in bucket.requests) <= 2
    assert (store.n_pages, store.get_pages([2, 3, 69_999])) == (3, [page("2"), None, None])


@pytest.mark.parametrize("policy", ["kernel", "caller"])
def test_what_no_log_object_holds_is_one_commit_all_the_same(bucket: Bucket, policy: str) -> None:
    db = bucket.open(log_segment_max_bytes=8192, delta_layer_target_bytes=16384)
    store = db.pages(NAME, page_size=SIZE, lsn_policy=policy)
    given: Callable[[int], int | None] = lambda lsn: lsn if policy == "caller" else None  # noqa: E731
    store.write({0: page("old"), 5000: page("far")}, lsn=given(1))
    before = store.head
    bucket.forget()
    lsn = store.write(large(3000), lsn=given(2))
    assert (bucket.puts("wal"), bucket.puts("manifest")) == (1, 0)
    assert bucket.puts("segments") > 1
    epoch = store._writing().epoch
    assert all(key.endswith(f"-e{epoch}.seg") for op, key in bucket.requests if op == "upload")
    assert (store.head, store.n_pages) == (lsn, 5001)
    assert store.get_pages(range(3001)) == [*large(3000).values(), None]
    assert store.get_pages([0, 1], before) == [page("old"), None]
    cut = store.write(large(2500, "x"), n_pages=2600, lsn=given(3))
    assert (store.n_pages, store.get_page(5000), store.get_page(5000, lsn)) == (
        2600,
        None,
        page("far"),
    )
    assert store.get_pages(range(2499, 2602)) == [
        page("x2499"),
        *(page(f"{i}") for i in range(2500, 2600)),
        None,
        None,
    ]
    store.flush()
    store.write({7: page("new")}, lsn=given(4))
    for again in (store, bucket.open().pages(NAME, mode="r")):
        assert again.get_pages([7, 8], cut) == [page("x7"), page("x8")]
        assert again.get_pages([7, 2599, 2600]) == [page("new"), page("2599"), None]
        assert again.at(lsn=lsn).n_pages == 5001
    assert verify(db.context(), NAME, deep=True).problems == ()


def test_a_large_commit_is_repeated_by_its_key(bucket: Bucket) -> None:
    store = bucket.open(log_segment_max_bytes=8192).pages(NAME, page_size=SIZE)
    first = store.write(large(3000), idempotency_key="k")
    segments = bucket.objects("segments")
    assert store.write(large(3000), idempotency_key="k") == first
    again = bucket.open(log_segment_max_bytes=8192).pages(NAME)
    assert again.write(large(3000), idempotency_key="k") == first
    assert bucket.objects("segments") == segments


def test_what_a_large_commit_left_is_spared_by_collection_until_there_is_another_writer(
    bucket: Bucket,
) -> None:
    db = bucket.open(log_segment_max_bytes=8192)
    store = db.pages(NAME, page_size=SIZE)
    store.write({0: page("a")})

    def fail(operation: Operation, key: str) -> None:
        if operation == "put_if_absent" and "/wal/" in key:
            raise NotWrittenError("no")

    bucket.before = fail
    with pytest.raises(NotWrittenError):
        store.write(large(3000))
    bucket.before = lambda operation, key: None
    assert bucket.objects("segments") == 1
    assert (store.n_pages, store.get_page(1)) == (1, None)

    def gc() -> None:
        for _ in range(3):
            bucket.clock.advance(10_000)
            context = db.context()
            chain = context.chain(NAME)
            chain.publish(lambda head: head.manifest)  # type: ignore[union-attr]
            collect(
                chain, context.store, settings=context.settings, clock=context.clock, apply=True
            )

    gc()
    (left,) = bucket.inner.list(f"namespaces/{NAME}/segments/")
    other = bucket.open().pages(NAME)
    other.write({0: page("b")})
    other.flush()  # behind its fences: nobody can attach anything of the epoch before
    gc()
    (flushed,) = bucket.inner.list(f"namespaces/{NAME}/segments/")
    assert flushed.key != left.key
    assert (other.n_pages, other.get_pages([0, 1])) == (1, [page("b"), None])


def test_a_large_commit_whose_upload_fails_was_not_made(bucket: Bucket) -> None:
    store = bucket.open(log_segment_max_bytes=8192).pages(NAME, page_size=SIZE)

    def fail(operation: Operation, key: str) -> None:
        if operation == "upload":
            raise UnavailableError("no")

    bucket.before = fail
    with pytest.raises(NotWrittenError, match="nothing was committed"):
        store.write(large(3000))
    bucket.before = lambda operation, key: None
    assert (store.head, store.n_pages) == (0, 0)
    assert store.write(large(3000)) == store.head
    assert store.n_pages == 3000


# Losing.


def test_a_fenced_writer_is_told_how_far_it_came(bucket: Bucket) -> None:
    store = caller(bucket)
    acked = store.append_wal(records((1, 10, "a"), (2, 11, "b")))
    rival = bucket.open().pages(NAME)
    for _ in range(2):
        with pytest.raises(FencedError) as caught:
            store.append_wal(records((1, 12, "c"), (2, 13, "d")))
        assert caught.value.durable_lsn == acked == 11
    with pytest.raises(FencedError) as caught:
        store.write(large(2), n_pages=2, lsn=20)
    assert caught.value.durable_lsn == 11
    assert rival.head == 11
    assert rival.get_pages([1, 2]) == store.get_pages([1, 2]) == [page("a"), page("b")]
    assert rival.append_wal(records((1, 12, "e"))) == 12


def test_a_writer_fenced_within_a_batch_commits_all_of_it_or_nothing(
    bucket: Bucket,
) -> None:
    store = caller(bucket)
    store.append_wal(records((1, 10, "a")))
    rivals: list[Pages] = []

    def take_over(operation: Operation, key: str) -> None:
        if operation == "put_if_absent" and "/wal/" in key and not rivals:
            bucket.before = lambda operation, key: None
            rivals.append(bucket.open().pages(NAME))

    bucket.before = take_over
    with pytest.raises(FencedError) as caught:
        store.append_wal(records((1, 11, "b"), (2, 12, "c"), (3, 13, "d")))
    assert caught.value.durable_lsn == 10
    (rival,) = rivals
    assert (rival.head, rival.get_pages([1, 2, 3])) == (10, [page("a"), None, None])
    # The other way round: its object was there before the fence, but nobody could tell it so.
    rivals.clear()

    def take_over_late(operation: Operation, key: str) -> None:
        if operation == "put_if_absent" and "/wal/" in key and not rivals:
            bucket.after = lambda operation, key: None
            rivals.append(bucket.open().pages(NAME))

    bucket.after = take_over_late
    assert rival.append_wal(records((1, 11, "b"), (2, 12, "c"), (3, 13, "d"))) == 13
    (last,) = rivals
    assert (last.head, last.get_page(3)) == (13, page("d"))
    with pytest.raises(FencedError) as caught:
        rival.append_wal(records((1, 14, "e")))
    assert caught.value.durable_lsn == 13


def test_an_unknown_outcome_is_found_out_before_the_next_commit(bucket: Bucket) -> None:
    store = caller(bucket, cas_max_retries=0)

    def lose_the_reply(operation: Operation, key: str) -> None:
        if operation == "put_if_absent" and "/wal/" in key:
            bucket.before = down
            raise UnavailableError("the reply was lost")

    def down(operation: Operation, key: str) -> None:
        raise UnavailableError("down")

    bucket.after = lose_the_reply
    with pytest.raises(OutcomeUnknownError):
        store.append_wal(records((1, 10, "a"), (9, 11, "b")))
    assert (store.head, store.get_page(1)) == (0, None)
    with pytest.raises(NotWrittenError):
        store.truncate(4, lsn=12)
    bucket.before = bucket.after = lambda operation, key: None
    assert store.truncate(4, lsn=12) == 12
    assert store.get_page(9, 11) == page("b")
    assert (store.n_pages, store.get_pages([1, 9])) == (4, [page("a"), None])
    assert [logged(bucket, slot).kind for slot in (2, 3)] == [LogKind.DATA] * 2


@pytest.mark.parametrize("is_large", [False, True])
def test_what_an_interrupted_caller_left_is_cut_off_too(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    db = bucket.open(log_segment_max_bytes=8192)
    store = db.pages(NAME, page_size=SIZE)
    store.write(large(10))
    interrupt_next_write(monkeypatch, db)
    with pytest.raises(KeyboardInterrupt):
        store.write(large(3000) if is_large else {100: page("x")})
    store.truncate(5)
    for one in (store, bucket.open().pages(NAME, mode="r")):
        assert (one.n_pages, one.get_pages([4, 5, 100])) == (5, [page("4"), None, None])
    store.write({200: page("y")})
    assert store.get_page(100) is None


def test_a_cut_that_cannot_learn_what_it_replaces_was_not_made(bucket: Bucket) -> None:
    store = bucket.open(block_cache_bytes=0).pages(NAME, page_size=SIZE)
    head = store.write(large(10))
    store.flush()

    def down(operation: Operation, key: str) -> None:
        if operation == "get_range":
            raise UnavailableError("down")

    bucket.before = down
    with pytest.raises(NotWrittenError, match="nothing was written"):
        store.truncate(3)
    bucket.before = lambda operation, key: None
    assert (store.head, store.n_pages) == (head, 10)
    assert store.truncate(3) == store.head > head


def test_a_batch_that_cannot_be_resolved_leaves_nothing_behind(bucket: Bucket) -> None:
    """Whichever read fails: before the lock is taken, or when half of it had joined."""
    store = caller(bucket, block_cache_bytes=0)
    store.append_wal(records((1, 10, "a"), (9, 11, "b")))
    store.flush()
    failed = []
    for nth in range(1, 12):
        left = nth

        def fail(operation: Operation, key: str) -> None:
            nonlocal left
            left -= operation == "get_range"
            if operation == "get_range" and not left:
                raise UnavailableError("no")

        head, slots = store.head, bucket.objects("wal")
        bucket.before = fail
        try:
            store.append_wal(records((1, head + 1, "c"), (2, head + 2, "d")))
        except NotWrittenError:
            failed.append(nth)
            bucket.before = lambda operation, key: None
            assert (store.head, bucket.objects("wal")) == (head, slots)
            assert handle_of(store).tail.memtable.rows == 0
            assert store.get_pages([1, 2]) == [page("a"), None]
        else:
            break
    bucket.before = lambda operation, key: None
    assert len(failed) >= 4
    assert (store.head, bucket.objects("wal")) == (13, slots + 1)
    assert store.get_pages([1, 2]) == [page("c"), page("d")]


def test_a_lone_caller_of_many_versions_is_not_taken_for_many(bucket: Bucket) -> None:
    store = caller(bucket)
    store.append_wal(records(*((1, lsn, f"{lsn}") for lsn in range(1, 50))))
    assert commit_queue(store).callers_expected == 1  # so that it never waits for company


def test_of_batches_in_flight_those_below_the_lost_slot_are_durable_and_no_other(
    bucket: Bucket,
) -> None:
    """Two objects are under way at once; a rival's fence takes the slot of the second."""
    db = bucket.open(max_parallel_writes=2, group_commit_max_batches=1)
    store = db.pages(NAME, page_size=SIZE)
    acked = store.write({0: page("a")})
    arrived = threading.Semaphore(0)
    first_may_go, second_may_go = threading.Event(), threading.Event()
    gates = [first_may_go, second_may_go]
    slots: list[str] = []

    def hold(operation: Operation, key: str) -> None:
        if operation == "put_if_absent" and "/wal/" in key and len(slots) < 2:
            slots.append(key)
            gate = gates[len(slots) - 1]
            arrived.release()
            assert gate.wait(DEADLINE_SECONDS)

    bucket.before = hold
    told: dict[str, int | FencedError] = {}

    def write(text: str) -> None:
        try:
            told[text] = store.write({1: page(text)})
        except FencedError as error:
            told[text] = error

    threads = []
    for text in ("b", "c"):
        threads.append(threading.Thread(target=write, args=(text,)))
        threads[-1].start()
        assert arrived.acquire(timeout=DEADLINE_SECONDS)
    first_may_go.set()
    threads[0].join(DEADLINE_SECONDS)
    durable = told["b"]
    assert isinstance(durable, int)
    assert durable > acked
    rival = bucket.open().pages(NAME)  # its fence goes into the slot that the second has in mind
    second_may_go.set()
    threads[1].join(DEADLINE_SECONDS)
    error = told["c"]
    assert isinstance(error, FencedError)
    assert error.durable_lsn == durable == rival.head
    assert rival.get_page(1) == page("b")


def test_an_epoch_whose_fences_do_not_stand_yet_costs_the_writer_before_nothing(
    bucket: Bucket,
) -> None:
    """A rival died between its epoch and its fences; collection runs while a large commit is sent."""
    db = bucket.open(log_segment_max_bytes=8192)
    store = db.pages(NAME, page_size=SIZE)
    store.write({0: page("a")})

    def meanwhile(operation: Operation, key: str) -> None:
        if operation == "put_if_absent" and "/wal/" in key:
            bucket.before = lambda operation, key: None
            context = db.context()
            chain = context.chain(NAME)
            chain.publish(lambda head: open_writer(head.manifest))  # type: ignore[union-attr]
            for _ in range(3):
                bucket.clock.advance(10_000)
                chain.publish(lambda head: head.manifest)  # type: ignore[union-attr]
                collect(
                    chain, context.store, settings=context.settings, clock=context.clock, apply=True
                )

    bucket.before = meanwhile
    store.write(large(3000))  # acknowledged
    assert bucket.open().pages(NAME, mode="r").get_page(5) == page("5")
