"""A log object that somebody deleted: an error for everybody, and nothing else is taken for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import pytest

import reef
from reef.doctor import repair, verify
from reef.engine import check_end
from reef.errors import AlreadyExistsError, CorruptError, UnavailableError
from reef.format import LogKind, Prev, decode_log, encode_log, log_key
from reef.kv import KeyValue
from reef.log import list_log
from reef.manifest import open_writer
from reef.store import ObjectMeta, Store
from reef.testing import CountingStore, WrapperStore
from reef.types import pack_lsn
from tests.support.code_without_guards import Edit, Guard, removed
from tests.support.engine.log_script import LogScript
from tests.support.engine.open_database import contents, database
from tests.support.engine.open_handles import writer_of
from tests.support.jobs.passes import index, rebuild

ROWS = {b"k%02d" % i: b"v%d" % i for i in range(20)}


def written(store: Store, **settings: object) -> KeyValue:
    """Write twenty rows, each by a log object of its own; the fence has slot 1."""
    kv = database(store, **settings).kv("ns")
    for key, value in ROWS.items():
        kv.put(key, value)
    return kv


def slot_of(number: int) -> int:
    return number + 2


def test_a_deleted_log_object_is_an_error_for_everybody_until_repair(store: Store) -> None:
    written(store)
    key = log_key("ns", slot_of(7))
    store.delete(key)
    before = [meta.key for meta in store.list("namespaces/")]
    context = database(store).context()
    for use in (
        lambda: contents(store),
        lambda: database(store, seed=2).kv("ns"),
        lambda: index(context, "ns"),
        lambda: rebuild(context, "ns"),
        lambda: database(store).kv("ns", mode="r").branch("b"),
        lambda: database(store).drop("ns"),
    ):
        with pytest.raises(CorruptError, match=rf"{key}.*reef repair"):
            use()
    assert [meta.key for meta in store.list("namespaces/")] == before, "nothing was written"
    (problem,) = verify(context, "ns").problems
    assert (problem.kind, problem.key) == ("log-missing", key)

    (step,) = repair(context, "ns").steps
    assert (step.kind, step.state, step.key) == ("fill-log-gap", "refused", key)
    assert "up to slot 21, count again" in step.text
    assert repair(context, "ns", apply=True, accept_loss=True).is_mended
    left = {key: value for key, value in ROWS.items() if key != b"k07"}
    assert contents(store) == left
    kv = database(store, seed=3).kv("ns")
    kv.put(b"more", b"1")
    assert contents(store) == {**left, b"more": b"1"}
    kv.close()
    index(context, "ns")
    assert contents(store) == {**left, b"more": b"1"}
    assert verify(context, "ns", deep=True).problems == ()


@pytest.mark.parametrize("gone", [range(1), range(5, 6), range(12), range(3, 12), range(18, 19)])
@pytest.mark.parametrize("parallel", [1, 2, 8])
def test_a_reader_finds_what_lies_behind(store: Store, gone: range, parallel: int) -> None:
    """As many as a writer may have in flight are probed, and doubling distances beyond."""
    written(store, max_parallel_writes=parallel)
    first = min(meta.key for meta in store.list("namespaces/ns/wal/"))
    assert first == log_key("ns", 1)
    fences = parallel
    for number in gone:
        store.delete(log_key("ns", fences + 1 + number))
    last = len(ROWS) - 1
    if last - gone[0] >= parallel:
        with pytest.raises(CorruptError, match=log_key("ns", fences + 1 + gone[0])):
            contents(store)
    else:  # as if they had been in flight
        assert len(contents(store)) == gone[0]
    with_writer = pytest.raises(CorruptError, match="reef repair")
    if last - gone[0] >= parallel:
        with with_writer:
            database(store, seed=2).kv("ns")


def test_a_long_hole_at_the_floor_is_found(store: Store) -> None:
    kv = database(store, flush_threshold_slots=10_000).kv("ns")
    for i in range(700):
        kv.put(b"%d" % i, b"v")
    for slot in range(2, 400):
        store.delete(log_key("ns", slot))
    with pytest.raises(CorruptError, match=log_key("ns", 2)):
        contents(store)


def test_a_reader_that_follows_is_told_when_it_looks_at_the_head(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    reader = database(store).kv("ns", mode="r")
    gone = kv.put(b"b", b"1").lsn >> 20
    kv.put(b"c", b"1")
    store.delete(log_key("ns", gone))
    assert dict(reader.items()) == {b"a": b"1"}
    with pytest.raises(CorruptError, match=log_key("ns", gone)):
        reader.at(snapshot="any")


def test_other_things_under_the_name_of_log_objects_are_no_sign_of_a_hole(store: Store) -> None:
    written(store).close()
    end = slot_of(len(ROWS))
    store.put_if_absent(log_key("ns", end + 8), b"garbage")
    store.put_if_absent(log_key("ns", end + 50), store.get(log_key("ns", slot_of(3))))
    assert contents(store) == ROWS
    report = verify(database(store).context(), "ns")
    assert "log-missing" not in [problem.kind for problem in report.problems]
    kv = database(store, seed=2).kv("ns")
    kv.put(b"more", b"1")
    assert contents(store) == {**ROWS, b"more": b"1"}


def test_what_is_there_at_the_second_look_was_on_the_way(store: Store) -> None:
    """Slots are not asked for at one moment: the log may grow in between."""
    written(store).close()
    context = database(store).context()
    chain = context.chain("ns")
    head = chain.load()
    assert head is not None
    last = slot_of(len(ROWS)) - 1
    data = store.get(log_key("ns", last - 1))
    store.delete(log_key("ns", last - 1))

    class Growing(WrapperStore):
        """The writer puts the object right before somebody asks for the one behind it."""

        def get(self, key: str) -> bytes:
            if key == log_key("ns", last):
                with suppress(AlreadyExistsError):
                    store.put_if_absent(log_key("ns", last - 1), data)
            return super().get(key)

    growing = database(Growing(store)).context()
    assert check_end(growing, chain, head, last - 1, [last])
    assert contents(store) == ROWS


def test_the_end_is_judged_by_the_number_of_parallel_writes_of_that_moment(store: Store) -> None:
    """A writer that may have more in flight opens while another looks at the log."""
    written(store).close()
    context = database(store).context()
    chain = context.chain("ns")
    head = chain.load()
    assert head is not None
    end = slot_of(len(ROWS))
    store.put_if_absent(log_key("ns", end + 3), relocated(store, end + 3))
    other = context.chain("ns")
    other.publish(lambda head: open_writer(head.manifest, max_parallel_writes=8))  # type: ignore[union-attr]
    assert not check_end(context, chain, head, end, [end + 3])
    assert contents(store) == ROWS
    other.publish(lambda head: open_writer(head.manifest, max_parallel_writes=2))  # type: ignore[union-attr]
    with pytest.raises(CorruptError, match=log_key("ns", end)):
        contents(store)


def test_a_number_that_rose_and_fell_in_between_was_not_seen(store: Store) -> None:
    """Between two looks at the head one writer may have had more in flight, and another fenced it."""
    written(store).close()
    context = database(store).context()
    end = slot_of(len(ROWS))
    store.put_if_absent(log_key("ns", end + 3), relocated(store, end + 3))
    looks = iter(range(2))

    class Taken(WrapperStore):
        """Between the second look at the slot and that at the head, the log is taken over."""

        def list(self, prefix: str = "", after: str = "") -> Iterator[ObjectMeta]:
            if "/manifest/" in prefix and next(looks, 2) == 1:
                other = context.chain("ns")
                other.publish(lambda head: open_writer(head.manifest))  # type: ignore[union-attr]
                store.put_if_absent(log_key("ns", end), relocated(store, end))
            return super().list(prefix, after)

    taken = database(Taken(store)).context()
    chain = taken.chain("ns")
    head = chain.load()
    assert head is not None
    assert check_end(taken, chain, head, end, [end + 3]), "the slot is not absent any more"


def relocated(store: Store, slot: int) -> bytes:
    """Return a log object for a slot that nobody has come to."""
    log = decode_log(store.get(log_key("ns", slot_of(0))))
    record = msgspec.structs.replace(log.records[0], lsn=pack_lsn(slot, 0))
    return encode_log(msgspec.structs.replace(log, slot=slot, records=(record,)))


def test_an_open_writer_flushes_what_was_deleted_behind_its_back(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Its memory has the rows: they are not lost, and no new reader meets the hole."""
    kv = written(store)
    store.delete(log_key("ns", slot_of(7)))
    with pytest.raises(CorruptError, match="reef repair"):
        contents(store)
    writer_of(kv).reload()
    assert log_key("ns", slot_of(7)) in caplog.text
    assert contents(store) == ROWS
    kv.put(b"more", b"1")
    assert dict(database(store, seed=2).kv("ns").items()) == {**ROWS, b"more": b"1"}


