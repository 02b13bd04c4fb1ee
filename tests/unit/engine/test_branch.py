"""Branches: what one sees of its parent, what it costs, and that neither disturbs the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from reef.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
    RetentionError,
    UnavailableError,
)
from reef.pages import WalRecord
from reef.testing import Operation, WrapperStore
from reef.types import namespace_of, pack_lsn, split_namespace, unpack_lsn
from tests.support.engine.attaching import begin_load, upload
from tests.support.engine.branching import NS, Grove, grown
from tests.support.engine.versions import log_batch

T = TypeVar("T")

PUTS = ("put_if_absent", "upload", "delete")


# What it sees.


def test_a_branch_has_what_its_parent_had_and_goes_its_own_way(grove: Grove) -> None:
    kv = grown(grove)
    before = grove.contents()
    made = kv.branch("b")
    assert (made.name, made.namespace, made.parent, made.lsn) == ("b", "ns@b", "ns", kv.lsn)
    assert grove.contents("b") == before

    branch = grove.kv("b")
    branch.put(b"k1", b"branch")
    branch.delete(b"k2")
    kv.put(b"k3", b"parent")
    mine = {k: v for k, v in before.items() if k != b"k2"} | {b"k1": b"branch"}
    assert grove.contents("b") == mine
    assert grove.contents() == before | {b"k3": b"parent"}


def test_every_lsn_of_the_parent_can_be_branched_from_and_read_in_the_branch(grove: Grove) -> None:
    kv = grove.kv()
    history: dict[int, dict[bytes, bytes]] = {}
    rows: dict[bytes, bytes] = {}
    for number in range(12):
        key, value = b"k%d" % (number % 3), b"v%d" % number
        rows = rows | {key: value}
        history[kv.put(key, value).lsn] = rows
        if number in (3, 7):
            kv.flush()
    for lsn, seen in history.items():
        name = f"at-{lsn}"
        assert kv.branch(name, lsn=lsn).lsn == lsn
        assert grove.contents(name) == seen
        for earlier, then in history.items():
            if earlier <= lsn:
                assert grove.contents(name, earlier) == then
    between = min(history) + 1
    kv.branch("between", lsn=between)
    assert grove.contents("between") == history[min(history)]


def test_a_branch_of_an_old_version_sees_nothing_newer_than_that(grove: Grove) -> None:
    kv = grove.kv()
    early = kv.put(b"k", b"1").lsn
    kv.put(b"k", b"2")
    kv.put(b"other", b"2")
    kv.flush()
    grove.compact()
    kv.branch("b", lsn=early)
    (ref,) = grove.manifest("b").segments
    assert (ref.namespace, ref.clip_lsn) == (NS, early)
    branch = grove.kv("b")
    assert dict(branch.items()) == {b"k": b"1"}
    branch.put(b"k", b"3")
    branch.flush()
    grove.compact("b")
    assert grove.contents("b") == {b"k": b"3"}
    assert grove.contents("b", early) == {b"k": b"1"}


def test_a_batch_is_never_cut(grove: Grove) -> None:
    kv = grove.kv()
    lsn = kv.write({b"a": b"1", b"b": b"1"}).lsn
    kv.put(b"c", b"2")
    kv.branch("b", lsn=lsn)
    assert grove.contents("b") == {b"a": b"1", b"b": b"1"}


def test_a_cut_between_two_batches_of_one_log_object(grove: Grove) -> None:
    """Two records of one object have versions of their own, and a branch may lie between them."""
    from reef.engine import WriteRequest

    kv = grove.kv()
    requests = [
        WriteRequest(batch=log_batch({b"k": value}), nbytes=2) for value in (b"1", b"2", b"3")
    ]
    first, second, third = kv._writing().write_all(requests)
    assert unpack_lsn(first.lsn)[0] == unpack_lsn(third.lsn)[0]
    kv.branch("b", lsn=second.lsn)
    assert grove.contents("b") == {b"k": b"2"}
    assert grove.contents("b", first.lsn) == {b"k": b"1"}
    assert grove.kv("b").put(b"k", b"mine").lsn > third.lsn


def test_a_branch_of_a_branch_shares_what_both_of_them_share(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    branch = grove.kv("b")
    branch.put(b"k1", b"b")
    branch.flush()
    before = grove.contents("b")
    made = branch.branch("c")
    assert made.parent == "ns@b"
    assert {ref.namespace for ref in grove.manifest("c").segments} == {NS, "ns@b"}
    grove.kv("c").put(b"k1", b"c")
    branch.put(b"k1", b"b2")
    assert grove.contents("c") == before | {b"k1": b"c"}
    # It stands in every namespace that it names, where its parent does.
    (of_b,) = (pin for pin in grove.pins() if pin.child == "ns@b")
    (of_c,) = (pin for pin in grove.pins() if pin.child == "ns@c")
    (in_b,) = grove.pins("b")
    assert (of_c.generation, of_c.lsn) == (of_b.generation, of_b.lsn)
    origin = grove.manifest("c").origin
    assert origin is not None
    assert origin.nonce == of_c.nonce == in_b.nonce != of_b.nonce


def test_what_the_log_attached_is_shared_at_its_version(grove: Grove) -> None:
    kv = grove.kv()
    kv.put(b"a", b"before")
    context = grove.db.context()
    job = begin_load(context)
    ref = upload(context, job, {b"a": b"loaded", b"b": b"loaded"})
    lsn = kv._writing().attach([ref]).lsn
    after = kv.put(b"a", b"after").lsn
    kv.branch("b", lsn=lsn)
    kv.branch("c", lsn=after)
    (shared,) = (s for s in grove.manifest("b").segments if s.namespace)
    assert (shared.id, shared.version) == (ref.id, lsn)
    assert grove.contents("b") == {b"a": b"loaded", b"b": b"loaded"}
    assert grove.contents("b", lsn - 1) == {b"a": b"before"}
    assert grove.contents("c") == {b"a": b"after", b"b": b"loaded"}


def test_an_empty_namespace_can_be_branched(grove: Grove) -> None:
    grove.kv().branch("b")
    branch = grove.kv("b")
    assert dict(branch.items()) == {}
    branch.put(b"k", b"v")
    assert grove.contents("b") == {b"k": b"v"}


def test_a_reader_makes_a_branch_as_well_beside_the_writer(grove: Grove) -> None:
    kv = grown(grove)
    reader = grove.database().kv(NS, mode="r")
    kv.put(b"late", b"1")
    reader.branch("b")
    assert grove.contents("b")[b"late"] == b"1"
    kv.put(b"later", b"1")  # the writer was not fenced, and is not waited for
    assert b"later" not in grove.contents("b")


def test_idempotency_keys_stay_with_the_namespace_that_took_them(grove: Grove) -> None:
    kv = grove.kv()
    first = kv.put(b"k", b"1", idempotency_key="once")
    kv.flush()
    kv.branch("b")
    branch = grove.kv("b")
    again = branch.put(b"k", b"2", idempotency_key="once")
    assert again.lsn > first.lsn
    assert grove.contents("b") == {b"k": b"2"}


def test_the_feed_of_a_branch_begins_where_it_left_its_parent(grove: Grove) -> None:
    kv = grown(grove)
    lsn = kv.lsn
    kv.branch("b")
    branch = grove.kv("b")
    own = [branch.put(b"k", b"1").lsn, branch.put(b"k", b"2").lsn]
    branch.flush()
    found = [lsn for batch in branch.changes() for lsn in batch.column("_lsn").to_pylist()]
    assert found == own
    after = [lsn for batch in branch.changes(after=lsn) for lsn in batch.column("_lsn").to_pylist()]
    assert after == own
    with pytest.raises(RetentionError, match="what came before is in the feed of 'ns'"):
        list(branch.changes(after=lsn - 1))


# What it costs.


def test_the_number_of_puts_does_not_depend_on_the_data(grove: Grove) -> None:
    kv = grown(grove)

    def puts(name: str, made_by: object = None) -> list[tuple[str, str]]:
        grove.store.requests.clear()
        (made_by or kv).branch(name)  # type: ignore[attr-defined]
        return [(op, key) for op, key in grove.store.requests if op in PUTS]

    small = puts("small")
    assert [op for op, _ in small] == ["put_if_absent", "upload", "put_if_absent"]
    assert small[0][1].startswith("namespaces/ns/manifest/")
    assert all(key.startswith("namespaces/ns@small/") for _, key in small[1:])
    for round in range(6):
        for number in range(50):
            kv.put(b"%d-%d" % (round, number), b"x" * 100)
        kv.flush()
    kv.put(b"log", b"2")
    assert len(puts("large")) == 3
    kv.flush()
    assert len(puts("folded")) == 2  # nothing in the log: nothing to upload
    grove.kv("large").put(b"k", b"v")
    of_branch = puts("deeper", grove.kv("large"))
    assert len(of_branch) == 4  # one more: it names objects of two namespaces


def test_making_one_never_waits_for_a_compaction_and_a_compaction_goes_on(grove: Grove) -> None:
    from tests.support.jobs.compactor import Compactor

    kv = grown(grove)
    before = grove.contents()
    compactor = Compactor(grove.db.context(), NS)
    plan = compactor.plan()
    outputs = compactor.write(plan)
    kv.branch("b")
    compactor.publish(plan, outputs)  # its point is the newest there is: nothing was dropped there
    assert grove.contents("b") == grove.contents() == before


# What is refused.


def test_a_name_is_taken_once_whichever_parent_it_is_of(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    with pytest.raises(AlreadyExistsError, match="ns@b"):
        kv.branch("b")
    with pytest.raises(AlreadyExistsError, match="ns@b"):
        grove.kv("b").branch("b")
    assert [pin.child for pin in grove.pins()] == ["ns@b"]


def test_below_the_floor_there_is_nothing_to_branch(grove: Grove) -> None:
    kv = grown(grove)
    kv.flush()
    grove.compact(floor_lsn=kv.lsn)
    with pytest.raises(RetentionError, match="retention floor"):
        kv.branch("b", lsn=kv.lsn - 1)
    assert not grove.pins()
    kv.branch("b")
    with pytest.raises(RetentionError):
        grove.kv("b").branch("c", lsn=kv.lsn - 1)


def test_a_version_that_lies_ahead_is_refused_and_leaves_nothing(grove: Grove) -> None:
    from reef.engine import create_branch

    kv = grown(grove)
    with pytest.raises(UnavailableError, match="not exist yet"):
        kv.branch("b", lsn=kv.lsn + 1)
    with pytest.raises(InvalidInputError, match="the newest version"):
        create_branch(grove.db.context(), NS, "ns@b", kv.lsn + pack_lsn(1, 0))
    assert not grove.pins()
    assert grove.objects("b", "manifest") == []


def test_a_branch_is_not_made_by_opening_it(grove: Grove) -> None:
    grown(grove)
    for mode in "wr":
        with pytest.raises(NotFoundError, match="has no branch 'nope'"):
            grove.kv("nope", mode=mode)
    assert grove.objects("nope", "manifest") == []


@pytest.mark.parametrize("name", ["", "a@b", "a/b", ".", "x" * 129])
def test_a_bad_name_is_refused(grove: Grove, name: str) -> None:
    kv = grove.kv()
    with pytest.raises(InvalidInputError, match="branch = "):
        kv.branch(name)
    with pytest.raises(InvalidInputError, match="branch="):
        grove.db.kv("ns@b")


def test_names_come_apart_as_they_were_put_together() -> None:
    assert split_namespace(namespace_of("a", "b")) == ("a", "b")
    assert split_namespace(namespace_of("a")) == ("a", None)
    assert namespace_of("a" * 126, "b" * 128).count("@") == 1
    with pytest.raises(InvalidInputError):
        namespace_of("a" * 128, "b" * 127)


def test_a_branch_needs_a_parent(grove: Grove) -> None:
    from reef.engine import create_branch

    with pytest.raises(NotFoundError, match="nothing to branch"):
        create_branch(grove.db.context(), "none", "none@b")
    assert not list(grove.inner.list(""))


def test_somebody_else_makes_it_first(grove: Grove) -> None:
    kv = grown(grove)
    other = grove.database(grove.inner)
    grove.store.once(
        "put_if_absent", "ns@b/manifest", lambda: other.kv(NS, mode="r").branch("b", lsn=kv.lsn)
    )
    with pytest.raises(AlreadyExistsError):
        kv.branch("b")
    (pin,) = grove.pins()  # the loser took its own back
    origin = grove.manifest("b").origin
    assert origin is not None
    assert pin.nonce == origin.nonce


@pytest.mark.parametrize("landed", [False, True])
def test_a_maker_that_does_not_know_leaves_its_pins_for_collection(
    grove: Grove, landed: bool
) -> None:
    class Silent(WrapperStore):
        """Does not answer for the branch's first manifest, be it written or not."""

        def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
            if "ns@b/manifest" not in key or operation == "list":
                return call()
            if operation == "put_if_absent" and landed:
                call()
            raise UnavailableError("no answer")

    grown(grove)
    maker = grove.database(Silent(grove.inner)).kv(NS, mode="r")
    with pytest.raises(OutcomeUnknownError):
        maker.branch("b")
    assert [pin.child for pin in grove.pins()] == ["ns@b"]
    grove.age(None, *(["b"] if landed else []))
    grove.collect()
    assert len(grove.pins()) == landed
    if landed:
        assert grove.contents("b") == grove.contents()
    else:
        assert grove.manifest("b").state == "aborted"


