"""The change feed as a Spark stream: every operation once, over restarts, in micro-batches."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import reef
from reef.engine import FeedLog
from reef.errors import InvalidInputError, RetentionError
from reef.format import SegmentOrigin, segment_schema, with_field_id
from reef.gc import collect
from reef.jobs import Bucket
from reef.kv import KeyValue
from reef.manifest import end_intent, register_intent
from reef.segment import write_segment
from reef.spark.source._data_source import ReefDataSource
from reef.spark.source._feed_options import FeedOptions, is_feed
from reef.spark.source._feed_plan import AttachedPart, FeedPart, plan_log
from reef.spark.source._feed_read import FeedReader, stream_schema
from reef.spark.source._read_version import find_version
from reef.types import new_ulid
from tests.support.engine.open_handles import writer_of

FORMAT = "reef-changes"


class ChangesSource(ReefDataSource):
    """The data source with streams of changes."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        if not is_feed(self.options):
            return super().schema()
        options = FeedOptions.of(self.options)
        return stream_schema(self._found(options.read()), options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = FeedOptions.of(self.options)
        return FeedReader(options, self._found(options.read()), schema)


@pytest.fixture(scope="module")
def stream_spark(spark: SparkSession) -> SparkSession:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(ChangesSource)
    return spark


@pytest.fixture
def db(bucket: Bucket) -> Iterator[reef.Database]:
    with reef.connect(bucket.url) as opened:
        yield opened


Row = tuple[Any, ...]


class Sink:
    """What the micro-batches of a query have brought, by their numbers."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, **options: object) -> None:
        self._spark = spark
        self._options = {"url": url, "namespace": "ns", **{k: str(v) for k, v in options.items()}}
        self._folder = folder
        self.batches: dict[int, list[Row]] = {}
        self.replayed = 0
        self.fails_at: int | None = None

    def start(self, **trigger: Any) -> StreamingQuery:
        stream = self._spark.readStream.format(FORMAT).options(**self._options).load()
        writer = stream.writeStream.foreachBatch(self._take)
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()

    def _take(self, rows: DataFrame, number: int) -> None:
        found = [tuple(row.asDict(recursive=True).items()) for row in rows.collect()]
        found.sort(key=lambda row: (dict(row)["_lsn"], str(row)))
        if number in self.batches:
            assert self.batches[number] == found  # the same rows whenever they are asked for
            self.replayed += 1
        self.batches[number] = found
        if number == self.fails_at:
            self.fails_at = None
            raise RuntimeError("the sink fails after it has taken the rows")

    def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for number in sorted(self.batches) for row in self.batches[number]]


def test_twenty_micro_batches_with_restarts_bring_each_operation_once(
    stream_spark: SparkSession, db: reef.Database, tmp_path: Path
) -> None:
    kv = db.kv("ns")
    rng = random.Random(1)
    model: list[tuple[int, str, bytes, bytes | None]] = []

    def write(count: int) -> None:
        for _ in range(count):
            keys = rng.sample([b"k%02d" % i for i in range(20)], 3)
            puts = {key: b"%d" % rng.getrandbits(30) for key in keys[:2]}
            lsn = kv.write(puts, keys[2:]).lsn
            model.extend((lsn, "upsert", key, value) for key, value in puts.items())
            model.append((lsn, "delete", keys[2], None))

    write(2)
    sink = Sink(stream_spark, db.store.url, tmp_path, starting="earliest", max_slots_per_batch=2)
    sink.fails_at = 9
    query = sink.start()
    for _ in range(4):
        write(2)
        query.processAllAvailable()
    kv.flush()
    write(10)
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        query.processAllAvailable()
    write(6)  # while it is down
    kv.flush()
    kv = db.kv("ns")  # and another writer takes over
    write(4)
    query = sink.start()
    query.processAllAvailable()
    query.stop()
    write(2)
    query = sink.start()
    write(8)
    query.processAllAvailable()
    query.stop()
    assert len(sink.batches) >= 20
    assert sink.replayed >= 1
    found = [
        (r["_lsn"], r["_op"], bytes(r["key"]), r["value"] and bytes(r["value"]))
        for r in sink.rows()
    ]
    assert sorted(found, key=str) == sorted(model, key=str)
    assert [one[0] for one in found] == sorted(one[0] for one in found)


def test_a_stream_begins_with_a_snapshot_and_goes_on_with_changes_and_before_images(
    stream_spark: SparkSession, db: reef.Database, tmp_path: Path
) -> None:
    ns = db.namespace("ns")
    ns.upsert([{"id": f"d{i}", "price": i, "vector": [float(i), 0.5]} for i in range(50)])
    ns.flush()
    ns.patch([{"id": "d1", "price": 100}])
    sink = Sink(
        stream_spark, db.store.url, tmp_path, starting="snapshot", before="true", partition_bytes=1
    )
    query = sink.start(availableNow=True)
    query.awaitTermination()
    assert not FeedLog(db.context(), "ns").manifest().snapshots
    began = sink.rows()
    assert {row["_op"] for row in began} == {"snapshot"}
    assert {row["id"]: row["price"] for row in began} == {
        f"d{i}": 100 if i == 1 else i for i in range(50)
    }
    assert all(row["_before"] is None and row["_committed_at"] is None for row in began)
    ns.delete(["d2"])
    ns.patch([{"id": "d1", "price": 101}, {"id": "d3", "price": 103, "new": "x"}])
    ns.patch([{"id": "d1", "price": 102}])
    query = sink.start(availableNow=True)
    query.awaitTermination()
    news = sink.rows()[len(began) :]
    shown = [(r["_op"], r["id"], r["price"], r["_before"]["price"]) for r in news]
    assert sorted(shown[1:3]) == [("upsert", "d1", 101, 100), ("upsert", "d3", 103, 3)]
    assert [shown[0], shown[3]] == [("delete", "d2", None, 2), ("upsert", "d1", 102, 101)]
    assert news[0]["_before"]["vector"] == [2.0, 0.5]
    assert all(row["_committed_at"] is not None for row in news)


def test_an_lsn_that_was_collected_fails_the_query_with_what_to_do(
    stream_spark: SparkSession, db: reef.Database, tmp_path: Path
) -> None:
    kv = db.kv("ns", gc_grace=0)
    lsn = kv.put(b"a", b"1").lsn
    kv.put(b"b", b"2")
    kv.put(b"c", b"2")
    kv.flush()
    kv.put(b"d", b"2")
    _collect(db)
    sink = Sink(stream_spark, db.store.url, tmp_path, starting=lsn)
    query = sink.start()
    with pytest.raises(StreamingQueryException, match="Start from a snapshot"):
        query.processAllAvailable()


def _collect(db: reef.Database) -> None:
    """Collect whatever may go, without a grace period."""
    context = db.context(gc_grace=0, retained_generations=1)
    chain = context.chain("ns")
    for _ in range(5):
        chain.publish(lambda head: head.manifest)
    collect(chain, context.store, settings=context.settings, clock=context.clock, apply=True)
    assert FeedLog(context, "ns").manifest().gc.boundary.slot > 2


# What needs no session.


def reader(db: reef.Database, **options: object) -> FeedReader:
    texts = {"url": db.store.url, "namespace": "ns", **{k: str(v) for k, v in options.items()}}
    parsed = FeedOptions.of(texts)
    version = find_version(parsed.read())
    return FeedReader(parsed, version, stream_schema(version, parsed))


def rows_between(stream: FeedReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    parts = stream.partitions(start, end)
    tables = [pa.Table.from_batches(stream.read(part)) for part in parts]
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


def test_any_two_offsets_hold_the_same_rows_however_they_are_cut(db: reef.Database) -> None:
    kv = db.kv("ns")
    rng = random.Random(2)
    expected = []
    for i in range(60):
        if i % 20 == 10:
            kv.flush()
        key = b"k%d" % rng.randrange(9)
        expected.append((kv.put(key, b"%d" % i).lsn, key, b"%d" % i))
    for options in ({}, {"partition_bytes": 1}, {"partition_bytes": 2000}):
        stream = reader(db, starting="earliest", **options)
        offsets = [stream.initialOffset()]
        while True:
            end = stream.latestOffset(offsets[-1], ReadMaxFiles(rng.randint(1, 9)))
            if end == offsets[-1]:
                break
            offsets.append(end)
        fresh = reader(db, starting="latest", **options)  # after a restart
        for start, end in pairwise(offsets):
            found = rows_between(stream, start, end)
            assert rows_between(fresh, start, end) == found
            assert rows_between(fresh, {"lsn": start["lsn"]}, {"lsn": end["lsn"]}) == found
        whole = rows_between(stream, offsets[0], offsets[-1])
        assert [(row[1], row[3], row[4]) for row in whole] == expected
    cut = len(
        reader(db, starting="earliest", partition_bytes=2000).partitions(offsets[0], offsets[-1])
    )
    assert 1 < cut < 60


def test_limits_and_triggers(db: reef.Database) -> None:
    kv = db.kv("ns")
    for i in range(10):
        kv.put(b"k%d" % i, b"v" * 100)
    stream = reader(db, starting="earliest", max_slots_per_batch=3)
    start = stream.initialOffset()
    limit = stream.getDefaultReadLimit()
    first = stream.latestOffset(start, limit)
    assert len(rows_between(stream, start, first)) == 3
    everything = stream.latestOffset(start, ReadAllAvailable())
    assert len(rows_between(stream, start, everything)) == 10
    assert stream.latestOffset(everything, limit) is everything
    stream.prepareForTriggerAvailableNow()
    kv.put(b"late", b"v")
    assert stream.latestOffset(start, ReadAllAvailable()) == everything
    assert stream.latestOffset(everything, limit) is everything
    assert reader(db, starting="latest").initialOffset()["lsn"] == kv.lsn
    by_bytes = reader(db, starting=everything["lsn"] - 1, max_bytes_per_batch=1)
    begun = by_bytes.initialOffset()
    assert rows_between(by_bytes, begun, by_bytes.latestOffset(begun, limit))[0][3] == b"k9"


def test_an_attach_ends_a_micro_batch_and_is_read_by_segments(db: reef.Database) -> None:
    kv = db.kv("ns")
    kv.put(b"a", b"0")
    _attach(db, kv)
    kv.put(b"z", b"1")
    stream = reader(db, starting="earliest", partition_bytes=1, before="true")
    start = stream.initialOffset()
    first = stream.latestOffset(start, stream.getDefaultReadLimit())
    place = stream._position(first)
    log = FeedLog(db.context(), "ns")
    parts = plan_log(log, stream._position(start), place, 1)
    assert [type(part) for part in parts] == [FeedPart, AttachedPart, AttachedPart]
    found = [(row[0], row[3], row[5]) for row in rows_between(stream, start, first)]
    assert found == [
        ("upsert", b"a", None),
        ("upsert", b"a", {"value": b"0"}),
        ("upsert", b"b", None),
        ("upsert", b"c", None),
    ]
    rest = stream.latestOffset(first, stream.getDefaultReadLimit())
    assert [row[3] for row in rows_between(stream, first, rest)] == [b"z"]


def _attach(db: reef.Database, kv: KeyValue) -> None:
    context = db.context()
    chain = context.chain("ns")
    chain.publish(
        lambda head: register_intent(
            head.manifest, id="load-1", kind="load", author="t", opened_at_us=0
        )
    )
    schema = segment_schema([with_field_id(pa.field("value", pa.binary()), 1)])
    refs = []
    for keys in ([b"a", b"b"], [b"c"]):
        columns = [keys, [1] * len(keys), [False] * len(keys), keys]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
        )
        origin = SegmentOrigin(
            id=f"{new_ulid(context.clock, context.rng)}-load-1",
            namespace="ns",
            level=0,
            author="t",
            created_at_us=0,
        )
        refs.append(write_segment(context.store, "ns", schema, origin, None, [batch]))
    writer_of(kv).attach(refs)
    chain.publish(lambda head: end_intent(head.manifest, "load-1"))


def test_the_columns_are_settled_when_the_stream_starts(db: reef.Database) -> None:
    ns = db.namespace("ns")
    ns.upsert([{"id": "a", "price": 1}])
    stream = reader(db, starting="earliest")
    start = stream.initialOffset()
    ns.upsert([{"id": "b", "price": 2, "new": "x"}])
    ns.alter(rename={"price": "cost"})
    ns.upsert([{"id": "c", "cost": 3}])
    end = stream.latestOffset(start, ReadAllAvailable())
    found = rows_between(stream, start, end)
    assert [row[3:] for row in found] == [("a", 1), ("b", 2), ("c", 3)]


def test_a_snapshot_that_the_stream_took_is_released_when_its_rows_were_taken_in(
    db: reef.Database,
) -> None:
    kv = db.kv("ns")
    kv.put(b"a", b"1")
    stream = reader(db, starting="snapshot")
    start = stream.initialOffset()
    kv.put(b"b", b"2")
    assert stream.initialOffset() == start  # Spark asks twice
    snapshots = FeedLog(db.context(), "ns").manifest().snapshots
    assert [s.id for s in snapshots] == [start["snapshot"]]
    end = stream.latestOffset(start, ReadAllAvailable())
    assert [row[3] for row in rows_between(stream, start, end)] == [b"a"]
    assert FeedLog(db.context(), "ns").manifest().snapshots
    news = reader(db, starting="snapshot").latestOffset(end, ReadAllAvailable())  # started again
    assert not FeedLog(db.context(), "ns").manifest().snapshots
    assert [row[3] for row in rows_between(stream, end, news)] == [b"b"]
    assert stream.latestOffset(news, ReadAllAvailable()) == news
    with kv.snapshot() as own:
        given = reader(db, starting="snapshot", snapshot=own.id)
        start = given.initialOffset()
        assert start == {"snapshot": own.id, "lsn": own.lsn}
        given.latestOffset(given.latestOffset(start, ReadAllAvailable()), ReadAllAvailable())
        assert FeedLog(db.context(), "ns").manifest().snapshots


def test_options_that_are_wrong(db: reef.Database) -> None:
    db.kv("ns").put(b"a", b"1")
    for options, said in (
        ({"starting": "yesterday"}, "latest, earliest"),
        ({"starting": "latest", "snapshot": "s"}, "starting=snapshot"),
        (
            {"starting": "latest", "max_slots_per_batch": 1, "max_bytes_per_batch": 1},
            "give at most one",
        ),
        ({"starting": "latest", "limit": 1}, "one of url"),
        ({"starting": "latest", "columns": "nothing"}, "one of key, value"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            reader(db, **options)
    newest = reader(db, starting="latest").initialOffset()["lsn"]
    assert reader(db, starting=newest).initialOffset()["lsn"] == newest
    with pytest.raises(InvalidInputError, match=f"up to {newest}, the newest version"):
        reader(db, starting=newest + 1).initialOffset()
    parsed = FeedOptions.of({"url": db.store.url, "namespace": "ns", "starting": "latest"})
    version = find_version(parsed.read())
    with pytest.raises(InvalidInputError, match="_op"):
        FeedReader(parsed, version, StructType().add("key", "binary"))


def test_a_collected_offset_is_told(db: reef.Database) -> None:
    kv = db.kv("ns", gc_grace=0)
    for i in range(5):
        kv.put(b"k%d" % i, b"v")
    stream = reader(db, starting="earliest", max_slots_per_batch=2)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    kv.flush()
    kv.put(b"z", b"v")
    _collect(db)
    fresh = reader(db, starting="latest", max_slots_per_batch=2)
    with pytest.raises(RetentionError, match="log begins at LSN"):
        fresh.latestOffset(end, fresh.getDefaultReadLimit())
    with pytest.raises(RetentionError):
        rows_between(fresh, start, end)
