"""A deep check of a segment finds one wrong block, bound, key or row among many, and names the block."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from reef.format import SegmentOptions, SegmentOrigin, bounds_of, hash_key, segment_schema
from reef.format import _segment_writer as segment_writer
from reef.format._block_index import row_index_schema
from reef.segment import CheckedSegment, check_segment, write_segment
from reef.segment._check._check import IndexedBounds
from reef.store import open_store

NAN = float("nan")
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def words(rng: random.Random, alphabet: bytes, low: int, high: int) -> bytes:
    return bytes(rng.choice(alphabet) for _ in range(rng.randint(low, high)))


Make = Callable[[random.Random], Any]
COLUMNS: dict[str, tuple[pa.DataType, Make]] = {
    "int8": (pa.int8(), lambda rng: rng.randint(-128, 127)),
    "int64": (pa.int64(), lambda rng: rng.randint(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), lambda rng: rng.randint(2**62, 2**64 - 1)),
    "float32": (pa.float32(), lambda rng: float(np.float32(rng.uniform(-1, 1)))),
    "some are no numbers": (pa.float64(), lambda rng: rng.choice([NAN, -0.0, 0.0, rng.random()])),
    "none is a number": (pa.float64(), lambda _: NAN),
    "bool": (pa.bool_(), lambda rng: rng.random() < 0.1),
    "date": (pa.date32(), lambda rng: dt.date(2026, 1, rng.randint(1, 31))),
    "time": (pa.time64("us"), lambda rng: dt.time(rng.randint(0, 23), rng.randint(0, 59))),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        lambda rng: START + dt.timedelta(seconds=rng.randint(0, 10**6)),
    ),
    "codes": (pa.string(), lambda rng: f"c{rng.randint(0, 9)}"),
    "short": (pa.binary(), lambda rng: words(rng, b"\0\1a\xff", 0, 8)),
    "empty": (pa.binary(), lambda _: b""),
    "around eight": (pa.binary(), lambda rng: words(rng, b"ab", 6, 10)),
    "zeros": (pa.binary(), lambda rng: bytes(rng.randint(0, 12))),
    "begin alike": (pa.string(), lambda rng: f"https://example.net/{rng.randint(0, 99)}"),
    "long": (pa.string(), lambda rng: words(rng, b"abcdefgh", 200, 260).decode()),
    "long or empty": (pa.binary(), lambda rng: words(rng, b"ab\xff", 0, 1) * rng.randint(0, 200)),
    "cut at the greatest byte": (
        pa.binary(),
        lambda rng: words(rng, b"ab", 9, 9) + b"\xff" * rng.randint(54, 60),
    ),
    "no bound above": (pa.binary(), lambda rng: b"\xff" * rng.randint(60, 70)),
}


def make_blocks(name: str, seed: int, *, nulls: float = 0) -> list[pa.RecordBatch]:
    """Return blocks of different sizes, some of which lie in the midst of their buffers."""
    rng = random.Random(seed)
    kind, make = COLUMNS[name]
    blocks = []
    for _ in range(7):
        rows, before = rng.choice([1, 2, 5, 40]), rng.choice([0, 3])
        values = [None if rng.random() < nulls else make(rng) for _ in range(before + rows)]
        column = pa.array(values, kind).slice(before)
        blocks.append(
            pa.RecordBatch.from_arrays(
                [
                    pa.array([b"k"] * rows, pa.binary()),
                    pa.array([1] * rows, pa.int64()),
                    pa.array([False] * rows),
                    column,
                ],
                schema=segment_schema([pa.field("x", kind)]),
            )
        )
    return blocks


def index_of(blocks: list[pa.RecordBatch], told: list[tuple[Any, Any, Any]]) -> pa.RecordBatch:
    schema = row_index_schema(blocks[0].schema)
    names = ("min:x", "max:x", "nulls:x")
    columns = zip(*told, strict=True)
    kinds = [schema.field(name).type for name in names]
    arrays = [pa.array(list(c), kind) for c, kind in zip(columns, kinds, strict=True)]
    return pa.record_batch(arrays, names)


def other_bounds(name: str, told: tuple[Any, Any, Any]) -> list[tuple[Any, Any, Any]]:
    """Return bounds like those, each with one thing wrong."""
    least, greatest, nulls = told
    found = [(least, greatest, nulls + 1)]
    rng = random.Random(5)
    kind, make = COLUMNS[name]
    spoilt = [None, *(make(rng) for _ in range(4))]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        spoilt = [one.encode() if isinstance(one, str) else one for one in spoilt]
        for bound in (least, greatest):
            if bound is not None:
                spoilt += [bound + b"\0", bound + b"a", bound[:-1], bound[:8], bound[:9]]
        spoilt = [one if one is None else one[:64] for one in spoilt]
    for value in spoilt:
        for bounds in ((value, greatest, nulls), (least, value, nulls)):
            right, wrong = (
                pa.array([b[0], b[1]], kind if not isinstance(value, bytes) else pa.binary())
                for b in (told, bounds)
            )
            if not right.equals(wrong) and right.to_pylist() != wrong.to_pylist():
                found.append(bounds)
    return found


@pytest.mark.parametrize("nulls", [0, 0.3, 1])
@pytest.mark.parametrize("name", COLUMNS)
def test_one_wrong_bound_among_many_blocks(name: str, nulls: float) -> None:
    harmed = 0
    for seed in range(2):
        blocks = make_blocks(name, seed, nulls=nulls)
        told = [
            tuple(v.as_py() if isinstance(v, pa.Scalar) else v for v in bounds_of(block.column(3)))
            for block in blocks
        ]
        right = IndexedBounds(index_of(blocks, told))
        assert not any(right.problem(n, block) for n, block in enumerate(blocks))
        for number in (0, 6) if seed else (3,):
            for wrong in other_bounds(name, told[number]):
                index = index_of(blocks, [*told[:number], wrong, *told[number + 1 :]])
                bounds = IndexedBounds(index)
                assert [n for n, b in enumerate(blocks) if bounds.problem(n, b)] == [number]
                harmed += 1
    assert harmed >= 3


def test_an_upper_bound_that_ran_over_at_its_last_byte() -> None:
    """Cut behind the greatest byte there is, the one before it is raised: never that one, to zero."""
    kind = pa.binary()
    schema = segment_schema([pa.field("x", kind)])
    system = [pa.array([b"k"], pa.binary()), pa.array([1], pa.int64()), pa.array([False])]
    values = pa.array([b"a" * 63 + b"\xff" + b"z"], kind)
    block = pa.RecordBatch.from_arrays([*system, values], schema=schema)
    least = b"a" * 63 + b"\xff"
    right, wrong = b"a" * 62 + b"b", b"a" * 63 + b"\0"
    assert not IndexedBounds(index_of([block], [(least, right, 0)])).problem(0, block)
    assert IndexedBounds(index_of([block], [(least, wrong, 0)])).problem(0, block)


# Whole segments: one lie about one block among many, and nothing else is told.

ROWS = 400
SCHEMA = segment_schema(
    [
        pa.field("rank", pa.int64()),
        pa.field("code", pa.string()),
        pa.field("body", pa.string()),
    ]
)


def sound_rows() -> pa.RecordBatch:
    rng = random.Random(7)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([b"k%04d" % (n // 2) for n in range(ROWS)], pa.binary()),
            pa.array([2 * ROWS - n for n in range(ROWS)], pa.int64()),
            pa.array([n % 5 == 0 for n in range(ROWS)]),
            pa.array([rng.randint(0, 10**6) for _ in range(ROWS)], pa.int64()),
            pa.array([f"c{rng.randint(100, 999)}" for _ in range(ROWS)]),
            pa.array([words(rng, b"abcdefgh", 100, 120).decode() for _ in range(ROWS)]),
        ],
        schema=SCHEMA,
    )


def checked(rows: pa.RecordBatch) -> CheckedSegment:
    """Return what a deep look tells of a segment of `rows`, in blocks of about eight."""
    origin = SegmentOrigin(
        id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0K", namespace="n", level=0, author="test", created_at_us=0
    )
    with open_store("memory://") as store:
        options = SegmentOptions(row_block_bytes=1200)
        ref = write_segment(store, "n", SCHEMA, origin, options, [rows])
        return check_segment(store, "n", ref, ref.size, deep=True)


def assert_told(facts: CheckedSegment, block: int, text: str) -> None:
    assert facts.tail is not None
    assert facts.blocks > 30
    (error,) = facts.errors
    assert text in str(error)
    assert (facts.bad_rows, error.offset) == ((block,), facts.tail.row_places[block].offset)


def test_a_sound_segment_of_many_blocks() -> None:
    facts = checked(sound_rows())
    assert facts.is_sound
    assert facts.blocks > 30


@pytest.mark.parametrize("block", [0, 17, -1])
@pytest.mark.parametrize(
    ("column", "lie", "text"),
    [
        ("min:rank", lambda told: told - 1, "'rank' whose min"),
        ("max:rank", lambda told: told + 1, "'rank' whose max"),
        ("nulls:rank", lambda told: told + 1, "'rank' whose nulls"),
        ("min:code", lambda told: told[:-1] + b"!", "'code' whose min"),
        ("max:code", lambda told: told + b"!", "'code' whose max"),
        ("min:body", lambda told: told[:-1] + b"!", "'body' whose min"),
        ("max:body", lambda told: told[:-1] + b"~", "'body' whose max"),
        ("nulls:body", lambda told: told + 1, "'body' whose nulls"),
        ("lsn_min", lambda told: told - 1, "where the index says"),
        ("lsn_max", lambda told: told + 1, "where the index says"),
        ("tombstones", lambda told: told + 1, "where the index says"),
        ("key_first", lambda told: told + b"\0", "where the index says"),
        ("key_last", lambda told: told + b"\0", "where the index says"),
    ],
)
def test_an_index_that_lies_about_one_block(
    monkeypatch: pytest.MonkeyPatch,
    block: int,
    column: str,
    lie: Callable[[Any], Any],
    text: str,
) -> None:
    write = segment_writer._RowIndex.batch
    lied: list[int] = []

    def batch(index: segment_writer._RowIndex) -> pa.RecordBatch:
        true = write(index)
        at = true.schema.get_field_index(column)
        values = true.column(at).to_pylist()
        lied.append(block % len(values))
        values[block] = lie(values[block])
        return true.set_column(at, true.schema.field(at), pa.array(values, true.column(at).type))

    monkeypatch.setattr(segment_writer._RowIndex, "batch", batch)
    facts = checked(sound_rows())
    assert_told(facts, lied[0], text)


def test_a_filter_that_denies_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    build = segment_writer.build_bloom  # type: ignore[attr-defined]
    denied = hash_key(b"k0101")

    def without(chunks: list[Any], _bits: int) -> bytes:
        return build([chunk[chunk != denied] for chunk in chunks], 64)

    monkeypatch.setattr(segment_writer, "build_bloom", without)
    facts = checked(sound_rows())
    assert facts.tail is not None
    with_key = [*facts.tail.blocks_of(b"k0101", b"k0101\0")]
    assert facts.bad_rows == tuple(with_key)
    assert all("a key that the filter denies" in str(error) for error in facts.errors)


@pytest.mark.parametrize("row", [150, 153])
def test_two_rows_of_the_midst_that_are_swapped(monkeypatch: pytest.MonkeyPatch, row: int) -> None:
    """Two versions of one key, or two keys; across blocks, the tail alone would tell."""
    monkeypatch.setattr(segment_writer.SegmentWriter, "_order_problem", lambda *_: "")
    order = [*range(ROWS)]
    order[row], order[row + 1] = order[row + 1], order[row]
    facts = checked(sound_rows().take(pa.array(order)))
    assert facts.tail is not None
    (block,) = facts.tail.row_places.of_rows(row + 1, 1)
    assert_told(facts, block, "sort")
