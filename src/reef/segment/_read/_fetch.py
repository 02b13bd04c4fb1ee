"""Bytes of segments from the store: near ranges share a request, and requests run side by side.

`Store.get_ranges` does that for one object, and copies every range; here ranges may be of several
objects, and are slices of what came, so that a scan copies nothing. Bytes that are kept for long
must be `detached`: a slice keeps all of its request alive.

Requests go to the store's own pool, one GET per task: no task waits for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from reef.errors import DamagedError
from reef.store import Store, merge_ranges

AT_ONCE_BYTES = 32 << 20

_T = TypeVar("_T")
_Request: TypeAlias = tuple[str, int, int]
"""A key, an offset and a length."""
_RequestPart: TypeAlias = tuple[int, int, int]
"""The number of a request, the offset in what it brings, and a length."""


class Extent(NamedTuple):
    """Some bytes of a segment."""

    key: str
    offset: int
    length: int
    checksum: int
    """Of the segment's footer."""


def cut_by_bytes(items: Sequence[_T], sizes: Iterable[int]) -> Iterator[Sequence[_T]]:
    """Yield neighbours together whose `sizes` come to about `AT_ONCE_BYTES`."""
    first = nbytes = 0
    for end, size in enumerate(sizes, 1):
        nbytes += size
        if nbytes >= AT_ONCE_BYTES:
            yield items[first:end]
            first, nbytes = end, 0
    if first < len(items):
        yield items[first:]


def fetch(store: Store, extents: Sequence[Extent]) -> list[pa.Buffer]:
    """Return the bytes of each extent, in the order asked. Raises what `Store.get_range` does."""
    requests, places = _plan(store, extents)
    if len(requests) <= 1 or store.concurrency == 1:
        chunks = [_get(store, request) for request in requests]
    else:
        chunks = list(store._executor().map(lambda request: _get(store, request), requests))
    return _cut(chunks, places)


def fetch_ahead(store: Store, extents: Sequence[Extent]) -> Callable[[], list[pa.Buffer]]:
    """Start fetching if the store has threads; return a function that waits for the bytes."""
    if store.concurrency == 1:
        return lambda: fetch(store, extents)
    requests, places = _plan(store, extents)
    pool = store._executor()
    coming = [pool.submit(_get, store, request) for request in requests]
    return lambda: _cut([one.result() for one in coming], places)


def detached(data: pa.Buffer) -> pa.Buffer:
    """Return the same bytes in memory of their own."""
    return data if data.parent is None else pa.py_buffer(data.to_pybytes())


def _get(store: Store, request: _Request) -> pa.Buffer:
    """Return the bytes of one request; a truncated answer is requested once more."""
    try:
        return pa.py_buffer(store.get_range(*request))
    except DamagedError:
        return pa.py_buffer(store.get_range(*request))


def _plan(store: Store, extents: Sequence[Extent]) -> tuple[list[_Request], list[_RequestPart]]:
    """Return the requests to make, and for each extent which of them it lies in, where, how long."""
    by_key: dict[str, list[int]] = {}
    for i, extent in enumerate(extents):
        by_key.setdefault(extent.key, []).append(i)
    requests: list[_Request] = []
    places = [(0, 0, 0)] * len(extents)
    for key, numbers in by_key.items():
        ranges = [(extents[i].offset, extents[i].length) for i in numbers]
        merged, found = merge_ranges(ranges, store.merge_gap_bytes)
        for i, (request, at, length) in zip(numbers, found, strict=True):
            places[i] = (len(requests) + request, at, length)
        requests += [(key, *one) for one in merged]
    return requests, places


def _cut(chunks: list[pa.Buffer], places: list[_RequestPart]) -> list[pa.Buffer]:
    return [
        chunks[i] if length == chunks[i].size else chunks[i].slice(at, length)
        for i, at, length in places
    ]
