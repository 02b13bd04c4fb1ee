"""Pages as the rows that the kernel stores, and back.

A page's key is its number in four bytes, most significant first; its one column is `data`. How far
the store extends is a row of its own, behind all pages: `data` is the number of pages then, in eight
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from reef.engine import Face, face_of
from reef.errors import CorruptError, InvalidInputError
from reef.format import LsnPolicy, Manifest, log_schema, manifest_key, with_field_id
from reef.segment import RowVersion
from reef.types import U32_MAX

PAGE_SIZE_DEFAULT = 4096
PAGE_SIZE_MAX = 1 << 20
PAGES_MAX = U32_MAX + 1
EXTENT_KEY = b"\xff\xff\xff\xff\0"
PITR_WINDOW_S = 7 * 86400.0

DATA = "data"
_NAME = "pages"
PAGE_SIZE = b"reef:page_size"
DATA_FIELD = with_field_id(pa.field(DATA, pa.binary()), 1)
LOG_SCHEMA = log_schema([DATA_FIELD])

_ID = struct.Struct(">I")
_COUNT = struct.Struct(">Q")
_BINARY = pa.binary()

key_of = _ID.pack
"""The key of a page, by its number."""


def face_of_pages(page_size: int, lsn_policy: LsnPolicy) -> Face:
    """Return what a namespace of pages of that size is made as."""
    schema = pa.schema([DATA_FIELD], {PAGE_SIZE: str(page_size).encode()})
    return Face(_NAME, schema, lsn_policy, pitr_window_s=PITR_WINDOW_S)


def is_of_pages(manifest: Manifest) -> bool:
    """Return whether a namespace was made as one of pages."""
    return face_of(manifest).name == _NAME


def page_size_of(manifest: Manifest) -> int:
    """Return the size of the pages of a namespace."""
    metadata = face_of(manifest).schema.metadata or {}
    said = metadata.get(PAGE_SIZE, b"%d" % PAGE_SIZE_DEFAULT)
    if not said.isdigit() or len(said) > 10 or not 1 <= int(said) <= PAGE_SIZE_MAX:
        key = manifest_key(manifest.namespace, manifest.generation)
        raise CorruptError(key, 0, f"pages of 1 to {PAGE_SIZE_MAX} bytes", repr(said[:100]))
    return int(said)


def check_page_size(page_size: object) -> int:
    """Return `page_size` if pages may be that large. Raises InvalidInputError."""
    if type(page_size) is not int or not 1 <= page_size <= PAGE_SIZE_MAX:
        raise InvalidInputError.of("page_size", page_size, f"a number from 1 to {PAGE_SIZE_MAX}")
    return page_size


def check_n_pages(n_pages: object) -> int:
    """Return `n_pages` if a store may extend that far. Raises InvalidInputError."""
    if type(n_pages) is not int or not 0 <= n_pages <= PAGES_MAX:
        raise InvalidInputError.of("n_pages", n_pages, f"a number from 0 to {PAGES_MAX}")
    return n_pages


def page_key(page_id: object) -> bytes:
    """Return the key of a page. Raises InvalidInputError."""
    try:
        return _ID.pack(page_id)
    except struct.error:
        raise InvalidInputError.of("page_id", page_id, f"a number from 0 to {U32_MAX}") from None


def data_of(found: RowVersion) -> bytes:
    """Return what a row holds."""
    batch = found[2]
    data: bytes = batch.column(batch.num_columns - 1)[found[3]].as_py()
    return data


def extent_of(found: RowVersion | None) -> int:
    """Return how far the store extends, by its row."""
    if found is None or found.tombstone:
        return 0
    data = data_of(found)
    if data is None or len(data) != _COUNT.size or (count := _COUNT.unpack(data)[0]) > PAGES_MAX:
        raise CorruptError("", 0, f"a number of pages up to {PAGES_MAX}", repr(data and data[:20]))
    return int(count)


def keys_of(page_ids: Iterable[int]) -> list[bytes]:
    """Return the keys of pages, in the order asked. Raises InvalidInputError."""
    try:
        return list(map(_ID.pack, page_ids))
    except (struct.error, TypeError):
        raise InvalidInputError.of(
            "page_ids", page_ids, f"a list of page numbers from 0 to {U32_MAX}"
        ) from None


def page_rows(pages: Mapping[int, bytes], page_size: int) -> pa.RecordBatch:
    """Return the rows of pages. Raises InvalidInputError."""
    values = check_pages(pages, page_size)
    columns = [
        _binary(b"".join(keys_of(pages.keys())), 4),
        _flags(len(values)),
        _binary(b"".join(values), page_size),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA)


def check_pages(pages: Mapping[int, bytes], page_size: int) -> Sequence[bytes]:
    """Return the values of pages, each of which is as large as a page. Raises InvalidInputError."""
    if not isinstance(pages, Mapping):
        raise InvalidInputError(
            f"pages is of type {type(pages).__name__}: expected a dict of page numbers to bytes"
        )
    values = list(pages.values())
    try:
        views = [memoryview(value) for value in values]
    except TypeError:
        raise InvalidInputError(
            "the data of a page is not bytes: give bytes for every page"
        ) from None
    if not all(view.c_contiguous for view in views):
        raise InvalidInputError("the data of a page is an array with gaps: give contiguous bytes")
    sizes = {view.nbytes for view in views}
    if not sizes <= {page_size}:
        wrong = min(sizes - {page_size})
        raise InvalidInputError(
            f"the data of a page has {wrong} bytes: expected {page_size}, the page_size "
            "of this store"
        )
    return values


def extent_row(n_pages: int) -> pa.RecordBatch:
    """Return the row that says how far the store extends."""
    columns = [pa.array([EXTENT_KEY], _BINARY), pa.array([False]), pa.array([_COUNT.pack(n_pages)])]
    return pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA)


def gone_rows(first: int, stop: int) -> pa.RecordBatch:
    """Return the rows that delete the pages from `first` up to `stop`."""
    numbers = np.arange(first, stop, dtype=np.uint32)
    return gone(_binary(numbers.astype(">u4").tobytes(), 4))


def gone(keys: pa.BinaryArray) -> pa.RecordBatch:
    """Return the rows that delete keys."""
    count = len(keys)
    columns = [keys, pa.array(np.ones(count, np.bool_)), pa.nulls(count, _BINARY)]
    return pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA)


def _binary(joined: bytes, size: int) -> pa.BinaryArray:
    """Return an array of values of one size, which lie one behind the other."""
    count = len(joined) // size
    buffers = [None, _offsets(count, size), pa.py_buffer(joined)]
    return pa.Array.from_buffers(_BINARY, count, buffers, 0)


@lru_cache(64)
def _offsets(count: int, size: int) -> pa.Buffer:
    return pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=np.int32))


@lru_cache(64)
def _flags(count: int) -> pa.BooleanArray:
    """Return as many times False."""
    return pa.array(np.zeros(count, np.bool_))
