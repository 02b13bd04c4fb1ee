"""Rows that a filter lets through: what they cost while they are gathered."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import reef
from reef.documents.filter._filter import Filter
from reef.documents.query import _stored_rows
from tests.support.call_counts import calls_of

ROWS = 8000
BODY = "the same words over and over " * 30


class WatchedFilter:
    """A filter that notes how much memory Arrow has whenever it is asked."""

    def __init__(self, filter: Filter) -> None:
        self._filter = filter
        self.seen: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._filter, name)

    def matches(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        self.seen.append(pa.total_allocated_bytes())
        return self._filter.matches(rows)


@pytest.mark.slow
@pytest.mark.parametrize("share", [10, 40])
def test_a_few_rows_of_every_block_do_not_keep_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    monkeypatch.setattr(_stored_rows, "_KEPT_BLOCKS_MAX", 4)
    watched: list[WatchedFilter] = []
    made = _stored_rows.StoredRows.__init__

    def watching(self: object, view: object, schema: object, filter: Filter) -> None:
        watched.append(WatchedFilter(filter))
        made(self, view, schema, watched[-1])  # type: ignore[arg-type]

    settings = {"row_block_bytes": 16 << 10, "block_cache_bytes": 1 << 20}
    with reef.connect(f"file://{tmp_path}?fsync=off", **settings) as db:
        ns = db.namespace("ns")
        ns.upsert([{"id": f"{i:06}", "kind": i % share, "body": BODY} for i in range(ROWS)])
        ns.flush()
    with (
        reef.connect(f"file://{tmp_path}?fsync=off", **settings) as db,
        db.namespace("ns", mode="r") as ns,
    ):
        monkeypatch.setattr(_stored_rows.StoredRows, "__init__", watching)
        gc.collect()
        before = pa.total_allocated_bytes()
        found = [row for batch in ns.scan(where="kind = 3") for row in batch.to_pylist()]
    assert [row["id"] for row in found] == [f"{i:06}" for i in range(3, ROWS, share)]
    seen = watched[0].seen
    assert len(seen) > 200  # so many blocks, of 7 MB in all
    matched = len(found) * len(BODY)
    assert max(seen) - before < matched + 1_600_000


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unfolded", [0, 30])
def test_many_matches_are_looked_for_only_where_they_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reverse: bool, unfolded: int
) -> None:
    monkeypatch.setattr(_stored_rows, "MATCHES_MAX", 50)
    read: list[int] = []
    mask = Filter.mask

    def counted(self: Filter, batch: pa.RecordBatch, *more: pa.RecordBatch) -> pa.BooleanArray:
        read.append(batch.num_rows)
        return mask(self, batch, *more)

    with reef.connect(f"file://{tmp_path}?fsync=off", row_block_bytes=4 << 10) as db:
        ns = db.namespace("ns")
        for part in range(3):  # blocks of three segments lie between each other's ids
            ns.upsert([{"id": f"{i:06}", "rank": i} for i in range(part, ROWS, 3)])
            ns.flush()
        hidden = range(2000, 2000 + unfolded)
        if hidden:
            ns.upsert([{"id": f"{i:06}", "rank": ROWS} for i in hidden])
        monkeypatch.setattr(Filter, "mask", counted)
        where = "rank >= 1500 and rank < 2500 or rank >= 6000 and rank < 6500"
        found = [row["id"] for batch in ns.scan(where=where) for row in batch.to_pylist()]
        view = ns.query(where=where, order_by=[("id", "desc")]) if reverse else None
    ids = [f"{i:06}" for i in (*range(1500, 2500), *range(6000, 6500)) if i not in hidden]
    assert found == ids
    assert view is None or view["id"].to_pylist() == ids[::-1]
    assert 1500 <= sum(read) < ROWS


def test_many_small_segments_cost_what_their_rows_do() -> None:
    choose = random.Random(1)
    settings = {"maintenance": "off", "flush_interval": 0}  # all segments stay
    with reef.connect("memory://", **settings) as db, db.namespace("ns") as ns:
        kept: dict[str, int] = {}

        def work(more: int) -> list[int]:
            for _ in range(more):
                some = {f"{choose.randrange(500):04}": choose.randrange(100) for _ in range(5)}
                ns.upsert([{"id": id, "rank": rank} for id, rank in some.items()])
                ns.flush()
                kept.update(some)
            assert ns.count() == len(kept)
            assert ns.count("rank < 30") == sum(rank < 30 for rank in kept.values())
            return [
                calls_of(lambda: ns.count()),
                calls_of(lambda: ns.count("rank < 30")),
                calls_of(lambda: ns.query(order_by="rank", limit=10)),
            ]

        few, many = work(40), work(120)
    assert all(b < 6 * a for a, b in zip(few, many, strict=True)), (few, many)
