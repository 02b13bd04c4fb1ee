"""The rival for documents: LanceDB, by its Python package `lancedb`, as its documentation advises.

Its synchronous API, with data as Arrow tables, scalar indexes where they help, and `optimize` after
ingest and between writes, which is not counted. Where it offers several ways, the fastest counts.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

os.environ.setdefault("LANCE_LOG", "error")  # else it warns of each table that it makes
import lancedb
from lancedb.index import BTree

NAME = f"lancedb {lancedb.__version__}"
INDEXED = ("id", "price", "category")
PARALLELISMS = (None, 1, 2)
GETS: Mapping[str, Callable[[Any], list[dict[str, Any]]]] = {
    "to_list()": lambda query: query.to_list(),
    "to_arrow().to_pylist()": lambda query: query.to_arrow().to_pylist(),
}
SCANS: Mapping[str, Callable[[Any], pa.Table]] = {
    "to_arrow()": lambda table: table.to_arrow(),
    "to_batches(8,192)": lambda table: table.search().to_batches(batch_size=8_192).read_all(),
    "to_batches(50,000)": lambda table: table.search().to_batches(batch_size=50_000).read_all(),
}


class Lance:
    """A table in a folder: a new one if there is a schema. Use as a context manager."""

    def __init__(self, folder: Path, schema: pa.Schema | None = None) -> None:
        self._folder = folder
        db = lancedb.connect(folder)
        if schema is None:
            self.table = db.open_table("documents")
        else:
            self.table = db.create_table("documents", schema=schema)
        self._loop = asyncio.new_event_loop()
        self._async_table: Any = None

    def add(self, batches: Sequence[pa.Table], parallelism: int | None = None) -> None:
        """Append batches, each a commit of its own. It does not check ids."""
        for batch in batches:
            self.table.add(batch, write_parallelism=parallelism)

    def index(self) -> None:
        """Build a B-tree on each column that lookups use."""
        for column in INDEXED:
            self.table.create_index(column, config=BTree())

    def upsert(self, rows: object, use_index: bool) -> None:
        """Replace documents by id, or add them."""
        builder = self.table.merge_insert("id").use_index(use_index)
        builder.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def get(self, id: str, way: str = "to_list()") -> dict[str, Any] | None:
        """Return one document."""
        rows = GETS[way](self.table.search().where(f"id = '{id}'").limit(1))
        return rows[0] if rows else None

    def time_async_gets(self, ids: Sequence[str]) -> list[float]:
        """Return the seconds of each get by the asynchronous API, inside of its event loop."""
        return self._loop.run_until_complete(self._time_async_gets(ids))

    def scan(self, way: str) -> pa.Table:
        """Return everything, in the order of its files."""
        return SCANS[way](self.table)

    def search(self, vector: object, metric: str, limit: int) -> pa.Table:
        """Return the nearest ids and `_distance` (squared if the metric is l2), by brute force."""
        query = self.table.search(vector).distance_type(metric)  # type: ignore[attr-defined]
        return query.select(["id", "_distance"]).limit(limit).to_arrow()

    def filter(self, where: str, columns: Sequence[str]) -> pa.Table:
        """Return some columns of the documents that match, in no order."""
        return self.table.search().where(where).select(list(columns)).to_arrow()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.close()

    async def _time_async_gets(self, ids: Sequence[str]) -> list[float]:
        if self._async_table is None:
            db = await lancedb.connect_async(self._folder)
            self._async_table = await db.open_table("documents")
        times = []
        for id in ids:
            begun = time.perf_counter()
            query = self._async_table.query().where(f"id = '{id}'").limit(1)
            (await query.to_arrow()).to_pylist()
            times.append(time.perf_counter() - begun)
        return times
