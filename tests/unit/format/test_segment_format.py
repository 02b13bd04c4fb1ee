"""Segments: rows come back, plans touch only what they need, and wrong input is refused."""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from collections.abc import Iterable
from functools import partialmethod
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from reef.errors import (
    CorruptError,
    FormatVersionError,
    IncompleteError,
    InvalidInputError,
    InvariantError,
)
from reef.format import (
    LSN,
    SegmentOptions,
    SegmentOrigin,
    SegmentTail,
    SegmentWriter,
    decode_segment,
    decode_tail,
    encode_log,
    hash_key,
    segment_key,
    segment_schema,
    tail_length,
    with_field_id,
)
from reef.format._segment_writer import _RowIndex
from reef.types import pack_lsn
from tests.support.format.samples import SEGMENT_COLUMNS, sample_log, sample_rows, sample_segment

ORIGIN = SegmentOrigin(
    id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0F", namespace="n", level=0, author="a", created_at_us=1
)


def replace_origin(**changes: object) -> SegmentOrigin:
    return dataclasses.replace(ORIGIN, **changes)  # type: ignore[arg-type]


def tail_of(data: bytes) -> SegmentTail:
    return decode_tail(data[-tail_length(data, size=len(data)) :], size=len(data))


def written(batches: Iterable[pa.RecordBatch], options: SegmentOptions | None = None) -> bytes:
    batches = list(batches)
    return b"".join(SegmentWriter(batches[0].schema, ORIGIN, options).parts(batches))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("rows", [1, 2, 7, 3000])
