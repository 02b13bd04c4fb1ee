"""The parts of a damaged object, by the byte grammar of its format.

The decoders of `reef.format` reject a damaged object as a whole. Here each part is read by itself, with
whether its checksum holds. A part that no checksum covers is shown, and nothing relies on it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from reef.errors import UnreadableError
from reef.format import Footer, damaged_checksum, decode_framed, decode_stream

_LOG_HEADER = struct.Struct("<8sIB3sQQQQQ16s16sQQQI4s")
_LOG_FIELDS = (
    *("magic", "format_version", "kind", "_zeros", "object_bytes", "slot", "lsn_first"),
    *("lsn_last", "epoch", "writer_id", "nonce", "created_at_us", "operations", "prev_slot"),
    *("prev_checksum", "_more_zeros"),
)
FRAME = struct.Struct("<II")
_TRAILER = struct.Struct("<IIQQI4s8s")
PREAMBLE = b"RFSEG1\0\0\1\0\0\0\0\0\0\0"
_TEXT_MAX = 2000


def log_parts(data: bytes) -> dict[str, Any]:
    """Return the header of a log object as it stands, and each record with whether it is whole."""
    if len(data) < _LOG_HEADER.size:
        return {"header": None, "records": []}
    header = dict(zip(_LOG_FIELDS, _LOG_HEADER.unpack_from(data), strict=True))
    for name in ("magic", "writer_id", "nonce"):
        header[name] = header[name].hex()
    return {
        "header": {name: value for name, value in header.items() if not name.startswith("_")},
        "records": list(_log_records(data)),
    }


def _log_records(data: bytes) -> Iterator[dict[str, Any]]:
    at, end = _LOG_HEADER.size, len(data) - FRAME.size
    while at + FRAME.size <= end:
        length, checksum = FRAME.unpack_from(data, at)
        offset = at + FRAME.size
        if length > end - offset:
            # The length is impossible, so where the next record begins is not known.
            yield {"offset": offset, "length": length, "is_whole": False}
            return
        payload = data[offset : offset + length]
        record: dict[str, Any] = {"offset": offset, "length": length}
        record["is_whole"] = damaged_checksum(payload) == checksum
        if record["is_whole"]:
            record.update(_record(payload))
        yield record
        at = offset + length


def _record(payload: bytes) -> dict[str, Any]:
    """Return the envelope of a record, and its rows if they are Arrow's."""
    record: dict[str, Any] = {}
    try:
        (length,) = struct.unpack_from("<I", payload)
        record["envelope"] = msgspec.msgpack.decode(payload[4 : 4 + length])
        body = payload[4 + length + -(4 + length) % 8 :]
        if body:
            record["batch"] = decode_stream(pa.py_buffer(body), "", 0)
    except (struct.error, msgspec.MsgspecError, ValueError, RecursionError, UnreadableError):
        pass  # its checksum holds, but this version cannot decode it
    return record


def segment_parts(start: bytes, end: bytes, size: int) -> list[dict[str, Any]]:
    """Return the parts of a segment of `size` bytes that its first and its last bytes show."""
    parts = [{"part": "preamble", "offset": 0, "length": 16, "is_whole": start[:16] == PREAMBLE}]
    at = size - _TRAILER.size
    if len(end) < _TRAILER.size:
        return [*parts, {"part": "trailer", "offset": max(0, at), "is_whole": False}]
    trailer = end[-_TRAILER.size :]
    footer_length, footer_checksum, tail_length, length, checksum, zeros, magic = _TRAILER.unpack(
        trailer
    )
    is_whole = (
        damaged_checksum(trailer[:24]) == checksum
        and magic == PREAMBLE[:8]
        and not any(zeros)
        and length == size
    )
    trailer_part = {
        "part": "trailer",
        "offset": at,
        "length": _TRAILER.size,
        "is_whole": is_whole,
        "footer_length": footer_length,
        "tail_length": tail_length,
        "object_bytes": length,
    }
    footer_at = at - footer_length - -footer_length % 8
    first = size - len(end)
    if footer_at < first or not is_whole:
        return [*parts, trailer_part]
    footer = end[footer_at - first : footer_at - first + footer_length]
    is_footer = damaged_checksum(footer) == footer_checksum
    footer_part = {
        "part": "footer",
        "offset": footer_at,
        "length": footer_length,
        "is_whole": is_footer,
    }
    if is_footer:
        parts += _sections(footer, end, first)
    return [*parts, footer_part, trailer_part]


def _sections(footer: bytes, end: bytes, first: int) -> Iterator[dict[str, Any]]:
    for section in msgspec.msgpack.decode(footer, type=Footer).sections:
        part = {"part": section.name, "offset": section.offset, "length": section.length}
        at = section.offset - first + FRAME.size
        if at >= FRAME.size:
            body = end[at : at + section.length]
            part["is_whole"] = damaged_checksum(body) == section.checksum
            yield part


def block_rows(block: bytes, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return the rows of a block of a segment from its bytes, frame included; None: it is damaged."""
    length, checksum = FRAME.unpack_from(block)
    framed = block[FRAME.size :]
    if length != len(framed) or damaged_checksum(framed) != checksum:
        return None
    try:
        return decode_framed(pa.py_buffer(framed), 0, schema, "")
    except UnreadableError:
        return None  # not of this schema


def manifest_parts(data: bytes) -> dict[str, Any]:
    """Return the members of a damaged manifest if it is JSON still, and its text if not."""
    try:
        members = json.loads(data)
    except (ValueError, RecursionError) as error:
        text = data[:_TEXT_MAX].decode("utf-8", "backslashreplace")
        return {"members": None, "text": text, "json_error": str(error)}
    return {"members": members if isinstance(members, dict) else None}
