"""Repair beside branches: a damaged segment is mended for each namespace that names it."""

from __future__ import annotations

import pytest

from reef.doctor import repair, verify
from reef.engine import are_live, list_namespaces
from reef.errors import CorruptError, NotFoundError
from reef.format import manifest_key, segment_key
from reef.types import namespace_of
from tests.support.engine.branching import NS, Grove, branched_early, grown


@pytest.fixture
def grove() -> Grove:
    return Grove(retained_generations=20)


def put_instead(grove: Grove, key: str, data: bytes) -> None:
    grove.inner.delete(key)
    grove.inner.put_if_absent(key, data)


def flip(grove: Grove, key: str) -> bytes:
    """Damage an object; return what it was."""
    whole = grove.inner.get(key)
    put_instead(grove, key, whole[:60] + bytes([whole[60] ^ 0xFF]) + whole[61:])
    return whole


def harm(grove: Grove, id: str, *, gone: bool) -> None:
    """Damage a segment of the root, or take it away."""
    key = segment_key(NS, id)
    flip(grove, key)
    if gone:
        grove.inner.delete(key)


def mend(grove: Grove, branch: str | None) -> str:
    """Repair, look that nothing is wrong any more, and return what was said of the first step."""
    context, namespace = grove.db.context(), namespace_of(NS, branch)
    report = repair(context, namespace, apply=True)
    assert report.is_mended, report
    assert verify(context, namespace, deep=True).problems == ()
    return report.steps[0].text


@pytest.mark.slow
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("order", [(None, "b", "c"), ("c", "b", None)])
def test_a_shared_segment_is_mended_for_everyone(
    grove: Grove, order: tuple[str | None, ...], compacted: bool, gone: bool
) -> None:
    kv = grown(grove)
    kv.flush()
    if compacted:
        grove.compact()
    kv.branch("b")
    grove.kv("b").branch("c")
    grove.kv("b").put(b"own", b"b")
    kv.put(b"own", b"root")
    before = {branch: grove.contents(branch) for branch in order}
    for ref in grove.manifest().segments:
        harm(grove, ref.id, gone=gone)
    said = {branch: mend(grove, branch) for branch in order}
    assert {branch: grove.contents(branch) for branch in order} == before
    assert "repair its branches too, before it is collected: ns@b, ns@c" in said[None]
    assert "also repair namespace 'ns', which owns it" in said["b"]
    # What was written in its place is each one's own, and nobody needs the others any more.
    for branch in ("b", "c"):
        assert not any(ref.namespace for ref in grove.manifest(branch).segments)
    for _ in range(4):
        grove.age(*order)
        for branch in reversed(order):
            grove.collect(branch)
    assert {branch: grove.contents(branch) for branch in order} == before


def test_a_branch_cut_at_an_old_version_gets_no_newer_one_by_repair(grove: Grove) -> None:
    branched_early(grove)
    harm(grove, grove.manifest().segments[0].id, gone=False)
    mend(grove, "b")
    assert grove.contents("b") == {b"k": b"1"}
    branch = grove.kv("b")
    branch.put(b"more", b"3")
    branch.flush()
    grove.compact("b")
    assert grove.contents("b") == {b"k": b"1", b"more": b"3"}


def test_what_a_branch_compacted_is_restored_from_what_it_shares(grove: Grove) -> None:
    kv = grown(grove)
    kv.flush()
    kv.branch("b")
    grove.kv("b").put(b"k1", b"b")
    grove.kv("b").flush()
    before = grove.contents("b")
    shared = grove.manifest("b").segments[-1].id
    grove.compact("b")
    (ref,) = grove.manifest("b").segments
    grove.inner.delete(segment_key(namespace_of(NS, "b"), ref.id))
    harm(grove, shared, gone=True)
    mend(grove, "b")
    assert grove.contents("b") == before


# A name that had another life.


@pytest.mark.parametrize("branch", [None, "b"])
def test_a_new_life_is_not_ended_because_its_only_generation_is_damaged(
    grove: Grove, branch: str | None
) -> None:
    kv = grown(grove)
    if branch:
        kv.branch(branch)
    grove.db.drop(NS, branch=branch)
    if branch:
        kv.branch(branch)
    else:
        grove.kv().put(b"new", b"life")
    before, pins = grove.contents(branch), grove.pins()
    name, context = namespace_of(NS, branch), grove.db.context()
    key = manifest_key(name, grove.manifest(branch).generation)
    whole = flip(grove, key)
    with pytest.raises(CorruptError, match="from a backup"):
        grove.contents(branch)
    listed = list(list_namespaces(grove.inner))
    assert are_live(grove.database(grove.inner).context(), listed) == [True] * len(listed)
    report = repair(context, name, apply=True)
    assert (report.applied, report.is_mended) == (False, False)
    assert report.steps[0].state == "refused"
    assert report.steps[0].lost.startswith("a whole namespace or branch of this name")
    assert grove.pins() == pins
    put_instead(grove, key, whole)
    assert grove.contents(branch) == before
    # Who accepts the loss has the name for another one.
    flip(grove, key)
    assert repair(context, name, apply=True, accept_loss=True).applied
    with pytest.raises(NotFoundError):
        grove.contents(branch)


def test_open_handles_go_on_with_what_was_restored(grove: Grove) -> None:
    kv = grown(grove)
    kv.flush()
    before = grove.contents()
    reader = grove.database(grove.inner).kv(NS, mode="r", block_cache_bytes=0)
    view = reader.at(lsn=reader.lsn)
    for ref in grove.manifest().segments:
        harm(grove, ref.id, gone=False)
    with pytest.raises(CorruptError):
        reader.get(b"k1")
    mend(grove, None)
    assert reader.get(b"k1") == before[b"k1"]
    for handle in (reader, view):
        assert dict(handle.items()) == before
