"""The rules between a generation and its successor: each one stops what breaks it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from reef.errors import InvariantError
from reef.format import (
    Boundary,
    DedupRef,
    EndedWriter,
    Intent,
    Lease,
    Manifest,
    Origin,
    PendingDelete,
    Pin,
    Retention,
    SkippedSlot,
    Snapshot,
    WalAnchor,
    encode_manifest,
    schema_fingerprint,
)
from reef.manifest import check_successor
from reef.types import pack_lsn
from tests.support.format.samples import LOG_COLUMNS, sample_manifest

OLD = replace(sample_manifest(), repaired_from=None)
OWN = OLD.segments[0]
ATTACHED = OLD.segments[2]
NARROW = pa.schema(LOG_COLUMNS).serialize().to_pybytes()
NUMBER = OLD.generation + 1
DEDUP_KEY = f"namespaces/what-if/dedup/{OLD.dedup.id}.dedup"  # type: ignore[union-attr]


def key(id: str) -> str:
    return f"namespaces/what-if/segments/{id}.seg"


def successor(**changed: Any) -> Manifest:
    """Return the next generation, in which only `changed` is changed."""
    return replace(OLD, generation=NUMBER, predecessor_checksum=1, **changed)


def gc(**changed: Any) -> Any:
    return replace(OLD.gc, **changed)


def pending(*more: str, since: int = NUMBER) -> Any:
    return gc(pending=(*OLD.gc.pending, *(PendingDelete(key, since) for key in more)))


def folded(**changed: Any) -> Manifest:
    """Return the next generation after a fold of one slot."""
    return successor(
        **{
            "wal_floor": 102,
            "wal_anchor": WalAnchor(slot=101, checksum=9, epoch=12),
            "last_applied_lsn": pack_lsn(101, 0),
        }
        | changed
    )


DROPPED = folded(
    state="dropped",
    segments=(),
    snapshots=(),
    pins=(),
    intents=(),
    dedup=None,
    lease=None,
    wal_floor=105,
    gc=pending(DEDUP_KEY, key(OWN.id), key(ATTACHED.id)),
)
REBORN = replace(
    DROPPED,
    state="live",
    generation=9,
    born=9,
    wal_floor=106,
    wal_anchor=WalAnchor(slot=0, checksum=0, epoch=0),
    wal_last_seen=105,
)


def test_no_change_at_all_is_a_correct_history() -> None:
    check_successor(OLD, successor())


def test_generation_1_follows_nothing() -> None:
    first = Manifest.first("products", author="a", nonce="0" * 32, created_at_us=0)
    check_successor(None, first)
    check_successor(None, replace(first, state="aborted"))
    with pytest.raises(InvariantError, match="cannot follow no generation: expected generation 1"):
        check_successor(None, replace(first, generation=2))


ALLOWED = {
    "a writer opens": successor(
        writer_epoch=13, max_parallel_writes=8, lease=Lease(holder="x", host="y", opened_at_us=1)
    ),
    "a compactor opens": successor(compactor_epoch=4),
    "a writer ends": successor(ended=EndedWriter(epoch=12, slot=102)),
    "its fences stand, fewer writes at once": successor(max_parallel_writes=1),
    "a fold": folded(),
    "a fold with a schema": folded(schema=NARROW, schema_fingerprint=schema_fingerprint(NARROW)),
    "the window is replaced": successor(
        dedup=DedupRef(id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0A", size=1, checksum=1), gc=pending(DEDUP_KEY)
    ),
    "a window goes that nobody lists": successor(dedup=None),
    "a segment of the open writer goes that nobody lists": successor(segments=OLD.segments[1:]),
    "a segment goes": successor(segments=OLD.segments[1:], gc=pending(key(OWN.id))),
    "another's segment goes": successor(segments=(OWN, ATTACHED)),
    "a segment changes its clip": successor(segments=(replace(OWN, clip_lsn=5), *OLD.segments[1:])),
    "what was collected is forgotten": successor(gc=gc(pending=())),
    "the boundary rises to the head": successor(gc=gc(boundary=Boundary(slot=101, generation=7))),
    "the floor rises": successor(
        retention=replace(OLD.retention, floor_lsn=pack_lsn(60, 0), pitr_window_ms=None)
    ),
    "a snapshot comes": successor(
        snapshots=(*OLD.snapshots, Snapshot("new", NUMBER, pack_lsn(50, 0), 0))
    ),
    "a snapshot shares a generation": successor(
        snapshots=(*OLD.snapshots, Snapshot("new", 7, pack_lsn(60, 0), 0))
    ),
    "a snapshot is renewed": successor(snapshots=(replace(OLD.snapshots[0], expires_at_us=9),)),
    "snapshots go": successor(snapshots=()),
    "a pin comes": successor(pins=(*OLD.pins, Pin(3, pack_lsn(50, 0), "what-if-not", "2" * 32))),
    "pins go": successor(pins=()),
    "an intent comes": successor(intents=(*OLD.intents, Intent("load-1", "load", "a", 0, NUMBER))),
    "intents end": successor(intents=()),
    "a slot is skipped": successor(skipped_slots=(*OLD.skipped_slots, SkippedSlot(98, 1))),
    "detached": successor(origin=None, segments=(OWN, ATTACHED)),
    "dropped": DROPPED,
}


@pytest.mark.parametrize("next", ALLOWED.values(), ids=ALLOWED)
def test_what_correct_histories_do(next: Manifest) -> None:
    check_successor(OLD, next)
    check_successor(OLD, next, repairing=True)
    encode_manifest(next)


# By the rule that stops them. True: also when repairing.
REFUSED = {
    "namespace": (successor(namespace="other"), "namespace 'what-if'", True),
    "a gap": (replace(successor(), generation=9), "expected generation 8, got 9", True),
    "the same number": (replace(OLD), "expected generation 8, got 7", True),
    "a repair of another": (
        replace(successor(), generation=9, repaired_from=6),
        "continues from generation 7",
        True,
    ),
    "a repair without damage": (successor(repaired_from=7), "behind damaged ones", True),
    "aborted late": (successor(state="aborted"), "after one that is not live", True),
    "another birth": (successor(born=8), "born at generation 2", True),
    "lsn_policy": (successor(lsn_policy="caller"), "lsn_policy packed", True),
    "origin": (
        successor(origin=Origin("else", 1, 1, WalAnchor(slot=1, checksum=1, epoch=1), "3" * 32)),
        "expected origin",
        True,
    ),
    "a writer opens and ends at once": (
        successor(writer_epoch=13, ended=EndedWriter(epoch=13, slot=102)),
        "ended to be of writer epoch 12",
        True,
    ),
    "an older writer ends": (
        successor(ended=EndedWriter(epoch=11, slot=102)),
        "ended to be of writer epoch 12",
        True,
    ),
    "writer_epoch falls": (successor(writer_epoch=11), "writer_epoch at least 12", True),
    "writer_epoch jumps": (successor(writer_epoch=14), "writer_epoch at most 13", True),
    "compactor_epoch falls": (successor(compactor_epoch=2), "compactor_epoch at least 3", True),
    "compactor_epoch jumps": (successor(compactor_epoch=5), "compactor_epoch at most 4", True),
    "more writes at once without a writer": (
        successor(max_parallel_writes=5),
        "max_parallel_writes at most 4",
        True,
    ),
    "floor_lsn falls": (
        successor(retention=replace(OLD.retention, floor_lsn=1)),
        "retention.floor_lsn at least",
        True,
    ),
    "boundary slot falls": (
        successor(gc=gc(boundary=Boundary(slot=90, generation=2))),
        "gc.boundary.slot at least 91",
        True,
    ),
    "boundary generation falls": (
        successor(gc=gc(boundary=Boundary(slot=91, generation=1))),
        "gc.boundary.generation at least 2",
        True,
    ),
    "boundary above the head": (
        successor(gc=gc(boundary=Boundary(slot=91, generation=8))),
        "gc.boundary.generation at most 7",
        True,
    ),
    "wal_last_seen falls": (successor(wal_last_seen=103), "wal_last_seen at least 104", True),
    "wal_floor falls": (successor(wal_floor=100), "wal_floor at least 101", False),
    "last_applied_lsn falls": (
        folded(last_applied_lsn=pack_lsn(99, 0)),
        "last_applied_lsn at least",
        False,
    ),
    "anchor slot falls": (
        folded(wal_anchor=WalAnchor(slot=98, checksum=1, epoch=12)),
        "wal_anchor.slot at least 99",
        False,
    ),
    "anchor epoch falls": (
        folded(wal_anchor=WalAnchor(slot=101, checksum=1, epoch=11)),
        "wal_anchor.epoch at least 12",
        False,
    ),
    "the anchor moves without a fold": (
        successor(wal_anchor=WalAnchor(slot=100, checksum=1, epoch=12)),
        "wal_anchor .* while wal_floor stays 101",
        False,
    ),
    "content without a log slot": (
        successor(last_applied_lsn=pack_lsn(100, 0)),
        "last_applied_lsn .* while wal_floor stays 101",
        False,
    ),
    "schema without a log slot": (
        successor(schema=b"", schema_fingerprint=schema_fingerprint(b"")),
        "the same schema",
        False,
    ),
    "a snapshot below the floor": (
        successor(snapshots=(*OLD.snapshots, Snapshot("new", NUMBER, pack_lsn(49, 0), 0))),
        "a new snapshot at or above floor_lsn",
        True,
    ),
    "a snapshot of an older generation": (
        successor(snapshots=(*OLD.snapshots, Snapshot("new", 6, pack_lsn(60, 0), 0))),
        "a new snapshot to be of generation 8 or a shared one",
        True,
    ),
    "a snapshot that moves": (
        successor(snapshots=(replace(OLD.snapshots[0], lsn=pack_lsn(93, 0)),)),
        "to stay where it is",
        True,
    ),
    "a pin below the floor": (
        successor(pins=(*OLD.pins, Pin(3, pack_lsn(49, 0), "c", "2" * 32))),
        "a new pin at or above floor_lsn",
        False,
    ),
    "a pin that moves": (
        successor(pins=(replace(OLD.pins[0], generation=6),)),
        "to stay where it is",
        True,
    ),
    "an intent of an older generation": (
        successor(intents=(*OLD.intents, Intent("load-1", "load", "a", 0, 7))),
        "an intent of the generation that registered it",
        True,
    ),
    "an intent that is dated anew": (
        successor(intents=(replace(OLD.intents[0], generation=NUMBER),)),
        "an intent of the generation that registered it",
        True,
    ),
    "a skipped slot with another checksum": (
        successor(skipped_slots=(SkippedSlot(slot=97, checksum=1),)),
        "to stay as it is",
        True,
    ),
    "a segment that is lost": (
        successor(segments=tuple(s for s in OLD.segments if s != ATTACHED)),
        f"segments/{ATTACHED.id}.seg in gc.pending",
        False,
    ),
    "floor and replacement at once": (
        successor(
            segments=OLD.segments[1:],
            gc=pending(key(OWN.id)),
            retention=replace(OLD.retention, floor_lsn=pack_lsn(60, 0)),
        ),
        "floor_lsn to be recorded before",
        False,
    ),
    "pending since before it was": (
        successor(segments=OLD.segments[1:], gc=pending(key(OWN.id), since=7)),
        "pending since generation 8",
        True,
    ),
    "pending dated back": (
        successor(gc=gc(pending=(replace(OLD.gc.pending[0], since_generation=5),))),
        "pending since generation 6",
        True,
    ),
    "what waited for collection is named again": (
        successor(
            segments=(*OLD.segments, replace(OWN, id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0F-e11")),
            gc=gc(pending=()),
        ),
        "to be named again that waited",
        False,
    ),
}


@pytest.mark.parametrize(("next", "match", "always"), REFUSED.values(), ids=REFUSED)
def test_what_no_correct_history_does(next: Manifest, match: str, always: bool) -> None:
    with pytest.raises(InvariantError, match=match):
        check_successor(OLD, next)
    if always:
        with pytest.raises(InvariantError, match=match):
            check_successor(OLD, next, repairing=True)
    else:
        check_successor(OLD, next, repairing=True)


def test_a_repair_goes_on_behind_damaged_generations() -> None:
    next = replace(successor(), generation=10, repaired_from=7, writer_epoch=15)
    check_successor(OLD, next, repairing=True)
    with pytest.raises(InvariantError, match="writer_epoch at most 15"):
        check_successor(OLD, replace(next, writer_epoch=16), repairing=True)


def test_a_new_life_of_version_1_may_forget_the_longer_grace_of_the_old_one() -> None:
    anew = replace(REBORN, gc=replace(REBORN.gc, grace_ms=DROPPED.gc.grace_ms - 1))
    check_successor(DROPPED, anew)


def test_a_dropped_namespace_may_be_made_anew() -> None:
    next = replace(REBORN, lsn_policy="caller", retention=Retention(0, None), last_applied_lsn=0)
    check_successor(DROPPED, next)
    encode_manifest(next)


@pytest.mark.parametrize(
    ("next", "match"),
    [
        (replace(REBORN, born=2), "born at generation 9"),
        (replace(REBORN, writer_epoch=11), "writer_epoch at least 12"),
        (replace(REBORN, writer_epoch=14), "writer_epoch at most 13"),
        (replace(REBORN, wal_floor=104), "wal_floor at least 105"),
        (replace(REBORN, wal_last_seen=103), "wal_last_seen at least 104"),
    ],
)
def test_a_new_life_goes_on_from_numbers_that_only_rise(next: Manifest, match: str) -> None:
    with pytest.raises(InvariantError, match=match):
        check_successor(DROPPED, next)


def test_a_new_life_begins_above_every_slot_that_was_seen_with_an_empty_one_between() -> None:
    seen = replace(DROPPED, wal_floor=104)
    for floor in (104, 105):
        with pytest.raises(InvariantError, match="wal_floor above slot 105"):
            check_successor(seen, replace(REBORN, wal_floor=floor))
    check_successor(seen, REBORN)


def test_what_never_came_to_be_is_aborted_and_may_be_made_later() -> None:
    aborted = replace(DROPPED, state="aborted", generation=9, writer_epoch=13)
    check_successor(DROPPED, aborted)
    check_successor(aborted, replace(REBORN, generation=10, born=10, writer_epoch=13))
    with pytest.raises(InvariantError, match="after one that is not aborted"):
        check_successor(aborted, replace(aborted, state="dropped", generation=10))


def test_a_branch_of_a_branch_stands_where_that_does_even_below_the_floor() -> None:
    low = Pin(3, pack_lsn(40, 0), "what-if@b", "2" * 32)
    old = replace(OLD, pins=(*OLD.pins, low))
    check_successor(
        old, successor(pins=(*old.pins, replace(low, child="what-if@c", nonce="3" * 32)))
    )
    with pytest.raises(InvariantError, match="a new pin at or above floor_lsn"):
        check_successor(old, successor(pins=(*old.pins, replace(low, lsn=1, nonce="3" * 32))))


def test_the_first_schema_needs_no_log_slot() -> None:
    before = replace(OLD, schema=b"", schema_fingerprint=schema_fingerprint(b""))
    next = successor(schema=NARROW, schema_fingerprint=schema_fingerprint(NARROW))
    check_successor(before, next)


def test_the_message_says_which_generations() -> None:
    with pytest.raises(InvariantError) as caught:
        check_successor(OLD, successor(writer_epoch=1))
    assert str(caught.value) == (
        "generation 8 of namespace 'what-if' cannot follow generation 7: "
        "expected writer_epoch at least 12, got 1; nothing was written"
    )
