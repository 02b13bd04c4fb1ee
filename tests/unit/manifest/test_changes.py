"""Every change of a manifest: what it does, and on which heads it may not be made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from reef.errors import (
    AlreadyExistsError,
    DroppedError,
    FencedError,
    InvalidInputError,
    InvariantError,
    NotFoundError,
    NotWrittenError,
    RetentionError,
    StalePlanError,
)
from reef.format import (
    Boundary,
    DedupRef,
    EndedWriter,
    Intent,
    Lease,
    Manifest,
    PendingDelete,
    Pin,
    Retention,
    SegmentRef,
    ShortenedGrace,
    SkippedSlot,
    Snapshot,
    WalAnchor,
    encode_manifest,
    schema_fingerprint,
    with_field_id,
)
from reef.manifest import (
    add_snapshot,
    advance_boundary,
    advance_floor,
    check_successor,
    end_intent,
    end_writer,
    expire_snapshots,
    open_compactor,
    open_writer,
    register_intent,
    release_snapshot,
    renew_snapshot,
    replace_segments,
    retained_points,
    set_retention,
)
from reef.types import pack_lsn

ULID = "01J9ZQ3V5N8W2X4Y6Z7A8B9C%02d"
DEDUP_1 = DedupRef(id=ULID % 90, size=10, checksum=1)
DEDUP_2 = DedupRef(id=ULID % 91, size=11, checksum=2)


SCHEMA = pa.schema([with_field_id(pa.field("title", pa.string()), 1)], {"reef:face": "documents"})


def segment(
    n: int, lsns: tuple[int, int], keys: tuple[bytes, bytes] = (b"a", b"z"), owner: str = "e3"
) -> SegmentRef:
    return SegmentRef(
        id=(ULID % n) + (f"-{owner}" if owner else ""),
        level=0,
        rows=5,
        tombstones=0,
        key_min=keys[0],
        key_max=keys[1],
        lsn_min=lsns[0],
        lsn_max=lsns[1],
        size=1000,
        footer_length=100,
        checksum=n,
    )


def path(segment: SegmentRef) -> str:
    return f"namespaces/products/segments/{segment.id}.seg"


OLD = segment(1, (pack_lsn(1, 0), pack_lsn(4, 0)))
MIDDLE = segment(2, (pack_lsn(5, 0), pack_lsn(7, 0)))
NEW = segment(3, (pack_lsn(8, 0), pack_lsn(10, 0)))


def base() -> Manifest:
    """Return generation 7: folded up to slot 10, three segments, a job, a window."""
    return replace(
        Manifest.first("products", author="a", nonce="0" * 32, created_at_us=0),
        generation=7,
        predecessor_checksum=1,
        writer_epoch=3,
        compactor_epoch=2,
        wal_floor=11,
        wal_anchor=WalAnchor(slot=10, checksum=5, epoch=3),
        wal_last_seen=12,
        last_applied_lsn=pack_lsn(10, 0),
        dedup=DEDUP_1,
        retention=Retention(floor_lsn=pack_lsn(3, 0), pitr_window_ms=None),
        intents=(Intent("compact-1", "compact", "spark", 1, 6),),
        segments=(NEW, MIDDLE, OLD),
    )


def published(previous: Manifest, wanted: Manifest) -> Manifest:
    """Return `wanted` as the chain would publish it: it can be, by every rule there is."""
    manifest = replace(
        wanted, generation=previous.generation + 1, predecessor_checksum=9, nonce="1" * 32
    )
    check_successor(previous, manifest)
    encode_manifest(manifest)
    return manifest


def folding(m: Manifest, **changed: Any) -> Manifest:
    arguments: dict[str, Any] = {
        "epoch": 3,
        "slot_first": 11,
        "slot_last": 14,
        "anchor": WalAnchor(slot=13, checksum=7, epoch=3),
        "segments": [segment(4, (pack_lsn(11, 0), pack_lsn(13, 2)))],
        "last_applied_lsn": pack_lsn(13, 2),
        "dedup": DEDUP_2,
    }
    return advance_floor(m, **(arguments | changed))


def compacting(m: Manifest, **changed: Any) -> Manifest:
    arguments: dict[str, Any] = {
        "compactor_epoch": 2,
        "intent": "compact-1",
        "inputs": [MIDDLE, OLD],
        "outputs": [merged()],
        "known_points": [pack_lsn(3, 0)],
    }
    return replace_segments(m, **(arguments | changed))


def merged(**changed: Any) -> SegmentRef:
    ref = segment(5, (pack_lsn(2, 0), pack_lsn(7, 0)), owner="compact-1")
    return replace(ref, level=1, **changed)


class TestOpening:
    def test_a_writer_takes_the_next_epoch(self) -> None:
        lease = Lease(holder="w", host="h", opened_at_us=5)
        m = published(base(), open_writer(base(), lease=lease, max_parallel_writes=4))
        assert (m.writer_epoch, m.lease, m.max_parallel_writes) == (4, lease, 4)
        assert replace(m, writer_epoch=3, lease=None, max_parallel_writes=1) == replace(
            base(), generation=8, predecessor_checksum=9, nonce="1" * 32
        )

    def test_parallel_writes_stay_as_they_are_unless_asked(self) -> None:
        m = replace(base(), max_parallel_writes=5)
        assert open_writer(m).max_parallel_writes == 5

    def test_the_end_of_a_writer_is_known_to_the_next_one_only(self) -> None:
        ended = published(base(), end_writer(base(), epoch=3, slot=15))
        assert (ended.ended, ended.wal_last_seen) == (EndedWriter(epoch=3, slot=15), 14)
        second = published(ended, open_writer(ended))
        assert (second.writer_epoch, second.ended) == (4, ended.ended)
        third = published(second, open_writer(second))
        assert (third.writer_epoch, third.ended) == (5, None)
        with pytest.raises(FencedError):
            end_writer(second, epoch=3, slot=15)

    @pytest.mark.parametrize("parallel", [0, 65, -1])
    def test_bad_parallel_writes(self, parallel: int) -> None:
        with pytest.raises(InvalidInputError, match="max_parallel_writes"):
            open_writer(base(), max_parallel_writes=parallel)

    def test_a_compactor_takes_the_next_epoch_of_its_own(self) -> None:
        m = published(base(), open_compactor(base()))
        assert (m.writer_epoch, m.compactor_epoch) == (3, 3)

    @pytest.mark.parametrize(
        "change",
        [
            open_writer,
            open_compactor,
            folding,
            compacting,
            lambda m: register_intent(m, id="x", kind="x", author="x", opened_at_us=0),
            lambda m: add_snapshot(m, id="s", lsn=pack_lsn(9, 0), expires_at_us=0),
        ],
    )
    @pytest.mark.parametrize("state", ["dropped", "aborted"])
    def test_a_dropped_namespace_is_not_written(
        self, change: Callable[[Manifest], Manifest], state: Any
    ) -> None:
        with pytest.raises((NotFoundError, DroppedError), match=f"products.* was {state}"):
            change(replace(base(), state=state))


class TestIntents:
    def test_one_is_dated_to_the_generation_that_registers_it(self) -> None:
        wanted = register_intent(base(), id="load-1", kind="load", author="s", opened_at_us=4)
        m = published(base(), wanted)
        assert m.intents[1] == Intent("load-1", "load", "s", 4, 8)

    def test_an_id_is_taken_once(self) -> None:
        with pytest.raises(AlreadyExistsError, match="compact-1"):
            register_intent(base(), id="compact-1", kind="x", author="s", opened_at_us=4)

    def test_it_ends_once(self) -> None:
        m = published(base(), end_intent(base(), "compact-1"))
        assert m.intents == ()
        with pytest.raises(NotFoundError, match="compact-1"):
            end_intent(m, "compact-1")

    @pytest.mark.parametrize(
        "change", [lambda m: folding(m, epoch=None, intent="compact-1"), compacting]
    )
    def test_after_its_end_its_job_cannot_publish(
        self, change: Callable[[Manifest], Manifest]
    ) -> None:
        with pytest.raises(StalePlanError, match=r"intent 'compact-1' does not stand"):
            change(end_intent(base(), "compact-1"))

    def test_a_job_publishes_and_ends_in_one_step(self) -> None:
        m = published(base(), end_intent(compacting(base()), "compact-1"))
        assert m.intents == ()


class TestFold:
    def test_it_names_segments_instead_of_slots(self) -> None:
        new = segment(4, (pack_lsn(11, 0), pack_lsn(13, 2)))
        m = published(base(), folding(base()))
        assert m.segments == (new, NEW, MIDDLE, OLD)
        assert (m.wal_floor, m.wal_last_seen) == (15, 14)
        assert m.wal_anchor == WalAnchor(slot=13, checksum=7, epoch=3)
        assert m.last_applied_lsn == pack_lsn(13, 2)
        assert m.dedup == DEDUP_2
        assert m.gc.pending == (PendingDelete(f"namespaces/products/dedup/{DEDUP_1.id}.dedup", 8),)

    def test_what_was_seen_further_on_stays_seen(self) -> None:
        m = folding(replace(base(), wal_last_seen=40))
        assert m.wal_last_seen == 40

    def test_the_same_window_stays(self) -> None:
        m = published(base(), folding(base(), dedup=DEDUP_1))
        assert (m.dedup, m.gc.pending) == (DEDUP_1, ())

    def test_without_a_window_the_old_one_goes(self) -> None:
        m = published(base(), folding(base(), dedup=None))
        assert m.dedup is None
        assert [p.key for p in m.gc.pending] == [f"namespaces/products/dedup/{DEDUP_1.id}.dedup"]

    def test_fences_alone_fold_into_nothing(self) -> None:
        m = published(
            base(), folding(base(), segments=[], last_applied_lsn=base().last_applied_lsn)
        )
        assert (m.wal_floor, m.segments) == (15, base().segments)

    def test_an_older_writer_is_fenced(self) -> None:
        m = open_writer(base(), lease=Lease(holder="w2", host="h2", opened_at_us=5))
        with pytest.raises(FencedError, match=r"by w2 on h2 with writer epoch 4, .* writer's 3"):
            folding(m)

    def test_an_epoch_from_the_future_is_a_bug(self) -> None:
        with pytest.raises(InvariantError, match="never given out"):
            folding(base(), epoch=4)

    @pytest.mark.parametrize(("epoch", "intent"), [(None, None), (3, "compact-1")])
    def test_by_one_author(self, epoch: int | None, intent: str | None) -> None:
        with pytest.raises(InvariantError, match="expected one of them"):
            folding(base(), epoch=epoch, intent=intent)

    @pytest.mark.parametrize("slot_first", [10, 12])
    def test_what_somebody_else_has_folded_is_planned_anew(self, slot_first: int) -> None:
        with pytest.raises(StalePlanError, match="plan anew from slot 11") as caught:
            folding(base(), slot_first=slot_first)
        assert isinstance(caught.value, NotWrittenError)

    @pytest.mark.parametrize(
        "changed",
        [
            {"slot_last": 10},
            {"anchor": WalAnchor(slot=15, checksum=7, epoch=3)},
            {"anchor": WalAnchor(slot=9, checksum=7, epoch=3)},
        ],
    )
    def test_an_anchor_lies_in_what_is_folded(self, changed: dict[str, Any]) -> None:
        with pytest.raises(InvariantError, match="anchor"):
            folding(base(), **changed)

    def test_segments_carry_their_owner(self) -> None:
        stray = segment(4, (pack_lsn(11, 0), pack_lsn(13, 0)), owner="e2")
        with pytest.raises(InvariantError, match="does not carry it in its id"):
            folding(base(), segments=[stray])
        with pytest.raises(InvariantError, match="does not carry it in its id"):
            folding(base(), epoch=None, intent="compact-1")
        owned = segment(4, (pack_lsn(11, 0), pack_lsn(13, 0)), owner="compact-1")
        m = folding(base(), epoch=None, intent="compact-1", segments=[owned])
        assert m.segments[0] == owned

    def test_attached_segments_are_their_loaders(self) -> None:
        version = pack_lsn(12, 0)
        attached = replace(segment(4, (version, version), owner="load-9"), version=version)
        m = published(base(), folding(base(), segments=[attached]))
        assert m.segments[0] == attached

    def test_skipped_slots_are_kept_by_name_once(self) -> None:
        known, new = SkippedSlot(slot=9, checksum=1), SkippedSlot(slot=12, checksum=2)
        m = replace(base(), skipped_slots=(known,))
        assert folding(m, skipped=[new, known]).skipped_slots == (known, new)

    def test_the_schema_changes_with_the_log(self) -> None:
        m = published(base(), folding(base(), schema=SCHEMA))
        assert m.schema == SCHEMA.serialize().to_pybytes()
        assert m.schema_fingerprint == schema_fingerprint(m.schema)
        again = folding(
            m,
            slot_first=15,
            slot_last=15,
            anchor=WalAnchor(slot=15, checksum=7, epoch=3),
            segments=[],
            schema=pa.ipc.read_schema(pa.py_buffer(m.schema)),
        )
        assert again.schema is m.schema
        wider = SCHEMA.append(with_field_id(pa.field("price", pa.float64()), 2))
        assert folding(base(), schema=wider).schema != m.schema


class TestReplaceSegments:
    def test_inputs_give_way_to_outputs(self) -> None:
        m = published(base(), compacting(base()))
        assert m.segments == (merged(), NEW)
        assert m.gc.pending == (PendingDelete(path(OLD), 8), PendingDelete(path(MIDDLE), 8))
        assert (m.wal_floor, m.last_applied_lsn) == (11, base().last_applied_lsn)

    def test_everything_may_go(self) -> None:
        m = published(base(), compacting(base(), outputs=[]))
        assert m.segments == (NEW,)

    def test_others_objects_are_not_ours_to_collect(self) -> None:
        foreign = replace(OLD, namespace="parent")
        head = replace(base(), segments=(NEW, MIDDLE, foreign))
        m = published(head, compacting(head, inputs=[MIDDLE, foreign]))
        assert [p.key for p in m.gc.pending] == [path(MIDDLE)]

    def test_an_object_that_is_named_with_another_clip_stays(self) -> None:
        low, high = replace(OLD, clip_key_max=b"m"), replace(OLD, clip_key_min=b"m")
        head = replace(base(), segments=(NEW, MIDDLE, low, high))
        output = merged(key_max=b"l", lsn_max=pack_lsn(4, 0))
        m = published(head, compacting(head, inputs=[low], outputs=[output]))
        assert m.gc.pending == ()
        m = published(m, compacting(m, inputs=[high], outputs=[]))
        assert [p.key for p in m.gc.pending] == [path(OLD)]

    def test_an_input_that_is_not_live_any_more(self) -> None:
        with pytest.raises(StalePlanError, match=f"{OLD.id} .* not live in generation 7"):
            compacting(replace(base(), segments=(NEW, MIDDLE)))

    def test_an_input_under_another_clip_is_another_input(self) -> None:
        head = replace(base(), segments=(NEW, MIDDLE, replace(OLD, clip_lsn=pack_lsn(3, 0))))
        with pytest.raises(StalePlanError):
            compacting(head)

    def test_an_older_compactor_publishes_nothing(self) -> None:
        with pytest.raises(StalePlanError, match="compactor of epoch 3"):
            compacting(open_compactor(base()))

    def test_an_epoch_from_the_future_is_a_bug(self) -> None:
        with pytest.raises(InvariantError, match="never given out"):
            compacting(base(), compactor_epoch=3)

    def test_somebody_must_answer_for_it(self) -> None:
        with pytest.raises(InvariantError, match="compactor epoch or an intent"):
            compacting(base(), compactor_epoch=None, intent=None)

    def test_a_compactor_without_an_intent(self) -> None:
        assert compacting(base(), intent=None, outputs=[]).segments == (NEW,)

    def test_outputs_carry_their_intent(self) -> None:
        with pytest.raises(InvariantError, match="does not carry it in its id"):
            compacting(base(), outputs=[replace(merged(), id=ULID % 5)])

    @pytest.mark.parametrize("lsn", [pack_lsn(3, 1), pack_lsn(4, 0), pack_lsn(6, 0)])
    def test_a_point_that_the_plan_did_not_know(self, lsn: int) -> None:
        known = [pack_lsn(3, 0), pack_lsn(7, 0)]
        snapshot = replace(base(), snapshots=(Snapshot("s", 5, lsn, 0),))
        pin = replace(base(), pins=(Pin(5, lsn, "child", "2" * 32),))
        floor = replace(base(), retention=Retention(floor_lsn=lsn, pitr_window_ms=None))
        for head in (snapshot, pin, floor):
            with pytest.raises(StalePlanError, match=f"LSN {lsn} is retained"):
                compacting(head, known_points=known)
            compacting(head, known_points=[*known, lsn])

    def test_a_point_above_all_that_was_known_loses_nothing(self) -> None:
        """New snapshots are the newest points, and must not starve compaction."""
        head = add_snapshot(base(), id="s", lsn=pack_lsn(10, 0), expires_at_us=0)
        assert compacting(head, known_points=[pack_lsn(3, 0)]).segments == (merged(), NEW)

    def test_an_expired_snapshot_goes_in_the_same_step(self) -> None:
        head = replace(base(), snapshots=(Snapshot("s", 5, pack_lsn(4, 0), 1000),))
        known = [pack_lsn(3, 0), pack_lsn(7, 0)]
        with pytest.raises(StalePlanError):
            compacting(head, known_points=known)  # it stands: nobody has taken it out
        with pytest.raises(StalePlanError):
            compacting(head, known_points=known, now_us=1000)
        m = published(head, compacting(head, known_points=known, now_us=1001))
        assert m.snapshots == ()

    def test_a_plan_without_the_floor_is_a_bug(self) -> None:
        with pytest.raises(InvariantError, match="floor"):
            compacting(base(), known_points=[])

    def test_outputs_hold_no_versions_that_the_inputs_had_not(self) -> None:
        for wrong in (merged(lsn_max=pack_lsn(8, 0)), merged(lsn_min=pack_lsn(1, 0) - 1)):
            with pytest.raises(InvariantError, match="its inputs only"):
                compacting(base(), outputs=[wrong])

    def test_without_inputs_it_is_a_bug(self) -> None:
        with pytest.raises(InvariantError, match="without inputs"):
            compacting(base(), inputs=[], outputs=[])

    def test_runs_in_between_are_not_passed_over(self) -> None:
        """A tombstone of NEW could be dropped in front of a version in MIDDLE that it hides."""
        across = merged(lsn_max=pack_lsn(10, 0))
        with pytest.raises(InvariantError, match=f"across {MIDDLE.id}"):
            compacting(base(), inputs=[NEW, OLD], outputs=[across])

    @pytest.mark.parametrize(
        "between",
        [
            replace(MIDDLE, key_min=b"p", key_max=b"z"),
            replace(MIDDLE, clip_key_min=b"n"),
            replace(MIDDLE, key_min=b"A", clip_key_max=b"a"),
            replace(MIDDLE, key_min=b"A", key_max=b"Z"),
        ],
    )
    def test_unless_they_have_no_key_in_common(self, between: SegmentRef) -> None:
        head = replace(base(), segments=(NEW, between, OLD))
        across = merged(lsn_max=pack_lsn(10, 0), key_max=b"m")
        assert compacting(head, inputs=[NEW, OLD], outputs=[across]).segments == (across, between)


class TestSnapshots:
    def test_one_is_of_the_generation_that_is_published_with_it(self) -> None:
        m = published(base(), add_snapshot(base(), id="s", lsn=pack_lsn(9, 0), expires_at_us=77))
        assert m.snapshots == (Snapshot("s", 8, pack_lsn(9, 0), 77),)

    def test_it_tells_how_far_its_author_saw(self) -> None:
        m = published(base(), add_snapshot(base(), id="s", lsn=pack_lsn(20, 0), expires_at_us=0))
        assert m.wal_last_seen == 20
        caller = replace(base(), lsn_policy="caller")
        m = add_snapshot(caller, id="s", lsn=pack_lsn(20, 0), expires_at_us=0, wal_last_seen=15)
        assert m.wal_last_seen == 15

    def test_it_shares_a_generation_that_was_folded_as_far(self) -> None:
        first = published(
            base(), add_snapshot(base(), id="s", lsn=pack_lsn(11, 0), expires_at_us=0)
        )
        head = published(first, first)
        two = add_snapshot(head, id="t", lsn=pack_lsn(12, 0), expires_at_us=0, shared=first)
        assert published(head, two).snapshots[-1].generation == first.generation
        three = add_snapshot(head, id="t", lsn=pack_lsn(12, 0), expires_at_us=0)
        assert three.snapshots[-1].generation == head.generation + 1
        for other in (
            replace(first, wal_floor=first.wal_floor - 1),
            replace(first, born=first.born + 1),
            replace(first, skipped_slots=(SkippedSlot(3, 1),)),
            replace(first, generation=first.generation - 1),
        ):
            m = add_snapshot(head, id="t", lsn=pack_lsn(12, 0), expires_at_us=0, shared=other)
            assert m.snapshots[-1].generation == head.generation + 1

    def test_a_slot_that_the_lsn_does_not_tell_must_be_known_to_what_is_shared(self) -> None:
        caller = replace(base(), lsn_policy="caller")
        take = partial(add_snapshot, expires_at_us=0)
        first = published(caller, take(caller, id="s", lsn=pack_lsn(11, 0), wal_last_seen=15))
        head = published(first, first)
        same = take(head, id="t", lsn=pack_lsn(12, 0), wal_last_seen=15, shared=first)
        later = take(head, id="t", lsn=pack_lsn(12, 0), wal_last_seen=16, shared=first)
        assert [m.snapshots[-1].generation for m in (same, later)] == [8, 10]

    def test_one_that_is_followed_keeps_the_log_as_long_as_it_stands(self) -> None:
        take = partial(add_snapshot, lsn=pack_lsn(11, 0), expires_at_us=5)
        m = published(base(), take(base(), id="s", keeps_log=True))
        assert m.followed == (8,)
        two = published(m, take(m, id="t", shared=m))
        assert two.snapshots[-1].generation == 9
        assert published(two, release_snapshot(two, "s")).followed == ()
        assert release_snapshot(two, "t").followed == (8,)
        assert published(two, expire_snapshots(two, 6)).followed == ()
        with pytest.raises(InvariantError, match="followed to add generation 10"):
            published(two, replace(two, followed=(8, 9)))

    def test_below_the_floor_it_is_refused(self) -> None:
        floor = base().retention.floor_lsn
        assert add_snapshot(base(), id="s", lsn=floor, expires_at_us=0).snapshots
        with pytest.raises(RetentionError, match=f"LSN {floor - 1} .* floor {floor}"):
            add_snapshot(base(), id="s", lsn=floor - 1, expires_at_us=0)

    def test_an_id_is_taken_once(self) -> None:
        m = add_snapshot(base(), id="s", lsn=pack_lsn(9, 0), expires_at_us=0)
        with pytest.raises(AlreadyExistsError, match="'s'"):
            add_snapshot(m, id="s", lsn=pack_lsn(9, 0), expires_at_us=0)

    def test_renew_and_release(self) -> None:
        one = published(base(), add_snapshot(base(), id="s", lsn=pack_lsn(9, 0), expires_at_us=5))
        two = published(one, add_snapshot(one, id="t", lsn=pack_lsn(9, 0), expires_at_us=6))
        m = published(two, renew_snapshot(two, "s", expires_at_us=50))
        assert [(s.id, s.generation, s.expires_at_us) for s in m.snapshots] == [
            ("s", 8, 50),
            ("t", 9, 6),
        ]
        m = published(m, release_snapshot(m, "s"))
        assert [s.id for s in m.snapshots] == ["t"]

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: release_snapshot(m, "gone"),
            lambda m: renew_snapshot(m, "gone", expires_at_us=0),
        ],
    )
    def test_what_is_gone_can_not_be_kept(self, change: Callable[[Manifest], Manifest]) -> None:
        with pytest.raises(NotFoundError, match="no snapshot 'gone'"):
            change(base())

    def test_expiry(self) -> None:
        times = {"never": 0, "past": 99, "now": 100, "later": 101}
        snapshots = tuple(Snapshot(id, 5, pack_lsn(9, 0), at) for id, at in times.items())
        m = replace(base(), snapshots=snapshots)
        assert [s.id for s in expire_snapshots(m, 100).snapshots] == ["never", "now", "later"]
        assert [s.id for s in expire_snapshots(m, 10**15).snapshots] == ["never"]
        assert expire_snapshots(m, 99) is m

    def test_retained_points(self) -> None:
        m = replace(
            base(),
            snapshots=(Snapshot("a", 5, 900, 100), Snapshot("b", 5, 700, 0)),
            pins=(Pin(5, 800, "child", "2" * 32), Pin(5, 700, "other", "3" * 32)),
            retention=Retention(floor_lsn=750, pitr_window_ms=None),
        )
        assert retained_points(m) == [700, 750, 800, 900]
        assert retained_points(m, 100) == [700, 750, 800, 900]
        assert retained_points(m, 101) == [700, 750, 800]


class TestRetention:
    def test_the_floor_only_rises(self) -> None:
        m = published(base(), set_retention(base(), floor_lsn=pack_lsn(5, 0)))
        assert m.retention.floor_lsn == pack_lsn(5, 0)
        assert set_retention(m, floor_lsn=pack_lsn(4, 0)).retention == m.retention

    def test_it_does_not_pass_what_the_segments_reflect(self) -> None:
        newest = base().last_applied_lsn
        assert set_retention(base(), floor_lsn=newest).retention.floor_lsn == newest
        with pytest.raises(InvalidInputError, match="floor_lsn"):
            set_retention(base(), floor_lsn=newest + 1)

    def test_the_window_and_the_grace(self) -> None:
        m = published(base(), set_retention(base(), pitr_window_ms=5000, grace_ms=60_000))
        assert (m.retention.pitr_window_ms, m.gc.grace_ms) == (5000, 60_000)
        assert set_retention(m, floor_lsn=pack_lsn(4, 0)).retention.pitr_window_ms == 5000
        assert set_retention(m, pitr_window_ms=None).retention.pitr_window_ms is None

    def test_a_shorter_grace_leaves_a_note_of_the_longest(self) -> None:
        m = published(base(), set_retention(base(), grace_ms=60_000))
        first = ShortenedGrace(base().gc.grace_ms, m.generation)
        assert m.gc.shortened == first
        same = published(m, set_retention(m, grace_ms=60_000, pitr_window_ms=1))
        assert same.gc.shortened == first
        longer = published(same, set_retention(same, grace_ms=90_000))
        assert longer.gc.shortened == first
        shortest = published(longer, set_retention(longer, grace_ms=0))
        assert shortest.gc.shortened == ShortenedGrace(first.from_ms, shortest.generation)
        whole = published(shortest, set_retention(shortest, grace_ms=first.from_ms))
        assert whole.gc == base().gc

    def test_a_grace_that_only_shrinks_is_refused(self) -> None:
        m = base()
        forgotten = replace(m, gc=replace(m.gc, grace_ms=1))
        with pytest.raises(InvariantError, match=r"gc\.shortened from"):
            published(m, forgotten)
        note = ShortenedGrace(m.gc.grace_ms, m.generation)
        with pytest.raises(InvariantError, match="since generation"):
            published(m, replace(m, gc=replace(forgotten.gc, shortened=note)))

    def test_the_boundary_only_rises_each_number_by_itself(self) -> None:
        m = published(base(), advance_boundary(base(), Boundary(slot=5, generation=3)))
        assert m.gc.boundary == Boundary(slot=5, generation=3)
        m = published(m, advance_boundary(m, Boundary(slot=9, generation=2)))
        assert m.gc.boundary == Boundary(slot=9, generation=3)

    @pytest.mark.parametrize("boundary", [Boundary(slot=12, generation=1), Boundary(1, 8)])
    def test_it_does_not_pass_the_log_or_the_head(self, boundary: Boundary) -> None:
        assert advance_boundary(base(), Boundary(slot=11, generation=7))
        with pytest.raises(InvariantError, match="would pass"):
            advance_boundary(base(), boundary)

    def test_what_is_deleted_is_forgotten(self) -> None:
        head = published(base(), compacting(base()))
        m = published(
            head, advance_boundary(head, Boundary(slot=1, generation=1), deleted={path(OLD)})
        )
        assert [p.key for p in m.gc.pending] == [path(MIDDLE)]
