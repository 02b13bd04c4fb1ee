"""The plan of a rebuild: from where the log is folded again, cut for tasks, and which segments stay."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from reef.doctor import FoldStart, read_history
from reef.engine import Context
from reef.format import Manifest
from reef.jobs._fold._fold import FoldPart
from reef.jobs._fold._plan import Backlog
from reef.jobs._rebuild._result import RebuildOptions, RebuildPlan
from reef.log import parse_slot
from reef.types import check_namespace, unpack_lsn


@dataclass(frozen=True)
class Ground:
    """What a rebuild is planned on."""

    manifest: Manifest
    """The head."""
    starts: tuple[FoldStart, ...]
    """From where the log can be folded, the lowest first."""
    slot_first: int
    sizes: array[int]
    """The bytes of the folded log objects from `slot_first` on, without a gap."""
    passed_by: tuple[str, ...]
    """Why the log cannot be folded from further below."""

    def is_like(self, m: Manifest) -> bool:
        """Return whether all that is derived is the same in `m`."""
        known = self.manifest
        return (m.segments, m.dedup, m.wal_floor, m.wal_anchor, m.skipped_slots, m.state) == (
            known.segments,
            known.dedup,
            known.wal_floor,
            known.wal_anchor,
            known.skipped_slots,
            known.state,
        )

    def parts(self, start: FoldStart, job_id: str, options: RebuildOptions) -> tuple[FoldPart, ...]:
        """Return the log from `start` on, cut for tasks."""
        sizes = self.sizes[start.slot - self.slot_first :]
        return tuple(Backlog(start.base, sizes).parts(job_id, options.fold))

    def slot_of(self, key: str) -> int:
        """Return the slot that `key` names; `wal_floor` for an object that is not a log object."""
        return parse_slot(key.rsplit("/", 1)[-1]) or self.manifest.wal_floor

    def slot_of_lsn(self, lsn: int) -> int:
        """Return the slot that wrote a version, 0 if the version does not say."""
        return unpack_lsn(lsn)[0] if self.manifest.lsn_policy == "packed" else 0


def find_ground(context: Context, namespace: str) -> Ground:
    """Return from where the log of a namespace can be folded again. Raises what `read_history` does."""
    history = read_history(context, namespace)
    starts, reasons = history.fold_starts()
    first, sizes = history.log_first, array("q", history.folded_sizes())
    return Ground(history.head, tuple(starts), first, sizes, tuple(reasons))


def plan_rebuild(
    context: Context, namespace: str, options: RebuildOptions | None = None
) -> RebuildPlan:
    """Return what `rebuild` would begin with. Reads manifests and lists the log; writes nothing.

    Raises what `read_history` does.
    """
    options = options or RebuildOptions()
    options.check()
    ground = find_ground(context, check_namespace(namespace))
    m = ground.manifest
    if not ground.starts:
        return RebuildPlan(namespace, m.generation, kept=m.segments, passed_by=ground.passed_by)
    start = ground.starts[0]
    parts = ground.parts(start, "plan", options)
    return RebuildPlan(
        namespace,
        m.generation,
        slot_first=start.slot,
        slot_last=m.wal_floor - 1,
        log_bytes=sum(part.log_bytes for part in parts),
        tasks=len(parts),
        replaced=start.replaced,
        kept=start.kept,
        passed_by=ground.passed_by,
    )