def test_rows_come_back(rows: int, codec: str) -> None:
    batch = sample_rows(rows)
    options = SegmentOptions(codec=codec, row_block_bytes=2000, column_block_bytes=700)  # type: ignore[arg-type]
    data, ref = sample_segment(batch, options)
    tail, table = decode_segment(data)
    assert table.combine_chunks() == pa.table(batch)
    assert (ref.rows, ref.size, ref.checksum) == (rows, len(data), tail.checksum)
    assert ref.footer_length == tail_length(data[-100:], size=len(data))
    assert (ref.key_min, ref.key_max) == (b"key-000000", b"key-%06d" % ((rows - 1) // 2))
    assert ref.tombstones == sum(i % 6 == 1 for i in range(rows))


def test_the_file_does_not_depend_on_how_rows_came_in() -> None:
    """Small batches are gathered into blocks; the rows are the same whatever the batches were."""
    whole = sample_rows(1000)
    options = SegmentOptions(row_block_bytes=1000, column_block_bytes=500, stripe_bytes=2000)
    for step in (1, 17, 400):
        pieces = [whole.slice(i, step) for i in range(0, 1000, step)]
        _, table = decode_segment(written(pieces, options))
        assert table.combine_chunks() == pa.table(whole)
        assert all(len(chunk) < 200 for chunk in table["title"].chunks)


def test_a_stripe_bounds_what_waits_in_memory() -> None:
    """Column blocks go out with their rows, not all at the end."""
    options = SegmentOptions(row_block_bytes=1000, column_block_bytes=500, stripe_bytes=4000)
    tail = tail_of(written([sample_rows(3000)], options))
    first_columns = tail.column_places["vector"][0].offset
    assert first_columns < tail.row_places[len(tail.row_places) - 1].offset


def test_the_footer_tells_where_it_came_from() -> None:
    footer = tail_of(sample_segment()[0]).footer
    assert footer.replaced_segments == ("01J9ZQ3V5N8W2X4Y6Z7A8B9C0E",)
    assert footer.replaced_slots == (7, 10)
    assert (footer.namespace, footer.level, footer.wide) == ("what-if", 1, ("vector",))


def test_columns_that_are_not_asked_for_are_not_touched() -> None:
    data = bytearray(sample_segment()[0])
    place = tail_of(bytes(data)).column_places["vector"][0]
    data[place.offset + 20] ^= 1
    _, table = decode_segment(bytes(data), columns=["price", "_key"])
    assert table.column_names == ["price", "_key"]
    with pytest.raises(CorruptError):
        decode_segment(bytes(data))


def test_a_point_read_finds_its_block_and_its_vector() -> None:
    batch = sample_rows(3000)
    options = SegmentOptions(row_block_bytes=1500, column_block_bytes=333)
    data, _ = sample_segment(batch, options)
    tail = tail_of(data)
    assert len(tail.row_places) > 50
    for i in range(0, 3000, 97):
        key = batch["_key"][i].as_py()
        assert tail.bloom.may_contain(hash_key(key))
        found = []
        for block in tail.blocks_of(key, key + b"\0"):
            place = tail.row_places[block]
            rows = tail.decode_rows(block, data[place.offset : place.offset + place.length])
            found += [place.row + j for j, k in enumerate(rows["_key"].to_pylist()) if k == key]
        assert found == [j for j in range(3000) if batch["_key"][j].as_py() == key]
        places = tail.column_places["vector"]
        (block,) = places.of_rows(i, 1)
        place = places[block]
        vectors = tail.decode_column(
            "vector", block, data[place.offset : place.offset + place.length]
        )
        assert vectors[i - place.row] == batch["vector"][i]


def test_versions_of_one_key_may_cross_blocks() -> None:
    rows = pa.record_batch(
        [[b"k"] * 500, list(range(500, 0, -1)), [False] * 500, ["x" * 40] * 500],
        schema=segment_schema([pa.field("v", pa.string())]),
    )
    tail = tail_of(written([rows], SegmentOptions(row_block_bytes=1000)))
    assert len(tail.row_places) > 10
    assert tail.blocks_of(b"k", b"k\0") == range(len(tail.row_places))
    assert tail.blocks_of(b"j", b"j\0") == range(0)
    assert len(tail.blocks_of(b"l", b"l\0")) == 0


def test_ranges_of_keys_find_their_blocks() -> None:
    tail = tail_of(sample_segment(sample_rows(3000), SegmentOptions(row_block_bytes=1500))[0])
    blocks = len(tail.row_places)
    assert tail.blocks_of(b"", None) == range(blocks)
    assert len(tail.blocks_of(b"", b"key-000000")) == 0
    assert len(tail.blocks_of(b"zzz", None)) == 0
    assert tail.blocks_of(b"", b"key-000000\0") == range(1)
    middle = tail.blocks_of(b"key-000500", b"key-000600")
    assert 0 < len(middle) < blocks // 5
    first, last = tail.row_index["key_first"], tail.row_index["key_last"]
    for block in range(blocks):
        overlaps = first[block].as_py() < b"key-000600" and last[block].as_py() >= b"key-000500"
        assert (block in middle) == overlaps


def test_statistics_bound_the_values_of_their_block() -> None:
    columns = {
        "b": pa.array([None, True, False, None]),
        "i": pa.array([3, None, -7, 5], pa.int64()),
        "u": pa.array([2**64 - 1, 0, 1, None], pa.uint64()),
        "f": pa.array([math.nan, 1.5, -math.inf, None]),
        "nan": pa.array([math.nan] * 4),
        "null": pa.array([None] * 4, pa.float64()),
        "t": pa.array([1, 2, None, 3], pa.timestamp("us")),
        "s": pa.array(["b" * 100, "a" * 100, None, "ß"]),
        "y": pa.array([b"\xff" * 100, b"\xff" * 70 + b"a", b"", None]),
        "list": pa.array([[1], [2], None, []]),
    }
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    rows = pa.record_batch(
        [[b"a", b"b", b"c", b"d"], [1, 2, 3, 4], [False] * 4, *columns.values()],
        schema=segment_schema(fields),
    )
    index = tail_of(written([rows])).row_index.to_pylist()[0]
    assert (index["min:b"], index["max:b"], index["nulls:b"]) == (False, True, 2)
    assert (index["min:i"], index["max:i"], index["nulls:i"]) == (-7, 5, 1)
    assert (index["min:u"], index["max:u"]) == (0, 2**64 - 1)
    assert (index["min:f"], index["max:f"], index["nulls:f"]) == (-math.inf, 1.5, 1)
    assert (index["min:nan"], index["max:nan"], index["nulls:nan"]) == (None, None, 0)
    assert (index["min:null"], index["max:null"], index["nulls:null"]) == (None, None, 4)
    assert [index["min:t"].microsecond, index["max:t"].microsecond] == [1, 3]
    assert (index["min:s"], index["max:s"]) == (b"a" * 64, "ß".encode())
    assert (index["min:y"], index["max:y"]) == (b"", None)
    assert "min:list" not in index


def test_a_shortened_upper_bound_stays_an_upper_bound() -> None:
    long = "z" * 63 + "é" * 10
    rows = pa.record_batch(
        [[b"a"], [1], [False], [long]], schema=segment_schema([pa.field("s", pa.string())])
    )
    bound = tail_of(written([rows])).row_index["max:s"][0].as_py()
    assert len(bound) <= 64
    assert bound > long.encode()


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        ([sample_rows(4).slice(0, 0)], "no rows"),
        ([sample_rows(4).slice(2), sample_rows(4).slice(0, 2)], "sort after"),
        ([sample_rows(4), sample_rows(4).slice(3)], "sort after"),
        ([sample_rows(4).take([0, 2, 1, 3])], "not sorted"),
        ([sample_rows(4).take([1, 0])], "not sorted"),
        ([sample_rows(4).take([0, 0])], "not sorted"),
        (
            [sample_rows(1).set_column(1, LSN, pa.array([0], pa.int64()))],
            "another schema|version below 1",
        ),
    ],
)
def test_rows_that_are_not_in_order_are_never_written(
    batches: list[pa.RecordBatch], says: str
) -> None:
    with pytest.raises(InvariantError, match=says):
        list(SegmentWriter(segment_schema(SEGMENT_COLUMNS), ORIGIN).parts(batches))


