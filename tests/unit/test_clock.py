"""The machine's clock."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from reef.clock import SystemClock

PRINT_IT = "from reef.clock import SystemClock; print(SystemClock().monotonic())"


def test_it_never_goes_back() -> None:
    clock = SystemClock()
    times = [clock.monotonic() for _ in range(1000)]
    assert times == sorted(times)


@pytest.mark.skipif(sys.platform != "linux", reason="time namespaces are Linux's")
def test_it_runs_on_while_the_machine_sleeps() -> None:
    """A machine that was suspended for long: its boot time is that much ahead of Python's clock."""
    asleep = 10_000_000
    command = ["unshare", "--time", "--boottime", str(asleep), sys.executable, "-c", PRINT_IT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no time namespace could be made: {done.stderr.strip()[:200]}")
    assert float(done.stdout) > time.monotonic() + asleep / 2
