"""Attaching segments by a log record: one version, all or none, once, and never what is not there."""

from __future__ import annotations

import msgspec
import pytest

from reef import CreateOnly, Equals
from reef.database import Database
from reef.doctor import verify
from reef.engine import Face, Receipt, Writer, open_for_reading, open_for_writing
from reef.errors import (
    ConditionFailedError,
    FencedError,
    IdempotencyError,
    InvalidInputError,
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
    StalePlanError,
)
from reef.format import LogKind, SegmentRef, decode_log, segment_key
from reef.jobs import InProcess
from reef.kv import FACE as KV_FACE
from reef.kv import KeyValue
from reef.store import Store
from reef.testing import CountingStore, Fault, FaultyStore
from reef.types import pack_lsn, unpack_lsn
from tests.support.engine.attaching import begin_load, upload
from tests.support.engine.calls_beside import Beside
from tests.support.engine.collecting import World
from tests.support.engine.damage import flip
from tests.support.engine.held_puts import Gate
from tests.support.engine.open_database import contents, database
from tests.support.engine.open_handles import context_of, writer_of
from tests.support.jobs.compactor import Compactor
from tests.support.jobs.passes import index

WAL = "namespaces/ns/wal/"
PARALLEL = [1, 4]


def objects(store: Store, kind: LogKind) -> int:
    return sum(decode_log(store.get(meta.key)).kind is kind for meta in store.list(WAL))


def two_segments(db: Database) -> tuple[KeyValue, Writer, list[SegmentRef]]:
    kv = db.kv("ns")
    kv.write({b"a": b"old", b"z": b"old"})
    job = begin_load(db.context())
    refs = [
        upload(db.context(), job, {b"a": b"1", b"b": b"2"}, row_lsn=77),
        upload(db.context(), job, {b"c": b"3", b"d": None}),
    ]
    return kv, writer_of(kv), refs


@pytest.mark.parametrize("parallel", PARALLEL)
def test_all_rows_are_there_at_one_version(store: Store, parallel: int) -> None:
    kv, writer, refs = two_segments(database(store, max_parallel_writes=parallel))
    reader = database(store).kv("ns", mode="r")
    before = kv.lsn
    receipt = writer.attach(refs)
    wanted = {b"a": b"1", b"b": b"2", b"c": b"3", b"z": b"old"}
    assert receipt.lsn > before
    assert unpack_lsn(receipt.lsn)[1] == 0
    assert kv.lsn == receipt.lsn
    assert dict(kv.items()) == wanted
    assert dict(kv.at(lsn=before).items()) == {b"a": b"old", b"z": b"old"}
    found = writer.one(b"a")
    assert found is not None
    assert found.lsn == receipt.lsn
    assert reader.refresh() == receipt.lsn
    assert dict(reader.items()) == wanted
    assert contents(store) == wanted
    assert objects(store, LogKind.ATTACH) == 1
    kv.put(b"b", b"newer")
    kv.delete(b"c")
    assert dict(kv.items()) == {b"a": b"1", b"b": b"newer", b"z": b"old"}


def test_it_survives_flushes_jobs_compaction_and_collection() -> None:
    world = World()
    kv = world.kv()
    kv.put(b"a", b"old")
    db = world.database()
    context = db.context()
    job = begin_load(context)
    refs = [upload(context, job, {b"a": b"1", b"b": b"2"}), upload(context, job, {b"c": b"3"})]
    lsn = writer_of(kv).attach(refs).lsn
    kv.put(b"b", b"newer")
    job.end()
    wanted = {b"a": b"1", b"b": b"newer", b"c": b"3"}

    def check() -> None:
        assert dict(kv.items()) == wanted
        assert contents(world.store) == wanted
        assert not verify(context, "ns", deep=True).problems

    check()
    world.clock.advance(100_000)
    world.collect()
    check()  # only the log names them yet
    kv = world.kv()
    check()
    kv.flush()
    assert {ref.version for ref in writer_of(kv).manifest.segments} == {None, lsn}
    assert not writer_of(kv).tail.attached
    check()
    kv.put(b"d", b"4")
    wanted[b"d"] = b"4"
    index(context, "ns", InProcess(context))
    check()
    Compactor(context, "ns").run()
    check()
    for _ in range(3):
        world.clock.advance(100_000)
        world.collect()
        kv.put(b"d", b"4")
    check()
    assert all(ref.version is None for ref in context.chain("ns").load().manifest.segments)  # type: ignore[union-attr]


