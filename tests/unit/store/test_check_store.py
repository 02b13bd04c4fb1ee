"""The checks say yes to stores that keep the contract, and name what each liar does."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from reef.clock import SystemClock
from reef.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    InvalidInputError,
    UnavailableError,
    UnsupportedStoreError,
)
from reef.settings import Settings
from reef.store import FileStore, MemoryStore, ObjectMeta, Store
from reef.store._check import Check, StoreCheck
from reef.store._file_store import RESERVE, TEMPORARY
from reef.testing import Fault, FaultyStore, ManualClock, WrapperStore
from tests.support.store import broken_stores

JUDGED = [
    "create",
    "taken name refused",
    "create after delete",
    "whole reads",
    "ranged reads",
    "several ranges",
    "upload in parts",
    "read after write",
    "gone after delete",
    "ordered list",
    "list start-after",
    "racing threads",
    "racing processes",
    "last-modified",
]
MEASURED = ["store's clock", "latency"]


class AheadClock(ManualClock):
    """A clock ahead of another by a fixed time."""

    def __init__(self, other: ManualClock, by_us: int) -> None:
        super().__init__()
        self._other = other
        self._by_us = by_us

    def now_us(self) -> int:
        return self._other.now_us() + self._by_us


def check_of(
    store: Store,
    clock: ManualClock | None = None,
    rounds: int = 6,
    retries: int = 3,
) -> StoreCheck:
    return StoreCheck(
        store,
        racers=broken_stores.RACERS,
        rounds=rounds,
        settings=Settings(cas_max_retries=retries),
        clock=clock or ManualClock(),
        rng=random.Random(7),
    )


# Stores that keep the contract.


def test_memory_passes_and_is_not_raced_by_processes() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    store.put_if_absent("namespaces/kept", b"mine")
    check = check_of(store, clock)
    seen = {c.name: c for c in check.run()}
    assert list(seen) == JUDGED + MEASURED
    assert {name for name in seen if seen[name].ok is not True} == {"racing processes", *MEASURED}
    assert seen["racing processes"].seen == "not raced: one process only"
    assert seen["racing threads"].seen == "6 rounds of 4: one winner each, and its bytes stay"
    assert check.prefix.startswith("check-store/")
    assert any(meta.key.startswith(check.prefix) for meta in store.list())
    assert check.remove() == []
    assert [meta.key for meta in store.list()] == ["namespaces/kept"]


def test_file_passes_with_processes_and_leaves_no_folder(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "bucket", fsync=False)
    told: list[tuple[str, int, int]] = []
    check = StoreCheck(
        store,
        racers=5,
        rounds=7,
        settings=Settings(),
        clock=SystemClock(),
        rng=random.Random(7),
        on_progress=lambda *progress: told.append(progress),
    )
    seen = {c.name: c for c in check.run()}
    assert [check for check in seen.values() if check.ok is not True] == [
        seen[name] for name in MEASURED
    ]
    assert seen["racing threads"].seen == "4 rounds of 5: one winner each, and its bytes stay"
    assert seen["racing processes"].seen == "3 rounds of 5: one winner each, and its bytes stay"
    assert told == [("racing threads", done, 4) for done in range(5)] + [
        ("racing processes", done, 3) for done in range(4)
    ]
    assert check.remove() == []
    assert sorted(os.listdir(store.root)) == [RESERVE, TEMPORARY]
    assert os.listdir(f"{store.root}/{TEMPORARY}") == []


def test_the_stores_clock_is_told_from_ours() -> None:
    ours = ManualClock(now_us=1_700_000_000_000_001)
    store = MemoryStore(clock=AheadClock(ours, 90_000_000))
    seen = {c.name: c for c in check_of(store, ours).run()}
    assert seen["store's clock"] == Check(
        "store's clock", None, "+90.000 s from ours, give or take 0.000 s"
    )


# Stores that do not.


@pytest.mark.parametrize(
    ("liar", "caught", "why"),
    [
        (
            broken_stores.EverybodyWins,
            {"taken name refused", "racing threads"},
            "ignores If-None-Match",
        ),
        (broken_stores.LooksThenPuts, {"racing threads"}, "round 1: 4 of 4 racers were told"),
        (broken_stores.WinnerOverwritten, {"racing threads"}, "round 1: 2 of 4 racers were told"),
        (broken_stores.LandsLate, {"racing threads"}, "and the bytes are those of racer"),
        (broken_stores.RefusesForever, {"create after delete"}, "unknown"),
        (broken_stores.ScramblesTheFirst, {"create"}, "does not hold what was written"),
        (
            broken_stores.RefusesAndWrites,
            {"taken name refused"},
            "does not hold the first bytes any more",
        ),
        (broken_stores.CachesReads, {"create after delete"}, "holds what was there before"),
        (broken_stores.MeasuresWrong, {"whole reads"}, "HEAD says 17 bytes of 16"),
        (broken_stores.InventsRanges, {"ranged reads"}, "that is not there was served"),
        (
            broken_stores.InventsObjects,
            {"read after write", "gone after delete"},
            "before it was written",
        ),
        (broken_stores.ServesAnOldState, {"read after write"}, "another state than the last one"),
        (broken_stores.HeadsTheDeleted, {"gone after delete"}, "served by HEAD"),
        (broken_stores.ListsFlat, {"ordered list"}, "the folder B/ lists 1 3"),
        (broken_stores.FlipsABit, {"whole reads", "upload in parts"}, "came back different"),
        (broken_stores.CutsRanges, {"ranged reads"}, "past the end|were served"),
        (broken_stores.ShiftsRanges, {"ranged reads", "several ranges"}, "came back different"),
        (broken_stores.SortsRanges, {"several ranges"}, "came back different"),
        (broken_stores.LosesAPart, {"upload in parts"}, "8388608 of 9437184 bytes"),
        (broken_stores.RemembersNo, {"read after write"}, "not found right after it was written"),
        (broken_stores.ListsLate, {"read after write"}, "not listed right after"),
        (broken_stores.ServesTheDeleted, {"gone after delete"}, "served by GET"),
        (broken_stores.ListsTheDeleted, {"gone after delete"}, "still listed"),
        (broken_stores.RefusesToDeleteTwice, {"gone after delete"}, "is not in"),
        (
            broken_stores.ListsUnordered,
            {"ordered list", "list start-after"},
            "out of order: - 0 00 10",
        ),
        (broken_stores.ListsWithGaps, {"ordered list", "list start-after"}, "14 keys of 15"),
        (broken_stores.IgnoresStartAfter, {"list start-after"}, "after '-' comes - 0 00"),
        (broken_stores.IncludesStart, {"list start-after"}, "after '-' comes - 0 00"),
        (broken_stores.LosesLastModified, {"last-modified"}, "no Last-Modified"),
        (broken_stores.TimeStandsStill, {"last-modified"}, "stands still"),
        (broken_stores.TimeGoesBack, {"last-modified"}, "went back by 1.1"),
        (
            broken_stores.ListsAnotherTime,
            {"last-modified"},
            "HEAD and LIST give times 5.000 s apart",
        ),
    ],
)
def test_a_liar_is_caught(liar: type[MemoryStore], caught: set[str], why: str) -> None:
    clock = ManualClock()
    checks = list(check_of(liar(clock=clock), clock).run())
    failed = [check for check in checks if check.ok is False]
    assert {check.name for check in failed} == caught
    assert any(part in failed[0].seen for part in why.split("|")), failed[0].seen


# What is no fault of the store.


def test_lost_replies_and_undecided_answers_are_not_mistaken() -> None:
    clock = ManualClock()
    racing = "*/racing-threads/*"
    store = FaultyStore(
        MemoryStore(clock=clock),
        rates={
            Fault("reply_lost", on="put_if_absent", key=racing): 0.2,
            Fault("false_conflict", on="put_if_absent", key=racing): 0.2,
            Fault("conflict", on="put_if_absent", key=racing): 0.2,
            Fault("error_before", on="put_if_absent", key=racing): 0.2,
        },
        rng=random.Random(3),
    )
    check = check_of(store, clock, rounds=30, retries=200)
    checks = list(check.run())
    assert [check for check in checks if check.ok is False] == []
    assert {fired.kind for fired in store.fired} == {
        "reply_lost",
        "false_conflict",
        "conflict",
        "error_before",
    }


def test_an_unknown_outcome_is_told_and_is_no_violation() -> None:
    clock = ManualClock()
    seen = {
        c.name: c for c in check_of(broken_stores.AnswersNobodySometimes(clock=clock), clock).run()
    }
    race = seen["racing threads"]
    assert race.ok is True
    assert race.seen.endswith("its bytes stay; outcomes unknown: 1")


# What ends a run.


def test_a_store_that_cannot_create_ends_the_run_with_its_own_words() -> None:
    for error in (UnavailableError("501 NotImplemented"), UnsupportedStoreError("no hard links")):
        (only,) = check_of(broken_stores.Refuses(error)).run()
        assert (only.name, only.ok) == ("create", False)
        assert str(error) in only.seen


@pytest.mark.parametrize(
    ("prefix", "named"), [("check-store/*", "list"), ("*/list/", "ordered list")]
)
def test_a_list_that_is_not_supported_is_a_no_with_the_reason(prefix: str, named: str) -> None:
    class Unlisted(WrapperStore):
        def list(self, given: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
            if fnmatchcase(given, prefix):
                raise UnsupportedStoreError("501 NotImplemented")
            return super().list(given, start_after)

    failed = [c for c in check_of(Unlisted(MemoryStore())).run() if c.ok is False]
    assert (failed[0].name, failed[0].seen) == (named, "501 NotImplemented")


def test_refused_credentials_are_no_verdict() -> None:
    with pytest.raises(AccessDeniedError, match="put it right"):
        list(check_of(broken_stores.Refuses(AccessDeniedError("put it right"))).run())


def test_a_missing_bucket_is_no_verdict_and_nothing_is_made(tmp_path: Path) -> None:
    check = check_of(FileStore(tmp_path / "no" / "bucket"))
    with pytest.raises(BucketNotFoundError):
        list(check.run())
    assert check.remove() == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("racers", "rounds"), [(1, 10), (257, 10), (4, 1), (4, 1_000_001)])
def test_numbers_that_cannot_be_are_refused(racers: int, rounds: int) -> None:
    with pytest.raises(InvalidInputError, match=r"racers|rounds"):
        StoreCheck(
            MemoryStore(),
            racers=racers,
            rounds=rounds,
            settings=Settings(),
            clock=ManualClock(),
            rng=random.Random(1),
        )


@pytest.mark.parametrize("race", ["racing threads", "racing processes"])
def test_what_was_made_is_removed_after_an_interrupt(tmp_path: Path, race: str) -> None:
    def interrupt(name: str, done: int, _total: int) -> None:
        if (name, done) == (race, 2):
            raise KeyboardInterrupt

    store = FileStore(tmp_path / "bucket", fsync=False)
    check = StoreCheck(
        store,
        racers=4,
        rounds=10,
        settings=Settings(),
        clock=ManualClock(),
        rng=random.Random(7),
        on_progress=interrupt,
    )
    with pytest.raises(KeyboardInterrupt):
        list(check.run())
    assert list(store.list())
    assert check.remove() == []
    assert sorted(os.listdir(store.root)) == [RESERVE, TEMPORARY]


@pytest.mark.parametrize("liar", [broken_stores.DeletesNothing, broken_stores.PretendsToDelete])
def test_what_cannot_be_removed_is_named(liar: type[MemoryStore]) -> None:
    clock = ManualClock()
    store = liar(clock=clock)
    check = check_of(store, clock, rounds=2)
    list(check.run())
    left = check.remove()
    assert left == [f"{check.prefix}racing-threads/{n:06}" for n in (1, 2)]
    assert [meta.key for meta in store.list()] == left


def test_what_the_store_does_not_list_is_removed_all_the_same() -> None:
    clock = ManualClock()
    store = broken_stores.HidesRaces(clock=clock)
    check = check_of(store, clock, rounds=2)
    list(check.run())
    assert check.remove() == []
    assert list(MemoryStore.list(store)) == []
