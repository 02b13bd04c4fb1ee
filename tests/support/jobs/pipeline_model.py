"""Two namespaces, pairs and documents, each with a plain history of what it must show at any version."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from reef.database import Database
from reef.doctor import verify
from reef.documents import Documents
from reef.engine import Context
from reef.errors import NotFoundError, RetentionError, SnapshotExpiredError
from reef.format import LogKind, Manifest, log_key, segment_key
from reef.kv import KeyValue
from reef.log import Damaged, LogReader
from reef.types import unpack_lsn

Row = Any
"""A value's bytes, or a document's attributes by name."""
Rows = dict[str, Row]
Change = tuple[int, str, Row | None]
"""The version, the key, and what it holds from then on."""
Request = tuple[Rows, dict[str, Row], list[str]]
"""What is put, what is patched, and what is deleted."""

KEYS = ["a", "a!", "a~", "ab", "b", "c", "d", "m", "user/1", "user/2", "x" * 40, "zz"]


@dataclass
class Asked:
    """A write under an idempotency key, and where it was committed."""

    request: Request
    lsn: int
    at_us: int


@dataclass
class PipelineHistory:
    """Every version of a namespace."""

    states: list[tuple[int, Rows]] = field(default_factory=lambda: [(0, {})])
    changes: list[Change] = field(default_factory=list)
    times: dict[int, int] = field(default_factory=dict)
    """When each version was committed."""

    @property
    def lsn(self) -> int:
        return self.states[-1][0]

    @property
    def rows(self) -> Rows:
        return self.states[-1][1]

    def at(self, lsn: int) -> Rows:
        return next(rows for at, rows in reversed(self.states) if at <= lsn)

    def commit(self, lsn: int, changed: Mapping[str, Row | None], at_us: int) -> None:
        assert lsn > self.lsn
        rows = {**self.rows, **changed}
        self.states.append((lsn, {key: row for key, row in rows.items() if row is not None}))
        self.changes += [(lsn, key, row) for key, row in sorted(changed.items())]
        self.times[lsn] = at_us

    def after(self, lsn: int) -> list[Change]:
        return [change for change in self.changes if change[0] > lsn]


class Subject(ABC):
    """A namespace and its history."""

    name: str
    face: str

    def __init__(self) -> None:
        self.history = PipelineHistory()
        self.asked: dict[str, Asked] = {}
        self.snapshots: dict[str, Any] = {}
        self.generations: dict[int, int] = {}
        self.loads: list[int] = []
        self.writer: Any = None
        self.reader: Any = None

    # What differs between the two.

    @abstractmethod
    def open(self, db: Database, mode: str = "w") -> Any: ...

    @abstractmethod
    def request(self, rng: random.Random, serial: int) -> Request: ...

    @abstractmethod
    def send(self, request: Request, key: str | None) -> int:
        """Write; return the LSN."""

    @abstractmethod
    def table(self, rows: Rows) -> pa.Table:
        """Return rows as a load takes them."""

    @abstractmethod
    def loaded(self, rng: random.Random, serial: int) -> Rows: ...

    @abstractmethod
    def scanned(self, view: Any, *, reverse: bool = False) -> list[tuple[str, Row]]: ...

    @abstractmethod
    def found(self, view: Any, keys: list[str]) -> list[Row | None]: ...

    @abstractmethod
    def told(self, batches: Iterable[pa.RecordBatch]) -> list[tuple[Change, Row | None]]:
        """Return changes, each with what was there before, if the feed tells."""

    # What is compared.

    def apply(self, request: Request) -> dict[str, Row | None]:
        """Return what a request changes."""
        puts, patches, deletes = request
        changed: dict[str, Row | None] = {**puts, **dict.fromkeys(deletes)}
        for key, patch in patches.items():
            whole = {**self.history.rows[key], **patch}
            changed[key] = {name: value for name, value in whole.items() if value is not None}
        return changed

    def check_view(self, view: Any, lsn: int, rng: random.Random) -> None:
        """Compare what a view shows with the history: all of it, in one of the ways to read it."""
        rows = self.history.at(lsn)
        expected = sorted(rows.items())
        way = rng.randrange(4)
        if way < 2:
            assert self.scanned(view) == expected, (self.name, lsn)
        elif way == 2:
            assert self.scanned(view, reverse=True) == expected[::-1], (self.name, lsn)
        else:
            assert self.found(view, KEYS) == [rows.get(key) for key in KEYS], (self.name, lsn)

    def check_versions(
        self, reader: Any, manifest: Manifest, rng: random.Random, *, is_whole: bool
    ) -> None:
        """Compare versions that are retained, some or all; those that are not are refused."""
        floor = manifest.retention.floor_lsn
        lsns = [lsn for lsn, _ in self.history.states]
        for lsn in lsns if is_whole else {*lsns[-4:], *rng.sample(lsns, min(8, len(lsns)))}:
            if lsn >= floor:
                self.check_view(reader.at(lsn=lsn), lsn, rng)
            else:
                with pytest.raises(RetentionError):
                    reader.at(lsn=lsn)
        if floor:
            self.check_view(reader.at(lsn=floor), floor, rng)
        assert {s.id for s in manifest.snapshots} == {*self.snapshots}
        for id, snapshot in self.snapshots.items():
            self.check_view(reader.at(snapshot=id), snapshot.lsn, rng)
            self.check_view(snapshot, snapshot.lsn, rng)

    def check_generations(
        self, context: Context, reader: Any, manifest: Manifest, rng: random.Random
    ) -> None:
        """Compare what every generation shows that is retained, and any that may still be there."""
        chain = context.chain(self.name)
        chain.load()
        held = {s.generation for s in manifest.snapshots}
        for one in chain.generations():
            if one.number not in self.generations:
                self.generations[one.number] = chain.at(one.number).manifest.last_applied_lsn
        boundary = manifest.gc.boundary.generation
        kept = [one for one in self.generations if one >= boundary or one in held]
        for generation in {*rng.sample(kept, min(4, len(kept))), rng.choice([*self.generations])}:
            try:
                self.check_view(reader.at(generation=generation), self.generations[generation], rng)
            except SnapshotExpiredError:
                assert generation not in kept

    def check_feed(
        self, context: Context, reader: Any, manifest: Manifest, rng: random.Random
    ) -> None:
        """Compare the changes, from the oldest there is and from any version on."""
        boundary = manifest.gc.boundary.slot
        kept = [one for one in self.history.changes if unpack_lsn(one[0])[0] >= boundary]
        lost = [lsn for lsn in self.loads if self._is_lost(context, lsn)]
        floor = manifest.retention.floor_lsn
        for after in (None, *(rng.choice(self.history.states)[0] for _ in range(2))):
            wanted = kept if after is None else self.history.after(after)
            before_image = after is not None and after >= floor
            try:
                found = self.told(reader.changes(after=after, before_image=before_image))
            except RetentionError:
                is_collected = after is not None and unpack_lsn(after)[0] < boundary
                assert is_collected or {*lost} & {change[0] for change in wanted}, after
                continue
            assert sorted(c[:2] for c, _ in found) == sorted(c[:2] for c in wanted), after
            lsns_in_order = [change[0] for change, _ in found]
            assert lsns_in_order == sorted(lsns_in_order)
            by_key = {change[:2]: (change, before) for change, before in found}
            for change in wanted:
                assert by_key[change[:2]][0] == change, (self.name, after)
                if before_image:
                    below = self.history.at(change[0] - 1).get(change[1])
                    assert by_key[change[:2]][1] == below, (self.name, change)

    def _is_lost(self, context: Context, lsn: int) -> bool:
        """Return whether the rows that a load attached are not all there under their own names."""
        names = self._attached_at(context, unpack_lsn(lsn)[0])
        return names is None or not names <= self._segments(context)

    def _segments(self, context: Context) -> set[str]:
        return {meta.key for meta in context.store.list(f"namespaces/{self.name}/segments/")}

    def attached(self, context: Context) -> set[str]:
        """Return the keys of what the log that is still there attaches."""
        found = (self._attached_at(context, unpack_lsn(lsn)[0]) for lsn in self.loads)
        return {key for keys in found for key in keys or ()}

    def _attached_at(self, context: Context, slot: int) -> set[str] | None:
        try:
            data = context.store.get(log_key(self.name, slot))
        except NotFoundError:
            return None
        decoded = LogReader(context.store, self.name, "packed").decode(slot, data)
        assert not isinstance(decoded, Damaged)
        log = decoded[0]
        assert log.kind is LogKind.ATTACH
        return {segment_key(self.name, ref.id) for record in log.records for ref in record.segments}

    def check(self, db: Database, rng: random.Random, *, is_whole: bool = False) -> Manifest:
        """Compare what there is to see with the history, some or all of it; return the head."""
        context = db.context()
        report = verify(context, self.name, deep=True)
        assert report.problems == (), self.name
        head = context.chain(self.name).load()
        assert head is not None
        with self.open(db, "r") as reader:
            assert reader.refresh() == self.history.lsn
            self.check_view(reader, self.history.lsn, rng)
            self.check_versions(reader, head.manifest, rng, is_whole=is_whole)
            self.check_generations(context, reader, head.manifest, rng)
            self.check_feed(context, reader, head.manifest, rng)
        return head.manifest


class Pairs(Subject):
    """Keys and values."""

    name = "pairs"
    face = "kv"

    def open(self, db: Database, mode: str = "w") -> KeyValue:
        return db.kv(self.name, mode=mode)

    def request(self, rng: random.Random, serial: int) -> Request:
        keys = rng.sample(KEYS, rng.randint(1, 5))
        cut = rng.randint(0, len(keys))
        puts = {key: b"%d" % serial * rng.choice((0, 1, 30)) for key in keys[:cut]}
        return puts, {}, keys[cut:]

    def send(self, request: Request, key: str | None) -> int:
        puts, _, deletes = request
        encoded = {k.encode(): v for k, v in puts.items()}
        gone = [k.encode() for k in deletes]
        return int(self.writer.write(encoded or None, gone, idempotency_key=key).lsn)

    def loaded(self, rng: random.Random, serial: int) -> Rows:
        return dict.fromkeys(rng.sample(KEYS, rng.randint(1, 6)), b"load%d" % serial)

    def table(self, rows: Rows) -> pa.Table:
        columns = {"key": [key.encode() for key in rows], "value": list(rows.values())}
        return pa.table({name: pa.array(of, pa.binary()) for name, of in columns.items()})

    def scanned(self, view: Any, *, reverse: bool = False) -> list[tuple[str, Row]]:
        return [(key.decode(), value) for key, value in view.items(reverse=reverse)]

    def found(self, view: Any, keys: list[str]) -> list[Row | None]:
        return list(view.get_many([key.encode() for key in keys]))

    def told(self, batches: Iterable[pa.RecordBatch]) -> list[tuple[Change, Row | None]]:
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert all((row["_op"] == "delete") == (row["value"] is None) for row in rows)
        return [
            (
                (row["_lsn"], row["key"].decode(), row["value"]),
                row["_before"]["value"] if row.get("_before") else None,
            )
            for row in rows
        ]


_TYPES = {
    "n": pa.int64(),
    "s": pa.string(),
    "tags": pa.list_(pa.string()),
    "v": pa.list_(pa.float32(), 2),
}


class Papers(Subject):
    """Documents."""

    name = "papers"
    face = "documents"
    schema: ClassVar = {"n": "int64", "s": "string", "tags": "[]string", "v": "vector[2]"}

    def open(self, db: Database, mode: str = "w") -> Documents:
        return db.namespace(self.name, mode=mode, schema=self.schema if mode == "w" else None)

    def _attributes(self, rng: random.Random, serial: int) -> dict[str, Any]:
        values = {"n": serial, "s": f"s{serial}", "tags": ["t", str(serial)], "v": [serial, 0.5]}
        return {name: values[name] for name in rng.sample([*values], rng.randint(1, 4))}

    def request(self, rng: random.Random, serial: int) -> Request:
        keys = rng.sample(KEYS, rng.randint(1, 5))
        first, second = sorted(rng.choices(range(len(keys) + 1), k=2))
        puts = {key: self._attributes(rng, serial) for key in keys[:first]}
        patches = {
            key: {**self._attributes(rng, serial), rng.choice([*self.schema]): None}
            for key in keys[first:second]
            if key in self.history.rows
        }
        rest = [key for key in keys[first:] if key not in patches]
        return puts, patches, rest

    def send(self, request: Request, key: str | None) -> int:
        puts, patches, deletes = request
        receipt = self.writer.write(
            upserts=[{"id": id, **row} for id, row in puts.items()] or None,
            patches=[{"id": id, **row} for id, row in patches.items()] or None,
            deletes=deletes or None,
            idempotency_key=key,
        )
        return int(receipt.lsn)

    def loaded(self, rng: random.Random, serial: int) -> Rows:
        rows = {}
        for key in rng.sample(KEYS, rng.randint(1, 6)):
            rows[key] = self._attributes(rng, serial)
            if rng.random() < 0.3:  # which may be new
                rows[key][f"extra{rng.randrange(3)}"] = serial
        return rows

    def table(self, rows: Rows) -> pa.Table:
        names = dict.fromkeys(name for row in rows.values() for name in row)
        columns = {
            name: pa.array([row.get(name) for row in rows.values()], _TYPES.get(name, pa.int64()))
            for name in names
        }
        return pa.table({"id": list(rows), **columns})

    def scanned(self, view: Any, *, reverse: bool = False) -> list[tuple[str, Row]]:
        rows = [row for batch in view.scan(reverse=reverse) for row in batch.to_pylist()]
        return [(row.pop("id"), _present(row)) for row in rows]

    def found(self, view: Any, keys: list[str]) -> list[Row | None]:
        return [None if row is None else _present(row) for row in view.get_many(keys)]

    def told(self, batches: Iterable[pa.RecordBatch]) -> list[tuple[Change, Row | None]]:
        told = []
        for row in (row for batch in batches for row in batch.to_pylist()):
            lsn, id, op = row.pop("_lsn"), row.pop("id"), row.pop("_op")
            before = row.pop("_before", None)
            row.pop("_committed_at")
            now = None if op == "delete" else _present(row)
            told.append(((lsn, id, now), None if before is None else _present(before)))
        return told


def _present(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None and name != "id"}
