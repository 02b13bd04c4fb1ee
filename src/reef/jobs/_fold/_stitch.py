"""Parts that were folded side by side, put together by one walk along the chain.

If a task failed, or a part assumed a state that the walk does not confirm, the part is folded again
from the true state; its second result is final.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from reef.engine import Context, load_dedup, log_object_gone
from reef.errors import InvariantError
from reef.format import DedupWindow, LogRecord, Manifest, SegmentRef, WalAnchor
from reef.jobs._fold._fold_part import FoldedPart, FoldPart, fold_part
from reef.jobs._fold._part_chain import ChainState
from reef.jobs._pass_protocol import Round, Work
from reef.jobs._tasks import TaskOutcome


@dataclass(frozen=True)
class FoldTask:
    """What one task of a fold did, and took."""

    slot_first: int
    slot_last: int
    rows: int
    log_bytes: int
    segment_bytes: int
    seconds: float
    peak_rss_bytes: int
    counted: bool
    """Whether what it wrote was published; False for one that was run again."""

    @classmethod
    def of(cls, part: FoldPart, outcome: TaskOutcome[FoldedPart], *, counted: bool) -> FoldTask:
        """Return what one run of a task took."""
        folded = outcome.result
        return cls(
            slot_first=part.slot_first,
            slot_last=part.slot_last,
            rows=0 if folded is None else folded.rows,
            log_bytes=part.log_bytes,
            segment_bytes=0 if folded is None else sum(ref.size for ref in folded.segments),
            seconds=outcome.seconds,
            peak_rss_bytes=outcome.peak_rss_bytes,
            counted=counted,
        )


@dataclass(frozen=True)
class FoldResult:
    """What a pass did that folds the log of a namespace."""

    namespace: str
    generation: int | None = None
    """The generation that it published; None: there was nothing to publish."""
    job_id: str | None = None
    slot_first: int = 0
    """First log object that was folded."""
    slot_last: int = 0
    rows: int = 0
    """Rows that were written."""
    log_bytes: int = 0
    segments: tuple[SegmentRef, ...] = ()
    """Written and published, newest first."""
    plans: int = 0
    """How many plans it took; more than one if others changed the namespace at the same time."""
    tasks: tuple[FoldTask, ...] = field(default=(), repr=False)

    @property
    def segment_bytes(self) -> int:
        """Bytes of the segments that were written and published."""
        return sum(ref.size for ref in self.segments)


@dataclass(frozen=True)
class Stitched:
    """The parts of one fold, each as the true chain has it."""

    manifest: Manifest
    parts: tuple[FoldedPart, ...]
    state: ChainState
    """The state of the chain after them."""
    tasks: tuple[FoldTask, ...] = field(repr=False)

    @property
    def slot_last(self) -> int:
        """The last slot up to which the fold is final; one below the first slot if nothing is final."""
        return self.state.last_decided(self.parts[-1].slot_last)

    @property
    def anchor(self) -> WalAnchor:
        """The last valid object."""
        return WalAnchor(*self.state.point)

    @property
    def lsn(self) -> int:
        """The newest version folded."""
        return max(self.manifest.last_applied_lsn, *(part.lsn_last for part in self.parts))

    @property
    def schema(self) -> bytes:
        """The last schema that the log sets; b"" if none."""
        return next((part.schema for part in reversed(self.parts) if part.schema), b"")

    @property
    def segments(self) -> tuple[SegmentRef, ...]:
        """The segments that were written, newest first."""
        return tuple(ref for part in self.parts for ref in part.segments)[::-1]

    @property
    def attached(self) -> tuple[SegmentRef, ...]:
        """The segments that the log attaches, newest first."""
        return tuple(ref for part in self.parts for ref in part.attached)[::-1]

    def window(self, context: Context, now_us: int) -> DedupWindow | None:
        """Return the dedup window after the fold; None: it is unchanged."""
        if not any(part.window.last_lsn for part in self.parts):
            return None
        dedup = load_dedup(context, self.manifest)
        for part in self.parts:
            for record, committed_at_us in _requests(part.window):
                dedup.add(record, committed_at_us)
        return dedup.window(self.lsn, now_us)


def fold_parts(parts: Sequence[FoldPart]) -> Round:
    """Return the round of tasks that folds `parts`."""
    return Round(fold_part, parts, FoldedPart, [part.log_bytes for part in parts])


def stitch(
    manifest: Manifest,
    parts: Sequence[FoldPart],
    outcomes: Sequence[TaskOutcome[FoldedPart]],
) -> Work[Stitched]:
    """Put the parts of a plan together; run those again that assumed wrongly.

    Raises CorruptError if an object that was listed is gone, or is damaged and not skipped, and
    whatever else a task raises that entered by the true state.
    """
    state = ChainState.of(manifest)
    lsn = manifest.last_applied_lsn
    counted: list[FoldedPart] = []
    tasks: list[FoldTask] = []
    for part, first in zip(parts, outcomes, strict=True):
        outcome = first
        if not _holds(first, state):
            tasks.append(FoldTask.of(part, first, counted=False))
            again = msgspec.structs.replace(part, entered=state)
            (outcome,) = yield fold_parts([again])
        tasks.append(FoldTask.of(part, outcome, counted=True))
        folded = outcome.returned()
        if folded.slot_last < part.slot_last:
            raise log_object_gone(manifest, folded.slot_last + 1)
        if folded.lsn_last and folded.lsn_first <= lsn:
            raise InvariantError(
                f"version {folded.lsn_first} of namespace {part.namespace!r}, in slots "
                f"{part.slot_first} to {part.slot_last}, after version {lsn}; nothing was published"
            )
        if folded.left is None:
            raise InvariantError(f"a part of {part.namespace!r} knew its entry and not its exit")
        state, lsn = folded.left, max(lsn, folded.lsn_last)
        counted.append(folded)
    return Stitched(manifest, tuple(counted), state, tuple(tasks))


def _holds(outcome: TaskOutcome[FoldedPart], state: ChainState) -> bool:
    """Return whether a task decided the same as it would have from the true `state`."""
    folded = outcome.result
    if folded is None or folded.entered is None:
        return False
    return folded.entered == state or state.confirms(folded.entered)


def _requests(window: DedupWindow) -> Iterator[tuple[LogRecord, int]]:
    """Yield the requests of a window in order, as log records, each with its commit time."""
    entries = {entry.lsn: entry for entry in window.entries}
    streams = {stream.lsn: stream for stream in window.streams}
    for lsn in sorted({*entries, *streams}):
        entry, stream = entries.get(lsn), streams.get(lsn)
        record = LogRecord(
            lsn=lsn,
            idempotency_key=None if entry is None else entry.key,
            digest=None if entry is None else entry.digest,
            outcomes=None if entry is None else entry.receipt,
            source=None if stream is None else stream.source,
            sequence=None if stream is None else stream.sequence,
        )
        yield record, 0 if entry is None else entry.committed_at_us
