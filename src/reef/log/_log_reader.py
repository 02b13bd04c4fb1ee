"""Reading the log: slots are fetched many at once and decided in order.

There is no LIST: the first slot that is absent ends the log. With several writes in flight a
later slot may exist already; it counts when the gap before it is filled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reef.errors import DamagedError, UnreadableError
from reef.format import LogObject, LsnPolicy, damaged_checksum, decode_log, log_checksum, log_key
from reef.log._replay import Damaged, LogEntry, Replay
from reef.store import Store

WINDOW_SLOTS_MAX = 16


class LogReader:
    """Fetches and checks the log objects of one namespace."""

    def __init__(self, store: Store, namespace: str, lsn_policy: LsnPolicy) -> None:
        self._store = store
        self._namespace = namespace
        self._lsn_policy: LsnPolicy = lsn_policy

    def read(self, replay: Replay, *, last_known: int = 0) -> Iterator[LogEntry]:
        """Take `replay` up to the first absent slot, yielding each object as it is decided.

        `last_known` is a slot up to which the log is known to reach: that much is fetched at
        once. After that the window doubles, so that at most as much is asked for in vain as was
        found. Raises CorruptError, UnavailableError, FormatVersionError.
        """
        replay.look_again()
        window = max(1, last_known + 2 - replay.reach)
        while True:
            first = replay.reach
            slots = range(first, first + min(window, WINDOW_SLOTS_MAX))
            for found in self._fetch(slots):
                if found is None:
                    return
                if isinstance(found, Damaged):
                    replay.add_damaged(found)
                else:
                    yield replay.add(*found)
            window = max(2 * len(slots), last_known + 2 - replay.reach)

    def decode(self, slot: int, data: bytes) -> tuple[LogObject, int, int] | Damaged:
        """Return a log object, its checksum and its size; one that can't be read is fetched again.

        Raises FormatVersionError if it is whole but of another version, also the second time.
        """
        try:
            return self._decode(slot, data)
        except UnreadableError:
            again = self._store.get(log_key(self._namespace, slot))
        try:
            return self._decode(slot, again)
        except DamagedError as error:
            return Damaged(slot, damaged_checksum(again), error)

    def _fetch(self, slots: Sequence[int]) -> Iterator[tuple[LogObject, int, int] | Damaged | None]:
        keys = [log_key(self._namespace, slot) for slot in slots]
        for slot, data in zip(slots, self._store.get_many(keys), strict=True):
            yield None if data is None else self.decode(slot, data)

    def _decode(self, slot: int, data: bytes) -> tuple[LogObject, int, int]:
        key = log_key(self._namespace, slot)
        log = decode_log(data, key=key, slot=slot, lsn_policy=self._lsn_policy)
        return log, log_checksum(data, key=key), len(data)
