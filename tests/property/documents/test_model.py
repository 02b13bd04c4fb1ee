"""Documents against a plain dict: whatever happens to them, every way to read them says the same.

Batches of upserts, patches and deletes are written, under conditions or not; all that match a filter
are changed; requests are repeated; the schema changes. Meanwhile the namespace is flushed, folded and
compacted, replies get lost, the network is gone, writers die, what they had sent arrives late, and
others open. See `tests/support/documents/document_model.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from reef.documents import DocumentReceipt, Documents, DocumentSnapshot, DocumentView, Incoming
from reef.engine import CreateOnly, Equals, MustExist
from reef.errors import (
    ConditionFailedError,
    FencedError,
    IdempotencyError,
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from reef.testing import Fault, FaultKind, FaultyStore
from tests.support.documents.document_model import (
    IDS,
    NAMES,
    ORDERED,
    VALUES,
    Held,
    Model,
    Names,
    Request,
    Schema,
    a_filter,
    check_aggregates,
    check_all,
    check_query,
    check_search,
    check_sql,
    full,
    holds,
    plain,
    some,
    types_of,
)
from tests.support.engine.collecting import NAMESPACE, World
from tests.support.jobs.compactor import Compactor, fold_log

Send = Callable[[Documents, str | None], DocumentReceipt]

TROUBLE = (FencedError, OutcomeUnknownError, UnavailableError)
"""After these a handle is given up."""
FAULTS: list[FaultKind] = ["reply_lost", "error_before", "lands_late", "conflict", "false_conflict"]
WRONG: dict[str, Any] = {"string": 5, "vector[2]": [1.0, 2.0, 3.0], "json": object()}
"""What an attribute of that type refuses; others refuse a dict."""


@dataclass
class Answered:
    """A request that was acknowledged under a key, and the schema it was understood by."""

    send: Send
    receipt: DocumentReceipt
    schema: Schema


class Story:
    """One namespace, those who work on it, and the model."""

    def __init__(self) -> None:
        # Flushes happen when a step says so: one in the background would not happen again.
        self.world = World(flush_interval=0, row_block_bytes="1KiB", cas_max_retries=2)
        self.model = Model()
        self.past: list[tuple[int, Held]] = [(0, {})]
        self.answered: dict[str, Answered] = {}
        self.snapshots: list[tuple[DocumentSnapshot, Model]] = []
        self.zombies: list[FaultyStore] = []
        self.keys = 0
        self.open(1)
        self.reader = self.world.database().namespace(NAMESPACE, mode="r")

    def step(self, seed: int) -> None:
        """Do something, by a seed, and look whether all is there."""
        self.rng = Random(seed)
        steps: dict[Callable[[], object], int] = {
            self.write: 20,
            self.change_where: 6,
            self.repeat: 4,
            self.refuse: 2,
            self.alter: 5,
            self.ns.flush: 4,
            self.fold: 2,
            self.compact: 2,
            self.reopen: 3,
            self.land: 2,
            self.take_snapshot: 2,
            self.read: 5,
            self.read_the_past: 3,
            self.read_a_snapshot: 2,
        }
        self.rng.choices([*steps], [*steps.values()])[0]()
        names = self.model.types
        assert self.ns.schema == names
        assert plain(self.ns.scan(), names) == [full(row, names) for row in self.model.rows()]

    def open(self, parallel: int) -> None:
        self.faults = FaultyStore(self.world.store, clock=self.world.clock)
        self.ns = self.world.database(self.faults).namespace(
            NAMESPACE, max_parallel_writes=parallel
        )

    def crash(self, parallel: int = 1) -> None:
        """Leave the handle where it is, and open another."""
        self.faults.disarm()
        self.zombies.append(self.faults)
        self.open(parallel)

    # Writing.

    def rows(self, ids: list[str], types: dict[str, str], *, same: bool) -> list[Names]:
        """Return a row for each id; `types` has the types of what it uses from then on."""
        names = some(self.rng, NAMES, 4)
        for name in names:
            if name not in types:
                types[name] = self.rng.choice(types_of(name))
        return [
            {
                "id": id,
                **{
                    name: self.rng.choice([None, *VALUES[types[name]]])
                    for name in names
                    if same or self.rng.random() < 0.7
                },
            }
            for id in ids
        ]

    def write(self) -> None:
        """Write upserts, patches and deletes, under a condition or none, whatever fails."""
        ids = some(self.rng, IDS, 6, least=1)
        low, high = sorted(self.rng.choices(range(len(ids) + 1), k=2))
        if self.rng.random() < 0.4:  # mostly upserts: or else there is little to work with
            low = high = len(ids)
        elif self.rng.random() < 0.5:  # patches, of what is there
            ids = some(self.rng, [*self.model.held], 6, least=1) or ids
            low, high = 0, len(ids)
        types, as_columns = self.model.types, self.rng.random() < 0.4
        request = Request(
            self.rows(ids[:low], types, same=as_columns),
            self.rows(ids[low:high], types, same=as_columns),
            ids[high:],
            atomic=self.rng.random() < 0.4,
            as_columns=as_columns,
        )
        after = self.model.copy()
        rows = after.taken([*request.upserts, *request.patches], types)  # one schema for both
        cut = len(request.upserts)
        taken = Request(rows[:cut], rows[cut:], deletes=request.deletes)
        request.condition = taken.condition = self.condition(after)
        codes = after.codes(taken)
        refused = [code not in ("written", "deleted") for code in codes]
        if request.atomic and any(refused):
            with pytest.raises(ConditionFailedError) as caught:
                self.send(request.send)
            told = [code if no else "not applied" for code, no in zip(codes, refused, strict=True)]
            assert list(caught.value.outcomes) == told
            # What was new is in the schema before the condition is asked.
            self.model.schema, self.model.next_id = after.schema, after.next_id
            return
        after.apply(taken, codes)
        receipt = self.send(request.send, after)
        assert list(receipt.outcomes) == codes
        upserted, patched = codes[:low].count("written"), codes[low:high].count("written")
        assert (receipt.upserted, receipt.patched) == (upserted, patched)
        assert (receipt.deleted, receipt.skipped) == (codes.count("deleted"), sum(refused))

    def condition(self, model: Model) -> Any:
        """Return a condition, by the schema as it is when the request is understood."""
        types = model.types
        kinds = [*[None] * 6, CreateOnly(), MustExist()]
        kinds += [a_filter(self.rng, types, incoming=True) for _ in range(3)]
        names = [name for name, type in types.items() if type in ORDERED]
        if names:
            name = self.rng.choice(names)
            kinds.append(Equals(**{name: self.rng.choice([None, *VALUES[types[name]]])}))
            newer = ("Or", [(name, "IsNull"), (name, "NotEq", Incoming(name))])
            kinds.append(newer)
        return self.rng.choice(kinds)

    def change_where(self) -> None:
        """Change or delete all that match."""
        after = self.model.copy()
        where = a_filter(self.rng, after.types)
        ids = [row["id"] for row in after.rows() if holds(where, row)]
        types = after.types
        (row,) = self.rows(["-"], types, same=True)
        patch = {name: value for name, value in row.items() if name != "id"}
        is_patch = bool(patch) and self.rng.random() < 0.7
        if is_patch:
            (taken,) = after.taken([row], types)
            for id in ids:
                after.patch({**taken, "id": id})
        else:
            for id in ids:
                del after.held[id]

        def send(ns: Documents, key: str | None) -> DocumentReceipt:
            if is_patch:
                return ns.patch_where(where, patch, idempotency_key=key)
            return ns.delete_where(where, idempotency_key=key)

        receipt = self.send(send, after)
        assert receipt.outcomes == ("written" if is_patch else "deleted",) * len(ids)
        assert (receipt.patched, receipt.deleted) == ((len(ids), 0) if is_patch else (0, len(ids)))

    def send(self, send: Send, after: Model | None = None) -> DocumentReceipt:
        """Send a request until it is answered, by a writer that comes after if need be.

        With a key it may fail, and is sent again. Then there is what `after` says.
        """
        key = None
        if self.rng.random() < 0.6:
            self.keys += 1
            key = f"key {self.keys}"
        fails = key is not None and self.rng.random() < 0.5
        if fails:
            self.arm()
        try:
            receipt = send(self.ns, key)
            assert not receipt.replayed
        except TROUBLE:
            assert fails
            self.crash()
            receipt = send(self.ns, key)
        finally:
            self.faults.disarm()
        assert after is not None
        newest = self.past[-1][0]
        assert receipt.lsn > newest or (receipt.lsn == newest and after.held == self.model.held)
        self.past.append((receipt.lsn, after.copy().held))
        self.model = after
        if key is not None:
            self.answered[key] = Answered(send, receipt, dict(after.schema))
        return receipt

    def arm(self) -> None:
        """Let one or some of the next requests to the log fail, or all of them."""
        nth, times = self.rng.randint(1, 2), self.rng.choice([1, 3, 0])
        kind: FaultKind = self.rng.choice(FAULTS)
        log = "*/wal/*"
        self.faults.arm(Fault(kind, on="put_if_absent", key=log, nth=nth, times=times))
        if self.rng.random() < 0.5:  # and it can't be asked what came of them
            self.faults.arm(Fault("error_before", on="get", key=log, times=0))
            self.faults.arm(Fault("error_before", on="head", key=log, times=0))

    def repeat(self) -> None:
        """The same again does nothing; another request under the same key is refused."""
        if not self.answered:
            return
        key = self.rng.choice([*self.answered])
        earlier = self.answered[key]
        if self.rng.random() < 0.2:
            with pytest.raises(IdempotencyError):
                self.ns.upsert([{"id": "never"}], idempotency_key=key)
        elif earlier.schema == self.model.schema:
            receipt = earlier.send(self.ns, key)
            assert receipt.replayed
            told = earlier.receipt
            assert (receipt.lsn, receipt.outcomes) == (told.lsn, told.outcomes)

    def refuse(self) -> None:
        """One value of the wrong type, and nothing of the batch is written, nor its attributes added."""
        if not self.model.schema:
            return
        name = self.rng.choice([*self.model.schema])
        wrong = WRONG.get(self.model.schema[name][1], {"not": "this"})
        rows = [{"id": "a", name: None, "unheard of": 1}, {"id": "b", name: wrong}]
        write = self.rng.choice([self.ns.patch, self.ns.upsert])
        with pytest.raises(InvalidInputError, match=f"row 1, attribute '{name}'") as caught:
            write(rows)
        assert "expected" in str(caught.value)
        assert ", got " in str(caught.value)

    def alter(self) -> None:
        """Add, rename and drop, all at once; a change of unknown outcome is there or it is not."""
        after = self.model.copy()
        unused = [name for name in NAMES if name not in after.schema]
        add = {name: self.rng.choice(types_of(name)) for name in some(self.rng, unused, 1)}
        after.add(add)
        olds = some(self.rng, [name for name in after.schema if name != "vector"], 2)
        free = [n for n in NAMES if n != "vector" and (n in olds or n not in after.schema)]
        rename = dict(zip(olds, self.rng.sample(free, len(olds)), strict=True))
        after.schema = {rename.get(name, name): held for name, held in after.schema.items()}
        drop = some(self.rng, [*after.schema], 1)
        for name in drop:
            del after.schema[name]
        fails = self.rng.random() < 0.3
        if fails:
            self.arm()
        try:
            assert self.ns.alter(add=add, rename=rename, drop=drop) == after.types
        except TROUBLE:
            assert fails
            self.crash()
            if self.ns.schema == self.model.types:
                return
        finally:
            self.faults.disarm()
        self.model = after

    # What else happens.

    def fold(self) -> None:
        fold_log(self.world.database().context(), NAMESPACE)

    def compact(self) -> None:
        first, count = self.rng.randint(0, 2), self.rng.randint(2, 4)
        compactor = Compactor(self.world.database().context(), NAMESPACE)
        compactor.run(choose=lambda runs: runs[first : first + count])

    def reopen(self) -> None:
        parallel = self.rng.choice([1, 2, 8])
        if self.rng.random() < 0.5:
            self.ns.close()
            self.open(parallel)
        else:
            self.crash(parallel)

    def land(self) -> None:
        """What a writer before this one had sent arrives: it comes too late."""
        if self.zombies:
            self.zombies.pop().land()

    def take_snapshot(self) -> None:
        self.snapshots.append((self.handle().snapshot(ttl=None), self.model.copy()))

    # Reading.

    def handle(self) -> Documents:
        """Return the writer, or a reader, old or new, that has seen what it has."""
        choice = self.rng.random()
        if choice < 0.4:
            return self.ns
        if choice < 0.6:
            self.reader = self.world.database().namespace(NAMESPACE, mode="r")
        self.reader.get("a", min_lsn=self.ns.lsn)
        assert self.reader.lsn == self.ns.lsn
        assert self.reader.schema == self.model.types
        return self.reader

    def read(self) -> None:
        handle = self.handle()
        views: list[Documents | DocumentView] = [handle, handle.view()]
        view = self.rng.choice(views)
        check_all(view, self.model)
        for _ in range(3):
            check_query(view, self.model, self.rng)
        check_aggregates(view, self.model, self.rng)
        check_search(view, self.model, self.rng)
        check_sql(view, self.model, self.rng)

    def read_the_past(self) -> None:
        """The documents of then, by the schema of now."""
        lsn, held = self.rng.choice(self.past)
        view = self.handle().at(lsn=lsn)
        model = Model(self.model.schema, 0, held)
        check_all(view, model)
        check_query(view, model, self.rng)
        check_aggregates(view, model, self.rng)

    def read_a_snapshot(self) -> None:
        """It shows the schema of then; opened again, that of now."""
        if not self.snapshots:
            return
        snapshot, model = self.rng.choice(self.snapshots)
        check_all(snapshot, model)
        check_query(snapshot, model, self.rng)
        again = self.handle().at(snapshot=snapshot.id)
        check_all(again, Model(self.model.schema, 0, model.held))


@settings(max_examples=12, phases=[p for p in Phase if p is not Phase.shrink])
@given(st.lists(st.integers(0, 2**32 - 1), min_size=60, max_size=90))
def test_documents_are_what_a_dict_would_be(seeds: list[int]) -> None:
    story = Story()
    for seed in seeds:
        story.step(seed)
    story.crash()
    check_all(story.ns, story.model)
    story.ns.close()
