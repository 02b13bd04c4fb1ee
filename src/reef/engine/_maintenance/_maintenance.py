"""The upkeep of one open writer's namespace, step by step, in the pool of its process.

A flush asks for a step if one is due; so an idle writer sends nothing. One step compacts one group, or
collects. What a compaction would read above 32 MiB is too large: it is left to `reef worker`.

Invariants:

- A compaction here is planned, merged and published by the same functions as one on Spark: on live
  inputs only, and with all retained points known. Its outputs carry the writer's epoch in their ids. It
  takes no intent and no compactor epoch: a killed process leaves nothing standing, and a compaction
  on Spark is not fenced by it.
- What was live when an intent was first seen may be an input of its job, and is left alone while the
  intent stands. A publish is refused if an intent stands that the plan did not know. So the second
  to publish plans anew, and maintenance never overtakes a job that has its intent.
- Collection spares unreferenced segments of the current epoch. So the writer remembers the names of
  what its own flushes and compactions wrote: what of that is replaced, or was never published for
  certain, it *disowns*, and its next collection deletes it after the grace period. If the process
  dies, collection deletes it when the epoch is over.

Crash points: before the publish there are orphans, after it everything is done. A collection may end
anywhere (see `gc/_collector.py`).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import ref

from reef.compaction import (
    CompactionOptions,
    CompactionPlan,
    merge_range,
    merge_tasks,
    outputs_of,
    plan_groups,
    reachable_floor,
)
from reef.context import Context
from reef.engine._maintenance._paced_store import PacedStore
from reef.errors import (
    FencedError,
    InvariantError,
    NotFoundError,
    OutcomeUnknownError,
    ReefError,
    StalePlanError,
)
from reef.format import Manifest, segment_key
from reef.gc import KnownGarbage, collect, named_objects
from reef.maintenance import SHARE, SHARE_MAX, Pace, StepEndedError
from reef.manifest import Head, ManifestChain, replace_segments, retained_points, set_retention
from reef.threads import Condition

if TYPE_CHECKING:
    from reef.engine._writer import Writer

BYTES_MAX = 32 << 20
"""About the most one compaction here reads: under a second of one core. More is left to a worker."""
RUNS_MIN = 8
"""So many level-0 segments are left alone."""
_OPTIONS = CompactionOptions(min_input_files=RUNS_MIN, memory_bytes=(64 + 32 * 18) << 20)
_BEHIND = 3 * RUNS_MIN
"""So many of them, and maintenance works as much as it may, and does not end a collection first."""
PENDING_MAX = 256
"""No compaction adds to `gc.pending` above this: 32 KiB of manifest."""
SEGMENTS_MAX = 1000
"""A namespace of more segments is collected by a worker."""
GENERATIONS_MIN = 32
"""So many generations above the boundary are not worth a collection."""
_NAMED_MAX = 4096
_LOOKS_PER_GRACE = 4
_PAUSE_S = 1.0
_PAUSE_S_MAX = 300.0

_HARMLESS = frozenset({"index", "load"})
"""Jobs that replace no segments."""

_log = logging.getLogger("reef.engine")


class Maintenance:
    """What is due in one writer's namespace. The handle's thread and the pool's share it."""

    def __init__(
        self, context: Context, writer: Writer, chain: ManifestChain, turn: Condition
    ) -> None:
        """`turn` is held while something is published, by flushes too."""
        self._context = context
        self._clock = context.clock
        self._writer = ref(writer)
        self._namespace = writer.namespace
        self._epoch = writer.epoch
        self._chain = chain
        self._turn = turn
        self._is_on = context.settings.maintenance == "auto"
        self._known = KnownGarbage()
        self._made: set[str] = set()
        """Ids of live segments and of the window, as far as this writer has made them."""
        self._unsettled: list[tuple[int, frozenset[str]]] = []
        """What a publish of unknown outcome would have named, and the generation that it built on."""
        self._spared: dict[str, frozenset[str]] = {}
        """The intents that stand, each with the segments that were live when it was first seen."""
        self._collect_at = self._floor_at = self._not_before = self._clock.monotonic()
        self._failures = 0
        self._too_large: tuple[str, ...] = ()
        self._is_logged = False
        self._runs = {"compact": 0, "collect": 0}
        self._last_run_us: int | None = None
        self._last_error: str | None = None

    # For the writer.

    @property
    def unlisted(self) -> frozenset[str]:
        """What need not wait in `gc.pending` when it is replaced."""
        return frozenset(self._made) if self._is_on else frozenset()

    def adopted(self, manifest: Manifest) -> None:
        """Take note of a generation that was the head."""
        if not self._is_on:
            return
        named = self._known.named
        if len(manifest.segments) <= SEGMENTS_MAX:
            named[manifest.generation] = named_objects(manifest)
            if len(named) > _NAMED_MAX:
                del named[min(named)]
        self._note_intents(manifest)

    def published(self, head: Head, made: Iterable[str]) -> None:
        """Take note of what a publish named, and of what it replaced. The turn is held."""
        if not self._is_on:
            return
        self._made.update(made)
        m = head.manifest
        live = {s.id for s in m.segments if not s.namespace}
        if m.dedup is not None:
            live.add(m.dedup.id)
        gone = self._made - live
        self._made -= gone
        self._known.disowned |= gone

    def failed(self, made: Iterable[str], error: BaseException) -> None:
        """Take note of what was uploaded and then not published."""
        if not self._is_on:
            return
        ids = frozenset(made)
        head = self._chain.head
        if isinstance(error, OutcomeUnknownError) and head is not None:
            self._unsettled.append((head.generation, ids))
        else:
            self._known.disowned |= ids

    def owns(self, id: str) -> bool:
        """Return whether a flush or a compaction of this writer has made a segment."""
        return id in self._made or id in self._known.disowned

    def ask(self) -> None:
        """Let the pool run a step if one is due. Sends nothing by itself."""
        writer = self._writer()
        if self._is_on and writer is not None and self._is_due(writer.manifest):
            self._context.maintenance.ask(self)

    def close(self) -> None:
        """Return when no step runs and none will. The writer is closed already."""
        if self._is_on:
            self._context.maintenance.drop(self)

    def stats(self) -> dict[str, Any]:
        """Return what is due and what was done."""
        writer = self._writer()
        m = None if writer is None else writer.manifest
        return {
            "mode": self._context.settings.maintenance,
            "due": [] if m is None or not self._is_on else self._due(m),
            "too_large": list(self._too_large),
            "compactions": self._runs["compact"],
            "collections": self._runs["collect"],
            "last_run_us": self._last_run_us,
            "last_error": self._last_error,
        }

    # For the pool.

    def is_busy(self) -> bool:
        """Return whether commits queue."""
        writer = self._writer()
        return writer is not None and writer.has_queue

    def share(self) -> float:
        """Return how much of the time to work: more, the more segments wait for compaction."""
        writer = self._writer()
        behind = 0 if writer is None else self._fresh(writer.manifest) / _BEHIND
        return SHARE + (SHARE_MAX - SHARE) * min(1.0, behind)

    def run(self, pace: Pace) -> bool:
        """Do one step; return whether another one is due."""
        writer = self._writer()
        if writer is None or not self._is_due(writer.manifest):
            return False
        try:
            is_done = self._compact_if_due(writer, pace) or self._collect_if_due(writer, pace)
        except StepEndedError:
            raise
        except Exception as error:  # noqa: BLE001 nobody else would see it
            self._note_error(error)
            return False
        self._failures = 0
        return is_done and self._is_due(writer.manifest)

    def _compact_if_due(self, writer: Writer, pace: Pace) -> bool:
        if not self._is_compaction_due(writer.manifest):
            return False
        with PacedStore(self._context.store, pace, self._clock) as store:
            paced = replace(self._context, store=store)
            self._raise_floor(writer, paced)
            is_done = self._compact(writer, paced, store)
        if is_done:
            self._note_run("compact")
        return is_done

    def _collect_if_due(self, writer: Writer, pace: Pace) -> bool:
        if not self._is_collection_due(writer.manifest):
            return False

        one_at_a_time = threading.Lock()

        def before() -> None:
            # A collection may be long: compaction does not wait for its end.
            pace()
            is_behind = self._fresh(writer.manifest) >= _BEHIND and self._is_due(writer.manifest)
            if is_behind and one_at_a_time.acquire(blocking=False):
                try:
                    self._compact_if_due(writer, pace)
                finally:
                    one_at_a_time.release()

        self._known.own_slots = writer.own_slots
        with PacedStore(self._context.store, pace, self._clock, before) as store:
            self._collect(replace(self._context, store=store))
        self._note_run("collect")
        return True

    def _note_run(self, kind: str) -> None:
        self._runs[kind] += 1
        self._last_run_us = self._clock.now_us()
        self._last_error = None

    # What is due.

    def _is_due(self, m: Manifest) -> bool:
        writer = self._writer()
        if writer is None or not writer.is_open or writer.failure is not None:
            return False
        return self._clock.monotonic() >= self._not_before and bool(self._due(m))

    def _due(self, m: Manifest) -> list[str]:
        due = {"compact": self._is_compaction_due(m), "collect": self._is_collection_due(m)}
        return [kind for kind, is_due in due.items() if is_due]

    def _fresh(self, m: Manifest) -> int:
        """Return how many level-0 segments there are that a compaction may merge."""
        spared = self._spared_ids()
        return sum(s.level == 0 and s.id not in spared for s in m.segments)

    def _is_compaction_due(self, m: Manifest) -> bool:
        return self._fresh(m) >= RUNS_MIN and len(m.gc.pending) < PENDING_MAX

    def _is_collection_due(self, m: Manifest) -> bool:
        return (
            m.generation - m.gc.boundary.generation >= GENERATIONS_MIN
            and len(m.segments) <= SEGMENTS_MAX
            and self._clock.monotonic() >= self._collect_at
        )

    # Compaction.

    def _raise_floor(self, writer: Writer, paced: Context) -> None:
        """Record how far old versions may be dropped: what was readable within the grace period stays."""
        m, now_us = self._head().manifest, self._chain.now_us
        if now_us is None or self._clock.monotonic() < self._floor_at:
            return
        self._floor_at = self._next_look(m)
        floor = reachable_floor(paced, m, now_us, lag_us=m.gc.grace_ms * 1000)
        if floor <= m.retention.floor_lsn:
            return

        def raised(head: Head | None) -> Manifest:
            return set_retention(self._own(head), floor_lsn=floor)

        with self._turn:
            head = self._chain.publish(raised)
        writer.adopt(head)

    def _compact(self, writer: Writer, paced: Context, store: PacedStore) -> bool:
        """Merge and publish one group; return whether there was one."""
        m = self._head().manifest
        self._note_intents(m)
        known = frozenset(self._spared)
        options = _OPTIONS.settled("", paced.settings)
        plan = plan_groups(paced, m, options, window_bytes_max=BYTES_MAX, spared=self._spared_ids())
        self._note_too_large(plan)
        group = next((g for g in plan.groups if g.ranges), None) if plan is not None else None
        if plan is None or group is None:
            return False
        points = tuple(retained_points(m))
        made: list[str] = []
        try:
            tasks = merge_tasks(
                plan,
                group,
                owner=f"e{self._epoch}",
                floor_lsn=m.retention.floor_lsn,
                points=points,
                is_packed=m.lsn_policy == "packed",
            )
            outputs = outputs_of(group, [merge_range(paced, task) for task in tasks])
            made = [ref.id for ref in outputs]

            def replaced(head: Head | None) -> Manifest:
                m = self._own(head)
                self._check_intents(m, known)
                return replace_segments(
                    m,
                    epoch=self._epoch,
                    inputs=group.inputs,
                    outputs=outputs,
                    known_points=points,
                    within=group.keys,
                    unlisted=self._made,
                )

            with self._turn:
                head = self._chain.publish(replaced)
                self.published(head, made)
        except BaseException as error:
            prefix = segment_key(self._namespace, "")[: -len(".seg")]
            self.failed((key[len(prefix) : -len(".seg")] for key in store.uploaded), error)
            if not isinstance(error, StalePlanError):
                raise
            self._note_intents(self._head().manifest)
            return False
        writer.adopt(head)
        return True

    def _own(self, head: Head | None) -> Manifest:
        if head is None:
            raise InvariantError("a namespace that was open has no manifest")
        return head.manifest

    def _head(self) -> Head:
        head = self._chain.head
        if head is None:
            raise InvariantError("a namespace that was open has no manifest")
        return head

    def _note_intents(self, m: Manifest) -> None:
        """Note intents that stand, and what may be an input of their jobs."""
        standing = {intent.id for intent in m.intents if intent.kind not in _HARMLESS}
        live = (
            frozenset(s.id for s in m.segments) if standing - self._spared.keys() else frozenset()
        )
        self._spared = {id: self._spared.get(id, live) for id in standing}

    def _check_intents(self, m: Manifest, known: frozenset[str]) -> None:
        """Raise StalePlanError if a job stands that may have the same inputs: it goes first."""
        for intent in m.intents:
            if intent.kind not in _HARMLESS and intent.id not in known:
                raise StalePlanError(
                    f"job {intent.id} began in namespace {self._namespace!r} while its writer "
                    "compacted it: the job goes first"
                )

    def _spared_ids(self) -> frozenset[str]:
        return frozenset[str]().union(*self._spared.values())

    def _note_too_large(self, plan: CompactionPlan | None) -> None:
        self._too_large = () if plan is None else plan.skipped
        if self._too_large and not self._is_logged:
            self._is_logged = True
            _log.warning(
                "namespace %r has %s, too large to compact in this process: run `reef compact` or "
                "`reef worker`",
                self._namespace,
                ", ".join(self._too_large),
            )

    # Collection.

    def _collect(self, paced: Context) -> None:
        """Delete what nothing needs any more, of this namespace alone."""
        self._collect_at = self._next_look(self._head().manifest)
        self._settle_unknown()
        report = collect(
            paced.chain(self._namespace),
            paced.store,
            settings=paced.settings,
            clock=paced.clock,
            apply=True,
            metrics=paced.metrics,
            threads=paced.threads,
            sweep=False,
            known=self._known,
        )
        gone = {doomed.key for doomed in report.plan.doomed}
        prefix = f"namespaces/{self._namespace}/"
        self._known.disowned -= {
            key[len(prefix) :].partition("/")[2].partition(".")[0] for key in gone
        }
        boundary = report.plan.boundary.generation
        for number in [n for n in self._known.named if n < boundary]:
            del self._known.named[number]
        if report.problems:
            self._last_error = "; ".join(report.problems)

    def _settle_unknown(self) -> None:
        """Disown what was published for certain by nobody: the number it was built for is taken."""
        newest = self._head().generation
        left = []
        for generation, ids in self._unsettled:
            if newest > generation:
                self._known.disowned |= ids
            else:
                left.append((generation, ids))
        self._unsettled = left

    def _next_look(self, m: Manifest) -> float:
        return self._clock.monotonic() + m.gc.grace_ms / 1000 / _LOOKS_PER_GRACE

    def _note_error(self, error: Exception) -> None:
        if isinstance(error, FencedError | NotFoundError):
            self._not_before = math.inf  # taken over, or dropped: the next write says so
            return
        self._failures += 1
        pause = min(_PAUSE_S * 2 ** min(self._failures, 20), _PAUSE_S_MAX)
        self._not_before = self._clock.monotonic() + pause
        self._last_error = f"{type(error).__name__}: {error}"
        if isinstance(error, ReefError):
            _log.warning("maintenance of namespace %r failed: %s", self._namespace, error)
        else:
            _log.exception("maintenance of namespace %r failed", self._namespace)
