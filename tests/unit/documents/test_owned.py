"""A write has memory of its own: what its caller does with his changes nothing, and none is kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from reef.database import Database
from reef.engine import CreateOnly
from reef.format import owned, owned_rows
from reef.pages import WalRecord
from tests.support.engine.open_database import database

IDS = ["a", "b", "c"]
ARRAYS = {
    "numbers": pa.array(np.arange(9)),
    "numbers and a bitmap": pa.array(np.arange(9), mask=np.zeros(9, bool)),
    "bools": pa.array([True, None, False] * 7),
    "times": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
    "text": pa.array(["a", None, "ccc", ""]),
    "bytes": pa.array([b"a", None, b"ccc", b""]),
    "uuids": pa.array([b"1" * 16, None, b"3" * 16], pa.binary(16)),
    "lists": pa.array([[1], None, [2, 3], []]),
    "lists of text": pa.array([["a"], None, ["bb", ""], []]),
    "vectors": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float16(), 2)),
    "sparse": pa.array([{"indices": [1], "values": [0.5]}, None, {"indices": [], "values": []}]),
}


@pytest.fixture
def db() -> Iterator[Database]:
    with database() as db:
        yield db


def memory(array: pa.Array) -> list[tuple[int, int]]:
    """Return from where to where the buffers of an array lie."""
    found = [buffer for buffer in array.buffers() if buffer is not None and buffer.size]
    return [(buffer.address, buffer.address + buffer.size) for buffer in found]


@pytest.mark.parametrize("name", [*ARRAYS])
@pytest.mark.parametrize("first", [0, 1])
def test_nothing_of_an_array_is_shared(name: str, first: int) -> None:
    given = ARRAYS[name].slice(first)
    for found in (owned(given), owned(given, given.slice(1))):
        assert found.slice(0, len(given)).equals(given)
        for low, high in memory(found):
            assert not any(low < stop and start < high for start, stop in memory(given))


def test_what_is_kept_of_a_slice_is_the_slice() -> None:
    for whole in (pa.array(np.arange(10_000)), pa.array([f"{i:08}" for i in range(10_000)])):
        assert owned(whole.slice(5, 10)).get_total_buffer_size() < 500


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("compressible", [False, True])
@pytest.mark.parametrize("name", [*ARRAYS])
def test_nothing_of_a_large_batch_is_shared(name: str, compressible: bool, first: int) -> None:
    numbers = pa.FixedSizeListArray.from_arrays(pa.array(large_numbers(compressible)), 256)
    column = pa.concat_arrays([ARRAYS[name]] * len(numbers)).slice(0, len(numbers))
    given = pa.record_batch([column, numbers], ["column", "numbers"]).slice(first)
    batch, stream = owned_rows(given)
    assert batch == given
    assert (stream is None) is compressible
    for mine, theirs in zip(batch.columns, given.columns, strict=True):
        for low, high in memory(mine):
            assert not any(low < stop and start < high for start, stop in memory(theirs))


def large_numbers(compressible: bool) -> np.ndarray:
    """Return so many that a sample says whether to compress them."""
    count = 1 << 18
    return np.zeros(count) if compressible else np.random.default_rng(1).random(count)


@pytest.mark.parametrize("compressible", [False, True])
def test_a_large_buffer_may_be_used_again(db: Database, compressible: bool) -> None:
    numbers = large_numbers(compressible)
    ids = pa.array([f"{i:06}" for i in range(len(numbers))])
    with db.namespace("ns") as ns:
        ns.upsert({"id": ids, "n": numbers})
        before = ns.query(columns=["n"], limit=None)
        assert before["n"].to_numpy().tolist() == numbers.tolist()
        numbers[:] = np.nan
        assert ns.query(columns=["n"], limit=None) == before
        ns.flush()
        assert ns.query(columns=["n"], limit=None) == before
    with db.namespace("ns") as ns:
        assert ns.query(columns=["n"], limit=None) == before


@pytest.mark.parametrize("form", ["columns", "table", "frame", "arrow"])
@pytest.mark.parametrize("is_patch", [False, True])
def test_a_buffer_may_be_used_again_for_the_next_documents(
    db: Database, form: str, is_patch: bool
) -> None:
    numbers, vectors = np.arange(3), np.ones((3, 2), np.float32)
    data: Any = {"id": IDS, "n": numbers, "v": vectors}
    if form == "table":
        data = pa.table({"id": IDS, "n": pa.array(numbers)})
    elif form == "frame":
        data = pd.DataFrame({"id": IDS, "n": numbers}, copy=False)
    elif form == "arrow":
        raw = pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(numbers)])
        data = {"id": pa.array(IDS), "n": raw}
    with db.namespace("ns") as ns:
        if is_patch:
            ns.upsert([{"id": id} for id in IDS])
            ns.patch(data)
        else:
            ns.upsert(data)
        before = ns.query().to_pylist()
        assert [row["n"] for row in before] == [0, 1, 2]
        numbers[:], vectors[:] = 7, np.nan
        assert ns.query().to_pylist() == before
        ns.flush()
        assert ns.query().to_pylist() == before


def test_a_buffer_may_be_used_again_for_the_next_ids(db: Database) -> None:
    text, key = bytearray(b"abc"), bytearray(b"xyz")
    offsets = pa.array([0, 1, 2, 3], pa.int32()).buffers()[1]
    ids = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(text)])
    gone = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(key)])
    with db.namespace("ns") as ns:
        ns.upsert([{"id": id} for id in "xyzw"])
        ns.upsert({"id": ids})
        ns.delete(gone)
        text[:], key[:] = b"mno", b"www"
        assert ns.query().column("id").to_pylist() == ["a", "b", "c", "w"]


@pytest.mark.parametrize("condition", [None, CreateOnly()])
def test_a_buffer_may_be_used_again_for_the_next_values(db: Database, condition: Any) -> None:
    keys, values = bytearray(b"abc"), bytearray(b"xyz")
    offsets = pa.array([0, 1, 2, 3], pa.int32()).buffers()[1]
    rows = pa.RecordBatch.from_pydict(
        {
            "key": pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(keys)]),
            "value": pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(values)]),
        }
    )
    one = bytearray(b"value")
    with db.kv("ns") as kv:
        kv.write(rows, condition=condition)
        kv.put(b"one", one)
        kv.write({b"two": memoryview(one)})
        keys[:], values[:], one[:] = b"mno", b"???", b"?????"
        expected = {b"a": b"x", b"b": b"y", b"c": b"z", b"one": b"value", b"two": b"value"}
        assert dict(kv.items()) == expected
        kv.flush()
        assert dict(kv.items()) == expected


def test_a_buffer_may_be_used_again_for_the_next_pages(db: Database) -> None:
    data = bytearray(b"a" * 16)
    with db.pages("ns", page_size=16) as pages:
        pages.append_wal([WalRecord(0, None, data)])  # type: ignore[arg-type]
        pages.append_wal([WalRecord(n, None, memoryview(data)) for n in (1, 2)])  # type: ignore[arg-type]
        data[:] = b"?" * 16
        assert pages.get_pages([0, 1, 2]) == [b"a" * 16] * 3
        pages.flush()
        assert pages.get_pages([0, 1, 2]) == [b"a" * 16] * 3


def test_a_slice_does_not_keep_what_it_was_cut_from(db: Database) -> None:
    raw = np.ones(1000)
    gone = weakref.ref(raw)
    with db.namespace("ns") as ns:
        ns.upsert({"id": IDS, "f": pa.array(raw).slice(5, 3)})
        del raw
        gc.collect()
        assert gone() is None


@pytest.mark.slow
@pytest.mark.parametrize("key", [None, "key"])
def test_a_flush_leaves_nothing_of_the_last_request(db: Database, key: str | None) -> None:
    def batches() -> list[pa.RecordBatch]:
        gc.collect()
        return [one for one in gc.get_objects() if isinstance(one, pa.RecordBatch)]

    with db.namespace("ns") as ns:
        ns.upsert([{"id": "a"}])
        ns.flush()
        before = {*map(id, batches())}
        ns.upsert({"id": [f"{i}" for i in range(777)]}, idempotency_key=key)
        ns.flush()
        left = [one for one in batches() if id(one) not in before and one.num_rows == 777]
        assert not left


@pytest.mark.parametrize("kind", ["condition", "patches", "deletes"])
def test_what_is_logged_of_a_large_request_is_what_was_accepted(db: Database, kind: str) -> None:
    numbers = large_numbers(False)[: 1 << 17]
    ids = [f"{i:06}" for i in range(len(numbers))]
    expected = dict(zip(ids, numbers.tolist(), strict=True))
    with db.namespace("ns") as ns:
        ns.upsert([{"id": ids[0], "n": -1.0, "kept": 1}, {"id": "gone", "n": 0.0}])
        if kind == "condition":
            ns.upsert({"id": ids, "n": numbers}, condition=CreateOnly(), atomic=False)
            expected |= {ids[0]: -1.0, "gone": 0.0}
        elif kind == "patches":
            ns.upsert({"id": ids[1:], "n": numbers[1:] + 1})
            ns.patch({"id": ids, "n": numbers})
            expected |= {"gone": 0.0}
        else:
            ns.write(upserts={"id": ids, "n": numbers}, deletes=["gone"])
    with db.namespace("ns") as ns:  # from the log
        found = pa.Table.from_batches(ns.scan(columns=["n"]))
        assert dict(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True)) == expected
        kept = ns.get(ids[0])
        assert kept is not None
        assert kept.get("kept") == (None if kind == "deletes" else 1)
