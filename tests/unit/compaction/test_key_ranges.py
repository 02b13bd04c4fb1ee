"""Where the keys of a compaction are cut."""

from __future__ import annotations

from reef.compaction._key_ranges import _cut_by_weight


def test_every_range_of_a_group_has_a_row() -> None:
    """A clipped reference may show nothing where its segment begins: nothing is cut off there."""
    weights = [(b"a", 10, False), (b"b", 10, True), (b"c", 10, True), (b"d", 10, False)]
    assert _cut_by_weight(weights, b"a", b"z", 4) == ([b"a", b"c", b"z"], [20, 20])
    weights = [(b"a", 10, False), (b"b", 10, True), (b"b", 10, True), (b"c", 10, True)]
    assert _cut_by_weight(weights, b"a", b"z", 4) == ([b"a", b"c", b"z"], [30, 10])
    assert _cut_by_weight([(key, 10, True) for key in (b"a", b"b", b"b", b"c")], b"a", b"z", 4) == (
        [b"a", b"b", b"c", b"z"],
        [10, 20, 10],
    )
