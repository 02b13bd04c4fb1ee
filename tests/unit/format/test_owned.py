"""Single rows: the ones written into an earlier row's stream are those that Arrow would write."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from reef.format import SingleRows, _owned, log_schema
from reef.format._arrow_limits import RawRoom
from reef.format._row_stream import check_valid, decode_stream, encode_rows

SCHEMA = log_schema([pa.field("value", pa.binary())])


def built(key: bytes, value: bytes) -> pa.RecordBatch:
    columns = [pa.array([key], pa.binary()), pa.array([False]), pa.array([value], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def test_rows_are_the_bytes_that_arrow_writes() -> None:
    rng, single, patterned = random.Random(5), SingleRows(built), 0
    sizes = [0, 1, 7, 8, 9, 63, 64, 65, 300, 1024, 1500, 1600, 2000]
    for _ in range(2000):
        key, value = rng.randbytes(rng.choice([1, 8, 16, 40])), rng.randbytes(rng.choice(sizes))
        batch, stream = single.row(key, value)
        assert batch.equals(built(key, value), check_metadata=True)
        if stream is not None:
            patterned += 1
            assert stream.to_pybytes() == bytes(encode_rows(built(key, value), "lz4"))
            assert decode_stream(stream, "", 0, RawRoom(0)).equals(batch)
            check_valid(batch)
    assert patterned > 1000


def test_the_first_two_rows_of_their_lengths_are_built_by_arrow() -> None:
    single = SingleRows(built)
    streams = [single.row(b"key%d" % number, b"value").stream for number in range(3)]
    assert [stream is not None for stream in streams] == [False, False, True]


@pytest.mark.parametrize(("key", "value"), [(b"k", b""), (b"", b"v"), (b"k", bytes(1600))])
def test_empty_and_large_values_have_no_pattern(key: bytes, value: bytes) -> None:
    single = SingleRows(built)
    assert [single.row(key, value).stream for _ in range(4)] == [None] * 4


def test_a_row_keeps_its_values_when_others_are_written() -> None:
    single = SingleRows(built)
    keys = [b"key%d" % number for number in range(8)]
    rows = [single.row(key, key[::-1]).batch for key in keys]
    assert [row.column(0)[0].as_py() for row in rows] == keys
    assert [row.column(2)[0].as_py() for row in rows] == [key[::-1] for key in keys]


def test_the_patterns_kept_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_owned, "_PATTERNS_MAX", 4)
    single = SingleRows(built)
    for length in range(1, 50):
        for _ in range(3):
            assert single.row(b"k", bytes(length)).batch.column(2)[0].as_py() == bytes(length)
        assert len(single._patterns) <= 4