def test_a_writer_that_cannot_flush_them_says_so(store: Store) -> None:
    class Full(WrapperStore):
        def upload(self, key: str, parts: object) -> None:
            raise UnavailableError("full")

    kv = written(Full(store))
    store.delete(log_key("ns", slot_of(7)))
    with pytest.raises(CorruptError, match=log_key("ns", slot_of(7))):
        writer_of(kv).reload()


def test_opening_for_writing_lists_the_log_before_it_takes_an_epoch(store: Store) -> None:
    written(store)
    store.delete(log_key("ns", slot_of(7)))
    counting = CountingStore(store)
    with pytest.raises(CorruptError):
        database(counting, seed=2).kv("ns")
    assert counting.counts.requests["put_if_absent"] == 0


def test_repair_tells_a_write_that_was_never_committed_from_those_that_were(store: Store) -> None:
    """A fence was deleted: the write that lost its slot to it must not become its successor."""
    script = LogScript(store)
    script.data({b"a": b"1"})
    fence = script.slot
    old = script.epoch
    script.fence()
    before = Prev(fence, 4711)  # what the older writer had in flight in that slot
    late = script._make(LogKind.DATA, script._records([{b"x": b"!"}], None, None, 0), before, old)
    script._put(late)
    for i in range(3):
        script.data({b"b%d" % i: b"1"})
    rows = {b"a": b"1", b"b0": b"1", b"b1": b"1", b"b2": b"1"}
    assert contents(store) == rows
    store.delete(log_key("ns", fence))
    context = database(store).context()
    with pytest.raises(CorruptError, match=log_key("ns", fence)):
        contents(store)
    kinds = [step.kind for step in repair(context, "ns").steps]
    assert kinds == ["fill-log-gap", "skip-log-object"]
    assert repair(context, "ns", apply=True, accept_loss=True).is_mended
    assert contents(store) == rows
    for options in (reef.jobs.IndexOptions(task_slots=1),):
        index(context, "ns", options=options)
    assert contents(store) == rows
    assert list_log(store, "ns", 1).ahead.tolist() == []


