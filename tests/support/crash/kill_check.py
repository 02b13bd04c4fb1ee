"""What a fresh process looks for after a kill: everything that has to be there, and nothing else."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from reef.database import Database
from reef.engine import Receipt, View
from reef.errors import IdempotencyError, NotFoundError
from reef.kv import KeyValue
from tests.support.crash.kill_jobs import collect_once
from tests.support.crash.kill_model import HOT, Batch, Model, Row, author_of, batch_of
from tests.support.engine.open_handles import handle_of

PAST_VIEWS = 1


class Findings(NamedTuple):
    """What was found, for the supervisor."""

    head: int
    committed: list[tuple[int, int]]
    """Number and LSN of batches that are there, and were not known to be."""
    gone: list[int]
    """Batches that are not there and can't come any more: a writer has taken over since."""
    retried: list[tuple[int, int]]
    """Batches that were not there and were written again with their idempotency keys."""
    problems: list[str]
    counts: dict[str, int]


def write(kv: KeyValue, batch: Batch) -> Receipt:
    """Commit a batch in the way that fits it."""
    key = batch.idempotency_key
    if batch.kind == "rows":
        return kv.write(batch.puts, batch.deletes, idempotency_key=key)
    if batch.kind == "delete":
        return kv.delete(batch.marker, idempotency_key=key)
    return kv.put(batch.marker, batch.puts[batch.marker], idempotency_key=key)


def view_of(view: View) -> dict[bytes, Row]:
    """Return everything that a view shows."""
    rows = {}
    for batch in view.scan():
        columns = (batch.column(name).to_pylist() for name in ("_key", "_lsn", "value"))
        rows.update({key: (lsn, value) for key, lsn, value in zip(*columns, strict=True)})
    return rows


def check(
    db: Database,
    namespace: str,
    mode: str,
    settings: dict[str, object],
    model: Model,
    rng: random.Random,
) -> Findings:
    """Open the namespace, compare it with the model, and as a writer repeat what was left open."""
    try:
        kv = db.kv(namespace, mode=mode, **settings)
    except NotFoundError as error:
        # A writer that was killed while it made the namespace.
        lost = [str(error)] if model.acked or model.committed else []
        return Findings(0, [], [], [], lost, {"looks_at_nothing": 1})
    look = _Look(kv, model, rng)
    look.decide(is_final=mode == "w")
    look.compare()
    if mode == "w" and not look.problems:
        look.retry()
        if rng.random() < 0.3:  # one that nobody kills; what it leaves is looked at the next time
            look.counts["collect_done"] += collect_once(db.context(**settings), namespace, 0)
    found = look.findings()
    kv.close()
    db.close()
    return found


