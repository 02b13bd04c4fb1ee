"""Batches as bytes: small ones take shorter ways, and those must lead to the same place."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest

from reef.errors import InvariantError, UnreadableError
from reef.format import _row_stream, log_schema
from reef.format._arrow_limits import RawRoom
from reef.format._row_stream import (
    LOG_COLUMNS,
    SEGMENT_COLUMNS,
    batch_problem,
    decode_stream,
    encode_rows,
    schema_problem,
)

KINDS: list[tuple[pa.DataType, list[object]]] = [
    (pa.string(), ["text", "ä", None]),
    (pa.large_string(), ["text", None, ""]),
    (pa.binary(4), [b"1234", None, b"5678"]),
    (pa.int64(), [1, None, -1]),
    (pa.bool_(), [True, None, False]),
    (pa.decimal128(9, 2), [None, None, None]),
    (pa.timestamp("us", "UTC"), [0, None, 5]),
    (pa.null(), [None, None, None]),
    (pa.list_(pa.string()), [["a", None], None, []]),
    (pa.list_(pa.float32(), 2), [[1.0, 2.0], None, [3.0, 4.0]]),
    (pa.struct([("x", pa.int8()), ("y", pa.string())]), [{"x": 1, "y": "b"}, None, {"x": None}]),
    (pa.map_(pa.string(), pa.int8()), [[("k", 1)], None, []]),
]


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_row_stream, "_plain_schemas", {})


def rows(*columns: tuple[str, pa.Array], count: int = 3) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([b"k%d" % i for i in range(count)], pa.binary()),
            pa.array([False] * count, pa.bool_()),
            *(column for _, column in columns),
        ],
        schema=log_schema([pa.field(name, column.type) for name, column in columns]),
    )


SMALL = [rows(*((f"c{j}", pa.array(v, t)) for j, (t, v) in enumerate(KINDS[:n]))) for n in (0, 3)]
SMALL += [rows(("c", pa.array(values, kind))) for kind, values in KINDS]
SMALL += [batch.slice(1, 1) for batch in SMALL] + [SMALL[1].slice(0, 0)]


def written_by_arrow(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def outcome(data: bytes) -> pa.RecordBatch | str:
    try:
        return decode_stream(pa.py_buffer(data), "wal/1", 0, RawRoom(1 << 30))
    except UnreadableError as error:
        return type(error).__name__


@pytest.mark.parametrize("batch", SMALL, ids=lambda batch: str(batch.schema.types[2:]))
def test_a_small_batch_is_the_stream_that_arrow_writes(batch: pa.RecordBatch) -> None:
    assert bytes(encode_rows(batch, "lz4")) == written_by_arrow(batch)


@pytest.mark.parametrize("batch", SMALL, ids=lambda batch: str(batch.schema.types[2:]))
def test_a_schema_seen_before_changes_nothing(batch: pa.RecordBatch) -> None:
    data = bytes(encode_rows(batch, "lz4"))
    first, second = outcome(data), outcome(data)
    kept = [batch.schema] if batch.num_rows else []  # an empty batch is laid out differently
    assert list(_row_stream._plain_schemas.values()) == kept
    assert isinstance(second, pa.RecordBatch)
    assert first == second == batch
    assert second.schema.equals(batch.schema, check_metadata=True)


def test_metadata_comes_back_each_with_its_own_batch() -> None:
    batch = rows(("c", pa.array(["x"])), count=1)
    other = batch.replace_schema_metadata({"made": "elsewhere"})
    for given in (batch, other, batch, other):
        found = outcome(bytes(encode_rows(given, "lz4")))
        assert isinstance(found, pa.RecordBatch)
        assert found.schema.metadata == given.schema.metadata


def test_compressed_batches_are_left_to_the_stream_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's other function would start threads for them."""
    large = rows(("c", pa.array(["x" * 900] * 3)))
    data = bytes(encode_rows(large, "lz4"))
    assert len(data) < large.nbytes
    small = bytes(encode_rows(rows(("c", pa.array(["x"] * 3))), "lz4"))
    assert outcome(small) == rows(("c", pa.array(["x"] * 3)))
    monkeypatch.setattr(pa.ipc, "read_record_batch", None)  # would fail
    assert outcome(data) == large
    assert outcome(data) == large
    assert outcome(small) == "CorruptError"  # the trap works


def test_types_that_may_be_registered_later_are_not_kept() -> None:
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"1" * 16], pa.binary(16)))
    data = bytes(encode_rows(rows(("id", ids), count=1), "lz4"))
    assert outcome(data) == outcome(data) == rows(("id", ids), count=1)
    assert list(_row_stream._plain_schemas.values()) == [None]


