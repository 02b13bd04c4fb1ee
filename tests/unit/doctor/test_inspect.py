"""Inspect: what objects say, as JSON can hold it, and as much of damaged ones as can be read."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from msgspec.structs import replace as with_changes

import reef
from reef.doctor import (
    inspect_block,
    inspect_log,
    inspect_manifest,
    inspect_namespace,
    inspect_segment,
    repair,
    storage_stats,
)
from reef.engine import encode_condition
from reef.format import decode_log, encode_log
from reef.types import pack_lsn
from tests.support.doctor.damaged_buckets import NAMESPACE, Bucket, cut, flip


def as_json(found: dict[str, Any]) -> dict[str, Any]:
    """Return what a program gets that reads the JSON of it."""
    parsed: dict[str, Any] = json.loads(json.dumps(found))
    assert parsed == found
    return parsed


def decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def test_a_namespace_lists_what_it_has(bucket: Bucket) -> None:
    flip(bucket.slot(bucket.commits[-2].slot))
    repair(bucket.context(), NAMESPACE, apply=True)
    stray = bucket.segment(bucket.manifest.segments[0]).with_name("01J9ZQ3V5N8W2X4Y6Z7A8B9C0K.seg")
    stray.write_bytes(b"stray")
    found = as_json(inspect_namespace(bucket.context(), NAMESPACE))
    manifest = bucket.manifest
    assert found["head"] == manifest.generation
    assert [g["generation"] for g in found["generations"]] == list(
        range(1, manifest.generation + 1)
    )
    assert [s["slot"] for s in found["log"]] == list(range(1, len(bucket.files("wal")) + 1))
    assert {s["slot"] for s in found["log"] if s["folded"]} == set(range(1, manifest.wal_floor))
    segments = {s["id"]: s for s in found["segments"]}
    assert segments.pop(stray.stem)["state"] == "unreferenced"
    assert {s["state"] for s in segments.values()} == {"live"}
    for ref in manifest.segments:
        assert decoded(segments[ref.id]["key_min"]) == ref.key_min
        assert segments[ref.id]["rows"] == ref.rows
    assert [one["live"] for one in found["dedup"]] == [False, True]
    (copy,) = found["quarantine"]
    assert "/quarantine/wal/" in copy["key"]


def test_a_namespace_without_a_readable_manifest_is_listed_all_the_same(bucket: Bucket) -> None:
    for path in bucket.files("manifest"):
        flip(path)
    found = as_json(inspect_namespace(bucket.context(), NAMESPACE))
    assert found["head"] is None
    assert len(found["generations"]) == 3
    assert len(found["log"]) == 13


def test_what_is_not_there(bucket: Bucket) -> None:
    context = bucket.context()
    for look in (
        lambda: inspect_namespace(context, "other"),
        lambda: inspect_manifest(context, "other"),
        lambda: inspect_manifest(context, NAMESPACE, 99),
        lambda: inspect_log(context, NAMESPACE, 99),
        lambda: inspect_segment(context, NAMESPACE, "01J9ZQ3V5N8W2X4Y6Z7A8B9C0K"),
        lambda: storage_stats(context, "other"),
    ):
        with pytest.raises(reef.NotFoundError):
            look()


def test_a_manifest(bucket: Bucket) -> None:
    found = as_json(inspect_manifest(bucket.context(), NAMESPACE))
    manifest = bucket.manifest
    assert found["damage"] is None
    assert found["generation"] == found["members"]["generation"] == 3
    assert found["members"]["wal_floor"] == manifest.wal_floor
    assert found["members"]["schema"] == [
        {"name": "value", "type": "binary", "nullable": True, "id": 1}
    ]
    first = found["members"]["segments"][0]
    assert decoded(first["key_max"]) == manifest.segments[0].key_max
    older = as_json(inspect_manifest(bucket.context(), NAMESPACE, 2))
    assert older["checksum"] == found["members"]["predecessor_checksum"]


def test_a_damaged_manifest_that_is_json_still(bucket: Bucket) -> None:
    path = bucket.generation(3)
    path.write_bytes(path.read_bytes().replace(b'"state":"live"', b'"state":"lime"'))
    found = as_json(inspect_manifest(bucket.context(), NAMESPACE))
    assert found["damage"]["what"] == "corrupt"
    assert found["members"]["state"] == "lime"


def test_a_damaged_manifest_that_is_no_json(bucket: Bucket) -> None:
    cut(bucket.generation(3), 5)
    found = as_json(inspect_manifest(bucket.context(), NAMESPACE, 3))
    assert found["damage"]["what"] == "incomplete"
    assert found["members"] is None
    assert found["text"].startswith('{"magic":"RFMAN1"')
    assert "json_error" in found


def test_a_log_object(bucket: Bucket) -> None:
    commit = bucket.commits[-1]
    found = as_json(inspect_log(bucket.context(), NAMESPACE, commit.slot, rows=1000))
    assert (found["damage"], found["kind"], found["epoch"]) == (None, "data", 1)
    assert found["lsn_first"] == found["lsn_last"] == pack_lsn(commit.slot, 0)
    (record,) = found["records"]
    assert record["idempotency_key"] == commit.idempotency_key
    assert record["condition"] is None
    counts = {"written": len(commit.puts), "deleted": len(commit.deletes)}
    assert record["outcome_counts"] == {name: n for name, n in counts.items() if n}
    rows = {decoded(row["_key"]): row for row in record["rows"]}
    assert {k: decoded(r["value"]) for k, r in rows.items() if not r["_tombstone"]} == commit.puts
    assert {k for k, r in rows.items() if r["_tombstone"]} == set(commit.deletes)
    few = inspect_log(bucket.context(), NAMESPACE, commit.slot, rows=3)
    assert len(few["records"][0]["rows"]) == 3
    assert few["records"][0]["count"] == len(rows)
    assert inspect_log(bucket.context(), NAMESPACE, 1)["kind"] == "fence"


def test_a_damaged_log_object_shows_the_records_that_are_whole(bucket: Bucket) -> None:
    commit = bucket.commits[-1]
    path = bucket.slot(commit.slot)
    log = decode_log(path.read_bytes())
    record = log.records[0]
    twice = (record, type(record)(lsn=record.lsn + 1, batch=record.batch))
    path.write_bytes(encode_log(with_changes(log, records=twice)))
    sizes = [r["count"] for r in inspect_log(bucket.context(), NAMESPACE, commit.slot)["records"]]
    assert len(sizes) == 2
    flip(path, -40)  # in the second record
    found = as_json(inspect_log(bucket.context(), NAMESPACE, commit.slot, rows=1000))
    assert found["damage"]["what"] == "corrupt"
    assert found["header"]["slot"] == commit.slot
    assert [r["is_whole"] for r in found["records"]] == [True, False]
    assert {decoded(row["_key"]) for row in found["records"][0]["rows"]} == {
        *commit.puts,
        *commit.deletes,
    }
    envelope = found["records"][0]["envelope"]
    assert envelope["lsn"] == record.lsn
    assert envelope["idempotency_key"] == commit.idempotency_key
    assert record.digest is not None
    assert envelope["digest"] == record.digest.hex()
    assert envelope["outcome_counts"]["written"] == len(commit.puts)


def test_what_a_request_said_is_shown_as_text_if_it_is_some(bucket: Bucket) -> None:
    commit = bucket.commits[-1]
    path = bucket.slot(commit.slot)
    log = decode_log(path.read_bytes())

    def shown(**said: bytes) -> dict[str, Any]:
        record = with_changes(log.records[0], **said)
        path.write_bytes(encode_log(with_changes(log, records=(record,))))
        whole = as_json(inspect_log(bucket.context(), NAMESPACE, commit.slot))
        assert whole["damage"] is None
        flip(path, -1)  # of the object, not of the record
        damaged = as_json(inspect_log(bucket.context(), NAMESPACE, commit.slot))
        assert damaged["damage"]
        names = [*said, "outcome_counts"]
        found = {name: whole["records"][0][name] for name in names}
        assert {name: damaged["records"][0]["envelope"][name] for name in names} == found
        return found

    assert shown(idempotency_key="schlüssel".encode())["idempotency_key"] == "schlüssel"
    for key in (b"\xff", b"a\nb"):
        assert decoded(shown(idempotency_key=key)["idempotency_key"]["base64"]) == key
    condition = encode_condition(reef.Equals(value=b"old"))
    assert condition is not None
    assert shown(condition=condition)["condition"] == {
        "kind": "Equals",
        "expected": {"value": "old"},
    }
    deep = b"\x91" * 100_000 + b"\0"
    assert "base64" in shown(condition=deep)["condition"]
    # Another face may write them down in another way.
    assert shown(condition=b"\xc1")["condition"] == {"base64": "wQ=="}
    runs = struct.pack("<3I", 100, 50, 1) + bytes([0, 2, 77])
    endless = b"\1" + struct.pack("<I", 2**32 - 1) * 9 + bytes(9)
    assert shown(outcomes=endless)["outcome_counts"] is None
    found = shown(outcomes=b"\1" + runs)
    assert found["outcome_counts"] == {"written": 100, "exists": 50, "code 77": 1}
    assert found["outcomes"] == ["written"] * 10
    assert shown(outcomes=b"\1\xff")["outcomes"] == []


@pytest.mark.parametrize("left", [0, 5, 119, 120, 130, 300])
def test_a_log_object_cut_short(bucket: Bucket, left: int) -> None:
    slot = bucket.commits[-1].slot
    path = bucket.slot(slot)
    path.write_bytes(path.read_bytes()[:left])
    found = as_json(inspect_log(bucket.context(), NAMESPACE, slot))
    assert found["damage"]["what"] == "incomplete"
    assert (found["header"] is not None) == (left >= 120)


def test_a_log_object_with_every_byte_damaged_in_turn(bucket: Bucket) -> None:
    slot = bucket.commits[-1].slot
    path = bucket.slot(slot)
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        flip(path, at)
        assert as_json(inspect_log(bucket.context(), NAMESPACE, slot))["damage"]
        path.write_bytes(data)


def test_a_segment(bucket: Bucket) -> None:
    ref = bucket.manifest.segments[0]
    found = as_json(inspect_segment(bucket.context(), NAMESPACE, ref.id))
    assert found["damage"] is None
    assert found["named"]
    assert found["footer"]["rows"] == ref.rows == sum(b["rows"] for b in found["blocks"])
    assert decoded(found["blocks"][0]["key_first"]) == ref.key_min
    assert {b["damaged"] for b in found["blocks"]} == {None}
    deep = as_json(inspect_segment(bucket.context(), NAMESPACE, ref.id, deep=True))
    assert {b["damaged"] for b in deep["blocks"]} == {False}


def test_a_segment_that_no_manifest_names(bucket: Bucket) -> None:
    ref = bucket.manifest.segments[0]
    path = bucket.segment(ref)
    for manifest in bucket.files("manifest"):
        manifest.unlink()
    found = as_json(inspect_segment(bucket.context(), NAMESPACE, ref.id, deep=True))
    assert (found["named"], found["damage"]) == (False, None)
    flip(path, 60)
    found = as_json(inspect_segment(bucket.context(), NAMESPACE, ref.id, deep=True))
    assert [b["block"] for b in found["blocks"] if b["damaged"]] == [0]


def test_a_segment_with_a_damaged_block(bucket: Bucket) -> None:
    ref = bucket.manifest.segments[0]
    found = inspect_segment(bucket.context(), NAMESPACE, ref.id)
    flip(bucket.segment(ref), found["blocks"][2]["offset"] + 20)
    assert inspect_segment(bucket.context(), NAMESPACE, ref.id)["damage"] is None
    deep = as_json(inspect_segment(bucket.context(), NAMESPACE, ref.id, deep=True))
    assert deep["damage"]["offset"] == found["blocks"][2]["offset"]
    assert [b["block"] for b in deep["blocks"] if b["damaged"]] == [2]
    block = as_json(inspect_block(bucket.context(), NAMESPACE, ref.id, 2))
    assert block["damage"]["what"] == "corrupt"
    assert block["rows"] == []
    assert decoded(block["key_first"]) == decoded(found["blocks"][2]["key_first"])
    assert inspect_block(bucket.context(), NAMESPACE, ref.id, 1)["damage"] is None


@pytest.mark.parametrize(
    ("at", "damaged"),
    [(-1, {"trailer"}), (-20, {"trailer"}), (-60, {"footer"}), (-3000, {"row-index"})],
)
def test_a_segment_with_a_damaged_tail_says_which_part(
    bucket: Bucket, at: int, damaged: set[str]
) -> None:
    ref = bucket.manifest.segments[0]
    flip(bucket.segment(ref), at)
    found = as_json(inspect_segment(bucket.context(), NAMESPACE, ref.id))
    assert found["damage"]
    assert {p["part"] for p in found["parts"] if not p["is_whole"]} == damaged
    assert found["parts"][0] == {"part": "preamble", "offset": 0, "length": 16, "is_whole": True}


@pytest.mark.parametrize("left", [0, 1, 16, 39, 100])
def test_a_segment_cut_short(bucket: Bucket, left: int) -> None:
    ref = bucket.manifest.segments[0]
    path = bucket.segment(ref)
    path.write_bytes(path.read_bytes()[:left])
    found = as_json(inspect_segment(bucket.context(), NAMESPACE, ref.id))
    assert found["damage"]
    assert not found["parts"][-1]["is_whole"]


def test_a_block(bucket: Bucket) -> None:
    ref = bucket.manifest.segments[0]
    context = bucket.context()
    blocks = inspect_segment(context, NAMESPACE, ref.id)["blocks"]
    rows = [
        row
        for block in blocks
        for row in as_json(inspect_block(context, NAMESPACE, ref.id, block["block"], rows=1000))[
            "rows"
        ]
    ]
    assert len(rows) == ref.rows
    keys = [decoded(row["_key"]) for row in rows]
    assert keys == sorted(keys)
    assert (keys[0], keys[-1]) == (ref.key_min, ref.key_max)
    with pytest.raises(reef.InvalidInputError, match="from 0 to"):
        inspect_block(context, NAMESPACE, ref.id, len(blocks))


def test_figures(bucket: Bucket) -> None:
    found = as_json(storage_stats(bucket.context(), NAMESPACE))
    manifest = bucket.manifest
    assert (found["generation"], found["damaged"]) == (3, [])
    assert found["objects"]["wal"]["objects"] == 13
    sizes = {
        folder: sum(p.stat().st_size for p in bucket.files(folder)) for folder in found["objects"]
    }
    assert {folder: one["bytes"] for folder, one in found["objects"].items()} == sizes
    assert found["unfolded_log"]["slots"] == 4
    assert found["rows"] == sum(ref.rows for ref in manifest.segments)
    assert found["levels"]["0"]["segments"] == 2
    flip(bucket.generation(3))
    found = as_json(storage_stats(bucket.context(), NAMESPACE))
    assert (found["generation"], found["damaged"]) == (2, [3])
    assert found["unfolded_log"]["slots"] == 8
