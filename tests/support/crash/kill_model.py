"""What the kill loop writes and what must be seen of it: every batch follows from its number.

A number is made of cycle, thread and place in the thread's row of writes, so that a process that
knows which numbers were tried and acknowledged knows every byte that has to be there. Once the LSN
of each committed batch is known, what a namespace holds at any LSN is exact; nothing is allowed for.
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right, insort
from dataclasses import dataclass, field
from functools import cache

HOT = b"hot"
POOL_KEYS = 16
PLACES = 1 << 16
THREADS = 1 << 4

Row = tuple[int, bytes]
"""The LSN and the value of a key."""


@dataclass(frozen=True)
class Batch:
    """One write: what is put and deleted, and the key by which it is found."""

    number: int
    kind: str
    puts: dict[bytes, bytes]
    deletes: tuple[bytes, ...]
    marker: bytes
    """A key that nothing else puts (rows, put), HOT (hot), or the one that only this deletes."""
    idempotency_key: bytes | None


def number_of(cycle: int, thread: int, place: int) -> int:
    """Return the number of a thread's write."""
    return (cycle * THREADS + thread) * PLACES + place


def author_of(value: bytes) -> int:
    """Return the number of the batch that wrote `value`."""
    return int(value.split(b"|", 1)[0])


def digest_of(rows: dict[bytes, Row]) -> int:
    """Return a number that stands for what is visible."""
    digest = hashlib.blake2b(repr(sorted(rows.items())).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@cache
def batch_of(seed: int, number: int) -> Batch:
    """Return the batch of that number: always the same."""
    rng = random.Random(f"{seed}/{number}")
    kind = _kind(seed, number)

    def value(key: bytes) -> bytes:
        return b"%d|%s|" % (number, key) + rng.randbytes(rng.choice((0, 20, 300)))

    key = b"i/%d/%d" % (seed, number) if rng.random() < 0.5 else None
    if kind == "delete":
        victim = b"v/%d" % (number - 1)
        return Batch(number, kind, {}, (victim,), victim, key)
    if kind == "hot":
        return Batch(number, kind, {HOT: value(HOT)}, (), HOT, key)
    marker = b"b/%d" % number
    if kind == "put":
        return Batch(number, kind, {marker: value(marker)}, (), marker, key)
    pool = [b"p/%02d" % i for i in rng.sample(range(POOL_KEYS), rng.randrange(9))]
    cut = rng.randrange(len(pool) + 1)
    keys = [marker, b"v/%d" % number, *pool[:cut], *([HOT] if rng.random() < 0.3 else [])]
    rng.shuffle(keys)
    return Batch(number, kind, {k: value(k) for k in keys}, tuple(pool[cut:]), marker, key)


def _kind(seed: int, number: int) -> str:
    drawn = _draw(seed, number)
    if drawn != "delete":
        return drawn
    # What it deletes is what the write before it has put.
    is_first = number % PLACES == 0
    return "delete" if not is_first and _draw(seed, number - 1) == "rows" else "put"


@cache
def _draw(seed: int, number: int) -> str:
    rng = random.Random(f"kind/{seed}/{number}")
    return rng.choices(["rows", "put", "hot", "delete"], [5, 2, 2, 3])[0]


@dataclass
class Model:
    """What is known of one namespace from outside: what was tried, acknowledged, seen."""

    seed: int
    acked: dict[int, int] = field(default_factory=dict)
    """Number to LSN, as its writer was told, not looked for yet."""
    open: set[int] = field(default_factory=set)
    """Tried without an answer: may be there or not."""
    gone: set[int] = field(default_factory=set)
    """Not there after another writer had taken over: can never come any more."""
    committed: dict[int, int] = field(default_factory=dict)
    """Number to LSN of all that was there; it has to stay."""
    head: int = 0
    """The newest LSN that anybody has seen."""
    _versions: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    """Key to (LSN, number), in order."""
    _lsns: list[int] = field(default_factory=list)

    def tried(self, number: int) -> None:
        """Take note that a write was begun, for the first time or again."""
        self.gone.discard(number)
        if number not in self.committed and number not in self.acked:
            self.open.add(number)

    def answered(self, number: int, lsn: int) -> str | None:
        """Take note of an acknowledgement; return what is wrong with it."""
        known = self.committed.get(number, self.acked.get(number, lsn))
        if known != lsn:
            return f"batch {number}, committed at LSN {known}, was acknowledged at {lsn}"
        if number not in self.committed:
            self.acked[number] = lsn
        self.open.discard(number)
        return None

    def commit(self, number: int, lsn: int) -> None:
        """Take note that a batch was found at `lsn`."""
        self.open.discard(number)
        self.acked.pop(number, None)
        self.committed[number] = lsn
        insort(self._lsns, lsn)
        batch = batch_of(self.seed, number)
        for key in (*batch.puts, *batch.deletes):
            insort(self._versions.setdefault(key, []), (lsn, number))

    def state(self, lsn: int) -> dict[bytes, Row]:
        """Return what is visible at `lsn`."""
        found = {}
        for key, versions in self._versions.items():
            place = bisect_right(versions, (lsn, 1 << 62))
            if place:
                at, number = versions[place - 1]
                puts = batch_of(self.seed, number).puts
                if key in puts:
                    found[key] = (at, puts[key])
        return found

    def recent(self, count: int) -> list[int]:
        """Return the numbers of the newest commits."""
        newest = set(self._lsns[-count:])
        return [number for number, lsn in self.committed.items() if lsn in newest]

    @property
    def keys(self) -> list[bytes]:
        """Every key that was ever put or deleted by what is committed."""
        return list(self._versions)
