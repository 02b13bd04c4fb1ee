"""The demo that `make demo` runs: is this store fit for a log, and what will lie in it?

It uses a `file://` bucket in `.cache/demo`, made anew each time and left for you to look at.
"""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from reef import ConflictError, CorruptError
from reef.clock import SystemClock
from reef.format import (
    DedupEntry,
    DedupWindow,
    LogKind,
    LogObject,
    LogRecord,
    Manifest,
    Prev,
    SegmentOrigin,
    SegmentRef,
    SegmentWriter,
    WalAnchor,
    decode_dedup,
    decode_log,
    decode_manifest,
    decode_tail,
    dedup_key,
    encode_dedup,
    encode_log,
    encode_manifest,
    hash_key,
    log_checksum,
    log_key,
    log_schema,
    manifest_key,
    segment_key,
    segment_schema,
)
from reef.store import Store, create, open_store
from reef.types import new_nonce, new_ulid, pack_lsn

NAMESPACE = "products"
COLUMNS = [
    pa.field("title", pa.string()),
    pa.field("price", pa.float64()),
    pa.field("vector", pa.list_(pa.float32(), 4)),
]
console = Console(highlight=False)
clock, rng = SystemClock(), random.SystemRandom()


def main() -> None:
    bucket = Path(__file__).resolve().parent.parent / ".cache" / "demo" / "bucket"
    shutil.rmtree(bucket, ignore_errors=True)
    bucket.parent.mkdir(parents=True, exist_ok=True)
    url = f"file://{bucket}"
    chapter("1. Can this store back a log?", f"reef check-store --rounds 40 {url}")
    subprocess.run([sys.executable, "-m", "reef", "check-store", url, "--rounds", "40"], check=True)
    with open_store(url) as store:
        commit_a_batch(store)
        publish_a_manifest(store, fold_into_a_segment(store))
        remember_a_request(store)
        notice_damage(store)
        show_the_bucket(store, bucket)


def chapter(title: str, text: str) -> None:
    console.print()
    console.rule(f"[bold]{title}", align="left")
    console.print(text, style="dim", highlight=False)


def put(store: Store, key: str, data: bytes, nonce: bytes) -> None:
    """Create an object as commits do: a lost reply is resolved by reading back."""
    create(store, key, data, nonce=nonce, is_collected=lambda: False)


def commit_a_batch(store: Store) -> None:
    chapter("2. A commit is one log object", "Creating the next number is the commit.")
    rows = pa.record_batch(
        [
            [b"apple", b"pear"],
            [False, False],
            ["An apple", "A pear"],
            [1.25, 2.5],
            pa.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]], COLUMNS[2].type),
        ],
        schema=log_schema(COLUMNS),
    )
    log = LogObject(
        kind=LogKind.DATA,
        slot=1,
        epoch=1,
        writer_id=b"demo-writer-0001",
        nonce=new_nonce(rng),
        created_at_us=clock.now_us(),
        prev=Prev(),
        records=(LogRecord(lsn=pack_lsn(1, 0), batch=rows, idempotency_key=b"request-1"),),
    )
    key, data = log_key(NAMESPACE, 1), encode_log(log)
    put(store, key, data, log.nonce)
    console.print(f"{key}: {len(data)} bytes")
    annotate(
        data,
        [
            (0, 8, "magic: a log object"),
            (8, 4, "format version"),
            (12, 1, f"kind: {LogKind(data[12]).name.lower()}"),
            (16, 8, f"length: {struct.unpack_from('<Q', data, 16)[0]} bytes"),
            (24, 8, "slot 1"),
            (32, 8, f"first version: slot 1, record 0 = {pack_lsn(1, 0)}"),
            (48, 8, "writer epoch 1"),
            (56, 16, "writer id"),
            (72, 16, "nonce: whose object this is"),
            (104, 8, "prev: none"),
            (120, 8, "record: length and crc32c"),
            (len(data) - 8, 8, f"footer: 1 record, checksum {log_checksum(data):08x}"),
        ],
    )
    console.print(decode_log(store.get(key), slot=1).records[0].batch.to_pylist())
    rival = dataclasses.replace(log, nonce=new_nonce(rng))
    try:
        put(store, key, encode_log(rival), rival.nonce)
    except ConflictError as error:
        console.print(f"a second writer at the same slot: [yellow]{error}[/yellow]")


