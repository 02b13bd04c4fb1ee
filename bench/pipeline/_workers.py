"""The memory of Spark's Python workers, for what runs in them without an outcome of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def forget_peaks() -> None:
    """Reset the kernel's count of the most memory of each worker."""
    for process in _workers():
        with suppress(*_GONE):
            (process / "clear_refs").write_text("5")


def peaks() -> dict[int, int]:
    """Return the most memory of each worker that runs since then, in bytes, by its process id."""
    peaks_by_pid = {}
    for process in _workers():
        with suppress(*_GONE):
            status = (process / "status").read_text()
            match = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
            if match:
                peaks_by_pid[int(process.name)] = int(match[1]) << 10
    return peaks_by_pid


def _workers() -> Iterator[Path]:
    """Yield Spark's Python processes below this one: its JVM's daemon, and the workers it forked."""
    parents: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(*_GONE):
            after_name = (process / "stat").read_text().rpartition(")")[2].split()
            parents[int(process.name)] = int(after_name[1])
    for pid in parents:
        with suppress(*_GONE):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"pyspark" in command and b"java" not in command and _is_below(pid, parents):
                yield Path(f"/proc/{pid}")


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        pid = parents.get(pid, 0)
        if pid == os.getpid():
            return True
    return False
