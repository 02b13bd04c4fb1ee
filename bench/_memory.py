"""What a run makes the kernel do: memory that is touched for the first time, and time in the kernel."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_ROLLUP = Path("/proc/self/smaps_rollup")


@dataclass(frozen=True)
class MemoryUse:
    """What one run took."""

    faults: int
    """`ru_minflt`: pages mapped without reading a disk; a huge page counts as one."""
    huge_bytes: int
    """By how much the memory in huge pages grew."""
    system_s: float
    """`ru_stime`: of all threads."""

    @property
    def fresh_bytes(self) -> int:
        """About how many bytes were touched for the first time."""
        return self.faults * resource.getpagesize() + self.huge_bytes

    def per_byte(self, written: int) -> str:
        """Return what a run that wrote so many bytes took, in words."""
        fresh = self.fresh_bytes / written
        return f"{fresh:.2f} fresh bytes a byte, {self.system_s * 1e3:,.0f} ms in the kernel"


def memory_use(run: Callable[[], object]) -> MemoryUse:
    """Return what `run` takes of this process."""
    huge, before = _huge_bytes(), resource.getrusage(resource.RUSAGE_SELF)
    run()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return MemoryUse(
        faults=after.ru_minflt - before.ru_minflt,
        huge_bytes=max(_huge_bytes() - huge, 0),
        system_s=after.ru_stime - before.ru_stime,
    )


def _huge_bytes() -> int:
    """Return how much of this process lies in huge pages; 0 where the kernel does not say."""
    if not _ROLLUP.exists():
        return 0
    lines = _ROLLUP.read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages"))
