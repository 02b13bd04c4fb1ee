"""Batches of documents → commits, one after the other; it always reports what was committed.

Each batch is one atomic commit. With a prefix, batch number n has the idempotency key `prefix/n`: a
second run over the same input, after a crash at any point, writes what is missing and nothing twice.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reef.cli._report import Report, progress_bars
from reef.cli.docs._input import Batch, Input
from reef.errors import (
    ConditionFailedError,
    FencedError,
    IdempotencyError,
    InvalidInputError,
    ReefError,
)

if TYPE_CHECKING:
    from reef.documents import DocumentReceipt, Documents

_ROW = re.compile(r"^row (\d+)(?=\W)|(?<=the id of row )(\d+)")
_UNMET = ("exists", "missing", "differs")

Write = Callable[[object, bytes | None], "DocumentReceipt"]
"""Commits what a batch holds, under an idempotency key."""


@dataclass
class LoadProgress:
    """What was committed so far."""

    lsn: int | None = None
    generation: int | None = None
    batches: int = 0
    replayed: int = 0
    """How many of the batches an earlier run had committed."""
    upserted: int = 0
    patched: int = 0
    deleted: int = 0
    skipped: int = 0

    def add(self, receipt: DocumentReceipt) -> None:
        """Count a commit in."""
        self.lsn, self.generation = receipt.lsn, receipt.generation
        self.batches += 1
        self.replayed += receipt.replayed
        self.upserted += receipt.upserted
        self.patched += receipt.patched
        self.deleted += receipt.deleted
        self.skipped += receipt.skipped

    @property
    def documents(self) -> int:
        """How many documents the committed batches changed."""
        return self.upserted + self.patched + self.deleted

    def report(self) -> Report:
        """Return it, for people and for programs."""
        counts = (("upserted", self.upserted), ("patched", self.patched), ("deleted", self.deleted))
        done = [f"{count} {what}" for what, count in counts if count] or ["nothing changed"]
        if self.skipped:
            done.append(f"{self.skipped} left out")
        if self.replayed:
            done.append(f"{self.replayed} of {self.batches} batches had been written before")
        summary = f"{', '.join(done)}; LSN {self.lsn}"
        return Report(
            vars(self), [summary if self.batches else "no documents came in; nothing was written"]
        )


def key_of(prefix: bytes | None, number: int) -> bytes | None:
    """Return the idempotency key of batch `number`, from 1 on."""
    return None if prefix is None else b"%s/%d" % (prefix, number)


def load_batches(
    ns: Documents,
    source: Input,
    batches: Iterator[Batch],
    write: Write,
    *,
    declared: Collection[str],
    prefix: bytes | None,
    is_patch: bool,
) -> LoadProgress:
    """Commit batch after batch; what stops it is raised, with how much was committed before.

    `declared` are the attributes whose types the user gave.
    """
    progress = LoadProgress()
    with progress_in_errors(progress), progress_bars() as bars:
        for number, batch in enumerate(batches, 1):
            with _in_terms_of(batch):
                data = batch.documents(ns.schema, declared, is_patch=is_patch)
                progress.add(write(data, key_of(prefix, number)))
            bars("put", batch.read_bytes, source.size, f"{progress.documents:,} documents")
    return progress


@contextlib.contextmanager
def progress_in_errors(progress: LoadProgress) -> Iterator[None]:
    """Add to errors, and print on Ctrl-C, how much was committed before."""
    try:
        yield
    except (ReefError, KeyboardInterrupt) as error:
        summary = (
            f"{progress.documents} documents, in {progress.batches} batches, were committed before it"
            if progress.batches
            else "no documents were committed"
        )
        if isinstance(error, KeyboardInterrupt):
            print(f"reef: {summary.removesuffix(' before it')}", file=sys.stderr)
        else:
            text = str(error).removesuffix("; nothing was written")
            lost = "; nothing of its batch was written" if _is_refusal(error) else ""
            error.args = (f"{text}{lost}; {summary}", *error.args[1:])
        raise


def _is_refusal(error: ReefError) -> bool:
    return isinstance(error, InvalidInputError | ConditionFailedError | FencedError)


@contextlib.contextmanager
def _in_terms_of(batch: Batch) -> Iterator[None]:
    """Let errors name lines of the input instead of rows of a batch."""
    try:
        yield
    except IdempotencyError as error:
        raise IdempotencyError(
            f"{error}: the batch from {batch.unit} {batch.numbers[0]} on differs from the one first "
            "written with this --idempotency-prefix; repeat it with the same input and "
            "--batch-size, or use a new prefix"
        ) from error
    except InvalidInputError as error:
        error.args = (_ROW.sub(lambda match: _line_or_row(match, batch), str(error)),)
        raise
    except ConditionFailedError as error:
        error.args = (_unmet(error, batch.unit, batch.numbers),)
        raise


def _line_or_row(match: re.Match[str], batch: Batch) -> str:
    row = int(match[1] or match[2])
    number = batch.numbers[row] if row < len(batch.numbers) else row
    return f"{batch.unit} {number}" if match[1] else f"{number}"


def _unmet(error: ConditionFailedError, unit: str, numbers: Sequence[int]) -> str:
    unmet = [i for i, outcome in enumerate(error.outcomes) if outcome in _UNMET]
    text = str(error).partition("; nothing was written")[0]
    if not unmet:
        return text
    return (
        f"{unit} {numbers[unmet[0]]} ({error.outcomes[unmet[0]]}): {text}; --skip leaves them out"
    )
