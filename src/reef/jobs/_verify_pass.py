"""verify --deep: every byte that a namespace stands on, read by tasks and judged by the driver.

    small    one task verifies all of a small namespace, as `reef.doctor.verify` does; of a large one
             it only finds out that it is large
    read     the driver reads the manifests of a large one and lists its log and segments; tasks read
             log objects and blocks, and return what is wrong with each
    judge    the driver walks the log along its chain, and puts everything together

Why small namespaces have a way of their own: measured with 200 namespaces of 6 objects, either way
takes 15 requests for each. Read in parts, the driver makes 8 of them, and each takes two tasks; by a
task of its own, the driver makes none, so that their number does not matter to it.

Nothing is written. The checks are those of `reef.doctor`, so that the report is the same wherever they
run. A namespace that cannot be checked gets a report with that as its problem, and stops no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from reef.doctor import (
    EXAMINATIONS_MAX,
    Examination,
    ProblemOrNote,
    VerifyReport,
    changing,
    verify,
)
from reef.engine import Context
from reef.errors import ReefError, UnavailableError
from reef.format import SegmentRef
from reef.jobs._option_checks import check_positive
from reef.jobs._pass_protocol import Figures, Round, Work
from reef.log import LogPart, ReadLogPart, read_log_part
from reef.segment import (
    CheckedPart,
    CheckedSegment,
    SegmentPart,
    check_segment_part,
    cut_segment,
    join_parts,
)

if TYPE_CHECKING:
    from reef.jobs._driver import PassRun


class VerifyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the work is cut."""

    task_bytes: int = 128 << 20
    """About how many bytes one task reads."""
    task_objects: int = 8192
    """The most log objects or parts of segments one task reads: each costs a request."""
    small_bytes: int = 32 << 20
    """One task verifies all of a namespace with at most this many bytes."""
    small_objects: int = 2048
    """One task verifies all of a namespace with at most this many objects."""

    def check(self) -> None:
        """Raise InvalidInputError for a number that makes no sense."""
        check_positive(self, "task_bytes", "task_objects")


class VerifyPass:
    """Checks every block of every object of namespaces. Writes nothing, and leaves no record."""

    kind = "verify"
    recorded_options = None

    def __init__(self, options: VerifyOptions | None = None) -> None:
        """Raises InvalidInputError for options that make no sense."""
        self._options = options or VerifyOptions()
        self._options.check()

    def work(self, run: PassRun, namespace: str) -> Work[VerifyReport]:
        """Verify one namespace; what keeps it from being read is a problem of kind "unverified"."""
        try:
            return (yield from verify_namespace(run.context, namespace, self._options))
        except ReefError as error:
            return _unverified(namespace, error)

    def figures(self, result: VerifyReport) -> Figures:
        """Return what is said about one namespace."""
        problems = len(result.problems)
        error = f"{problems} problems, the first: {result.problems[0].text}" if problems else ""
        numbers = {**result.checked, "problems": problems, "notes": len(result.notes)}
        return Figures(numbers, result.generation, error=error)


def verify_namespace(
    context: Context, namespace: str, options: VerifyOptions
) -> Work[VerifyReport]:
    """Check everything that a namespace stands on, every block too; again if it changes.

    Raises NotFoundError if there is no such namespace, UnavailableError.
    """
    descriptor = SmallNamespace(namespace, options.small_bytes, options.small_objects)
    (outcome,) = yield Round(verify_small, [descriptor], SmallReport, [1], "namespaces")
    small: SmallReport = outcome.returned()
    if small.report is not None:
        return small.report
    before: Examination | None = None
    for _ in range(EXAMINATIONS_MAX):
        examination = Examination(context.store, namespace)
        report = yield from _examine(examination, options)
        if examination.is_conclusive(before):
            return report
        before = examination
    raise changing(namespace)


# Small namespaces.


class SmallNamespace(msgspec.Struct, frozen=True):
    """A namespace for one task, if it is small."""

    name: str
    small_bytes: int
    small_objects: int


class SmallReport(msgspec.Struct, frozen=True):
    """The report on a small namespace."""

    report: VerifyReport | None
    """None: it is large."""


def verify_small(context: Context, small: SmallNamespace) -> SmallReport:
    """Verify a namespace in depth if it is small."""
    if not _is_small(context, small.name, small.small_bytes, small.small_objects):
        return SmallReport(None)
    return SmallReport(verify(context, small.name, deep=True))


def _is_small(context: Context, name: str, nbytes: int, objects: int) -> bool:
    """Return whether a namespace has at most so much; no more is listed than it takes to know."""
    for meta in context.store.list(f"namespaces/{name}/"):
        nbytes -= meta.size
        objects -= 1
        if nbytes < 0 or objects < 0:
            return False
    return True


# Large namespaces.


class VerifyPart(msgspec.Struct, frozen=True):
    """A run of log objects, or a part of a segment: one of the two."""

    log: LogPart | None = None
    segment: SegmentPart | None = None

    @property
    def nbytes(self) -> int:
        if self.log is not None:
            return self.log.nbytes
        assert self.segment is not None
        low, high = self.segment.span or (0, self.segment.ref.size)
        return high - low

    @property
    def objects(self) -> int:
        return 1 if self.log is None else self.log.objects


