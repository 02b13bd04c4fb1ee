"""A bucket with a past, whose manifests are deleted while a writer sleeps: a story by one seed."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

from reef import jobs
from reef.database import Database
from reef.documents import Documents
from reef.engine import Context
from reef.errors import ReefError
from reef.gc import collect
from reef.jobs import (
    CompactionOptions,
    IndexOptions,
    InProcess,
    NamespaceResult,
    RebuildOptions,
    RebuildResult,
    bulk_load,
)
from reef.store import MemoryStore, Store
from reef.testing import ManualClock
from tests.support.jobs.dying_tasks import Killed, Mortal

ROOT, BRANCH = "items", "b"
CHILD = f"{ROOT}@{BRANCH}"
_CUT = IndexOptions(task_slots=3, memory_bytes=600)
_SETTINGS = {"flush_interval": 0, "gc_grace": 10, "retained_generations": 1, "row_block_bytes": 400}

Rows = dict[str, dict[str, Any]]


class LostManifests:
    """A namespace and a branch of it, and what each must hold."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.models: dict[str, Rows] = {ROOT: {}}
        self.writers: dict[str, Documents] = {ROOT: self.open(ROOT)}
        self.told: list[str] = []
        self._names = 0

    def db(self, store: Store | None = None) -> Database:
        rng = random.Random(self.rng.random())
        return Database(store or self.store, clock=self.clock, rng=rng, **_SETTINGS)

    def open(self, name: str, store: Store | None = None) -> Documents:
        root, _, branch = name.partition("@")
        return self.db(store).namespace(root, branch=branch or None)

    def step(self) -> None:
        """Do one thing, to any of the namespaces."""
        name = self.rng.choice([*self.models])
        do = self.rng.choice(
            [self.write] * 4
            + [self.flush] * 3
            + [self.fold, self.load, self.alter, self.branch, self.snapshot, self.killed_flush]
            + [self.reopen, self.killed_load, self.killed_pass, self.drop]
            + [self.compact] * 3
            + [self.collect] * 3
        )
        self.told.append(f"{do.__name__} {name}")
        self.clock.advance(1)
        do(name)

    def write(self, name: str) -> None:
        rng, rows = self.rng, self.models[name]
        for _ in range(rng.randrange(1, 4)):
            known = self.writers[name].schema
            upserts = []
            for id in sorted({f"i{rng.randrange(30):02d}" for _ in range(3)}):
                names = [n for n in (*known, "a") if rng.random() < 0.6]
                upserts.append({"id": id, **{n: rng.randrange(1000) for n in names if n != "id"}})
            written = {str(row["id"]) for row in upserts}
            gone = [id for id in rng.sample(sorted(rows), min(2, len(rows))) if id not in written]
            self.writers[name].write(upserts=upserts, deletes=gone)
            for row in upserts:
                rows[str(row["id"])] = {n: v for n, v in row.items() if n != "id"}
            for id in gone:
                del rows[id]

    def flush(self, name: str) -> None:
        self.writers[name].flush()

    def fold(self, name: str) -> None:
        jobs.index(self.context(), name, options=_CUT)

    def compact(self, name: str) -> None:
        options = self.rng.choice(
            [
                CompactionOptions(full=True),
                CompactionOptions(min_input_files=2, target_size_bytes=2000),
                CompactionOptions(min_input_files=2, target_size_bytes=1500, max_bytes=4000),
                CompactionOptions(min_input_files=2, target_size_bytes=900, group_size_bytes=900),
            ]
        )
        jobs.compact(self.context(), name, options=options)

    def load(self, name: str) -> None:
        rows = [{"id": f"i{n:02d}", "a": self.rng.randrange(1000)} for n in range(5, 12)]
        self._names += 1
        writer = self.writers[name]
        if "a" in writer.schema or not self.models[name]:
            bulk_load(self.db(), writer, rows, job_key=f"load-{self._names}", target_bytes=900)
            self.models[name] |= {row["id"]: {"a": row["a"]} for row in rows}

    def killed_load(self, name: str) -> None:
        """A load that uploads, and dies before or in its commit: which of them is seen afterwards."""
        rows = [{"id": f"i{n:02d}", "a": -1} for n in range(20, 25)]
        self._names += 1
        if "a" not in self.writers[name].schema:
            return
        mortal = Mortal(self.store, self.rng.randrange(2, 5), is_sent=True, among=("upload",))
        self._begun(lambda: bulk_load(self.db(mortal), name, rows, job_key=f"dead-{self._names}"))
        self.reopen(name)

    def killed_pass(self, name: str) -> None:
        """A pass that dies somewhere: its intent may stand, and its segments may be left."""
        at = self.rng.randrange(1, 12)
        mortal = Mortal(self.store, at, is_sent=self.rng.random() < 0.5, among=("upload",))
        context = self.db(mortal).context()
        options = CompactionOptions(min_input_files=2, target_size_bytes=900)
        if self.rng.random() < 0.5:
            self._begun(lambda: jobs.compact(context, name, options=options))
        else:
            self._begun(lambda: jobs.index(context, name, options=_CUT))

    def killed_flush(self, name: str) -> None:
        """A writer that dies after it has uploaded: what it committed is in the log."""
        self.writers[name].close()
        mortal = Mortal(self.store, 1, is_sent=True, among=("upload",))
        self.writers[name] = self.open(name, mortal)
        self.write(name)
        self._begun(self.writers[name].flush)
        self.writers[name] = self.open(name)

    def reopen(self, name: str) -> None:
        with suppress(ReefError):
            self.writers[name].close()
        self.writers[name] = self.open(name)
        self.models[name] = self.rows(name)

    def alter(self, name: str) -> None:
        writer, rows = self.writers[name], self.models[name]
        gone = [n for n in writer.schema if n not in ("id", "a")]
        if gone and self.rng.random() < 0.5:
            writer.alter(drop=gone[:1])
            for row in rows.values():
                row.pop(gone[0], None)
        elif len(gone) < 3:
            self._names += 1
            writer.alter(add={f"x{self._names}": "int64"})

    def branch(self, name: str) -> None:
        if name == ROOT and CHILD not in self.models:
            self.writers[ROOT].branch(BRANCH)
            self.models[CHILD] = {id: dict(row) for id, row in self.models[ROOT].items()}
            self.writers[CHILD] = self.open(CHILD)

    def snapshot(self, name: str) -> None:
        self.writers[name].snapshot(ttl=self.rng.choice([5, 1000]))

    def drop(self, name: str) -> None:
        """Drop the branch; or the namespace, to begin another one of its name."""
        if name == ROOT and (CHILD in self.models or self.rng.random() < 0.5):
            return
        self.writers.pop(name).close()
        root, _, branch = name.partition("@")
        self.db().drop(root, branch=branch or None)
        del self.models[name]
        if name == ROOT:
            self.collect(name)
            self.models[ROOT] = {}
            self.writers[ROOT] = self.open(ROOT)
            self.write(ROOT)
        else:
            self.clock.advance(50)
            self.collect(CHILD)
            self.collect(ROOT)

    def collect(self, name: str) -> None:
        self.clock.advance(self.rng.choice([0, 20]))
        for _ in range(2):
            self.clock.advance(6)
            context = self.context()
            chain = context.chain(name)
            collect(chain, self.store, settings=context.settings, clock=self.clock, apply=True)

    def _begun(self, do: Any) -> None:
        with suppress(Killed, ReefError):
            do()

    def context(self) -> Context:
        return self.db().context()

    # The end.

    def lose(self, name: str) -> None:
        for meta in [*self.store.list(f"namespaces/{name}/manifest/")]:
            self.store.delete(meta.key)

    def rebuild(self, name: str, *, assume_live: bool = False) -> NamespaceResult[RebuildResult]:
        context = self.context()
        options = RebuildOptions(assume_live=assume_live)
        result = jobs.rebuild(context, name, runner=InProcess(context), options=options)
        return result.namespaces[0]

    def rows(self, name: str) -> Rows:
        root, _, branch = name.partition("@")
        with self.db().namespace(root, branch=branch or None, mode="r") as ns:
            return {
                row.pop("id"): {n: v for n, v in row.items() if v is not None}
                for batch in ns.scan()
                for row in batch.to_pylist()
            }
