"""Two-phase CAS with its clients dying, or being overtaken, just before each of their steps.

On a real SQLite file. `tests/sim/test_two_phase_interleavings.py` goes through the combinations.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reef.clock import SystemClock
from reef.errors import AlreadyExistsError, UnavailableError
from reef.store import TwoPhaseStore, open_store
from reef.store.two_phase import Records, RecoveryReport
from tests.support.servers.object_stores import REPO, SeaweedFS
from tests.support.servers.proxy import Proxy
from tests.support.store.two_phase import EVER, Crash, Site, Steps

KEY = "wal/1"

PUT = (
    *("head-destination", "put-temporary", "insert-record"),
    *("copy", "commit-record", "delete-temporary"),
)
DELETE = ("find-record", "delete-temporary", "delete-object", "remove-record")
DELETE_PENDING = ("find-record", "commit-record", *DELETE[1:])
RECOVER = ("list-records", "copy", "commit-record", "delete-temporary")
RECOVER_DANGLING = ("list-records", "copy", "find-record", "head-destination", "remove-record")
COLLECT_ORPHAN = (
    *("list-temporaries", "claim-temporary"),
    *("delete-temporary", "head-destination", "remove-record", "list-objects"),
)
COLLECT_LEFT_OVER = (
    *("list-temporaries", "claim-temporary", "find-record", "delete-temporary", "list-objects"),
)
COLLECT_WIDOWED = (
    *("list-temporaries", "list-objects"),
    *("delete-temporary", "head-destination", "remove-record"),
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def crash(site: Site, step: str, act: Callable[[TwoPhaseStore], object]) -> None:
    """Let a client die just before `step` of what it does."""
    with pytest.raises(Crash):
        act(site.client(Steps(step)))


def put(data: bytes) -> Callable[[TwoPhaseStore], None]:
    return lambda store: store.put_if_absent(KEY, data)


def delete(store: TwoPhaseStore) -> None:
    store.delete(KEY)


def recover(store: TwoPhaseStore) -> None:
    store.recover()


def collect(store: TwoPhaseStore) -> None:
    store.collect(EVER)


def tidy_up(site: Site) -> None:
    store = site.client()
    store.recover()
    store.collect(EVER)
    site.assert_tidy()


def dangle(site: Site) -> None:
    """Leave a record whose temporary was collected just before it was written."""
    writer = site.client(Steps("insert-record", lambda: collect(site.client())))
    with pytest.raises(UnavailableError):
        writer.put_if_absent(KEY, b"one")
    assert [row.committed for row in site.rows()] == [False]


def is_recorded(step: str) -> bool:
    return PUT.index(step) > PUT.index("insert-record")


@pytest.mark.parametrize("step", PUT)
class TestACreatorDies:
    def test_then_recovery_completes_what_was_recorded(self, site: Site, step: str) -> None:
        crash(site, step, put(b"one"))
        report = site.client().recover()
        pending = is_recorded(step) and step != "delete-temporary"
        assert report == RecoveryReport(completed=(KEY,) if pending else ())
        assert site.get(KEY) == (b"one" if is_recorded(step) else None)
        tidy_up(site)
        assert site.get(KEY) == (b"one" if is_recorded(step) else None)

    def test_then_the_next_creator_of_that_name_decides(self, site: Site, step: str) -> None:
        crash(site, step, put(b"one"))
        if is_recorded(step):
            with pytest.raises(AlreadyExistsError):
                site.client().put_if_absent(KEY, b"two")
        else:
            site.client().put_if_absent(KEY, b"two")
        expected = b"one" if is_recorded(step) else b"two"
        assert site.get(KEY) == expected
        tidy_up(site)
        assert site.get(KEY) == expected

    def test_then_collection_takes_nothing_that_is_needed(self, site: Site, step: str) -> None:
        crash(site, step, put(b"one"))
        site.client().collect(EVER)
        tidy_up(site)
        assert site.get(KEY) == (b"one" if is_recorded(step) else None)

    def test_then_a_delete_is_final(self, site: Site, step: str) -> None:
        crash(site, step, put(b"one"))
        site.client().delete(KEY)
        assert site.get(KEY) is None
        tidy_up(site)
        assert site.get(KEY) is None
        assert site.rows() == []
        site.client().put_if_absent(KEY, b"two")
        assert site.get(KEY) == b"two"


PREPARED: dict[str, tuple[Callable[[Site], object], Callable[[TwoPhaseStore], None], tuple]] = {
    "delete": (lambda site: put(b"one")(site.client()), delete, DELETE),
    "delete of a pending object": (
        lambda site: crash(site, "copy", put(b"one")),
        delete,
        DELETE_PENDING,
    ),
    "recovery": (lambda site: crash(site, "copy", put(b"one")), recover, RECOVER),
    "recovery after the copy": (
        lambda site: crash(site, "commit-record", put(b"one")),
        recover,
        RECOVER,
    ),
    "recovery of a dangling record": (dangle, recover, RECOVER_DANGLING),
    "collection of an orphan": (
        lambda site: crash(site, "insert-record", put(b"one")),
        collect,
        COLLECT_ORPHAN,
    ),
    "collection of what a creator left": (
        lambda site: crash(site, "delete-temporary", put(b"one")),
        collect,
        COLLECT_LEFT_OVER,
    ),
    "collection after half a delete": (
        lambda site: (put(b"one")(site.client()), crash(site, "remove-record", delete)),
        collect,
        COLLECT_WIDOWED,
    ),
}
KEPT = {"recovery", "recovery after the copy", "collection of what a creator left"}


@pytest.mark.parametrize("name", PREPARED)
def test_the_steps_are_as_listed_here(site: Site, name: str) -> None:
    prepare, act, listed = PREPARED[name]
    prepare(site)
    steps = Steps()
    act(site.client(steps))
    assert tuple(steps.seen) == listed
    site.assert_tidy()
    assert site.get(KEY) == (b"one" if name in KEPT else None)


@pytest.mark.parametrize(
    ("name", "step"), [(name, step) for name, (_, _, steps) in PREPARED.items() for step in steps]
)
class TestAKeeperDies:
    """A client that recovers, collects or deletes, and dies doing so."""

    def test_then_the_next_one_ends_its_work(self, site: Site, name: str, step: str) -> None:
        prepare, act, _ = PREPARED[name]
        prepare(site)
        crash(site, step, act)
        tidy_up(site)
        if act is not delete:
            assert site.get(KEY) == (b"one" if name in KEPT else None)
        else:
            # It may have happened or not, but not by half.
            assert site.get(KEY) in (b"one", None)
            assert bool(site.rows()) == (site.get(KEY) is not None)

    def test_then_the_name_can_be_created_if_it_is_free(
        self, site: Site, name: str, step: str
    ) -> None:
        prepare, act, _ = PREPARED[name]
        prepare(site)
        crash(site, step, act)
        try:
            site.client().put_if_absent(KEY, b"two")
            expected = b"two"
        except AlreadyExistsError:
            expected = b"one"
        assert site.get(KEY) == expected
        tidy_up(site)
        assert site.get(KEY) == expected
        assert expected == b"two" or name in KEPT or act is delete


OTHERS = {
    "recovery": recover,
    "collection": collect,
    "recovery and collection": lambda store: (recover(store), collect(store)),
    "collection and recovery": lambda store: (collect(store), recover(store)),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("step", PUT)
def test_a_slow_creator_is_overtaken(site: Site, step: str, other: str) -> None:
    """Just before each of its steps, somebody else does all of theirs."""
    slow = site.client(Steps(step, lambda: OTHERS[other](site.client())))
    try:
        slow.put_if_absent(KEY, b"one")
        told = "created"
    except UnavailableError:
        told = "unknown"
    collected = "collection" in other and step == "insert-record"
    assert told == ("unknown" if collected else "created")
    tidy_up(site)
    assert site.get(KEY) == (None if collected else b"one")


@pytest.mark.parametrize("step", PUT)
def test_a_slow_creator_is_overtaken_by_another(site: Site, step: str) -> None:
    told = {}

    def try_to_create(store: TwoPhaseStore, data: bytes) -> None:
        try:
            store.put_if_absent(KEY, data)
            told[data] = True
        except AlreadyExistsError:
            told[data] = False

    slow = site.client(Steps(step, lambda: try_to_create(site.client(), b"two")))
    try_to_create(slow, b"one")
    winner = b"one" if is_recorded(step) else b"two"
    assert told == {b"one": winner == b"one", b"two": winner == b"two"}
    assert site.get(KEY) == winner
    site.assert_tidy()


@pytest.mark.parametrize("step", PUT)
def test_a_slow_creator_is_overtaken_by_a_delete(site: Site, step: str) -> None:
    slow = site.client(Steps(step, lambda: delete(site.client())))
    try:
        slow.put_if_absent(KEY, b"one")
        assert step in (*PUT[:3], "delete-temporary")
    except UnavailableError:
        assert step in ("copy", "commit-record")
    tidy_up(site)
    assert site.get(KEY) == (b"one" if step in PUT[:3] else None)


@pytest.mark.parametrize("step", COLLECT_ORPHAN)
def test_a_slow_collector_is_overtaken_by_the_writer_it_took_for_dead(
    site: Site, step: str
) -> None:
    """The temporary is old and has no record when it is listed; the writer goes on after that."""
    told = []

    def go_on() -> None:
        # The collector runs while the writer is just about to insert its record; at the chosen
        # step of the collector the writer's record is inserted, or refused.
        [temporary] = site.temporaries() or [""]
        told.append(bool(temporary) and site.records.insert(KEY, temporary))

    crash(site, "insert-record", put(b"one"))
    site.client(Steps(step, go_on)).collect(EVER)
    assert told == [step in ("list-temporaries", "claim-temporary")]
    site.client().recover()
    assert site.get(KEY) == (b"one" if told[0] else None)
    tidy_up(site)


def test_a_record_of_a_collected_temporary_is_dropped_and_the_name_is_free(site: Site) -> None:
    dangle(site)
    assert site.client().recover() == RecoveryReport(dropped=(KEY,))
    assert site.rows() == []
    dangle(site)
    site.client().put_if_absent(KEY, b"two")
    assert site.get(KEY) == b"two"
    site.assert_tidy()


def test_a_record_without_a_source_never_gives_away_a_name_that_holds_something(
    site: Site,
) -> None:
    dangle(site)
    site.inner.put(KEY, b"somebody's")
    assert site.client().recover() == RecoveryReport()
    tidy_up(site)
    with pytest.raises(AlreadyExistsError):
        site.client().put_if_absent(KEY, b"two")
    assert site.get(KEY) == b"somebody's"
    assert [row.destination for row in site.rows()] == [KEY]


def test_a_creator_is_not_told_it_won_when_the_name_holds_other_bytes(site: Site) -> None:
    def collected_and_taken() -> None:
        site.client().collect(EVER)

    def put_and_recover() -> None:
        site.inner.put(KEY, b"somebody's")
        site.client().recover()

    class Twice(Steps):
        def __call__(self, name: str) -> None:
            {"insert-record": collected_and_taken, "copy": put_and_recover}.get(name, int)()

    with pytest.raises(UnavailableError):
        site.client(Twice()).put_if_absent(KEY, b"one")
    assert site.get(KEY) == b"somebody's"


VICTIM = """
import os, random, signal, sys
from reef.clock import SystemClock
from reef.store import open_store
from reef.store.two_phase import Records
from reef.store.two_phase import TwoPhaseStore