def test_a_segment_is_attached_once(store: Store) -> None:
    kv, writer, refs = two_segments(database(store))
    writer.attach(refs)
    for step in (lambda: None, kv.flush, lambda: Compactor(context_of(kv), "ns").run()):
        step()
        with pytest.raises(InvalidInputError, match="attached once"):
            writer.attach(refs)
    kv.put(b"new", b"one")
    kv.flush()
    assert contents(store) == {b"a": b"1", b"b": b"2", b"c": b"3", b"z": b"old", b"new": b"one"}


def test_a_flush_is_cut_where_segments_were_attached(store: Store) -> None:
    kv, writer, refs = two_segments(database(store))
    kv.put(b"b", b"before")
    attached = writer.attach(refs).lsn
    kv.write({b"a": b"after", b"d": b"after"})
    before = dict(kv.items())
    kv.flush()
    spans = sorted((ref.lsn_min, ref.lsn_max) for ref in writer.manifest.segments)
    assert spans[1:3] == [(attached, attached)] * 2
    assert spans[0][1] < attached < spans[3][0]
    assert dict(kv.items()) == before == contents(store)
    assert verify(database(store).context(), "ns", deep=True).problems == ()


def test_verify_looks_at_what_the_unfolded_log_attaches(store: Store) -> None:
    db = database(store)
    _, writer, refs = two_segments(db)
    writer.attach(refs)
    report = verify(db.context(), "ns", deep=True)
    assert (report.problems, report.orphans, report.checked["segments"]) == ((), (), 2)
    key = segment_key("ns", refs[0].id)
    flip(store, key)
    assert [(p.kind, p.key) for p in verify(db.context(), "ns", deep=True).problems] == [
        ("segment-damaged", key)
    ]
    store.delete(key)
    assert [(p.kind, p.key) for p in verify(db.context(), "ns").problems] == [
        ("segment-missing", key)
    ]


def test_a_job_may_fold_what_is_attached(store: Store) -> None:
    db = database(store)
    kv, writer, refs = two_segments(db)
    lsn = writer.attach(refs).lsn
    index(db.context(), "ns", InProcess(db.context()))
    manifest = db.context().chain("ns").load().manifest  # type: ignore[union-attr]
    assert sorted(ref.version or 0 for ref in manifest.segments) == [0, lsn, lsn]
    kv.flush()
    kv.put(b"a", b"newer")
    assert dict(kv.items()) == {b"a": b"newer", b"b": b"2", b"c": b"3", b"z": b"old"}
    assert contents(store) == dict(kv.items())


@pytest.mark.parametrize("parallel", PARALLEL)
def test_a_write_behind_an_attach_in_flight_is_checked_against_it(
    store: Store, parallel: int
) -> None:
    gate = Gate(store)
    kv, writer, refs = two_segments(database(gate, max_parallel_writes=parallel))
    gate.is_open = False
    attaching = Beside(lambda: writer.attach(refs))
    gate.wait_until_held()
    assert kv.get(b"a") == b"old"
    assert dict(kv.items()) == {b"a": b"old", b"z": b"old"}
    refused = Beside(lambda: kv.write({b"b": b"mine"}, condition=CreateOnly()))
    swapped = Beside(lambda: kv.write({b"a": b"swapped"}, condition=Equals(value=b"1")))
    created = Beside(lambda: kv.write({b"d": b"back"}, condition=CreateOnly()))
    gate.is_open = True
    gate.let(8)
    receipt = attaching.finish()
    assert isinstance(receipt, Receipt)
    assert isinstance(refused.finish(), ConditionFailedError)
    for done in (swapped, created):
        after = done.finish()
        assert isinstance(after, Receipt)
        assert after.lsn > receipt.lsn
    wanted = {b"a": b"swapped", b"b": b"2", b"c": b"3", b"d": b"back", b"z": b"old"}
    assert dict(kv.items()) == wanted
    assert contents(store) == wanted
    assert kv.at(lsn=receipt.lsn).get(b"a") == b"1"


def test_an_attach_that_was_refused_is_never_seen_and_gives_its_version_to_another(
    store: Store,
) -> None:
    faulty = FaultyStore(store)
    kv, writer, refs = two_segments(database(faulty))
    slot = writer.tail.replay.next_slot
    faulty.arm(Fault("denied", on="put_if_absent", key="*/wal/*"))
    with pytest.raises(ReefError):
        writer.attach(refs)
    assert not writer.tail.attaching
    assert kv.put(b"q", b"q").lsn == pack_lsn(slot, 0)
    assert dict(kv.items()) == {b"a": b"old", b"q": b"q", b"z": b"old"} == contents(store)
    kv.write({b"b": b"mine"}, condition=CreateOnly())
    assert writer.attach(refs).lsn > pack_lsn(slot, 0)
    assert dict(kv.items()) == contents(store)
    assert kv.get(b"b") == b"2"


