"""The log folded by `index`, as tests run it, look at it, and compare it with a flush."""

from __future__ import annotations

from reef.format import Manifest
from reef.jobs import IndexOptions, IndexResult, InProcess
from reef.store import Store
from tests.support.engine.log_script import (
    NS,
    LogScript,
    copied,
    flush_at_once,
    folded_rows,
    versions,
)
from tests.support.engine.open_database import database
from tests.support.jobs.passes import index

ONE_EACH = IndexOptions(task_slots=1)


def run(store: Store, options: IndexOptions | None = None, *, seed: int = 9) -> IndexResult:
    context = database(store, seed=seed).context()
    return index(context, NS, InProcess(context), options=options)


def head(store: Store) -> Manifest:
    found = database(store).context().chain(NS).load()
    assert found is not None
    return found.manifest


def keys(store: Store, folder: str) -> list[str]:
    return [meta.key for meta in store.list(f"namespaces/{NS}/{folder}/")]


def check_same_as_before(
    script: LogScript, options: IndexOptions | None = None
) -> tuple[IndexResult, Manifest]:
    """Fold, and compare with what readers saw, and with what a flush of it all in one go writes."""
    store = script.store
    before = versions(store, script.lsns)
    other = copied(store)
    flushed = flush_at_once(database(other, seed=4).context())
    result = run(store, options)
    manifest = head(store)
    assert versions(store, script.lsns) == before
    assert folded_rows(store) == folded_rows(other)
    for name in ("wal_floor", "wal_anchor", "last_applied_lsn", "schema", "skipped_slots"):
        assert getattr(manifest, name) == getattr(flushed, name), name
    assert (manifest.dedup is None) == (flushed.dedup is None)
    assert not manifest.intents
    assert result.generation == manifest.generation
    return result, manifest


def strange(script: LogScript) -> None:
    """Write a log with an object of each kind, and all that may stand between them."""
    script.data({b"a": b"1"}, {b"b": b"1"}, key=b"one-")
    script.void({b"a": b"void"}, key=b"void-")
    script.void({b"a": b"void too"}, behind_void=True)
    script.data({b"a": b"2"}, sequence=7)
    script.fence()
    script.late({b"a": b"late"})
    script.data({b"c": b"3"}, key=b"two-")
    script.damaged()
    script.damaged()
    script.fence()
    script.attach({b"b": b"bulk", b"z": b"bulk"})
    script.schema()
    script.data({b"b": None, b"z": b"newer"}, extra=5)
    script.attach({b"z": b"bulk again"})
    script.void({b"z": b"void"})
    script.fence()