def test_a_maker_that_took_too_long_was_given_up(grove: Grove) -> None:
    kv = grown(grove)

    def sleep() -> None:
        grove.age()
        grove.collect(store=grove.inner)
        assert not grove.pins()
        assert grove.manifest("b").state == "aborted"

    grove.store.once("upload", "ns@b/segments", sleep)
    with pytest.raises(NotWrittenError, match="aborted it"):
        kv.branch("b")
    kv.branch("b")
    assert grove.contents("b") == grove.contents()
    assert grove.manifest("b").born == 2


@pytest.mark.parametrize("is_told", [False, True])
def test_a_maker_that_slept_while_the_log_was_folded_and_collected_misses_nothing(
    grove: Grove, is_told: bool
) -> None:
    """A slot that was collected looks like the end of the log."""
    from reef.engine import create_branch

    kv = grown(grove)
    lsn = kv.lsn
    other = grove.database(grove.inner)
    kv.close()

    def sleep() -> None:
        with other.kv(NS) as writer:
            writer.flush()
        for _ in range(2):
            grove.age()
            grove.collect(store=grove.inner)
        # The fence of the first writer, and the last object.
        assert len(grove.objects(None, "wal")) == 2

    grove.store.once("get", f"{NS}/wal/", sleep)
    made = create_branch(grove.db.context(), NS, "ns@b", lsn if is_told else None)
    assert made.lsn == lsn
    assert grove.contents("b") == grove.contents()


