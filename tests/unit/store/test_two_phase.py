"""Two-phase CAS: what it creates, what it refuses, and what lost answers do to it."""

from __future__ import annotations

import array
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from reef.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    UnavailableError,
)
from reef.store import MemoryStore
from reef.store.two_phase._store import CollectReport, RecoveryReport, TwoPhaseStore
from reef.testing import Fault, FaultyStore, WrapperStore
from tests.support.store.two_phase import (
    EVER,
    Crash,
    FaultyRecords,
    LostError,
    Site,
    Steps,
    commit,
    race,
)

KEY = "wal/1"
NONCE = b"our own nonce"
OURS = b"head" + NONCE + b"rows"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def commit_ours(store: TwoPhaseStore) -> None:
    commit(store, KEY, OURS, nonce=NONCE, retries=4)


def test_what_is_created_is_there_and_nothing_else(site: Site) -> None:
    steps = Steps()
    site.client(steps).put_if_absent(KEY, b"one")
    assert site.client().get(KEY) == b"one"
    assert site.temporaries() == []
    [row] = site.rows()
    assert (row.destination, row.committed) == (KEY, True)
    assert steps.seen == [
        *("head-destination", "put-temporary", "insert-record"),
        *("copy", "commit-record", "delete-temporary"),
    ]


def test_a_taken_name_is_refused_and_keeps_its_bytes(site: Site) -> None:
    site.client().put_if_absent(KEY, b"one")
    with pytest.raises(AlreadyExistsError, match=r"wal/1"):
        site.client().put_if_absent(KEY, b"two")
    assert site.get(KEY) == b"one"
    site.assert_tidy()


def test_it_is_a_store_like_any_other(site: Site) -> None:
    store = site.client()
    store.put_if_absent("a/1", array.array("I", [1, 2, 3]))
    store.put_if_absent("a/2", b"")
    store.upload("b/big", [b"01234", b"56789"])
    assert store.get("a/1") == array.array("I", [1, 2, 3]).tobytes()
    assert store.get_range("b/big", 3, 4) == b"3456"
    assert store.get_ranges("b/big", [(8, 2), (0, 1)]) == [b"89", b"0"]
    assert store.head("a/2").size == 0
    assert [meta.key for meta in store.list("a/", "a/1")] == ["a/2"]
    assert store.sweep(EVER) == []
    store.delete("a/1")
    store.delete("a/1")
    with pytest.raises(NotFoundError):
        store.get("a/1")


def test_a_sweep_finishes_what_was_begun_and_removes_what_was_left(site: Site) -> None:
    """One creator died behind its record, another before it; a deleter stopped half way."""
    for key, step in (("wal/1", "copy"), ("wal/2", "insert-record")):
        with pytest.raises(Crash):
            site.client(Steps(step)).put_if_absent(key, key.encode())
    site.client().put_if_absent("wal/3", b"three")
    site.inner.delete("wal/3")
    left = site.temporaries()
    assert len(left) == 2
    swept = site.client().sweep(EVER)
    assert len(swept) == 1
    assert set(swept) < set(left)
    assert site.get("wal/1") == b"wal/1"
    assert site.get("wal/2") is None
    assert [row.destination for row in site.rows()] == ["wal/1"]
    site.assert_tidy()
    assert site.client().sweep(EVER) == []


def test_a_sweep_spares_what_is_younger(site: Site) -> None:
    with pytest.raises(Crash):
        site.client(Steps("insert-record")).put_if_absent(KEY, b"1")
    assert site.client().sweep(site.clock.now_us()) == []
    site.clock.advance(1)
    assert site.client().sweep(site.clock.now_us()) != []


def test_a_sweep_sweeps_the_store_below(site: Site) -> None:
    class Parts(WrapperStore):
        def sweep(self, before_us: int) -> list[str]:
            return [f"segments/{before_us}"]

    assert site.client(inner=Parts(site.inner)).sweep(7) == ["segments/7"]


def test_after_the_record_nothing_says_not_written(site: Site) -> None:
    class FullDisk(WrapperStore):
        def copy(self, source: str, destination: str) -> None:
            raise NotWrittenError("disk full")

    with pytest.raises(UnavailableError, match="recorded but perhaps not in place") as caught:
        site.client(inner=FullDisk(site.inner)).put_if_absent(KEY, b"1")
    assert not isinstance(caught.value, NotWrittenError)


