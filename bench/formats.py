"""Formats against plain Arrow IPC with the same codec, on documents with 128-d vectors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

import reef
from bench._fresh import Opening, Pass, whole
from bench._measure import Ratio, Scale, compare, limited
from reef.format import (
    LogKind,
    LogObject,
    LogRecord,
    Manifest,
    Prev,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    SegmentWriter,
    Snapshot,
    WalAnchor,
    decode_log,
    decode_manifest,
    decode_segment,
    encode_log,
    encode_manifest,
    log_schema,
    segment_schema,
)
from reef.manifest import Head
from reef.types import pack_lsn

PLAIN = "plain Arrow IPC"
DIMENSIONS = 128
FIELDS = [
    pa.field("vector", pa.list_(pa.float32(), DIMENSIONS)),
    pa.field("title", pa.string()),
    pa.field("price", pa.float64()),
    pa.field("quantity", pa.int64()),
]

Codec: TypeAlias = Literal["lz4", "zstd"]
CODECS: tuple[Codec, ...] = ("lz4", "zstd")


def documents(rows: int) -> list[pa.Array]:
    """Return a key, a vector and three attributes for each of `rows` documents."""
    rng = np.random.default_rng(7)
    numbers = np.arange(rows)
    return [
        pa.array(np.strings.mod("doc-%09d", numbers).tolist(), pa.string()).cast(pa.binary()),
        pa.FixedSizeListArray.from_arrays(
            pa.array(rng.random(rows * DIMENSIONS, dtype=np.float32)), DIMENSIONS
        ),
        pa.array(np.strings.mod("title %d", numbers % 997).tolist()),
        pa.array(rng.random(rows)),
        pa.array(rng.integers(0, 1000, rows)),
    ]


# Log objects.


def bench_log(scale: Scale) -> Iterator[Ratio]:
    """Encoding and decoding a log object."""
    rows = scale.rows(10_000)
    for codec in CODECS:
        size = len(encode_log(_log(rows), codec=codec))
        for action in ("encode", "decode"):
            yield compare(
                f"log {action}, {codec}",
                partial(opened_log, action, rows, codec),
                partial(opened_plain_log, action, rows, codec),
                bar=0.5,
                rounds=scale.rounds(101),
                note=f"{rows:,} rows, {size / 1e6:.1f} MB",
                against=PLAIN,
                written_bytes=size if action == "encode" else 0,
            )


@cache
def _log_batch(rows: int) -> pa.RecordBatch:
    key, *payload = documents(rows)
    alive = pa.array(np.zeros(rows, np.bool_))
    return pa.record_batch([key, alive, *payload], schema=log_schema(FIELDS))


def _log(rows: int) -> LogObject:
    return LogObject(
        kind=LogKind.DATA,
        slot=2,
        epoch=1,
        writer_id=os.urandom(16),
        nonce=os.urandom(16),
        created_at_us=1,
        prev=Prev(1, 1),
        records=(LogRecord(lsn=pack_lsn(2, 0), batch=_log_batch(rows)),),
    )


@contextmanager
def opened_log(action: str, rows: int, codec: Codec) -> Iterator[Pass]:
    """A log object of ours."""
    log = _log(rows)
    if action == "encode":
        yield whole(lambda: encode_log(log, codec=codec))
    else:
        data = encode_log(log, codec=codec)
        yield whole(lambda: decode_log(data))


@contextmanager
def opened_plain_log(action: str, rows: int, codec: Codec) -> Iterator[Pass]:
    """The same rows as a plain Arrow stream."""
    batch = _log_batch(rows)
    options = pa.ipc.IpcWriteOptions(compression=codec)

    def encode() -> pa.Buffer:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        return sink.getvalue()

    if action == "encode":
        yield whole(encode)
    else:
        data = encode()
        yield whole(lambda: pa.ipc.open_stream(data).read_all())


# Segments.


def bench_segment(scale: Scale) -> Iterator[Ratio]:
    """Writing a segment to a file, and decoding it from memory, where a GET has put it."""
    rows = scale.rows(1_000_000)
    nbytes = _segment_batch(rows).nbytes
    with tempfile.TemporaryDirectory() as folder:
        for codec in CODECS:
            for action, bar, rounds in (("write", 0.5, 7), ("read", 0.7, 21)):
                yield compare(
                    f"segment {action}, {codec}",
                    partial(opened_segment, action, Path(folder), rows, codec),
                    partial(opened_plain_segment, action, Path(folder), rows, codec),
                    bar=bar,
                    rounds=scale.rounds(rounds),
                    note=f"{rows:,} rows, {nbytes / 1e6:.0f} MB in memory",
                    against=PLAIN,
                    written_bytes=nbytes if action == "write" else 0,
                )


@cache
def _segment_batch(rows: int) -> pa.RecordBatch:
    key, *payload = documents(rows)
    lsns = pa.array(np.full(rows, pack_lsn(1, 0)))
    alive = pa.array(np.zeros(rows, np.bool_))
    return pa.record_batch([key, lsns, alive, *payload], schema=segment_schema(FIELDS))


def _segment_batches(rows: int) -> list[pa.RecordBatch]:
    return [_segment_batch(rows).slice(start, 65_536) for start in range(0, rows, 65_536)]


@contextmanager
def opened_segment(action: str, folder: Path, rows: int, codec: Codec) -> Iterator[Pass]:
    """A segment of ours. Reading comes after writing, and finds its file."""
    path = folder / f"{codec}.seg"
    if action == "read":
        data = path.read_bytes()
        # As many threads as Arrow takes for its own file.
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            yield whole(lambda: decode_segment(data, run_all=pool.map))
        return
    batches = _segment_batches(rows)
    origin = SegmentOrigin(
        id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0F", namespace="n", level=0, author="bench", created_at_us=1
    )

    def write() -> None:
        writer = SegmentWriter(batches[0].schema, origin, SegmentOptions(codec=codec))
        with path.open("wb", buffering=0) as file:
            for part in writer.parts(batches):
                file.write(part)

    yield whole(write)


@contextmanager
def opened_plain_segment(action: str, folder: Path, rows: int, codec: Codec) -> Iterator[Pass]:
    """The same rows as a plain Arrow file."""
    path = folder / f"{codec}.arrow"
    if action == "read":
        data = pa.py_buffer(path.read_bytes())
        yield whole(lambda: pa.ipc.open_file(data).read_all())
        return
    batches = _segment_batches(rows)
    options = pa.ipc.IpcWriteOptions(compression=codec)

    def write() -> None:
        with pa.ipc.new_file(str(path), batches[0].schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)

    yield whole(write)


# Manifests.


def bench_manifest(scale: Scale) -> Iterator[Ratio]:
    """Writing and reading a large manifest, against half a second; a snapshot beside many."""
    segments, snapshots = scale.rows(100_000), scale.rows(1_000)
    size = len(encode_manifest(large_manifest(segments, snapshots)))
    for action in ("encode", "decode"):
        opening: Opening = partial(opened_manifest, action, segments, snapshots)
        yield limited(
            f"manifest {action}",
            opening,
            seconds=0.5,
            rounds=scale.rounds(7),
            note=f"{segments:,} segments, {snapshots:,} snapshots, {size / 1e6:.1f} MB",
            written_bytes=size if action == "encode" else 0,
        )
    few, many = scale.rows(1_000), scale.rows(10_000)
    yield compare(
        f"a snapshot, {few:,} standing",
        partial(opened_snapshots, few),
        partial(opened_snapshots, 1),
        rounds=scale.rounds(7),
        bar=2.0,
        against="the same, 1 standing",
        at_most=True,
    )
    yield limited(
        f"a snapshot, {many:,} standing",
        partial(opened_snapshots, many),
        seconds=0.008,
        rounds=scale.rounds(7),
    )


SNAPSHOTS_PER_PASS = 10


@contextmanager
def opened_snapshots(standing: int) -> Iterator[Pass]:
    """A namespace in memory with so many snapshots; a pass takes some more."""
    with reef.connect("memory://") as db, db.kv("snapshots") as kv:
        kv.put(b"key", b"value")
        kv.snapshot(ttl=None)
        chain = db.context().chain("snapshots")

        def standing_before(head: Head | None) -> Manifest:
            assert head is not None
            one = head.manifest.snapshots[0]
            more = (msgspec.structs.replace(one, id=f"s-{i:024d}") for i in range(1, standing))
            return msgspec.structs.replace(head.manifest, snapshots=(one, *more))

        chain.publish(standing_before)

        def take() -> None:
            for _ in range(SNAPSHOTS_PER_PASS):
                kv.snapshot(ttl=None)

        yield whole(take, SNAPSHOTS_PER_PASS)


@contextmanager
def opened_manifest(action: str, segments: int, snapshots: int) -> Iterator[Pass]:
    """A large manifest."""
    manifest = large_manifest(segments, snapshots)
    if action == "encode":
        yield whole(lambda: encode_manifest(manifest))
    else:
        data = encode_manifest(manifest)
        yield whole(lambda: decode_manifest(data))


def large_manifest(segments: int, snapshots: int) -> Manifest:
    """Return a manifest of so many segments and snapshots."""
    base = Manifest.first("bench", author="bench", nonce="0f" * 16, created_at_us=1)
    refs = tuple(
        SegmentRef(
            id=f"01J9ZQ3V5N8W2X4Y6Z7A{i:06d}",
            level=1,
            rows=200_000,
            tombstones=10,
            key_min=b"document-%012d" % (i * 2),
            key_max=b"document-%012d" % (i * 2 + 1),
            lsn_min=pack_lsn(i + 1, 0),
            lsn_max=pack_lsn(i + 1, 900),
            size=64 << 20,
            footer_length=300_000,
            checksum=i,
        )
        for i in range(segments)
    )
    saved = tuple(
        Snapshot(id=f"snapshot-{i}", generation=1, lsn=pack_lsn(i + 1, 0), expires_at_us=0)
        for i in range(snapshots)
    )
    return msgspec.structs.replace(
        base,
        segments=refs,
        snapshots=saved,
        writer_epoch=1,
        wal_floor=segments + 2,
        wal_last_seen=segments + 1,
        wal_anchor=WalAnchor(slot=segments + 1, checksum=1, epoch=1),
        last_applied_lsn=pack_lsn(segments + 1, 0),
    )
