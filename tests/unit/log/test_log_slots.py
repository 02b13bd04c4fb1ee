"""The slots of a log, by its file names."""

from __future__ import annotations

from reef.log import list_slots, parse_slot
from reef.store import MemoryStore


def test_names() -> None:
    assert parse_slot(f"{7:020d}.wal") == 7
    assert parse_slot(f"{0:020d}.wal") is None
    assert parse_slot(f"{7:019d}.wal") is None


def test_only_log_objects_are_listed() -> None:
    store = MemoryStore()
    for name in (f"{7:020d}.wal", f"{8:020d}.wal", f"{9:019d}.wal", "notes", f"deep/{10:020d}.wal"):
        store.put_if_absent(f"namespaces/ns/wal/{name}", b"x" * len(name))
    assert list_slots(store, "ns") == {7: 24, 8: 24}
