"""Reading the log: slots are fetched many at once and decided in order.

There is no LIST: the first slot that is absent ends the log. With several writes in flight a
later slot may exist already; it counts when the gap before it is filled. Objects that lie further
behind an absent slot than that are the sign of a hole. They are found by *probes*: GETs beyond the
slots that are asked for, side by side with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reef.errors import DamagedError, NotFoundError, UnreadableError
from reef.format import LogObject, LsnPolicy, damaged_checksum, decode_log, log_checksum, log_key
from reef.log._replay import Damaged, LogEntry, Replay
from reef.store import Store
from reef.types import SLOT_MAX

WINDOW_SLOTS_MAX = 16
_PROBED_MAX = 1024  # slots behind a window; a log of that length is flushed, by default
_KEPT_BYTES_MAX = 1 << 20  # of an object that a probe found; a larger one is fetched again


class LogReader:
    """Fetches and checks the log objects of one namespace."""

    def __init__(self, store: Store, namespace: str, lsn_policy: LsnPolicy) -> None:
        self._store = store
        self._namespace = namespace
        self._lsn_policy: LsnPolicy = lsn_policy

    def read(self, replay: Replay, *, last_known: int = 0, parallel: int = 0) -> Iterator[LogEntry]:
        """Take `replay` up to the first absent slot, yielding each object as it is decided.

        `last_known` is a slot up to which the log is known to reach: that much is fetched at
        once. After that the window doubles, so that at most as much is asked for in vain as was
        found. `parallel` is how many objects a writer may have in flight: with it, probes look for
        others, and `replay.ahead` has what they found. Raises CorruptError, UnavailableError,
        FormatVersionError.
        """
        replay.look_again()
        replay.ahead = ()
        probed = _Probed(parallel)
        window = max(1, last_known + 2 - replay.reach)
        while True:
            first = replay.reach
            slots = range(first, first + min(window, WINDOW_SLOTS_MAX))
            objects = self._fetch(slots, probed)
            for slot, data in zip(slots, objects, strict=True):
                if data is None:
                    if parallel:
                        there = [at for at, one in zip(slots, objects, strict=True) if one]
                        replay.ahead = tuple(at for at in (*there, *probed.found) if at > slot)
                    return
                decoded = self.decode(slot, data)
                if isinstance(decoded, Damaged):
                    replay.add_damaged(decoded)
                else:
                    yield replay.add(*decoded)
            last_known = max([last_known, *probed.found])
            window = max(2 * len(slots), last_known + 2 - replay.reach)

    def look_ahead(self, slot: int, parallel: int) -> tuple[int, ...]:
        """Return the slots behind `slot` in which probes find something; none if it is not absent."""
        probed = _Probed(parallel)
        (data,) = self._fetch(range(slot, slot + 1), probed)
        return tuple(probed.found) if data is None else ()

    def has_object(self, slot: int) -> bool:
        """Return whether a slot has a log object of its own, and not something else of that name."""
        try:
            return not isinstance(self.decode(slot, self._store.get(self._key(slot))), Damaged)
        except (NotFoundError, UnreadableError):
            return False

    def decode(self, slot: int, data: bytes) -> tuple[LogObject, int, int] | Damaged:
        """Return a log object, its checksum and its size; one that can't be read is fetched again.

        Raises FormatVersionError if it is whole but of another version, also the second time.
        """
        try:
            return self._decode(slot, data)
        except UnreadableError:
            again = self._store.get(self._key(slot))
        try:
            return self._decode(slot, again)
        except DamagedError as error:
            return Damaged(slot, damaged_checksum(again), error)

    def _fetch(self, slots: range, probed: _Probed) -> list[bytes | None]:
        """Return the objects in `slots`; probe behind them, side by side, where that is due."""
        probes = probed.due(slots.stop)
        wanted = [slot for slot in slots if slot not in probed.kept]
        objects = iter(self._store.get_many([*map(self._key, (*wanted, *probes))]))
        found = [probed.kept.pop(slot) if slot in probed.kept else next(objects) for slot in slots]
        probed.take(probes, objects)
        return found

    def _decode(self, slot: int, data: bytes) -> tuple[LogObject, int, int]:
        key = self._key(slot)
        log = decode_log(data, key=key, slot=slot, lsn_policy=self._lsn_policy)
        return log, log_checksum(data, key=key), len(data)

    def _key(self, slot: int) -> str:
        return log_key(self._namespace, slot)


class _Probed:
    """The probes of one reading of the log: each slot is probed once, and what was found is kept."""

    def __init__(self, parallel: int) -> None:
        self._parallel = parallel
        self.found: list[int] = []
        self.kept: dict[int, bytes] = {}
        """What was found and is small: the window that comes to it need not fetch it again."""
        self._absent: list[int] = []

    def due(self, stop: int) -> list[int]:
        """Return the slots to probe with a window that ends before `stop`.

        As many as a writer may have in flight, so that behind each slot of the window all of those are
        looked at, and the first that proves a hole; then doubling distances, unless an earlier probe
        found nothing nearby. None if the log is known to reach beyond the window.
        """
        parallel = self._parallel
        if not parallel or any(slot >= stop - 1 + parallel for slot in self.found):
            return []
        probes = [*range(stop, stop + parallel)]
        distance = 2 * parallel
        while distance <= _PROBED_MAX:
            slot = stop - 1 + distance
            if not any(2 * abs(slot - absent) < distance for absent in self._absent):
                probes.append(slot)
            distance *= 2
        done = {*self.found, *self._absent}
        return [slot for slot in probes if slot <= SLOT_MAX and slot not in done]

    def take(self, slots: Sequence[int], objects: Iterable[bytes | None]) -> None:
        """Take note of what probes found."""
        for slot, data in zip(slots, objects, strict=True):
            if data is None:
                self._absent.append(slot)
                continue
            self.found.append(slot)
            if len(data) <= _KEPT_BYTES_MAX:
                self.kept[slot] = data
