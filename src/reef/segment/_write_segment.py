"""Writing a segment into a bucket.

The object appears whole, when its last part is there, and nothing names it before a manifest does:
a crash at any point leaves an orphan at most, which collection finds by its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from reef.format import SegmentOptions, SegmentOrigin, SegmentRef, SegmentWriter, segment_key
from reef.store import Store

# Frames and paddings are a few bytes each: sent by themselves, they cost as much as a block.
_PART_BYTES = 1 << 20


def write_segment(
    store: Store,
    namespace: str,
    schema: pa.Schema,
    origin: SegmentOrigin,
    options: SegmentOptions | None,
    batches: Iterable[pa.RecordBatch],
) -> SegmentRef:
    """Upload sorted `batches` as segment `origin.id` of `namespace`; return what a manifest says of it.

    `batches` are consumed as the upload goes, in bounded memory; making one may use the store. Raises
    InvariantError if the rows are not sorted or there are none, before the object appears;
    UnavailableError, whereupon it may exist or not: write anew under another id.
    """
    writer = SegmentWriter(schema, origin, options)
    store.upload(segment_key(namespace, origin.id), _in_larger_parts(writer.parts(batches)))
    return writer.ref


def _in_larger_parts(parts: Iterable[bytes | pa.Buffer]) -> Iterator[bytes | pa.Buffer]:
    """Yield the same bytes in fewer parts."""
    small: list[bytes | pa.Buffer] = []
    size = 0
    for part in parts:
        small.append(part)
        size += len(part) if isinstance(part, bytes) else part.size
        if size >= _PART_BYTES:
            yield b"".join(small)
            small, size = [], 0
    if small:
        yield b"".join(small)