def test_a_schema_without_the_system_columns_is_refused() -> None:
    with pytest.raises(InvariantError, match="instead of _key"):
        SegmentWriter(pa.schema([("id", pa.string())]), ORIGIN)
    with pytest.raises(InvariantError, match="same name"):
        SegmentWriter(segment_schema([pa.field("x", pa.int8()), pa.field("x", pa.int8())]), ORIGIN)


def test_a_segment_has_no_reference_before_it_is_whole() -> None:
    writer = SegmentWriter(segment_schema(SEGMENT_COLUMNS), ORIGIN)
    with pytest.raises(InvariantError, match="not finished"):
        _ = writer.ref


def test_objects_of_other_kinds_and_versions_are_named() -> None:
    data, _ = sample_segment()
    with pytest.raises(IncompleteError, match="an empty object"):
        decode_segment(b"")
    with pytest.raises(CorruptError, match="got a log object"):
        decode_segment(encode_log(sample_log()))
    with pytest.raises(FormatVersionError):
        decode_segment(data[:8] + struct.pack("<I", 9) + data[12:])


def test_a_tail_of_the_wrong_length_or_size_is_noticed() -> None:
    data, ref = sample_segment()
    with pytest.raises(CorruptError):
        decode_tail(data[-ref.footer_length - 8 :], size=len(data))
    with pytest.raises(CorruptError):
        decode_tail(data[-ref.footer_length :], size=len(data) + 1)
    with pytest.raises(IncompleteError):
        decode_tail(b"short", size=len(data))


def test_keys_name_the_namespace_and_the_segment() -> None:
    assert segment_key("products", "01J9") == "namespaces/products/segments/01J9.seg"


def test_any_number_of_wide_columns() -> None:
    count = 50
    vectors = [
        pa.FixedSizeListArray.from_arrays(pa.array(np.arange(count * d, dtype=np.float32)), d)
        for d in (3, 64, 700)
    ]
    fields = [pa.field(f"v{i}", v.type) for i, v in enumerate(vectors)]
    page = pa.array([bytes([i]) * 4096 for i in range(count)])
    rows = pa.record_batch(
        [
            [b"%04d" % i for i in range(count)],
            [pack_lsn(1, 0)] * count,
            [False] * count,
            *vectors,
            page,
        ],
        schema=segment_schema([*fields, pa.field("page", pa.binary())]),
    )
    options = SegmentOptions(wide=("v1", "v2", "page"), column_block_bytes=20_000)
    data = written([rows], options)
    tail, table = decode_segment(data)
    assert table.combine_chunks() == pa.table(rows)
    assert [len(places) for places in tail.column_places.values()] == [1, 8, 13]
    with pytest.raises(InvariantError, match="not columns"):
        SegmentWriter(rows.schema, ORIGIN, SegmentOptions(wide=("nope",)))


@pytest.mark.parametrize("compressible", [False, True])
def test_blocks_that_their_codec_barely_shrinks_are_read_without_a_copy(compressible: bool) -> None:
    count, dimensions = 4000, 32
    values = np.random.default_rng(3).random(count * dimensions, dtype=np.float32)
    if compressible:
        values[:] = 0.25
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), dimensions)
    rows = pa.record_batch(
        [[b"%06d" % i for i in range(count)], [1] * count, [False] * count, vectors],
        schema=segment_schema([pa.field("v", vectors.type)]),
    )
    data = pa.py_buffer(written([rows], SegmentOptions(column_block_bytes=8000)))
    _, table = decode_segment(data)
    assert table.combine_chunks() == pa.table(rows)
    for chunk in table["v"].chunks:
        address = chunk.values.buffers()[1].address
        assert (data.address <= address < data.address + data.size) is not compressible


