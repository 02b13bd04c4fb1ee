"""Planning a collection: what may go, on one head, at one time.

Nothing is written here. On the same head, a plan for an earlier time lets less go, never more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import suppress
from functools import cache
from typing import TypeVar

from reef.clock import Clock
from reef.errors import UnavailableError
from reef.format import Boundary, Manifest
from reef.gc._collection import CollectionPlan, ObjectCounter, Retained
from reef.gc._folded_slots import AttachScan, PinnedLog
from reef.gc._judge import (
    CollectionInputs,
    Judgement,
    judge_manifests,
    judge_segments,
    judge_slots,
    judge_strangers,
    judge_windows,
)
from reef.gc._known_garbage import KnownGarbage
from reef.gc._pins import JudgedPin, PinReason, Pins
from reef.gc._retained import (
    Holding,
    Holdings,
    SnapshotLog,
    first_recent,
    snapshot_logs,
    stood_upon,
)
from reef.gc._survey import ObjectListing
from reef.log import absent
from reef.manifest import (
    Generation,
    Head,
    ManifestChain,
    expire_snapshots,
    is_retained,
    longest_grace_ms,
    no_namespace,
    release_pins,
    settle_grace,
)
from reef.settings import Settings
from reef.store import Store
from reef.threads import SystemThreads, Threads, for_each
from reef.types import LSN_MAX, unpack_lsn

_log = logging.getLogger("reef.gc")

T = TypeVar("T")

PLANS_MAX = 10
SUPERFLUOUS_KEPT_MAX = 3
"""One run publishes this many generations at most. As many superfluous ones are not worth another
generation, or each collection would cause the next one."""
ENDED_KEPT_MAX = 2
"""The same where a life has ended and nobody else publishes: one to learn the time, one to delete."""


def plan_collection(
    chain: ManifestChain,
    store: Store,
    *,
    settings: Settings,
    clock: Clock,
    now_us: int | None = None,
    threads: Threads | None = None,
) -> CollectionPlan:
    """Return what a collection at `now_us` (default: now) would delete, and why the rest stays.

    Reads only. Raises NotFoundError if there is no such namespace, CorruptError, UnavailableError.
    """
    threads = threads or SystemThreads()

    def planned() -> CollectionPlan:
        planner = CollectionPlanner(chain, store, settings=settings, threads=threads)
        at_us = max(clock.now_us(), planner.head.published_at_us) if now_us is None else now_us
        return planner.plan(planner.head, at_us, assume_aborted=True)

    return beside_others(planned, chain.namespace)


class CollectedMeanwhile(Exception):
    """Another collection has deleted what the head of this plan retains, by a newer head."""


def beside_others(work: Callable[[], T], namespace: str) -> T:
    """Return what `work` does, from the start each time that another collection was faster."""
    for _ in range(PLANS_MAX):
        with suppress(CollectedMeanwhile):
            return work()
    raise UnavailableError(
        f"namespace {namespace!r} was collected by others during each of {PLANS_MAX} attempts to "
        "plan a collection of it; nothing was deleted: retry"
    )


class CollectionPlanner:
    """Makes plans on what one survey has found."""

    def __init__(
        self,
        chain: ManifestChain,
        store: Store,
        *,
        settings: Settings,
        threads: Threads,
        known: KnownGarbage | None = None,
    ) -> None:
        """List the namespace, then load its head. Raises NotFoundError, UnavailableError."""
        self._chain = chain
        self._store = store
        self._settings = settings
        self._threads = threads
        self.survey = ObjectListing(store, _load(chain).manifest)
        self.head = _load(chain)
        _warn_of_shorter(settings, self.head.manifest)
        self._disowned = frozenset[str]() if known is None else frozenset(known.disowned)
        if known is not None:
            self.survey.slots.trust(known.own_slots)
        self._holdings = Holdings(store, self.survey, None if known is None else known.named)
        self._pins = Pins(chain, store, threads)
        manifest = self.head.manifest
        self._pinned_log = PinnedLog(store, manifest.namespace, manifest.lsn_policy)
        self._pinned_unreadable: list[str] = []
        self._scanned: dict[tuple[int, int], tuple[Set[str], tuple[str, ...]]] = {}

    def plan(self, head: Head, now_us: int, *, assume_aborted: bool = False) -> CollectionPlan:
        """Return what may go at `now_us` if the manifest is published first that the plan is for.

        `assume_aborted`: plan as if branches that were never made were aborted already. Raises
        CollectedMeanwhile: then list again.
        """
        if head.damaged:
            return self._blocked(head, now_us)
        listed = {found.number: found for found in self._chain.generations()}
        manifest = settle_grace(expire_snapshots(head.manifest, now_us), listed, now_us)
        # Readers rely on what the manifest says, and on what earlier heads said.
        wanted_us = round((self._settings.gc_grace or 0) * 1_000_000)
        grace_us = max(wanted_us, _micros(longest_grace_ms(manifest.gc)))
        pins = self._pins.judge(manifest, now_us=now_us, grace_us=grace_us)
        if not assume_aborted:
            pins = tuple(_waiting(judged) if judged.aborts else judged for judged in pins)
        manifest = release_pins(manifest, {judged.name for judged in pins if judged.goes})
        newest = self._settings.retained_generations
        first = first_recent(
            manifest,
            listed,
            since_us=now_us - grace_us,
            # A dropped namespace is not opened, so the heads within the grace period are enough.
            newest=newest if manifest.state == "live" else min(newest, 2),
        )
        raised = self._decide(head, manifest, listed, first, grace_us, now_us, pins)
        if raised.is_raised and _is_worthless(raised, head.manifest, listed):
            return self._decide(head, manifest, listed, first, grace_us, now_us, pins, is_kept=True)
        return raised

    def abort_unmade(self, plan: CollectionPlan) -> None:
        """See to it that branches which were never made never will be.

        Raises OutcomeUnknownError, UnavailableError.
        """
        self._pins.abort_unmade(plan.pins, plan.grace_us // 1000)

    def _decide(
        self,
        head: Head,
        manifest: Manifest,
        listed: Mapping[int, Generation],
        first: int,
        grace_us: int,
        now_us: int,
        pins: tuple[JudgedPin, ...],
        *,
        is_kept: bool = False,
    ) -> CollectionPlan:
        inputs = self._inputs(manifest, listed, first, grace_us, now_us, is_kept=is_kept)
        judgement = self._judge(inputs)
        return CollectionPlan(
            namespace=manifest.namespace,
            generation=manifest.generation,
            now_us=now_us,
            grace_us=grace_us,
            pitr_us=self._pitr_us(manifest),
            boundary=inputs.boundary,
            shortened=manifest.gc.shortened,
            is_raised=inputs.boundary != head.manifest.gc.boundary,
            expired=_expired(head.manifest, manifest),
            pins=pins,
            settled=_settled(self.survey.settled, manifest),
            retained=self._retained(inputs),
            object_counts=judgement.counter.counts(),
            problems=self._problems(inputs),
            doomed=tuple(judgement.doomed),
            slots=judgement.slots,
        )

    def _inputs(
        self,
        manifest: Manifest,
        listed: Mapping[int, Generation],
        first: int,
        grace_us: int,
        now_us: int,
        *,
        is_kept: bool,
    ) -> CollectionInputs:
        """Return what is decided on; `is_kept`: with the boundary as it is."""
        old = manifest.gc.boundary
        stays_from = min(first, old.generation) if is_kept else first
        stood = stood_upon(manifest)
        head = manifest.generation
        gone = absent(listed, stays_from, head)
        wanted = {head, *(n for n in listed if stays_from <= n <= head), *stood}
        holdings, unreadable = self._holdings.of(wanted)
        unreadable = sorted({*unreadable, *(gap.start for gap in gone)})
        missing = {*self._holdings.gone.intersection(wanted), *(gap.start for gap in gone)}
        if missing:
            newest = _load(self._chain).manifest
            if not all(is_retained(newest, number) for number in missing):
                raise CollectedMeanwhile
        pitr_us = self._pitr_us(manifest)
        # A branch reads no log of others, so what only it stands on keeps its segments alone. What
        # snapshots need of the log is kept slot by slot, wherever the boundary lies.
        reading = [
            h for h in holdings if h.generation >= stays_from or h.generation in manifest.followed
        ]
        kept = snapshot_logs(manifest, holdings)
        needed_from, limit = self._slot_limits(manifest, reading, unreadable, pitr_us, now_us)
        raised = Boundary(slot=max(old.slot, limit), generation=max(old.generation, first))
        boundary = old if is_kept else raised
        # Once, and not before the kinds of log objects are known.
        pinned = cache(lambda: self._pinned(manifest, holdings, kept, min(boundary.slot, limit)))
        return CollectionInputs(
            manifest=manifest,
            boundary=boundary,
            slot_limit=min(boundary.slot, limit),
            needed_from=needed_from,
            pitr_since_us=None if pitr_us is None else now_us - pitr_us,
            listed=listed,
            stood_upon=stood,
            recent_from=first,
            holdings=holdings,
            unreadable=unreadable,
            now_us=now_us,
            grace_us=grace_us,
            disowned=self._disowned,
            attached=lambda: self._attached(manifest, min(boundary.slot, limit), pinned()[1]),
            pinned=lambda: pinned()[0],
            kept=kept,
            for_rebuild=lambda: self._for_rebuild(manifest, min(boundary.slot, limit)),
        )

    def _judge(self, inputs: CollectionInputs) -> Judgement:
        slots = self.survey.slots
        for_each(
            slots.unread(inputs.slot_limit),
            slots.read,
            width=self._store.concurrency,
            threads=self._threads,
        )
        counter = ObjectCounter()
        for line in self.survey.live.counts():
            counter.add(line.kind, line.goes, line.reason, line.bytes, line.objects)
        judgement = Judgement(counter)
        judge_manifests(inputs, judgement)
        judge_slots(inputs, self.survey, judgement)
        judge_segments(inputs, self.survey, judgement)
        judge_windows(inputs, self.survey, judgement, self._store)
        judge_strangers(inputs, self.survey, judgement)
        return judgement

    def _slot_limits(
        self,
        manifest: Manifest,
        holdings: list[Holding],
        unreadable: Collection[int],
        pitr_us: int | None,
        now_us: int,
    ) -> tuple[int, int]:
        """Return the first slot that a retained generation needs, and the first that must stay."""
        old = manifest.gc.boundary.slot
        if unreadable:
            return old, old
        needed_from = min(h.wal_floor for h in holdings)
        limits = [needed_from, self.survey.wal_floor]
        if pitr_us is not None:
            recent = self.survey.slots.first_since(now_us - pitr_us, old)
            limits += [] if recent is None else [recent]
        return needed_from, min(limits)

    def _pitr_us(self, manifest: Manifest) -> int | None:
        if manifest.state != "live":
            return None
        window_ms, window_s = manifest.retention.pitr_window_ms, self._settings.pitr_window
        if window_ms is None and window_s is None:
            return None
        return max(_micros(window_ms or 0), round((window_s or 0) * 1_000_000))

    def _pinned(
        self,
        manifest: Manifest,
        holdings: Iterable[Holding],
        kept_logs: Iterable[SnapshotLog],
        limit: int,
    ) -> tuple[Set[int], Set[str]]:
        """Return the slots below `limit` that stay for branches or snapshots, and what they attach."""
        floors = {holding.generation: holding.wal_floor for holding in holdings}
        points = [
            (floors[pin.generation], pin.lsn) for pin in manifest.pins if pin.generation in floors
        ]
        points += [(log.slot_first, log.lsn) for log in kept_logs]
        if not points:
            return frozenset(), frozenset()
        slots = self.survey.slots.attaching(min(first for first, _ in points), limit)
        kept, segments, self._pinned_unreadable = self._pinned_log.of(slots, points)
        return kept, segments

    def _for_rebuild(self, manifest: Manifest, limit: int) -> Set[int]:
        """Return the slots below `limit` that stay for a rebuild without manifests.

        The last valid object below the floor, from which the chain goes on; the newest schema; and what
        attaches live segments, whose versions are stated nowhere else.
        """
        if manifest.state != "live":
            return frozenset()
        kept = {manifest.wal_anchor.slot}
        if (schema := self.survey.slots.newest_schema(limit)) is not None:
            kept.add(schema)
        attached = [s for s in manifest.segments if s.version is not None and not s.namespace]
        if manifest.lsn_policy == "packed":
            kept.update(unpack_lsn(s.lsn_max)[0] for s in attached)
        elif attached:
            slots = self.survey.slots.attaching(1, limit)
            kept |= self._pinned_log.naming(slots, {s.id for s in attached})
        return kept

    def _attached(
        self, manifest: Manifest, slot_first: int, pinned: Set[str]
    ) -> tuple[Set[str], bool]:
        """Return what the log that stays attaches, and whether all of it could be read.

        Looked up after `manifest` was read: an intent ends after its segments are attached.
        """
        which = manifest.generation, slot_first
        if which not in self._scanned:
            scan = AttachScan(self._store, manifest.namespace, manifest.lsn_policy)
            passed_over = {skipped.slot for skipped in manifest.skipped_slots}
            for_each(
                scan.listed(slot_first, passed_over),
                scan.look,
                width=self._store.concurrency,
                threads=self._threads,
            )
            self._scanned[which] = scan.segments, tuple(scan.unreadable)
        segments, unreadable = self._scanned[which]
        return segments | pinned, not (unreadable or self._pinned_unreadable)

    def _retained(self, inputs: CollectionInputs) -> tuple[Retained, ...]:
        head = inputs.manifest.generation
        newest = head + 2 - self._settings.retained_generations
        why = {head: "the head"}
        for number in (n for n in inputs.listed if inputs.stays_from <= n < head):
            why[number] = (
                "one of the newest"
                if number >= newest
                else "the head within the grace period"
                if number >= inputs.recent_from
                else "not needed, but not worth a new generation to release it"
            )
        for number, names in inputs.stood_upon.items():
            why[number] = f"{why[number]}, {names}" if number in why else names
        return tuple(Retained(number, why[number]) for number in sorted(why))

    def _problems(self, inputs: CollectionInputs) -> tuple[str, ...]:
        stood = inputs.stood_upon
        problems = [
            f"generation {number}, which is retained"
            + (f" for {stood[number]}" if number in stood else "")
            + ", is damaged or missing: segments, dedup windows and the log are not collected, "
            "because it may need them; `reef verify` shows more"
            for number in inputs.unreadable
        ]
        for keys in (self._pinned_unreadable, *(keys for _, keys in self._scanned.values())):
            problems += [f"{key} cannot be read: segments that it may attach stay" for key in keys]
        return tuple(dict.fromkeys(problems))

    def _blocked(self, head: Head, now_us: int) -> CollectionPlan:
        manifest = head.manifest
        named = ", ".join(map(str, head.damaged))
        return CollectionPlan(
            namespace=manifest.namespace,
            generation=manifest.generation,
            now_us=now_us,
            grace_us=_micros(longest_grace_ms(manifest.gc)),
            pitr_us=None,
            boundary=manifest.gc.boundary,
            is_raised=False,
            problems=(
                f"generation {named} of namespace {manifest.namespace!r} cannot be read: nothing "
                "is collected until `reef repair` has repaired it",
            ),
        )


def _micros(millis: int) -> int:
    """Return a manifest's milliseconds as microseconds; what no number on the store holds is the most."""
    return min(millis * 1000, LSN_MAX)


