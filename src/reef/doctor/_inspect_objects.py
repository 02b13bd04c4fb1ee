"""inspect: the content of single objects as plain values, and where they are damaged.

Results are dicts that JSON can hold: bytes are base64, checksums numbers, times microseconds since 1970.
Values that applications put into a log record are made `readable`. `damage` is None, or what is wrong
and where; the parts that can be read are returned all the same. Nothing is written, and no other object
is read instead of a damaged one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from reef.doctor._byte_grammar import log_parts, manifest_parts, segment_parts
from reef.doctor._newest_readable import newest_readable_manifest
from reef.doctor._quarantine import Quarantine, stored_size
from reef.doctor._shown_condition import attribute_names, decode_condition
from reef.engine import OUTCOMES, Context, unpack_codes
from reef.errors import CorruptError, InvalidInputError, TooLargeError, UnreadableError
from reef.format import (
    SegmentRef,
    SegmentTail,
    decode_log,
    decode_manifest,
    decode_schema,
    decode_tail,
    field_id,
    log_checksum,
    log_key,
    manifest_checksum,
    manifest_key,
    parse_manifest_key,
    segment_key,
    tail_length,
)
from reef.log import list_slots
from reef.manifest import no_namespace, retained_of
from reef.segment import check_segment
from reef.store import ObjectMeta, Store
from reef.types import check_namespace

_END_BYTES = 1 << 20
_TRAILER_BYTES = 40


def inspect_namespace(context: Context, namespace: str) -> dict[str, Any]:
    """Return the objects of a namespace: generations, slots, segments, windows, quarantine.

    Raises NotFoundError, UnavailableError.
    """
    store = context.store
    prefix = f"namespaces/{check_namespace(namespace)}/"
    manifests = list(store.list(f"{prefix}manifest/"))
    if not manifests and not any(store.list(prefix)):
        raise no_namespace(store.url, namespace)
    head, _ = newest_readable_manifest(store, manifests)
    live = {} if head is None else {s.id: s for s in head.segments if not s.namespace}
    pending = set() if head is None else {waiting.key for waiting in head.gc.pending}
    named = [(n.generation, meta) for meta in manifests if (n := parse_manifest_key(meta.key))]
    numbers = [number for number, _ in named]
    retained = set() if head is None else {*retained_of(head, numbers)}
    return {
        "namespace": namespace,
        "head": None if head is None else head.generation,
        "generations": [
            {
                "generation": number,
                "size": meta.size,
                "published_at_us": meta.last_modified_us,
                "retained": number in retained,
            }
            for number, meta in named
        ],
        "log": [
            {"slot": slot, "size": size, "folded": head is not None and slot < head.wal_floor}
            for slot, size in list_slots(store, namespace).items()
        ],
        "segments": [
            _listed_segment(meta, live, pending) for meta in store.list(f"{prefix}segments/")
        ],
        "dedup": [
            {
                "id": _id(meta),
                "size": meta.size,
                "live": head is not None and head.dedup is not None and head.dedup.id == _id(meta),
            }
            for meta in store.list(f"{prefix}dedup/")
        ],
        "quarantine": [
            {"key": key, "size": size} for key, size in Quarantine(store, namespace).sizes.items()
        ],
    }


def inspect_manifest(
    context: Context, namespace: str, generation: int | None = None
) -> dict[str, Any]:
    """Return one generation, by default the newest in the bucket. Raises NotFoundError."""
    store = context.store
    if generation is None:
        listed = store.list(f"namespaces/{check_namespace(namespace)}/manifest/")
        named = [n.generation for meta in listed if (n := parse_manifest_key(meta.key)) is not None]
        if not named:
            raise no_namespace(store.url, namespace)
        generation = named[-1]
    key = manifest_key(namespace, generation)
    data = store.get(key)
    about = {"key": key, "generation": generation, "size": len(data)}
    try:
        manifest = decode_manifest(data, key=key)
    except UnreadableError as error:
        return {**about, "damage": _damage(error), **manifest_parts(data)}
    members = json_value(manifest)
    members["schema"] = _schema_fields(manifest.schema)
    checksum = manifest_checksum(data, key=key)
    return {**about, "damage": None, "checksum": checksum, "members": members}


def inspect_log(context: Context, namespace: str, slot: int, *, rows: int = 10) -> dict[str, Any]:
    """Return one log object, with the first `rows` rows of each record. Raises NotFoundError."""
    key = log_key(namespace, slot)
    data = context.store.get(key)
    about = {"key": key, "slot": slot, "size": len(data)}
    names = cache(partial(attribute_names, context.store, namespace))
    try:
        log = decode_log(data, key=key, slot=slot)
    except UnreadableError as error:
        parts = log_parts(data)
        for record in parts["records"]:
            record.update(_first_rows(record.pop("batch", None), rows))
            record["envelope"] = _envelope(record.get("envelope"), rows, names)
        return {**about, "damage": _damage(error), **parts}
    return {
        **about,
        "damage": None,
        "checksum": log_checksum(data, key=key),
        "kind": log.kind.name.lower(),
        "epoch": log.epoch,
        "writer_id": log.writer_id.hex(),
        "nonce": log.nonce.hex(),
        "created_at_us": log.created_at_us,
        "prev": {"slot": log.prev.slot, "checksum": log.prev.checksum},
        "lsn_first": log.lsn_first,
        "lsn_last": log.lsn_last,
        "operations": log.operations,
        "records": [
            {
                "lsn": record.lsn,
                "idempotency_key": readable(record.idempotency_key),
                "digest": None if record.digest is None else record.digest.hex(),
                "condition": _condition(record.condition, names),
                **_outcomes(record.outcomes, rows),
                "source": record.source,
                "sequence": record.sequence,
                "skipped": json_value(record.skipped),
                "segments": json_value(record.segments),
                "schema": None if record.schema is None else _arrow_fields(record.schema),
                **_first_rows(record.batch, rows),
            }
            for record in log.records
        ],
    }


def inspect_segment(
    context: Context, namespace: str, id: str, *, deep: bool = False
) -> dict[str, Any]:
    """Return the tail of a segment: its footer and its blocks; `deep` reads every block too.

    Raises NotFoundError.
    """
    store = context.store
    key = segment_key(namespace, id)
    size = store.head(key).size
    ref = _ref(context, namespace, id)
    about = {"key": key, "id": id, "size": size, "named": ref is not None}
    try:
        tail = _tail(store, key, size, ref)
    except UnreadableError as error:
        return {**about, "damage": _damage(error), "parts": _byte_parts(store, key, size)}
    damaged: tuple[int, ...] = ()
    damage = None
    if deep:
        checked = check_segment(
            store, namespace, _as_ref(tail, ref), stored_size(store, key), deep=True
        )
        damaged, damage = checked.bad_rows, [_damage(error) for error in checked.errors]
    footer = json_value(tail.footer)
    footer["schema"] = _arrow_fields(tail.schema)
    return {
        **about,
        "damage": damage[0] if damage else None,
        "damages": damage or [],
        "checksum": tail.checksum,
        "footer": footer,
        "bloom_bytes": len(tail.bloom.data),
        "blocks": [
            {"block": number, **json_value(row), "damaged": number in damaged if deep else None}
            for number, row in enumerate(_index_rows(tail.row_index))
        ],
        "columns": {
            name: [{"block": n, **place._asdict()} for n, place in enumerate(places)]
            for name, places in tail.column_places.items()
        },
    }


def inspect_block(
    context: Context, namespace: str, id: str, number: int, *, rows: int = 10
) -> dict[str, Any]:
    """Return one row block of a segment, with its first `rows` rows. Raises NotFoundError.

    Raises DamagedError if the tail, which says where blocks are, cannot be read.
    """
    store = context.store
    key = segment_key(namespace, id)
    tail = _tail(store, key, store.head(key).size, _ref(context, namespace, id))
    if not 0 <= number < len(tail.row_places):
        raise InvalidInputError.of(
            "block", number, f"a number from 0 to {len(tail.row_places) - 1}"
        )
    place = tail.row_places[number]
    index = json_value(_index_rows(tail.row_index)[number])
    about = {"key": key, "id": id, "block": number, **index}
    try:
        batch = tail.decode_rows(number, store.get_range(key, place.offset, place.length))
    except UnreadableError as error:
        return {**about, "damage": _damage(error), "count": place.rows, "rows": []}
    return {**about, "damage": None, **_first_rows(batch, rows)}


def json_value(value: Any) -> Any:
    """Return a value as JSON can hold it: structs are objects, bytes are base64."""
    if isinstance(value, msgspec.Struct):
        return {name: json_value(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(key): json_value(one) for key, one in value.items()}
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def readable(value: Any) -> Any:
    """Return a value for people to read: printable bytes are text, others {"base64": ...}."""
    if isinstance(value, Mapping):
        return {str(readable(key)): readable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [readable(one) for one in value]
    if not isinstance(value, bytes | bytearray | memoryview):
        return json_value(value)
    try:
        text = bytes(value).decode()
    except UnicodeDecodeError:
        text = "\0"
    return text if text.isprintable() else {"base64": json_value(value)}


def _envelope(envelope: Any, rows: int, names: Callable[[], Mapping[str, str]]) -> Any:
    """Return the envelope of a damaged object's record, which may be anything."""
    if not isinstance(envelope, Mapping):
        return json_value(envelope)
    decoded = json_value(envelope)
    if "idempotency_key" in envelope:
        decoded["idempotency_key"] = readable(envelope["idempotency_key"])
    if isinstance(digest := envelope.get("digest"), bytes):
        decoded["digest"] = digest.hex()
    if "condition" in envelope:
        decoded["condition"] = _condition(envelope["condition"], names)
    if "outcomes" in envelope:
        decoded.update(_outcomes(envelope["outcomes"], rows))
    return decoded