def test_it_is_a_public_name_that_brings_sqlalchemy_only_when_used() -> None:
    code = (
        "import sys, reef.store, reef.testing; before = 'sqlalchemy' in sys.modules; "
        "from reef.store import TwoPhaseStore; print(before, 'sqlalchemy' in sys.modules, "
        "TwoPhaseStore.__name__, hasattr(reef.store, 'ThreePhaseStore'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False True TwoPhaseStore False\n"


def test_without_sqlalchemy_all_else_works_and_two_phase_cas_says_what_to_install(
    tmp_path: Path,
) -> None:
    """As where only `reefdb` is installed: every package but this one is loaded and used."""
    code = f"""
import sys
sys.modules["sqlalchemy"] = None  # any import of it fails as if it were not installed
import importlib, pkgutil, reef, reef.jobs, reef.sqlite, reef.sqlite.dbapi, reef.testing
for package in ("cli", "documents", "doctor", "engine", "gc", "jobs", "kv", "pages", "spark"):
    path = importlib.import_module(f"reef.{{package}}").__path__
    for module in pkgutil.walk_packages(path, f"reef.{{package}}."):
        importlib.import_module(module.name)
with reef.connect("file://{tmp_path}/bucket") as db:
    documents = db.namespace("docs")
    documents.upsert([{{"id": "a", "price": 3}}])
    assert documents.sql("select price from docs").to_pylist() == [{{"price": 3}}]
    db.kv("kv").put(b"k", b"v")
print("works")
for doing in (
    lambda: reef.connect("s3://bucket?cas=two-phase&cas_store=sqlite:////cas.db"),
    lambda: getattr(reef.store, "TwoPhaseStore"),
):
    try:
        doing()
    except (reef.InvalidInputError, ModuleNotFoundError) as error:
        print(type(error).__name__, "pip install 'reefdb[two-phase]'" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n") == [
        "works",
        "InvalidInputError True",
        "ModuleNotFoundError True",
        "",
    ], done.stderr


def test_temporaries_are_nobodys_business(site: Site) -> None:
    site.inner.put(".tmp/x", b"")
    site.inner.put(".tmpfile/x", b"")
    store = site.client()
    assert [meta.key for meta in store.list()] == [".tmpfile/x"]
    assert list(store.list(".tmp/")) == []
    for request in (
        lambda: store.put_if_absent(".tmp/x", b""),
        lambda: store.upload(".tmp/x", [b""]),
        lambda: store.get(".tmp/x"),
        lambda: store.get_range(".tmp/x", 0, 1),
        lambda: store.get_ranges(".tmp/x", [(0, 1)]),
        lambda: store.head(".tmp/x"),
        lambda: store.delete(".tmp/x"),
    ):
        with pytest.raises(InvalidInputError, match=r"two-phase CAS keeps"):
            request()
    with pytest.raises(InvalidInputError):
        store.put_if_absent("wal/../x", b"")
    assert site.temporaries() == [".tmp/x"]


def test_an_object_without_a_record_is_not_written_over(site: Site) -> None:
    site.client().upload("segments/1", [b"uploaded"])
    with pytest.raises(AlreadyExistsError):
        site.client().put_if_absent("segments/1", b"other")
    assert site.get("segments/1") == b"uploaded"
    assert site.rows() == []


def test_losing_the_database_loses_no_object_and_gives_no_name_away(
    site: Site, tmp_path: Path
) -> None:
    site.client().put_if_absent(KEY, b"one")
    (tmp_path / "restored").mkdir()
    after = Site(tmp_path / "restored", site.inner)
    with pytest.raises(AlreadyExistsError):
        after.client().put_if_absent(KEY, b"two")
    assert after.client().get(KEY) == b"one"
    after.close()


def test_a_name_can_be_created_again_after_its_delete(site: Site) -> None:
    store = site.client()
    for data in (b"one", b"two", b"three"):
        store.put_if_absent(KEY, data)
        assert store.get(KEY) == data
        store.delete(KEY)
        assert site.rows() == []


def test_a_refused_creator_first_completes_the_record_it_met(site: Site) -> None:
    with pytest.raises(UnavailableError):
        site.client(inner=faulty(site, "copy", "error_before")).put_if_absent(KEY, b"one")
    assert site.get(KEY) is None
    with pytest.raises(AlreadyExistsError):
        site.client().put_if_absent(KEY, b"two")
    assert site.get(KEY) == b"one"
    site.assert_tidy()


def faulty(site: Site, operation: str, kind: str) -> FaultyStore:
    return FaultyStore(site.inner, [Fault(kind, on=operation)])


@pytest.mark.parametrize("operation", ["head", "put", "copy", "delete"])
@pytest.mark.parametrize("kind", ["error_before", "reply_lost"])
def test_the_commit_loop_survives_a_lost_answer_of_the_store(
    site: Site, operation: str, kind: str
) -> None:
    inner = faulty(site, operation, kind)
    commit_ours(site.client(inner=inner))
    assert len(inner.fired) == 1
    assert site.get(KEY) == OURS
    site.client().recover()
    site.client().collect(EVER)
    site.assert_tidy()


@pytest.mark.parametrize("call", ["insert", "commit"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_commit_loop_survives_a_lost_answer_of_the_database(
    site: Site, call: str, when: str
) -> None:
    records = FaultyRecords(site.records.url, bucket=site.records.bucket, call=call, when=when)
    commit_ours(site.client(records=records))
    assert records.fired == 1
    assert site.get(KEY) == OURS
    site.client().recover()
    site.client().collect(EVER)
    site.assert_tidy()
    records.close()


def test_the_commit_loop_meets_its_own_record_and_knows_it(site: Site) -> None:
    steps = Steps()
    commit_ours(site.client(steps, inner=faulty(site, "copy", "error_before")))
    assert steps.seen == [
        *("head-destination", "put-temporary", "insert-record", "copy"),
        *("head-destination", "put-temporary", "insert-record", "find-record"),
        *("copy", "commit-record", "delete-temporary", "delete-temporary"),
    ]
    assert site.get(KEY) == OURS
    site.assert_tidy()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_temporary_that_may_be_recorded_is_left_alone(site: Site, when: str) -> None:
    records = FaultyRecords(site.records.url, bucket=site.records.bucket, call="insert", when=when)
    with pytest.raises(UnavailableError):
        site.client(records=records).put_if_absent(KEY, b"one")
    assert len(site.temporaries()) == 1
    site.client().recover()
    site.client().collect(EVER)
    assert site.get(KEY) == (b"one" if when == "after" else None)
    site.assert_tidy()
    records.close()


def test_refusals_after_the_record_are_unknown_outcomes(site: Site) -> None:
    with pytest.raises(UnavailableError, match=r"recorded but perhaps not in place.*403"):
        site.client(inner=faulty(site, "copy", "denied")).put_if_absent(KEY, b"one")
    assert site.client().recover() == RecoveryReport(completed=(KEY,))
    assert site.get(KEY) == b"one"


def test_refusals_before_the_record_are_what_they_are(site: Site) -> None:
    with pytest.raises(AccessDeniedError):
        site.client(inner=faulty(site, "put", "denied")).put_if_absent(KEY, b"one")
    assert site.rows() == []


def test_recovery_goes_on_past_an_object_that_fails(site: Site) -> None:
    for key in ("wal/1", "wal/2", "wal/3"):
        with pytest.raises(UnavailableError):
            site.client(inner=faulty(site, "copy", "error_before")).put_if_absent(key, b"x")
    inner = FaultyStore(site.inner, [Fault("error_before", on="copy", nth=2)])
    report = site.client(inner=inner).recover()
    assert report == RecoveryReport(completed=("wal/1", "wal/3"), failed=("wal/2",))
    assert site.client().recover() == RecoveryReport(completed=("wal/2",))
    assert site.client().recover() == RecoveryReport()


def test_collection_spares_what_is_young_or_pending_or_there(site: Site) -> None:
    site.client().put_if_absent("wal/1", b"there")
    with pytest.raises(UnavailableError):
        site.client(inner=faulty(site, "copy", "error_before")).put_if_absent("wal/2", b"pending")
    site.inner.put(".tmp/old", b"")
    site.clock.advance(10)
    now = site.clock.now_us()
    site.inner.put(".tmp/young", b"")
    assert site.client().collect(now) == CollectReport(temporaries=(".tmp/old",))
    assert ".tmp/young" in site.temporaries()
    assert len(site.temporaries()) == 2
    assert [row.destination for row in site.rows()] == ["wal/1", "wal/2"]
    assert site.client().recover() == RecoveryReport(completed=("wal/2",))


def test_collection_removes_the_records_of_deleted_objects_only(site: Site) -> None:
    keys = [f"wal/{i}" for i in range(6)]
    for key in keys:
        site.client().put_if_absent(key, b"x")
    for key in keys[1::2]:
        site.inner.delete(key)
    site.inner.put("a-first", b"without a record")
    site.inner.put("z-last", b"without a record")
    assert site.client().collect(0) == CollectReport(records=tuple(keys[1::2]))
    assert [row.destination for row in site.rows()] == keys[::2]


def test_a_copy_that_lands_after_the_delete_brings_back_old_bytes_but_frees_no_name(
    site: Site,
) -> None:
    """The one thing a store can do to us: carry out a copy long after it was asked for."""
    inner = FaultyStore(LateCopies(site.inner), [Fault("lands_late", on="copy")])
    with pytest.raises(UnavailableError):
        site.client(inner=inner).put_if_absent(KEY, b"one")
    site.client().recover()
    site.client().delete(KEY)
    assert inner.land() == [None]
    assert site.get(KEY) == b"one"
    with pytest.raises(AlreadyExistsError):
        site.client().put_if_absent(KEY, b"two")
    site.client().delete(KEY)
    assert site.get(KEY) is None
    site.assert_tidy()


class LateCopies(MemoryStore):
    """Takes the source's bytes when the copy is asked for, as a server does that is slow to write."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__()
        self._bucket = inner._bucket
        self._taken: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data)
        self._taken[key] = data

    def copy(self, source: str, destination: str) -> None:
        super().put(destination, self._taken[source])


