"""The documents of a request as they were given: read, checked against each other, and summed up."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.input._input_rows import ID, Duplicates, InputRows, read_rows
from reef.documents.input._sources import SourceColumns, input_columns
from reef.documents.types import Schema, is_list
from reef.errors import InvalidInputError

SUPERSEDED = "superseded"
"""The outcome of a row whose id came again in its own batch."""


@dataclass(frozen=True)
class CheckedRequest:
    """Upserts, patches and deletes of one request; each id is in one of them, once."""

    upserts: InputRows | None
    patches: InputRows | None
    deletes: pa.Array
    is_kept: bytes | None = None
    """A 1 for each row of the request that counts, a 0 for each whose id came again; None: all do."""

    @property
    def nbytes(self) -> int:
        """What the values take."""
        rows = sum(rows.nbytes for rows in (self.upserts, self.patches) if rows is not None)
        return rows + int(self.deletes.nbytes)

    def digest(self, *parts: bytes | None) -> bytes:
        """Return the 16-byte digest of the request and its arguments.

        By the names that were given, whatever became of them since, and whether they have a type by
        now: of a column of nulls and empty lists only these are counted in. A null of an upsert is
        as good as nothing, one of a patch is not.
        """
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(b"-" if part is None else b"%d:" % len(part) + part)
        for kind, rows in ((b"upserts", self.upserts), (b"patches", self.patches)):
            if rows is not None:
                digest.update(kind)
                _add_rows(digest, rows, is_patch=rows is self.patches)
        if len(self.deletes):
            digest.update(b"deletes")
            _add(digest, {ID: self.deletes})
        return digest.digest()


class RequestColumns(NamedTuple):
    """The documents of a request, in columns that can be read twice."""

    upserts: SourceColumns | None
    patches: SourceColumns | None
    deletes: object
    duplicates: Duplicates

    @classmethod
    def of(
        cls,
        upserts: object = None,
        patches: object = None,
        deletes: object = None,
        duplicates: Duplicates = "last",
    ) -> RequestColumns:
        """Read a request. Raises InvalidInputError."""
        put, patched = (
            None if rows is None else input_columns(rows) for rows in (upserts, patches)
        )
        return cls(put, patched, _ids(deletes), duplicates)

    def read(self, schema: Schema) -> tuple[CheckedRequest, Schema]:
        """Return the request, checked, and `schema` with the attributes that are new in it.

        Raises InvalidInputError.
        """
        put = patched = gone = None
        if self.upserts is not None:
            put = read_rows(self.upserts, schema, duplicates=self.duplicates)
            schema = schema.added(put.new) if put.new else schema
        if self.patches is not None:
            patched = read_rows(self.patches, schema, duplicates=self.duplicates, is_patch=True)
            schema = schema.added(patched.new) if patched.new else schema
        if self.deletes is not None:
            gone = read_rows({ID: self.deletes}, schema)
        parts = [rows for rows in (put, patched, gone) if rows]
        _check_named_once([rows.ids for rows in parts])
        deletes = pa.array([], pa.binary()) if gone is None else gone.ids
        return CheckedRequest(put or None, patched or None, deletes, _kept(parts)), schema


def outcomes_of_rows(outcomes: tuple[str, ...], is_kept: bytes | None) -> tuple[str, ...]:
    """Return an outcome for each row of a request, by those of the rows that count."""
    if is_kept is None or not outcomes:  # of a stream that has come further, none is known
        return outcomes
    known = iter(outcomes)
    return tuple(next(known) if is_one else SUPERSEDED for is_one in is_kept)


def _kept(parts: Sequence[InputRows]) -> bytes | None:
    """Say of each row of `parts` as they were given whether it counts; None: all do."""
    if all(rows.is_kept is None for rows in parts):
        return None
    return b"".join(rows.is_kept or b"\1" * len(rows) for rows in parts)


def _ids(deletes: object) -> object:
    """Return ids to delete as something that can be read twice. Raises InvalidInputError."""
    if deletes is None or hasattr(deletes, "__array__"):  # pyarrow's, NumPy's, pandas'
        return deletes
    if isinstance(deletes, str):
        return [deletes]
    if not isinstance(deletes, Iterable):
        raise InvalidInputError.of("deletes", deletes, "a list of ids")
    return list(deletes)


def _check_named_once(ids: list[pa.Array]) -> None:
    """Raise InvalidInputError unless there is something to do, once to each id."""
    if not ids:
        raise InvalidInputError("nothing to write: give upserts, patches or deletes")
    if len(ids) > 1:
        counts = pa.concat_arrays(ids).value_counts()
        twice = counts.filter(pc.greater(counts.field("counts"), 1))
        if len(twice):
            raise InvalidInputError(
                f"id {twice[0]['values'].as_py().decode()!r} appears in more than one "
                "of upserts, patches, deletes"
            )


def _add_rows(digest: hashlib.blake2b, rows: InputRows, *, is_patch: bool) -> None:
    blank = {name: c.is_valid() for name, c in rows.columns.items() if _says_nothing(c)}
    told = {name: column for name, column in rows.columns.items() if name not in blank}
    _add(digest, {ID: rows.ids, **told})
    masks = {b"lists": {**blank, **rows.untyped}, b"given": rows.present or {}}
    if not is_patch:
        masks[b"lists"] = {name: mask for name, mask in masks[b"lists"].items() if mask.true_count}
    for kind, of_kind in masks.items():
        for name, mask in sorted(of_kind.items()):
            digest.update(b"%s %d:%s" % (kind, len(name.encode()), name.encode()))
            digest.update(mask.to_numpy(zero_copy_only=False).tobytes())


def _add(digest: hashlib.blake2b, columns: dict[str, pa.Array]) -> None:
    rows = pa.RecordBatch.from_pydict(dict(sorted(columns.items())))
    rows = rows.take(pa.array(np.arange(rows.num_rows)))  # whatever it was cut from
    digest.update(rows.schema.serialize())
    digest.update(rows.serialize())


def _says_nothing(column: pa.Array) -> bool:
    """Return whether all values are null or empty lists."""
    if column.null_count == len(column):
        return True
    return is_list(column.type) and not len(column.flatten())
