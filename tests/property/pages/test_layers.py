"""Which segments and blocks a read asks: whatever references clip, the answer is that of a dict."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from reef.engine import ReadState, lookup_counted
from reef.segment import RowVersion, SegmentReader, lookup
from tests.support.engine.segments import Bench, Row, value_of, write

KEYS = [b"k%02d" % i for i in range(30)]
STEP = 10
"""Versions of a segment lie between two multiples of it: those of overlapping ones never mix."""

Versions = dict[bytes, dict[int, bool]]
"""By key and version: whether it is a tombstone."""


class Clips:
    """Segments of any keys and versions, and references that show a part of each."""

    def __init__(self, seed: int, segments: int) -> None:
        self.rng = random.Random(seed)
        self.bench = Bench()
        self.refs = []
        self.visible: Versions = {key: {} for key in KEYS}
        for number in range(segments):
            rows = self.rows(number)
            ref = write(self.bench.store, rows, number=number, row_block_bytes=60)
            self.refs.append(self.shown(ref, rows, number))

    def rows(self, number: int) -> list[Row]:
        first = self.rng.randrange(len(KEYS))
        some = KEYS[first : first + self.rng.choice((1, 4, 30))]
        keys = [key for key in some if self.rng.random() < 0.7] or some[:1]
        hot = self.rng.choice(keys)
        return [
            (key, lsn, self.rng.random() < 0.1)
            for key in keys
            for lsn in sorted(
                self.rng.sample(
                    range(number * STEP + 1, number * STEP + STEP), 9 if key == hot else 2
                ),
                reverse=True,
            )
        ]

    def shown(self, ref: Any, rows: list[Row], number: int) -> Any:
        """Return a reference that clips some of the rows, and take note of what it shows."""
        clip: dict[str, Any] = {}
        if self.rng.random() < 0.3:
            clip["clip_key_min"] = self.rng.choice(KEYS[:15])
        if self.rng.random() < 0.3:
            clip["clip_key_max"] = self.rng.choice(KEYS[15:])
        if self.rng.random() < 0.3:
            clip["clip_lsn"] = number * STEP + self.rng.randrange(1, STEP)
        low, end = clip.get("clip_key_min", b""), clip.get("clip_key_max", b"~")
        for key, lsn, is_dead in rows:
            if low <= key < end and lsn <= clip.get("clip_lsn", lsn):
                self.visible[key][lsn] = is_dead
        return msgspec.structs.replace(ref, **clip)

    def state(self, reader: SegmentReader) -> ReadState:
        sources = sorted(map(reader.open, self.refs), key=lambda one: one.lsn_max, reverse=True)
        return ReadState(None, tuple(sources), reader)  # type: ignore[arg-type]

    def expected(self, key: bytes, lsn: int) -> tuple[int, bytes | None] | None:
        found = max((one for one in self.visible[key] if one <= lsn), default=None)
        if found is None:
            return None
        return found, None if self.visible[key][found] else value_of(key, found)


def shown(found: RowVersion | None) -> tuple[int, bytes | None] | None:
    if found is None:
        return None
    value = None if found.tombstone else found.batch.column("value")[found.row].as_py()
    return found.lsn, value


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_layers_answer_as_a_dict_does(seed: int, segments: int) -> None:
    clips = Clips(seed, segments)
    state = clips.state(clips.bench.reader())
    for lsn in (segments * STEP, *clips.rng.sample(range(segments * STEP), 3)):
        expected = [clips.expected(key, lsn) for key in KEYS]
        assert [shown(lookup(state.layers, key, lsn)) for key in KEYS] == expected
        assert [shown(lookup_counted(state.layers, key, lsn).found) for key in KEYS] == expected
        many = state.many(KEYS, lsn)
        values = many.rows(pa.schema([pa.field("value", pa.binary())])).column(0).to_pylist()
        versions = zip(many.lsns.tolist(), values, strict=True)
        assert [found if found[0] else None for found in versions] == expected


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_what_was_brought_ahead_is_all_that_reads_need(seed: int, segments: int) -> None:
    clips = Clips(seed, segments)
    lsn = clips.rng.randint(1, segments * STEP)
    first = clips.rng.randrange(len(KEYS))
    keys = KEYS[first : first + clips.rng.choice((1, 5, 30))]
    state = clips.state(clips.bench.reader())
    state.bring(keys[0], keys[-1], lsn, bytes_max=1 << 30)
    clips.bench.requests()
    assert [shown(lookup(state.layers, key, lsn)) for key in keys] == [
        clips.expected(key, lsn) for key in keys
    ]
    assert clips.bench.requests() == 0
