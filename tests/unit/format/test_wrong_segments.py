"""Segments that a wrong writer wrote: a deep check finds the one wrong block, bound, key or row."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from reef.doctor import verify
from reef.format import (
    SegmentOptions,
    SegmentOrigin,
    SegmentWriter,
    hash_key,
    segment_schema,
)
from reef.format import _segment_writer as segment_writer
from reef.segment import CheckedSegment, check_segment, write_segment
from reef.store import open_store
from tests.support.doctor.damaged_buckets import NAMESPACE, SORTED_ROWS, Bucket, publish_rows

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
            pa.array(["".join(rng.choices("abcdefgh", k=110)) for _ in range(ROWS)]),
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
    monkeypatch.setattr(SegmentWriter, "_order_problem", lambda *_: "")
    order = [*range(ROWS)]
    order[row], order[row + 1] = order[row + 1], order[row]
    facts = checked(sound_rows().take(pa.array(order)))
    assert facts.tail is not None
    (block,) = facts.tail.row_places.of_rows(row + 1, 1)
    assert_told(facts, block, "sort")


def test_verify_finds_a_filter_that_denies_a_key(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "build_bloom", lambda *_: bytes(32))
    publish_rows(bucket, SORTED_ROWS)
    (problem,) = verify(bucket.context(), NAMESPACE, deep=True).problems
    assert "a key that the filter denies" in problem.text


def test_verify_finds_bounds_that_are_not_those_of_the_values(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "bounds_of", lambda _: (b"v5", b"v9", 0))
    publish_rows(bucket, SORTED_ROWS)
    (problem,) = verify(bucket.context(), NAMESPACE, deep=True).problems
    assert "column 'value' whose min is not what the index says" in problem.text
