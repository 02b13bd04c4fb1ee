"""Garbage collection: what nothing needs any more is deleted, once the manifest says so.

1. List the namespace, load its head, plan.               crash: nothing happened
   Put "aborted" where branches would begin that were     crash: their names are free, and the next
   never made, and yet have pins here.                           run takes the pins out
2. Publish the manifest that takes expired snapshots      crash: the next run finds the boundary
   and pins out, and raises the boundary to where                 raised, and deletes
   things will go.
3. Delete, manifests first.                               crash: the next run deletes the rest
4. Publish the manifest without the pending entries       crash: the next run sees that their
   whose objects are gone.                                        objects are gone
5. Sweep what unfinished writes have left.

Invariants:

- Nothing is deleted that a retained generation names or reads, whatever others publish meanwhile:
  what may go can never be named again (see `gc/_judge.py`).
- Put-if-absent forgets deleted names. So the boundary is published before the first delete, and
  fences stay: a writer that slept through a collection meets its fence, and the author of an object
  below the boundary learns from the head that it does not count.
- Time is the store's. What is published rests on the Last-Modified of generations: where this
  machine's clock promises more than those prove, a generation is published first to learn the time.
- Nothing outside the namespace's own prefix is deleted, and nothing but "aborted" is written there.
  Deletes are idempotent, and two collections at once do no harm: what one has deleted is no damage
  to the other, which plans anew if the newest head does not retain it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from reef.clock import Clock
from reef.errors import InvariantError, ReefError
from reef.format import Manifest
from reef.gc._collection import (
    CollectionPlan,
    CollectionReport,
    Doomed,
    Kind,
    ObjectCounter,
    Progress,
)
from reef.gc._collection_plan import CollectionPlanner, beside_others
from reef.gc._judge import DAY_US
from reef.gc._known_garbage import KnownGarbage
from reef.gc._names import FOLDERS, folder_prefix
from reef.manifest import Head, ManifestChain, advance_boundary, expire_snapshots, release_pins
from reef.metrics import Metrics
from reef.settings import Settings
from reef.store import Store
from reef.threads import SystemThreads, Threads, for_each

_log = logging.getLogger("reef.gc")

Delete: TypeAlias = Callable[[Iterator[Doomed], int, Callable[[Doomed], None]], None]
"""Deletes a number of objects of one kind, and reports each deleted one. Raises
UnavailableError."""

# Manifests first: a reader that can still load one should find what it names.
_ORDER: tuple[Kind, ...] = ("manifest", "log", "segment", "dedup", "other")


def collect(
    chain: ManifestChain,
    store: Store,
    *,
    settings: Settings,
    clock: Clock,
    apply: bool = False,
    progress: Progress | None = None,
    metrics: Metrics | None = None,
    threads: Threads | None = None,
    sweep: bool = True,
    delete: Delete | None = None,
    objects_max: int | None = None,
    known: KnownGarbage | None = None,
) -> CollectionReport:
    """Delete what nothing needs any more; without `apply`, write nothing and report what would go.

    `delete` deletes elsewhere what it is given; when it returns, all of that must be gone. Where more
    than `objects_max` objects would go, nothing is written, as without `apply`. `known` is what an
    open writer says of its own namespace. Raises NotFoundError if there is no such namespace,
    UnavailableError, OutcomeUnknownError, CorruptError. Whatever it raises, calling it again goes on
    where it ended.
    """
    threads = threads or SystemThreads()

    def collected() -> CollectionReport:
        collector = _Collector(
            chain, store, settings, clock, metrics, threads, delete, objects_max, known
        )
        return collector.run(apply=apply, progress=progress, sweep=sweep)

    return beside_others(collected, chain.namespace)


class _Collector:
    """One run."""

    def __init__(
        self,
        chain: ManifestChain,
        store: Store,
        settings: Settings,
        clock: Clock,
        metrics: Metrics | None,
        threads: Threads,
        delete: Delete | None,
        objects_max: int | None,
        known: KnownGarbage | None,
    ) -> None:
        self._chain = chain
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._threads = threads
        self._delete = delete
        self._objects_max = objects_max
        self._planner = CollectionPlanner(
            chain, store, settings=settings, threads=threads, known=known
        )
        self._published: list[int] = []

    def run(self, *, apply: bool, progress: Progress | None, sweep: bool) -> CollectionReport:
        head = self._planner.head
        now_us = max(self._clock.now_us(), self._proven_us(head))
        plan = self._planner.plan(head, now_us, assume_aborted=True)
        if not apply or head.damaged or self._is_too_much(plan):
            return CollectionReport(plan=plan, applied=False, problems=plan.problems)
        if plan.aborted:
            head = self._abort_unmade(head, plan)
            plan = self._planner.plan(head, now_us)
        if not plan.is_idle:
            plan = self._publish(head, plan)
        deletion = _Deletion(self._store, plan, self._metrics, progress)
        for kind in _ORDER:
            count = plan.count(kind)
            if count and self._delete is not None:
                self._delete(map(deletion.checked, plan.objects(kind)), count, deletion.deleted)
            elif count:
                for_each(
                    plan.objects(kind),
                    deletion.delete,
                    width=min(self._store.concurrency, count),
                    threads=self._threads,
                )
        self._forget_deleted(plan)
        swept, failure = self._sweep(plan) if sweep else ((), ())
        deleted = deletion.counter.counts()
        _log.info(
            "collected namespace %r: %d objects deleted",
            plan.namespace,
            sum(count.objects for count in deleted),
        )
        return CollectionReport(
            plan=plan,
            applied=True,
            deleted=deleted,
            published=tuple(self._published),
            swept=swept,
            problems=(*plan.problems, *failure),
        )

    def _is_too_much(self, plan: CollectionPlan) -> bool:
        objects = len(plan.doomed) + len(plan.slots or ())
        return self._objects_max is not None and objects > self._objects_max

    def _abort_unmade(self, head: Head, plan_if_aborted: CollectionPlan) -> Head:
        """Abort unfinished branches, so that they can never be made; return the head after it.

        Only the store's time shows that they are late: by a clock that is ahead, every unfinished
        branch would be aborted.
        """
        proven = self._planner.plan(head, self._proven_us(head), assume_aborted=True)
        if proven.aborted != plan_if_aborted.aborted:
            _, head = self._publish_at(self._proven_us(head), is_needed=True)
            proven = self._planner.plan(head, head.published_at_us, assume_aborted=True)
        with self._store.reserve():
            self._planner.abort_unmade(proven)
        return head

    def _publish(self, head: Head, plan: CollectionPlan) -> CollectionPlan:
        """Publish the boundary before anything is deleted; return what may go then."""
        proven_us = self._proven_us(head)
        if self._planner.plan(head, proven_us).outcome != plan.outcome:
            _, learned = self._publish_at(proven_us, is_needed=True)
            proven_us = learned.published_at_us
        return self._publish_at(proven_us)[0]

    def _publish_at(self, now_us: int, *, is_needed: bool = False) -> tuple[CollectionPlan, Head]:
        """Publish what a plan for `now_us` asks for, on whatever the head is; return that plan."""
        plans: list[CollectionPlan] = []

        def planned(head: Head | None) -> Manifest | None:
            if head is None:
                raise InvariantError("a namespace that was listed has no manifest")
            plan = self._planner.plan(head, now_us)
            plans.append(plan)
            if not (plan.needs_publish or is_needed):
                return None
            manifest = release_pins(expire_snapshots(head.manifest, now_us), plan.released)
            gc = msgspec.structs.replace(manifest.gc, shortened=plan.shortened)
            manifest = msgspec.structs.replace(manifest, gc=gc)
            return advance_boundary(manifest, plan.boundary, deleted=plan.settled)

        head = self._publish_noted(planned)
        return plans[-1], head

    def _publish_noted(self, change: Callable[[Head | None], Manifest | None]) -> Head:
        wanted: list[Manifest | None] = []

        def noted(head: Head | None) -> Manifest | None:
            wanted.append(change(head))
            return wanted[-1]

        with self._store.reserve():
            head = self._chain.publish(noted)
        if wanted[-1] is not None:
            self._published.append(head.generation)
        return head

    def _forget_deleted(self, plan: CollectionPlan) -> None:
        """Take the objects that are gone out of `gc.pending`."""
        gone = {doomed.key for doomed in plan.doomed}

        def forgotten(head: Head | None) -> Manifest | None:
            if head is None:
                raise InvariantError("a namespace that was collected has no manifest")
            manifest = head.manifest
            if not any(waiting.key in gone for waiting in manifest.gc.pending):
                return None
            return advance_boundary(manifest, manifest.gc.boundary, deleted=gone)

        if gone:
            self._publish_noted(forgotten)

    def _sweep(self, plan: CollectionPlan) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Discard what unfinished writes have left in the whole bucket: other namespaces' as well.

        So nothing that is younger than a day. A store that cannot do it does not stop anybody.
        """
        before_us = min(plan.now_us, self._proven_us(self._planner.head))
        before_us -= max(plan.grace_us, DAY_US)
        try:
            return tuple(self._store.sweep(before_us)), ()
        except ReefError as error:
            return (), (f"what unfinished writes have left was not swept: {error}",)

    def _proven_us(self, head: Head) -> int:
        """Return the latest time that the store's clock is known to have reached."""
        return max(head.published_at_us, self._chain.now_us or 0)


