"""Upserts, patches and deletes → the rows that are logged.

A change is one batch: rows of upserts, then of patches, then of deletes. Patches and conditions are
resolved under the writer's lock against everything committed or on its way: the log holds whole
documents and deletes only, so that to replay it takes no context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.documents._filter import Filter
from reef.documents._given import Given
from reef.documents._schema import Schema
from reef.documents._selection import wide_of
from reef.engine import (
    DIFFERS,
    EXISTS,
    MISSING,
    CreateOnly,
    MustExist,
    ReadState,
    Resolved,
    View,
    refuse,
)
from reef.format import KEY, LSN, TOMBSTONE, field_id, log_schema
from reef.segment import Found, align, union
from reef.types import LSN_MAX

_SYSTEM = (KEY, LSN, TOMBSTONE)

DocumentCondition = CreateOnly | MustExist | Filter


@dataclass(frozen=True)
class Change:
    """One request, checked, in the columns that it is stored in."""

    schema: Schema
    batch: pa.RecordBatch
    """What is given: for a patch, the attributes that it changes."""
    upserts: int
    patches: int
    """How many rows are of which kind; the rest are deletes."""
    present: Mapping[str, pa.Array]
    """By column, for those that only some patches change: which."""
    patched: tuple[str, ...]
    """The columns that patches change."""
    nbytes: int
    condition: DocumentCondition | None = None
    atomic: bool = True

    @property
    def needs_state(self) -> bool:
        """Whether it depends on what is there."""
        return bool(self.patches) or self.condition is not None

    def prepare(self, view: View) -> None:
        """Bring what `resolve` will read into memory."""
        keys = self._keys_to_read()
        view.read(lambda state: state.get_many(keys, view.lsn, wide=self._needs_wide))

    def resolve(self, state: ReadState) -> Resolved:
        """Return the rows to log, by what there is. Raises ConditionFailedError."""
        found = state.get_many(self._keys_to_read(), LSN_MAX, wide=self._needs_wide)
        refusals = np.zeros(self.batch.num_rows, np.uint8)
        if self.condition is not None:
            refusals = self._refusals(found)
            found = found[self.upserts : self.upserts + self.patches]
        batch = self.batch
        if self.patches:
            mine = refusals[self.upserts : self.upserts + self.patches]
            mine[(mine == 0) & ~_exist(found)] = MISSING
            batch = self._patched(found)
        why = str(self.condition or "MustExist(): a patch needs its document")
        return refuse(batch, refusals, atomic=self.atomic, why=why)

    @property
    def _needs_wide(self) -> bool:
        asked = self.condition.columns if isinstance(self.condition, Filter) else ()
        return bool(self.patches) or not {*wide_of(self.schema.attributes)}.isdisjoint(asked)

    def _keys_to_read(self) -> list[bytes]:
        keys = self.batch.column(0)
        if self.condition is None:
            keys = keys.slice(self.upserts, self.patches)
        found: list[bytes] = keys.to_pylist()
        return found

    def _refusals(self, found: Sequence[Found | None]) -> npt.NDArray[np.uint8]:
        """Return for each row 0, or the code of why the condition does not hold."""
        exist = _exist(found)
        refusals = np.zeros(len(found), np.uint8)
        if isinstance(self.condition, CreateOnly):
            refusals[exist] = EXISTS
        elif isinstance(self.condition, MustExist):
            refusals[~exist] = MISSING
        elif self.condition is not None:
            # A document that is not there is one without attributes: so "absent or older than
            # this" can be said, and whatever compares with what is not there does not hold.
            columns = [f for f in self.schema.to_arrow() if f.name in self.condition.columns]
            there = gathered(found, pa.schema(columns))
            holds = self.condition.mask(there, self.batch).to_numpy(zero_copy_only=False)
            refusals[~holds] = np.where(exist[~holds], DIFFERS, MISSING)
        return refusals

    def _patched(self, found: Sequence[Found | None]) -> pa.RecordBatch:
        """Return all rows, those of patches with what they leave as it is."""
        first, stop = self.upserts, self.upserts + self.patches
        fields = columns_of(self.schema, found, self.batch)
        there = gathered(found, pa.schema(fields))
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
    schema: Schema, given: Given, *, condition: DocumentCondition | None = None, atomic: bool = True
) -> Change:
    """Put a request together, in the columns of `schema`, which has all of its attributes."""
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
        columns.append(_joined([*arrays, pa.nulls(len(deletes), kind)] if len(deletes) else arrays))
    keys = _joined([*(rows.ids for rows in parts), *([deletes] if len(deletes) else [])])
    tombstones = np.zeros(len(keys), np.bool_)
    tombstones[len(keys) - len(deletes) :] = True
    present = (patches.present if patches is not None else None) or {}
    return Change(
        schema=schema,
        batch=pa.RecordBatch.from_arrays(
            [keys, pa.array(tombstones), *columns], schema=log_schema(fields)
        ),
        upserts=0 if given.upserts is None else len(given.upserts),
        patches=0 if patches is None else len(patches),
        present={schema.attribute(name).column: mask for name, mask in present.items()},
        patched=()
        if patches is None
        else tuple(schema.attribute(name).column for name in patches.columns),
        nbytes=given.nbytes,
        condition=condition,
        atomic=atomic,
    )


def columns_of(
    schema: Schema, found: Sequence[Found | None], batch: pa.RecordBatch
) -> list[pa.Field]:
    """Return the columns of rows that were found and of `batch`, but for attributes since dropped.

    Not those of `schema`: a row may have an attribute that was added after the request came in.
    """
    batches = {id(one.batch): one.batch for one in found if one is not None and not one.tombstone}
    fields = [f for f in batch.schema if f.name not in _SYSTEM]
    for other in batches.values():
        fields = union(fields, [f for f in other.schema if f.name not in _SYSTEM])
    known = {attribute.column for attribute in schema.attributes}
    return [f for f in fields if f.name in known or (field_id(f) or 0) >= schema.next_id]


def gathered(found: Sequence[Found | None], schema: pa.Schema) -> pa.RecordBatch:
    """Return `_key` and the columns of `schema` of what was found; rows of nulls for what was not."""
    batches: dict[int, pa.RecordBatch] = {}
    places: dict[int, tuple[list[int], list[int]]] = {}
    for i, one in enumerate(found):
        if one is not None and not one.tombstone:
            batches[id(one.batch)] = one.batch
            into, rows = places.setdefault(id(one.batch), ([], []))
            into.append(i)
            rows.append(one.row)
    shown = pa.schema([pa.field(KEY, pa.binary()), *schema])
    index = np.full(len(found), -1, np.int64)
    parts, count = [], 0
    for number, batch in batches.items():
        into, rows = places[number]
        index[into] = np.arange(count, count + len(rows))
        count += len(rows)
        parts.append(align(batch, shown).take(pa.array(rows, pa.int64())))
    if not parts:
        arrays = [pa.nulls(len(found), field.type) for field in shown]
        return pa.RecordBatch.from_arrays(arrays, schema=shown)
    return pa.concat_batches(parts).take(pa.array(index, mask=index < 0))


def _exist(found: Sequence[Found | None]) -> npt.NDArray[np.bool_]:
    return np.array([one is not None and not one.tombstone for one in found], np.bool_)


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