def test_among_racing_creators_exactly_one_wins(site: Site) -> None:
    clients = [site.client() for _ in range(4)]

    def put(racer: int, number: int) -> None:
        try:
            clients[racer].put_if_absent(f"wal/{number}", b"%d" % racer)
        except AlreadyExistsError:
            assert site.get(f"wal/{number}") is not None, "a conflict without an object"
            raise LostError from None

    winners = race(40, len(clients), put)
    assert [len(names) for names in winners] == [1] * 40
    for number, [racer] in enumerate(winners):
        assert site.get(f"wal/{number}") == b"%d" % racer
    site.assert_tidy()


def test_racing_creators_recoverers_and_collectors_agree(site: Site) -> None:
    creators = [site.client() for _ in range(2)]
    keepers = [site.client(), site.client()]

    def act(racer: int, number: int) -> None:
        if racer == 2:
            keepers[0].recover()
        elif racer == 3:
            keepers[1].collect(EVER)
        else:
            data = b"%d nonce %d" % (racer, number)
            try:
                commit(creators[racer], f"wal/{number}", data, seed=racer)
            except AlreadyExistsError:
                raise LostError from None

    winners = [set(names) - {2, 3} for names in race(40, 4, act)]
    assert [len(names) for names in winners] == [1] * 40
    for number, [racer] in enumerate(winners):
        assert site.get(f"wal/{number}") == b"%d nonce %d" % (racer, number)
    site.client().recover()
    site.client().collect(EVER)
    site.assert_tidy()


def test_it_goes_to_another_process_by_being_opened_there(site: Site) -> None:
    with pytest.raises(TypeError, match=r"open it there"):
        pickle.dumps(site.client())
    store = TwoPhaseStore(
        site.inner,
        site.records,
        clock=site.clock,
        rng=random.Random(1),
        reopen=partial(MemoryStore, "elsewhere"),
    )
    assert pickle.loads(pickle.dumps(store)).url == "memory://elsewhere"
