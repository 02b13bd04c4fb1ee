"""Any valid manifest and dedup window reads back; any bytes at all give a manifest or one of three errors."""

from __future__ import annotations

import json
import string
import struct
from typing import Any

import msgspec
import pyarrow as pa
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reef.errors import CorruptError, FormatVersionError, IncompleteError
from reef.format import (
    Boundary,
    Collection,
    DedupEntry,
    DedupRef,
    DedupStream,
    DedupWindow,
    EndedWriter,
    Intent,
    Lease,
    Manifest,
    Origin,
    PendingDelete,
    Pin,
    Retention,
    SegmentRef,
    SkippedSlot,
    Snapshot,
    WalAnchor,
    decode_dedup,
    decode_manifest,
    encode_dedup,
    encode_manifest,
    schema_fingerprint,
    with_field_id,
)
from reef.format._manifest_invariants import check_invariants
from reef.types import LSN_MAX, SLOT_MAX, U32_MAX, pack_lsn
from tests.support.format.samples import sample_dedup, sample_manifest

DAMAGED = (IncompleteError, CorruptError, FormatVersionError)
MANIFEST = encode_manifest(sample_manifest())
DEDUP = encode_dedup(sample_dedup())

u32 = st.integers(0, U32_MAX)
u63 = st.integers(0, LSN_MAX)
lsns = st.integers(1, LSN_MAX)
keys = st.binary(max_size=20)
text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
hexes = st.binary(min_size=16, max_size=16).map(bytes.hex)
ulids = st.tuples(
    st.sampled_from("01234567"),
    st.text("0123456789ABCDEFGHJKMNPQRSTVWXYZ", min_size=25, max_size=25),
).map("".join)
owners = st.text(string.ascii_lowercase + string.digits + "-", min_size=1, max_size=40)
segment_ids = ulids | st.tuples(ulids, owners).map("-".join)


@st.composite
def segments(draw: st.DrawFn, own: str, applied: int) -> SegmentRef:
    key_min, key_max = sorted(draw(st.tuples(keys, keys)))
    clip_keys = draw(st.none() | st.tuples(keys, keys).filter(lambda k: k[0] != k[1]).map(sorted))
    clip_lsn = draw(st.none() | lsns) if applied else draw(lsns)
    clipped = clip_lsn is not None or clip_keys is not None
    lsn_min, lsn_max = sorted(draw(st.tuples(*[lsns if clipped else st.integers(1, applied)] * 2)))
    rows = draw(lsns)
    size = draw(lsns)
    return SegmentRef(
        id=draw(segment_ids),
        level=draw(st.integers(0, 255)),
        rows=rows,
        tombstones=draw(st.integers(0, rows)),
        key_min=key_min,
        key_max=key_max,
        lsn_min=lsn_min,
        lsn_max=lsn_max,
        size=size,
        footer_length=draw(st.integers(1, min(size, U32_MAX))),
        checksum=draw(u32),
        namespace=draw(st.just("") | names.filter(lambda name: name != own)),
        clip_lsn=clip_lsn,
        clip_key_min=clip_keys and clip_keys[0],
        clip_key_max=clip_keys and draw(st.sampled_from([None, clip_keys[1]])),
    )


