"""A deep check of a segment finds one wrong block, bound, key or row among many, and names the block."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from reef.format import bounds_of, segment_schema
from reef.segment._check_bounds import IndexedBounds

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
    kind = blocks[0].schema.field("x").type
    bound = pa.binary() if pa.types.is_string(kind) or pa.types.is_binary(kind) else kind
    columns = zip(zip(*told, strict=True), (bound, bound, pa.int64()), strict=True)
    arrays = [pa.array(list(values), kind) for values, kind in columns]
    return pa.record_batch(arrays, ("min:x", "max:x", "nulls:x"))


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
