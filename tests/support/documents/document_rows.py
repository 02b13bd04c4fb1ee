"""Namespaces of documents made directly on the kernel, with a dict beside them that says the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from reef.database import Database
from reef.documents.types import Schema, Type
from reef.engine import Face, View, Writer, WriteRequest, open_for_writing
from reef.format import log_schema
from tests.support.engine.open_database import database


def schema_of(**types: str) -> Schema:
    """Return a schema from names and texts of types."""
    return Schema().added({name: Type.parse(text) for name, text in types.items()})


class DocumentRows:
    """Documents as rows of the kernel. `model` has the values of each, by attribute."""

    def __init__(self, schema: Schema, db: Database | None = None) -> None:
        self.db = db or database()
        self.schema = schema
        self.model: dict[str, dict[str, Any]] = {}
        face = Face("documents", schema.to_arrow())
        self.writer: Writer = open_for_writing(self.db.context(), "ns", face)

    def upsert(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """Write whole documents as one batch."""
        self.model.update({id: dict(values) for id, values in documents.items()})
        self._write(list(documents), is_gone=False)

    def patch(self, ids: Iterable[str], **values: Any) -> None:
        """Write documents again with some values changed, as the kernel gets patches."""
        known = [id for id in ids if id in self.model]
        for id in known:
            self.model[id] = {**self.model[id], **values}
        self._write(known, is_gone=False)

    def delete(self, ids: Iterable[str]) -> None:
        """Write tombstones; the documents need not be there."""
        gone = list(ids)
        for id in gone:
            self.model.pop(id, None)
        self._write(gone, is_gone=True)

    def elsewhere(self) -> DocumentRows:
        """Return the same namespace as another process opens it: with nothing in its caches."""
        other = DocumentRows(self.schema, database(self.db.store))
        other.model = self.model
        return other

    def bytes_read(self) -> float:
        """Return how much has been read from the store so far."""
        figures = self.db.metrics.snapshot()
        return sum(
            value
            for name, value in figures.items()
            if name.startswith("reef_request_bytes_total") and "get" in name
        )

    def flush(self) -> None:
        """Make a segment of what is in memory."""
        self.writer.flush()

    def alter(self, schema: Schema) -> None:
        """Go on with another schema."""
        self.writer.change_schema(schema.to_arrow())
        self.schema = schema

    def view(self) -> View:
        """Return the newest version."""
        return self.writer.view()

    def _write(self, ids: list[str], *, is_gone: bool) -> None:
        if not ids:
            return
        arrow = self.schema.to_arrow()
        rows = [{} if is_gone else self.model[id] for id in ids]
        columns = [
            pa.array([row.get(attribute.name) for row in rows], attribute.type.physical)
            for attribute in self.schema.attributes
        ]
        keys = pa.array([id.encode() for id in ids], pa.binary())
        tombstones = pa.array([is_gone] * len(ids))
        batch = pa.RecordBatch.from_arrays(
            [keys, tombstones, *columns], schema=log_schema(list(arrow))
        )
        self.writer.write(WriteRequest(batch=batch, nbytes=batch.nbytes))
