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
    Intent,
    Lease,
    Manifest,
    Origin,
    PendingDelete,
    Pin,
    SkippedSlot,
    Snapshot,
    WalAnchor,
    schema_fingerprint,
)
from reef.format._manifest import check_invariants
from reef.manifest import check_successor
from reef.types import pack_lsn
from tests.samples import LOG_COLUMNS, sample_manifest

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
    "its fences stand, fewer writes at once": successor(max_parallel_writes=1),
    "a fold": folded(),
    "a fold with a schema": folded(schema=NARROW, schema_fingerprint=schema_fingerprint(NARROW)),
    "the window is replaced": successor(
        dedup=DedupRef(id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0A", size=1, checksum=1), gc=pending(DEDUP_KEY)
    ),
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
    "a snapshot is renewed": successor(snapshots=(replace(OLD.snapshots[0], expires_at_us=9),)),
    "snapshots go": successor(snapshots=()),
    "a pin comes": successor(pins=(*OLD.pins, Pin(3, pack_lsn(50, 0), "what-if-not", "2" * 32))),
    "pins go": successor(pins=()),
    "an intent comes": successor(intents=(*OLD.intents, Intent("load-1", "load", "a", 0, NUMBER))),
    "intents end": successor(intents=()),
    "a slot is skipped": successor(skipped_slots=(*OLD.skipped_slots, SkippedSlot(98, 1))),
    "detached": successor(origin=None, inherited_log=()),
    "dropped": successor(state="dropped"),
}


@pytest.mark.parametrize("next", ALLOWED.values(), ids=ALLOWED)
def test_what_correct_histories_do(next: Manifest) -> None:
    check_successor(OLD, next)
    check_successor(OLD, next, repairing=True)
    check_invariants(next)


# By the rule that stops them. True: also when repairing.
REFUSED = {
    "namespace": (successor(namespace="other"), "namespace 'what-if'", True),
    "a gap": (replace(successor(), generation=9), "expected generation 8, got 9", True),
    "the same number": (replace(OLD), "expected generation 8, got 7", True),
    "a repair of another": (
        replace(successor(), generation=9, repaired_from=6),
        "goes on from generation 7",
        True,
    ),
    "a repair without damage": (successor(repaired_from=7), "behind damaged ones", True),
    "aborted late": (successor(state="aborted"), "no other state", True),
    "lsn_policy": (successor(lsn_policy="caller"), "lsn_policy packed", True),
    "origin": (
        successor(origin=Origin("else", 1, 1, WalAnchor(slot=1, checksum=1, epoch=1))),
        "expected origin",
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
        successor(snapshots=(*OLD.snapshots, Snapshot("new", 7, pack_lsn(60, 0), 0))),
        "a new snapshot to be of generation 8",
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
        True,
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
        successor(segments=OLD.segments[1:]),
        f"segments/{OWN.id}.seg in gc.pending",
        False,
    ),
    "a window that is lost": (successor(dedup=None), "dedup in gc.pending", False),
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
        "nothing to be named that waited",
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


def test_a_dropped_namespace_may_be_made_anew() -> None:
    dropped = replace(OLD, state="dropped")
    next = successor(state="live", lsn_policy="caller", origin=None, inherited_log=())
    check_successor(dropped, next)


def test_the_first_schema_needs_no_log_slot() -> None:
    before = replace(OLD, schema=b"", schema_fingerprint=schema_fingerprint(b""))
    next = successor(schema=NARROW, schema_fingerprint=schema_fingerprint(NARROW))
    check_successor(before, next)
    check_successor(replace(before, state="dropped"), next)


def test_the_message_says_which_generations() -> None:
    with pytest.raises(InvariantError) as caught:
        check_successor(OLD, successor(writer_epoch=1))
    assert str(caught.value) == (
        "generation 8 of namespace 'what-if' cannot follow generation 7: "
        "expected writer_epoch at least 12, got 1; nothing was written"
    )
