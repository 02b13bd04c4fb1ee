"""Figures on the storage of a namespace, from LISTs and the manifest alone."""

from __future__ import annotations

from typing import Any

from reef.doctor._newest_readable import newest_readable_manifest
from reef.engine import Context, durable_settings
from reef.errors import FormatVersionError, NotFoundError, UnavailableError
from reef.format import Manifest, parse_manifest_key
from reef.log import list_slots
from reef.manifest import ManifestReader, longest_grace_ms, no_namespace
from reef.store import ObjectMeta
from reef.types import check_namespace

MANIFESTS_GONE = "manifests gone"
"""The state of a namespace that has objects and no manifest."""

LISTINGS_MAX = 10
FOLDERS = ("manifest", "wal", "segments", "dedup", "quarantine")


def storage_stats(context: Context, namespace: str) -> dict[str, Any]:
    """Return how many objects and bytes a namespace has, and what its newest readable manifest says.

    Its state is MANIFESTS_GONE if objects are left, and no manifest. Raises NotFoundError if there is
    no such namespace, FormatVersionError, UnavailableError.
    """
    check_namespace(namespace)
    for _ in range(LISTINGS_MAX):
        listed = {folder: _list_folder(context, namespace, folder) for folder in FOLDERS}
        manifests = [
            meta for meta in listed["manifest"] if parse_manifest_key(meta.key) is not None
        ]
        objects = {
            folder: {"objects": len(metas), "bytes": sum(meta.size for meta in metas)}
            for folder, metas in listed.items()
        }
        if not manifests:
            if ManifestReader(context.store, namespace).left_behind() is None:
                raise no_namespace(context.store.url, namespace)
            return {
                "namespace": namespace,
                "objects": objects,
                "damaged": [],
                "state": MANIFESTS_GONE,
            }
        manifest, unreadable = newest_readable_manifest(context.store, manifests)
        if any(isinstance(error, NotFoundError) for error in unreadable.values()):
            continue  # collected since it was listed: there are newer ones
        for error in unreadable.values():
            if isinstance(error, FormatVersionError):
                raise error
        about: dict[str, Any] = {
            "namespace": namespace,
            "objects": objects,
            "damaged": sorted(unreadable),
        }
        return about | (_figures(context, manifest) if manifest is not None else {})
    raise UnavailableError(
        f"the newest manifest of namespace {namespace!r} was listed but not there, {LISTINGS_MAX} "
        "times in a row: retry"
    )


def _list_folder(context: Context, namespace: str, folder: str) -> list[ObjectMeta]:
    return [*context.store.list(f"namespaces/{namespace}/{folder}/")]


def _figures(context: Context, m: Manifest) -> dict[str, Any]:
    levels: dict[int, dict[str, int]] = {}
    # Of a segment there may be several references, each to some of its keys: it is one object.
    segments = {(ref.namespace, ref.id): ref for ref in m.segments}.values()
    for ref in segments:
        level = levels.setdefault(ref.level, dict.fromkeys(("segments", "rows", "bytes"), 0))
        level["segments"] += 1
        level["rows"] += ref.rows
        level["bytes"] += ref.size
    slots = list_slots(context.store, m.namespace)
    unfolded = [size for slot, size in slots.items() if slot >= m.wal_floor]
    return {
        "generation": m.generation,
        "state": m.state,
        "lsn_policy": m.lsn_policy,
        "writer_epoch": m.writer_epoch,
        "compactor_epoch": m.compactor_epoch,
        "max_parallel_writes": m.max_parallel_writes,
        "writer": None
        if m.lease is None
        else {
            "holder": m.lease.holder,
            "host": m.lease.host,
            "opened_at_us": m.lease.opened_at_us,
        },
        "wal_floor": m.wal_floor,
        "last_applied_lsn": m.last_applied_lsn,
        "unfolded_log": {"slots": len(unfolded), "bytes": sum(unfolded)},
        "levels": {str(number): levels[number] for number in sorted(levels)},
        "rows": sum(ref.rows for ref in segments),
        "tombstones": sum(ref.tombstones for ref in segments),
        "snapshots": len(m.snapshots),
        "pins": len(m.pins),
        "intents": len(m.intents),
        "settings": durable_settings(m),
        "retention_floor_lsn": m.retention.floor_lsn,
        "pitr_window_ms": m.retention.pitr_window_ms,
        "gc": {
            "pending": len(m.gc.pending),
            "boundary_slot": m.gc.boundary.slot,
            "boundary_generation": m.gc.boundary.generation,
            "grace_ms": m.gc.grace_ms,
            "longest_grace_ms": longest_grace_ms(m.gc),
        },
    }