def test_index_blocks_lie_before_the_tail_and_are_found_by_name() -> None:
    """Room for vector and text indexes, which a plan need not download."""
    rows = sample_rows(60)
    index = {"vector-index": b"v" * 1001, "text-index": b""}
    writer = SegmentWriter(rows.schema, ORIGIN, indexes=lambda: index)
    data = b"".join(writer.parts([rows]))
    tail, table = decode_segment(data)
    assert table.combine_chunks() == pa.table(rows)
    sections = {section.name: section for section in tail.footer.sections}
    place = sections["vector-index"]
    assert place.offset < len(data) - writer.ref.footer_length
    assert data[place.offset + 8 : place.offset + 8 + place.length] == index["vector-index"]
    for at in (place.offset, place.offset + 9, place.offset + 8 + 1001):  # frame, bytes, padding
        with pytest.raises(CorruptError):
            decode_segment(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_sections_have_names_of_their_own() -> None:
    writer = SegmentWriter(sample_rows(1).schema, ORIGIN, indexes=lambda: {"bloom": b"x"})
    with pytest.raises(InvariantError, match="two sections 'bloom'"):
        list(writer.parts([sample_rows(1)]))


def test_nulls_in_system_columns_are_never_written() -> None:
    rows = sample_rows(2)
    for column in range(3):
        nulls = pa.array([None, None], rows.schema.field(column).type)
        broken = rows.set_column(column, rows.schema.field(column), nulls)
        with pytest.raises(InvariantError, match="a null in"):
            written([broken])


def test_a_tail_is_compared_with_what_the_manifest_says() -> None:
    data, ref = sample_segment()
    tail = data[-ref.footer_length :]
    decode_tail(tail, size=len(data), ref=ref)
    for change in ({"checksum": 1}, {"rows": 7}, {"id": "01J9ZQ3V5N8W2X4Y6Z7A8B9C0Z"}):
        with pytest.raises(CorruptError, match="where the manifest says"):
            decode_tail(tail, size=len(data), ref=replace(ref, **change))


@pytest.mark.parametrize("columns", [0, 1, 300])
@pytest.mark.parametrize("rows", [1, 1000])
def test_any_number_of_columns(columns: int, rows: int) -> None:
    fields = [pa.field(f"c{i}", pa.string()) for i in range(columns)]
    batch = pa.record_batch(
        [
            [b"%06d" % i for i in range(rows)],
            [1] * rows,
            [False] * rows,
            *(pa.array([None, "x"] * rows).slice(0, rows) for _ in fields),
        ],
        schema=segment_schema(fields),
    )
    _, table = decode_segment(written([batch]))
    assert table.combine_chunks() == pa.table(batch)


def test_one_long_key_costs_no_more_than_itself() -> None:
    keys = [b"%06d" % i for i in range(1000)] + [b"z" * 4096]
    rows = pa.record_batch([keys, [1] * 1001, [False] * 1001], schema=segment_schema([]))
    tail, _ = decode_segment(written([rows]))
    assert all(tail.bloom.may_contain(hash_key(key)) for key in keys)
    with pytest.raises(InvariantError, match="4097"):
        written([pa.record_batch([[b"z" * 4097], [1], [False]], schema=segment_schema([]))])


@pytest.mark.parametrize("wide", [(), ("price",)])
@pytest.mark.parametrize("in_schema", ["plain", "field", "schema"])
@pytest.mark.parametrize("in_batch", ["plain", "field", "schema"])
def test_metadata_makes_no_difference(in_schema: str, in_batch: str, wide: tuple[str, ...]) -> None:
    """A batch without ids under a schema with them, and every other mix, is read back."""
    plain = segment_schema([pa.field("price", pa.int64()), pa.field("x", pa.int64())])
    schemas = {
        "plain": plain,
        "field": plain.set(3, with_field_id(plain.field(3), 1)),
        "schema": plain.with_metadata({"written by": "somebody" * 30}),
    }
    batch = pa.record_batch(
        [[b"a", b"b"], [1, 1], [False, True], [5, None], [6, 7]], schema=schemas[in_batch]
    )
    options = SegmentOptions(wide=wide)
    data = b"".join(SegmentWriter(schemas[in_schema], ORIGIN, options).parts([batch]))
    tail, table = decode_segment(data)
    assert table.to_pylist() == batch.to_pylist()
    assert tail.schema.equals(schemas[in_schema], check_metadata=True)


def test_extension_types_are_read_by_who_knows_them_and_who_does_not() -> None:
    rows = pa.record_batch(
        [
            [b"a", b"b"],
            [1, 1],
            [False, False],
            pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"x": 1}', "[]"])),
            pa.ExtensionArray.from_storage(_Url(), pa.array(["file:///a", "file:///b"])),
        ],
        schema=segment_schema([pa.field("j", pa.json_()), pa.field("u", _Url())]),
    )
    pa.register_extension_type(_Url())
    data = written([rows])
    assert decode_segment(data)[1]["u"].type == _Url()
    pa.unregister_extension_type("reef.test.url")
    tail, table = decode_segment(data)
    assert table["u"].to_pylist() == ["file:///a", "file:///b"]
    assert tail.row_index["max:j"][0].as_py() == b'{"x": 1}'


