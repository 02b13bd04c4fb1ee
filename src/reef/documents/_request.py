"""What a request to documents says beside its rows, checked; and the answer to its caller."""

from __future__ import annotations

from dataclasses import dataclass, field

from reef.documents._change import DocumentCondition
from reef.documents.filter import Where, parse_filter
from reef.documents.input import outcomes_of_rows
from reef.documents.types import Schema
from reef.engine import (
    DELETED,
    OUTCOMES,
    WRITTEN,
    CreateOnly,
    Equals,
    MustExist,
    Receipt,
    encode_condition,
)
from reef.errors import InvalidInputError

Condition = CreateOnly | MustExist | Equals | Where


@dataclass(frozen=True)
class DocumentReceipt:
    """A durable commit: it survives anything that may happen from now on."""

    lsn: int
    """The version at which it is visible; readers given this as `min_lsn` see it."""
    generation: int = field(compare=False)
    """The manifest that was current then."""
    upserted: int
    patched: int
    deleted: int
    skipped: int
    """Rows that did not meet the condition, with `atomic=False`."""
    replayed: bool = field(compare=False)
    """Nothing was written: this is the receipt of an earlier request of the same key."""
    codes: bytes = field(repr=False)
    """A code for each row, but for those whose id came again in their batch."""
    is_kept: bytes | None = field(repr=False)
    """A 1 for each row that has a code, a 0 for each that has none; None: all have."""

    @property
    def outcomes(self) -> tuple[str, ...]:
        """What became of each row: upserts first, then patches, then deletes, in the order given."""
        return outcomes_of_rows(tuple(map(OUTCOMES.__getitem__, self.codes)), self.is_kept)

    @classmethod
    def of(
        cls, receipt: Receipt, generation: int, upserts: int, patches: int, is_kept: bytes | None
    ) -> DocumentReceipt:
        """Return what the kernel's receipt of so many upserts and patches, then deletes, says."""
        codes = receipt.codes
        return cls(
            lsn=receipt.lsn,
            generation=generation,
            upserted=codes[:upserts].count(WRITTEN),
            patched=codes[upserts : upserts + patches].count(WRITTEN),
            deleted=codes.count(DELETED),
            skipped=len(codes) - codes.count(WRITTEN) - codes.count(DELETED),
            replayed=receipt.replayed,
            codes=codes,
            is_kept=is_kept,
        )


def condition_of(
    condition: Condition | None, schema: Schema
) -> tuple[DocumentCondition | None, bytes | None]:
    """Return a condition as it is asked, and as it is recorded."""
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
