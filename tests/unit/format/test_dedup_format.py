"""The dedup window's bytes: the frame, every rule, and every way to be damaged."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from msgspec.structs import replace

from reef.errors import (
    CorruptError,
    FormatVersionError,
    IncompleteError,
    InvalidInputError,
    InvariantError,
    UnreadableError,
)
from reef.format._dedup import (
    RECEIPT_BYTES_MAX,
    DedupEntry,
    DedupStream,
    DedupWindow,
    decode_dedup,
    dedup_checksum,
    dedup_key,
    encode_dedup,
)
from reef.format._manifest import encode_manifest
from reef.types import LSN_MAX, pack_lsn
from tests.support.format.samples import sample_dedup, sample_manifest

ULID = "01J9ZQ3V5N8W2X4Y6Z7A8B9C0E"
KEY = f"namespaces/what-if/dedup/{ULID}.dedup"
SAMPLE = sample_dedup()
DATA = encode_dedup(SAMPLE)


def sealed(payload: bytes, *, version: int = 1, length: int | None = None) -> bytes:
    """Return a payload framed as a dedup window with the right checksum, unchecked."""
    covered = b"RFDED1\0\0" + struct.pack(
        "<II", version, len(payload) if length is None else length
    )
    covered += payload
    return covered + struct.pack("<I", crc32c(covered))


def with_entry(window: DedupWindow, **changes: Any) -> DedupWindow:
    return replace(window, entries=(replace(window.entries[0], **changes), *window.entries[1:]))


def with_stream(window: DedupWindow, **changes: Any) -> DedupWindow:
    return replace(window, streams=(replace(window.streams[0], **changes), *window.streams[1:]))


# The frame


def test_the_frame_is_as_documented() -> None:
    payload = msgspec.msgpack.encode(SAMPLE)
    assert sealed(payload) == DATA
    last_lsn, entries, streams = msgspec.msgpack.decode(payload)
    assert last_lsn == SAMPLE.last_lsn
    assert entries[0][0] == b"order-17"
    assert streams[0] == ["kafka/orders/0", 0, pack_lsn(95, 0)]


def test_it_reads_back() -> None:
    assert decode_dedup(DATA, key=KEY) == SAMPLE
    assert encode_dedup(decode_dedup(DATA)) == DATA


def test_an_empty_window_reads_back() -> None:
    empty = DedupWindow(last_lsn=0, entries=(), streams=())
    assert decode_dedup(encode_dedup(empty)) == empty


def test_a_full_window_reads_back() -> None:
    entries = tuple(
        DedupEntry(b"key-%d" % i, pack_lsn(i + 1, 0), bytes(16), b"receipt" * 20, i)
        for i in range(10_000)
    )
    full = DedupWindow(last_lsn=entries[-1].lsn, entries=entries, streams=())
    assert decode_dedup(encode_dedup(full)) == full


def test_the_largest_receipt_and_key_read_back() -> None:
    window = with_entry(SAMPLE, receipt=bytes(RECEIPT_BYTES_MAX), key=b"k" * 512)
    assert decode_dedup(encode_dedup(window)) == window


def test_the_checksum_is_what_the_manifest_records() -> None:
    assert dedup_checksum(DATA) == struct.unpack("<I", DATA[-4:])[0]
    with pytest.raises(CorruptError):
        dedup_checksum(DATA.replace(b"order-17", b"order-18"))


# Damage


def test_every_truncation_is_incomplete() -> None:
    for length in range(len(DATA)):
        with pytest.raises(IncompleteError) as caught:
            decode_dedup(DATA[:length], key=KEY)
        assert caught.value.key == KEY
        assert caught.value.offset == length


def test_every_changed_byte_is_noticed() -> None:
    for at, byte in enumerate(DATA):
        for other in set(range(256)) - {byte}:
            damaged = DATA[:at] + bytes([other]) + DATA[at + 1 :]
            with pytest.raises(UnreadableError):
                decode_dedup(damaged)
            with pytest.raises(UnreadableError):
                dedup_checksum(damaged)


@pytest.mark.parametrize("tail", [b"\0", b"\n", DATA])
def test_appended_bytes_are_corrupt(tail: bytes) -> None:
    with pytest.raises(CorruptError) as caught:
        decode_dedup(DATA + tail, key=KEY)
    assert caught.value.offset == len(DATA)


def test_empty_bytes_are_incomplete() -> None:
    with pytest.raises(IncompleteError, match="an empty object"):
        decode_dedup(b"", key=KEY)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (encode_manifest(sample_manifest()), "a manifest"),
        (b"RFWAL1\0\0" + bytes(100), "a log object"),
        (b"RFSEG1\0\0" + bytes(100), "a segment"),
    ],
)
def test_an_object_of_another_kind_is_named(data: bytes, kind: str) -> None:
    with pytest.raises(CorruptError) as caught:
        decode_dedup(data, key=KEY)
    assert caught.value.got == kind


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_another_version_is_said_to_be_one(version: int) -> None:
    with pytest.raises(FormatVersionError) as caught:
        decode_dedup(sealed(b"whatever", version=version), key=KEY)
    assert caught.value.got == f"format version {version}"


def test_the_version_counts_only_behind_the_right_magic() -> None:
    with pytest.raises(CorruptError):
        decode_dedup(sealed(b"", version=2).replace(b"RFDED1", b"RFDED9"))


def test_a_length_beyond_the_bytes_is_incomplete() -> None:
    with pytest.raises(IncompleteError):
        decode_dedup(sealed(DATA[16:-4], length=2**32 - 1))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc0",
        b"\x90",
        b"\x93\x01\x90",
        b"\x93\x01\x90\x90\x00",
        b"\x94\x01\x90\x90\x90",
        b"\x93\xcf" + b"\xff" * 8 + b"\x90\x90",
        b"\x93\xff\x90\x90",
        b"\x93\xc3\x90\x90",
        b"\x93\x01\xdd\xff\xff\xff\xff",
        b"\x93\x01\xdd\x7f\xff\xff\xff\x95",
        b"\x93\x01\x91\x95\xc6\xff\xff\xff\xff",
        b"\x93\x01\x90\x91\x93\xa1\xff\x00\x01",
        b"\x93\x01\x90\x91\x93\xdb\xff\xff\xff\xff\x00\x01",
        b"\x91" * 100_000,
        b"\x81" * 100_000,
    ],
    ids=lambda payload: repr(payload[:12]),
)
def test_a_payload_that_is_no_window_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_dedup(sealed(payload))


# Rules: each broken once, on the way out and on the way in

BROKEN: dict[str, tuple[Callable[[DedupWindow], DedupWindow], str]] = {
    "entries out of order": (lambda w: replace(w, entries=w.entries[::-1]), "order of LSN"),
    "entries of one LSN": (lambda w: with_entry(w, lsn=w.entries[1].lsn), "order of LSN"),
    "key twice": (lambda w: with_entry(w, key=w.entries[1].key), "idempotency key once"),
    "entry beyond the last": (
        lambda w: replace(w, last_lsn=pack_lsn(95, 0), streams=()),
        "no LSN above last_lsn",
    ),
    "stream beyond the last": (
        lambda w: replace(w, last_lsn=pack_lsn(99, 0)),
        "no LSN above last_lsn",
    ),
    "streams out of order": (lambda w: replace(w, streams=w.streams[::-1]), "order of source"),
    "source twice": (lambda w: replace(w, streams=(w.streams[0],) * 2), "order of source"),
    "last_lsn": (lambda w: replace(w, last_lsn=LSN_MAX + 1), "$[0]"),
    "negative last_lsn": (lambda w: replace(w, last_lsn=-1), "$[0]"),
    "empty key": (lambda w: with_entry(w, key=b""), "$[1][0][0]"),
    "long key": (lambda w: with_entry(w, key=b"k" * 513), "$[1][0][0]"),
    "text key": (lambda w: with_entry(w, key="order-17"), "$[1][0][0]"),
    "lsn": (lambda w: with_entry(w, lsn=0), "$[1][0][1]"),
    "short digest": (lambda w: with_entry(w, digest=bytes(15)), "$[1][0][2]"),
    "long digest": (lambda w: with_entry(w, digest=bytes(17)), "$[1][0][2]"),
    "receipt": (lambda w: with_entry(w, receipt=bytes(RECEIPT_BYTES_MAX + 1)), "$[1][0][3]"),
    "committed_at_us": (lambda w: with_entry(w, committed_at_us=-1), "$[1][0][4]"),
    "empty source": (lambda w: with_stream(w, source=""), "$[2][0][0]"),
    "long source": (lambda w: with_stream(w, source="s" * 513), "$[2][0][0]"),
    "sequence": (lambda w: with_stream(w, sequence=LSN_MAX + 1), "$[2][0][1]"),
    "stream's lsn": (lambda w: with_stream(w, lsn=0), "$[2][0][2]"),
    "boolean": (lambda w: with_stream(w, sequence=True), "$[2][0][1]"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_stops_the_writer(name: str) -> None:
    spoil, rule = BROKEN[name]
    with pytest.raises(InvariantError, match="nothing was written") as caught:
        encode_dedup(spoil(SAMPLE))
    assert rule in str(caught.value)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_corrupt_to_the_reader(name: str) -> None:
    spoil, rule = BROKEN[name]
    with pytest.raises(CorruptError) as caught:
        decode_dedup(sealed(msgspec.msgpack.encode(spoil(SAMPLE))), key=KEY)
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda w: replace(w, entries=list(w.entries)),
        lambda w: with_stream(w, source="\ud800"),
        lambda w: with_stream(w, sequence=2**64),
        lambda w: with_entry(w, receipt=object()),
    ],
)
def test_what_cannot_be_read_back_is_refused(spoil: Callable[[DedupWindow], DedupWindow]) -> None:
    with pytest.raises(InvariantError):
        encode_dedup(spoil(SAMPLE))


def test_a_window_too_long_for_its_length_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reef.format._dedup.U32_MAX", len(DATA) - 20)
    assert encode_dedup(SAMPLE) == DATA
    with pytest.raises(InvariantError, match="drop older entries"):
        encode_dedup(with_entry(SAMPLE, key=b"order-171"))


# The key


def test_the_key_is_under_the_namespace() -> None:
    assert dedup_key("what-if", ULID) == KEY


@pytest.mark.parametrize(
    ("namespace", "id"),
    [("../a", ULID), ("a", "x"), ("a", ULID + "-e1"), ("a", ULID + "\n"), ("a", "../" + ULID)],
)
def test_an_impossible_key_is_refused(namespace: str, id: str) -> None:
    with pytest.raises(InvalidInputError):
        dedup_key(namespace, id)


def test_the_page_names_every_field_and_its_example_is_real() -> None:
    page = (Path(__file__).parents[3] / "docs/formats/dedup.md").read_text()
    for record in (DedupWindow, DedupEntry, DedupStream):
        for field in record.__struct_fields__:
            assert field in page, field
    dump = re.findall(r"^    [0-9a-f]{4}  ((?:[0-9a-f]{2} ){1,16})", page, re.MULTILINE)
    assert decode_dedup(bytes.fromhex("".join(dump))) == DedupWindow(
        last_lsn=pack_lsn(1, 0),
        entries=(
            DedupEntry(b"order-17", pack_lsn(1, 0), bytes(range(16)), b"ok", 1_760_000_000_000_000),
        ),
        streams=(DedupStream("orders/0", 41, pack_lsn(1, 0)),),
    )
