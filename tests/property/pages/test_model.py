"""Any story of a page store: commits of every kind, folds, collections, other writers, branches."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reef.database import Database
from reef.doctor import verify
from reef.gc import collect
from reef.jobs import CompactionOptions, InProcess
from reef.pages import Pages, WalRecord
from reef.store import MemoryStore
from reef.testing import ManualClock
from tests.support.jobs.passes import compact

NAME = "main.db"
SIZE = 64
PAGES = 100
LOG_BYTES = 8000
STEPS = (
    *("write", "write", "several", "cut", "write and cut", "large", "flush", "compact", "collect"),
    *("open again", "branch"),
)

State = tuple[int, dict[int, bytes]]
"""How far a store extends, and its pages."""


class Line:
    """A store, or a branch of it, and what it has to hold at each of its LSNs."""

    def __init__(self, store: Pages, history: dict[int, State]) -> None:
        self.store = store
        self.history = history

    def commit(self, lsn: int, pages: dict[int, bytes], n_pages: int | None) -> None:
        extent, held = self.history[max(self.history)]
        held = {**held, **pages}
        extent = max([extent, *(page + 1 for page in pages)]) if n_pages is None else n_pages
        self.history[lsn] = (extent, {page: data for page, data in held.items() if page < extent})

    def check(self, store: Pages) -> None:
        assert store.head == max(self.history)
        for lsn, (extent, held) in self.history.items():
            view = store.at(lsn=lsn)
            assert view.n_pages == extent
            found = view.get_pages(range(PAGES + 1))
            assert {page: data for page, data in enumerate(found) if data is not None} == held
        assert [store.get_page(page) for page in range(PAGES + 1)] == found
        assert store.n_pages == extent


class Story:
    """What is done to a bucket."""

    def __init__(self, seed: int, policy: str) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.bucket = MemoryStore(clock=self.clock)
        self.policy = policy
        self.db = self.database()
        self.lines = {"": Line(self.open(""), {0: (0, {})})}

    def database(self) -> Database:
        arguments: dict[str, Any] = {
            "flush_interval": 0,
            "gc_grace": 60,
            "maintenance": "off",
            "retained_generations": 1,
            "row_block_bytes": 256,
            "log_segment_max_bytes": LOG_BYTES,
            "delta_layer_target_bytes": 1024,
        }
        rng = random.Random(self.rng.random())
        return Database(self.bucket, clock=self.clock, rng=rng, **arguments)

    def open(self, branch: str, mode: str = "w") -> Pages:
        asked: dict[str, Any] = {} if branch or mode == "r" else {"lsn_policy": self.policy}
        return self.db.pages(
            NAME, branch=branch or None, page_size=None if branch else SIZE, mode=mode, **asked
        )

    def pages(self, most: int = 6, below: int = PAGES) -> dict[int, bytes]:
        count = self.rng.randint(0, min(most, below))
        return {page: self.rng.randbytes(SIZE) for page in self.rng.sample(range(below), count)}

    def given(self, line: Line) -> int | None:
        return None if self.policy == "kernel" else line.store.head + self.rng.randint(1, 5)

    def step(self, what: str) -> None:
        line = self.lines[self.rng.choice(list(self.lines))]
        store = line.store
        if what in ("write", "cut", "write and cut", "large"):
            n_pages = self.rng.randint(0, PAGES) if "cut" in what else None
            pages = {} if what == "cut" else self.pages(below=PAGES if n_pages is None else n_pages)
            if what == "large":  # than what a log object holds
                pages = {page: self.rng.randbytes(SIZE) for page in range(PAGES)}
            before = store.head
            lsn = store.write(pages, n_pages=n_pages, lsn=self.given(line))
            if lsn != before:
                line.commit(lsn, pages, n_pages)
            else:
                assert not pages
        elif what == "several" and self.policy == "caller":
            self.several(line)
        elif what == "flush":
            store.flush()
        elif what in ("compact", "collect"):
            self.tidy(store.name, what)
        elif what == "open again":
            for name, one in self.lines.items():
                one.store = self.open(name)
        elif what == "branch" and len(self.lines) < 4:
            lsn = self.rng.choice([*line.history])
            if lsn:
                name = f"b{len(self.lines)}"
                store.branch(name, lsn=lsn)
                history = {at: state for at, state in line.history.items() if at <= lsn}
                self.lines[name] = Line(self.open(name), history)

    def several(self, line: Line) -> None:
        """Commit several versions at once, the last of which may cut."""
        records: list[WalRecord] = []
        commits = []
        lsn = line.store.head
        n_pages = self.rng.choice((None, self.rng.randint(1, PAGES)))
        for number in range(3):
            lsn += self.rng.randint(1, 3)
            below = PAGES if n_pages is None or number < 2 else n_pages
            pages = {self.rng.randrange(below): self.rng.randbytes(SIZE)} | self.pages(3, below)
            records += [WalRecord(page, lsn, data) for page, data in pages.items()]
            commits.append((lsn, pages, n_pages if number == 2 else None))
        assert line.store.append_wal(records, n_pages=n_pages) == lsn
        for commit in commits:
            line.commit(*commit)

    def tidy(self, namespace: str, what: str) -> None:
        context = self.database().context()
        if what == "compact":
            options = CompactionOptions(
                full=self.rng.random() < 0.3,
                min_input_files=2,
                target_size_bytes=self.rng.choice((400, 1 << 20)),
            )
            compact(context, namespace, InProcess(context), options=options)
            return
        chain = context.chain(namespace)
        for _ in range(2):
            chain.publish(lambda head: head.manifest)  # type: ignore[union-attr]
            self.clock.advance(100)
        collect(chain, context.store, settings=context.settings, clock=self.clock, apply=True)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 2**32),
    st.sampled_from(["kernel", "caller"]),
    st.lists(st.sampled_from(STEPS), min_size=5, max_size=25),
)
def test_every_version_is_as_it_was_committed(seed: int, policy: str, steps: list[str]) -> None:
    story = Story(seed, policy)
    for what in steps:
        story.step(what)
    for name, line in story.lines.items():
        line.check(line.store)
        with story.open(name, mode="r") as reader:
            line.check(reader)
        assert verify(story.db.context(), line.store.name).problems == ()
