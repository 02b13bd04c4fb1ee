"""A namespace with a past, and `rebuild` of it: afterwards all reads the same as before."""

from __future__ import annotations

import random

from reef.database import Database
from reef.doctor import verify
from reef.engine import Context
from reef.errors import RetentionError
from reef.format import Manifest, segment_key
from reef.jobs import IndexOptions, InProcess, RebuildOptions, RebuildResult, VerifyOptions
from reef.kv import KeyValue
from reef.store import MemoryStore, Store
from reef.testing import ManualClock
from tests.support.engine.collecting import HookedStore, collect_garbage
from tests.support.engine.log_script import NS
from tests.support.jobs.compactor import Compactor
from tests.support.jobs.passes import index, rebuild

CUT = RebuildOptions(
    fold=IndexOptions(task_slots=2, memory_bytes=400), verify=VerifyOptions(task_bytes=500)
)
SETTINGS = {
    "maintenance": "off",
    "flush_interval": 0,
    "gc_grace": 0,
    "retained_generations": 1,
    "row_block_bytes": 500,
}


class RebuildWorld:
    """A namespace that is written, folded, compacted and collected, and all that it must hold."""

    def __init__(self, seed: int = 1, **settings: object) -> None:
        self.clock = ManualClock()
        self.store = HookedStore(MemoryStore(clock=self.clock))
        self.rng = random.Random(seed)
        self.settings = {**SETTINGS, **settings}
        self.model: dict[int, dict[bytes, bytes]] = {0: {}}
        self.requests: dict[str, tuple[dict[bytes, bytes], list[bytes], int]] = {}
        self.kv: KeyValue = self.db().kv(NS)

    def db(self) -> Database:
        return Database(
            self.store, clock=self.clock, rng=random.Random(self.rng.random()), **self.settings
        )

    def write(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(1)
            newest = self.model[max(self.model)]
            puts = {b"k%02d" % self.rng.randrange(40): self.rng.randbytes(20) for _ in range(4)}
            known = sorted(newest.keys() - puts.keys())
            deletes = self.rng.sample(known, min(2, len(known)))
            key = f"request-{len(self.requests)}"
            lsn = self.kv.write(puts, deletes, idempotency_key=key).lsn
            self.requests[key] = (puts, deletes, lsn)
            rows = {**newest, **puts}
            self.model[lsn] = {k: v for k, v in rows.items() if k not in deletes}

    def flush(self, times: int = 1, writes: int = 3) -> None:
        for _ in range(times):
            self.write(writes)
            self.kv.flush()

    def fold(self) -> None:
        context = self.db().context()
        index(context, NS, InProcess(context), options=IndexOptions(task_slots=2))

    def compact(self, *, floor: int | None = None, newest: int | None = None) -> None:
        compactor = Compactor(self.db().context(), NS)
        compactor.run(floor_lsn=floor, choose=lambda runs: runs[:newest], cuts=2)

    def collect(self) -> None:
        self.clock.advance(10)
        for _ in range(3):
            context = self.db().context()
            collect_garbage(context, NS)

    @property
    def manifest(self) -> Manifest:
        head = self.db().context().chain(NS).load()
        assert head is not None
        return head.manifest

    def keys(self, folder: str) -> list[str]:
        return [meta.key for meta in self.store.list(f"namespaces/{NS}/{folder}/")]

    def reads(self) -> dict[int | str, dict[bytes, bytes] | None]:
        """Return what a fresh reader sees at every version and snapshot; None: not any more."""
        found: dict[int | str, dict[bytes, bytes] | None] = {}
        with self.db().kv(NS, mode="r") as kv:
            for lsn in self.model:
                try:
                    found[lsn] = dict(kv.at(lsn=lsn).items())
                except RetentionError:
                    found[lsn] = None
            for snapshot in self.manifest.snapshots:
                found[snapshot.id] = dict(kv.at(snapshot=snapshot.id).items())
        return found

    def check_reads(self) -> dict[int | str, dict[bytes, bytes] | None]:
        found, manifest = self.reads(), self.manifest
        for lsn, rows in self.model.items():
            expected = rows if lsn >= manifest.retention.floor_lsn else None
            assert found[lsn] == expected, lsn
        for snapshot in manifest.snapshots:
            assert found[snapshot.id] == self.model[snapshot.lsn]
        return found

    def rebuild(self, options: RebuildOptions | None = None) -> RebuildResult:
        context = self.db().context()
        return rebuild(context, NS, InProcess(context), options=options)

    def check_rebuild(self, options: RebuildOptions | None = CUT) -> RebuildResult:
        """Rebuild, and check that nothing that anybody can see is another."""
        before, reads = self.manifest, self.reads()
        result = self.rebuild(options)
        after = self.manifest
        self.check_reads()
        assert self.reads() == reads
        report = verify(self.db().context(), NS, deep=True)
        assert report.problems == ()
        for name in Manifest.__struct_fields__:
            if name not in _DERIVED:
                assert getattr(after, name) == getattr(before, name), name
        assert after.wal_last_seen >= before.wal_last_seen
        assert not after.intents
        if result.generation is not None:
            assert result.generation == after.generation
            assert {*after.segments} == {*result.segments, *result.kept}
            gone = {segment_key(NS, ref.id) for ref in result.replaced}
            assert gone <= {waiting.key for waiting in after.gc.pending}
        self.check_requests()
        return result

    def check_requests(self) -> None:
        """Check that a writer that opens now recognises requests, and does not repeat them."""
        self.kv.close()
        self.kv = self.db().kv(NS)
        for key, (puts, deletes, lsn) in self.requests.items():
            receipt = self.kv.write(puts, deletes, idempotency_key=key)
            assert (receipt.lsn, receipt.replayed) == (lsn, True)

    def lose(self, *keys: str) -> None:
        for key in keys:
            self.store.inner.delete(key)


_DERIVED = {
    "generation",
    "nonce",
    "author",
    "created_at_us",
    "predecessor_checksum",
    "segments",
    "dedup",
    "gc",
    "wal_last_seen",
}


def fresh_context(store: Store) -> Context:
    return Database(store, rng=random.Random(3), **SETTINGS).context()