def test_the_schemas_kept_are_few() -> None:
    for i in range(100):
        batch = rows((f"c{i}", pa.array(["x"])), count=1)
        assert outcome(bytes(encode_rows(batch, "lz4"))) == batch
        assert schema_problem(batch.schema, LOG_COLUMNS) == ""
    assert len(_row_stream._plain_schemas) <= 16
    assert len(_row_stream._known_rows[id(LOG_COLUMNS)]) <= 16


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_judged_alike_whether_the_schema_was_seen_before_or_not(seed: int) -> None:
    rng = random.Random(seed)
    shorter = 0
    for batch in SMALL:
        good = bytes(encode_rows(batch, "lz4"))
        outcome(good)
        seen = dict(_row_stream._plain_schemas)
        for _ in range(60):
            bad = damaged(good, rng)
            _row_stream._plain_schemas.clear()
            first = outcome(bad)
            _row_stream._plain_schemas.clear()
            _row_stream._plain_schemas.update(seen)
            shorter += (
                _row_stream._plain_schemas.get(_row_stream._opening(pa.py_buffer(bad))) is not None
            )
            again = outcome(bad)
            assert repr(plain(first)) == repr(plain(again)), bad.hex()
        _row_stream._plain_schemas.clear()
    assert shorter > 100


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with a few bytes wrong, missing or too many, most of them behind its schema."""
    schema_bytes = 8 + struct.unpack_from("<I", data, 4)[0]
    bad = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(0 if rng.random() < 0.1 else schema_bytes, len(data))
        kind = rng.random()
        if kind < 0.7:
            bad[at : at + 1] = bytes([rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])])
        elif kind < 0.85:
            del bad[at : at + rng.choice([1, 4, 8])]
        else:
            bad[at:at] = bytes(rng.choice([1, 4, 8]))
    return bytes(bad)


def plain(found: pa.RecordBatch | str) -> object:
    return found if isinstance(found, str) else (str(found.schema), found.to_pydict())


@pytest.mark.parametrize("behind", [b"", b"\0" * 4, b"\0" * 8, b"\xff\xff\xff\xff\0\0\0\0" * 2])
@pytest.mark.parametrize("seen_before", [False, True])
def test_nothing_may_follow_the_end_of_the_stream(behind: bytes, seen_before: bool) -> None:
    data = bytes(encode_rows(SMALL[0], "lz4"))
    if seen_before:
        assert outcome(data) == SMALL[0]
    assert outcome(data[:-8] + behind) == "CorruptError"
    body = data[8 + struct.unpack_from("<I", data, 4)[0] : -8]
    assert outcome(data[:-8] + body + data[-8:]) == "CorruptError"  # a second batch


def test_a_schema_seen_before_does_not_vouch_for_another() -> None:
    good = rows(("c", pa.array(["x"])), count=1).schema
    assert schema_problem(good, LOG_COLUMNS) == schema_problem(good, LOG_COLUMNS) == ""
    assert "instead of" in schema_problem(good, SEGMENT_COLUMNS)
    assert "instead of" in schema_problem(pa.schema([*good][::-1]), LOG_COLUMNS)
    assert "same name" in schema_problem(pa.schema([*good, good.field(2)]), LOG_COLUMNS)
    views = pa.schema([*LOG_COLUMNS, pa.field("c", pa.string_view())])
    assert "string_view" in schema_problem(views, LOG_COLUMNS)
    assert "string_view" in schema_problem(views, LOG_COLUMNS)


@pytest.mark.parametrize("length", [0, 1, 4095, 4096])
def test_keys_up_to_the_longest_allowed(length: int) -> None:
    keys = [b"x" * length, b"", b"y" * 4096, b"z" * length]
    batch = pa.record_batch([keys, [False] * 4], schema=log_schema([]))
    assert batch_problem(batch, LOG_COLUMNS) == ""
    assert batch_problem(batch.slice(0, 0), LOG_COLUMNS) == ""


def test_a_key_that_is_too_long_is_found_wherever_it_lies() -> None:
    keys = [b"x" * 4097, b"", b"y"]
    for order in ([0, 1, 2], [1, 0, 2], [1, 2, 0]):
        batch = pa.record_batch([[keys[i] for i in order], [False] * 3], schema=log_schema([]))
        assert "a key of 4097 bytes" in batch_problem(batch, LOG_COLUMNS)
        at = order.index(0)
        assert "a key of 4097 bytes" in batch_problem(batch.slice(at, 1), LOG_COLUMNS)
        assert batch_problem(batch.slice(at + 1), LOG_COLUMNS) == ""
        assert batch_problem(batch.slice(0, at), LOG_COLUMNS) == ""


def test_keys_whose_offsets_go_back_are_refused() -> None:
    offsets = pa.py_buffer(struct.pack("<4i", 0, 3, 1, 3))
    keys = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"xyz")])
    batch = pa.RecordBatch.from_arrays([keys, pa.array([False] * 3)], schema=log_schema([]))
    assert batch_problem(batch, LOG_COLUMNS) == ""  # that is not its question
    with pytest.raises(InvariantError, match="refused when it is read"):
        encode_rows(batch, "lz4")


def test_rows_beyond_the_bound_are_refused_before_they_are_encoded() -> None:
    batch = rows(("c", pa.array(["x" * 1000] * 3)))
    assert len(encode_rows(batch, "lz4", batch.nbytes))
    with pytest.raises(InvariantError, match=f"{batch.nbytes} bytes of rows"):
        encode_rows(batch, "lz4", batch.nbytes - 1)
    with pytest.raises(InvariantError, match="codec 'gzip'"):
        encode_rows(batch, "gzip")
