"""Segments that have keys and LSNs in common are found."""

from __future__ import annotations

import random

from reef.format import SegmentRef
from reef.manifest import overlaps


def reference(rng: random.Random, number: int) -> SegmentRef:
    """Return a segment among few keys and few LSNs."""
    key, lsn = rng.randrange(20), rng.randrange(1, 20)
    low, high = b"%02d" % key, b"%02d" % (key + rng.randrange(4))
    clips: dict[str, object] = {}
    if rng.random() < 0.2:
        clips["clip_key_max"] = b"%02d" % (key + 1)
    if rng.random() < 0.2:
        clips["clip_lsn"] = lsn + 1
    return SegmentRef(
        id=f"{number:026d}",
        level=0,
        rows=1,
        tombstones=0,
        key_min=low,
        key_max=high,
        lsn_min=lsn,
        lsn_max=lsn + rng.randrange(4),
        size=1,
        footer_length=1,
        checksum=0,
        **clips,  # type: ignore[arg-type]
    )


def collide(a: SegmentRef, b: SegmentRef) -> bool:
    """Return whether two segments have keys and LSNs in common: the rule, word by word."""

    def keys(ref: SegmentRef) -> set[bytes]:
        known = {b"%02d" % number for number in range(30)}
        inside = {key for key in known if ref.key_min <= key <= ref.key_max}
        return {key for key in inside if ref.clip_key_max is None or key < ref.clip_key_max}

    def lsns(ref: SegmentRef) -> set[int]:
        last = ref.lsn_max if ref.clip_lsn is None else min(ref.lsn_max, ref.clip_lsn)
        return set(range(ref.lsn_min, last + 1))

    return bool(keys(a) & keys(b)) and bool(lsns(a) & lsns(b))


def test_overlaps_are_found_as_by_comparing_each_with_each() -> None:
    rng = random.Random(3)
    seen = {True: 0, False: 0}
    for _ in range(2000):
        refs = [reference(rng, number) for number in range(rng.randrange(2, 8))]
        expected = any(collide(a, b) for i, a in enumerate(refs) for b in refs[:i])
        found = list(overlaps(refs))
        assert all(collide(a, b) for a, b in found)
        assert bool(found) == expected
        seen[expected] += 1
    assert min(seen.values()) > 300
