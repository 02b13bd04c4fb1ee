"""Figures of one open namespace, for people and programs."""

from __future__ import annotations

from typing import Any

from reef.engine._handle import Handle
from reef.engine._writer import Writer


def namespace_stats(handle: Handle) -> dict[str, Any]:
    """Return what a handle knows without asking the store."""
    manifest, tail = handle.manifest, handle.tail
    levels: dict[int, dict[str, int]] = {}
    # Of a segment there may be several references, each to some of its keys: it is one object.
    for ref in {(ref.namespace, ref.id): ref for ref in manifest.segments}.values():
        level = levels.setdefault(
            ref.level, {"segments": 0, "rows": 0, "tombstones": 0, "bytes": 0}
        )
        level["segments"] += 1
        level["rows"] += ref.rows
        level["tombstones"] += ref.tombstones
        level["bytes"] += ref.size
    return {
        "namespace": handle.namespace,
        "mode": "w" if isinstance(handle, Writer) else "r",
        "lsn": handle.lsn,
        "generation": manifest.generation,
        "writer_epoch": manifest.writer_epoch,
        "compactor_epoch": manifest.compactor_epoch,
        "wal_floor": manifest.wal_floor,
        "next_slot": tail.fold.next_slot,
        "unfolded_log": {"slots": tail.log_slots, "bytes": tail.log_bytes},
        "memtable": {"rows": tail.memtable.rows, "bytes": tail.memtable.nbytes},
        "levels": {str(number): levels[number] for number in sorted(levels)},
        "last_applied_lsn": manifest.last_applied_lsn,
        "retention_floor_lsn": manifest.retention.floor_lsn,
        "pitr_window_ms": manifest.retention.pitr_window_ms,
        "snapshots": len(manifest.snapshots),
        "pins": len(manifest.pins),
        "intents": len(manifest.intents),
        "gc": {
            "pending": len(manifest.gc.pending),
            "boundary_slot": manifest.gc.boundary.slot,
            "boundary_generation": manifest.gc.boundary.generation,
            "grace_ms": manifest.gc.grace_ms,
        },
    }
