"""What lies in a namespace's folders: one LIST of each.

Of what the head names, and of the log that it goes on from, only counts are kept. What is left are
candidates: garbage, or something that older generations, jobs and open writers still need.

The order matters. Listing comes first, reading the head that decides second: an epoch and an intent
are published before anything is uploaded under them. So that head knows the author of a
listed object, or the author can no longer publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reef.format import Manifest, dedup_key, parse_manifest_key, segment_key
from reef.gc._collection import Kind, ObjectCounter, Reason
from reef.gc._folded_slots import FENCE_BYTES, FoldedSlots
from reef.gc._names import folder_prefix, parse_segment, parse_window
from reef.log import parse_slot
from reef.store import ObjectMeta, Store


class ObjectListing:
    """What was listed, `manifest` being the head known before."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        """Ask the store. Raises UnavailableError."""
        self.namespace = manifest.namespace
        self.wal_floor = manifest.wal_floor
        """Nothing is known of the log from this slot on."""
        self.live = ObjectCounter()
        """What stays whatever becomes of the rest."""
        self.segments: dict[str, ObjectMeta] = {}
        """By id: those that the head does not name."""
        self.windows: dict[str, ObjectMeta] = {}
        self.slots = FoldedSlots(store, self.namespace)
        self.strangers: list[ObjectMeta] = []
        self._store = store
        self.strangers.extend(
            meta for _, meta in self._list("manifest") if parse_manifest_key(meta.key) is None
        )
        self._list_log(manifest)
        self._list_named(
            "segments",
            "segment",
            {s.id for s in manifest.segments if not s.namespace},
            parse_segment,
            self.segments,
        )
        self._list_named(
            "dedup",
            "dedup",
            set() if manifest.dedup is None else {manifest.dedup.id},
            parse_window,
            self.windows,
        )
        for meta in store.list(folder_prefix(self.namespace, "quarantine")):
            self.live.add("quarantine", False, Reason.QUARANTINED, meta.size)
        self.settled = self._settled(manifest)
        """Keys that waited for collection already, and whose objects are gone."""

    def _list_log(self, manifest: Manifest) -> None:
        for name, meta in self._list("wal"):
            slot = parse_slot(name)
            if slot is None:
                self.strangers.append(meta)
            elif slot >= manifest.wal_floor:
                self.live.add("log", False, Reason.LOG, meta.size)
            elif meta.size == FENCE_BYTES:
                self.live.add("log", False, Reason.FENCE, meta.size)
            else:
                self.slots.add(slot, meta)

    def _list_named(
        self,
        name: str,
        kind: Kind,
        live: set[str],
        parse: Callable[[str], str | None],
        into: dict[str, ObjectMeta],
    ) -> None:
        for file, meta in self._list(name):
            id = parse(file)
            if id is None:
                self.strangers.append(meta)
            elif id in live:
                self.live.add(kind, False, Reason.NAMED, meta.size)
            else:
                into[id] = meta

    def _list(self, name: str) -> Iterator[tuple[str, ObjectMeta]]:
        prefix = folder_prefix(self.namespace, name)
        for meta in self._store.list(prefix):
            yield meta.key[len(prefix) :], meta

    def _settled(self, manifest: Manifest) -> tuple[str, ...]:
        there = {segment_key(self.namespace, id) for id in self.segments}
        there.update(dedup_key(self.namespace, id) for id in self.windows)
        return tuple(
            waiting.key
            for waiting in manifest.gc.pending
            if waiting.key not in there and _is_listed_kind(waiting.key, self.namespace)
        )


def _is_listed_kind(key: str, namespace: str) -> bool:
    """Return whether a LIST of this survey would have shown `key`."""
    for name, parse in (("segments", parse_segment), ("dedup", parse_window)):
        prefix = folder_prefix(namespace, name)
        if key.startswith(prefix) and parse(key[len(prefix) :]) is not None:
            return True
    return False
