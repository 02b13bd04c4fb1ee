"""The newest versions of many keys: joined, they are what as many point reads find."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import reef
from reef.documents import Documents
from reef.engine import ReadState
from reef.format import KEY, LSN
from reef.store import MemoryStore
from reef.testing import CountingStore
from reef.types import LSN_MAX
from tests.support.engine.segments import Bench, value_of, write
from tests.unit.engine.test_candidates import MANIFEST

DIMENSION = 32
COLUMNS = pa.schema(
    [
        pa.field(KEY, pa.binary()),
        pa.field(LSN, pa.int64()),
        pa.field("a1", pa.int64()),
        pa.field("a2", pa.list_(pa.float32(), DIMENSION)),
    ]
)


def documents(rng: random.Random, count: int) -> list[dict[str, object]]:
    ids = rng.sample(range(2000), count)
    return [
        {"id": f"{i:05}", "n": rng.randrange(100), "v": [rng.random()] * DIMENSION} for i in ids
    ]


def opened(store: CountingStore) -> Documents:
    schema = {"n": "int64", "v": f"vector[{DIMENSION}]"}
    return reef.Database(store).namespace("ns", schema=schema, row_block_bytes=4096)


def busy(seed: int) -> tuple[CountingStore, Documents]:
    """Return a namespace with several segments and rows in memory, all over the same ids."""
    rng = random.Random(seed)
    store = CountingStore(MemoryStore())
    namespace = opened(store)
    for round in range(5):
        namespace.upsert(documents(rng, 700))
        namespace.delete([f"{i:05}" for i in rng.sample(range(2000), 150)])
        if round < 4:
            namespace.flush()
    return store, namespace


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_join_finds_what_point_reads_find(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _, namespace = busy(seed)
    rng = random.Random(seed)
    ids = [f"{rng.randrange(2200):05}".encode() for _ in range(1500)]  # some twice, some unknown
    keys = pa.array(ids, pa.binary())
    view = namespace.view()._view

    def found(points_max: int, lsn: int) -> tuple[list[int], list[bool], list[dict[str, object]]]:
        monkeypatch.setattr(ReadState, "points_max", points_max)

        def read(state: ReadState) -> tuple[list[int], list[bool], list[dict[str, object]]]:
            latest = state.many(keys, lsn)
            part = latest.rows(COLUMNS, 7, 900).to_pylist()
            rows = latest.rows(COLUMNS).to_pylist()
            assert part == rows[7:907]
            names = {field.name for field in latest.fields}
            assert names == ({"a1", "a2"} if latest.exists.any() else set())
            return latest.lsns.tolist(), latest.exists.tolist(), rows

        return view.read(read)

    versions = sorted({*found(0, view.lsn)[0]})
    assert len(versions) > 5
    for lsn in versions:
        joined, points = found(0, lsn), found(10**6, lsn)
        assert joined == points
        lsns, exists, rows = joined
        for key, version, is_there, row in zip(ids, lsns, exists, rows, strict=True):
            expected = (key, version) if is_there else (None, None)
            assert (row[KEY], row[LSN]) == expected
    namespace.close()


def test_wide_values_are_read_of_the_newest_versions_alone() -> None:
    store, namespace = busy(1)
    namespace.flush()
    namespace.close()
    everybody = pa.array([f"{i:05}".encode() for i in range(2000)], pa.binary())

    def bytes_of(keys: pa.Array, *, wide: bool) -> int:
        again = opened(store)
        store.reset()
        again.view()._view.many(keys, wide=wide)
        read = sum(store.counts.bytes.values())
        again.close()
        return read

    narrow = bytes_of(everybody, wide=False)
    vectors = 5 * 700 * DIMENSION * 4
    assert narrow < bytes_of(everybody, wide=True) < narrow + vectors
    newest = everybody.filter(pa.array(np.arange(2000) < 300))
    assert bytes_of(newest, wide=False) < narrow


@pytest.mark.parametrize("count", [3, 300, 3000])
def test_documents_and_values_are_found_by_few_ids_or_many(count: int) -> None:
    db = reef.connect("memory://latest")
    namespace = db.namespace(f"ns{count}")
    namespace.upsert([{"id": f"{i:05}", "n": i, "v": [i, i + 1]} for i in range(0, 4000, 2)])
    namespace.flush()
    ids = [f"{i:05}" for i in range(count)]
    expected = [
        {"id": f"{i:05}", "n": i, "v": [i, i + 1]} if i % 2 == 0 else None for i in range(count)
    ]
    assert namespace.get_many(ids) == expected
    assert namespace.get_many(ids, columns=["n"]) == [
        None if one is None else {"id": one["id"], "n": one["n"]} for one in expected
    ]
    kv = db.kv(f"kv{count}")
    kv.write(puts={b"%05d" % i: b"%d" % i for i in range(0, 4000, 2)})
    kv.delete(b"00002")
    kv.flush()
    keys = [b"%05d" % i for i in range(count)]
    assert kv.get_many(keys) == [b"%d" % i if i % 2 == 0 and i != 2 else None for i in range(count)]


def test_of_a_segment_with_one_version_the_first_row_of_a_key_counts() -> None:
    """Its rows have versions of their own in the file, and a key may go on in the next block."""
    bench = Bench()
    keys = [b"k%04d" % i for i in range(400)]
    ref = write(bench.store, [(key, lsn, False) for key in keys for lsn in (3, 2, 1)])
    attached = msgspec.structs.replace(ref, version=9, lsn_min=9, lsn_max=9)
    reader = bench.reader()
    state = ReadState(MANIFEST, (reader.open(attached),), reader)
    found = state.many(pa.array(keys, pa.binary()), LSN_MAX)
    assert found.lsns.tolist() == [9] * 400
    values = found.rows(pa.schema([pa.field("value", pa.binary())])).column(0).to_pylist()
    assert values == [value_of(key, 3) for key in keys]
