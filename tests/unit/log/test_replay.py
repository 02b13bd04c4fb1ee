"""The replay of the log: which objects are valid, which are void, and what is skipped."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from reef.clock import SystemClock
from reef.errors import AlreadyExistsError, CorruptError, FencedError, InvariantError
from reef.format import (
    LogKind,
    LogObject,
    LogRecord,
    Prev,
    SkippedSlot,
    damaged_checksum,
    encode_log,
    log_checksum,
    log_key,
    log_schema,
)
from reef.log import ChainPoint, Fencing, LogReader, Replay, put_fences
from reef.settings import Settings
from reef.store import Store
from reef.testing import Fault, FaultyStore
from reef.types import pack_lsn
from tests.support.engine.damage import flip

NS = "ns"
_rng = random.Random(7)


class Author:
    """A writer of one epoch that writes what it is told, wherever it is told."""

    def __init__(self, store: Store, epoch: int) -> None:
        self.store = store
        self.epoch = epoch
        self.writer_id = _rng.randbytes(16)

    def make(
        self, slot: int, prev: Prev, *, skipped: tuple[SkippedSlot, ...] | None = None
    ) -> bytes:
        kind = LogKind.DATA if skipped is None else LogKind.FENCE
        if skipped is None:
            schema = log_schema([pa.field("value", pa.binary())])
            columns = [pa.array([b"k"]), pa.array([False]), pa.array([b"%d" % slot])]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            record = LogRecord(lsn=pack_lsn(slot, 0), batch=batch)
        else:
            record = LogRecord(skipped=skipped)
        return encode_log(
            LogObject(
                kind=kind,
                slot=slot,
                epoch=self.epoch,
                writer_id=self.writer_id,
                nonce=_rng.randbytes(16),
                created_at_us=1,
                prev=prev,
                records=(record,),
            )
        )

    def put(self, slot: int, prev: Prev, **how: tuple[SkippedSlot, ...]) -> Prev:
        """Create the object; return what the next one names."""
        data = self.make(slot, prev, **how)
        self.store.put_if_absent(log_key(NS, slot), data)
        return Prev(slot, log_checksum(data))


def damage(store: Store, slot: int) -> SkippedSlot:
    """Flip a byte of a log object where it lies; return how it is named when it is given up."""
    key = log_key(NS, slot)
    flip(store, key)
    return SkippedSlot(slot, damaged_checksum(store.get(key)))


def fresh(skipped: tuple[SkippedSlot, ...] = ()) -> Replay:
    return Replay(ChainPoint(0, 0, 0), 1, skipped)


def valid_slots(store: Store, replay: Replay) -> list[int]:
    reader = LogReader(store, NS, "packed")
    return [entry.slot for entry in reader.read(replay) if entry.is_valid]


def fence(store: Store, replay: Replay, epoch: int, count: int = 1) -> list[int]:
    """Put the fences of a new writer; return the slots of those that it put in a row at the end."""
    fencing = Fencing(
        namespace=NS,
        epoch=epoch,
        writer_id=_rng.randbytes(16),
        count=count,
        is_collected=lambda slot: False,
        settings=Settings(),
        clock=SystemClock(),
        rng=_rng,
    )
    entries = list(put_fences(store, LogReader(store, NS, "packed"), replay, fencing))
    return [entry.slot for entry in entries[-count:]]


def test_a_chain_is_valid(store: Store) -> None:
    writer = Author(store, 1)
    prev = Prev()
    for slot in range(1, 40):
        prev = writer.put(slot, prev)
    replay = fresh()
    assert valid_slots(store, replay) == list(range(1, 40))
    assert (replay.next_slot, replay.point.slot) == (40, 39)


def test_a_gap_ends_the_log_until_it_is_filled(store: Store) -> None:
    writer = Author(store, 1)
    one = writer.put(1, Prev())
    second = writer.make(2, one)
    writer.put(3, Prev(2, log_checksum(second)))
    replay = fresh()
    assert valid_slots(store, replay) == [1]
    store.put_if_absent(log_key(NS, 2), second)
    assert valid_slots(store, replay) == [2, 3]


def test_with_three_in_flight_a_void_one_does_not_vouch_for_the_next(store: Store) -> None:
    old, new = Author(store, 1), Author(store, 2)
    one = old.put(1, Prev())
    lost = Prev(2, log_checksum(old.make(2, one)))  # never lands: the fence takes its slot
    fenced = new.put(2, one, skipped=())
    three = old.put(3, lost)
    four = old.put(4, three)  # names slot 3, its neighbour, which is void
    after = new.put(5, fenced)
    replay = fresh()
    assert valid_slots(store, replay) == [1, 2, 5]
    assert replay.point == ChainPoint(5, after.checksum, 2)
    assert four.slot == 4


def test_an_older_epoch_behind_a_newer_one_is_void_whatever_it_names(store: Store) -> None:
    new, old = Author(store, 2), Author(store, 1)
    prev = new.put(1, Prev(), skipped=())
    old.put(2, prev)
    assert valid_slots(store, fresh()) == [1]


def test_a_damaged_head_ends_the_log(store: Store) -> None:
    writer = Author(store, 1)
    prev = writer.put(1, Prev())
    writer.put(2, prev)
    named = damage(store, 2)
    replay = fresh()
    assert valid_slots(store, replay) == [1]
    assert (replay.next_slot, replay.reach, replay.damaged) == (2, 3, (named,))


def test_a_damaged_object_that_is_followed_is_an_error_that_names_repair(store: Store) -> None:
    writer = Author(store, 1)
    prev = Prev()
    for slot in (1, 2, 3):
        prev = writer.put(slot, prev)
    damage(store, 2)
    with pytest.raises(CorruptError, match="reef repair"):
        valid_slots(store, fresh())


def test_a_new_writer_names_the_damaged_head_and_everyone_passes_over_it(store: Store) -> None:
    old = Author(store, 1)
    prev = old.put(1, Prev())
    old.put(2, prev)
    damage(store, 2)
    replay = fresh()
    assert valid_slots(store, replay) == [1]
    assert fence(store, replay, 2) == [3]
    assert valid_slots(store, fresh()) == [1, 3]


def test_a_fence_that_names_other_bytes_does_not_pass_over(store: Store) -> None:
    old, new = Author(store, 1), Author(store, 2)
    prev = old.put(1, Prev())
    old.put(2, prev)
    named = damage(store, 2)
    new.put(3, prev, skipped=(SkippedSlot(2, named.checksum ^ 1),))
    with pytest.raises(CorruptError):
        valid_slots(store, fresh())


def test_what_repair_gave_up_is_passed_over_and_its_successors_count(store: Store) -> None:
    writer = Author(store, 1)
    prev = Prev()
    for slot in (1, 2, 3, 4):
        prev = writer.put(slot, prev)
    named = damage(store, 2)
    assert valid_slots(store, fresh((named,))) == [1, 3, 4]


def test_a_slot_that_is_damaged_only_on_the_way_is_read_again(store: Store) -> None:
    prev = Author(store, 1).put(1, Prev())
    Author(store, 1).put(2, prev)
    once = FaultyStore(store, plan=[Fault("flipped_bit", on="get", key=log_key(NS, 2), nth=1)])
    assert valid_slots(once, fresh()) == [1, 2]


# The stories of the manifest design: three of fencing, two of parallel writes.


def test_story_a_new_writer_fences_an_older_one(store: Store) -> None:
    first = Author(store, 1)
    two = first.put(2, first.put(1, Prev()))
    replay = fresh()
    valid_slots(store, replay)
    assert fence(store, replay, 2) == [3]
    with pytest.raises(AlreadyExistsError):
        first.put(3, two)
    second = Author(store, 2)
    second.put(4, replay.point.prev)
    assert valid_slots(store, fresh()) == [1, 2, 3, 4]


def test_story_a_new_writer_tries_again_behind_a_faster_old_one(store: Store) -> None:
    first = Author(store, 1)
    two = first.put(2, first.put(1, Prev()))
    replay = fresh()
    valid_slots(store, replay)
    first.put(3, two)  # while the new writer was about to fence at 3
    assert fence(store, replay, 2) == [4]
    assert valid_slots(store, fresh()) == [1, 2, 3, 4]


def test_story_a_new_writer_is_fenced_before_it_could_fence(store: Store) -> None:
    first, third = Author(store, 1), Author(store, 3)
    two = first.put(2, first.put(1, Prev()))
    replay = fresh()
    valid_slots(store, replay)
    third.put(3, two, skipped=())
    with pytest.raises(FencedError, match="epoch 3"):
        fence(store, replay, 2)


def test_story_parallel_writes_the_late_slot_of_a_fenced_writer_is_void(store: Store) -> None:
    first = Author(store, 1)
    one = first.put(1, Prev())
    two = first.put(2, one)
    replay = fresh()
    valid_slots(store, replay)
    third = first.make(3, two)  # in flight
    fourth = first.make(4, Prev(3, log_checksum(third)))  # in flight as well
    second = Author(store, 2)
    second.put(3, two, skipped=())  # the fence of the new writer takes slot 3 ...
    store.put_if_absent(log_key(NS, 4), fourth)  # ... but 4 lands
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent(log_key(NS, 3), third)
    replay = fresh()
    assert valid_slots(store, replay) == [1, 2, 3]
    assert (replay.point.slot, replay.next_slot) == (3, 5)
    # It needs two fences in a row, and has one: it starts again behind slot 4.
    second.put(6, second.put(5, replay.point.prev, skipped=()), skipped=())
    assert valid_slots(store, fresh()) == [1, 2, 3, 5, 6]


def test_story_parallel_writes_two_fences_in_a_row_start_again_behind_a_late_slot(
    store: Store,
) -> None:
    first = Author(store, 1)
    two = first.put(2, first.put(1, Prev()))
    replay = fresh()
    valid_slots(store, replay)
    late = first.make(4, Prev(3, 12345))  # in flight behind slot 3, which never lands
    raced: list[int] = []
    inner = store.put_if_absent

    def racing(key: str, data: object) -> None:
        inner(key, data)  # type: ignore[arg-type]
        if key == log_key(NS, 3) and not raced:
            raced.append(4)
            inner(log_key(NS, 4), late)

    store.put_if_absent = racing  # type: ignore[method-assign]
    assert fence(store, replay, 2, count=2) == [5, 6]
    assert raced == [4]
    store.put_if_absent = inner  # type: ignore[method-assign]
    assert valid_slots(store, fresh()) == [1, 2, 3, 5, 6]
    with pytest.raises(AlreadyExistsError):
        first.put(5, two)


def test_story_three_writers_the_newest_wins_and_no_late_slot_counts(store: Store) -> None:
    first = Author(store, 1)
    two = first.put(2, first.put(1, Prev()))
    second_replay, third_replay = fresh(), fresh()
    valid_slots(store, second_replay)
    valid_slots(store, third_replay)
    assert fence(store, third_replay, 3, count=2) == [3, 4]
    with pytest.raises(FencedError):
        fence(store, second_replay, 2, count=2)
    with pytest.raises(AlreadyExistsError):
        first.put(3, two)
    assert valid_slots(store, fresh()) == [1, 2, 3, 4]


def test_the_same_epoch_of_another_writer_cannot_be(store: Store) -> None:
    replay = fresh()
    Author(store, 2).put(1, Prev(), skipped=())
    with pytest.raises(InvariantError, match="two writers"):
        fence(store, replay, 2)


def test_the_fence_of_a_lost_reply_is_its_own(store: Store) -> None:
    replay = fresh()
    lossy = FaultyStore(store, plan=[Fault("reply_lost", on="put_if_absent", nth=1)])
    assert fence(lossy, replay, 1) == [1]
    assert valid_slots(store, fresh()) == [1]
