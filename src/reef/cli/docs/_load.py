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

from reef.cli._output import print_json
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

    def print(self, as_json: bool) -> None:
        """Print it, for people or for programs."""
        if as_json:
            print_json(vars(self))
            return
        counts = (("upserted", self.upserted), ("patched", self.patched), ("deleted", self.deleted))
        done = [f"{count} {what}" for what, count in counts if count] or ["nothing changed"]
        if self.skipped:
            done.append(f"{self.skipped} left out")
        if self.replayed:
            done.append(f"{self.replayed} of {self.batches} batches had been written before")
        print(
            f"{', '.join(done)}; LSN {self.lsn}"
            if self.batches
            else "no documents came in; nothing was written"
        )


def key_of(prefix: bytes | None, number: int) -> bytes | None:
    """Return the idempotency key of batch `number`, from 1 on."""
    return None if prefix is None else b"%s/%d" % (prefix, number)


def load(
    ns: Documents,
    batches: Iterator[Batch],
    write: Write,
    *,
    declared: Collection[str],
    prefix: bytes | None,
    is_patch: bool,
    advance: Callable[[int, int], None],
) -> LoadProgress:
    """Commit batch after batch; what stops it is raised, with how much was committed before.

    `declared` are the attributes whose types the user gave.
    """
    tally = LoadProgress()
    with told_with(tally):
        for number, batch in enumerate(batches, 1):
            with _in_terms_of(batch):
                data = batch.documents(ns.schema, declared, is_patch=is_patch)
                tally.add(write(data, key_of(prefix, number)))
            advance(tally.documents, batch.read_bytes)
    return tally


@contextlib.contextmanager
def told_with(tally: LoadProgress) -> Iterator[None]:
    """Let errors, and Ctrl-C, tell how much was committed before."""
    try:
        yield
    except (ReefError, KeyboardInterrupt) as error:
        said = (
            f"{tally.documents} documents, in {tally.batches} batches, were committed before it"
            if tally.batches
            else "no documents were committed"
        )
        if isinstance(error, KeyboardInterrupt):
            print(f"reef: {said.removesuffix(' before it')}", file=sys.stderr)
        else:
            text = str(error).removesuffix("; nothing was written")
            lost = "; nothing of its batch was written" if _is_refusal(error) else ""
            error.args = (f"{text}{lost}; {said}", *error.args[1:])
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
            f"{error}: the batch from {batch.place} {batch.places[0]} on was another one when this "
            "--idempotency-prefix was used first; repeat it with the same input and --batch-size, "
            "or use a new prefix"
        ) from error
    except InvalidInputError as error:
        error.args = (_ROW.sub(lambda match: _place(match, batch), str(error)),)
        raise
    except ConditionFailedError as error:
        error.args = (_unmet(error, batch.place, batch.places),)
        raise


def _place(match: re.Match[str], batch: Batch) -> str:
    row = int(match[1] or match[2])
    place = batch.places[row] if row < len(batch.places) else row
    return f"{batch.place} {place}" if match[1] else f"{place}"


def _unmet(error: ConditionFailedError, place: str, places: Sequence[int]) -> str:
    unmet = [i for i, outcome in enumerate(error.outcomes) if outcome in _UNMET]
    text = str(error).partition("; nothing was written")[0]
    if not unmet:
        return text
    return (
        f"{place} {places[unmet[0]]} ({error.outcomes[unmet[0]]}): {text}; --skip leaves them out"
    )


@contextlib.contextmanager
def load_progress(source: Input) -> Iterator[Callable[[int, int], None]]:
    """Give what shows progress on stderr, if that is a terminal: documents, and bytes of the input."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.fields[documents]:,} documents"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=source.size, documents=0)

        def advance(documents: int, read_bytes: int) -> None:
            progress.update(task, documents=documents, completed=read_bytes)

        yield advance
