"""The memory of a process that does nothing but scan: `python -m bench._scan_peak URL NAMESPACE`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import reef


@dataclass(frozen=True)
class Peak:
    """The rows of a scan, and the time and memory it took."""

    rows: int
    seconds: float
    idle_mib: int
    """Before anything was opened: the interpreter and its packages."""
    peak_mib: int


def scan_peak(url: str, namespace: str) -> Peak:
    """Scan all columns of a namespace in a process of its own and return its figures."""
    done = subprocess.run(
        [sys.executable, "-m", "bench._scan_peak", url, namespace],
        check=True,
        capture_output=True,
        text=True,
    )
    return Peak(**json.loads(done.stdout))


def _scan(url: str, namespace: str) -> Peak:
    idle = _mib("VmHWM")
    begun = time.perf_counter()
    with reef.connect(url) as db, db.namespace(namespace, mode="r") as ns:
        rows = sum(batch.num_rows for batch in ns.scan())
    return Peak(rows, time.perf_counter() - begun, idle, _mib("VmHWM"))


def _mib(field: str) -> int:
    """Return a figure of this process. `ru_maxrss` would count its parent's memory too."""
    status = Path("/proc/self/status").read_text()
    match = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    if match is None:
        raise AssertionError(f"/proc/self/status has no {field}")
    return int(match[1]) // 1024


if __name__ == "__main__":
    print(json.dumps(asdict(_scan(*sys.argv[1:]))))