class _Url(pa.ExtensionType):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(pa.string(), "reef.test.url")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: pa.DataType, _data: bytes) -> _Url:
        return cls()


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int8(), pa.string()),
        pa.list_(pa.struct([("d", pa.dictionary(pa.int8(), pa.string()))])),
        pa.string_view(),
        pa.list_(pa.binary_view()),
        pa.list_view(pa.int8()),
        functools.reduce(lambda kind, _: pa.list_(kind), range(40), pa.int8()),
    ],
    ids=str,
)
def test_types_that_cannot_be_stored_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvariantError, match=r"dictionary|a column of|nested"):
        SegmentWriter(segment_schema([pa.field("x", kind)]), ORIGIN)


def test_values_that_a_reader_would_refuse_are_not_written() -> None:
    broken = pa.StringArray.from_buffers(
        1, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")
    )
    rows = pa.record_batch(
        [[b"a"], [1], [False], broken], schema=segment_schema([pa.field("s", pa.string())])
    )
    with pytest.raises(InvariantError, match=r"UTF8|utf8|UTF-8"):
        written([rows])


def test_long_rows_among_short_ones_do_not_swell_blocks() -> None:
    values = [b"x" * 300_000] * 3 + [b"y"] * 20_000
    rows = pa.record_batch(
        [[b"%08d" % i for i in range(20_003)], [1] * 20_003, [False] * 20_003, values],
        schema=segment_schema([pa.field("v", pa.binary())]),
    )
    options = SegmentOptions(row_block_bytes=64 << 10)
    _, table = decode_segment(written([rows], options))
    assert table.combine_chunks() == pa.table(rows)
    sizes = [batch.nbytes for batch in table.to_batches()]
    assert max(sizes) < 301_000
    assert sorted(sizes)[-4] <= 2 * (64 << 10)


def test_small_wide_columns_go_out_with_their_stripe() -> None:
    """Else their slices would keep every batch in memory up to the end."""
    rows = sample_rows(6000)
    options = SegmentOptions(wide=("price",), stripe_bytes=50_000, row_block_bytes=10_000)
    tail = tail_of(written([rows.slice(i, 500) for i in range(0, 6000, 500)], options))
    assert len(tail.column_places["price"]) > 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"origin": replace_origin(id="nope")},
        {"origin": replace_origin(level=256)},
        {"origin": replace_origin(author="\ud800")},
        {"origin": replace_origin(part=(0, 1))},
        {"options": SegmentOptions(row_block_bytes=0)},
        {"options": SegmentOptions(codec="gzip")},  # type: ignore[arg-type]
        {"options": SegmentOptions(wide=("price", "price"))},
    ],
    ids=str,
)
def test_a_wrong_origin_or_option_is_refused_before_anything_is_written(
    wrong: dict[str, Any],
) -> None:
    with pytest.raises(InvariantError):
        SegmentWriter(**{"schema": segment_schema(SEGMENT_COLUMNS), "origin": ORIGIN, **wrong})


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidInputError, match="nope"):
        decode_segment(sample_segment()[0], columns=["nope"])


def test_rows_that_are_not_those_of_the_index_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer gone wrong, whose checksums are right."""
    rows = sample_rows(1)
    monkeypatch.setattr(
        "reef.format._segment_writer.SegmentWriter._check", lambda self, batch: None
    )
    nulls = rows.set_column(1, rows.schema.field(1), pa.array([None], pa.int64()))
    monkeypatch.setattr(
        "reef.format._segment_writer._RowIndex.add", partialmethod(_add_other_rows, rows)
    )
    with pytest.raises(CorruptError, match="a null in"):
        decode_segment(b"".join(SegmentWriter(rows.schema, ORIGIN).parts([nulls])))


_add_rows = _RowIndex.add


def _add_other_rows(
    index: _RowIndex, rows: pa.RecordBatch, _batch: pa.RecordBatch, place: tuple[int, ...]
) -> None:
    _add_rows(index, rows, place)