def _is_worthless(plan: CollectionPlan, manifest: Manifest, listed: Iterable[int]) -> bool:
    """Return whether its boundary frees nothing but as many generations as a run may cost."""
    if plan.expired or plan.settled or plan.released:
        return False
    old = manifest.gc.boundary
    if plan.slots is not None and any(slot >= old.slot for slot in plan.slots.slots):
        return False
    if any(doomed.kind != "manifest" for doomed in plan.doomed):
        return False
    kept_max = SUPERFLUOUS_KEPT_MAX if manifest.state == "live" else ENDED_KEPT_MAX
    return sum(old.generation <= number < plan.boundary.generation for number in listed) <= kept_max


def _warn_of_shorter(settings: Settings, manifest: Manifest) -> None:
    """Log that a namespace keeps more than this process was told to."""
    kept_s = {
        "gc_grace": manifest.gc.grace_ms / 1000,
        "pitr_window": (manifest.retention.pitr_window_ms or 0) / 1000,
    }
    for name, most_s in kept_s.items():
        given_s = getattr(settings, name)
        if given_s is not None and given_s < most_s:
            _log.warning(
                "namespace %r is collected with its own %s of %gs, which is longer than the %gs "
                "given here: to change it, run `reef settings URL %s --set %s=%gs`",
                *(manifest.namespace, name, most_s, given_s, manifest.namespace, name, given_s),
            )


def _waiting(judged: JudgedPin) -> JudgedPin:
    """Return the decision on a pin whose branch is not aborted yet: it stays."""
    return JudgedPin(judged.pin, PinReason.YOUNG)


def _load(chain: ManifestChain) -> Head:
    head = chain.load()
    if head is None:
        raise no_namespace(chain.url, chain.namespace)
    return head


def _expired(before: Manifest, after: Manifest) -> tuple[str, ...]:
    standing = {snapshot.id for snapshot in after.snapshots}
    return tuple(s.id for s in before.snapshots if s.id not in standing)


def _settled(keys: Collection[str], manifest: Manifest) -> tuple[str, ...]:
    waiting = {pending.key for pending in manifest.gc.pending}
    return tuple(key for key in keys if key in waiting)
