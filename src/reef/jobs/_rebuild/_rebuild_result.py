"""Options and result of a rebuild."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from reef.format import SegmentRef
from reef.jobs._fold._stitch import FoldResult
from reef.jobs._fold._unfolded_log import IndexOptions
from reef.jobs._verify_pass import VerifyOptions


class RebuildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the work of a rebuild is cut."""

    fold: IndexOptions = IndexOptions()
    """How the log is folded again; min_slots and min_bytes have no effect here."""
    verify: VerifyOptions = VerifyOptions()
    assume_live: bool = False
    """A namespace without manifests was not dropped, although its log ends as if it had been."""

    def check(self) -> None:
        """Raise InvalidInputError for a number that makes no sense."""
        self.fold.check()
        self.verify.check()


@dataclass(frozen=True)
class RebuildResult(FoldResult):
    """What was derived again in one namespace.

    Without a generation nothing can be derived again, and all is sound.
    """

    copied: tuple[str, ...] = ()
    """Attached segments that waited for collection: their rows are in `segments` now."""
    kept: tuple[SegmentRef, ...] = ()
    """Segments that stay; every block of them was checked."""
    replaced: tuple[SegmentRef, ...] = ()
    window: str = "none"
    """The dedup window: made "anew", "kept" as it was, or "none"."""
    passed_by: tuple[str, ...] = ()
    """Why the log was not entered further below."""
    unproven: tuple[str, ...] = ()
    """Of a namespace without manifests: what its other objects do not prove."""