bucket, database, fatal = sys.argv[1:]

def on_step(name):
    if name == fatal:
        os.kill(os.getpid(), signal.SIGKILL)

store = TwoPhaseStore(
    open_store(bucket), Records(database, bucket="killed"),
    clock=SystemClock(), rng=random.SystemRandom(), on_step=on_step,
)
store.put_if_absent("wal/1", b"one")
"""


@pytest.mark.servers
@pytest.mark.parametrize("step", PUT)
def test_a_killed_process_leaves_what_another_can_finish(
    seaweedfs: SeaweedFS, unconditional: Proxy, tmp_path: Path, step: str
) -> None:
    url = unconditional.url(seaweedfs.shared_bucket, uuid.uuid4().hex)
    database = f"sqlite:///{tmp_path}/cas.db"
    killed = subprocess.run(
        [sys.executable, "-c", VICTIM, url, database, step],
        env=os.environ | {"PYTHONPATH": str(REPO / "src")},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    records = Records(database, bucket="killed")
    with TwoPhaseStore(
        open_store(url), records, clock=SystemClock(), rng=random.SystemRandom()
    ) as store:
        store.recover()
        store.collect(EVER)
        assert [meta.key for meta in store._inner.list()] == ([KEY] if is_recorded(step) else [])
        if is_recorded(step):
            assert store.get(KEY) == b"one"
        else:
            store.put_if_absent(KEY, b"two")
