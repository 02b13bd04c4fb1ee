"""The manifest's bytes: the frame, its key, every way to be damaged, and what its page says."""

from __future__ import annotations

import gc
import json
from pathlib import Path

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
from reef.format._dedup import encode_dedup
from reef.format._manifest import (
    decode_manifest,
    encode_manifest,
    manifest_checksum,
    manifest_key,
    parse_manifest_key,
)
from reef.format._manifest_model import (
    Boundary,
    Copied,
    EndedWriter,
    Manifest,
    PendingDelete,
    SegmentRef,
    ShortenedGrace,
    SkippedSlot,
    Snapshot,
)
from reef.types import LSN_MAX
from tests.support.format.manifest_bytes import DATA, KEY, SAMPLE, fields, sealed
from tests.support.format.samples import sample_dedup

# The frame


def test_it_is_one_json_document_with_a_fixed_prefix_and_trailer() -> None:
    assert DATA.startswith(b'{"magic":"RFMAN1","format_version":1,"bytes":"%016d",' % len(DATA))
    covered = DATA[: -len(',"checksum":"00000000"}\n')]
    assert covered + b',"checksum":"%08x"}\n' % crc32c(covered) == DATA
    values = json.loads(DATA)
    assert values["segments"][0][0] == SAMPLE.segments[0].id
    assert values["gc"]["boundary"] == {"slot": 91, "generation": 2}
    assert b"\n" not in DATA[:-1]


def test_it_reads_back() -> None:
    assert decode_manifest(DATA, key=KEY, namespace="what-if", generation=7) == SAMPLE
    assert encode_manifest(decode_manifest(DATA)) == DATA


def test_the_hand_made_frame_of_these_tests_is_the_real_one() -> None:
    assert sealed(json.dumps(fields(), separators=(",", ":")).encode()) == DATA


def test_the_sample_uses_every_field_of_version_1() -> None:
    first = Manifest.first("what-if", author="a", nonce="0" * 32, created_at_us=0)
    required = [f.name for f in msgspec.structs.fields(Manifest) if f.required]
    same = [name for name in required if getattr(first, name) == getattr(SAMPLE, name)]
    assert same == ["namespace", "state", "lsn_policy"]
    _, clipped, attached = SAMPLE.segments
    assert None not in msgspec.structs.astuple(replace(clipped, version=attached.version))
    assert clipped.namespace
    assert attached.version


def test_the_first_generation_of_a_namespace_is_valid() -> None:
    first = Manifest.first("new", author="me", nonce="0f" * 16, created_at_us=1)
    assert decode_manifest(encode_manifest(first)) == first


def test_many_segments_read_back() -> None:
    one = SAMPLE.segments[0]
    ulids = (f"01J9ZQ3V5N8W2X4Y6Z7A{i:06d}" for i in range(20_000))
    many = replace(SAMPLE, segments=tuple(replace(one, id=ulid) for ulid in ulids))
    assert decode_manifest(encode_manifest(many)) == many


def test_the_checksum_is_what_the_successor_records() -> None:
    assert manifest_checksum(DATA) == int(json.loads(DATA)["checksum"], 16)
    successor = replace(
        SAMPLE, generation=8, nonce="ab" * 16, predecessor_checksum=manifest_checksum(DATA)
    )
    assert manifest_checksum(encode_manifest(successor)) != manifest_checksum(DATA)
    with pytest.raises(CorruptError):
        manifest_checksum(DATA.replace(b"what-if", b"what-of", 1))


# Members that version 1 does not have

NOTHING: dict[str, object] = {
    "segments": (),
    "pins": (),
    "intents": (),
    "dedup": None,
    "lease": None,
}
SHORTENED = replace(SAMPLE, gc=replace(SAMPLE.gc, shortened=ShortenedGrace(3_600_000, 6)))


def test_only_what_uses_an_optional_member_is_of_version_2() -> None:
    data = encode_manifest(SHORTENED)
    assert data.startswith(b'{"magic":"RFMAN1","format_version":2,"bytes":"%016d",' % len(data))
    assert json.loads(data)["gc"]["shortened"] == {"from_ms": 3_600_000, "since_generation": 6}
    assert decode_manifest(data, key=KEY) == SHORTENED
    again = replace(SHORTENED, gc=replace(SHORTENED.gc, shortened=None))
    assert encode_manifest(again) == DATA
    assert b"shortened" not in DATA


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("copied", Copied(90, 1_700_000_000_000_000, 1, 1, 1, 1)),
        ("expires_at_us", 1_800_000_000_000_000),
    ],
)
def test_later_members_read_back_and_make_it_version_2(member: str, value: object) -> None:
    assert SAMPLE.origin is not None
    if member == "copied":
        changed = replace(SAMPLE, copied=value)
    else:
        changed = replace(SAMPLE, origin=replace(SAMPLE.origin, expires_at_us=value))
    data = encode_manifest(changed)
    assert data.startswith(b'{"magic":"RFMAN1","format_version":2,')
    assert decode_manifest(data, key=KEY) == changed
    assert member.encode() in data
    assert member.encode() not in DATA


