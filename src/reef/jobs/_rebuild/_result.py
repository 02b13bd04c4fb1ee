"""How a rebuild is made, and what it did."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from reef.format import SegmentRef
from reef.jobs._fold._plan import IndexOptions
from reef.jobs._fold._stitch import Attempt
from reef.jobs._verify import VerifyOptions


class RebuildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the work is cut."""

    fold: IndexOptions = IndexOptions()
    """How the log is folded again; min_slots and min_bytes have no effect here."""
    verify: VerifyOptions = VerifyOptions()

    def check(self) -> None:
        """Raise InvalidInputError for a number that makes no sense."""
        self.fold.check()
        self.verify.check()


@dataclass(frozen=True)
class RebuildPlan:
    """What a rebuild of one namespace would begin with.

    If the log turns out to be damaged on the way, it is entered above that instead.
    """

    namespace: str
    generation: int
    """The head that it was planned on."""
    slot_first: int = 0
    """Of the log objects to fold again; 0: there are none, and what is there is only checked."""
    slot_last: int = 0
    log_bytes: int = 0
    tasks: int = 0
    """Of the fold."""
    replaced: tuple[SegmentRef, ...] = ()
    """Segments whose versions are all in that part of the log."""
    kept: tuple[SegmentRef, ...] = ()
    """Segments that stay, and every block of which would be checked."""
    passed_by: tuple[str, ...] = ()
    """Why the log cannot be entered further below."""


@dataclass(frozen=True)
class RebuildTask:
    """What one task of the fold took."""

    slot_first: int
    slot_last: int
    rows: int
    seconds: float
    peak_rss_bytes: int
    counted: bool
    """Whether what it wrote was published; False for one that was run again."""

    @classmethod
    def of(cls, attempt: Attempt) -> RebuildTask:
        """Return what an attempt took."""
        part, outcome = attempt.part, attempt.outcome
        return cls(
            part.slot_first,
            part.slot_last,
            0 if outcome.result is None else outcome.result.rows,
            outcome.seconds,
            outcome.peak_rss_bytes,
            attempt.counted,
        )


@dataclass(frozen=True)
class RebuildResult:
    """What was made anew in one namespace."""

    namespace: str
    generation: int | None = None
    """The one that was published; None: nothing can be made anew, and what is there is sound."""
    job_id: str | None = None
    slot_first: int = 0
    """Of the log objects that were folded again."""
    slot_last: int = 0
    rows: int = 0
    """Written."""
    log_bytes: int = 0
    segments: tuple[SegmentRef, ...] = ()
    """Written and published, newest first."""
    copied: tuple[str, ...] = ()
    """Attached segments that waited for collection: their rows are in `segments`."""
    kept: tuple[SegmentRef, ...] = ()
    """Those that stay, every block of which was checked."""
    replaced: tuple[SegmentRef, ...] = ()
    window: str = "none"
    """Whether the dedup window was made "anew", is "kept" as it was, or there is "none"."""
    passed_by: tuple[str, ...] = ()
    """Why the log was not entered further below."""
    plans: int = 0
    tasks: tuple[RebuildTask, ...] = field(default=(), repr=False)
