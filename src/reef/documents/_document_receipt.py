"""The result of a commit of documents."""

from __future__ import annotations

from dataclasses import dataclass, field

from reef.documents.input import outcomes_of_rows
from reef.engine import DELETED, OUTCOMES, WRITTEN, Receipt


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
    """A code for each row, except those whose id came again later in the batch."""
    is_kept: bytes | None = field(repr=False)
    """A 1 for each row that has a code, a 0 for each that has none; None: all have."""

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcome of each row, in the order given: upserts, then patches, then deletes."""
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