def test_the_end_of_a_writer_is_a_member_of_version_2() -> None:
    ended = replace(SAMPLE, ended=EndedWriter(epoch=SAMPLE.writer_epoch, slot=SAMPLE.wal_floor))
    data = encode_manifest(ended)
    assert data.startswith(b'{"magic":"RFMAN1","format_version":2,')
    assert json.loads(data)["ended"] == {"epoch": ended.writer_epoch, "slot": ended.wal_floor}
    assert decode_manifest(data, key=KEY) == ended
    assert b"ended" not in DATA


def test_version_1_with_a_later_member_is_corrupt() -> None:
    """The Reef that wrote version 1 knows no such member: these bytes are nobody's."""
    values = fields()
    values["gc"]["shortened"] = {"from_ms": 3_600_000, "since_generation": 6}
    body = json.dumps(values, separators=(",", ":")).encode()
    assert decode_manifest(sealed(body, version="2"), key=KEY) == SHORTENED
    with pytest.raises(CorruptError, match="only version 2 has"):
        decode_manifest(sealed(body), key=KEY)


def test_version_2_need_not_use_a_later_member() -> None:
    body = json.dumps(fields(), separators=(",", ":")).encode()
    assert decode_manifest(sealed(body, version="2"), key=KEY) == SAMPLE


# Snapshots that a base has


def test_with_a_base_the_bytes_are_the_same() -> None:
    new = Snapshot("new", 7, 5, 0)
    renewed = replace(SAMPLE.snapshots[0], expires_at_us=9)
    for snapshots in (
        SAMPLE.snapshots,
        (*SAMPLE.snapshots, new),
        SAMPLE.snapshots[1:],
        (renewed, *SAMPLE.snapshots[1:]),
        (),
    ):
        m = replace(SAMPLE, snapshots=snapshots)
        assert encode_manifest(m, base=SAMPLE) == encode_manifest(m)


@pytest.mark.parametrize(
    "spoilt",
    [
        replace(SAMPLE, snapshots=(*SAMPLE.snapshots, replace(SAMPLE.snapshots[0], lsn=1))),
        replace(SAMPLE, snapshots=(*SAMPLE.snapshots, SAMPLE.snapshots[0])),
        replace(SAMPLE, snapshots=(*SAMPLE.snapshots, Snapshot("new", 8, 5, 0))),
        replace(SAMPLE, snapshots=(*SAMPLE.snapshots, Snapshot("", 7, 5, 0))),
        replace(SAMPLE, snapshots=(*SAMPLE.snapshots, Snapshot("new", 7, "5", 0))),
        replace(SAMPLE, snapshots=(*SAMPLE.snapshots, Snapshot(SAMPLE.nonce, 7, 5, 0))),
        replace(SAMPLE, snapshots=list(SAMPLE.snapshots)),
        replace(SAMPLE, followed=(5,)),
        replace(SAMPLE, followed=(7, 7)),
        replace(SAMPLE, state="dropped", **NOTHING, snapshots=SAMPLE.snapshots),
    ],
    ids=range(10),
)
def test_with_a_base_nothing_else_passes(spoilt: Manifest) -> None:
    for base in (None, SAMPLE):
        with pytest.raises(InvariantError):
            encode_manifest(spoilt, base=base)


# Damage


def test_every_truncation_is_incomplete() -> None:
    for length in range(len(DATA)):
        with pytest.raises(IncompleteError) as caught:
            decode_manifest(DATA[:length], key=KEY)
        assert caught.value.key == KEY
        assert caught.value.offset == length


def test_every_changed_byte_is_noticed() -> None:
    for at, byte in enumerate(DATA):
        for other in {byte ^ 1 << bit for bit in range(8)} | {0x00, 0xFF} - {byte}:
            damaged = DATA[:at] + bytes([other]) + DATA[at + 1 :]
            with pytest.raises(UnreadableError):
                decode_manifest(damaged)
            with pytest.raises(UnreadableError):
                manifest_checksum(damaged)


@pytest.mark.parametrize("tail", [b"\n", b"\0", b" ", b"}", DATA])
def test_appended_bytes_are_corrupt(tail: bytes) -> None:
    with pytest.raises(CorruptError) as caught:
        decode_manifest(DATA + tail, key=KEY)
    assert caught.value.offset == len(DATA)


def test_empty_bytes_are_incomplete() -> None:
    with pytest.raises(IncompleteError, match="an empty object"):
        decode_manifest(b"", key=KEY)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (encode_dedup(sample_dedup()), "a dedup window"),
        (b"RFWAL1\0\0" + bytes(100), "a log object"),
        (b"RFSEG1\0\0" + bytes(100), "a segment"),
    ],
)
def test_an_object_of_another_kind_is_named(data: bytes, kind: str) -> None:
    with pytest.raises(CorruptError) as caught:
        decode_manifest(data, key=KEY)
    assert caught.value.got == kind
    assert KEY in str(caught.value)


