"""Examining a namespace: its manifests, log, segments and dedup windows, checked and put together.

A namespace may change while it is examined. If there are problems and the head has moved meanwhile, it
is examined again: an object may be missing only because it was collected. What two examinations in a
row find is there: the head of the second one was read after the first had found it, and no manifest
names anything that was collected before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from reef.doctor._check_log import CheckedLog, LogCheck
from reef.doctor._check_manifests import (
    ReadGeneration,
    check_generations,
    newest_readable,
    read_generations,
    retained_manifests,
)
from reef.doctor._problems import AT_ONCE_BYTES, ProblemOrNote, Progress, describe, no_progress
from reef.doctor._quarantine import Quarantine, stored_size
from reef.doctor._windows import CheckedWindow, check_window
from reef.engine import Context
from reef.errors import FormatVersionError, UnavailableError
from reef.format import Manifest, SegmentRef, manifest_key, segment_key
from reef.log import LogPart, ReadLogPart, read_log_part
from reef.manifest import Head, ManifestReader, manifests_gone, no_namespace, overlaps
from reef.segment import CheckedSegment, check_segment
from reef.store import Store
from reef.types import check_namespace

EXAMINATIONS_MAX = 5
_LOG_OBJECTS = 256
_NAMED_MAX = 10


@dataclass
class Diagnosis:
    """The result of examining a namespace."""

    namespace: str
    generations: Sequence[ReadGeneration]
    quarantine: Quarantine
    head: Head | None = None
    """The newest generation that can be read."""
    retained: Sequence[Manifest] = ()
    """Every generation that is retained and can be read, the head last."""
    log: CheckedLog | None = None
    segments: list[CheckedSegment] = field(default_factory=list)
    """All that a retained generation names, or the unfolded log attaches."""
    live: frozenset[str] = frozenset()
    """The keys of those that the head names, or the log behind it attaches."""
    windows: list[CheckedWindow] = field(default_factory=list)
    """The dedup windows that retained generations name."""
    orphans: list[str] = field(default_factory=list)
    reported: list[ProblemOrNote] = field(default_factory=list)

    @property
    def newest(self) -> int:
        """The number of the newest generation in the bucket, readable or not."""
        return self.generations[-1].number if self.generations else 0

    @property
    def problems(self) -> tuple[ProblemOrNote, ...]:
        """What is wrong."""
        return tuple(one for one in self.reported if one.is_problem)

    @property
    def notes(self) -> tuple[ProblemOrNote, ...]:
        """What is worth knowing."""
        return tuple(one for one in self.reported if not one.is_problem)


def diagnose(
    context: Context, namespace: str, *, deep: bool, progress: Progress = no_progress
) -> Diagnosis:
    """Examine a namespace; `deep` reads every block. Raises what `Examination` does."""
    check_namespace(namespace)
    before: Examination | None = None
    for _ in range(EXAMINATIONS_MAX):
        examination = Examination(context.store, namespace, progress)
        _read_objects(context.store, examination, deep, progress)
        diagnosis = examination.finish()
        if examination.is_conclusive(before):
            return diagnosis
        before = examination
    raise changing(namespace)


def changing(namespace: str) -> UnavailableError:
    """Return the error for a namespace that no examination has caught as it is."""
    return UnavailableError(
        f"namespace {namespace!r} changed during each of {EXAMINATIONS_MAX} examinations, so that "
        "nobody can tell collected objects from missing ones: run it again"
    )


def _read_objects(store: Store, examination: Examination, deep: bool, progress: Progress) -> None:
    parts = examination.log_parts(part_bytes=AT_ONCE_BYTES, part_objects=_LOG_OBJECTS)
    examination.add_log((read_log_part(store, part) for part in parts), progress)
    named = [*examination.named_segments(), *examination.attached_segments()]
    for done, (ref, size) in enumerate(named, start=1):
        checked = check_segment(store, examination.namespace, ref, size, deep=deep)
        examination.add_segment(checked)
        progress("segments", done, len(named))


class Examination:
    """One examination of a namespace: says what to read, and takes what was read.

    The caller reads the log and the segments, in this process or by tasks, and calls `add_log` with all
    of `log_parts`, then `add_segment` for each of `named_segments` and of `attached_segments`, then
    `finish`. If no generation can be read, there is nothing to read, and `finish` says so.
    """

    def __init__(self, store: Store, namespace: str, progress: Progress = no_progress) -> None:
        """Read the manifests, list the log.

        Raises NotFoundError if there is no such namespace, FormatVersionError if its head is of another
        version, UnavailableError.
        """
        self._store = store
        self.namespace = namespace
        self._log: LogCheck | None = None
        self._named: dict[str, SegmentRef] = {}
        self._sizes: dict[str, int] = {}
        generations = read_generations(store, namespace, progress)
        self._diagnosis = diagnosis = Diagnosis(
            namespace, generations, Quarantine(store, namespace)
        )
        if not generations:
            left = ManifestReader(store, namespace).left_behind()
            if left is None:
                raise no_namespace(store.url, namespace)
            gone = manifests_gone(namespace, left)
            diagnosis.reported = [ProblemOrNote("manifest-missing", gone.key, describe(gone))]
            return
        head = newest_readable(generations)
        if head is None:
            diagnosis.reported = [
                ProblemOrNote(
                    "manifest-damaged", manifest_key(namespace, read.number), describe(read.error)
                )
                for read in generations
                if read.error is not None
            ]
            return
        diagnosis.head = head
        diagnosis.retained = retained_manifests(head, generations)
        diagnosis.reported += check_generations(namespace, head, generations, diagnosis.quarantine)
        self._log = LogCheck(
            store, head.manifest, diagnosis.retained, parallel=head.parallel_writes_max
        )

    def log_parts(self, *, part_bytes: int, part_objects: int) -> Iterator[LogPart]:
        """Yield the parts of the log to read, of about so much each."""
        if self._log is not None:
            yield from self._log.parts(part_bytes=part_bytes, part_objects=part_objects)

    def add_log(self, read: Iterable[ReadLogPart], progress: Progress = no_progress) -> None:
        """Take what was read of `log_parts`, in their order."""
        if self._log is not None:
            diagnosis = self._diagnosis
            assert diagnosis.head is not None
            diagnosis.log = self._log.check(read, progress)
            diagnosis.reported += diagnosis.log.reported
            live = (*diagnosis.head.manifest.segments, *diagnosis.log.attached)
            diagnosis.live = frozenset(map(self._key, live))

    def named_segments(self) -> list[tuple[SegmentRef, int | None]]:
        """Return what retained generations name, with the size in the bucket; None: it is missing."""
        diagnosis, store = self._diagnosis, self._store
        if diagnosis.head is None:
            return []
        head = diagnosis.head.manifest
        for manifest in diagnosis.retained:
            # The segments that an ended life of this name shared with others go with its pin.
            is_over = manifest.born != head.born or head.state != "live"
            for ref in manifest.segments:
                if not (is_over and ref.namespace):
                    self._named[self._key(ref)] = ref
        self._sizes = {m.key: m.size for m in store.list(f"namespaces/{self.namespace}/segments/")}
        return [
            (ref, stored_size(store, key) if ref.namespace else self._sizes.get(key))
            for key, ref in self._named.items()
        ]

    def attached_segments(self) -> list[tuple[SegmentRef, int | None]]:
        """Return what else the unfolded log attaches, once it was read; likewise."""
        log = self._diagnosis.log
        attached = {} if log is None else {self._key(ref): ref for ref in log.attached}
        return [
            (ref, self._sizes.get(key)) for key, ref in attached.items() if key not in self._named
        ]

    def add_segment(self, checked: CheckedSegment) -> None:
        """Take the result of checking the next segment."""
        self._diagnosis.segments.append(checked)
        self._diagnosis.reported += _segment_problems(self._diagnosis, checked)

    def _key(self, ref: SegmentRef) -> str:
        return segment_key(ref.namespace or self.namespace, ref.id)

    def finish(self) -> Diagnosis:
        """Check dedup windows, overlaps and orphans, and return the result."""
        diagnosis = self._diagnosis
        if diagnosis.head is not None:
            diagnosis.reported += _window_problems(self._store, diagnosis, diagnosis.head)
            diagnosis.reported += _overlap_problems(diagnosis.head.manifest)
            diagnosis.reported += _orphan_notes(self._store, diagnosis, diagnosis.head)
        return diagnosis

    def is_conclusive(self, before: Examination | None) -> bool:
        """Return whether its problems are real: else examine again.

        They are if there are none, if the head has not moved, or if the one `before` had them too.
        """
        found = self._found()
        if not found or (before is not None and found <= before._found()):
            return True
        number = self._diagnosis.newest
        newest = manifest_key(self.namespace, number) if number else ""
        return not any(self._store.list(f"namespaces/{self.namespace}/manifest/", newest))

    def _found(self) -> set[tuple[str, str]]:
        return {(problem.kind, problem.key) for problem in self._diagnosis.problems}


def _segment_problems(diagnosis: Diagnosis, checked: CheckedSegment) -> Iterator[ProblemOrNote]:
    is_live = checked.key in diagnosis.live
    is_problem = is_live or not diagnosis.quarantine.holds(checked.key)
    where = _named_where(is_live, is_problem)
    if checked.is_missing:
        text = f"a manifest or the log names it, but it is missing{where}"
        yield ProblemOrNote("segment-missing", checked.key, text, is_problem)
    for error in checked.errors:
        is_foreign = isinstance(error, FormatVersionError)
        kind = "format-version" if is_foreign else "segment-damaged"
        yield ProblemOrNote(kind, checked.key, f"{describe(error)}{where}", is_problem)


def _named_where(is_live: bool, is_problem: bool) -> str:
    if is_live:
        return ""
    dealt_with = "" if is_problem else ", and repair has dealt with it"
    return f"; only generations before the head name it{dealt_with}"


def _window_problems(store: Store, diagnosis: Diagnosis, head: Head) -> Iterator[ProblemOrNote]:
    named = {m.dedup.id: m.dedup for m in diagnosis.retained if m.dedup is not None}
    for ref in named.values():
        checked = check_window(store, diagnosis.namespace, ref)
        diagnosis.windows.append(checked)
        if checked.window is not None:
            continue
        is_live = ref == head.manifest.dedup
        is_problem = is_live or not diagnosis.quarantine.holds(checked.key)
        where = _named_where(is_live, is_problem)
        kind, what = "dedup-missing", "a manifest names it, but it is missing"
        if checked.error is not None:
            kind, what = "dedup-damaged", describe(checked.error)
        yield ProblemOrNote(kind, checked.key, f"{what}{where}", is_problem)


def _overlap_problems(manifest: Manifest) -> Iterator[ProblemOrNote]:
    for older, newer in overlaps(manifest.segments):
        yield ProblemOrNote(
            "segments-overlap",
            segment_key(newer.namespace or manifest.namespace, newer.id),
            f"it has keys and LSNs in common with segment {older.id}: a read may return the wrong "
            "version",
        )


def _orphan_notes(store: Store, diagnosis: Diagnosis, head: Head) -> Iterator[ProblemOrNote]:
    """Yield a note on the objects that no retained generation names, nor the unfolded log."""
    named = {checked.key for checked in diagnosis.segments}
    named |= {checked.key for checked in diagnosis.windows}
    named |= {waiting.key for waiting in head.manifest.gc.pending}
    for folder in ("segments", "dedup"):
        prefix = f"namespaces/{diagnosis.namespace}/{folder}/"
        orphans = [meta for meta in store.list(prefix) if meta.key not in named]
        diagnosis.orphans += [meta.key for meta in orphans]
        if orphans:
            names = ", ".join(meta.key.rsplit("/", 1)[-1] for meta in orphans[:_NAMED_MAX])
            more = f" and {len(orphans) - _NAMED_MAX} more" if len(orphans) > _NAMED_MAX else ""
            yield ProblemOrNote(
                "orphan",
                orphans[0].key,
                f"no retained generation and no unfolded log object names {names}{more} "
                f"({sum(m.size for m in orphans)} bytes): a crash left it, a writer is about to name "
                "or to delete it, or folded log objects, kept for time travel or a snapshot, attach it; `reef gc` "
                "removes it when nothing needs it",
                is_problem=False,
            )
