"""What there is to fold in a namespace, found from its manifest and a LIST of its log."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from reef.engine import Context, list_unfolded, log_object_gone
from reef.format import Manifest
from reef.gc import FENCE_BYTES
from reef.jobs._fold._fold_part import FoldPart
from reef.jobs._fold._part_chain import ChainState
from reef.jobs._option_checks import check_positive
from reef.manifest import ManifestChain, no_namespace


class IndexOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a log is folded, and how much of it is worth folding."""

    task_bytes: int = 256 << 20
    """About how many bytes of log objects one task reads."""
    task_slots: int = 16384
    """The most log objects one task reads: small ones cost a request each."""
    memory_bytes: int = 256 << 20
    """About how much one task holds in memory."""
    min_slots: int = 1
    """Skip a namespace with fewer log objects to fold; fences do not count."""
    min_bytes: int = 0
    """Skip a namespace with fewer bytes of log objects to fold."""
    plans_max: int = 5
    """How often to plan again when another job folds the same log."""

    def check(self) -> None:
        """Raise InvalidInputError for a number that makes no sense."""
        check_positive(self, "task_bytes", "task_slots", "memory_bytes", "plans_max")


@dataclass(frozen=True)
class UnfoldedLog:
    """The log from a manifest's `wal_floor` on, as far as it was listed without a gap."""

    manifest: Manifest
    sizes: array[int]
    """Sizes of the log objects from `wal_floor` on, in bytes."""

    @classmethod
    def find(cls, context: Context, chain: ManifestChain) -> UnfoldedLog:
        """Return the unfolded log of the newest manifest of `chain`.

        Raises NotFoundError if there is no such namespace, CorruptError if log objects are gone:
        nothing is folded then, not even what lies before them; UnavailableError.
        """
        head = chain.load()
        while True:
            if head is None or head.manifest.state != "live":
                raise no_namespace(context.store.url, chain.namespace)
            unfolded = cls(head.manifest, list_unfolded(context, chain, head).sizes)
            if not unfolded.is_short:
                return unfolded
            # It may have been folded and collected since the head was read: then there is another head.
            before, head = head, chain.load()
            if head is None or head.generation == before.generation:
                raise log_object_gone(before.manifest, unfolded.slot_last + 1)

    @property
    def slot_last(self) -> int:
        """The last slot, or the one before `wal_floor` if there is nothing to fold."""
        return self.manifest.wal_floor + len(self.sizes) - 1

    @property
    def is_short(self) -> bool:
        """Whether the log ends before the last slot that the manifest knows of."""
        return self.slot_last < self.manifest.wal_last_seen

    def is_worth(self, options: IndexOptions) -> bool:
        """Return whether there is enough to fold. Fences and lost objects do not count."""
        lost = {skip.slot - self.manifest.wal_floor for skip in self.manifest.skipped_slots}
        sizes = [size for i, size in enumerate(self.sizes) if size != FENCE_BYTES and i not in lost]
        return len(sizes) >= max(1, options.min_slots) and sum(sizes) >= options.min_bytes

    def parts(self, job_id: str, options: IndexOptions) -> Iterator[FoldPart]:
        """Yield parts of about the same size, none much larger than `task_bytes`."""
        together = max(1, sum(self.sizes))
        pieces = -(-together // options.task_bytes)
        first = parts = passed = 0
        for i, size in enumerate(self.sizes):
            is_full = (passed + size // 2) * pieces > (parts + 1) * together
            if i > first and (is_full or i - first >= options.task_slots):
                yield self._part(first, i, job_id, options)
                first = i
                parts = max(parts + is_full, passed * pieces // together)
            passed += size
        yield self._part(first, len(self.sizes), job_id, options)

    def _part(self, first: int, end: int, job_id: str, options: IndexOptions) -> FoldPart:
        m, sizes = self.manifest, self.sizes[first:end]
        return FoldPart(
            namespace=m.namespace,
            job_id=job_id,
            lsn_policy=m.lsn_policy,
            slot_first=m.wal_floor + first,
            slot_last=m.wal_floor + end - 1,
            log_bytes=sum(sizes),
            object_bytes_max=max(sizes),
            memory_bytes=options.memory_bytes,
            skipped=tuple(skip for skip in m.skipped_slots if skip.slot >= m.wal_floor),
            entered=None if first else ChainState.of(m),
        )