class VerifyTask(msgspec.Struct, frozen=True):
    """Parts for one task, of any namespaces."""

    parts: tuple[VerifyPart, ...]


class VerifiedPart(msgspec.Struct, frozen=True):
    """What a task says about a part."""

    log: ReadLogPart | None = None
    segment: CheckedPart | None = None
    error: str = ""
    """Why it could not be read."""


class VerifiedTask(msgspec.Struct, frozen=True):
    """What it says about each part, in their order."""

    parts: tuple[VerifiedPart, ...]


def verify_parts(context: Context, task: VerifyTask) -> VerifiedTask:
    """Read every object or block of the parts, and say what is wrong with them."""
    return VerifiedTask(tuple(_verify_part(context, part) for part in task.parts))


def _verify_part(context: Context, part: VerifyPart) -> VerifiedPart:
    try:
        if part.log is not None:
            return VerifiedPart(log=read_log_part(context.store, part.log))
        assert part.segment is not None
        return VerifiedPart(segment=check_segment_part(context.store, part.segment))
    except ReefError as error:
        return VerifiedPart(error=str(error))


def _examine(examination: Examination, options: VerifyOptions) -> Work[VerifyReport]:
    """Read a large namespace in parts, and judge what tasks say about them."""
    log_parts = examination.log_parts(
        part_bytes=options.task_bytes, part_objects=options.task_objects
    )
    logs = [VerifyPart(log=part) for part in log_parts]
    name = examination.namespace
    cuts = _cut_segments(name, examination.named_segments(), options)
    results = yield from _read_parts([*logs, *_all_parts(cuts)], options)
    examination.add_log(result.log for result in results[: len(logs)] if result.log is not None)
    for checked in _join_segments(name, cuts, results[len(logs) :]):
        examination.add_segment(checked)
    # Only now it is known which segments the log attaches.
    for checked in (yield from check_segments(name, examination.attached_segments(), options)):
        examination.add_segment(checked)
    return VerifyReport.of(examination.finish(), deep=True)


def check_segments(
    name: str, segments: Sequence[tuple[SegmentRef, int | None]], options: VerifyOptions
) -> Work[list[CheckedSegment]]:
    """Return the result of checking every block of each segment, given with its size in the bucket.

    Raises UnavailableError if one could not be read.
    """
    cuts = _cut_segments(name, segments, options)
    return _join_segments(name, cuts, (yield from _read_parts(_all_parts(cuts), options)))


def _read_parts(parts: Sequence[VerifyPart], options: VerifyOptions) -> Work[list[VerifiedPart]]:
    """Return what tasks say about each part. Raises UnavailableError if one could not be read."""
    if not parts:
        return []
    tasks = [*_pack_tasks(parts, options)]
    sizes = [sum(part.nbytes for part in task.parts) for task in tasks]
    outcomes = yield Round(verify_parts, tasks, VerifiedTask, sizes)
    results = [part for outcome in outcomes for part in outcome.returned().parts]
    for result in results:
        if result.error:
            raise UnavailableError(result.error)
    return results


_Cut: TypeAlias = list[tuple[SegmentRef, list[VerifyPart]]]


def _cut_segments(
    name: str, segments: Sequence[tuple[SegmentRef, int | None]], options: VerifyOptions
) -> _Cut:
    cuts = []
    for ref, size in segments:
        cut = cut_segment(name, ref, size, part_bytes=options.task_bytes)
        cuts.append((ref, [VerifyPart(segment=part) for part in cut]))
    return cuts


def _all_parts(cuts: _Cut) -> list[VerifyPart]:
    return [part for _, cut in cuts for part in cut]


def _join_segments(name: str, cuts: _Cut, results: Iterable[VerifiedPart]) -> list[CheckedSegment]:
    left = (result.segment for result in results if result.segment is not None)
    return [join_parts(name, ref, [*islice(left, len(cut))]) for ref, cut in cuts]


def _pack_tasks(parts: Sequence[VerifyPart], options: VerifyOptions) -> Iterator[VerifyTask]:
    """Yield tasks of neighbouring parts, none much larger than `options` ask for."""
    some: list[VerifyPart] = []
    nbytes = objects = 0
    for part in parts:
        is_full = (
            nbytes + part.nbytes // 2 > options.task_bytes
            or objects + part.objects > options.task_objects
        )
        if some and is_full:
            yield VerifyTask(tuple(some))
            some, nbytes, objects = [], 0, 0
        some.append(part)
        nbytes += part.nbytes
        objects += part.objects
    if some:
        yield VerifyTask(tuple(some))


def _unverified(name: str, error: ReefError) -> VerifyReport:
    text = f"it could not be checked to the end: {error}"
    return VerifyReport(
        namespace=name,
        deep=True,
        generation=None,
        checked={"manifests": 0, "log_objects": 0, "segments": 0, "blocks": 0},
        problems=(ProblemOrNote("unverified", f"namespaces/{name}/", text),),
        notes=(),
        orphans=(),
    )
