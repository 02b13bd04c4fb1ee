"""What an open writer can say about its own namespace that the bucket alone does not tell.

Collection spares every unreferenced segment of the current epoch, because its writer may still
publish it. The writer knows which of them it will not.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import NamedTuple

from reef.format import Manifest


class NamedObjects(NamedTuple):
    """What one generation names of its namespace's own objects. It never changes."""

    wal_floor: int
    wal_last_seen: int
    segments: frozenset[str]
    window: str | None


@dataclass
class KnownGarbage:
    """What the open writer knows. For one thread at a time."""

    disowned: set[str] = field(default_factory=set)
    """Ids of segments and dedup windows that this writer has made by a flush or a compaction, and
    will never name again. The log attaches none of them."""
    own_slots: range = range(0)
    """Slots of the log that this writer has filled, none of them with a fence or an attach."""
    named: dict[int, NamedObjects] = field(default_factory=dict)
    """What generations name, so that each collection reads only those that it does not know."""


def named_objects(manifest: Manifest) -> NamedObjects:
    """Return what a manifest names. Generations share the ids."""
    return NamedObjects(
        manifest.wal_floor,
        manifest.wal_last_seen,
        frozenset(sys.intern(s.id) for s in manifest.segments if not s.namespace),
        None if manifest.dedup is None else manifest.dedup.id,
    )
