"""The answer to a write: the version of its batch, and the outcome of each row."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from reef.errors import CorruptError

OUTCOMES = ("written", "deleted", "exists", "missing", "differs", "not applied")
"""By code. The first two mean success; the next three say why a condition failed; the last is a row
that was not applied because another one of its batch failed."""
WRITTEN, DELETED, EXISTS, MISSING, DIFFERS, NOT_APPLIED = range(len(OUTCOMES))


@dataclass(frozen=True)
class Receipt:
    """A durable commit: no later crash can lose it."""

    lsn: int
    """The version at which it is visible; readers given this as `min_lsn` see it."""
    codes: bytes = field(repr=False)
    """A code for each row of the request, in its order; see `outcomes`."""
    replayed: bool = field(default=False, compare=False)
    """Nothing was written: this is the receipt of an earlier request of the same key."""

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcome of each row: puts first, then deletes, in the order given."""
        return tuple(map(OUTCOMES.__getitem__, self.codes))

    @property
    def applied(self) -> int:
        """How many rows were written or deleted."""
        return self.codes.count(WRITTEN) + self.codes.count(DELETED)


CODES_MAX = 1 << 28
"""A batch of more rows than that does not fit into a log record: each takes four bytes."""

# The log and the dedup window keep codes packed: mostly, all codes of a batch are alike.
_PLAIN, _RUNS = b"\0", b"\1"


def pack_codes(codes: bytes) -> bytes:
    """Return `codes` as they are kept: themselves, or their runs if that is shorter."""
    if not codes:
        return _PLAIN
    found = np.frombuffer(codes, np.uint8)
    starts = np.flatnonzero(np.append(True, found[1:] != found[:-1]))
    if 5 * len(starts) >= len(codes):
        return _PLAIN + codes
    lengths = np.diff(np.append(starts, len(found))).astype("<u4")
    return _RUNS + lengths.tobytes() + found[starts].tobytes()


def unpack_codes(packed: bytes) -> bytes:
    """Return the codes that `pack_codes` was given. Raises CorruptError for more than there can be."""
    if packed[:1] != _RUNS:
        return packed[1:]
    runs = (len(packed) - 1) // 5
    lengths = np.frombuffer(packed, "<u4", runs, 1)
    if (count := int(lengths.sum(dtype=np.int64))) > CODES_MAX:
        raise CorruptError("", 1, f"the outcomes of at most {CODES_MAX} rows", f"{count}")
    return np.repeat(np.frombuffer(packed, np.uint8, runs, 1 + 4 * runs), lengths).tobytes()
