"""The face `pages`: what is written is read back, at every version, and nothing else."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reef
from reef.database import Database
from reef.errors import (
    ClosedError,
    IdempotencyError,
    InvalidInputError,
    NotFoundError,
    RetentionError,
    UnavailableError,
)
from reef.pages import Pages, WalRecord
from reef.pages._page_rows import PAGES_MAX
from reef.store import MemoryStore
from reef.types import U32_MAX
from tests.support.engine.open_handles import context_of, handle_of

SIZE = 16


def page(text: str) -> bytes:
    return text.encode().ljust(SIZE, b".")


@pytest.fixture
def db() -> Iterator[Database]:
    with Database(MemoryStore(), rng=random.Random(1), flush_interval=0) as db:
        yield db


@pytest.fixture
def store(db: Database) -> Pages:
    return db.pages("main.db", page_size=SIZE)


def test_a_page_is_read_at_the_version_at_or_before_the_one_asked_for(store: Pages) -> None:
    first = store.append_wal([WalRecord(7, None, page("a")), WalRecord(8, None, page("b"))])
    second = store.append_wal([WalRecord(7, None, page("c"))])
    assert first < second == store.head == store.lsn
    assert store.get_page(7) == store.get_page(7, second) == page("c")
    assert store.get_page(7, second - 1) == store.get_page(7, first) == page("a")
    assert store.get_page(7, first - 1) is None
    assert store.get_page(8, second) == page("b")
    assert store.get_page(9) is None
    assert store.get_pages([8, 7, 9, 7]) == [page("b"), page("c"), None, page("c")]
    assert store.get_pages([8, 7], first) == [page("b"), page("a")]


def test_views_stay_as_they_are(store: Pages) -> None:
    lsn = store.write({0: page("a")})
    view = store.at(lsn=lsn)
    with store.snapshot() as held:
        store.write({0: page("b"), 5: page("c")})
        for one in (view, held, store.at(snapshot=held.id)):
            assert (one.lsn, one.page_size, one.n_pages) == (lsn, SIZE, 1)
            assert one.get_page(0) == page("a")
            assert one.get_pages([0, 5]) == [page("a"), None]
    store.flush()
    generation = handle_of(store).manifest.generation
    store.write({0: page("d")})
    assert store.at(generation=generation).get_page(0) == page("b")
    assert store.get_page(0) == page("d")


def test_the_last_of_a_page_that_is_there_twice_counts(store: Pages) -> None:
    store.append_wal([WalRecord(1, None, page("a")), WalRecord(1, None, page("b"))])
    assert store.get_page(1) == page("b")


def test_how_far_a_store_extends(store: Pages) -> None:
    assert store.n_pages == 0
    first = store.write({9: page("a")})
    assert store.n_pages == 10
    store.write({3: page("b")})
    assert store.n_pages == 10
    second = store.write({3: page("c")}, n_pages=20)
    assert store.n_pages == 20
    store.flush()
    assert store.n_pages == 20
    assert (store.at(lsn=first).n_pages, store.at(lsn=second).n_pages) == (10, 20)
    store.write({U32_MAX: page("z")})
    assert store.n_pages == PAGES_MAX
    assert store.get_page(U32_MAX) == page("z")


@pytest.mark.parametrize("is_flushed", [False, True])
def test_what_is_cut_off_is_gone_and_stays_so_when_the_store_grows_over_it(
    store: Pages, is_flushed: bool
) -> None:
    before = store.write({i: page(f"{i}") for i in range(10)})
    if is_flushed:
        store.flush()
    cut = store.truncate(4)
    assert store.n_pages == 4
    assert store.get_pages(range(10)) == [page(f"{i}") for i in range(4)] + [None] * 6
    grown = store.write({8: page("new")})
    assert store.n_pages == 9
    assert store.get_pages(range(4, 10)) == [None] * 4 + [page("new"), None]
    if is_flushed:
        store.flush()
    for lsn, count in ((before, 10), (cut, 4), (grown, 9)):
        assert store.at(lsn=lsn).n_pages == count
    assert store.get_page(8, before) == page("8")
    assert store.get_page(8, cut) is None
    assert store.get_page(5, before) == page("5")


def test_a_commit_may_cut_and_write_at_once(store: Pages) -> None:
    store.write({i: page(f"{i}") for i in range(10)})
    slots = handle_of(store).tail.log_slots
    store.write({1: page("x")}, n_pages=2)
    assert handle_of(store).tail.log_slots == slots + 1
    assert store.get_pages(range(4)) == [page("0"), page("x"), None, None]
    head = store.head
    assert store.write({}, n_pages=2) == store.truncate(2) == store.append_wal([]) == head
    assert handle_of(store).tail.log_slots == slots + 1


def test_a_huge_and_thin_store_is_cut_by_the_pages_that_are_there(store: Pages) -> None:
    store.write({0: page("a"), 1 << 20: page("b"), U32_MAX: page("c")})
    before = store.head
    store.truncate(1)
    assert (store.n_pages, store.get_pages([0, 1 << 20, U32_MAX])) == (1, [page("a"), None, None])
    assert store.get_page(1 << 20, before) == page("b")
    assert handle_of(store).tail.memtable.rows < 100


def test_what_cannot_be_a_page_is_refused_and_nothing_is_written(store: Pages) -> None:
    head = store.head
    for pages in (
        *({-1: page("")}, {1 << 32: page("")}, {"1": page("")}, {1: page(""), "1": page("")}),
        *({1.5: page("")}, {1: page(""), 1.5: page(""), 2: page("")}, {1: b"short"}, {1: "text"}),
        [(1, page(""))],
    ):
        with pytest.raises(InvalidInputError):
            store.write(pages)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="expected 16, the page_size"):
        store.write({1: page("a"), 2: page("a") + b"."})
    with pytest.raises(InvalidInputError, match="below n_pages = 4"):
        store.write({4: page("a")}, n_pages=4)
    for n_pages in (-1, PAGES_MAX + 1, "1", True):
        with pytest.raises(InvalidInputError, match="n_pages"):
            store.truncate(n_pages)  # type: ignore[arg-type]
    for page_id in (-1, 1 << 32, "1", None):
        with pytest.raises(InvalidInputError, match="page_id"):
            store.get_page(page_id)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="page_id"):
            store.get_pages([page_id])  # type: ignore[list-item]
    wrong: list[Any] = [None, [1, 2], [(1, None)], [([], None, page("a"))]]
    for records in wrong:
        with pytest.raises(InvalidInputError, match="WalRecords"):
            store.append_wal(records)
    with pytest.raises(InvalidInputError, match="lsn"):
        store.write({1: page("a")}, lsn=5)
    with pytest.raises(UnavailableError, match="not exist yet"):
        store.get_page(1, head + 1)
    assert store.head == head
    assert store.n_pages == 0


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "i4", "i8", "u8"])
def test_a_page_id_may_be_of_any_integer_type(store: Pages, kind: str) -> None:
    page_id = np.dtype(kind).type(min(np.iinfo(kind).max, PAGES_MAX - 1))
    assert store.write({page_id: page("a")}) > 0
    assert store.get_page(int(page_id)) == page("a")
    assert store.n_pages == int(page_id) + 1
    with warnings.catch_warnings(action="error"):
        for _ in range(2):
            assert (
                store.get_page(page_id) == store.at(lsn=store.head).get_page(page_id) == page("a")
            )


def test_pages_may_be_anything_that_is_bytes(store: Pages) -> None:
    store.write({1: bytearray(page("a")), 2: memoryview(page("b"))})  # type: ignore[dict-item]
    assert store.get_pages([1, 2]) == [page("a"), page("b")]
    with pytest.raises(InvalidInputError, match="gaps"):
        store.write({1: np.zeros((SIZE, 2), "u1")[:, 0]})  # type: ignore[dict-item]


def test_pages_of_no_numbers_are_refused(store: Pages) -> None:
    for ids in (None, 7, [None], ["1"]):
        for reads in (store, store.at(lsn=store.head)):
            with pytest.raises(InvalidInputError, match="page_ids"):
                reads.get_pages(ids)  # type: ignore[arg-type]


def test_a_store_keeps_what_it_was_made_with(db: Database, store: Pages) -> None:
    store.write({0: page("a")})
    for asked in ({"page_size": 32}, {"lsn_policy": "caller"}):
        for mode in "rw":
            with pytest.raises(InvalidInputError, match="'main\\.db' was made with"):
                db.pages("main.db", mode=mode, **asked)  # type: ignore[arg-type]
    store.write({0: page("b")})  # nobody has fenced it
    for wrong in ({"page_size": 0}, {"page_size": 1 << 21}, {"lsn_policy": "mine"}, {"mode": "x"}):
        with pytest.raises(InvalidInputError):
            db.pages("other", **wrong)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        db.pages("other", mode="r")
    again = db.pages("main.db")
    assert (again.page_size, again.lsn_policy) == (SIZE, "kernel")
    assert db.pages("new").page_size == 4096
    with pytest.raises(InvalidInputError, match="made as pages, not as kv"):
        db.kv("main.db")
    db.kv("keys")
    with pytest.raises(InvalidInputError, match="made as kv, not as pages"):
        db.pages("keys", page_size=SIZE)


def test_a_new_store_keeps_a_week_and_an_old_one_what_it_was_told(db: Database) -> None:
    assert handle_of(db.pages("a")).manifest.retention.pitr_window_ms == 7 * 86400 * 1000
    assert (
        handle_of(db.pages("b", pitr_window="1h")).manifest.retention.pitr_window_ms == 3600 * 1000
    )
    assert handle_of(db.pages("b")).manifest.retention.pitr_window_ms == 3600 * 1000


def test_a_reader_follows(db: Database, store: Pages) -> None:
    lsn = store.write({0: page("a")})
    reader = db.pages("main.db", mode="r", max_staleness=3600)
    assert reader.get_page(0) == page("a")
    newest = store.write({0: page("b"), 1: page("c")})
    assert reader.get_page(0) == page("a")  # it has not looked again
    assert (reader.head, reader.n_pages) == (lsn, 1)
    assert reader.refresh() == newest == reader.head
    assert (reader.get_pages([0, 1]), reader.n_pages) == ([page("b"), page("c")], 2)
    assert reader.get_page(0, lsn) == page("a")
    with pytest.raises(InvalidInputError, match="read-only"):
        reader.write({0: page("d")})
    reader.close()
    with pytest.raises(ClosedError):
        reader.get_page(0)


def test_a_retry_with_the_same_key_writes_once(store: Pages) -> None:
    first = store.write({0: page("a"), 4: page("b")}, idempotency_key="k")
    store.write({0: page("c")})
    assert store.write({0: page("a"), 4: page("b")}, idempotency_key="k") == first
    assert (
        store.append_wal(
            [WalRecord(0, None, page("a")), WalRecord(4, None, page("b"))], idempotency_key="k"
        )
        == first
    )
    assert store.get_page(0) == page("c")
    with pytest.raises(IdempotencyError):
        store.write({0: page("other")}, idempotency_key="k")
    assert store.write({4: page("b"), 0: page("a")}, idempotency_key="k") == first
    cut = store.write({}, n_pages=2, idempotency_key="cut")
    store.write({1: page("d")})
    assert store.write({}, n_pages=2, idempotency_key="cut") == cut < store.head
    store.write({3: page("d")})
    assert store.write({}, n_pages=2, idempotency_key="cut") == cut
    assert store.n_pages == 4


def test_a_commit_of_nothing_is_known_by_its_key(db: Database, store: Pages) -> None:
    store.write({0: page("a")})
    empty = store.write({}, idempotency_key="nothing")
    same = store.write({}, n_pages=1, idempotency_key="as it is")
    store.flush()
    store.write({0: page("b")})
    again = db.pages("main.db")
    assert again.write({}, idempotency_key="nothing") == empty < same
    assert again.write({}, n_pages=1, idempotency_key="as it is") == same < again.head
    assert (again.n_pages, again.get_page(0)) == (1, page("b"))


def test_what_lies_below_the_floor_is_refused(store: Pages) -> None:
    first = store.write({0: page("a")})
    second = store.write({0: page("b")})
    store.flush()
    from reef.manifest import set_retention

    chain = context_of(store).chain("main.db")
    chain.publish(lambda head: set_retention(head.manifest, floor_lsn=second))  # type: ignore[union-attr]
    handle_of(store).reload()
    with pytest.raises(RetentionError):
        store.get_page(0, first)
    assert store.get_page(0, second) == page("b")


def test_threads_that_grow_and_cut_a_store_leave_it_as_the_log_says(db: Database) -> None:
    store = db.pages("threads", page_size=SIZE)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = random.Random(number)
        try:
            for i in range(25):
                if rng.random() < 0.2:
                    store.truncate(rng.randrange(40))
                else:
                    store.write({rng.randrange(60): page(f"{number}/{i}")})
        except BaseException as error:  # noqa: BLE001 told below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with db.pages("threads", mode="r") as reader:
        pages = reader.get_pages(range(60))
        assert pages == store.get_pages(range(60))
        # What is there lies within; how far it goes is by the history that the log tells.
        assert all(data is None for data in pages[reader.n_pages :])


def test_a_store_lives_on_in_another_process(tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri() + "?fsync=off"
    with reef.connect(url) as db, db.pages("main.db", page_size=SIZE) as store:
        lsn = store.write({0: page("a"), 3: page("b")})
        store.flush()
        store.truncate(2)
    with reef.connect(url) as db, db.pages("main.db", mode="r") as store:
        assert (store.page_size, store.n_pages) == (SIZE, 2)
        assert store.get_pages([0, 3]) == [page("a"), None]
        assert store.get_page(3, lsn) == page("b")


@pytest.mark.slow
def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs/pages.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = [line.removeprefix("# ") for line in example.splitlines() if line.startswith("# ")]
    assert done.stdout.splitlines() == said
