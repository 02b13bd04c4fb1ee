"""The tour of `make demo`: it checks each of its answers itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def test_the_tour_ends_with_all_checks_passed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", REPO / "examples/demo.py", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every check passed" in done.stdout
    assert "Traceback" not in done.stderr