def _condition(record: Any, names: Callable[[], Mapping[str, str]]) -> Any:
    """Return the condition of a request; what cannot be decoded is returned as it is."""
    if not isinstance(record, bytes):
        return json_value(record)
    try:
        return readable(decode_condition(record, names()))
    except (ValueError, RecursionError):
        return readable(record)


def _outcomes(packed: Any, most: int) -> dict[str, Any]:
    """Return the outcomes of the first `most` rows of a request, and how many had each."""
    if not isinstance(packed, bytes):
        return {"outcomes": json_value(packed), "outcome_counts": None}
    try:
        codes = unpack_codes(packed)
    except (ValueError, CorruptError):
        return {"outcomes": readable(packed), "outcome_counts": None}
    found = np.bincount(np.frombuffer(codes, np.uint8))
    counts = {_outcome_name(code): int(found[code]) for code in np.flatnonzero(found).tolist()}
    return {"outcomes": [_outcome_name(code) for code in codes[:most]], "outcome_counts": counts}


def _outcome_name(code: int) -> str:
    return OUTCOMES[code] if code < len(OUTCOMES) else f"code {code}"


def _listed_segment(
    meta: ObjectMeta, live: Mapping[str, SegmentRef], pending: set[str]
) -> dict[str, Any]:
    id = _id(meta)
    ref = live.get(id)
    state = "live" if ref else "pending" if meta.key in pending else "unreferenced"
    about: dict[str, Any] = {"id": id, "size": meta.size, "state": state}
    for name in ("level", "rows", "tombstones", "lsn_min", "lsn_max", "key_min", "key_max"):
        about[name] = None if ref is None else json_value(getattr(ref, name))
    return about