anchors = st.builds(WalAnchor, st.integers(0, SLOT_MAX), u32, u63)
schemas = st.just(b"") | st.dictionaries(
    st.integers(1, 2**31), st.text(max_size=9), max_size=4
).map(
    lambda columns: (
        pa.schema([with_field_id(pa.field(name, pa.int8()), i) for i, name in columns.items()])
        .serialize()
        .to_pybytes()
    )
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    namespace = draw(names)
    generation = draw(st.just(1) | lsns)
    earlier = st.integers(1, generation)
    epoch = draw(u63)
    floor = draw(st.just(1) | st.integers(1, SLOT_MAX))
    anchored = draw(st.integers(0, floor - 1))
    policy = draw(st.sampled_from(["packed", "caller"]))
    packed_max = pack_lsn(floor, 0) - 1 if floor > 1 else 0
    applied = draw(st.integers(0, packed_max if policy == "packed" else LSN_MAX))
    state = draw(st.sampled_from(["live", "dropped", "aborted"]))
    schema = draw(schemas)
    origin = draw(st.none() | st.builds(Origin, names, lsns, u63, anchors, hexes))
    last_seen = draw(st.integers(max(floor - 1, 1), SLOT_MAX))
    manifest = Manifest(
        namespace=namespace,
        generation=generation,
        state=state,
        born=draw(earlier),
        author=draw(text),
        nonce="",
        created_at_us=draw(u63),
        predecessor_checksum=None if generation == 1 else draw(u32),
        repaired_from=None if generation == 1 else draw(st.none() | st.integers(1, generation - 1)),
        origin=origin,
        lsn_policy=policy,
        max_parallel_writes=draw(st.integers(1, 64)),
        writer_epoch=epoch,
        compactor_epoch=draw(u63),
        lease=draw(st.none() | st.builds(Lease, text, text, u63)) if epoch else None,
        ended=draw(
            st.none()
            | st.builds(
                EndedWriter, st.integers(0, epoch), st.integers(1, min(last_seen + 1, SLOT_MAX))
            )
        ),
        wal_floor=floor,
        wal_anchor=(
            WalAnchor(anchored, draw(u32), draw(st.integers(0, epoch)))
            if anchored
            else WalAnchor(0, 0, 0)
        ),
        wal_last_seen=last_seen,
        last_applied_lsn=applied,
        dedup=draw(st.none() | st.builds(DedupRef, ulids, lsns, u32)),
        retention=draw(st.builds(Retention, u63, st.none() | u63)),
        schema=schema,
        schema_fingerprint=schema_fingerprint(schema),
        skipped_slots=draw(several(st.builds(SkippedSlot, st.integers(1, last_seen), u32), "slot")),
        intents=draw(
            several(
                st.builds(
                    Intent,
                    owners.filter(lambda o: not (o[0] == "e" and o[1:].isdigit())),
                    st.sampled_from(["index", "compact", "bulk-load"]),
                    text,
                    u63,
                    earlier,
                ),
                "id",
            )
        ),
        pins=draw(several(st.builds(Pin, earlier, u63, names, hexes), "nonce")),
        snapshots=draw(several(st.builds(Snapshot, names, earlier, u63, u63), "id")),
        gc=Collection(
            pending=draw(
                several(
                    st.builds(
                        PendingDelete,
                        st.builds(f"namespaces/{namespace}/quarantine/{{}}".format, names),
                        earlier,
                    ),
                    "key",
                )
            ),
            boundary=Boundary(draw(st.integers(1, floor)), draw(earlier)),
            grace_ms=draw(u63),
        ),
        segments=draw(several(segments(namespace, applied), "id")),
    )
    if state != "live":
        manifest = replace(
            manifest, segments=(), snapshots=(), pins=(), intents=(), dedup=None, lease=None
        )
    elif origin is None:
        own = tuple(replace(s, namespace="") for s in manifest.segments)
        manifest = replace(manifest, segments=own)
    rest = msgspec.json.encode(manifest).decode()
    return replace(manifest, nonce=draw(hexes.filter(lambda nonce: nonce not in rest)))


def several(records: st.SearchStrategy[Any], unique: str) -> st.SearchStrategy[Any]:
    return st.lists(records, max_size=3, unique_by=lambda r: getattr(r, unique)).map(tuple)


@st.composite
def windows(draw: st.DrawFn) -> DedupWindow:
    entry = st.builds(
        DedupEntry,
        key=st.binary(min_size=1, max_size=512),
        lsn=lsns,
        digest=st.binary(min_size=16, max_size=16),
        receipt=st.binary(max_size=60),
        committed_at_us=u63,
    )
    entries = draw(
        st.lists(entry, max_size=6, unique_by=(lambda e: e.key, lambda e: e.lsn)).map(
            lambda found: sorted(found, key=lambda e: e.lsn)
        )
    )
    streams = draw(
        st.lists(st.builds(DedupStream, text, u63, lsns), max_size=4, unique_by=lambda s: s.source)
    )
    newest = max([0, *(e.lsn for e in entries), *(s.lsn for s in streams)])
    return DedupWindow(
        last_lsn=draw(st.integers(newest, LSN_MAX)),
        entries=tuple(entries),
        streams=tuple(sorted(streams, key=lambda s: s.source)),
    )


def sealed_manifest(inner: bytes) -> bytes:
    head = b'{"magic":"RFMAN1","format_version":1,"bytes":"%016d",'
    covered = head % (len(head % 0) + len(inner) + 24) + inner
    return covered + b',"checksum":"%08x"}\n' % crc32c(covered)


def sealed_dedup(payload: bytes) -> bytes:
    covered = b"RFDED1\0\0" + struct.pack("<II", 1, len(payload)) + payload
    return covered + struct.pack("<I", crc32c(covered))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(manifests())
def test_a_manifest_reads_back(manifest: Manifest) -> None:
    data = encode_manifest(manifest)
    decoded = decode_manifest(data, namespace=manifest.namespace, generation=manifest.generation)
    assert decoded == manifest
    assert encode_manifest(decoded) == data
    plain = json.loads(data)
    assert plain["bytes"] == f"{len(data):016d}"
    assert len(plain["segments"]) == len(manifest.segments)


@given(manifests(), st.data())
def test_a_cut_manifest_is_incomplete(manifest: Manifest, data: st.DataObject) -> None:
    whole = encode_manifest(manifest)
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        decode_manifest(whole[:cut])
    except IncompleteError:
        return
    raise AssertionError(f"{cut} of {len(whole)} bytes were accepted, or refused as damaged")


@given(windows())
def test_a_window_reads_back(window: DedupWindow) -> None:
    data = encode_dedup(window)
    assert decode_dedup(data) == window
    assert encode_dedup(decode_dedup(data)) == data


@given(st.binary(max_size=200), st.integers(0, len(MANIFEST)), st.integers(0, len(DEDUP)))
def test_any_bytes_give_one_of_three_errors(tail: bytes, cut: int, cut_dedup: int) -> None:
    for data in (tail, MANIFEST[:cut] + tail):
        if data != MANIFEST:
            refused(decode_manifest, data)
    for data in (tail, DEDUP[:cut_dedup] + tail):
        if data != DEDUP:
            refused(decode_dedup, data)


def refused(decode: Any, data: bytes) -> None:
    try:
        decode(data)
    except DAMAGED:
        return
    raise AssertionError(f"{data!r} was accepted")


# Behind a right checksum anything may stand: what is accepted must be a valid object.


@given(st.sampled_from(Manifest.__struct_fields__), json_values)
def test_any_value_in_a_field_is_refused_or_valid(field: str, value: Any) -> None:
    fields = json.loads(msgspec.json.encode(sample_manifest())) | {field: value}
    try:
        manifest = decode_manifest(sealed_manifest(json.dumps(fields).encode()[1:-1]))
    except DAMAGED:
        return
    check_invariants(manifest)
    encoded = json.loads(msgspec.json.encode(manifest))
    if field not in encoded:  # optional, and as before
        assert value in (None, [])
    else:
        assert encoded[field] == value


@given(st.binary(max_size=60), st.integers(0, len(MANIFEST) - 88), st.integers(0, 60))
def test_any_body_behind_a_right_checksum_is_refused_or_valid(
    patch: bytes, at: int, removed: int
) -> None:
    inner = MANIFEST[64:-24]
    try:
        manifest = decode_manifest(sealed_manifest(inner[:at] + patch + inner[at + removed :]))
    except DAMAGED:
        return
    assert decode_manifest(sealed_manifest(msgspec.json.encode(manifest)[1:-1])) == manifest


@given(st.binary(max_size=60), st.integers(0, len(DEDUP) - 20), st.integers(0, 60))
def test_any_payload_behind_a_right_checksum_is_refused_or_valid(
    patch: bytes, at: int, removed: int
) -> None:
    payload = DEDUP[16:-4]
    try:
        window = decode_dedup(sealed_dedup(payload[:at] + patch + payload[at + removed :]))
    except DAMAGED:
        return
    assert decode_dedup(encode_dedup(window)) == window
