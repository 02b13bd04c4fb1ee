"""Every key and value of an Arrow schema's metadata, in order, repeated keys among them.

pyarrow gives metadata as a dict, which keeps one value of each key. The Arrow C data interface has
all of them, in a layout that Arrow documents and keeps (`ArrowSchema.metadata`): the number of pairs
as int32, then for each pair the length of the key, the key, the length of the value, the value.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

_METADATA_AT = 2 * ctypes.sizeof(ctypes.c_void_p)
"""Where `metadata` is in the struct ArrowSchema: behind `format` and `name`."""

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


def metadata_of(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the pairs of a schema's metadata. Raises UnicodeDecodeError if they are not text."""
    capsule = schema.__arrow_c_schema__()  # it owns what is read here
    at = ctypes.c_void_p.from_address(_pointer_of(capsule, b"arrow_schema") + _METADATA_AT).value
    if at is None:
        return []
    count = ctypes.c_int32.from_address(at).value
    at += 4
    texts: list[str] = []
    for _ in range(2 * count):
        size = ctypes.c_int32.from_address(at).value
        texts.append(ctypes.string_at(at + 4, size).decode())
        at += 4 + size
    return list(zip(texts[::2], texts[1::2], strict=True))
