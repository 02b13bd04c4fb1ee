"""Which segments are live by their footers alone: nothing twice, nothing replaced, else an error."""

from __future__ import annotations

import pytest

from reef.doctor._live_segments import FoundSegment, choose_live
from reef.errors import CorruptError
from reef.format import Footer, Merged, SegmentRef, pack_numbers, ulid_number

Keys = tuple[bytes, bytes]
ALL: Keys = (b"a", b"z")


def id_of(letter: str, owner: str = "e1") -> str:
    return "0" * 25 + letter + f"-{owner}"


def segment(
    letter: str,
    slots: tuple[int, int],
    *direct: str,
    keys: Keys = ALL,
    before: str = "",
    is_short: bool = False,
    rows: int = 1,
) -> FoundSegment:
    """Return a fold of some slots, or with `direct` an output, each named by a letter."""
    merged = None
    if direct:
        numbers = sorted(ulid_number(id_of(one)) for one in before)
        end = keys[1] + b"\0"
        merged = Merged(keys[0], end, (slots,), True, pack_numbers(numbers), is_short)
    ref = SegmentRef(
        id=id_of(letter),
        level=0,
        rows=rows,
        tombstones=0,
        key_min=keys[0],
        key_max=keys[1],
        lsn_min=slots[0],
        lsn_max=slots[1],
        size=100,
        footer_length=50,
        checksum=1,
    )
    footer = Footer(
        id=ref.id,
        namespace="n",
        level=0,
        author="t",
        created_at_us=0,
        codec="lz4",
        schema=b"",
        wide=(),
        rows=rows,
        tombstones=0,
        key_min=keys[0],
        key_max=keys[1],
        lsn_min=slots[0],
        lsn_max=slots[1],
        replaced_segments=tuple(map(id_of, direct)),
        replaced_slots=None if direct else slots,
        part=(1, 1),
        sections=(),
        merged=merged,
    )
    return FoundSegment(ref, footer, (slots,))


def live(*found: FoundSegment, end: int = 100) -> dict[str, tuple[bytes | None, bytes | None]]:
    chosen = choose_live("n", found, (), slot_end=end, lsn_end=end)
    return {ref.id[25]: (ref.clip_key_min, ref.clip_key_max) for ref in chosen.refs}


WHOLE = (None, None)


def test_folds_side_by_side() -> None:
    assert live(segment("1", (1, 4)), segment("2", (5, 9))) == {"1": WHOLE, "2": WHOLE}


def test_an_output_hides_its_inputs_and_what_those_replaced() -> None:
    one, two = segment("1", (1, 4)), segment("2", (5, 9))
    output = segment("A", (1, 9), "B", "2", before="1")
    assert live(one, two, output) == {"A": WHOLE}


def test_outside_of_its_keys_an_input_stays() -> None:
    output = segment("A", (1, 4), "1", keys=(b"d", b"f"))
    chosen = choose_live("n", [segment("1", (1, 4)), output], (), slot_end=9, lsn_end=9)
    shown = {(r.id[25], r.clip_key_min, r.clip_key_max) for r in chosen.refs}
    assert shown == {("A", None, None), ("1", None, b"d"), ("1", b"f\0", None)}


def test_of_the_same_slots_the_longer_fold_counts_once() -> None:
    found = segment("1", (1, 4)), segment("2", (5, 7)), segment("3", (5, 9))
    assert live(*found) == {"1": WHOLE, "3": WHOLE}


def test_a_fold_that_was_left_behind_is_no_version_of_what_was_compacted() -> None:
    # Its twin was compacted, with a deletion of one of its keys behind it, and collected.
    orphan = segment("1", (5, 7))
    assert live(orphan, segment("A", (1, 9), "8", "9")) == {"A": WHOLE}


def test_twins_that_differ_are_refused() -> None:
    with pytest.raises(CorruptError, match="it is of the same log slots as"):
        live(segment("1", (1, 4)), segment("2", (1, 4), rows=2))
    assert live(segment("1", (1, 4)), segment("2", (1, 4))) in ({"1": WHOLE}, {"2": WHOLE})


def test_an_output_whose_inputs_are_all_there_gives_way() -> None:
    # B was never published: A was, and its inputs but one are collected.
    found = segment("1", (1, 4)), segment("B", (1, 4), "1"), segment("A", (1, 9), "1", "2")
    assert live(*found) == {"A": WHOLE}


def test_an_output_that_others_were_made_from_was_published() -> None:
    other, made = segment("B", (1, 4), "1"), segment("A", (1, 6), "C", before="12")
    assert live(other, segment("C", (1, 6), "1", "2"), made) == {"A": WHOLE}


def test_an_output_that_accounts_for_more_of_what_is_gone_was_published() -> None:
    assert live(segment("B", (1, 4), "1"), segment("A", (1, 9), "1", "2")) == {"A": WHOLE}


def test_outputs_that_nothing_tells_apart_are_refused() -> None:
    with pytest.raises(CorruptError, match="only one of them was published"):
        live(segment("A", (1, 6), "1", "2"), segment("B", (5, 9), "2", "3"))


def test_what_is_not_listed_any_more_is_hidden_by_its_slots() -> None:
    old, made = segment("1", (2, 3)), segment("A", (1, 9), "8", is_short=True)
    assert live(old, made) == {"A": WHOLE}
    narrow = segment("A", (1, 9), "8", keys=(b"d", b"f"), is_short=True)
    with pytest.raises(CorruptError, match="too many segments were since"):
        live(old, narrow)


def test_what_the_log_has_is_clipped_away() -> None:
    chosen = choose_live("n", [segment("1", (1, 9))], (), slot_end=5, lsn_end=5)
    assert [ref.clip_lsn for ref in chosen.refs] == [4]
    assert live(segment("1", (1, 4)), segment("2", (6, 9)), end=6) == {"1": WHOLE}


def test_an_output_that_does_not_say_its_slots_is_refused() -> None:
    output = segment("A", (1, 9), "1")
    with pytest.raises(CorruptError, match="does not say of which log slots"):
        live(FoundSegment(output.ref, output.footer, None))
