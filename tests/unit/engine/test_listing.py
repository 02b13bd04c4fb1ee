"""Finding the namespaces of a bucket: all of them, in few requests."""

from __future__ import annotations

import pytest

from reef.engine import _listing, list_namespaces
from tests.support.engine.branching import NS, Grove, grown


def requests(grove: Grove, kind: str) -> int:
    return sum(operation == kind for operation, _ in grove.store.requests)


def test_many_small_namespaces_take_a_listing_and_a_get_for_each() -> None:
    grove = Grove()
    names = [f"n{number:03d}" for number in range(40)]
    for name in names:
        with grove.db.kv(name) as kv:
            kv.put(b"k", b"v")
    for name in names[::4]:
        grove.db.drop(name)
    grove.store.requests.clear()
    assert [*grove.db.namespaces(dropped=True)] == names
    assert (requests(grove, "list"), requests(grove, "get")) == (2, 0)
    grove.store.requests.clear()
    assert [*grove.db.namespaces()] == [name for name in names if name not in names[::4]]
    assert (requests(grove, "list"), requests(grove, "get")) == (2, 40)


@pytest.mark.slow
@pytest.mark.parametrize("passed_max", [1, 2, 3, 5, 8, 13, 100_000])
@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_what_is_passed_by_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, passed_max: int, at_once: int
) -> None:
    grove = Grove()
    kv = grown(grove)
    for name in ("b", "b-c", "b.c", "b0", "a"):
        kv.branch(name)
    grove.kv("b0").put(b"k", b"v")
    grove.kv("b0").branch("z")
    grove.db.kv("ns-x").put(b"k", b"v", idempotency_key="once")
    grove.db.kv("ns-x").flush()
    grove.db.kv("nsx").put(b"k", b"v")
    kv.drop_branch("b.c")
    grove.inner.put_if_absent("namespaces/ns@b@c/stranger", b"")
    monkeypatch.setattr(_listing, "_PASSED_MAX", passed_max)
    monkeypatch.setattr(_listing, "_AT_ONCE", at_once)
    live = ["ns", "ns-x", "ns@a", "ns@b", "ns@b-c", "ns@b0", "ns@b@c", "ns@z", "nsx"]
    assert sorted(grove.db.namespaces()) == sorted(live)
    listed = [one.name for one in list_namespaces(grove.inner)]
    assert sorted(listed) == sorted([*live, "ns@b.c"])
    # The order is that of the keys.
    assert listed == sorted(listed, key=lambda name: f"{name}/")
    assert [b.name for b in grove.kv().branches()] == ["a", "b-c", "b", "b0", "z"]


def test_an_unreadable_namespace_is_listed() -> None:
    grove = Grove()
    grown(grove)
    newest = grove.objects(None, "manifest")[-1]
    key = f"namespaces/{NS}/manifest/{newest}.manifest.json"
    data = grove.inner.get(key)
    grove.inner.delete(key)
    grove.inner.put_if_absent(key, data[:-20])
    assert [*grove.db.namespaces()] == [NS]