def test_a_slot_that_was_folded_or_is_of_an_ended_life_is_no_hole(store: Store) -> None:
    """It was collected since the head was read, or stays empty between two lives."""
    db = database(store)
    kv = db.kv("ns")
    kv.put(b"a", b"1")
    context = database(store).context()
    chains = context.chain("ns"), context.chain("ns")
    heads = [chain.load() for chain in chains]
    for i in range(5):
        kv.put(b"%d" % i, b"1")
    kv.flush()
    slot = slot_of(2)
    store.delete(log_key("ns", slot))
    assert heads[0] is not None
    assert check_end(context, chains[0], heads[0], slot, [slot + 2])
    kv.close()
    db.drop("ns")
    with database(store, seed=2).kv("ns") as again:
        again.put(b"b", b"1")
    lives = [decode_log(store.get(m.key)).slot for m in store.list("namespaces/ns/wal/")]
    empty = next(slot for slot in lives if slot + 1 not in lives and slot != lives[-1]) + 1
    assert heads[1] is not None
    assert check_end(context, chains[1], heads[1], empty, [lives[-1]])
    assert contents(store) == {b"b": b"1"}


CHECKS: list[tuple[str, str, Callable[[Store], None]]] = [
    (
        "if _is_there(context, log_key(namespace, slot)):",
        "if False:",
        test_what_is_there_at_the_second_look_was_on_the_way,
    ),
    (
        "if newest is None or _is_past(newest.manifest, head.manifest, slot):",
        "if False:",
        test_a_slot_that_was_folded_or_is_of_an_ended_life_is_no_hole,
    ),
    (
        "if newest.manifest.writer_epoch == head.manifest.writer_epoch:",
        "if True:",
        test_a_number_that_rose_and_fell_in_between_was_not_seen,
    ),
    (
        "if witness - slot < parallel:",
        "if False:",
        test_the_end_is_judged_by_the_number_of_parallel_writes_of_that_moment,
    ),
    (
        "next(filter(reader.has_object, far), None)",
        "next(iter(far), None)",
        test_other_things_under_the_name_of_log_objects_are_no_sign_of_a_hole,
    ),
]


@pytest.mark.parametrize(("old", "new", "scenario"), CHECKS, ids=lambda value: str(value)[:40])
def test_each_check_keeps_a_false_alarm_away(
    store: Store, old: str, new: str, scenario: Callable[[Store], None]
) -> None:
    guard = Guard("no false alarm", (Edit("reef.engine._holes:check_end", old, new),))
    with removed(guard), pytest.raises((AssertionError, CorruptError)):
        scenario(store)