@pytest.mark.parametrize("lands", [True, False])
def test_an_unknown_outcome_is_settled_before_anything_else(store: Store, lands: bool) -> None:
    faulty = FaultyStore(store)
    kv, writer, refs = two_segments(database(faulty))
    put, get = ("reply_lost" if lands else "error_before"), "error_before"
    faulty.arm(
        Fault(put, on="put_if_absent", key="*/wal/*", times=1 if lands else 0),
        Fault(get, on="get", key="*/wal/*", times=0),
    )
    with pytest.raises(OutcomeUnknownError):
        writer.attach(refs, idempotency_key=b"job")
    assert kv.get(b"b") is None
    faulty.disarm()
    receipt = writer.attach(refs, idempotency_key=b"job")
    assert kv.get(b"b") == b"2"
    assert objects(store, LogKind.ATTACH) == 1
    assert writer.attach(refs, idempotency_key=b"job").lsn == receipt.lsn
    assert contents(store) == dict(kv.items())


def test_a_key_attaches_once_also_after_a_crash_and_after_its_segments_are_gone() -> None:
    world = World()
    kv = world.kv()
    context = world.database().context()
    job = begin_load(context)
    refs = [upload(context, job, {b"a": b"1"})]
    first = writer_of(kv).attach(refs, idempotency_key=b"job", source="s", sequence=3)
    job.end()
    kv = world.kv()
    again = begin_load(context)
    others = [upload(context, again, {b"a": b"2", b"b": b"2"})]
    writer = writer_of(kv)
    for key, source, sequence in (
        (b"job", None, None),
        (None, "s", 3),
        (None, "s", 2),
        (b"job", "s", 3),
    ):
        receipt = writer.attach(others, idempotency_key=key, source=source, sequence=sequence)
        assert (receipt.lsn, receipt.replayed) == (first.lsn, True)
    with pytest.raises(IdempotencyError):
        kv.put(b"x", b"y", idempotency_key=b"job")
    kv.flush()
    context.store.delete(segment_key("ns", others[0].id))
    again.end()
    assert writer.attach(others, idempotency_key=b"job").lsn == first.lsn
    assert dict(kv.items()) == {b"a": b"1"}


def test_two_attaches_of_one_key_at_once_are_one(store: Store) -> None:
    gate = Gate(store)
    kv, writer, refs = two_segments(database(gate, max_parallel_writes=4))
    gate.is_open = False
    some = [Beside(lambda: writer.attach(refs, idempotency_key=b"job")) for _ in range(4)]
    gate.wait_until_held()
    gate.is_open = True
    gate.let(4)
    receipts = [one.finish() for one in some]
    assert len({receipt.lsn for receipt in receipts}) == 1  # type: ignore[attr-defined]
    assert objects(store, LogKind.ATTACH) == 1
    assert kv.get(b"b") == b"2"


def test_attaches_and_writes_of_many_threads_go_side_by_side(store: Store) -> None:
    db = database(store, max_parallel_writes=4)
    kv = db.kv("ns")
    writer, context = writer_of(kv), db.context()
    job = begin_load(context)
    loads = [
        upload(context, job, {b"shared": b"load %d" % i, b"load %d" % i: b"x"}) for i in range(6)
    ]
    begun = [Beside(lambda ref=ref: writer.attach([ref])) for ref in loads]  # type: ignore[misc]
    begun += [
        Beside(lambda i=i: kv.write({b"shared": b"put %d" % i, b"put %d" % i: b"x"}))  # type: ignore[misc]
        for i in range(6)
    ]
    lsns = {one.finish().lsn: n for n, one in enumerate(begun)}  # type: ignore[attr-defined]
    assert len(lsns) == 12
    last = lsns[max(lsns)]
    found = contents(store)
    assert found == dict(kv.items())
    assert len(found) == 13
    assert found[b"shared"] == (b"load %d" % last if last < 6 else b"put %d" % (last - 6))


def test_a_segment_that_is_not_there_or_not_whole_is_not_attached(store: Store) -> None:
    kv, writer, refs = two_segments(database(store))
    first, second = refs
    missing = msgspec.structs.replace(second, id=first.id[:25] + "0" + first.id[26:])
    longer = msgspec.structs.replace(second, size=second.size + 1)
    for wrong, why in ((missing, "does not exist"), (longer, "bytes: expected")):
        with pytest.raises(InvalidInputError, match=why):
            writer.attach([first, wrong])
    assert objects(store, LogKind.ATTACH) == 0
    assert dict(kv.items()) == {b"a": b"old", b"z": b"old"}


