"""The oracle of the kernel's simulations: what was asked, what was answered, and whether it can be true.

history = WriteHistory(note=sim.note)
write = history.attempt("writer-1", lambda w: kv.write(w.puts, w.deletes).lsn, {b"a": b"1"}, [b"b"])
history.record_read("reader-1", view.lsn, {b"a": view_get(b"a")})
history.check(view.lsn, {key: Version(lsn, value), ...}, at=...)      # what a fresh handle finds

Each write carries a *marker*: a key of its own, never written again. A write is committed if, and
only if, its marker is there in the end, at the LSN that the marker's row carries. From that and the
requests follows all that any handle may ever have seen at any LSN, and everything is compared with it:

- an acked write is there, at the LSN it was acked with;
- a write that failed for certain is not there, and was never seen by anybody;
- a write of unknown outcome is there as a whole or not at all, and once;
- no two writes share an LSN, and a write that was acked before another was asked for comes before it;
- a conditional write found what it expected in the version just below it;
- every read equals the model at its LSN; a read whose LSN is not known equals it at one that its
  handle has not gone past; no handle goes back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from reef.errors import (
    ClosedError,
    ConditionFailedError,
    FencedError,
    InvalidInputError,
    NotWrittenError,
    OutcomeUnknownError,
    UnavailableError,
)
from reef.types import LSN_MAX
from tests.support.simulation import Simulation

MARKERS = b"~"
"""What markers begin with, and no other key."""
EVERYTHING = (b"", None)

FAILED_FOR_CERTAIN = (
    ClosedError,
    ConditionFailedError,
    FencedError,
    InvalidInputError,
    NotWrittenError,
)
"""Errors of a write that say that nothing of it is visible, nor ever will be."""
UNKNOWN = (OutcomeUnknownError, UnavailableError)


class Violation(AssertionError):
    """A history that no correct engine can have."""


class Version(NamedTuple):
    """A row, as a handle finds it."""

    lsn: int
    value: bytes


@dataclass(eq=False)
class Write:
    """One logical write, however often it was sent."""

    number: int
    client: str
    puts: dict[bytes, bytes]
    """With the marker."""
    deletes: tuple[bytes, ...]
    expects: Mapping[bytes, bytes | None]
    after_lsn: int
    """The highest LSN that was acked, to anybody, before this was asked for."""
    lsn: int | None = None
    open_attempts: int = 1
    unknown: bool = False
    error: str = ""

    @property
    def marker(self) -> bytes:
        """The key that only this write writes."""
        return MARKERS + b"%08d" % self.number

    @property
    def fate(self) -> str:
        """What its client knows: acked, failed or unknown. Not yet answered is unknown."""
        if self.lsn is not None:
            return "acked"
        return "unknown" if self.unknown or self.open_attempts else "failed"

    def __str__(self) -> str:
        told = f"acked at {self.lsn}" if self.lsn is not None else f"{self.fate} {self.error}"
        return f"write {self.number} of {self.client} ({told.strip()})"


class _Read(NamedTuple):
    handle: str
    lsn: int | None
    rows: Mapping[bytes, bytes | None]
    span: tuple[bytes, bytes | None] | None
    min_lsn: int

    def __str__(self) -> str:
        return f"{self.handle} at {'an unknown LSN' if self.lsn is None else self.lsn}"


@dataclass
class _Model:
    """What each key held at every LSN, if the writes that are committed are what was committed."""

    committed: list[tuple[int, Write]]
    versions: dict[bytes, tuple[list[int], list[bytes | None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for lsn, write in self.committed:
            values: dict[bytes, bytes | None] = {**dict.fromkeys(write.deletes), **write.puts}
            for key, value in values.items():
                lsns, held = self.versions.setdefault(key, ([], []))
                lsns.append(lsn)
                held.append(value)

    def get(self, key: bytes, lsn: int) -> Version | None:
        """Return the row of `key` at `lsn`."""
        lsns, values = self.versions.get(key, ((), ()))
        i = bisect_right(lsns, lsn) - 1
        value = values[i] if i >= 0 else None
        return None if value is None else Version(lsns[i], value)

    def value(self, key: bytes, lsn: int) -> bytes | None:
        """Return the value of `key` at `lsn`."""
        row = self.get(key, lsn)
        return None if row is None else row.value

    def rows(self, lsn: int, span: tuple[bytes, bytes | None] = EVERYTHING) -> dict[bytes, Version]:
        """Return all rows of a range of keys at `lsn`."""
        start, end = span
        return {
            key: row
            for key in sorted(self.versions)
            if key >= start
            and (end is None or key < end)
            and (row := self.get(key, lsn)) is not None
        }


class WriteHistory:
    """Everything that clients asked for and were told, in the order in which it happened."""

    def __init__(self, note: Callable[[str, str], None] | None = None) -> None:
        """`note` is told of each answer: give it a simulation's, and the trace shows them."""
        self.writes: list[Write] = []
        self._note = note or (lambda what, outcome: None)
        self._owners: dict[tuple[bytes, bytes], Write] = {}
        self._acked: dict[int, Write] = {}
        self._acked_lsn = 0
        self._acked_by: dict[str, int] = {}
        self._reads: list[_Read] = []
        self._seen_lsn: dict[str, int] = {}

    # Writes

    def record_invoked(
        self,
        client: str,
        puts: Mapping[bytes, bytes],
        deletes: Iterable[bytes] = (),
        *,
        expects: Mapping[bytes, bytes | None] | None = None,
    ) -> Write:
        """Note that a write is about to be sent; send `puts` of what is returned.

        No two writes put the same value at the same key: a value tells who wrote it. `expects` is a
        condition: the value that each key holds just before, None for none.
        """
        number = len(self.writes) + 1
        write = Write(number, client, dict(puts), tuple(deletes), expects or {}, self._acked_lsn)
        write.puts[write.marker] = b"%d" % number
        for key in (*puts, *write.deletes):
            if key.startswith(MARKERS):
                raise ValueError(f"{key!r} is kept for markers")
        for put in write.puts.items():
            if put in self._owners:
                raise ValueError(f"{put} is put by {self._owners[put]} already: values are unique")
            self._owners[put] = write
        self.writes.append(write)
        return write

    def record_retried(self, write: Write) -> None:
        """Note that the same request is about to be sent again, with the same idempotency key."""
        write.open_attempts += 1

    def record_acked(self, write: Write, lsn: int) -> None:
        """Note a receipt. Raises Violation if that LSN cannot be."""
        self._note(f"write {write.number}", f"acked at {lsn}")
        write.open_attempts -= 1
        if write.lsn not in (None, lsn):
            raise Violation(f"{write} was acked again, at {lsn}")
        if self._acked.setdefault(lsn, write) is not write:
            raise Violation(f"{self._acked[lsn]} shares its LSN with write {write.number}")
        if lsn <= write.after_lsn:
            raise Violation(
                f"write {write.number} of {write.client} was acked at {lsn}, but "
                f"{self._acked.get(write.after_lsn)} was acked before it was asked for"
            )
        write.lsn = lsn
        self._acked_lsn = max(self._acked_lsn, lsn)
        self._acked_by[write.client] = max(self._acked_by.get(write.client, 0), lsn)

    def record_failed(self, write: Write, error: BaseException) -> None:
        """Note that an attempt failed for certain: it is not visible and will not be."""
        self._answered(write, error)
        self._note(f"write {write.number}", f"failed: {type(error).__name__}")

    def record_unknown(self, write: Write, error: BaseException) -> None:
        """Note that an attempt may or may not have been carried out, or may be yet."""
        self._answered(write, error)
        write.unknown = True
        self._note(f"write {write.number}", f"unknown: {type(error).__name__}")

    def attempt(
        self,
        client: str,
        send: Callable[[Write], int],
        puts: Mapping[bytes, bytes],
        deletes: Iterable[bytes] = (),
        *,
        expects: Mapping[bytes, bytes | None] | None = None,
    ) -> Write:
        """Record a write, do it through `send`, which returns its LSN, and record what came of it.

        Errors that an honest engine may give are recorded; any other is raised. A write whose
        process is killed stays unanswered.
        """
        write = self.record_invoked(client, puts, deletes, expects=expects)
        self._send(write, send)
        return write

    def retry(self, write: Write, send: Callable[[Write], int]) -> None:
        """Do a write again, under the idempotency key that it had."""
        self.record_retried(write)
        self._send(write, send)

    def acked_lsn(self, client: str | None = None) -> int:
        """Return the highest LSN that was acked to `client`, or to anybody: a `min_lsn` to read at."""
        return self._acked_lsn if client is None else self._acked_by.get(client, 0)

    def _send(self, write: Write, send: Callable[[Write], int]) -> None:
        try:
            lsn = send(write)
        except FAILED_FOR_CERTAIN as error:
            self.record_failed(write, error)
        except UNKNOWN as error:
            self.record_unknown(write, error)
        else:
            self.record_acked(write, lsn)

    def _answered(self, write: Write, error: BaseException) -> None:
        write.open_attempts -= 1
        write.error = f"{type(error).__name__}: {error}"

    # Reads

    def record_read(
        self,
        handle: str,
        lsn: int | None,
        rows: Mapping[bytes, bytes | None],
        *,
        span: tuple[bytes, bytes | None] | None = None,
        min_lsn: int = 0,
    ) -> None:
        """Note what was read, in one view: the value of each key asked for, None where there was none.

        `span` is a range of keys, its end exclusive, of which `rows` are all there were. `lsn` is
        the version it was served at, None if that is not known. `min_lsn` is what was asked for, or
        what the handle itself was told before it read. Raises Violation if the handle went back.
        """
        floor = max(self._seen_lsn.get(handle, 0), min_lsn)
        if lsn is not None:
            if lsn < floor:
                raise Violation(f"{handle} went back: it read at {lsn}, after {floor}")
            self._seen_lsn[handle] = lsn
        self._reads.append(_Read(handle, lsn, dict(rows), span, min_lsn))

    # The verdict

    def check(
        self,
        lsn: int,
        rows: Mapping[bytes, Version],
        *,
        at: Callable[[int], Mapping[bytes, Version] | None] | None = None,
    ) -> int:
        """Compare everything with what a fresh handle finds in the end: all rows, at `lsn`.

        `at` gives all rows at an older LSN, or None where that is refused by retention; it is asked
        at each commit and just below it. Can be called again later: what was found then must fit
        what is found now. Returns how many writes are committed. Raises Violation.
        """
        model = _Model(self._committed(rows))
        self._compare(f"the last state, at {lsn},", rows, model.rows(lsn))
        for found_at, write in model.committed:
            self._check_expectations(model, found_at, write)
        self._check_reads(model)
        for asked in sorted(
            {n for found_at, _ in model.committed for n in (found_at - 1, found_at)}
        ):
            if at is not None and (old := at(asked)) is not None:
                self._compare(f"the state at {asked}", old, model.rows(asked))
        everything = {key: row.value for key, row in rows.items()}
        self._reads.append(_Read("an earlier check", lsn, everything, EVERYTHING, 0))
        return len(model.committed)

    def _committed(self, rows: Mapping[bytes, Version]) -> list[tuple[int, Write]]:
        """Return the writes whose markers are there, in order. Raises Violation."""
        committed: dict[int, Write] = {}
        for write in self.writes:
            row = rows.get(write.marker)
            if row is None:
                if write.fate == "acked":
                    raise Violation(f"{write} is lost")
                continue
            if write.fate == "failed":
                raise Violation(f"{write} is visible, at {row.lsn}")
            if write.lsn not in (None, row.lsn):
                raise Violation(f"{write} is visible at {row.lsn}")
            if row.lsn <= write.after_lsn:
                raise Violation(
                    f"{write}, visible at {row.lsn}, comes before "
                    f"{self._acked.get(write.after_lsn)}, which was acked before it was asked for"
                )
            if committed.setdefault(row.lsn, write) is not write:
                raise Violation(f"{write} and {committed[row.lsn]} share the LSN {row.lsn}")
        return sorted(committed.items(), key=lambda item: item[0])

    def _check_expectations(self, model: _Model, lsn: int, write: Write) -> None:
        for key, value in write.expects.items():
            if (held := model.value(key, lsn - 1)) != value:
                raise Violation(
                    f"{write} was committed at {lsn} although {key!r} was {self._whose(key, held)} "
                    f"just below, and not {self._whose(key, value)}"
                )

    def _check_reads(self, model: _Model) -> None:
        floors: dict[str, int] = {}
        lsns = [lsn for lsn, _ in model.committed]
        for read in self._reads:
            floor = max(floors.get(read.handle, 0), read.min_lsn)
            if read.lsn is not None:
                wrong = self._difference(read, model, read.lsn)
                if wrong:
                    raise Violation(f"{read} read {wrong}")
                if read.lsn < floor:
                    raise Violation(f"{read} went back: what it had read before was of {floor}")
                floors[read.handle] = read.lsn
                continue
            # The earliest version that explains it leaves the most to what the handle reads later.
            candidates = [floor, *lsns[bisect_right(lsns, floor) :]]
            fitting = (n for n in candidates if not self._difference(read, model, n))
            if (first := next(fitting, None)) is None:
                wrong = self._difference(read, model, LSN_MAX)
                raise Violation(f"{read}, not before {floor}, read what never was: now, {wrong}")
            floors[read.handle] = first

    def _difference(self, read: _Read, model: _Model, lsn: int) -> str:
        """Return what a read has got that was not so at `lsn`, or ""."""
        expected: dict[bytes, bytes | None] = {key: model.value(key, lsn) for key in read.rows}
        if read.span is not None:
            expected |= {key: row.value for key, row in model.rows(lsn, read.span).items()}
        for key, value in expected.items():
            if (got := read.rows.get(key)) != value:
                return f"{key!r} as {self._whose(key, got)}, expected {self._whose(key, value)}"
        return ""

    def _compare(
        self, what: str, rows: Mapping[bytes, Version], expected: Mapping[bytes, Version]
    ) -> None:
        for key in sorted({*rows, *expected}):
            got, want = rows.get(key), expected.get(key)
            if got != want:
                raise Violation(
                    f"{what} has {key!r} as {self._row(key, got)}, expected {self._row(key, want)}"
                )

    def _row(self, key: bytes, row: Version | None) -> str:
        return "absent" if row is None else f"{self._whose(key, row.value)} with LSN {row.lsn}"

    def _whose(self, key: bytes, value: bytes | None) -> str:
        if value is None:
            return "absent"
        return f"{value!r} of {self._owners.get((key, value), 'nobody')}"


def check_replay(scenario: Callable[[int], Simulation], seed: int) -> Simulation:
    """Run a scenario twice and return the second run. Raises Violation if they differ, and where."""
    first, second = scenario(seed), scenario(seed)
    for one, other in zip(first.trace, second.trace, strict=False):
        if one != other:
            raise Violation(f"seed {seed} does not repeat itself:\n{one}\n{other}")
    if first.digest != second.digest:
        raise Violation(f"seed {seed} does not repeat itself: {first.steps}, {second.steps} steps")
    return second
