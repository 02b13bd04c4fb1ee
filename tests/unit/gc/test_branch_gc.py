"""Collection beside branches: what a branch can see stays, and nothing stays for nobody."""

from __future__ import annotations

import pytest

from reef.doctor import repair
from reef.errors import InvalidInputError, RetentionError
from reef.gc import PinReason, collect
from reef.jobs import detach
from reef.testing import ManualClock
from reef.types import namespace_of
from tests.support.engine.attaching import begin_load, upload
from tests.support.engine.branching import NS, Grove, branched_early, die, die_branching, grown
from tests.support.engine.collecting import GRACE_S


def cut_loose(grove: Grove, branch: str) -> None:
    context = grove.db.context()
    detach(context, namespace_of(NS, branch))


# What a branch can see stays.


def test_collecting_the_parent_removes_nothing_that_a_child_needs(grove: Grove) -> None:
    """Neon #865: the collector of a parent took what only its children could see."""
    kv = grown(grove)
    kv.branch("b")
    seen = grove.contents("b")
    for round in range(3):
        for number in range(8):
            kv.put(b"k%d" % number, b"round %d" % round)
        kv.flush()
        grove.compact(floor_lsn=kv.lsn)
        grove.age(None, "b")
        grove.collect()
        grove.collect("b")
        assert grove.contents("b") == seen
    assert grove.contents() != seen
    # And through a branch of the branch, when the one between has gone its own way.
    branch = grove.kv("b")
    branch.branch("c")
    branch.write(dict.fromkeys(seen, b"branch"))
    branch.flush()
    grove.compact("b", floor_lsn=branch.lsn)
    for _ in range(2):
        grove.age(None, "b", "c")
        for name in (None, "b", "c"):
            grove.collect(name)
    assert grove.contents("c") == seen
    assert not any(ref.namespace for ref in grove.manifest("b").segments)


@pytest.mark.parametrize("held_by", ["lease", "branch"])
def test_what_is_retained_is_in_the_bucket_and_survives_every_process(
    grove: Grove, held_by: str
) -> None:
    """Neon #8817: leases were held in memory, and a restart let what they held be collected."""
    kv = grown(grove)
    lsn = kv.lsn
    seen = grove.contents()
    if held_by == "lease":
        kv.snapshot(ttl=30 * GRACE_S, id="lease")
    else:
        kv.branch("b", lsn=lsn)
    kv.close()
    grove.db.close()
    for round in range(3):
        with grove.database() as db, db.kv(NS) as again:  # another process each time
            for number in range(8):
                again.put(b"k%d" % number, b"round %d" % round)
            again.flush()
            newest = again.lsn
        grove.db = grove.database()
        grove.compact(floor_lsn=newest)
        grove.age(None)
        grove.collect()
    with grove.database() as db, db.kv(NS, mode="r") as reader:
        if held_by == "lease":
            assert dict(reader.at(snapshot="lease").items()) == seen
        else:
            assert grove.contents("b") == seen
        with pytest.raises(RetentionError):
            reader.at(lsn=newest - 1).get(b"k1")


def test_versions_below_the_branch_point_stay_readable_in_the_branch(grove: Grove) -> None:
    kv = grove.kv()
    history = {}
    for number in range(6):
        history[kv.put(b"k", b"%d" % number).lsn] = {b"k": b"%d" % number}
        if number % 2:
            kv.flush()
    kv.branch("b")
    kv.put(b"k", b"late")
    kv.flush()
    grove.compact(floor_lsn=kv.lsn)
    grove.age(None)
    grove.collect()
    for lsn, rows in history.items():
        assert grove.contents("b", lsn) == rows
    with pytest.raises(RetentionError):
        grove.contents(None, min(history))


def test_what_the_parents_log_attached_stays_for_the_branch_and_no_more(grove: Grove) -> None:
    """A branch names what the log of its parent attached; the generation it stands on does not."""
    kv = grove.kv()
    kv.put(b"a", b"1")
    context = grove.db.context()
    job = begin_load(context)
    shared = upload(context, job, {b"a": b"shared", b"b": b"shared"})
    kv._writing().attach([shared])
    kv.branch("b")
    later = upload(context, job, {b"a": b"later"})
    kv._writing().attach([later])
    kv.put(b"a", b"2")
    kv.flush()
    job.end()
    grove.compact(floor_lsn=kv.lsn)
    for _ in range(2):
        grove.age(None, "b")
        grove.collect()
    assert grove.contents("b") == {b"a": b"shared", b"b": b"shared"}
    there = set(grove.objects(None, "segments"))
    assert shared.id in there
    assert later.id not in there
    # Of the log nothing stays but fences, what attaches that segment, and the last object.
    assert len(grove.objects(None, "wal")) == 3
    kv.drop_branch("b")
    for _ in range(2):
        grove.age(None, "b")
        grove.collect()
    assert shared.id not in set(grove.objects(None, "segments"))
    assert len(grove.objects(None, "wal")) == 2


