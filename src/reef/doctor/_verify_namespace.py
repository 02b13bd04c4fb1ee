"""verify: is everything that a namespace needs in the bucket, whole, and consistent?

Nothing is written. `reef repair` fixes or explains each *problem*. Behind a *note*, nothing is wrong, or
repair has dealt with it. Unreferenced objects are notes: crashes leave them, and writers upload
segments before they name them. Collection can tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from reef.doctor._examine import Diagnosis, diagnose
from reef.doctor._problems import ProblemOrNote, Progress, no_progress
from reef.engine import Context


@dataclass(frozen=True)
class VerifyReport:
    """The result of verify."""

    namespace: str
    deep: bool
    generation: int | None
    """The newest that can be read."""
    checked: dict[str, int]
    """How many were checked: manifests, log_objects, segments, blocks."""
    problems: tuple[ProblemOrNote, ...]
    notes: tuple[ProblemOrNote, ...]
    orphans: tuple[str, ...]
    """Objects that no retained generation names, nor the unfolded log; folded log may attach some."""

    @classmethod
    def of(cls, diagnosis: Diagnosis, *, deep: bool) -> VerifyReport:
        """Return the report on an examination; `deep` says whether every block was read."""
        log = diagnosis.log
        return cls(
            namespace=diagnosis.namespace,
            deep=deep,
            generation=None if diagnosis.head is None else diagnosis.head.generation,
            checked={
                "manifests": len(diagnosis.generations),
                "log_objects": 0 if log is None else log.objects,
                "segments": len(diagnosis.segments),
                "blocks": sum(segment.blocks for segment in diagnosis.segments),
            },
            problems=diagnosis.problems,
            notes=diagnosis.notes,
            orphans=tuple(diagnosis.orphans),
        )


def verify(
    context: Context, namespace: str, *, deep: bool = False, progress: Progress = no_progress
) -> VerifyReport:
    """Check everything that the namespace's retained generations and its log need.

    `deep` reads every block of every segment. Raises NotFoundError if there is no such namespace,
    FormatVersionError if its head is of another version, UnavailableError.
    """
    diagnosis = diagnose(context, namespace, deep=deep, progress=progress)
    return VerifyReport.of(diagnosis, deep=deep)
