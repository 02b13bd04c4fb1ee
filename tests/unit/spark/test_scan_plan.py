"""What Spark's tasks do, without Spark: one version, key ranges, and batches of exact types."""

from __future__ import annotations

import gc
import itertools
import pickle
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pyarrow as pa
import pytest

import reef
from reef.database import Database
from reef.errors import (
    AccessDeniedError,
    InvalidInputError,
    NotFoundError,
    RetentionError,
    SnapshotExpiredError,
    UnavailableError,
)
from reef.gc import collect
from reef.jobs import Bucket
from reef.spark._freeze import freeze_imports
from reef.spark.source._read_options import ReadOptions
from reef.spark.source._read_version import ReadVersion, find_version, open_version
from reef.spark.source._scan_plan import (
    PushedFilters,
    Scan,
    ScanRange,
    _cuts,
    plan_scan,
    read_range,
    schema_of,
)
from reef.spark.source._spark_columns import select_columns, spark_columns
from reef.store import open_store
from reef.testing import Operation, WrapperStore
from tests.support.documents.stored_documents import busy_namespace, comparable
from tests.support.jobs.compactor import Compactor

T = TypeVar("T")

Row = dict[str, Any]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket?fsync=off"


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with reef.connect(
        url, gc_grace=0, retained_generations=1, row_block_bytes=2048, maintenance="off"
    ) as db:
        yield db


def version_of(url: str, namespace: str = "ns", **options: str) -> ReadVersion:
    return find_version(ReadOptions.of({"url": url, "namespace": namespace, **options}))


def scan_of(
    version: ReadVersion,
    *,
    where: str | None = None,
    names: tuple[str, ...] | None = None,
    batch_bytes: int = 4096,
) -> Scan:
    columns = select_columns(spark_columns(version.face, version.columns), names)
    pushed = PushedFilters() if where is None else PushedFilters.of(where, schema_of(version))
    return Scan(version, columns, pushed, batch_bytes)


def layout_of(scan: Scan) -> pa.Schema:
    return pa.schema([column.field for column in scan.columns])


def rows_of(scan: Scan, ranges: list[ScanRange] | None = None) -> list[Row]:
    """Return the rows of all ranges, read as a task reads them: what travels is pickled."""
    ranges = plan_scan(scan, partition_bytes=8192, min_partitions=4) if ranges is None else ranges
    sent: tuple[Scan, list[ScanRange]] = pickle.loads(pickle.dumps((scan, ranges)))
    layout = layout_of(scan)
    found: list[Row] = []
    for keys in sent[1]:
        for batch in read_range(sent[0], keys, layout):
            assert batch.schema.equals(layout)
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


def ids_of(scan: Scan) -> list[str]:
    return sorted(row["id"] for row in rows_of(scan))


def filled(db: Database, rows: int = 2000, parts: int = 4) -> Any:
    """Return documents in several segments whose keys lie between each other's."""
    ns = db.namespace("ns")
    for part in range(parts):
        ns.upsert([{"id": f"{i:06}", "n": i, "s": "x" * 50} for i in range(part, rows, parts)])
        ns.flush()
    return ns


def gone(db: Database) -> None:
    """Compact everything, drop old versions, and collect what nothing names any more."""
    context = db.context()
    head = context.chain("ns").load()
    assert head is not None
    Compactor(context, "ns").run(floor_lsn=head.manifest.last_applied_lsn)
    chain = context.chain("ns")
    for _ in range(2):
        collect(chain, context.store, settings=context.settings, clock=context.clock, apply=True)


# Ranges.


def test_ranges_follow_upon_each_other_and_hold_about_as_much(db: Database, url: str) -> None:
    filled(db)
    scan = scan_of(version_of(url))
    ranges = plan_scan(scan, partition_bytes=16 << 10, min_partitions=1)
    assert len(ranges) > 3
    assert ranges[0].start == b""
    assert ranges[-1].end is None
    assert all(a.end == b.start for a, b in itertools.pairwise(ranges))
    counts = [len(rows_of(scan, [keys])) for keys in ranges]
    assert sum(counts) == 2000
    assert max(counts) < 3 * min(counts[:-1])