def test_the_branches_of_a_root_are_listed(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    kv.branch("a")
    grove.kv("b").branch("c")
    grove.db.kv("nsx").put(b"k", b"v")
    grove.db.kv("nsx").branch("z")
    for handle in (kv, grove.kv("c")):
        assert [(b.name, b.parent) for b in handle.branches()] == [
            ("a", "ns"),
            ("b", "ns"),
            ("c", "ns@b"),
        ]
    kv.drop_branch("a")
    assert [b.name for b in kv.branches()] == ["b", "c"]


def test_documents_branch_by_the_same_code(grove: Grove) -> None:
    docs = grove.db.namespace("docs")
    docs.upsert([{"id": "a", "n": 1}, {"id": "b", "n": 2}])
    docs.flush()
    docs.upsert([{"id": "b", "n": 3, "s": "new"}])
    docs.branch("x")
    docs.upsert([{"id": "c", "late": True}])
    branch = grove.db.namespace("docs", branch="x")
    assert branch.get("b") == {"id": "b", "n": 3, "s": "new"}
    assert branch.get("c") is None
    branch.patch([{"id": "a", "n": 10}])
    assert branch.get("a")["n"] == 10  # type: ignore[index]
    assert docs.get("a")["n"] == 1  # type: ignore[index]


@pytest.mark.parametrize("policy", ["kernel", "caller"])
def test_pages_branch_by_the_same_code_whoever_numbers_their_versions(
    grove: Grove, policy: str
) -> None:
    pages = grove.db.pages("p", page_size=512, lsn_policy=policy)
    history: dict[int, list[bytes | None]] = {}
    held: list[bytes | None] = [None] * 3
    for number in range(1, 8):
        lsn = None if policy == "kernel" else number * 10
        held = [*held]
        held[number % 3] = bytes([number]) * 512
        history[pages.append_wal([WalRecord(number % 3, lsn, bytes([number]) * 512)])] = held
        if number == 4:
            pages.flush()
    for lsn, seen in history.items():
        pages.branch(f"b{lsn}", lsn=lsn)
        with grove.db.pages("p", branch=f"b{lsn}") as branch:
            for earlier, then in history.items():
                if earlier <= lsn:
                    assert branch.get_pages(range(3), lsn=earlier) == then
            own = branch.append_wal(
                [WalRecord(0, None if policy == "kernel" else lsn + 1, b"x" * 512)]
            )
            assert own > lsn
            assert branch.get_pages(range(3)) == [b"x" * 512, *seen[1:]]
    assert pages.get_pages(range(3)) == held
