"""Which requests were committed recently: the dedup window in memory.

It starts as the window that the manifest names, is completed from the unfolded log, and grows with
every commit. So a replay finds the original receipt after a crash and on another machine. Keys are
bounded by count and age; streams keep one number per source and never age out.
"""

from __future__ import annotations

from reef.engine._commit._receipt import Receipt, unpack_codes
from reef.errors import IdempotencyError
from reef.format import DedupEntry, DedupStream, DedupWindow, LogObject, LogRecord

STREAM_CODES = b""


class DedupIndex:
    """The window. Not thread-safe: the writer's lock guards it."""

    def __init__(self, window: DedupWindow | None, *, keys_max: int, age_max_us: int) -> None:
        self._keys_max = keys_max
        self._age_max_us = age_max_us
        self._entries: dict[bytes, DedupEntry] = {}
        self._streams: dict[str, DedupStream] = {}
        self.last_lsn = 0
        """The last commit that changed the window."""
        if window is not None:
            self._entries = {entry.key: entry for entry in window.entries}
            self._streams = {stream.source: stream for stream in window.streams}
            self.last_lsn = window.last_lsn

    def apply(self, log: LogObject) -> None:
        """Take in a valid log object."""
        for record in log.records:
            self.add(record, log.created_at_us)

    def add(self, record: LogRecord, committed_at_us: int) -> None:
        """Take in one committed record; those that the window has already change nothing."""
        is_keyed = record.idempotency_key is not None and record.digest is not None
        is_in_stream = record.source is not None and record.sequence is not None
        if record.lsn <= self.last_lsn or not (is_keyed or is_in_stream):
            return
        if record.idempotency_key is not None and record.digest is not None:
            self._entries.pop(record.idempotency_key, None)
            self._entries[record.idempotency_key] = DedupEntry(
                key=record.idempotency_key,
                lsn=record.lsn,
                digest=record.digest,
                receipt=record.outcomes or b"",
                committed_at_us=committed_at_us,
            )
            self._trim(committed_at_us)
        if record.source is not None and record.sequence is not None:
            self._streams[record.source] = DedupStream(record.source, record.sequence, record.lsn)
        # Last, so that an interrupted caller does all of this again.
        self.last_lsn = record.lsn

    def find(self, key: bytes, digest: bytes, now_us: int) -> Receipt | None:
        """Return the receipt of an earlier request with this key, if it is in the window.

        Raises IdempotencyError if the key was used for another request.
        """
        entry = self._entries.get(key)
        if entry is None or now_us - entry.committed_at_us > self._age_max_us:
            return None
        check_same(key, entry.digest, entry.lsn, digest)
        return Receipt(entry.lsn, unpack_codes(entry.receipt), replayed=True)

    def find_stream(self, source: str, sequence: int) -> Receipt | None:
        """Return a receipt if the stream has reached `sequence` already."""
        stream = self._streams.get(source)
        if stream is None or sequence > stream.sequence:
            return None
        return Receipt(stream.lsn, STREAM_CODES, replayed=True)

    def window(self, through_lsn: int, now_us: int) -> DedupWindow:
        """Return the window's entries of commits up to `through_lsn`, without expired ones."""
        oldest = now_us - self._age_max_us
        entries = (e for e in self._entries.values() if e.committed_at_us >= oldest)
        return DedupWindow(
            last_lsn=min(self.last_lsn, through_lsn),
            entries=tuple(e for e in entries if e.lsn <= through_lsn),
            streams=tuple(
                stream for _, stream in sorted(self._streams.items()) if stream.lsn <= through_lsn
            ),
        )

    def _trim(self, now_us: int) -> None:
        # Oldest first: a dict keeps the order in which keys came.
        oldest_us = now_us - self._age_max_us
        while self._entries:
            oldest = next(iter(self._entries.values()))
            if len(self._entries) <= self._keys_max and oldest.committed_at_us >= oldest_us:
                return
            del self._entries[oldest.key]


def check_same(key: bytes, known: bytes | None, lsn: int, digest: bytes) -> None:
    """Raise IdempotencyError if `key` stands for the request `known`, at `lsn`, not for `digest`."""
    if known != digest:
        raise IdempotencyError(
            f"idempotency key {key!r} was used for another request, at LSN {lsn}; "
            "use a new key for a new request"
        )