class _Deletion:
    """Deletes, counts and reports. Thread-safe."""

    def __init__(
        self, store: Store, plan: CollectionPlan, metrics: Metrics | None, progress: Progress | None
    ) -> None:
        self._store = store
        self._plan = plan
        self._metrics = metrics
        self._progress = progress
        self._lock = threading.Lock()
        self._prefixes = tuple(folder_prefix(plan.namespace, name) for name in FOLDERS)
        self._counts = dict.fromkeys(_ORDER, 0)
        self.counter = ObjectCounter()

    def delete(self, doomed: Doomed) -> None:
        """Delete one object. Raises UnavailableError."""
        self._store.delete(self.checked(doomed).key)
        self.deleted(doomed)

    def checked(self, doomed: Doomed) -> Doomed:
        """Return what may be deleted. Raises InvariantError for anything that is not the namespace's."""
        if not doomed.key.startswith(self._prefixes):
            raise InvariantError(
                f"collecting namespace {self._plan.namespace!r} would delete {doomed.key!r}, which "
                "is not its own; nothing more was deleted"
            )
        return doomed

    def deleted(self, doomed: Doomed) -> None:
        """Take note of an object that is gone."""
        if self._metrics is not None:
            self._metrics.count("reef_gc_deleted_total", kind=doomed.kind)
            self._metrics.count("reef_gc_deleted_bytes_total", doomed.size, kind=doomed.kind)
        with self._lock:
            self.counter.add(doomed.kind, True, doomed.reason, doomed.size)
            self._counts[doomed.kind] += 1
            if self._progress is not None:
                self._progress(
                    doomed.kind, self._counts[doomed.kind], self._plan.count(doomed.kind)
                )
