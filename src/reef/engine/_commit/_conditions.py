"""Conditions: what must hold of a row for its write to count.

They are evaluated under the writer's lock against everything that was committed or is in flight
before, and only what they let through is logged. So replay needs no conditions; the log has a copy
for people who ask later why a row was refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import eq

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.engine._commit._receipt import (
    DIFFERS,
    EXISTS,
    MISSING,
    NOT_APPLIED,
    OUTCOMES,
    WRITTEN,
)
from reef.engine._read._latest import Latest
from reef.engine._read._view import ReadState
from reef.errors import ConditionFailedError, InvalidInputError
from reef.format import KEY
from reef.types import LSN_MAX

_RECORD_BYTES_MAX = 64 << 10  # above this, the record has only a digest of the values


@dataclass(frozen=True)
class CreateOnly:
    """Only rows whose key does not exist are written."""


@dataclass(frozen=True)
class MustExist:
    """Only rows whose key exists are written or deleted."""


@dataclass(frozen=True, init=False)
class Equals:
    """Only rows whose key exists with these column values are written or deleted.

    `Equals(value=b"old")` expects the same value for every row of the request;
    `Equals(value=[b"a", b"b"])` gives one for each row, puts first, then deletes.
    """

    expected: Mapping[str, object]

    def __init__(self, **expected: object) -> None:
        if not expected:
            raise InvalidInputError(
                "Equals() compares nothing: give at least one column and its value"
            )
        object.__setattr__(self, "expected", expected)


Condition = CreateOnly | MustExist | Equals


class Resolved(msgspec.Struct, frozen=True):
    """The rows of a batch that its condition let through, and the outcome of each row."""

    batch: pa.RecordBatch
    codes: bytes


Resolve = Callable[[ReadState], Resolved]
"""Called under the writer's lock: returns the rows to log, by what is there at `LSN_MAX`: all that
was committed or is in flight."""


def encode_condition(condition: Condition | None) -> bytes | None:
    """Return the record of a condition for the log."""
    if condition is None:
        return None
    if not isinstance(condition, CreateOnly | MustExist | Equals):
        raise InvalidInputError.of(
            "condition", condition, "CreateOnly(), MustExist() or Equals(column=value)"
        )
    expected = dict(condition.expected) if isinstance(condition, Equals) else {}
    said = {"kind": type(condition).__name__, "expected": expected}
    try:
        record = msgspec.msgpack.encode(said)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError.of(
            "condition", condition, f"plain values (bytes, text, numbers): {error}"
        ) from error
    if len(record) > _RECORD_BYTES_MAX:
        digest = hashlib.blake2b(record, digest_size=16).digest()
        record = msgspec.msgpack.encode({"kind": said["kind"], "digest": digest})
    return record


def plain_codes(batch: pa.RecordBatch) -> bytes:
    """Return the codes of a batch whose every row is applied: 1, which is DELETED, for tombstones."""
    tombstones = batch.column(1)  # by position: looking up the name takes longer
    if not tombstones.true_count:
        return bytes(len(tombstones))  # WRITTEN is 0
    flags: bytes = tombstones.to_numpy(zero_copy_only=False).tobytes()
    return flags


def resolve(
    batch: pa.RecordBatch, condition: Condition, *, atomic: bool, state: ReadState
) -> Resolved:
    """Return the rows of `batch` that `condition` lets through.

    Raises ConditionFailedError if `atomic` and it refuses any.
    """
    found = state.many(batch.column(KEY), LSN_MAX, wide=isinstance(condition, Equals))
    refusals = _refusals(condition, found)
    return refuse(batch, refusals, atomic=atomic, why=condition)


def refuse(
    batch: pa.RecordBatch, refusals: npt.NDArray[np.uint8], *, atomic: bool, why: object
) -> Resolved:
    """Return the rows of `batch` whose code in `refusals` is WRITTEN.

    Raises ConditionFailedError, with `why` as text, if `atomic` and any row has another code.
    """
    codes = plain_codes(batch)
    refused = refusals != WRITTEN
    if not refused.any():
        return Resolved(batch, codes)
    if atomic:
        told = np.where(refused, refusals, NOT_APPLIED).astype(np.uint8).tobytes()
        raise ConditionFailedError(
            f"{int(refused.sum())} of {len(refused)} rows do not meet {why}; "
            "nothing was written: see `outcomes` for each row",
            tuple(map(OUTCOMES.__getitem__, told)),
        )
    mixed = np.where(refused, refusals, np.frombuffer(codes, np.uint8))
    return Resolved(batch.filter(pa.array(~refused)), mixed.astype(np.uint8).tobytes())


def _refusals(condition: Condition, found: Latest) -> npt.NDArray[np.uint8]:
    """Return for each row WRITTEN, or the code that says why not."""
    exists = found.exists
    if isinstance(condition, CreateOnly):
        return np.where(exists, EXISTS, WRITTEN).astype(np.uint8)
    is_met = exists.copy()
    if isinstance(condition, Equals):
        known = {field.name: field for field in found.fields}
        for name, value in condition.expected.items():
            wanted = _spread(name, value, len(exists))
            if not exists.any():
                continue
            if name not in known:
                raise InvalidInputError(
                    f"the condition names {name!r}, which does not exist: expected one of "
                    f"{', '.join(known)}"
                )
            there = found.rows(pa.schema([known[name]])).column(0).to_pylist()
            is_met &= np.fromiter(map(eq, there, wanted), np.bool_, len(there))
    return np.where(is_met, WRITTEN, np.where(exists, DIFFERS, MISSING)).astype(np.uint8)


def _spread(name: str, value: object, rows: int) -> Sequence[object]:
    """Return one expected value for each row."""
    if not isinstance(value, list | tuple):
        return [value] * rows
    if len(value) != rows:
        raise InvalidInputError(
            f"the condition gives {len(value)} values for {name!r}: expected one for "
            f"each of the {rows} rows"
        )
    return value
