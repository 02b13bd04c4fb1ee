"""A client batch as its face hands it to the writer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

from reef.engine._commit._conditions import Resolve
from reef.engine._read._view import View
from reef.format import LogKind, SegmentRef


class WriteRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One client batch, as its face hands it over."""

    batch: pa.RecordBatch
    """`_key`, `_tombstone` and the columns of the face; each key once."""
    stream: pa.Buffer | None = None
    """The encoded batch, if its face has encoded it (`reef.format.owned_rows`)."""
    nbytes: int
    """About how large the batch is: Arrow is slow to compute it, and the face often knows."""
    codes: bytes | None = None
    """As `plain_codes` finds them in the batch, if its face knows."""
    resolve: Resolve | None = None
    """Returns the rows to log, given the rows that they replace; None: log `batch`."""
    prepare: Callable[[View], object] | None = None
    """Reads what `resolve` will need, so that it need not wait for the store under the lock."""
    condition: bytes | None = None
    """The condition that `resolve` evaluates, for the log."""
    schema: pa.Schema | None = None
    """The columns of the face from now on, instead of rows."""
    segments: tuple[SegmentRef, ...] = ()
    """Uploaded segments, instead of rows. All their rows get the version of the request."""
    idempotency_key: bytes | None = None
    digest: bytes | None = None
    """Of the logical request; goes with the key."""
    source: str | None = None
    sequence: int | None = None
    lsn: int | None = None
    """Given by the caller where the namespace takes its versions from there."""

    @property
    def kind(self) -> LogKind:
        """What kind of log object it goes into."""
        if self.segments:
            return LogKind.ATTACH
        return LogKind.DATA if self.schema is None else LogKind.SCHEMA
