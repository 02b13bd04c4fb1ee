"""Branches that expire, and branches that begin anew from the head of their parent."""

from __future__ import annotations

import pytest

from reef.engine import expire_branch
from reef.errors import (
    FencedError,
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    UnavailableError,
)
from reef.jobs import collect
from reef.store import MemoryStore
from reef.testing import ManualClock
from tests.support.engine.branching import NS, Grove, grown, is_there, with_b

HOUR_S = 3600.0
HOUR_US = 3_600_000_000


def expire(grove: Grove, branch: str) -> bool:
    return expire_branch(grove.database().context(), f"{NS}@{branch}")


def test_a_branch_expires_by_the_clock_of_the_store_and_collection_drops_it(grove: Grove) -> None:
    kv = grown(grove)
    made = kv.branch("b", ttl="1h")
    assert made.expires_at_us == grove.clock.now_us() + HOUR_US
    kv.branch("stays")
    assert [(b.name, b.expires_at_us) for b in kv.branches()] == [
        ("b", made.expires_at_us), ("stays", 0),
    ]  # fmt: skip
    with grove.kv("b") as branch:
        branch.put(b"k", b"1")
        branch.flush()
    grove.clock.advance(HOUR_S)
    context = grove.database()
    for apply in (False, True):
        assert not any(
            one.returned().has_expired for one in collect(context, apply=apply).namespaces
        )
    grove.clock.advance(1)
    dry = {one.namespace: one.returned() for one in collect(context).namespaces}
    assert [name for name, report in dry.items() if report.has_expired] == ["ns@b"]
    assert is_there(grove, "b")
    done = {one.namespace: one.returned() for one in collect(context, apply=True).namespaces}
    assert [name for name, report in done.items() if report.has_expired] == ["ns@b"]
    assert not is_there(grove, "b")
    assert [b.name for b in kv.branches()] == ["stays"]
    # What it had, and its pin, go later, like those of any dropped branch.
    assert [pin.child for pin in grove.pins()] == ["ns@b", "ns@stays"]
    grove.age("b", None)
    for _ in range(2):
        collect(grove.database(), apply=True)
        grove.age("b", None)
    assert [pin.child for pin in grove.pins()] == ["ns@stays"]


def test_a_clock_that_is_ahead_expires_nothing() -> None:
    grove = Grove(store=MemoryStore(clock=(stores := ManualClock())))
    kv = grown(grove)
    stores.advance(100 * HOUR_S)  # this machine's clock is behind: the store's counts
    made = kv.branch("b", ttl=HOUR_S)
    assert made.expires_at_us == stores.now_us() + HOUR_US
    branch = grove.kv("b")
    grove.clock.advance(1000 * HOUR_S)
    assert not expire(grove, "b")
    branch.put(b"k", b"1")  # nobody fenced its writer
    stores.advance(HOUR_S + 1)
    assert expire(grove, "b")
    with pytest.raises(FencedError):
        branch.put(b"k", b"2")
    assert not expire(grove, "b")
    assert not expire(grove, "never")
    assert not expire_branch(grove.db.context(), NS)


def test_an_expired_branch_waits_for_its_branches(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b", ttl=1)
    with grove.kv("b", mode="r") as branch:
        branch.branch("c", ttl=100)
    grove.clock.advance(10)
    assert not expire(grove, "b")
    grove.clock.advance(100)
    assert expire(grove, "c")
    assert expire(grove, "b")


def test_a_branch_that_was_made_anew_meanwhile_does_not_expire(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b", ttl=1)
    grove.clock.advance(10)

    def make_anew() -> None:
        kv.drop_branch("b")
        kv.branch("b")
        with grove.kv("b") as branch:
            branch.put(b"new", b"1")

    looks = 0

    def before(operation: str, key: str) -> None:
        nonlocal looks
        looks += operation == "list" and "ns@b/manifest" in key
        if looks == 2:  # the collector looked at the branch, and is about to drop it
            grove.store.before = lambda operation, key: None
            make_anew()

    grove.store.before = before
    assert not expire(grove, "b")
    assert looks == 2
    assert grove.contents("b")[b"new"] == b"1"


@pytest.mark.parametrize("ttl", [0, -1, "soon", True])
def test_what_is_no_duration_is_refused(grove: Grove, ttl: object) -> None:
    with grove.kv() as kv, pytest.raises(InvalidInputError, match="ttl"):
        kv.branch("b", ttl=ttl)  # type: ignore[arg-type]


def test_a_detached_branch_does_not_expire(grove: Grove) -> None:
    from reef.jobs import detach

    kv = grown(grove)
    kv.branch("b", ttl=10)
    detach(grove.db.context(), "ns@b")
    grove.clock.advance(100)
    assert not expire(grove, "b")
    assert is_there(grove, "b")


# Beginning anew.


def test_a_branch_is_reset_to_the_head_of_its_parent(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b", ttl="1h")
    expires_at_us = kv.branches()[0].expires_at_us
    branch = grove.kv("b")
    branch.put(b"k1", b"branch")
    branch.flush()
    grove.clock.advance(60)
    lsn = kv.put(b"k1", b"parent").lsn
    reset = kv.reset_branch("b")
    assert (reset.name, reset.parent, reset.lsn) == ("b", NS, lsn)
    assert reset.expires_at_us == expires_at_us
    assert grove.contents("b") == grove.contents()
    with pytest.raises(FencedError):
        branch.put(b"k1", b"late")
    with grove.kv("b") as again:
        again.put(b"k1", b"again")
    assert grove.contents()[b"k1"] == b"parent"


def test_only_a_branch_without_branches_is_reset(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    with grove.kv("b") as branch:
        branch.put(b"own", b"1")
        branch.branch("c")
        with pytest.raises(InvalidInputError, match="ns@c"):
            kv.reset_branch("b")
        assert branch.reset_branch("c").parent == "ns@b"
    assert grove.contents("b")[b"own"] == b"1"
    with pytest.raises(NotFoundError):
        kv.reset_branch("never")
    kv.drop_branch("c")
    kv.drop_branch("b")
    with pytest.raises(NotFoundError):
        kv.reset_branch("b")


def test_what_has_no_parent_is_not_reset(grove: Grove) -> None:
    from reef.engine import reset_branch
    from reef.jobs import detach

    kv = grown(grove)
    kv.branch("b")
    detach(grove.db.context(), "ns@b")
    for name in ("ns", "ns@b"):
        with pytest.raises(InvalidInputError, match="has no parent"):
            reset_branch(grove.db.context(), name)


def test_a_store_that_fails_between_says_what_became_of_the_branch() -> None:
    grove = with_b()
    kv = grove.kv(mode="r")

    def fail() -> None:
        raise UnavailableError("the store is gone")

    grove.store.once("upload", "ns@b/segments", fail)
    with pytest.raises(NotWrittenError, match="was dropped, but could not be made anew"):
        kv.reset_branch("b")
    assert not is_there(grove, "b")
    assert not grove.pins() or all(pin.child == "ns@b" for pin in grove.pins())
    kv.branch("b")
    assert grove.contents("b") == grove.contents()
