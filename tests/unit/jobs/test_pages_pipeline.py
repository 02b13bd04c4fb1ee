"""What rewrites buckets in bulk leaves pages as they are: fold, compaction, rebuild."""

from __future__ import annotations

import random

import pytest

from reef.database import Database
from reef.jobs import CompactionOptions, InProcess, compact, index, rebuild, verify
from reef.pages import Pages
from reef.store import MemoryStore

SIZE = 64
NAME = "main.db"


class Written:
    """A store whose log holds commits of every kind, and what has to be there at each LSN."""

    def __init__(self, db: Database, policy: str) -> None:
        self.store = db.pages(NAME, page_size=SIZE, lsn_policy=policy)
        self.rng = random.Random(1)
        self.at: dict[int, tuple[int, dict[int, bytes]]] = {}
        self._pages: dict[int, bytes] = {}
        self._is_caller = policy == "caller"
        for _ in range(20):
            self.write([self.rng.randrange(300) for _ in range(20)])
        self.write(range(400))  # more than a log object holds
        self.write([5, 7], n_pages=350)
        self.write([3])

    def write(self, pages: range | list[int], n_pages: int | None = None) -> None:
        data = {page: self.rng.randbytes(SIZE) for page in pages}
        lsn = self.store.head + 7 if self._is_caller else None
        lsn = self.store.write(data, n_pages=n_pages, lsn=lsn)
        self._pages |= data
        if n_pages is not None:
            self._pages = {page: data for page, data in self._pages.items() if page < n_pages}
        self.at[lsn] = (self.store.n_pages, dict(self._pages))

    def check(self, store: Pages) -> None:
        for lsn, (extent, pages) in self.at.items():
            view = store.at(lsn=lsn)
            found = enumerate(view.get_pages(range(410)))
            assert {page: data for page, data in found if data is not None} == pages
            assert view.n_pages == extent


@pytest.mark.parametrize("policy", ["kernel", "caller"])
def test_a_store_through_every_pass(policy: str) -> None:
    db = Database(MemoryStore(), flush_interval=0, log_segment_max_bytes=20_000)
    written = Written(db, policy)
    runner = InProcess(db.context())
    for run in (
        lambda: index(db, [NAME], runner=runner),
        lambda: compact(db, [NAME], runner=runner, options=CompactionOptions(full=True)),
        lambda: verify(db, [NAME], runner=runner),
        lambda: rebuild(db, [NAME], runner=runner),
    ):
        (record,) = run().records
        assert (record.state, record.error) == ("done", "")
        with db.pages(NAME, mode="r") as reader:
            assert (reader.page_size, reader.lsn_policy) == (SIZE, policy)
            written.check(reader)
    written.store = db.pages(NAME)
    written.write([1, 349])
    written.check(written.store)
