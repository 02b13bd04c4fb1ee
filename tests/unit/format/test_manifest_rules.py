"""The manifest's rules: between fields and of each, broken once on the way out and once on the way in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from reef.errors import CorruptError, InvariantError
from reef.format._manifest import decode_manifest, encode_manifest
from reef.format._manifest_invariants import check_invariants
from reef.format._manifest_model import (
    Boundary,
    EndedWriter,
    Manifest,
    PendingDelete,
    ShortenedGrace,
    SkippedSlot,
    schema_fingerprint,
)
from reef.types import LSN_MAX, ORDINAL_MAX, SLOT_MAX, pack_lsn
from tests.support.format.manifest_bytes import DATA, KEY, SAMPLE, fields, sealed


def with_schema(manifest: Manifest, schema: pa.Schema) -> Manifest:
    data = schema.serialize().to_pybytes()
    return replace(manifest, schema=data, schema_fingerprint=schema_fingerprint(data))


def with_segment(manifest: Manifest, **changes: Any) -> Manifest:
    return replace(
        manifest, segments=(replace(manifest.segments[0], **changes), *manifest.segments[1:])
    )


def with_pending(manifest: Manifest, key: str) -> Manifest:
    return replace(manifest, gc=replace(manifest.gc, pending=(PendingDelete(key, 1),)))


# Rules between fields: each broken once, on the way out and on the way in

EMPTY_SCHEMA = {"schema": b"", "schema_fingerprint": schema_fingerprint(b"")}
EMPTY: dict[str, Any] = {
    "segments": (),
    "snapshots": (),
    "pins": (),
    "intents": (),
    "dedup": None,
    "lease": None,
}

BROKEN: dict[str, tuple[Callable[[Manifest], Manifest], str]] = {
    "namespace": (lambda m: replace(m, namespace="a/b"), "valid name"),
    "namespace newline": (lambda m: replace(m, namespace="a\n"), "valid name"),
    "no predecessor": (lambda m: replace(m, predecessor_checksum=None), "predecessor_checksum"),
    "predecessor of the first": (
        lambda m: replace(
            Manifest.first("a", author="a", nonce="0" * 32, created_at_us=0),
            predecessor_checksum=0,
        ),
        "predecessor_checksum",
    ),
    "fingerprint": (lambda m: replace(m, schema_fingerprint="0" * 32), "schema_fingerprint"),
    "schema": (lambda m: replace(m, schema=b""), "schema_fingerprint"),
    "aborted with segments": (lambda m: replace(m, state="aborted"), "no segments"),
    "dropped with segments": (lambda m: replace(m, state="dropped"), "no segments"),
    "dropped with pins": (
        lambda m: replace(m, state="dropped", **EMPTY | {"pins": m.pins}),
        "no pins",
    ),
    "dropped with a window": (
        lambda m: replace(m, state="dropped", **EMPTY | {"dedup": m.dedup}),
        "no dedup window",
    ),
    "anchor at the floor": (
        lambda m: replace(m, wal_anchor=replace(m.wal_anchor, slot=101)),
        "wal_anchor.slot below wal_floor",
    ),
    "anchor of nothing": (
        lambda m: replace(m, wal_anchor=replace(m.wal_anchor, slot=0, epoch=0)),
        "wal_anchor of slot 0",
    ),
    "anchor of no epoch": (
        lambda m: replace(m, wal_anchor=replace(m.wal_anchor, slot=0, checksum=0)),
        "wal_anchor of slot 0",
    ),
    "anchor of a later epoch": (
        lambda m: replace(m, wal_anchor=replace(m.wal_anchor, epoch=13)),
        "writer_epoch",
    ),
    "lease without a writer": (
        lambda m: replace(m, writer_epoch=0, wal_anchor=replace(m.wal_anchor, epoch=0)),
        "lease",
    ),
    "floor beyond the last seen": (lambda m: replace(m, wal_last_seen=99), "wal_last_seen"),
    "applied beyond the floor": (
        lambda m: replace(m, last_applied_lsn=pack_lsn(101, 0)),
        "last_applied_lsn in a slot below",
    ),
    "the end of a writer that never was": (
        lambda m: replace(m, ended=EndedWriter(m.writer_epoch + 1, 1)),
        "ended.epoch at most",
    ),
    "a writer that ended behind the log": (
        lambda m: replace(m, ended=EndedWriter(m.writer_epoch, m.wal_last_seen + 2)),
        "ended.slot at most",
    ),
    "shortened from less": (
        lambda m: replace(m, gc=replace(m.gc, shortened=ShortenedGrace(900_000, 7))),
        "shortened.from_ms above",
    ),
    "shortened in the future": (
        lambda m: replace(m, gc=replace(m.gc, shortened=ShortenedGrace(900_001, 8))),
        "shortened.since_generation at most",
    ),
    "followed without a snapshot": (
        lambda m: replace(m, followed=(5,)),
        "followed to name generations of snapshots",
    ),
    "followed twice": (lambda m: replace(m, followed=(7, 7)), "generation in followed"),
    "slot skipped twice": (
        lambda m: replace(m, skipped_slots=(*m.skipped_slots, SkippedSlot(97, 1))),
        "skipped_slots",
    ),
    "snapshot twice": (
        lambda m: replace(m, snapshots=(m.snapshots[0], replace(m.snapshots[0], lsn=1))),
        "snapshot id",
    ),
    "snapshot of the future": (
        lambda m: replace(m, snapshots=(replace(m.snapshots[0], generation=8),)),
        "snapshot of a generation",
    ),
    "intent twice": (
        lambda m: replace(m, intents=(m.intents[0], replace(m.intents[0], kind="index"))),
        "intent id",
    ),
    "intent of the future": (
        lambda m: replace(m, intents=(replace(m.intents[0], generation=8),)),
        "intent of a generation",
    ),
    "pin twice": (
        lambda m: replace(m, pins=(m.pins[0], replace(m.pins[0], generation=1))),
        "pin of one child and nonce",
    ),
    "pin of the future": (
        lambda m: replace(m, pins=(replace(m.pins[0], generation=8),)),
        "pin of a generation",
    ),
    "pin of no name": (
        lambda m: replace(m, pins=(replace(m.pins[0], child=""),)),
        "child of a pin",
    ),
    "origin of no name": (
        lambda m: replace(m, origin=replace(m.origin, namespace="..")),
        "origin.namespace",
    ),
    "a segment of others in no branch": (lambda m: replace(m, origin=None), "in a branch only"),
    "born later": (lambda m: replace(m, born=8), "born at generation 7 or before"),
    "a slot skipped before it was seen": (
        lambda m: replace(m, skipped_slots=(SkippedSlot(105, 1),)),
        "skipped slots up to",
    ),
    "pending since a later generation": (
        lambda m: replace(
            m, gc=replace(m.gc, pending=(replace(m.gc.pending[0], since_generation=8),))
        ),
        "gc.pending since",
    ),
    "repaired from itself": (lambda m: replace(m, repaired_from=7), "repaired_from below"),
    "a version that is not the rows'": (
        lambda m: with_segment(m, version=pack_lsn(99, 1)),
        "lsn_min and lsn_max",
    ),
    "a schema that is none": (
        lambda m: replace(m, schema=b"junk", schema_fingerprint=schema_fingerprint(b"junk")),
        "stable ids",
    ),
    "a schema without ids": (lambda m: with_schema(m, pa.schema([("x", pa.int8())])), "stable id"),
    "boundary above the floor": (
        lambda m: replace(m, gc=replace(m.gc, boundary=Boundary(102, 2))),
        "boundary.slot",
    ),
    "boundary of the future": (
        lambda m: replace(m, gc=replace(m.gc, boundary=Boundary(91, 8))),
        "boundary.generation",
    ),
    "pending outside": (
        lambda m: with_pending(m, "namespaces/products/segments/x.seg"),
        "under namespaces/what-if/",
    ),
    "pending no key": (
        lambda m: with_pending(m, "namespaces/what-if/../products/x"),
        "under namespaces/what-if/",
    ),
    "pending twice": (
        lambda m: replace(m, gc=replace(m.gc, pending=m.gc.pending * 2)),
        "key in gc.pending once",
    ),
    "pending segment that lives": (
        lambda m: with_pending(m, "namespaces/what-if/segments/01J9ZQ3V5N8W2X4Y6Z7A8B9C0G-e12.seg"),
        "nothing that this generation names",
    ),
    "pending dedup window that lives": (
        lambda m: with_pending(m, "namespaces/what-if/dedup/01J9ZQ3V5N8W2X4Y6Z7A8B9C0E.dedup"),
        "nothing that this generation names",
    ),
    "keys": (lambda m: with_segment(m, key_min=b"z\xff\x01"), "key_min at most key_max"),
    "lsns": (lambda m: with_segment(m, lsn_min=pack_lsn(99, 2)), "lsn_min at most lsn_max"),
    "tombstones": (lambda m: with_segment(m, tombstones=4), "tombstones at most rows"),
    "footer": (lambda m: with_segment(m, footer_length=4097), "footer_length at most size"),
    "beyond what is applied": (
        lambda m: with_segment(m, lsn_max=pack_lsn(99, 2)),
        "lsn_max at most last_applied_lsn",
    ),
    "empty clip": (
        lambda m: with_segment(m, clip_key_min=b"b", clip_key_max=b"b"),
        "clip_key_min below clip_key_max",
    ),
    "clip the wrong way round": (
        lambda m: with_segment(m, clip_key_min=b"c", clip_key_max=b"b"),
        "clip_key_min below clip_key_max",
    ),
    "segment's namespace": (lambda m: with_segment(m, namespace="a b"), "valid name"),
    "own namespace spelt out": (
        lambda m: with_segment(m, namespace="what-if"),
        "a segment of this namespace",
    ),
    "segment twice": (
        lambda m: replace(m, segments=(m.segments[1], replace(m.segments[1], level=5))),
        "segment of one namespace, id and clip",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_stops_the_writer(name: str) -> None:
    spoil, rule = BROKEN[name]
    with pytest.raises(InvariantError, match="nothing was written") as caught:
        encode_manifest(spoil(SAMPLE))
    assert rule in str(caught.value)
    with pytest.raises(InvariantError) as checked:
        check_invariants(spoil(SAMPLE))
    assert str(checked.value) == str(caught.value)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_corrupt_to_the_reader(name: str) -> None:
    spoil, rule = BROKEN[name]
    with pytest.raises(CorruptError) as caught:
        decode_manifest(sealed(msgspec.json.encode(spoil(SAMPLE)), version="2"))
    assert rule in caught.value.expected


ALLOWED: dict[str, Callable[[Manifest], Manifest]] = {
    "dropped": lambda m: replace(m, state="dropped", **EMPTY),
    "aborted": lambda m: replace(m, state="aborted", **EMPTY),
    "one object under two clips": lambda m: replace(
        m,
        segments=(*m.segments, replace(m.segments[1], clip_key_min=b"u", clip_key_max=None)),
    ),
    "one id in two namespaces": lambda m: replace(
        m, segments=(*m.segments, replace(m.segments[1], namespace="other"))
    ),
    "lsns from the caller": lambda m: replace(m, lsn_policy="caller", last_applied_lsn=LSN_MAX),
    "everything seen is folded": lambda m: replace(m, wal_last_seen=100),
    "snapshot below the floor": lambda m: replace(
        m, retention=replace(m.retention, floor_lsn=LSN_MAX)
    ),
    "snapshot below the boundary": lambda m: replace(
        m, gc=replace(m.gc, boundary=Boundary(101, 7))
    ),
    "two attempts at one child": lambda m: replace(
        m, pins=(*m.pins, replace(m.pins[0], nonce="1" * 32))
    ),
    "no schema yet": lambda m: replace(m, **EMPTY_SCHEMA),
    "a schema of no columns": lambda m: with_schema(m, pa.schema([])),
    "no repair": lambda m: replace(m, repaired_from=None),
    "a branch that was detached": lambda m: replace(
        m, origin=None, segments=tuple(s for s in m.segments if not s.namespace)
    ),
    "the last slot": lambda m: replace(
        m,
        wal_floor=SLOT_MAX,
        wal_last_seen=SLOT_MAX,
        last_applied_lsn=pack_lsn(SLOT_MAX - 1, ORDINAL_MAX),
    ),
    "pending of an odd name": lambda m: with_pending(m, "namespaces/what-if/a/b/.hidden"),
    "a foreign segment pending under its own name": lambda m: with_pending(
        m, "namespaces/what-if/segments/01J9ZQ3V5N8W2X4Y6Z7A8B9C0H.seg"
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_a_correct_history_may_hold_is_accepted(name: str) -> None:
    manifest = ALLOWED[name](SAMPLE)
    assert manifest != SAMPLE
    assert decode_manifest(encode_manifest(manifest)) == manifest


# Single fields: types, ranges and forms

WRONG: list[tuple[str, Any]] = [
    ("generation", 0),
    ("generation", LSN_MAX + 1),
    ("generation", True),
    ("generation", 7.0),
    ("generation", None),
    ("state", "gone"),
    ("author", ""),
    ("author", "a" * 257),
    ("nonce", "AB" * 16),
    ("nonce", "ab" * 15),
    ("nonce", "ab" * 16 + "\n"),
    ("created_at_us", -1),
    ("predecessor_checksum", 2**32),
    ("origin", {"namespace": "a"}),
    ("lsn_policy", "clock"),
    ("max_parallel_writes", 0),
    ("max_parallel_writes", 65),
    ("writer_epoch", LSN_MAX + 1),
    ("compactor_epoch", -1),
    ("wal_floor", 0),
    ("wal_floor", SLOT_MAX + 1),
    ("wal_last_seen", SLOT_MAX + 1),
    ("last_applied_lsn", 2**64),
    ("schema", 5),
    ("schema_fingerprint", "xyz"),
    ("segments", None),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=lambda v: repr(v)[:20])
def test_a_field_out_of_range_is_refused_both_ways(field: str, value: Any) -> None:
    with pytest.raises(InvariantError, match=r"out of range|cannot be encoded") as caught:
        encode_manifest(replace(SAMPLE, **{field: value}))
    assert field in str(caught.value)
    with pytest.raises(CorruptError) as read:
        decode_manifest(sealed(json.dumps(fields() | {field: value}).encode()))
    assert field in read.value.got


RECORDS: list[tuple[str, Any]] = [
    ("segments", {"id": "01J9ZQ3V5N8W2X4Y6Z7A8B9C0"}),
    ("segments", {"id": "81J9ZQ3V5N8W2X4Y6Z7A8B9C0G"}),
    ("segments", {"id": "01J9ZQ3V5N8W2X4Y6Z7A8B9C0U"}),
    ("segments", {"id": "01J9ZQ3V5N8W2X4Y6Z7A8B9C0G-"}),
    ("segments", {"id": "01J9ZQ3V5N8W2X4Y6Z7A8B9C0G-E1"}),
    ("segments", {"id": "01J9ZQ3V5N8W2X4Y6Z7A8B9C0G-" + "a" * 41}),
    ("segments", {"id": "01J9ZQ3V5N8W2X4Y6Z7A8B9C0G\n"}),
    ("segments", {"level": 256}),
    ("segments", {"rows": 0}),
    ("segments", {"tombstones": -1}),
    ("segments", {"lsn_min": 0}),
    ("segments", {"lsn_max": LSN_MAX + 1}),
    ("segments", {"size": 0}),
    ("segments", {"footer_length": 0}),
    ("segments", {"checksum": 2**32}),
    ("segments", {"clip_lsn": 0}),
    ("snapshots", {"id": ""}),
    ("snapshots", {"id": "a b"}),
    ("snapshots", {"generation": 0}),
    ("snapshots", {"lsn": -1}),
    ("snapshots", {"expires_at_us": -1}),
    ("pins", {"nonce": "0" * 31}),
    ("intents", {"id": "A"}),
    ("intents", {"id": "a" * 41}),
    ("intents", {"id": "e12"}),
    ("intents", {"kind": ""}),
    ("intents", {"author": ""}),
    ("skipped_slots", {"slot": 0}),
    ("skipped_slots", {"checksum": -1}),
    ("wal_anchor", {"slot": -1}),
    ("wal_anchor", {"epoch": -1}),
    ("dedup", {"id": "01J9ZQ3V5N8W2X4Y6Z7A8B9C0E-e1"}),
    ("dedup", {"size": 0}),
    ("lease", {"holder": ""}),
    ("lease", {"host": "h" * 257}),
    ("retention", {"pitr_window_ms": -1}),
    ("origin", {"generation": 0}),
]


@pytest.mark.parametrize(("field", "changes"), RECORDS, ids=str)
def test_a_record_out_of_range_is_refused_both_ways(field: str, changes: dict[str, Any]) -> None:
    value = getattr(SAMPLE, field)
    listed = isinstance(value, tuple)
    spoilt = replace(value[0] if listed else value, **changes)
    manifest = replace(SAMPLE, **{field: (spoilt, *value[1:]) if listed else spoilt})
    with pytest.raises(InvariantError, match="out of range") as caught:
        encode_manifest(manifest)
    assert f"$.{field}" in str(caught.value)
    with pytest.raises(CorruptError) as read:
        decode_manifest(sealed(msgspec.json.encode(manifest)))
    assert f"$.{field}" in read.value.got


@pytest.mark.parametrize("field", fields())
def test_no_field_may_be_missing(field: str) -> None:
    values = fields()
    del values[field]
    with pytest.raises(CorruptError, match=field):
        decode_manifest(sealed(json.dumps(values).encode()))


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b'{"namespace":',
        b'{"namespace":"\xff"}',
        b'{"namespace":"\\ud800"}',
        b'{"namespace":"what-if","generation":1e400}',
        b'{"namespace":"what-if","generation":' + b"9" * 5000 + b"}",
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"origin":' + b'{"namespace":' * 100_000 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_body_that_is_no_manifest_is_corrupt(body: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_manifest(sealed(body))


@pytest.mark.parametrize("extra", ["magic", "format_version", "bytes", "checksum", "colour"])
def test_an_unknown_or_repeated_field_is_corrupt(extra: str) -> None:
    with pytest.raises(CorruptError, match=extra):
        decode_manifest(sealed(json.dumps(fields() | {extra: 1}).encode()))


def test_a_record_with_too_many_or_too_few_values_is_corrupt() -> None:
    for change in (lambda row: [*row, None], lambda row: row[:10]):
        values = fields()
        values["segments"][0] = change(values["segments"][0])
        with pytest.raises(CorruptError, match="`array` of at"):
            decode_manifest(sealed(json.dumps(values).encode()))


def test_keys_that_are_no_base64_are_corrupt() -> None:
    values = fields()
    values["segments"][0][4] = "YQ"
    with pytest.raises(CorruptError, match="base64"):
        decode_manifest(sealed(json.dumps(values).encode()))


# What only the writer can get wrong


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: replace(m, segments=list(m.segments)),
        lambda m: with_segment(m, key_min="YQ=="),
        lambda m: replace(m, schema=m.schema.hex()),
    ],
)
def test_what_would_read_back_as_something_else_is_refused(
    spoil: Callable[[Manifest], Manifest],
) -> None:
    with pytest.raises(InvariantError):
        encode_manifest(spoil(SAMPLE))


@pytest.mark.parametrize("author", ["\ud800", object(), b"bytes\xff"])
def test_what_json_cannot_hold_is_refused(author: Any) -> None:
    with pytest.raises(InvariantError):
        encode_manifest(replace(SAMPLE, author=author))


def test_the_nonce_must_be_found_once() -> None:
    reused = replace(SAMPLE, pins=(replace(SAMPLE.pins[0], nonce=SAMPLE.nonce),))
    with pytest.raises(InvariantError, match="2 times"):
        encode_manifest(reused)
    with pytest.raises(InvariantError, match="2 times"):
        encode_manifest(replace(SAMPLE, author=f"w-{SAMPLE.nonce}"))


def test_an_error_says_where_and_what() -> None:
    damaged = DATA.replace(b'"wal_floor":101', b'"wal_floor":102')
    with pytest.raises(CorruptError) as caught:
        decode_manifest(damaged, key=KEY)
    assert caught.value.key == KEY
    assert caught.value.offset == len(DATA) - len(',"checksum":"00000000"}\n')
    assert "checksum" in caught.value.expected
    assert "checksum" in caught.value.got
    assert "read it again" in str(caught.value)


def test_a_long_value_does_not_make_a_long_message() -> None:
    with pytest.raises(InvariantError) as caught:
        encode_manifest(with_segment(SAMPLE, key_min=b"z\xff" * 100_000))
    assert len(str(caught.value)) < 1000
