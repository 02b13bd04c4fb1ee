"""Python values ↔ the JSON text that free-form attributes are stored as.

Text is compact. What JSON has no form for but has one obvious text (times, UUIDs, bytes as base64,
NumPy's numbers and arrays) becomes that; NaN, infinity and keys that are not text have none, and are
refused.

How deep a value may nest does not depend on how deep the stack is that writes it: it may be read
from a deeper one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from reef.documents.types._refusal import CONVERSION_ERRORS, InputColumn

NESTING_MAX = 256
TOO_DEEP = f"a value that is nested too deeply (at most {NESTING_MAX} levels)"
_STEPS = bytes.maketrans(b"[{]}", b"\1\1\xff\xff")
_NO_MARKS = bytes(set(range(256)) - set(b'[{]}"'))


def encode_json(values: Sequence[object], spot: InputColumn) -> pa.Array:
    """Return each of `values` as JSON text; None stays null. Raises InvalidInputError."""
    try:
        texts = [None if value is None else _encode(value) for value in values]
        array = pa.array(texts, pa.string())
    except CONVERSION_ERRORS:
        i, why = _refused(values)
        raise spot.refusal(i, values[i], "json", why) from None
    check_nesting(texts, values, spot)
    for i, text in enumerate(texts):
        # The encoder writes NaN and infinity as null, numbers as text where they are keys.
        lost = None if text is None or _is_whole(text, values[i]) else _lost(values[i])
        if lost is not None:
            raise spot.refusal(i, values[i], "json", lost)
    return array


def check_nesting(
    texts: Iterable[bytes | None], values: Sequence[object], spot: InputColumn
) -> None:
    """Raise InvalidInputError for the first of `values` whose JSON text nests too deeply."""
    for i, text in enumerate(texts):
        if text is not None and _is_too_deep(text):
            raise spot.refusal(i, values[i], "json", TOO_DEEP)


def decode_json(column: pa.Array) -> list[Any]:
    """Return the values that the texts of `column` stand for."""
    return [None if text is None else _DECODER.decode(text) for text in column.to_pylist()]


def _json_form(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_encode = msgspec.json.Encoder(enc_hook=_json_form).encode
_DECODER = msgspec.json.Decoder()


def _refused(values: Sequence[object]) -> tuple[int, str]:
    for i, value in enumerate(values):
        try:
            _encode(value).decode()
        except RecursionError:
            return i, TOO_DEEP
        except CONVERSION_ERRORS as error:
            return i, f"{type(value).__name__} that JSON cannot hold ({error})"
    return 0, "more text than fits in one batch"


def _is_too_deep(text: bytes) -> bool:
    if text.count(b"[") + text.count(b"{") <= NESTING_MAX:
        return False
    # Brackets in strings do not count. Without escaped quotes, a string is what is between two.
    marks = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_MARKS)
    outside = b"".join(marks.replace(b'""', b"").split(b'"')[::2])
    steps = np.frombuffer(outside.translate(_STEPS), np.int8)
    return bool(steps.cumsum(dtype=np.int64).max(initial=0) > NESTING_MAX)


def _is_whole(text: bytes, value: object) -> bool:
    """Say whether `text` reads as what was written for certain: look closer where it does not."""
    try:
        return (_DECODER.decode(text) == value) is True
    except CONVERSION_ERRORS:  # NumPy's arrays do not tell whether they are equal
        return False


def _lost(value: object) -> str | None:
    """Return what the text of `value` has lost, or None."""
    if isinstance(value, (float, np.floating)):
        return None if math.isfinite(value) else "NaN or infinity, which JSON cannot hold"
    if isinstance(value, np.ndarray):
        return _lost(value.tolist())
    items: Iterable[object] = ()
    if isinstance(value, Mapping):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            return f"{wrong!r} for a key, which is not text"
        items = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = value
    return next(filter(None, map(_lost, items)), None)
