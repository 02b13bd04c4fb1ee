"""The planner of repair and rebuild: from where the folded log can be folded again."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest

from reef.doctor._refold_plan import RefoldPlanner
from reef.format import Boundary, Manifest, SegmentRef, WalAnchor
from reef.types import pack_lsn

_replace = msgspec.structs.replace


def manifest(generation: int, floor: int, *, born: int = 1, boundary: int = 1) -> Manifest:
    """Return a generation that has folded the log below slot `floor`."""
    m = Manifest.first("ns", author="test", nonce="00" * 16, created_at_us=1)
    return _replace(
        m,
        generation=generation,
        born=born,
        wal_floor=floor,
        wal_anchor=WalAnchor(floor - 1, 7, 1),
        last_applied_lsn=pack_lsn(floor - 1, 0) if floor > 1 else 0,
        gc=_replace(m.gc, boundary=Boundary(slot=boundary, generation=1)),
    )


def segment(number: int, slot_first: int, slot_last: int) -> SegmentRef:
    """Return a segment with the versions of some slots."""
    return SegmentRef(
        id=f"{number:026d}",
        level=0,
        rows=1,
        tombstones=0,
        key_min=b"a",
        key_max=b"z",
        lsn_min=pack_lsn(slot_first, 0),
        lsn_max=pack_lsn(slot_last, 0),
        size=1,
        footer_length=1,
        checksum=0,
    )


def planner(
    head: Manifest, *older: Manifest, slots: Collection[int], unreadable: Collection[int] = ()
) -> RefoldPlanner:
    return RefoldPlanner(head, [*older, head], dict.fromkeys(slots, 100), unreadable)


def test_a_whole_log_is_folded_from_its_beginning() -> None:
    head = _replace(manifest(3, 10), segments=(segment(2, 5, 9), segment(1, 1, 4)))
    plan = planner(head, manifest(2, 5), slots=range(1, 12)).rebuild()
    assert [start.slot for start in plan.starts] == [1, 5]
    assert [ref.id[-1] for ref in plan.starts[0].replaced] == ["2", "1"]
    assert ([ref.id[-1] for ref in plan.starts[1].kept], plan.passed_by) == (["1"], ())
    assert plan.starts[0].base.last_applied_lsn == 0
    assert plan.starts[1].base.wal_anchor.slot == 4


@pytest.mark.parametrize("slots", [[1, 2, *range(4, 12)], range(1, 12)])
def test_behind_a_hole_or_an_unreadable_object(slots: Collection[int]) -> None:
    known = planner(manifest(3, 10), manifest(2, 5), slots=slots, unreadable=[3])
    plan = known.rebuild()
    assert known.log_first == 4
    assert [start.slot for start in plan.starts] == [5]
    assert plan.passed_by == ("slot 3 is not there, or cannot be read, and was not collected",)
    assert [*plan.log_sizes] == [100] * 6
    assert [*plan.sizes(plan.lowest)] == [100] * 5


def test_a_collected_log_says_so() -> None:
    known = planner(manifest(3, 10, boundary=5), manifest(2, 5, boundary=5), slots=range(5, 12))
    plan = known.rebuild()
    assert [start.slot for start in plan.starts] == [5]
    assert plan.passed_by == ("the log below slot 5 was collected",)


def test_an_earlier_life_of_the_name_is_left_alone() -> None:
    earlier = manifest(2, 5)
    known = planner(manifest(5, 20, born=4), earlier, manifest(4, 12, born=4), slots=range(1, 21))
    assert [m.generation for m in known.retained] == [4, 5]
    assert (known.lowest_slot, known.log_first) == (12, 12)
    plan = known.rebuild()
    (reason,) = plan.passed_by
    assert [start.slot for start in plan.starts] == [12]
    assert "dropped namespace" in reason
    # Where its first generation was collected, the boundary is above the earlier life.
    known = planner(manifest(7, 20, born=4, boundary=14), slots=range(1, 21))
    assert (known.lowest_slot, known.log_first) == (14, 14)


def test_a_segment_on_both_sides_keeps_the_log_from_being_folded_there() -> None:
    head = _replace(manifest(3, 10), segments=(segment(1, 3, 9),))
    plan = planner(head, manifest(2, 5), slots=range(1, 12)).rebuild()
    assert [start.slot for start in plan.starts] == [1]
    assert plan.passed_by == (
        f"from slot 5: segment {1:026d} has versions from before and from after it",
    )


def test_nothing_was_folded_yet() -> None:
    plan = planner(manifest(1, 1), slots=range(1, 5)).rebuild()
    assert (plan.starts, plan.passed_by) == ((), ())
    assert (plan.lowest.slot, [*plan.sizes(plan.lowest)]) == (1, [])


def test_the_newest_base_that_reaches_a_slot() -> None:
    known = planner(
        manifest(4, 10), manifest(2, 3), manifest(3, 6), slots=range(1, 12), unreadable=[6]
    )
    for slot, generation in ((3, 2), (5, 2), (6, 3), (7, None), (10, 4)):
        base = known.base_below(slot)
        assert (None if base is None else base.generation) == generation, slot