def test_a_branch_keeps_the_segments_of_its_parent_but_not_its_log(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    needed = {ref.id for ref in grove.manifest("b").segments if ref.namespace}
    assert needed
    kv.put(b"more", b"1")
    kv.flush()
    grove.compact(floor_lsn=kv.lsn)
    for _ in range(2):
        grove.age(None)
        grove.collect()
    live = {ref.id for ref in grove.manifest().segments}
    assert set(grove.objects(None, "segments")) == needed | live
    assert len(grove.objects(None, "wal")) == 2  # its fence, and the last object
    (pin,) = grove.pins()
    assert f"{pin.generation:020d}" in grove.objects(None, "manifest")


def test_collecting_deletes_under_its_own_prefix_only(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    grove.kv("b").put(b"k", b"v")
    kv.flush()
    grove.compact(floor_lsn=kv.lsn)
    grove.age(None, "b")
    for name in (None, "b"):
        grove.store.requests.clear()
        grove.collect(name)
        deleted = [key for operation, key in grove.store.requests if operation == "delete"]
        assert deleted
        assert all(key.startswith(f"namespaces/{namespace_of(NS, name)}/") for key in deleted)


# And nothing stays for nobody.


def test_the_pin_of_a_dropped_branch_goes_after_the_grace_period(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    needed = {ref.id for ref in grove.manifest("b").segments if ref.namespace}
    reader = grove.kv("b", mode="r", block_cache_bytes=0)
    view = reader.at(lsn=reader.lsn)
    kv.flush()
    grove.compact(floor_lsn=kv.lsn)
    grove.age(None)
    assert grove.pin_reasons() == {"ns@b": PinReason.NEEDED}
    kv.drop_branch("b")
    assert grove.pin_reasons() == {"ns@b": PinReason.GRACE}
    grove.clock.advance(GRACE_S - 10)
    grove.collect()
    assert dict(view.items())  # whoever holds it open reads on, within the grace period
    assert needed <= set(grove.objects(None, "segments"))
    grove.clock.advance(20)
    assert grove.pin_reasons() == {"ns@b": PinReason.ENDED}
    grove.collect()
    assert not grove.pins()
    assert not needed & set(grove.objects(None, "segments"))


def test_the_pin_of_an_old_life_goes_although_the_name_has_another(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    kv.drop_branch("b")
    kv.flush()
    kv.branch("b")
    old, new = grove.pins()
    assert {old.child, new.child} == {"ns@b"}
    plan = grove.collect(apply=False).plan
    assert [judged.reason for judged in plan.pins] == [PinReason.GRACE, PinReason.NEEDED]
    grove.age(None, "b")
    grove.collect()
    assert grove.pins() == (new,)
    assert grove.contents("b") == grove.contents()


def test_an_orphan_pin_goes_only_after_its_branch_was_aborted(grove: Grove) -> None:
    kv = grown(grove)
    die_branching(grove, kv)
    assert grove.pin_reasons() == {"ns@b": PinReason.YOUNG}
    grove.collect()
    assert grove.pins()
    assert grove.objects("b", "manifest") == []
    grove.age(None)
    assert grove.pin_reasons() == {"ns@b": PinReason.NEVER_MADE}
    assert grove.objects("b", "manifest") == []  # nothing was written by looking
    grove.store.requests.clear()
    grove.collect()
    assert not grove.pins()
    puts = [key for operation, key in grove.store.requests if operation == "put_if_absent"]
    assert puts[0].startswith("namespaces/ns@b/manifest/")
    assert all(key.startswith("namespaces/ns/manifest/") for key in puts[1:])
    kv.branch("b")
    assert grove.contents("b") == grove.contents()


def test_what_a_maker_uploaded_in_vain_goes_when_it_is_given_up(grove: Grove) -> None:
    kv = grown(grove)
    grove.store.once("put_if_absent", "ns@b/manifest", die)
    with pytest.raises(KeyboardInterrupt):
        kv.branch("b")
    assert len(grove.objects("b", "segments")) == 1
    grove.age(None)
    grove.collect()
    grove.age("b")
    grove.collect("b")
    assert grove.objects("b", "segments") == []
    kv.branch("b")
    grove.age("b")
    grove.collect("b")
    assert grove.contents("b") == grove.contents()


def test_an_orphan_pin_in_a_grandparent_goes_likewise(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    branch = grove.kv("b")
    branch.put(b"k", b"v")
    grove.store.once("put_if_absent", "ns@c/manifest", die)
    with pytest.raises(KeyboardInterrupt):
        branch.branch("c")
    assert {pin.child for pin in grove.pins()} == {"ns@b", "ns@c"}
    # It stands on an old generation, and is young all the same.
    assert grove.pin_reasons() == {"ns@b": PinReason.NEEDED, "ns@c": PinReason.YOUNG}
    grove.age(None, "b")
    grove.collect()
    grove.collect("b")
    assert {pin.child for pin in grove.pins()} == {"ns@b"}
    assert not grove.pins("b")
    branch.branch("c")
    assert grove.contents("c") == grove.contents("b")


def test_a_maker_that_comes_to_life_while_it_is_given_up_wins_or_loses_for_good(
    grove: Grove,
) -> None:
    """Somebody else makes the branch between the look and the abort: the pin stays this time."""
    kv = grown(grove)
    die_branching(grove, kv)
    grove.age(None)
    other = grove.database(grove.inner)
    grove.store.once(
        "put_if_absent", "ns@b/manifest", lambda: other.kv(NS, mode="r").branch("b", lsn=kv.lsn)
    )
    grove.collect()
    assert grove.contents("b") == grove.contents()
    origin = grove.manifest("b").origin
    assert origin is not None
    assert origin.nonce in {pin.nonce for pin in grove.pins()}
    grove.collect()
    assert [pin.nonce for pin in grove.pins()] == [origin.nonce]


def test_a_snapshot_of_a_branch_keeps_what_its_generation_names(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    branch = grove.kv("b")
    held = branch.snapshot(ttl=None, id="s")
    cut_loose(grove, "b")
    for _ in range(2):
        grove.age(None, "b")
        grove.collect("b")
        grove.collect()
    assert grove.pin_reasons() == {"ns@b": PinReason.NEEDED}
    held.release()
    grove.age(None, "b")
    grove.collect("b")
    grove.collect()
    assert not grove.pins()
    assert grove.contents("b") == grove.contents()


def test_a_damaged_head_of_a_branch_keeps_its_pin(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    grove.kv("b").put(b"k", b"v")
    newest = f"namespaces/ns@b/manifest/{grove.manifest('b').generation:020d}.manifest.json"
    data = grove.inner.get(newest)
    grove.inner.delete(newest)
    grove.inner.put_if_absent(newest, data[:-20])
    assert grove.pin_reasons() == {"ns@b": PinReason.UNREADABLE}


def test_a_life_that_ended_keeps_its_grace_although_another_maker_is_given_up(
    grove: Grove,
) -> None:
    kv = grown(grove)
    die_branching(grove, kv)
    grove.age(None)
    kv.branch("b")  # it was never made, but this one is
    dead, made = grove.pins()
    kv.drop_branch("b")
    plan = grove.collect(apply=False).plan
    assert [judged.reason for judged in plan.pins] == [PinReason.NEVER_MADE, PinReason.GRACE]
    grove.collect()
    assert grove.pins() == (made,)
    assert made.nonce != dead.nonce
    grove.clock.advance(GRACE_S + 1)
    grove.collect()
    assert not grove.pins()


def test_a_branch_of_which_nothing_can_be_read_keeps_its_pin_and_nobody_from_collecting(
    grove: Grove,
) -> None:
    kv = grown(grove)
    kv.branch("b")
    (only,) = grove.objects("b", "manifest")
    key = f"namespaces/ns@b/manifest/{only}.manifest.json"
    data = grove.inner.get(key)
    grove.inner.delete(key)
    grove.inner.put_if_absent(key, data[:-20])
    kv.flush()
    grove.compact(floor_lsn=kv.lsn)
    grove.age(None)
    assert grove.pin_reasons() == {"ns@b": PinReason.UNREADABLE}
    assert grove.collect().deleted
    assert [pin.child for pin in grove.pins()] == ["ns@b"]


def test_a_branch_on_its_way_is_not_given_up_by_a_clock_that_is_ahead(grove: Grove) -> None:
    kv = grown(grove)
    ahead = ManualClock(now_us=grove.clock.now_us() + round(10 * GRACE_S * 1_000_000))

    def collect_meanwhile() -> None:
        context = grove.database(grove.inner).context()
        report = collect(
            context.chain(NS), context.store, settings=grove.settings, clock=ahead, apply=True
        )
        assert [judged.reason for judged in report.plan.pins] == [PinReason.YOUNG]

    grove.store.once("upload", "ns@b/segments", collect_meanwhile)
    kv.branch("b")
    assert grove.contents("b") == grove.contents()


# Detaching.


def test_a_detached_branch_stands_alone(grove: Grove) -> None:
    kv = grown(grove)
    early = kv.lsn
    kv.branch("b")
    branch = grove.kv("b")
    branch.put(b"k1", b"mine")
    seen = grove.contents("b")
    cut_loose(grove, "b")
    manifest = grove.manifest("b")
    assert manifest.origin is None
    assert not any(ref.namespace for ref in manifest.segments)
    branch.put(b"k2", b"mine")  # its writer was not disturbed
    assert grove.contents("b") == seen | {b"k2": b"mine"}
    assert grove.contents("b", early) == grove.contents()
    assert [(b.name, b.parent, b.lsn) for b in kv.branches()] == [("b", None, None)]
    for _ in range(2):
        grove.age(None, "b")
        grove.collect("b")
        grove.collect()
    assert not grove.pins()
    grove.db.drop(NS)
    for _ in range(3):
        grove.clock.advance(GRACE_S + 1)
        grove.collect()
    assert grove.objects(None, "segments") == []
    assert grove.contents("b") == seen | {b"k2": b"mine"}


def test_a_parent_of_a_detached_branch_goes_when_that_has_let_go(grove: Grove) -> None:
    grown(grove).branch("b")
    cut_loose(grove, "b")
    with pytest.raises(InvalidInputError, match=r"has branches; detached, .* collects them: ns@b"):
        grove.db.drop(NS)
    grove.age("b")
    grove.collect("b")
    grove.db.drop(NS)


def test_what_a_grandchild_depends_on_is_not_detached(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    branch = grove.kv("b")
    branch.branch("c")
    with pytest.raises(InvalidInputError, match="ns@c"):
        cut_loose(grove, "b")
    kv.drop_branch("c")
    cut_loose(grove, "b")
    cut_loose(grove, "b")  # once is enough, twice is fine
    assert grove.contents("b") == grove.contents()


def test_a_branch_cut_at_an_old_version_is_detached_as_of_that(grove: Grove) -> None:
    early = branched_early(grove)
    cut_loose(grove, "b")
    assert grove.contents("b") == {b"k": b"1"}
    assert all(ref.lsn_max <= early for ref in grove.manifest("b").segments)


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("deep", [False, True])
def test_repair_puts_back_the_pins_that_a_damaged_generation_had_put(
    grove: Grove, deep: bool, flushes: bool
) -> None:
    kv = grown(grove)
    first = grove.manifest().generation + 1
    if flushes:
        kv.flush()
    kv.branch("b")
    if deep:
        grove.kv("b").branch("c")
    seen, pins = grove.contents("b"), grove.pins()
    kv.close()
    for generation in range(first, grove.manifest().generation + 1):
        key = f"namespaces/ns/manifest/{generation:020d}.manifest.json"
        data = grove.inner.get(key)
        grove.inner.delete(key)
        grove.inner.put_if_absent(key, data[:-20])
    assert not grove.pins()  # what reads fall back to knows nothing of them
    repair(grove.db.context(), NS, apply=True)
    assert {pin.nonce for pin in grove.pins()} == {pin.nonce for pin in pins}
    again = grove.kv()
    again.put(b"k1", b"late")
    again.flush()
    grove.compact(floor_lsn=again.lsn)
    for _ in range(2):
        grove.age(None)
        report = grove.collect()
    # Nobody knows what the generation of the flush named: as long as the pins stand, all stays.
    assert any("damaged or missing" in problem for problem in report.problems) == flushes
    assert grove.contents("b") == seen
