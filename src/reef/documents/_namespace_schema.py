"""The schema of an open namespace: as its handle has seen it, as callers declare it, and its changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from reef.documents.types import Schema, Type
from reef.engine import Context, Face, Reader, Writer, open_for_reading
from reef.errors import InvalidInputError, NotFoundError
from reef.threads import Threads

FACE = Face("documents", Schema.EMPTY.to_arrow())


class NamespaceSchema:
    """The schema that the log of an open namespace ends with. Threads may share it."""

    def __init__(self, handle: Writer | Reader, threads: Threads) -> None:
        self._handle = handle
        self._altering = threads.condition()
        self._known: tuple[pa.Schema | None, Schema] = (None, Schema.EMPTY)

    def current(self) -> Schema:
        """Return the schema of the newest version that the handle has seen."""
        arrow = self._handle.tail.schema
        known, schema = self._known
        if arrow is not known and arrow is not None:
            schema = Schema.from_arrow(arrow)
            self._known = (arrow, schema)
        return schema

    def change(self, writer: Writer, change: Callable[[Schema], Schema]) -> Schema:
        """Make `change(current schema)` the schema, durably; return it."""
        writer.check_open()
        with self._altering:  # one at a time: each starts from the durable schema
            schema = change(self.current())
            if schema != self.current():
                writer.change_schema(schema.to_arrow())
            return schema

    def widen(self, writer: Writer, old: Schema, wider: Schema) -> bool:
        """Make `wider` the schema if it still is `old`; return whether it is `wider` now."""
        return self.change(writer, lambda now: wider if now == old else now) == wider

    def declare(self, declared: Mapping[str, Type], writer: Writer | None) -> None:
        """Add declared attributes that are new; a read-only handle raises InvalidInputError."""
        if writer is None:
            if self.current().with_declared(declared) != self.current():
                raise InvalidInputError(
                    "schema has attributes that the namespace does not have, and this handle is "
                    "read-only: open it with mode='w' to add them"
                )
        elif declared:
            self.change(writer, lambda now: now.with_declared(declared))


def declared_types(name: str, texts: Mapping[str, str] | None) -> dict[str, Type]:
    """Return the types that the argument `name` declares. Raises InvalidInputError."""
    if not isinstance(texts or {}, Mapping):
        raise InvalidInputError.of(
            name, texts, "a dict of names to types, as in {'price': 'float64'}"
        )
    return {name: Type.parse(text) for name, text in (texts or {}).items()}


def check_declared(context: Context, name: str, declared: Mapping[str, Type]) -> None:
    """Raise InvalidInputError if a namespace has other types: before its writer is fenced."""
    try:
        reader = open_for_reading(context, name, FACE)
    except NotFoundError:
        return
    if reader.tail.schema is not None:
        Schema.from_arrow(reader.tail.schema).with_declared(declared)
    reader.close()
