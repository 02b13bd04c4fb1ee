"""Headers of log objects: enough to follow the chain without reading rows.

A header lies in the first 120 bytes of an object and says where the object belongs: its slot, its
versions, its epoch, and the valid object before it. Only the object's checksum covers it. So a
header that does not agree with its key counts as unreadable here; a read of rows reads the whole
object and decides again.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from reef.context import Context
from reef.errors import DamagedError, NotFoundError
from reef.format import LogKind, Prev, log_key
from reef.threads import for_each

# Magic and version, kind, zeros, bytes of the object, slot, first and last LSN, epoch, writer id,
# nonce, created at, operations, prev slot and checksum, zeros: see docs/formats.
_HEADER = struct.Struct("<12sB3sQQQQQ16s16sQQQI4s")
_HEAD = b"RFWAL1\0\0\1\0\0\0"
KEPT_MAX = 100_000
HEADERS_WINDOW_MAX = 64


class LogHeader(NamedTuple):
    """The header of a log object, before its records."""

    kind: LogKind
    size: int
    slot: int
    lsn_first: int
    """0 in a fence, like the last one."""
    lsn_last: int
    epoch: int
    created_at_us: int
    operations: int
    prev: Prev


class UnreadableHeader(NamedTuple):
    """An object exists, but its header cannot be read."""

    slot: int


Answer = LogHeader | UnreadableHeader | None
"""None: there is no such object."""


class HeaderReader:
    """Reads headers of one namespace's log, many at once, and keeps the latest."""

    def __init__(self, context: Context, namespace: str) -> None:
        self._context = context
        self._namespace = namespace
        self._kept: OrderedDict[int, LogHeader] = OrderedDict()

    def get(self, slots: Iterable[int]) -> list[Answer]:
        """Return the header in each slot: one small ranged GET for each that is not in memory.

        Raises UnavailableError.
        """
        wanted = list(slots)
        found: dict[int, Answer] = {slot: self._kept[slot] for slot in wanted if slot in self._kept}

        def read(slot: int) -> None:
            found[slot] = self._read(slot)

        missing = [slot for slot in wanted if slot not in found]
        store, threads = self._context.store, self._context.threads
        width = min(store.concurrency, len(missing))
        for_each(missing, read, width=width, threads=threads)
        for slot in missing:
            header = found[slot]
            if isinstance(header, LogHeader):
                self._kept[slot] = header
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return [found[slot] for slot in wanted]

    def _read(self, slot: int) -> Answer:
        key = log_key(self._namespace, slot)
        try:
            data = self._context.store.get_range(key, 0, _HEADER.size)
        except NotFoundError:
            return None
        except DamagedError:
            return UnreadableHeader(slot)
        return _decode(data, slot)


def _decode(data: bytes, slot: int) -> LogHeader | UnreadableHeader:
    head, kind, zeros, size, said, first, last, epoch, _, nonce, at, rows, prev, checksum, more = (
        _HEADER.unpack(data)
    )
    is_whole = head == _HEAD and not any(zeros) and not any(more) and any(nonce)
    if not is_whole or said != slot or not prev < slot or kind not in tuple(LogKind):
        return UnreadableHeader(slot)
    if (kind == LogKind.FENCE) != (first == 0) or last < first:
        return UnreadableHeader(slot)
    return LogHeader(LogKind(kind), size, slot, first, last, epoch, at, rows, Prev(prev, checksum))
