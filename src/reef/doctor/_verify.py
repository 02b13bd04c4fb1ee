"""Verify: is everything that a namespace stands on there, whole, and in agreement?

Nothing is written. What is found is a *problem*, which `reef repair` mends or explains, or a *note*:
nothing is wrong, or it was dealt with. Unreferenced objects are notes: they are what crashes leave, or
what somebody is writing just now, and collection knows which.

A namespace may change while it is looked at. If problems were found and the head has moved meanwhile,
it is looked at again: a segment may be missing only because it was compacted away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from reef.doctor._findings import AT_ONCE_BYTES, Finding, Progress, said, silent
from reef.doctor._quarantine import Quarantine, size_of
from reef.doctor._verify_log import LogCheck, LogFacts
from reef.doctor._verify_manifests import (
    ReadGeneration,
    check_generations,
    newest_readable,
    read_generations,
    retained_manifests,
)
from reef.doctor._verify_segments import SegmentFacts, check_segment, overlaps, twice
from reef.doctor._verify_slots import ReadPart, read_log_part
from reef.engine import Context
from reef.errors import CorruptError, FormatVersionError, NotFoundError, UnreadableError
from reef.format import (
    DedupRef,
    DedupWindow,
    Manifest,
    SegmentRef,
    decode_dedup,
    dedup_checksum,
    dedup_key,
    manifest_key,
    segment_key,
)
from reef.manifest import Head, no_namespace
from reef.settings import WRITES_ASKED_MAX
from reef.store import Store
from reef.types import check_namespace

LOOKS_MAX = 3
_LOG_OBJECTS = 256
_NAMED_MAX = 10


@dataclass(frozen=True)
class DedupFacts:
    """What is known of a dedup window that a manifest names."""

    key: str
    ref: DedupRef
    window: DedupWindow | None
    error: UnreadableError | None = None
    """Why it cannot be read; None with no window: it is missing."""


@dataclass
class Survey:
    """All that is known of a namespace."""

    namespace: str
    generations: Sequence[ReadGeneration]
    quarantine: Quarantine
    head: Head | None = None
    """The newest generation that can be read."""
    retained: Sequence[Manifest] = ()
    """Every generation that counts and can be read, the head last."""
    log: LogFacts | None = None
    segments: list[SegmentFacts] = field(default_factory=list)
    """Of all that are named by a retained generation, or attached by the unfolded log."""
    live: frozenset[str] = frozenset()
    """The keys of those that the head names, or the log behind it."""
    dedups: list[DedupFacts] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def newest(self) -> int:
        """The number of the newest generation that is there, readable or not."""
        return self.generations[-1].number if self.generations else 0


@dataclass(frozen=True)
class VerifyReport:
    """What verify has to tell."""

    namespace: str
    deep: bool
    generation: int | None
    """The newest that can be read."""
    checked: dict[str, int]
    """How much was looked at: manifests, log_objects, segments, blocks."""
    problems: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    orphans: tuple[str, ...]
    """Objects that no retained generation names, nor the unfolded log; folded log may attach some."""


def verify(
    context: Context, namespace: str, *, deep: bool = False, progress: Progress = silent
) -> VerifyReport:
    """Look at everything that the namespace's retained generations and its log stand on.

    `deep` reads every block of every segment. Raises NotFoundError if there is no such namespace,
    FormatVersionError if its head is of another version, UnavailableError.
    """
    return report_of(survey_namespace(context, namespace, deep=deep, progress=progress), deep)


def report_of(survey: Survey, deep: bool) -> VerifyReport:
    """Return what a survey has to tell."""
    log = survey.log
    return VerifyReport(
        namespace=survey.namespace,
        deep=deep,
        generation=None if survey.head is None else survey.head.generation,
        checked={
            "manifests": len(survey.generations),
            "log_objects": 0 if log is None else log.objects,
            "segments": len(survey.segments),
            "blocks": sum(segment.blocks for segment in survey.segments),
        },
        problems=tuple(f for f in survey.findings if f.is_problem),
        notes=tuple(f for f in survey.findings if not f.is_problem),
        orphans=tuple(survey.orphans),
    )


def survey_namespace(
    context: Context, namespace: str, *, deep: bool, progress: Progress = silent
) -> Survey:
    """Return all that is known of a namespace, seen at rest: not while its head was moving."""
    check_namespace(namespace)
    for look in range(1, LOOKS_MAX + 1):
        survey = _look(context, namespace, deep, progress)
        if look == LOOKS_MAX or not has_moved(context.store, survey):
            break
    return survey


def has_moved(store: Store, survey: Survey) -> bool:
    """Return whether problems were found and the head is another one by now: look again."""
    if not any(f.is_problem for f in survey.findings):
        return False
    after = manifest_key(survey.namespace, survey.newest) if survey.newest else ""
    return any(store.list(f"namespaces/{survey.namespace}/manifest/", after))


def _look(context: Context, namespace: str, deep: bool, progress: Progress) -> Survey:
    store = context.store
    look = Look(store, namespace, progress)
    if look.survey.head is None:
        return look.survey
    parts = look.log.parts(part_bytes=AT_ONCE_BYTES, part_objects=_LOG_OBJECTS)
    look.judge_log((read_log_part(store, part) for part in parts), progress)
    named = look.named_segments()
    for done, (ref, size) in enumerate(named, start=1):
        look.judge_segment(check_segment(store, namespace, ref, size, deep=deep))
        progress("segments", done, len(named))
    return look.finish()


class Look:
    """One look at a namespace: what to read, and judging what was read.

    The order is: `judge_log`, `judge_segment` for each that is named, `finish`. Reading the log and
    segments is up to the caller. Where no generation can be read, the survey is all there is.
    """

    def __init__(self, store: Store, namespace: str, progress: Progress) -> None:
        """Read the manifests, list the log.

        Raises NotFoundError if there is no such namespace, FormatVersionError, UnavailableError.
        """
        self._store = store
        generations = read_generations(store, namespace, progress)
        self.survey = survey = Survey(namespace, generations, Quarantine(store, namespace))
        if not generations:
            raise no_namespace(store.url, namespace)
        head = newest_readable(generations)
        if head is None:
            survey.findings = [
                Finding("manifest-damaged", manifest_key(namespace, read.number), said(read.error))
                for read in generations
                if read.error is not None
            ]
            return
        survey.head = head
        survey.retained = retained_manifests(head, generations)
        survey.findings += check_generations(namespace, head, generations, survey.quarantine)
        parallel = max(m.max_parallel_writes for m in survey.retained)
        if head.damaged:
            # What they said of it is not known. All that the format allows would be too much: what
            # is taken for in flight is voided by repair's fences, and may have been acknowledged.
            parallel = max(parallel, WRITES_ASKED_MAX)
        self.log = LogCheck(store, head.manifest, survey.retained, parallel=parallel)

    def judge_log(self, read: Iterable[ReadPart], progress: Progress = silent) -> None:
        """Take in what all parts of the log are, in their order."""
        self.survey.log = self.log.judge(read, progress)
        self.survey.findings += self.survey.log.findings

    def named_segments(self) -> list[tuple[SegmentRef, int | None]]:
        """Return every segment that a retained generation names, and its size; None: it is not there.

        With those that the unfolded log attaches.
        """
        store, survey = self._store, self.survey
        assert survey.head is not None
        namespace = survey.namespace
        attached = () if survey.log is None else survey.log.attached
        named: dict[str, SegmentRef] = {}
        now = survey.head.manifest
        for manifest in survey.retained:
            # What a life of this name that has ended shared with others goes with its pin.
            is_over = manifest.born != now.born or now.state != "live"
            for ref in manifest.segments:
                if not (is_over and ref.namespace):
                    named[segment_key(ref.namespace or namespace, ref.id)] = ref
        named |= {segment_key(namespace, ref.id): ref for ref in attached}
        survey.live = frozenset(
            segment_key(ref.namespace or namespace, ref.id)
            for ref in (*survey.head.manifest.segments, *attached)
        )
        sizes = {m.key: m.size for m in store.list(f"namespaces/{namespace}/segments/")}
        return [
            (ref, size_of(store, key) if ref.namespace else sizes.get(key))
            for key, ref in named.items()
        ]

    def judge_segment(self, facts: SegmentFacts) -> None:
        """Take in what is known of the next of `named_segments`."""
        self.survey.segments.append(facts)
        self.survey.findings += _tell_segment(self.survey, facts)

    def finish(self) -> Survey:
        """Look at what is left, and return all that is known."""
        survey = self.survey
        assert survey.head is not None
        _look_at_windows(self._store, survey)
        survey.findings += _overlapping(survey.head.manifest)
        survey.findings += _orphans(self._store, survey, survey.head)
        return survey


def _tell_segment(survey: Survey, facts: SegmentFacts) -> Iterator[Finding]:
    is_live = facts.key in survey.live
    is_problem = is_live or not survey.quarantine.holds(facts.key)
    where = _where(is_live, is_problem)
    if facts.is_missing:
        text = f"it is named, but not there{where}"
        yield Finding("segment-missing", facts.key, text, is_problem)
    for error in facts.errors:
        is_foreign = isinstance(error, FormatVersionError)
        kind = "format-version" if is_foreign else "segment-damaged"
        yield Finding(kind, facts.key, f"{said(error)}{where}", is_problem)


def _where(is_live: bool, is_problem: bool) -> str:
    if is_live:
        return ""
    dealt_with = "" if is_problem else ", and repair has dealt with it"
    return f"; only generations before the head name it{dealt_with}"


def _look_at_windows(store: Store, survey: Survey) -> None:
    assert survey.head is not None
    named = {m.dedup.id: m.dedup for m in survey.retained if m.dedup is not None}
    for ref in named.values():
        key = dedup_key(survey.namespace, ref.id)
        facts = _read_window(store, key, ref)
        survey.dedups.append(facts)
        if facts.window is not None:
            continue
        is_live = ref == survey.head.manifest.dedup
        is_problem = is_live or not survey.quarantine.holds(key)
        where = _where(is_live, is_problem)
        kind, what = "dedup-missing", "it is named, but not there"
        if facts.error is not None:
            kind, what = "dedup-damaged", said(facts.error)
        survey.findings.append(Finding(kind, key, f"{what}{where}", is_problem))


def _read_window(store: Store, key: str, ref: DedupRef) -> DedupFacts:
    def read() -> DedupWindow:
        data = store.get(key)
        found, told = (len(data), dedup_checksum(data, key=key)), (ref.size, ref.checksum)
        if found != told:
            raise CorruptError(key, 0, f"{told}, as the manifest says of it", f"{found}")
        return decode_dedup(data, key=key)

    try:
        return DedupFacts(key, ref, twice(read))
    except NotFoundError:
        return DedupFacts(key, ref, None)
    except UnreadableError as error:
        return DedupFacts(key, ref, None, error)


def _overlapping(manifest: Manifest) -> Iterator[Finding]:
    for older, newer in overlaps(manifest.segments):
        yield Finding(
            "segments-overlap",
            segment_key(newer.namespace or manifest.namespace, newer.id),
            f"it has keys and LSNs in common with segment {older.id}: a read may find the wrong "
            "version",
        )


def _orphans(store: Store, survey: Survey, head: Head) -> Iterator[Finding]:
    """Yield a note on objects that no generation that counts names, nor the unfolded log."""
    named = {facts.key for facts in survey.segments}
    named |= {facts.key for facts in survey.dedups}
    named |= {waiting.key for waiting in head.manifest.gc.pending}
    for folder in ("segments", "dedup"):
        prefix = f"namespaces/{survey.namespace}/{folder}/"
        found = [meta for meta in store.list(prefix) if meta.key not in named]
        survey.orphans += [meta.key for meta in found]
        if found:
            names = ", ".join(meta.key.rsplit("/", 1)[-1] for meta in found[:_NAMED_MAX])
            more = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
            yield Finding(
                "orphan",
                found[0].key,
                f"no retained generation and no log object that is to be folded names {names}{more} "
                f"({sum(m.size for m in found)} bytes): a crash left it, it is being written, or "
                "log objects that are folded, and kept for time travel or a snapshot, attach it; "
                "`reef gc` removes it when nothing does any more",
                is_problem=False,
            )