@pytest.mark.parametrize("version", ["0", "3", "10", "4294967295"])
def test_another_version_is_said_to_be_one(version: str) -> None:
    whole = sealed(b'{"what":"ever"}', version=version)
    for data in (whole, whole[:60], whole[: whole.index(b',"bytes')]):
        with pytest.raises(FormatVersionError) as caught:
            decode_manifest(data, key=KEY)
        assert caught.value.got == f"format version {version}"


@pytest.mark.parametrize("version", ["01", "-1", "1.0", '"1"', "99999999999", " 1", "null"])
def test_what_is_no_version_is_corrupt(version: str) -> None:
    with pytest.raises(CorruptError):
        decode_manifest(sealed(b'{"what":"ever"}', version=version))


def test_the_version_counts_only_behind_the_right_magic() -> None:
    with pytest.raises(CorruptError):
        decode_manifest(sealed(b"{}", version="2").replace(b"RFMAN1", b"RFMAN9"))


@pytest.mark.parametrize("length", [0, 1, 64, 10**16 - 1])
def test_a_wrong_length_is_noticed(length: int) -> None:
    with pytest.raises((CorruptError, IncompleteError)):
        decode_manifest(sealed(b'{"namespace":"a"}', length=length))


def test_a_length_too_small_for_a_frame_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="a length of at least"):
        decode_manifest(b'{"magic":"RFMAN1","format_version":1,"bytes":"0000000000000064",')


# The key


def test_a_manifest_at_the_wrong_key_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="generation 8"):
        decode_manifest(DATA, generation=8)
    with pytest.raises(CorruptError, match="products"):
        decode_manifest(DATA, namespace="products")
    with pytest.raises(CorruptError, match="generation 8"):
        decode_manifest(DATA, key=manifest_key("what-if", 8))
    with pytest.raises(CorruptError, match="products"):
        decode_manifest(DATA, key=manifest_key("products", 7))
    moved_aside = "namespaces/what-if/quarantine/00000000000000000007.manifest.json"
    assert decode_manifest(DATA, key=moved_aside) == SAMPLE


def test_keys_are_in_order_of_generation() -> None:
    assert manifest_key("what-if", 7) == KEY
    keys = [manifest_key("a", generation) for generation in (1, 9, 10, 10**9, LSN_MAX)]
    assert keys == sorted(keys)
    assert [parse_manifest_key(key) for key in keys] == [
        ("a", generation) for generation in (1, 9, 10, 10**9, LSN_MAX)
    ]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "namespaces/a/manifest/",
        "namespaces/a/manifest/7.manifest.json",
        "namespaces/a/manifest/00000000000000000000.manifest.json",
        "namespaces/a/manifest/99999999999999999999.manifest.json",
        "namespaces/a/manifest/00000000000000000007.manifest.json\n",
        "namespaces/a/manifest/00000000000000000007.manifest.json.tmp",
        "namespaces/../manifest/00000000000000000007.manifest.json",
        "namespaces/a/b/manifest/00000000000000000007.manifest.json",
        "x/namespaces/a/manifest/00000000000000000007.manifest.json",
        "namespaces/a/manifest/" + "\u0660" * 19 + "\u0667.manifest.json",
    ],
)
def test_other_keys_are_not_taken_for_manifests(key: str) -> None:
    assert parse_manifest_key(key) is None


@pytest.mark.parametrize(("namespace", "generation"), [("a", 0), ("a", LSN_MAX + 1), ("../a", 1)])
def test_an_impossible_key_is_refused(namespace: str, generation: int) -> None:
    with pytest.raises(InvalidInputError):
        manifest_key(namespace, generation)


# The page, and what it costs


def test_the_page_names_every_field_and_its_example_is_real() -> None:
    page = (Path(__file__).parents[3] / "docs/formats/manifest.md").read_text()
    records = [type(getattr(SAMPLE, name)) for name in Manifest.__struct_fields__]
    records += [type(getattr(SAMPLE, name)[0]) for name in ("segments", "snapshots", "pins")]
    records += [type(SAMPLE.intents[0]), SkippedSlot, PendingDelete, Boundary, Manifest]
    records += [EndedWriter]
    for record in records:
        for field in getattr(record, "__struct_fields__", ()):
            assert f"`{field}`" in page, field
    lines = page.split("## Example")[1].split("To list")[0].splitlines()
    example = "".join(line[4:] for line in lines if line.startswith("    ")) + "\n"
    expected = Manifest.first(
        "products",
        author="writer-1",
        nonce="00112233445566778899aabbccddeeff",
        created_at_us=1_760_000_000_000_000,
    )
    assert decode_manifest(example.encode()) == expected


def test_segments_take_no_part_in_cycle_collection() -> None:
    assert not gc.is_tracked(SAMPLE.segments[0])
    assert isinstance(SAMPLE.segments[0], SegmentRef)
