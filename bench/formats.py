"""Formats against plain Arrow IPC with the same codec, on documents with 128-d vectors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from bench._measure import Ratio, compare, limit
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
from reef.types import pack_lsn

DIMENSIONS = 128
FIELDS = [
    pa.field("vector", pa.list_(pa.float32(), DIMENSIONS)),
    pa.field("title", pa.string()),
    pa.field("price", pa.float64()),
    pa.field("quantity", pa.int64()),
]


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


def bench_log(rows: int = 10_000, rounds: int = 101) -> Iterator[Ratio]:
    """Encoding and decoding a log object of `rows` documents."""
    key, *payload = documents(rows)
    alive = pa.array(np.zeros(rows, np.bool_))
    batch = pa.record_batch([key, alive, *payload], schema=log_schema(FIELDS))
    log = LogObject(
        kind=LogKind.DATA,
        slot=2,
        epoch=1,
        writer_id=os.urandom(16),
        nonce=os.urandom(16),
        created_at_us=1,
        prev=Prev(1, 1),
        records=(LogRecord(lsn=pack_lsn(2, 0), batch=batch),),
    )
    for codec in ("lz4", "zstd"):
        options = pa.ipc.IpcWriteOptions(compression=codec)

        def plain_encode(options: pa.ipc.IpcWriteOptions = options) -> pa.Buffer:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
                writer.write_batch(batch)
            return sink.getvalue()

        data, plain = encode_log(log, codec=codec), plain_encode()
        note = f"{rows:,} rows, {len(data) / 1e6:.1f} MB"
        yield compare(
            f"log encode, {codec}",
            lambda codec=codec: encode_log(log, codec=codec),
            plain_encode,
            bar=0.5,
            rounds=rounds,
            note=note,
        )
        yield compare(
            f"log decode, {codec}",
            lambda data=data: decode_log(data),
            lambda plain=plain: pa.ipc.open_stream(plain).read_all(),
            bar=0.5,
            rounds=rounds,
            note=note,
        )


def bench_segment(rows: int = 1_000_000) -> Iterator[Ratio]:
    """Writing a segment of `rows` documents to a file, and decoding it from memory."""
    key, *payload = documents(rows)
    lsns = pa.array(np.full(rows, pack_lsn(1, 0)))
    alive = pa.array(np.zeros(rows, np.bool_))
    batch = pa.record_batch([key, lsns, alive, *payload], schema=segment_schema(FIELDS))
    batches = [batch.slice(start, 65_536) for start in range(0, rows, 65_536)]
    origin = SegmentOrigin(
        id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0F", namespace="n", level=0, author="bench", created_at_us=1
    )
    # As many threads as Arrow takes for its own file.
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(pa.cpu_count()) as pool:
        for codec in ("lz4", "zstd"):
            ours_path, plain_path = Path(folder, f"{codec}.seg"), Path(folder, f"{codec}.arrow")

            def write(codec: str = codec, path: Path = ours_path) -> None:
                options = SegmentOptions(codec=codec)  # type: ignore[arg-type]
                writer = SegmentWriter(batch.schema, origin, options)
                with path.open("wb", buffering=0) as file:
                    for part in writer.parts(batches):
                        file.write(part)

            def plain_write(codec: str = codec, path: Path = plain_path) -> None:
                options = pa.ipc.IpcWriteOptions(compression=codec)
                with pa.ipc.new_file(str(path), batch.schema, options=options) as writer:
                    for some in batches:
                        writer.write_batch(some)

            note = f"{rows:,} rows, {batch.nbytes / 1e6:.0f} MB in memory"
            yield compare(
                f"segment write, {codec}", write, plain_write, bar=0.5, rounds=7, note=note
            )
            # From memory, where a GET has put it.
            data, plain = ours_path.read_bytes(), pa.py_buffer(plain_path.read_bytes())
            yield compare(
                f"segment read, {codec}",
                lambda data=data: decode_segment(data, run_all=pool.map),
                lambda plain=plain: pa.ipc.open_file(plain).read_all(),
                bar=0.7,
                rounds=21,
                note=note,
            )


def bench_manifest(segments: int = 100_000, snapshots: int = 1_000) -> Iterator[Ratio]:
    """Writing and reading a large manifest, against half a second."""
    manifest = large_manifest(segments, snapshots)
    data = encode_manifest(manifest)
    name = f"{segments:,} segments, {snapshots:,} snapshots, {len(data) / 1e6:.1f} MB"
    yield limit(
        f"manifest encode, {name}", lambda: encode_manifest(manifest), seconds=0.5, rounds=7
    )
    yield limit(f"manifest decode, {name}", lambda: decode_manifest(data), seconds=0.5, rounds=7)


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
    held = tuple(
        Snapshot(id=f"snapshot-{i}", generation=1, lsn=pack_lsn(i + 1, 0), expires_at_us=0)
        for i in range(snapshots)
    )
    return msgspec.structs.replace(
        base,
        segments=refs,
        snapshots=held,
        writer_epoch=1,
        wal_floor=segments + 2,
        wal_last_seen=segments + 1,
        wal_anchor=WalAnchor(slot=segments + 1, checksum=1, epoch=1),
        last_applied_lsn=pack_lsn(segments + 1, 0),
    )
