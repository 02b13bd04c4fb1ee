"""verify --deep: every byte that many namespaces stand on, read by tasks and judged by the driver.

    sort out   tasks take some namespaces each: a small one is verified there and then, as
               `reef.engine.verify` does it; of a large one only its name comes back
    read       the large ones together: the driver reads their manifests and lists their logs and
               segments; tasks read log objects and blocks, and say what is wrong with which
    judge      the driver walks each log along its chain, and puts everything together

Nothing is written. The checks are the engine's own, so that the report is the same wherever they run.
A namespace that cannot be looked at is reported with that as its problem, and stops no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from reef.doctor import (
    LOOKS_MAX,
    Finding,
    LogPart,
    Look,
    ReadPart,
    SegmentLook,
    SegmentPart,
    VerifyReport,
    check_segment_part,
    cut_segment,
    has_moved,
    join_looks,
    read_log_part,
    report_of,
    silent,
    verify,
)
from reef.engine import Context
from reef.errors import InvalidInputError, ReefError, UnavailableError
from reef.format import SegmentRef
from reef.jobs._tasks import Outcome, Progress, Runner
from reef.types import check_namespace

_NAMES_MAX = 256
_WAVES = 4
"""So many tasks for each that can run at a time: one that is slow does not hold up all."""


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
        for name in ("task_bytes", "task_objects"):
            if getattr(self, name) < 1:
                raise InvalidInputError.of(name, getattr(self, name), "a number from 1 on")


def verify_deep(
    context: Context,
    namespaces: Sequence[str],
    runner: Runner,
    progress: Progress | None = None,
    *,
    options: VerifyOptions | None = None,
) -> list[VerifyReport]:
    """Look at everything that each namespace stands on, every block too; a report each, in order.

    One that is not there, or cannot be read, has a problem of kind "unverified". Raises
    InvalidInputError.
    """
    options = options or VerifyOptions()
    options.check()
    names = list(dict.fromkeys(map(check_namespace, namespaces)))
    reports, large = _sort_out(names, runner, options, progress)
    for look in range(1, LOOKS_MAX + 1):
        moved = []
        for name, report, is_moved in _read(context, large, runner, options, progress):
            reports[name] = report
            if is_moved:
                moved.append(name)
        large = moved if look < LOOKS_MAX else []
        if not large:
            break
    return [reports[name] for name in names]


# Small namespaces.


class NamespaceBatch(msgspec.Struct, frozen=True):
    """Namespaces for one task."""

    names: tuple[str, ...]
    small_bytes: int
    small_objects: int


class VerifiedBatch(msgspec.Struct, frozen=True):
    """The reports on the small ones of them."""

    reports: tuple[VerifyReport, ...]
    large: tuple[str, ...]


def verify_batch(context: Context, batch: NamespaceBatch) -> VerifiedBatch:
    """Verify those namespaces of `batch` that are small, in depth."""
    reports, large = [], []
    for name in batch.names:
        try:
            if _is_small(context, name, batch.small_bytes, batch.small_objects):
                reports.append(verify(context, name, deep=True))
            else:
                large.append(name)
        except ReefError as error:
            reports.append(_unverified(name, error))
    return VerifiedBatch(tuple(reports), tuple(large))


def _is_small(context: Context, name: str, nbytes: int, objects: int) -> bool:
    """Return whether a namespace has at most so much; no more is listed than it takes to know."""
    for meta in context.store.list(f"namespaces/{name}/"):
        nbytes -= meta.size
        objects -= 1
        if nbytes < 0 or objects < 0:
            return False
    return True


def _sort_out(
    names: Sequence[str], runner: Runner, options: VerifyOptions, progress: Progress | None
) -> tuple[dict[str, VerifyReport], list[str]]:
    """Return the reports on small namespaces, and the names of the large ones."""
    at_once = max(1, min(_NAMES_MAX, -(-len(names) // (_WAVES * runner.parallelism))))
    batches = [
        NamespaceBatch(tuple(names[at : at + at_once]), options.small_bytes, options.small_objects)
        for at in range(0, len(names), at_once)
    ]
    reports: dict[str, VerifyReport] = {}
    large: list[str] = []
    outcomes = runner.run(
        verify_batch,
        batches,
        VerifiedBatch,
        name=f"verify {len(names)} namespaces",
        progress=progress,
    )
    for batch, outcome in zip(batches, outcomes, strict=True):
        if outcome.result is None:
            reports.update((name, _unverified(name, _error(outcome))) for name in batch.names)
            continue
        reports.update((report.namespace, report) for report in outcome.result.reports)
        large += outcome.result.large
    return reports, large


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
    """What a part is."""

    log: ReadPart | None = None
    segment: SegmentLook | None = None
    error: str = ""
    """Why it could not be looked at."""


class VerifiedTask(msgspec.Struct, frozen=True):
    """What the parts are, in their order."""

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


@dataclass
class _Reading:
    """A namespace that is being looked at."""

    look: Look
    log_parts: int
    segments: Sequence[tuple[SegmentRef, int]]
    """Those that are named, and into how many parts each was cut."""
    parts: list[VerifyPart] = field(default_factory=list)

    @classmethod
    def begin(cls, context: Context, name: str, options: VerifyOptions) -> _Reading:
        look = Look(context.store, name, silent)
        reading = cls(look, 0, [])
        if look.survey.head is None:
            return reading
        logs = look.log.parts(part_bytes=options.task_bytes, part_objects=options.task_objects)
        reading.parts += [VerifyPart(log=part) for part in logs]
        reading.log_parts = len(reading.parts)
        cuts = []
        for ref, size in look.named_segments():
            cut = [*cut_segment(name, ref, size, part_bytes=options.task_bytes)]
            reading.parts += [VerifyPart(segment=part) for part in cut]
            cuts.append((ref, len(cut)))
        reading.segments = cuts
        return reading

    def judged(self, context: Context, found: Sequence[VerifiedPart]) -> tuple[VerifyReport, bool]:
        """Return the report by what was found of the parts, and whether the head has moved."""
        for part in found:
            if part.error:
                raise UnavailableError(part.error)
        look, name = self.look, self.look.survey.namespace
        if look.survey.head is not None:
            look.judge_log(part.log for part in found[: self.log_parts] if part.log is not None)
            at = self.log_parts
            for ref, count in self.segments:
                looks = [part.segment for part in found[at : at + count]]
                at += count
                look.judge_segment(join_looks(name, ref, [one for one in looks if one is not None]))
            look.finish()
        return report_of(look.survey, deep=True), has_moved(context.store, look.survey)


def _read(
    context: Context,
    names: Sequence[str],
    runner: Runner,
    options: VerifyOptions,
    progress: Progress | None,
) -> Iterator[tuple[str, VerifyReport, bool]]:
    """Yield each namespace with the report on it, and whether it has to be looked at again."""
    readings: dict[str, _Reading] = {}
    for name in names:
        try:
            readings[name] = _Reading.begin(context, name, options)
        except ReefError as error:
            yield name, _unverified(name, error), False
    parts = [part for reading in readings.values() for part in reading.parts]
    found = iter(run_parts(parts, runner, options, progress))
    for name, reading in readings.items():
        mine = [next(found) for _ in reading.parts]
        try:
            report, is_moved = reading.judged(context, mine)
        except ReefError as error:
            report, is_moved = _unverified(name, error), False
        yield name, report, is_moved


def run_parts(
    parts: Sequence[VerifyPart], runner: Runner, options: VerifyOptions, progress: Progress | None
) -> list[VerifiedPart]:
    """Return what each part is, looked at by tasks of about the same size."""
    tasks = [*pack_parts(parts, options)]
    outcomes = runner.run(
        verify_parts,
        tasks,
        VerifiedTask,
        name=f"verify {sum(part.nbytes for part in parts)} bytes",
        weights=[1 + sum(part.nbytes for part in task.parts) for task in tasks],
        progress=progress,
    )
    found: list[VerifiedPart] = []
    for task, outcome in zip(tasks, outcomes, strict=True):
        if outcome.result is None:
            found += [VerifiedPart(error=str(_error(outcome)))] * len(task.parts)
        else:
            found += outcome.result.parts
    return found


def pack_parts(parts: Sequence[VerifyPart], options: VerifyOptions) -> Iterator[VerifyTask]:
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


def _error(outcome: Outcome[VerifiedTask] | Outcome[VerifiedBatch]) -> ReefError:
    assert outcome.error is not None
    return outcome.error


def _unverified(name: str, error: ReefError) -> VerifyReport:
    text = f"it was not looked at, or not to the end: {error}"
    return VerifyReport(
        namespace=name,
        deep=True,
        generation=None,
        checked={"manifests": 0, "log_objects": 0, "segments": 0, "blocks": 0},
        problems=(Finding("unverified", f"namespaces/{name}/", text),),
        notes=(),
        orphans=(),
    )