def _id(meta: ObjectMeta) -> str:
    return meta.key.rsplit("/", 1)[-1].rsplit(".", 1)[0]


def _ref(context: Context, namespace: str, id: str) -> SegmentRef | None:
    """Return what the newest generation that can be read says of a segment."""
    listed = context.store.list(f"namespaces/{namespace}/manifest/")
    head, _ = newest_readable_manifest(context.store, listed)
    segments = () if head is None else head.segments
    return next((s for s in segments if s.id == id and not s.namespace), None)


def _tail(store: Store, key: str, size: int, ref: SegmentRef | None) -> SegmentTail:
    end = min(size, _TRAILER_BYTES)
    last = store.get_range(key, size - end, end) if end else b""
    length = tail_length(last, key=key, size=size)
    return decode_tail(store.get_range(key, size - length, length), key=key, size=size, ref=ref)


def _as_ref(tail: SegmentTail, ref: SegmentRef | None) -> SegmentRef:
    """Return a reference to check a segment by: the manifest's, or one made from its footer."""
    if ref is not None:
        return ref
    footer = tail.footer
    names = ("id", "level", "rows", "tombstones", "key_min", "key_max", "lsn_min", "lsn_max")
    return SegmentRef(
        **{name: getattr(footer, name) for name in names},
        size=tail.size,
        footer_length=_tail_bytes(tail),
        checksum=tail.checksum,
    )


def _tail_bytes(tail: SegmentTail) -> int:
    """Return how long a tail is: from the filter, its first section, to the end."""
    first = next(s for s in tail.footer.sections if s.name == "bloom")
    return tail.size - first.offset


def _byte_parts(store: Store, key: str, size: int) -> list[dict[str, Any]]:
    length = min(size, _END_BYTES)
    start = store.get_range(key, 0, min(size, 16)) if size else b""
    end = store.get_range(key, size - length, length) if length else b""
    return segment_parts(start, end, size)


def _index_rows(index: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = index.to_pylist()
    return rows


def _first_rows(batch: pa.RecordBatch | None, most: int) -> dict[str, Any]:
    if batch is None:
        return {"count": 0, "rows": []}
    try:
        return {"count": batch.num_rows, "rows": json_value(batch.slice(0, most).to_pylist())}
    except MemoryError as error:
        raise TooLargeError("", 0, "memory for the rows as JSON", "none left") from error


def _damage(error: UnreadableError) -> dict[str, Any]:
    return {
        "what": error.what,
        "offset": error.offset,
        "expected": error.expected,
        "got": error.got,
    }


def _schema_fields(data: bytes) -> list[dict[str, Any]]:
    return _arrow_fields(decode_schema(pa.py_buffer(data), "", 0)) if data else []


def _arrow_fields(schema: pa.Schema) -> list[dict[str, Any]]:
    return [
        {"name": f.name, "type": str(f.type), "nullable": f.nullable, "id": field_id(f)}
        for f in schema
    ]