def fold_into_a_segment(store: Store) -> SegmentRef:
    chapter("3. Rows end up in segments", "Sorted, checksummed, planned from one ranged GET.")
    count = 20_000
    rows = pa.record_batch(
        [
            [b"product-%06d" % i for i in range(count)],
            [pack_lsn(1, 0)] * count,
            [False] * count,
            [f"Product {i}" for i in range(count)],
            [i / 4 for i in range(count)],
            pa.array([[i, -i, i / 2, 1.0] for i in range(count)], COLUMNS[2].type),
        ],
        schema=segment_schema(COLUMNS),
    )
    origin = SegmentOrigin(
        id=f"{new_ulid(clock, rng)}-e1",
        namespace=NAMESPACE,
        level=0,
        author="demo",
        created_at_us=clock.now_us(),
        replaced_slots=(1, 1),
    )
    writer = SegmentWriter(rows.schema, origin)
    key = segment_key(NAMESPACE, origin.id)
    store.upload(key, writer.parts([rows]))
    segment = writer.ref
    tail = decode_tail(
        store.get_range(key, segment.size - segment.footer_length, segment.footer_length),
        key=key,
        size=segment.size,
    )
    table = Table("part", "rows", "bytes", "what a reader learns from the tail")
    for i, place in enumerate(tail.row_places):
        first, last = tail.row_index["key_first"][i].as_py(), tail.row_index["key_last"][i].as_py()
        seen = f"keys {first.decode()} to {last.decode()}"
        table.add_row(f"row block {i}", f"{place.rows:,}", f"{place.length:,}", seen)
    vectors = list(tail.column_places["vector"])
    table.add_row(
        "vector blocks",
        f"{sum(p.rows for p in vectors):,}",
        f"{sum(p.length for p in vectors):,}",
        "",
    )
    filters = (
        f"bloom filter of {len(tail.bloom.data):,} bytes, {len(tail.row_places)} blocks indexed"
    )
    table.add_row("tail", "", f"{segment.footer_length:,}", filters)
    console.print(table)
    wanted = b"product-012345"
    (block,) = tail.blocks_of_key(wanted)
    place = tail.row_places[block]
    found = tail.decode_rows(block, store.get_range(key, place.offset, place.length))
    row = found.slice(found["_key"].index(wanted).as_py(), 1).to_pylist()[0]
    console.print(f"one more GET of {place.length:,} bytes finds {row}")
    strange = tail.bloom.may_contain(hash_key(b"no such product"))
    console.print(f"is 'no such product' in it? the filter says {'perhaps' if strange else 'no'}")
    return segment


def publish_a_manifest(store: Store, segment: SegmentRef) -> None:
    chapter("4. The manifest makes it visible", "A chain of numbered JSON objects; jq reads them.")
    nonce = new_nonce(rng).hex()
    first = Manifest.first(NAMESPACE, author="demo", nonce=nonce, created_at_us=clock.now_us())
    log = store.get(log_key(NAMESPACE, 1))
    manifest = msgspec.structs.replace(
        first,
        writer_epoch=1,
        wal_floor=2,
        wal_last_seen=1,
        wal_anchor=WalAnchor(slot=1, checksum=log_checksum(log), epoch=1),
        last_applied_lsn=pack_lsn(1, 0),
        segments=(segment,),
    )
    key = manifest_key(NAMESPACE, 1)
    put(store, key, encode_manifest(manifest), nonce.encode())
    assert decode_manifest(store.get(key), key=key).segments == (segment,)
    said = json.loads(store.get(key))
    console.print("some of its members:")
    shown = (
        "magic",
        "bytes",
        "generation",
        "nonce",
        "wal_floor",
        "wal_anchor",
        "segments",
        "checksum",
    )
    console.print_json(json.dumps({name: said[name] for name in shown}))


def remember_a_request(store: Store) -> None:
    chapter("5. The dedup window", "A repeated request gets its first receipt, not a second write.")
    entry = DedupEntry(
        key=b"request-1",
        lsn=pack_lsn(1, 0),
        digest=b"digest of it....",
        receipt=b"{}",
        committed_at_us=clock.now_us(),
    )
    key = dedup_key(NAMESPACE, new_ulid(clock, rng))
    window = DedupWindow(last_lsn=pack_lsn(1, 0), entries=(entry,), streams=())
    store.upload(key, [encode_dedup(window)])
    console.print(decode_dedup(store.get(key)))


def notice_damage(store: Store) -> None:
    chapter("6. Damage is noticed", "One flipped bit in the log object:")
    data = bytearray(store.get(log_key(NAMESPACE, 1)))
    data[200] ^= 1
    try:
        decode_log(bytes(data), key=log_key(NAMESPACE, 1), slot=1)
    except CorruptError as error:
        console.print(f"[yellow]{error}[/yellow]")


def show_the_bucket(store: Store, bucket: Path) -> None:
    chapter("7. The bucket", f"Everything is in {bucket}")
    table = Table("key", "bytes")
    for found in store.list():
        table.add_row(found.key, f"{found.size:,}")
    console.print(table)


def annotate(data: bytes, fields: list[tuple[int, int, str]]) -> None:
    """Print some bytes with what they mean."""
    table = Table("offset", "bytes", "meaning", show_header=True)
    for offset, length, meaning in fields:
        table.add_row(str(offset), data[offset : offset + length].hex(" ", 4), meaning)
    console.print(table)


if __name__ == "__main__":
    main()
