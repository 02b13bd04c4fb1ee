"""A namespace whose runs a test chooses, for what compaction makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reef.compaction import CompactionGroup, MergedRange, merge_range
from reef.doctor import verify
from reef.engine import Context
from reef.format import Footer, SegmentRef
from reef.jobs import (
    CompactionOptions,
    CompactionPlan,
    CompactionResult,
    InProcess,
    TaskOutcome,
    preview_compaction,
)
from reef.jobs._compaction._compact_pass import Compaction
from reef.segment import check_segment
from tests.support.engine.collecting import NAMESPACE, World
from tests.support.jobs.passes import compact

MIB = 1 << 20
SMALL = CompactionOptions(target_size_bytes=MIB)


class Shop(World):
    """A namespace with runs of a test's choosing."""

    def __init__(self, **settings: object) -> None:
        super().__init__(row_block_bytes=1000, flush_interval=0, **settings)
        self.writer = self.kv()

    def flush(
        self, rows: Mapping[bytes, bytes] | None = None, deletes: Sequence[bytes] = ()
    ) -> int:
        """Make one level-0 run of some rows; return its LSN."""
        receipt = self.writer.write(dict(rows or {}), list(deletes))
        self.writer.flush()
        return receipt.lsn

    def run(self, low: int, high: int, mark: bytes = b"", times: int = 1) -> int:
        rows = {b"key-%05d" % i: mark + b"value-%05d" % i * 3 for i in range(low, high)}
        return [self.flush(rows) for _ in range(times)][-1]

    def base(self, low: int, high: int) -> int:
        """Make a run that is much larger than those of `run`: no codec shrinks it."""
        return self.flush({b"key-%05d" % i: self.rng.randbytes(200) for i in range(low, high)})

    @property
    def context(self) -> Context:
        return self.database().context()

    def compact(
        self, options: CompactionOptions = SMALL, *, plan: CompactionPlan | None = None
    ) -> CompactionResult:
        return compact(self.context, NAMESPACE, options=None if plan else options, plan=plan)

    def plan(self, options: CompactionOptions = SMALL) -> CompactionPlan | None:  # type: ignore[override]
        (planned,) = preview_compaction(self.database(), NAMESPACE, options=options)
        return planned.result

    def planned(self, options: CompactionOptions = SMALL) -> CompactionPlan:
        plan = self.plan(options)
        assert plan is not None
        return plan

    def merged(
        self, compaction: Compaction, group: CompactionGroup
    ) -> list[TaskOutcome[MergedRange]]:
        """Run the tasks of a group, and publish nothing."""
        tasks = compaction.tasks(group)
        return InProcess(self.context).run(merge_range, tasks, MergedRange, name="t")

    @property
    def segments(self) -> tuple[SegmentRef, ...]:
        return self.manifest.segments

    def tombstones(self) -> int:
        return sum(ref.tombstones for ref in self.segments)

    def footers(self, owner: str = "") -> list[Footer]:
        """Return the footers of the live segments."""
        refs = [ref for ref in self.segments if owner in ref.id]
        checked = [check_segment(self.inner, NAMESPACE, r, r.size, deep=False) for r in refs]
        return [one.tail.footer for one in checked if one.tail is not None]

    def check(self) -> None:
        """Everything is whole, and nobody's intent stands."""
        assert verify(self.context, NAMESPACE, deep=True).problems == ()
        assert self.manifest.intents == ()