def test_small_data_is_one_range_and_large_data_as_many_as_asked(db: Database, url: str) -> None:
    filled(db)
    scan = scan_of(version_of(url))
    assert plan_scan(scan, partition_bytes=1 << 30, min_partitions=8) == [ScanRange(b"", None)]
    assert len(plan_scan(scan, partition_bytes=1 << 10, min_partitions=1)) >= 30


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_no_range_is_left_with_next_to_nothing(count: int) -> None:
    rng = random.Random(count)
    sizes = [rng.randint(1, 100) for _ in range(1000)]
    weights = [(b"%04d" % i, size) for i, size in enumerate(sizes)]
    share = -(-sum(sizes) // count)
    edges = [0, *(int(key) for key in _cuts(weights, b"", share)), len(sizes)]
    held = [sum(sizes[a:b]) for a, b in itertools.pairwise(edges)]
    assert len(held) == count
    assert all(abs(one - share) <= 100 + count for one in held)


def test_a_piece_that_is_too_large_leaves_others_as_they_are() -> None:
    sizes = [10] * 50 + [1000] + [10] * 50
    weights = [(b"%04d" % i, size) for i, size in enumerate(sizes)]
    edges = [0, *(int(key) for key in _cuts(weights, b"", 100)), len(sizes)]
    held = [sum(sizes[a:b]) for a, b in itertools.pairwise(edges)]
    assert 1000 in held
    assert all(50 <= one <= 150 for one in held if one != 1000)


def test_a_single_large_segment_is_cut_at_its_blocks(db: Database, url: str) -> None:
    filled(db, parts=1)
    ranges = plan_scan(scan_of(version_of(url)), partition_bytes=16 << 10, min_partitions=1)
    assert len(ranges) > 3


def test_a_range_of_keys_is_all_that_is_planned(db: Database, url: str) -> None:
    filled(db)
    scan = scan_of(version_of(url), where="id >= '000500' AND id < '000520'")
    ranges = plan_scan(scan, partition_bytes=1 << 10, min_partitions=4)
    assert ranges[0].start == b"000500"
    assert ranges[-1].end == b"000520"
    assert ids_of(scan) == [f"{i:06}" for i in range(500, 520)]


def test_keys_that_cannot_be_are_not_planned(db: Database, url: str) -> None:
    filled(db, rows=10)
    scan = scan_of(version_of(url), where="id > 'b' AND id < 'a'")
    assert plan_scan(scan, partition_bytes=1 << 20, min_partitions=4) == []


def test_an_empty_namespace_has_a_schema_and_no_rows(db: Database, url: str) -> None:
    db.namespace("ns", schema={"n": "int64"})
    scan = scan_of(version_of(url))
    assert layout_of(scan).names == ["id", "n"]
    assert rows_of(scan) == []


# Rows.


@pytest.mark.parametrize("seed", range(3))
def test_ranges_give_what_a_scan_gives(url: str, seed: int) -> None:
    store = open_store(url)
    namespace = busy_namespace(seed, store)
    try:
        for where in (None, "grade > 0", "label >= 'm'", "id < 'd075'"):
            scan = scan_of(version_of(url), where=where, names=("id", "sold", "grade"))
            wanted = [
                {"id": row["id"], "sold": row["sold"], "grade": row["grade"]}
                for batch in namespace.view().scan(columns=["sold", "grade"], where=where)
                for row in batch.to_pylist()
            ]
            found = sorted(rows_of(scan), key=lambda row: row["id"].encode())
            assert comparable(found) == comparable(wanted)
    finally:
        namespace.close()


def test_every_type_goes_over(db: Database, url: str) -> None:
    kinds = {
        "text": "string",
        "whole": "int64",
        "unsigned": "uint64",
        "real": "float64",
        "flag": "bool",
        "at": "datetime",
        "token": "uuid",
        "raw": "bytes",
        "tags": "[]string",
        "tokens": "[]uuid",
        "numbers": "[]uint64",
        "times": "[]datetime",
        "vector": "vector[2]",
        "half": "vector[2]f16",
        "terms": "sparse",
        "extra": "json",
    }
    token, at = UUID("0123abcd-0000-0000-0000-00000000ffff"), datetime(2024, 5, 6, 7, tzinfo=UTC)
    ns = db.namespace("ns", schema=kinds)
    full = {
        "text": "é",
        "whole": -1,
        "unsigned": 2**64 - 1,
        "real": 0.5,
        "flag": True,
        "at": at,
        "token": token,
        "raw": b"\xff",
        "tags": ["a", ""],
        "tokens": [token],
        "times": [at],
        "numbers": [2**63, 1],
        "vector": [1.0, 2.0],
        "half": [0.5, 1.0],
        "extra": {"k": [1]},
        "terms": {"indices": [1, 4_000_000_000], "values": [0.5, 1.0]},
    }
    ns.upsert([{"id": "a"}, {"id": "b", **full}, {"id": "c"}, {"id": "d", **full}])
    wanted = {
        **full,
        "unsigned": Decimal(2**64 - 1),
        "token": str(token),
        "tokens": [str(token)],
        "numbers": [Decimal(2**63), Decimal(1)],
        "extra": '{"k":[1]}',
    }
    empty = dict.fromkeys(kinds)
    for _ in range(2):  # from memory, then from a segment
        rows = {row.pop("id"): row for row in rows_of(scan_of(version_of(url)))}
        assert rows == {"a": empty, "b": wanted, "c": empty, "d": wanted}
        assert list(rows["b"]) == list(kinds)
        ns.flush()


def test_keys_and_values(db: Database, url: str) -> None:
    kv = db.kv("pairs")
    kv.put(b"\xff", b"1")
    kv.flush()
    kv.put(b"a", b"2")
    scan = scan_of(version_of(url, "pairs"))
    rows = sorted(rows_of(scan), key=lambda row: row["key"])
    assert rows == [{"key": b"a", "value": b"2"}, {"key": b"\xff", "value": b"1"}]
    assert rows_of(scan_of(version_of(url, "pairs"), names=("key",)))[0].keys() == {"key"}


def test_batches_are_put_together_up_to_a_size(db: Database, url: str) -> None:
    filled(db, parts=1)
    version = version_of(url)

    def count(batch_bytes: int) -> int:
        scan = scan_of(version, batch_bytes=batch_bytes)
        return sum(1 for _ in read_range(scan, ScanRange(b"", None), layout_of(scan)))

    assert count(1) > 3
    assert count(1 << 20) == 1


# One version.


def test_a_version_stays_while_writes_and_folds_go_on(db: Database, url: str) -> None:
    ns = filled(db, rows=40)
    ns.upsert([{"id": "000000", "n": -1}])
    ns.delete(["000001"])
    version = version_of(url)
    assert version.replays
    wanted = rows_of(scan_of(version))
    assert {row["n"] for row in wanted} == {-1, *range(2, 40)}
    ns.upsert([{"id": "000002", "n": -2}, {"id": "new", "n": 1}])
    ns.delete(["000003"])
    ns.flush()
    ns.upsert([{"id": "000004", "n": -4}])
    later = rows_of(scan_of(version))
    assert sorted(later, key=str) == sorted(wanted, key=str)
    assert len(rows_of(scan_of(version_of(url)))) == 39


@pytest.mark.parametrize("seed", range(4))
def test_every_version_reads_as_it_was(db: Database, url: str, seed: int) -> None:
    rng = random.Random(seed)
    ns = db.namespace("ns", flush_interval=0)
    model: dict[str, int] = {}
    noted: list[tuple[ReadVersion, dict[str, int]]] = []
    for step in range(60):
        match rng.choice(("upsert", "upsert", "delete", "flush", "compact", "note")):
            case "upsert":
                ids = rng.sample(range(30), 6)
                ns.upsert([{"id": f"{i:02}", "n": step} for i in ids])
                model |= {f"{i:02}": step for i in ids}
            case "delete":
                ids = rng.sample(range(30), 3)
                ns.delete([f"{i:02}" for i in ids])
                model = {id: n for id, n in model.items() if int(id) not in ids}
            case "flush":
                ns.flush()
            case "compact":
                Compactor(db.context(), "ns").run(floor_lsn=ns.lsn)
            case "note" if model:
                noted.append((version_of(url), dict(model)))
    assert noted
    for version, wanted in noted:
        scan = scan_of(version)
        ranges = plan_scan(scan, partition_bytes=256, min_partitions=3)
        assert {row["id"]: row["n"] for row in rows_of(scan, ranges)} == wanted
        assert len(rows_of(scan, ranges)) == len(wanted)


def test_a_process_replays_the_log_once(db: Database, url: str) -> None:
    ns = filled(db, rows=40)
    ns.upsert([{"id": "a", "n": 1}])
    version = version_of(url)
    first = open_version(version)
    assert open_version(pickle.loads(pickle.dumps(version))) is first
    state = first.view().read(lambda state: state)
    assert first.view().read(lambda state: state) is state
    ns.upsert([{"id": "a", "n": 2}])
    assert open_version(version_of(url)) is not first


def test_what_was_folded_is_not_replayed(db: Database, url: str) -> None:
    filled(db, rows=40)
    assert not version_of(url).replays


def test_a_compaction_alone_does_not_end_a_read(db: Database, url: str) -> None:
    ns = filled(db, rows=40)
    version = version_of(url)
    ns.upsert([{"id": "000000", "n": -1}])
    ns.flush()
    lsn = ns.lsn
    Compactor(db.context(), "ns").run(floor_lsn=lsn)
    assert {row["n"] for row in rows_of(scan_of(version))} == set(range(40))


def test_what_was_collected_is_told_with_what_to_do(db: Database, url: str) -> None:
    ns = filled(db, rows=40)
    version = version_of(url)
    ns.upsert([{"id": "000000", "n": -1}])
    ns.flush()
    gone(db)
    with pytest.raises(SnapshotExpiredError, match=r"hold=2h"):
        rows_of(scan_of(version), [ScanRange(b"", None)])


def test_a_version_that_compaction_kept_is_found_again(db: Database, url: str) -> None:
    filled(db, rows=40)
    version = version_of(url)
    gone(db)  # nothing was written since: all of it is in the output
    assert {row["n"] for row in rows_of(scan_of(version))} == set(range(40))


def test_a_held_version_outlives_compaction_and_collection(db: Database, url: str) -> None:
    ns = filled(db, rows=40)
    ns.upsert([{"id": "000001", "n": -1}])
    version = version_of(url, hold="1h")
    assert version.snapshot is not None
    assert version.replays
    wanted = rows_of(scan_of(version))
    ns.upsert([{"id": "000000", "n": -1}, {"id": "new", "n": 1}])
    ns.delete(["000002"])
    ns.flush()
    gone(db)
    assert sorted(rows_of(scan_of(version)), key=str) == sorted(wanted, key=str)


def test_a_snapshot_is_taken_when_asked_for_and_used_again(db: Database, url: str) -> None:
    ns = filled(db, rows=40)

    def snapshots() -> int:
        head = db.context().chain("ns").load()
        assert head is not None
        return len(head.manifest.snapshots)

    version_of(url)
    version_of(url, hold="none")
    assert snapshots() == 0
    first = version_of(url, hold="2h")
    again = version_of(url, hold="1h")
    assert snapshots() == 1
    assert again.snapshot == first.snapshot
    longer = version_of(url, hold="4h")
    assert longer.snapshot == first.snapshot
    assert snapshots() == 1
    ns.upsert([{"id": "new"}])
    assert version_of(url, hold="1h").snapshot != first.snapshot
    assert snapshots() == 2


def test_a_large_namespace_is_held_unless_told_otherwise(
    db: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ns = filled(db, rows=40)
    held = ns.snapshot(id="mine")
    monkeypatch.setattr("reef.spark.source._read_version.SNAPSHOT_FROM_BYTES", 1)
    assert version_of(url).snapshot is not None
    assert version_of(url, hold="none").snapshot is None
    assert version_of(url, generation=str(version_of(url).generation)).snapshot is None
    assert version_of(url, snapshot="mine").snapshot == held.id


class ReadOnlyStore(WrapperStore):
    """A bucket that this user may not write to."""

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        if operation == "put_if_absent":
            raise AccessDeniedError(f"{key!r} may not be written")
        return super()._request(operation, key, call)


def test_a_scan_without_write_access_takes_no_snapshot(
    db: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(db, rows=40)
    reading = Database(ReadOnlyStore(open_store(url)))
    monkeypatch.setattr(Bucket, "open", lambda _: reading.context())
    monkeypatch.setattr("reef.spark.source._read_version.SNAPSHOT_FROM_BYTES", 1)
    assert version_of(url).snapshot is None
    with pytest.raises(AccessDeniedError):
        version_of(url, hold="1h")


def test_versions_of_the_past(db: Database, url: str) -> None:
    ns = filled(db, rows=8, parts=1)
    lsn = ns.lsn
    head = db.context().chain("ns").load()
    assert head is not None
    ns.snapshot(id="before")
    ns.upsert([{"id": "new", "n": 1, "later": True}])
    for options in (
        {"lsn": str(lsn)},
        {"generation": str(head.generation)},
        {"snapshot": "before"},
    ):
        version = version_of(url, **options)
        rows = rows_of(scan_of(version))
        assert len(rows) == 8, options
        assert "later" in rows[0]  # by the schema of now
    assert len(rows_of(scan_of(version_of(url)))) == 9


def test_versions_that_are_not_there(db: Database, url: str) -> None:
    ns = filled(db, rows=8)
    old = ns.lsn
    ns.upsert([{"id": "a"}])
    ns.flush()
    gone(db)
    with pytest.raises(RetentionError):
        version_of(url, lsn=str(old))
    with pytest.raises(UnavailableError):
        version_of(url, lsn=str(ns.lsn + 1000))
    with pytest.raises(NotFoundError):
        version_of(url, snapshot="nobody")
    with pytest.raises(SnapshotExpiredError):
        version_of(url, generation="1")
    with pytest.raises(NotFoundError):
        version_of(url, "nowhere")


# Options.


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": ""}, "url"),
        ({"namespace": ""}, "namespace"),
        ({"url": "memory://x"}, "other processes"),
        (
            {"url": "s3://my-bucket/p?access_key_id=me&secret_access_key=x"},
            "not sent to other processes",
        ),
        ({"branch": "a/b"}, "branch"),
        ({"namespace": "ns@b"}, "given as branch="),
        ({"snapshto": "x"}, "snapshto"),
        ({"lsn": "1", "snapshot": "x"}, "one version"),
        ({"lsn": "-1"}, "lsn"),
        ({"columns": ""}, "columns"),
        ({"columns": "a,,b"}, "columns"),
        ({"columns": "a,a"}, "columns"),
        ({"columns": "[1]"}, "columns"),
        ({"hold": "soon"}, "hold"),
        ({"hold": "1h", "snapshot": "x"}, "hold"),
        ({"pushdown": "maybe"}, "pushdown"),
        ({"partition_bytes": "0"}, "partition_bytes"),
        ({"min_partitions": "0"}, "min_partitions"),
        ({"reef.block_cache_bytes": "many"}, "block_cache_bytes"),
        ({"reef.nonsense": "1"}, "nonsense"),
    ],
)
def test_options_that_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        ReadOptions.of({"url": "file:///nowhere", "namespace": "ns", **options})


def test_options_as_text() -> None:
    given = {"URL": "file:///nowhere", "Namespace": "ns", "columns": '["a,b", "c"]', "hold": "2h"}
    options = ReadOptions.of({**given, "partition_bytes": "8MiB", "reef.block_cache_bytes": "1MiB"})
    assert options.columns == ("a,b", "c")
    assert options.hold_s == 7200
    assert options.partition_bytes == 8 << 20
    assert options.ref.bucket.settings["block_cache_bytes"] == 1 << 20
    plain = ReadOptions.of({"url": "file:///nowhere", "namespace": "ns", "columns": "a, b"})
    assert plain.columns == ("a", "b")


def test_columns_that_are_not_there(db: Database, url: str) -> None:
    filled(db, rows=8)
    with pytest.raises(InvalidInputError, match="nonsense"):
        scan_of(version_of(url), names=("id", "nonsense"))
    with pytest.raises(InvalidInputError, match="nonsense"):
        scan_of(version_of(url), where="nonsense > 1")


# Workers.


def test_only_a_worker_that_is_used_again_freezes_its_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freeze = freeze_imports.__wrapped__
    before = gc.get_freeze_count()
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    freeze()
    assert gc.get_freeze_count() == before
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    try:
        freeze()
        assert gc.get_freeze_count() > before + 10_000
    finally:
        gc.unfreeze()
