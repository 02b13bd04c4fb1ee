"""Namespaces of documents made directly on the kernel, beside a plain dict of what they hold."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from reef.documents import DocumentView
from reef.documents.input import read_rows
from reef.documents.types import Schema, Type
from reef.engine import Face, WriteRequest, open_for_writing
from reef.format import log_schema
from reef.store import Store
from tests.support.documents.document_rows import schema_of
from tests.support.engine.open_database import database

KINDS = {
    "name": "string",
    "price": "float64",
    "stock": "int64",
    "total": "uint64",
    "sold": "bool",
    "made": "datetime",
    "token": "uuid",
    "raw": "bytes",
    "tags": "[]string",
    "extra": "json",
    "vector": "vector[4]",
    "half_vector": "vector[2]f16",
    "terms": "sparse",
}
Document = dict[str, Any]


class Namespace:
    """A writer, and what it has written: at every version, values by the id of their attribute."""

    def __init__(self, schema: Schema, store: Store | None = None, **settings: object) -> None:
        settings = {"row_block_bytes": 2048, "flush_interval": 0, **settings}
        self.database = database(store, **settings)
        self.schema = schema
        face = Face("documents", schema.to_arrow())
        self.writer = open_for_writing(self.database.context(), "ns", face)
        self.rows: dict[str, dict[int, Any]] = {}
        self.versions: dict[int, dict[str, dict[int, Any]]] = {}

    def write(self, documents: Iterable[Document], deletes: Iterable[str] = ()) -> int:
        """Replace documents and delete others, in one version; return it."""
        documents, deletes = list(documents), list(deletes)
        rows = read_rows(documents, self.schema)
        gone = [id.encode() for id in deletes]
        count = len(rows) + len(gone)
        columns: list[pa.Array] = [
            pa.concat_arrays([rows.ids, pa.array(gone, pa.binary())]),
            pa.array(np.arange(count) >= len(rows)),
        ]
        fields = list(self.schema.to_arrow())
        for attribute, field in zip(self.schema.attributes, fields, strict=True):
            values = rows.columns.get(attribute.name, pa.nulls(len(rows), field.type))
            columns.append(pa.concat_arrays([values, pa.nulls(len(gone), field.type)]))
        batch = pa.RecordBatch.from_arrays(columns, schema=log_schema(fields))
        lsn = self.writer.write(WriteRequest(batch=batch, nbytes=batch.nbytes)).lsn
        ids = {attribute.name: attribute.id for attribute in self.schema.attributes}
        for document in documents:
            self.rows[document["id"]] = {
                ids[name]: value
                for name, value in document.items()
                if name != "id" and value is not None
            }
        for id in deletes:
            self.rows.pop(id, None)
        self.versions[lsn] = dict(self.rows)
        return lsn

    def alter(self, schema: Schema) -> None:
        """Write under another schema from now on."""
        self.schema = schema
        self.writer.change_schema(schema.to_arrow())

    def flush(self) -> None:
        self.writer.flush()

    def view(self, lsn: int | None = None) -> DocumentView:
        """Return what is read at a version, by the schema of now."""
        view = self.writer.view() if lsn is None else self.writer.at_lsn(lsn)
        return DocumentView(view, self.schema)

    def documents(self, lsn: int | None = None) -> dict[str, Document]:
        """Return what should be read, by id, in order of ids."""
        rows = self.rows if lsn is None else self.versions[lsn]
        return {
            id: {
                "id": id,
                **{a.name: rows[id][a.id] for a in self.schema.attributes if a.id in rows[id]},
            }
            for id in sorted(rows, key=str.encode)
        }

    def close(self) -> None:
        self.writer.close()
        self.database.close()


def random_document(rng: random.Random, id: str, names: Iterable[str]) -> Document:
    """Return a document with some of the attributes called `names`."""
    makers = {
        "name": lambda: rng.choice(["apple", "pear", "plum", "", "été", "x" * 100]),
        "price": lambda: rng.choice([math.nan, -0.0, 0.0, 1.5, -3.25, 1e300, rng.random() * 10]),
        "stock": lambda: rng.choice([0, 1, -1, 2**62, -(2**62), rng.randrange(100)]),
        "total": lambda: rng.choice([0, 2**63, 7, rng.randrange(100)]),
        "sold": lambda: rng.random() < 0.5,
        "made": lambda: datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=rng.randrange(50)),
        "token": lambda: UUID(int=rng.choice([0, 2**128 - 1, rng.randrange(50)])),
        "raw": lambda: rng.choice([b"", b"\xff", b"\x00a", b"abc"]),
        "tags": lambda: rng.sample(["x", "y", "z"], rng.randrange(4)),
        "extra": lambda: rng.choice([{"a": [1, None]}, [1, "b"], "text", 3]),
        "vector": lambda: [rng.randrange(-8, 8) / 4 for _ in range(4)],
        "half_vector": lambda: [rng.randrange(-8, 8) / 4 for _ in range(2)],
        "terms": lambda: {"indices": [1, rng.randrange(2, 9)], "values": [0.5, 2.0]},
        "grade": lambda: rng.randrange(5),
    }
    return {"id": id} | {name: makers[name]() for name in names if rng.random() < 0.8}


def comparable(value: Any) -> Any:
    """Return a value that equals itself though it holds NaN."""
    if isinstance(value, dict):
        return {name: comparable(part) for name, part in value.items()}
    if isinstance(value, list):
        return [comparable(part) for part in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def busy_namespace(seed: int, store: Store | None = None, **settings: object) -> Namespace:
    """Return a namespace of overlapping segments and a memtable, under a schema that has changed.

    Keys are written again and deleted, attributes renamed, dropped, added under a name that was
    used before; the last versions are in memory only.
    """
    rng = random.Random(seed)
    namespace = Namespace(schema_of(**KINDS), store, **settings)
    pool = [f"d{i:03}" for i in range(150)] + [f"é{i}" for i in range(20)]
    for step in range(9):
        names = namespace.schema.names
        for _ in range(3):
            ids = rng.sample(pool, 40)
            alive = rng.randrange(20, 40)
            documents = [random_document(rng, id, known(names)) for id in ids[:alive]]
            namespace.write(
                [{ALIASES.get(k, k): v for k, v in d.items()} for d in documents]
                if "label" in names
                else documents,
                ids[alive:],
            )
        if step == 3:
            namespace.alter(namespace.schema.renamed({"name": "label"}).dropped(["sold", "total"]))
        if step == 5:
            namespace.alter(
                namespace.schema.added(
                    {
                        "sold": Type.parse("bool"),
                        "total": Type.parse("uint64"),
                        "grade": Type.parse("int64"),
                    }
                )
            )
        if step < 8:
            namespace.flush()
    return namespace


ALIASES = {"name": "label"}


def known(names: Iterable[str]) -> list[str]:
    """Return names of attributes as `random_document` knows them."""
    back = {new: old for old, new in ALIASES.items()}
    return [back.get(name, name) for name in names]
