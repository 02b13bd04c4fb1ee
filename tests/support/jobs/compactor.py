"""A small compactor, and a job that folds the log: what the pipeline does, one step after the other.

compactor = Compactor(db.context(), "ns")
compactor.run(floor_lsn=...)                 # or its steps, to stop between them:
plan = compactor.plan()                      # the intent stands; what to merge, and what to keep
outputs = compactor.write(plan)              # uploaded, named by nothing
compactor.publish(plan, outputs)             # the only visible step; ends the intent
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from reef.engine import Context, DedupIndex, Tail, load_dedup, write_window
from reef.errors import NotFoundError, ReefError, StalePlanError
from reef.format import KEY, LSN, Manifest, SegmentOptions, SegmentOrigin, SegmentRef, WalAnchor
from reef.jobs import Job
from reef.log import LogReader
from reef.manifest import (
    Head,
    ManifestChain,
    advance_floor,
    end_intent,
    register_intent,
    replace_segments,
    retained_points,
    set_retention,
)
from reef.segment import keep_versions, write_segment
from reef.types import LSN_MAX, new_ulid

Run = tuple[SegmentRef, ...]
Choose = Callable[[Sequence[Run]], Sequence[Run]]
"""Picks the runs to merge among the live ones, which are given newest first: neighbours only."""

PLANS_MAX = 20


@dataclass(frozen=True)
class Plan:
    """What one compaction merges, and the retained points that it knows."""

    job: str
    inputs: tuple[SegmentRef, ...]
    floor_lsn: int
    points: tuple[int, ...]
    is_bottom: bool


class Compactor:
    """Merges segments of one namespace under intents."""

    def __init__(self, context: Context, namespace: str, *, row_block_bytes: int = 4096) -> None:
        self._context = context
        self._namespace = namespace
        self._options = SegmentOptions(row_block_bytes=row_block_bytes)
        self.chain: ManifestChain = context.chain(namespace)

    def run(
        self, *, floor_lsn: int | None = None, choose: Choose = list, cuts: int = 1
    ) -> tuple[SegmentRef, ...]:
        """Compact once, planning anew as often as the plan was overtaken; return the outputs."""
        for _ in range(PLANS_MAX):
            plan = self.plan(floor_lsn=floor_lsn, choose=choose)
            outputs = self.write(plan, cuts=cuts)
            try:
                self.publish(plan, outputs)
            except StalePlanError:
                self.give_up(plan)
                continue
            return outputs
        raise AssertionError(f"overtaken {PLANS_MAX} times")

    def plan(self, *, floor_lsn: int | None = None, choose: Choose = list) -> Plan:
        """Announce the job, record the floor if one is given, and decide what to merge."""
        job = f"compact-{new_ulid(self._context.clock, self._context.rng).lower()}"
        self._publish(
            lambda m: register_intent(m, id=job, kind="compact", author="test", opened_at_us=0)
        )
        if floor_lsn is not None:
            self.raise_floor(floor_lsn)
        head = self.chain.load()
        assert head is not None
        return self.plan_on(head.manifest, job, choose)

    def raise_floor(self, floor_lsn: int) -> None:
        """Record the retention floor: before anything below it is dropped."""
        self._publish(lambda m: set_retention(m, floor_lsn=min(floor_lsn, m.last_applied_lsn)))

    def plan_on(self, m: Manifest, job: str, choose: Choose = list) -> Plan:
        """Decide what to merge as of one manifest."""
        runs = runs_of(m)
        chosen = choose(runs)
        return Plan(
            job,
            tuple(ref for run in chosen for ref in run),
            m.retention.floor_lsn,
            tuple(retained_points(m)),
            is_bottom=bool(chosen) and chosen[-1] is runs[-1],
        )

    def write(self, plan: Plan, *, cuts: int = 1) -> tuple[SegmentRef, ...]:
        """Upload what the retention rule keeps of the inputs, as up to `cuts` segments."""
        if not plan.inputs:
            return ()
        kept = keep_versions(
            self._merged(plan.inputs),
            floor_lsn=plan.floor_lsn,
            points=plan.points,
            is_bottom=plan.is_bottom,
        )
        rows = list(kept)
        if not rows:
            return ()
        parts = _cut(pa.Table.from_batches(rows), cuts)
        return tuple(self._upload(plan, part, (n, len(parts))) for n, part in enumerate(parts, 1))

    def publish(self, plan: Plan, outputs: Sequence[SegmentRef]) -> Head:
        """Name the outputs instead of the inputs, and end the intent."""

        def replaced(m: Manifest) -> Manifest:
            if plan.inputs:
                m = replace_segments(
                    m,
                    compactor_epoch=None,
                    intent=plan.job,
                    inputs=plan.inputs,
                    outputs=outputs,
                    known_points=plan.points,
                )
            return end_intent(m, plan.job)

        return self._publish(replaced)

    def give_up(self, plan: Plan) -> None:
        """End the intent: nothing of this job will be published."""
        self._publish(lambda m: end_intent(m, plan.job))

    def _merged(self, inputs: Sequence[SegmentRef]) -> pa.Table:
        """Return every version of the inputs, in the order of segments."""
        segments = self._context.segments(self._namespace)
        tables = [
            pa.Table.from_batches(
                segments.open(ref).batches(b"", None, columns=None, reverse=False, lsn=LSN_MAX)
            )
            for ref in inputs
        ]
        if len(tables) == 1:
            return tables[0]
        rows = pa.concat_tables(tables, promote_options="default")  # of any schema
        return rows.sort_by([(KEY, "ascending"), (LSN, "descending")])

    def _upload(self, plan: Plan, rows: pa.Table, part: tuple[int, int]) -> SegmentRef:
        origin = SegmentOrigin(
            id=f"{new_ulid(self._context.clock, self._context.rng)}-{plan.job}",
            namespace=self._namespace,
            level=1,
            author="test",
            created_at_us=self._context.clock.now_us(),
            replaced_segments=tuple(ref.id for ref in plan.inputs),
            part=part,
        )
        return write_segment(
            self._context.store,
            self._namespace,
            rows.schema,
            origin,
            self._options,
            rows.to_batches(),
        )

    def _publish(self, change: Callable[[Manifest], Manifest]) -> Head:
        def changed(head: Head | None) -> Manifest:
            if head is None:
                raise NotFoundError(f"there is no namespace {self._namespace!r}")
            return change(head.manifest)

        return self.chain.publish(changed)


def runs_of(m: Manifest) -> list[Run]:
    """Return the live segments, newest first, those of one run together: they share their LSNs."""
    runs: list[list[SegmentRef]] = []
    for ref in sorted(m.segments, key=lambda ref: ref.lsn_max, reverse=True):
        if runs and ref.lsn_max >= min(other.lsn_min for other in runs[-1]):
            runs[-1].append(ref)
        else:
            runs.append([ref])
    return [tuple(run) for run in runs]


def fold_log(context: Context, namespace: str) -> Manifest | None:
    """Fold the whole log into a segment, as a job that is not the writer; return the manifest, or None.

    By the engine's memtable in one piece, and not by the pipeline's parts: `index` is compared with it.
    None says that there was nothing to fold. Raises StalePlanError if somebody else has folded
    meanwhile, NotFoundError if what they have folded is even collected.
    """
    job = Job.begin(context, namespace, "index")
    try:
        known = job.head.manifest
        tail, dedup = _replay(context, known)
        slots = known.wal_floor, tail.replay.next_slot - 1
        if slots[1] < slots[0]:
            job.end()
            return None
        segments = (*tail.attached, *_fold_rows(context, namespace, job.id, tail, slots))
        window = None
        if dedup.last_lsn > known.last_applied_lsn:
            entries = dedup.window(tail.lsn, context.clock.now_us())
            window = write_window(context, namespace, entries)
        point = tail.replay.point

        def folded(m: Manifest) -> Manifest:
            done = advance_floor(
                m,
                intent=job.id,
                slot_first=slots[0],
                slot_last=slots[1],
                anchor=WalAnchor(slot=point.slot, checksum=point.checksum, epoch=point.epoch),
                segments=segments,
                last_applied_lsn=tail.lsn,
                dedup=window or m.dedup,
                skipped=tail.skipped,
                schema=tail.schema,
            )
            return end_intent(done, job.id)

        return job.publish(folded).manifest
    except ReefError:
        job.end()
        raise


def _replay(context: Context, m: Manifest) -> tuple[Tail, DedupIndex]:
    """Return what the log above `m` gives."""
    tail, dedup = Tail(m), load_dedup(context, m)
    reader = LogReader(context.store, m.namespace, m.lsn_policy)
    for entry in reader.read(tail.replay, last_known=m.wal_last_seen):
        if entry.is_valid:
            dedup.apply(entry.log)
        tail.apply(entry)
    return tail, dedup


def _fold_rows(
    context: Context, namespace: str, job: str, tail: Tail, slots: tuple[int, int]
) -> tuple[SegmentRef, ...]:
    batches = list(tail.memtable.flush_batches(tail.lsn))
    if not sum(batch.num_rows for batch in batches):
        return ()
    origin = SegmentOrigin(
        id=f"{new_ulid(context.clock, context.rng)}-{job}",
        namespace=namespace,
        level=0,
        author="test",
        created_at_us=context.clock.now_us(),
        replaced_slots=slots,
    )
    schema = batches[0].schema
    return (write_segment(context.store, namespace, schema, origin, None, batches),)


def _cut(rows: pa.Table, pieces: int) -> list[pa.Table]:
    """Cut into at most that many tables, never between two versions of a key."""
    keys = rows.column(KEY).combine_chunks()
    edges = [0]
    for piece in range(1, pieces):
        key = keys[rows.num_rows * piece // pieces]
        edges.append(pc.less(keys, key).true_count)
    edges.append(rows.num_rows)
    return [rows.slice(low, high - low) for low, high in pairwise(edges) if high > low]
