"""The history of passes: one small object for each in the bucket, for people and for dashboards.

A pass is recorded when it ends; what a killed driver was doing shows in the intents that it leaves.
The names are ULIDs, so that they sort by time. Nothing depends on them: they may be deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from reef.engine import Context, face_of, newest_manifest, open_for_writing
from reef.errors import CorruptError, InvalidInputError, NotFoundError
from reef.format import Intent, Manifest, manifest_key
from reef.jobs._load._load import KIND as LOAD
from reef.jobs._load._load import close_load
from reef.manifest import Head, end_intent
from reef.store import Store
from reef.types import check_namespace

PREFIX = "jobs/"
KEPT = 1000
NAMESPACES_MAX = 10_000
"""Of one pass; the totals are of all of them."""

State = Literal["done", "idle", "failed"]


class NamespaceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pass did in one namespace."""

    namespace: str
    state: State
    """idle: there was nothing to do."""
    generation: int | None = None
    """The last one that it published."""
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
    """How many namespaces ended how."""
    namespaces: tuple[NamespaceRecord, ...]
    """Those that failed first, then those where something was done; at most 10,000, no idle ones."""


def record_pass(store: Store, record: PassRecord) -> None:
    """Keep the record of a pass. Raises UnavailableError."""
    store.upload(f"{PREFIX}{record.id}.json", [msgspec.json.encode(record)])


def passes(store: Store, limit: int | None = None) -> Iterator[PassRecord]:
    """Yield the newest passes first. Raises CorruptError for a record that is none."""
    keys = [meta.key for meta in store.list(PREFIX) if meta.key.endswith(".json")]
    for key in reversed(keys if limit is None else keys[-limit:]):
        try:
            yield _decoded(key, store.get(key))
        except NotFoundError:
            continue  # collected meanwhile


def find_pass(store: Store, id: str) -> PassRecord:
    """Return the record of one pass. Raises NotFoundError, InvalidInputError."""
    if not id.isalnum():
        raise InvalidInputError.of("id", id, "the id of a pass, as `reef jobs list` shows it")
    key = f"{PREFIX}{id.upper()}.json"
    try:
        return _decoded(key, store.get(key))
    except NotFoundError:
        raise NotFoundError(
            f"there is no pass {id!r} in {store.url}: see `reef jobs list`"
        ) from None


def old_passes(store: Store) -> list[str]:
    """Return the keys of the records beyond the newest 1,000."""
    keys = [meta.key for meta in store.list(PREFIX)]
    return keys[:-KEPT]


def standing_intents(context: Context, namespace: str) -> tuple[Intent, ...]:
    """Return the jobs that may still publish in a namespace, or that were killed.

    Raises NotFoundError if there is no such namespace.
    """
    return newest_manifest(context, namespace).intents


def end_job(context: Context, namespace: str, id: str) -> int:
    """End a job of anybody's, and return the generation that says so.

    It cannot publish from then on, and collection may take what it wrote. A load publishes through the
    log: to end one takes the writer's place first, so that a commit on its way gets its slot before
    or not at all, and its tasks do not register it again. Raises NotFoundError.
    """
    manifest = newest_manifest(context, namespace)
    if any(intent.id == id and intent.kind == LOAD for intent in manifest.intents):
        close_load(context, namespace, id)
        open_for_writing(context, namespace, face_of(manifest)).close()

    def ended(head: Head | None) -> Manifest:
        return end_intent(manifest if head is None else head.manifest, id)

    return context.chain(check_namespace(namespace)).publish(ended).generation


def end_old_jobs(context: Context, namespace: str, seconds: float) -> list[tuple[Intent, int]]:
    """End the jobs that stand for longer than that; return each with the generation that says so.

    A job is as old as the generation that registered it, by the store's clock, or as it says itself:
    whichever makes it younger. "Now" is this machine's. Each is ended as `end_job` does. Raises
    NotFoundError if there is no such namespace.
    """
    before_us = context.clock.now_us() - round(seconds * 1_000_000)
    ended = []
    for intent in standing_intents(context, namespace):
        if _since_us(context, namespace, intent) > before_us:
            continue
        try:
            ended.append((intent, end_job(context, namespace, intent.id)))
        except NotFoundError:
            continue  # it has ended by itself meanwhile
    return ended


def _since_us(context: Context, namespace: str, intent: Intent) -> int:
    try:
        meta = context.store.head(manifest_key(namespace, intent.generation))
    except NotFoundError:
        return intent.opened_at_us  # collected since
    return max(intent.opened_at_us, meta.last_modified_us)


def _decoded(key: str, data: bytes) -> PassRecord:
    try:
        return msgspec.json.decode(data, type=PassRecord)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptError(key, 0, "the record of a pass", str(error)) from error
