"""Records of passes: one small object for each in the bucket, for people and for dashboards.

A pass is recorded when it ends; what a killed driver was doing shows in the intents that it leaves.
The names are ULIDs, so that they sort by time. Nothing depends on records: they may be deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from reef.errors import CorruptError, InvalidInputError, NotFoundError
from reef.store import Store

PREFIX = "jobs/"
KEPT = 1000
NAMESPACES_MAX = 10_000
"""Namespaces in one record at most; its totals are of all of them."""

State = Literal["done", "idle", "failed"]


class NamespaceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pass did in one namespace."""

    namespace: str
    state: State
    """idle: there was nothing to do."""
    generation: int | None = None
    """The last generation that it published."""
    figures: dict[str, int] = {}
    error: str = ""


class PassRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over some namespaces."""

    id: str
    kind: str
    author: str
    started_at_us: int
    seconds: float
    options: dict[str, Any]
    totals: dict[str, int]
    """Rows, bytes and objects by name, of all namespaces together."""
    tasks: int
    task_seconds: float
    task_peak_bytes: int
    """The most memory that any task's process had."""
    states: dict[State, int]
    """How many namespaces ended in each state."""
    namespaces: tuple[NamespaceRecord, ...]
    """Failed ones first, then those where something was done; at most 10,000, no idle ones."""


def record_pass(store: Store, record: PassRecord) -> None:
    """Write the record of a pass. Raises UnavailableError."""
    store.upload(f"{PREFIX}{record.id}.json", [msgspec.json.encode(record)])


def passes(store: Store, limit: int | None = None) -> Iterator[PassRecord]:
    """Yield the records of passes, newest first. Raises CorruptError for one that cannot be read."""
    keys = [meta.key for meta in store.list(PREFIX) if meta.key.endswith(".json")]
    for key in reversed(keys if limit is None else keys[-limit:]):
        try:
            yield _decoded_record(key, store.get(key))
        except NotFoundError:
            continue  # deleted in the meantime


def find_pass(store: Store, id: str) -> PassRecord:
    """Return the record of one pass. Raises NotFoundError, InvalidInputError."""
    if not id.isalnum():
        raise InvalidInputError(f"{id!r} is not the id of a pass; `reef jobs list` shows the ids")
    key = f"{PREFIX}{id.upper()}.json"
    try:
        return _decoded_record(key, store.get(key))
    except NotFoundError:
        raise NotFoundError(
            f"there is no pass {id!r} in {store.url}: see `reef jobs list`"
        ) from None


def old_passes(store: Store) -> list[str]:
    """Return the keys of the records beyond the newest 1,000."""
    keys = [meta.key for meta in store.list(PREFIX)]
    return keys[:-KEPT]


def _decoded_record(key: str, data: bytes) -> PassRecord:
    try:
        return msgspec.json.decode(data, type=PassRecord)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptError(key, 0, "the record of a pass", str(error)) from error
