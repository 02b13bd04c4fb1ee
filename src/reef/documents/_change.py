"""Upserts, patches and deletes → the rows that are logged.

A change is one batch: rows of upserts, then of patches, then of deletes. Patches and conditions are
resolved under the writer's lock against everything committed or in flight: the log holds whole
documents and deletes only, so that to replay it takes no context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.documents.filter import Filter, Where, parse_filter
from reef.documents.input import CheckedRequest, outcomes_of_rows
from reef.documents.query import wide_of
from reef.documents.types import Schema
from reef.engine import (
    DELETED,
    DIFFERS,
    EXISTS,
    MISSING,
    WRITTEN,
    CreateOnly,
    Equals,
    Latest,
    MustExist,
    ReadState,
    Resolved,
    View,
    WriteRequest,
    encode_condition,
    refuse,
)
from reef.errors import ConditionFailedError, InvalidInputError
from reef.format import KEY, LSN, TOMBSTONE, field_id, log_schema, owned_rows
from reef.segment import align, union
from reef.types import LSN_MAX

_SYSTEM = (KEY, LSN, TOMBSTONE)
_KEY_FIELD = pa.field(KEY, pa.binary())

Condition = CreateOnly | MustExist | Equals | Where
"""What must hold of a document for its row to be written, as callers say it."""


@dataclass(frozen=True)
class Change:
    """One request, checked, in the columns that it is stored in."""

    schema: Schema
    batch: pa.RecordBatch
    """The given rows; for a patch, the attributes that it changes."""
    upserts: int
    patches: int
    """How many rows are of which kind; the rest are deletes."""
    present: Mapping[str, pa.Array]
    """For each column that only some patches change: which patches do."""
    patched: tuple[str, ...]
    """The columns that patches change."""
    nbytes: int
    stream: pa.Buffer | None = None
    """The encoded batch, if it is encoded already."""
    is_kept: bytes | None = None
    """As `CheckedRequest` has it."""
    condition: CreateOnly | MustExist | Filter | None = None
    condition_bytes: bytes | None = None
    """The condition as the log records it."""
    atomic: bool = True
    digest: bytes | None = None
    """The digest of the logical request, if it has an idempotency key."""

    def request(self, key: bytes | None, source: str | None, sequence: int | None) -> WriteRequest:
        """Return the request for the writer."""
        needs_state = bool(self.patches) or self.condition is not None
        deletes = self.batch.num_rows - self.upserts - self.patches
        return WriteRequest(
            batch=self.batch,
            stream=self.stream,
            nbytes=self.nbytes,
            codes=bytes([WRITTEN]) * (self.upserts + self.patches) + bytes([DELETED]) * deletes,
            resolve=self.resolve if needs_state else None,
            prepare=self.prepare if needs_state else None,
            condition=self.condition_bytes,
            idempotency_key=key,
            digest=self.digest,
            source=source,
            sequence=sequence,
        )

    def prepare(self, view: View) -> None:
        """Bring what `resolve` will read into memory."""
        view.many(self._keys_to_read(), wide=self._needs_wide)

    def resolve(self, state: ReadState) -> Resolved:
        """Return the rows to log, given the stored rows. Raises ConditionFailedError."""
        latest = state.many(self._keys_to_read(), LSN_MAX, wide=self._needs_wide)
        refusals = np.zeros(self.batch.num_rows, np.uint8)
        first = 0
        if self.condition is not None:
            refusals, first = self._refusals(latest), self.upserts
        batch = self.batch
        if self.patches:
            mine = refusals[self.upserts : self.upserts + self.patches]
            mine[(mine == 0) & ~latest.exists[first : first + self.patches]] = MISSING
            batch = self._patched(latest, first)
        why = self.condition or "MustExist(): a patch needs its document"
        try:
            return refuse(batch, refusals, atomic=self.atomic, why=why)
        except ConditionFailedError as error:
            error.outcomes = outcomes_of_rows(error.outcomes, self.is_kept)
            raise

    @property
    def _needs_wide(self) -> bool:
        tested = self.condition.columns if isinstance(self.condition, Filter) else ()
        return bool(self.patches) or not {*wide_of(self.schema.attributes)}.isdisjoint(tested)

    def _keys_to_read(self) -> pa.BinaryArray:
        keys = self.batch.column(0)
        return keys if self.condition is not None else keys.slice(self.upserts, self.patches)

    def _refusals(self, latest: Latest) -> npt.NDArray[np.uint8]:
        """Return for each row 0, or the code of why the condition does not hold."""
        exist = latest.exists
        refusals = np.zeros(len(exist), np.uint8)
        if isinstance(self.condition, CreateOnly):
            refusals[exist] = EXISTS
        elif isinstance(self.condition, MustExist):
            refusals[~exist] = MISSING
        elif self.condition is not None:
            # A document that is not there is one without attributes: so "absent or older than
            # this" can be said, and whatever compares with what is not there does not hold.
            columns = [f for f in self.schema.to_arrow() if f.name in self.condition.columns]
            there = latest.rows(pa.schema([_KEY_FIELD, *columns]))
            holds = self.condition.matches(there, self.batch)
            refusals[~holds] = np.where(exist[~holds], DIFFERS, MISSING)
        return refusals

    def _patched(self, latest: Latest, first_patch: int) -> pa.RecordBatch:
        """Return all rows, those of patches with what they leave as it is.

        `first_patch` is the number of the first patch among the keys of `latest`.
        """
        first, stop = self.upserts, self.upserts + self.patches
        fields = columns_to_write(self.schema, latest.fields, self.batch)
        there = latest.rows(pa.schema(fields), first_patch, self.patches)
        given = align(self.batch, log_schema(fields))
        columns = []
        for field in fields:
            new, old = given.column(field.name), there.column(field.name)
            mine = new.slice(first, self.patches) if field.name in self.patched else old
            if field.name in self.present:
                changed = self.present[field.name].to_numpy(zero_copy_only=False)
                index = np.arange(self.patches) + np.where(changed, self.patches, 0)
                mine = pa.concat_arrays([old, mine]).take(pa.array(index))
            columns.append(pa.concat_arrays([new.slice(0, first), mine, new.slice(stop)]))
        return pa.RecordBatch.from_arrays(
            [given.column(0), given.column(1), *columns], schema=given.schema
        )


def change_of(
    schema: Schema,
    given: CheckedRequest,
    *,
    condition: Condition | None,
    atomic: bool,
    needs_digest: bool,
) -> Change:
    """Put a request together, in the columns of `schema`, which has all of its attributes.

    It has memory of its own: the caller may change its buffers afterwards.
    """
    wanted, condition_bytes = condition_of(condition, schema)
    parts = [rows for rows in (given.upserts, given.patches) if rows is not None]
    patches, deletes = given.patches, given.deletes
    names = {name for rows in parts for name in rows.columns}
    attributes = [attribute for attribute in schema.attributes if attribute.name in names]
    fields = [field for field in schema.to_arrow() if field.name in {a.column for a in attributes}]
    columns = []
    for attribute in attributes:
        kind = attribute.type.physical
        arrays = [
            rows.columns[attribute.name]
            if attribute.name in rows.columns
            else pa.nulls(len(rows), kind)
            for rows in parts
        ]
        columns.append(_concatenated(*arrays, pa.nulls(len(deletes), kind)))
    keys = _concatenated(*(rows.ids for rows in parts), deletes)
    tombstones = np.zeros(len(keys), np.bool_)
    tombstones[len(keys) - len(deletes) :] = True
    batch, stream = owned_rows(
        pa.RecordBatch.from_arrays(
            [keys, pa.array(tombstones), *columns], schema=log_schema(fields)
        )
    )
    present = (patches.present if patches is not None else None) or {}
    return Change(
        schema=schema,
        batch=batch,
        stream=stream,
        upserts=0 if given.upserts is None else len(given.upserts),
        patches=0 if patches is None else len(patches),
        present={a.column: present[a.name] for a in attributes if a.name in present},
        patched=()
        if patches is None
        else tuple(schema.attribute(name).column for name in patches.columns),
        nbytes=given.nbytes,
        is_kept=given.is_kept,
        condition=wanted,
        condition_bytes=condition_bytes,
        atomic=atomic,
        digest=given.digest(condition_bytes, b"atomic" if atomic else b"rows")
        if needs_digest
        else None,
    )


def condition_of(
    condition: Condition | None, schema: Schema
) -> tuple[CreateOnly | MustExist | Filter | None, bytes | None]:
    """Return a condition to evaluate, and to record in the log. Raises InvalidInputError."""
    if condition is None:
        return None, None
    if isinstance(condition, type):
        raise InvalidInputError(
            f"condition = {condition.__name__} is the class: give {condition.__name__}(...)"
        )
    if isinstance(condition, CreateOnly | MustExist):
        return condition, encode_condition(condition)
    if isinstance(condition, Equals):
        equal = [(name, "Eq", value) for name, value in condition.expected.items()]
        condition = ("And", [("Not", ("id", "IsNull")), *equal])  # what is not there equals nothing
    filter = parse_filter(condition, schema)
    return filter, filter.encode()


def _concatenated(*arrays: pa.Array) -> pa.Array:
    """Return `arrays` as one: perhaps on the memory of the only one that is not empty."""
    some = [array for array in arrays if len(array)]
    return pa.concat_arrays(some) if len(some) > 1 else (some or arrays)[0]


def columns_to_write(
    schema: Schema, found: Sequence[pa.Field], batch: pa.RecordBatch
) -> list[pa.Field]:
    """Return the columns of rows that were found and of `batch`, but for attributes since dropped.

    Not those of `schema`: a row may have an attribute that was added after the request came in.
    """
    fields = union([f for f in batch.schema if f.name not in _SYSTEM], found)
    known = {attribute.column for attribute in schema.attributes}
    return [f for f in fields if f.name in known or (field_id(f) or 0) >= schema.next_id]