def test_what_cannot_be_one_record_is_refused(store: Store) -> None:
    db = database(store)
    _, writer, refs = two_segments(db)
    job = begin_load(db.context())
    across = upload(db.context(), job, {b"b": b"x", b"bb": b"y"})
    attached = msgspec.structs.replace(across, version=5, lsn_min=5, lsn_max=5)
    nobodys = msgspec.structs.replace(across, id=across.id[:26])
    epoch = msgspec.structs.replace(across, id=across.id[:26] + "-e99")
    for some, why in (
        ([], "at least one"),
        ([*refs, across], "have keys in common"),
        ([across, across], "have keys in common"),
        ([attached], "without a version"),
        ([nobodys], "ends in the intent"),
        ([epoch], "ends in the intent"),
    ):
        with pytest.raises(InvalidInputError, match=why):
            writer.attach(some)
    assert objects(store, LogKind.ATTACH) == 0
    small = database(store, log_segment_max_bytes=2048).kv("ns")
    with pytest.raises(InvalidInputError, match="fewer and larger"):
        writer_of(small).attach([msgspec.structs.replace(across, key_max=b"c" * 2000)])


def test_a_job_whose_intent_was_ended_attaches_nothing(store: Store) -> None:
    db = database(store)
    kv = db.kv("ns")
    job = begin_load(db.context())
    ref = upload(db.context(), job, {b"a": b"1"})
    job.end()
    with pytest.raises(StalePlanError, match="start another job"):
        writer_of(kv).attach([ref])
    assert kv.put(b"b", b"the writer goes on").lsn
    assert contents(store) == {b"b": b"the writer goes on"}


def test_a_fenced_writer_attaches_nothing(store: Store) -> None:
    gate = Gate(store)
    _, writer, refs = two_segments(database(gate))
    gate.is_open = False
    attaching = Beside(lambda: writer.attach(refs))
    gate.wait_until_held()
    other = database(store).kv("ns")  # takes over while the record is on its way
    gate.is_open = True
    gate.let()
    assert isinstance(attaching.finish(), FencedError)
    with pytest.raises(FencedError):
        writer.attach(refs)
    assert dict(other.items()) == {b"a": b"old", b"z": b"old"} == contents(store)
    assert writer_of(other).attach(refs).lsn
    assert contents(store) == {b"a": b"1", b"b": b"2", b"c": b"3", b"z": b"old"}


def test_what_is_not_answered_is_not_written(store: Store) -> None:
    faulty = FaultyStore(store)
    kv, writer, refs = two_segments(database(faulty))
    for fault in (
        Fault("error_before", on="head", key="*/segments/*", times=0),
        Fault("error_before", on="list", times=0),
    ):
        faulty.arm(fault)
        with pytest.raises(NotWrittenError):
            writer.attach(refs)
        faulty.disarm()
    assert objects(store, LogKind.ATTACH) == 0
    assert writer.attach(refs).lsn == kv.lsn


def test_a_crash_leaves_an_intent_that_spares_the_segments_until_it_ends() -> None:
    world = World()
    kv = world.kv()
    kv.put(b"a", b"old")
    context = world.database().context()
    job = begin_load(context)
    ref = upload(context, job, {b"a": b"1"})
    world.clock.advance(100_000)
    kv = world.kv()  # whoever was to attach it is gone
    world.collect()
    assert context.store.head(segment_key("ns", ref.id)).size == ref.size
    assert contents(world.store) == {b"a": b"old"}
    job.end()
    world.clock.advance(100_000)
    for _ in range(2):
        kv.put(b"b", b"x")
        world.collect()
    assert not [
        meta for meta in context.store.list("namespaces/ns/segments/") if ref.id in meta.key
    ]


def test_a_namespace_that_takes_versions_from_its_caller_takes_that_of_an_attach(
    store: Store,
) -> None:
    db = database(store)
    context = db.context()
    face = Face("made-up", KV_FACE.schema, "caller")
    writer = open_for_writing(context, "ns", face)
    ref = upload(context, begin_load(context), {b"a": b"1"})
    with pytest.raises(InvalidInputError, match="lsn"):
        writer.attach([ref])
    assert writer.attach([ref], lsn=70).lsn == 70
    found = open_for_reading(context, "ns", face).one(b"a")
    assert found is not None
    assert found.lsn == 70
    other = upload(context, begin_load(context), {b"b": b"1"})
    with pytest.raises(InvalidInputError, match="above 70"):
        writer.attach([other], lsn=70)
    assert writer.one(b"b") is None


def test_it_costs_a_look_at_the_manifest_a_head_for_each_segment_and_one_put(store: Store) -> None:
    counting = CountingStore(store)
    _, writer, refs = two_segments(database(counting))
    counting.reset()
    writer.attach(refs)
    requests = counting.reset().requests
    assert requests["head"] == 2
    assert requests["put_if_absent"] == 1
    assert requests["list"] == 2, "the manifests, and the unfolded log"
    assert sum(requests.values()) <= 6