@dataclass
class _Look:
    kv: KeyValue
    model: Model
    rng: random.Random
    head: int = 0
    rows: dict[bytes, Row] = field(default_factory=dict)
    committed: list[tuple[int, int]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    retried: list[tuple[int, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        view = handle_of(self.kv).view()
        self.head = view.lsn
        self.rows = view_of(view)

    def findings(self) -> Findings:
        """Return what was found."""
        lists = self.committed, self.gone, self.retried, self.problems[:8]
        return Findings(self.head, *lists, dict(self.counts))

    # Which of the batches are there, and at which version.

    def decide(self, *, is_final: bool) -> None:
        """Find every batch that was acknowledged or left open; `is_final`: none can come later."""
        model = self.model
        if self.head < model.head:
            self._wrong(f"the newest LSN went back from {model.head} to {self.head}")
        hot = self._hot_versions()
        for number in sorted(model.acked.keys() | model.open):
            batch = batch_of(model.seed, number)
            found = self._find(batch, hot)
            told = model.acked.get(number)
            if told is not None and found != told:
                if batch.kind == "delete" and model.committed.get(number - 1) is None:
                    found = told  # it deleted nothing, so that there is nothing to be seen of it
                else:
                    self._wrong(f"batch {number} was acknowledged at LSN {told}; found: {found}")
            if found is None:
                if is_final and told is None:
                    self.gone.append(number)
                continue
            self.committed.append((number, found))
            self._check_single(batch, found)
            model.commit(number, found)

    def _find(self, batch: Batch, hot: dict[int, int]) -> int | None:
        if batch.kind == "hot":
            return hot.get(batch.number)
        if batch.kind != "delete":
            row = self.rows.get(batch.marker)
            return None if row is None else row[0]
        if batch.marker in self.rows or self.model.committed.get(batch.number - 1) is None:
            return None
        return self._first_without(batch.marker)

    def _hot_versions(self) -> dict[int, int]:
        """Return the author and the LSN of each version of the hot key that is new."""
        found: dict[int, int] = {}
        at = self.head
        while at > self.model.head:
            row = self._at(at).one(HOT)
            if row is None or row.lsn <= self.model.head:
                break
            author = author_of(row.batch.column("value")[row.row].as_py())
            if author in found:
                self._wrong(f"batch {author} is there twice, at LSNs {row.lsn} and {found[author]}")
            found[author] = row.lsn
            at = row.lsn - 1
        return found

    def _first_without(self, key: bytes) -> int:
        """Return the LSN from which on `key` is deleted."""
        low, high = self.model.committed[author_of_victim(key)], self.head
        low = max(low, self.model.head)  # it was there then, and below it may be compacted away
        while high - low > 1:
            middle = (low + high) // 2
            if self._at(middle).one(key) is None:
                high = middle
            else:
                low = middle
        return high

    def _check_single(self, batch: Batch, lsn: int) -> None:
        """A batch that was repeated must be there once."""
        if batch.kind in ("rows", "put") and self._at(lsn - 1).one(batch.marker) is not None:
            self._wrong(f"batch {batch.number} is there twice, the second time at LSN {lsn}")

    # Whether everything is as it has to be.

    def compare(self) -> None:
        """Compare scans and gets, now and at earlier versions, with the model."""
        model, kv = self.model, self.kv
        wanted = model.state(self.head)
        self._compare("now", self.rows, wanted)
        values = {key: value for key, (_, value) in wanted.items()}
        if self.rng.random() < 0.25 and [*kv.items(reverse=True)] != sorted(
            values.items(), reverse=True
        ):
            self._wrong("a scan backward differs from one forward")
        keys = [*model.keys, HOT, b"", b"b/", b"~"]
        self.rng.shuffle(keys)
        if kv.get_many(keys) != [values.get(key) for key in keys]:
            self._wrong("get_many differs from a scan")
        for key in keys[:10]:
            if kv.get(key) != values.get(key):
                self._wrong(f"get of {key!r} differs from a scan")
        floor = handle_of(kv).manifest.retention.floor_lsn
        lsns = sorted(lsn for lsn in model.committed.values() if lsn > floor)
        for lsn in self.rng.sample(lsns, min(PAST_VIEWS, len(lsns))):
            at = lsn - self.rng.randrange(2)
            view = kv.at(lsn=at)
            past = {key: value for key, (_, value) in model.state(at).items()}
            if dict(view.items()) != past:
                self._wrong(f"a scan at LSN {at} of {self.head} is not what was there then")
            some = keys[:20]
            if view.get_many(some) != [past.get(key) for key in some]:
                self._wrong(f"get_many at LSN {at} of {self.head} is not what was there then")

    def _compare(self, when: str, found: dict[bytes, Row], wanted: dict[bytes, Row]) -> None:
        for key in sorted(found.keys() | wanted.keys()):
            if found.get(key) == wanted.get(key):
                continue
            self._wrong(
                f"{when}, {key!r}: {self._told(found, key)} instead of {self._told(wanted, key)}"
            )

    def _told(self, rows: dict[bytes, Row], key: bytes) -> str:
        if key not in rows:
            return "nothing"
        author = author_of(rows[key][1])
        known = "committed" if author in self.model.committed else "torn or never committed"
        return f"the value of batch {author} ({known}) at LSN {rows[key][0]}"

    # Asking again.

    def retry(self) -> None:
        """Repeat, with their idempotency keys, what is open, what was found and what is old."""
        found = [number for number, _ in self.committed]
        old = [*self.model.committed]
        again = {*self.gone, *self.model.gone, *found, *self.rng.sample(old, min(3, len(old)))}
        for number in sorted(again):
            batch = batch_of(self.model.seed, number)
            if batch.idempotency_key is None:
                continue
            before = self.kv.lsn
            receipt = write(self.kv, batch)
            known = self.model.committed.get(number)
            if known is not None:
                self.counts["replays"] += 1
                if (receipt.lsn, receipt.replayed, self.kv.lsn) != (known, True, before):
                    self._wrong(f"a retry of batch {number}, at LSN {known}, gave {receipt}")
            else:
                self.counts["rewrites"] += 1
                self.retried.append((number, receipt.lsn))
                if receipt.replayed or receipt.lsn <= before:
                    self._wrong(f"a retry of batch {number}, which was not there, gave {receipt}")
        self._misuse()

    def _misuse(self) -> None:
        """The key of one request with another request has to be refused."""
        for number in self.model.recent(5):
            key = batch_of(self.model.seed, number).idempotency_key
            if key is None:
                continue
            try:
                self.kv.put(b"never", b"never", idempotency_key=key)
            except IdempotencyError:
                self.counts["misuses"] += 1
            else:
                self._wrong(f"the idempotency key of batch {number} was taken for another request")
            return

    def _at(self, lsn: int) -> View:
        return handle_of(self.kv).at_lsn(lsn)

    def _wrong(self, problem: str) -> None:
        self.problems.append(problem)


def author_of_victim(key: bytes) -> int:
    """Return the number of the batch that put the key, which the next one of its thread deletes."""
    return int(key.removeprefix(b"v/"))
