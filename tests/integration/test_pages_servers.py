"""What a page store has to show, on files and on an S3 server, with nothing but the URL changed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import reef
from reef.database import Database
from reef.errors import FencedError, InvalidInputError
from reef.jobs import CompactionOptions, InProcess
from reef.pages import Pages
from tests.support.engine.collecting import collect_garbage
from tests.support.engine.open_handles import handle_of, read_state
from tests.support.engine.page_history import SIZE, PageHistory
from tests.support.jobs.passes import compact
from tests.support.servers.object_stores import SeaweedFS
from tests.support.waiting import until

NAME = "main.db"
PAGES = 300


@pytest.fixture(params=["file", pytest.param("seaweedfs", marks=pytest.mark.servers)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return (tmp_path / "bucket").as_uri()
    server = request.getfixturevalue("seaweedfs")
    assert isinstance(server, SeaweedFS)
    return server.fresh_url()


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with reef.connect(url, flush_interval=0, gc_grace=0, retained_generations=1) as db:
        yield db


def open_store(db: Database) -> Pages:
    return db.pages(NAME, page_size=SIZE, lsn_policy="caller")


def fill(store: Pages, history: PageHistory, rng: np.random.Generator, lsns: int) -> None:
    """Commit some versions of some pages, several in one log object."""
    records = []
    for lsn in range(store.head + 1, store.head + 1 + lsns):
        pages = rng.choice(PAGES, 20, replace=False).astype(np.int64)
        records += history.write(lsn, pages)
    store.append_wal(records)


def check(store: Pages, history: PageHistory, lsns: range) -> None:
    for lsn in lsns:
        view = store.at(lsn=lsn)
        assert view.n_pages == history.extent(lsn)
        found = view.get_pages(range(PAGES))
        assert not list(history.differences(lsn, range(PAGES), found))
    page = random.Random(1).randrange(PAGES)
    assert [store.get_page(page, lsns[-1])] == history.at(lsns[-1], [page])


def fold_and_collect(db: Database, *, replaced: set[str] | None = None) -> None:
    """Fold everything into an image, and collect until `replaced` are gone, or else once."""
    context = db.context()
    options = CompactionOptions(full=True, min_input_files=2, target_size_bytes=4096)
    compact(context, NAME, InProcess(context), options=options)

    def are_gone() -> bool:
        collect_garbage(context, NAME)
        return not replaced or not replaced & stored_layers(db)

    until(are_gone, "what was replaced is gone; a server tells time in whole seconds")


def stored_layers(db: Database) -> set[str]:
    return {meta.key for meta in db.store.list(f"namespaces/{NAME}/segments/")}


def test_reads_at_any_lsn_over_memtable_deltas_and_image(db: Database) -> None:
    store, history, rng = open_store(db), PageHistory(), np.random.default_rng(1)
    for step in range(6):
        fill(store, history, rng, 10)
        if step in (0, 1, 3, 4):
            store.flush()
        if step == 1:
            fold_and_collect(db)  # the image; deltas and the memtable come above it
        if step == 2:
            history.cut(store.head + 1, 150)
            store.truncate(150, lsn=store.head + 1)
    state = read_state(store)
    assert len(state.layers) >= 4
    assert handle_of(store).tail.memtable.rows
    head = history.head
    check(store, history, range(0, head + 1, 7))
    check(store, history, range(head, head + 1))
    with db.pages(NAME, mode="r") as reader:
        check(reader, history, range(3, head + 1, 13))


def test_flush_compaction_and_collection_make_layers_fewer_and_lose_nothing(db: Database) -> None:
    store, history, rng = open_store(db), PageHistory(), np.random.default_rng(2)
    for _ in range(6):
        fill(store, history, rng, 5)
        store.flush()
    before = len(read_state(store).layers)
    flushed = stored_layers(db)
    assert len(flushed) == 6
    fold_and_collect(db, replaced=flushed)
    handle_of(store).reload()
    assert len(read_state(store).layers) == 2 < before
    # All of it lies inside the window of seven days: every version is still there.
    check(store, history, range(0, history.head + 1, 3))


def test_a_branch_is_spared_by_the_collection_of_its_parent(db: Database) -> None:
    store, history, rng = open_store(db), PageHistory(), np.random.default_rng(3)
    for _ in range(3):
        fill(store, history, rng, 5)
        store.flush()
    fill(store, history, rng, 2)  # unfolded
    at = history.head - 4
    store.branch("dev", lsn=at)
    branch, forked = db.pages(NAME, branch="dev"), history.fork(at, mark=7)
    assert (branch.head, branch.page_size, branch.lsn_policy) == (at, SIZE, "caller")
    fill(branch, forked, rng, 4)
    shared = stored_layers(db)
    fill(store, history, rng, 4)
    store.flush()
    fold_and_collect(db, replaced=stored_layers(db) - shared)
    with pytest.raises(InvalidInputError, match="dev"):
        db.drop(NAME)
    with db.pages(NAME, branch="dev", mode="r") as reader:
        check(reader, forked, range(1, forked.head + 1, 2))
    check(branch, forked, range(1, forked.head + 1, 3))
    check(db.pages(NAME, mode="r"), history, range(1, history.head + 1, 3))
    store.drop_branch("dev")
    with pytest.raises(FencedError):
        fill(branch, forked, rng, 1)


def test_two_handles_one_survivor(url: str, db: Database) -> None:
    store, history, rng = open_store(db), PageHistory(), np.random.default_rng(4)
    fill(store, history, rng, 5)
    with reef.connect(url) as other:
        rival = other.pages(NAME)
        with pytest.raises(FencedError) as caught:
            store.append_wal(history.fork(history.head, 9).write(history.head + 1, np.arange(5)))
        assert caught.value.durable_lsn == history.head
        fill(rival, history, rng, 5)
        check(rival, history, range(1, history.head + 1))
