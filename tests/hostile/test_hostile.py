"""No object of a bucket takes memory, time or the process from whoever meets it.

Everything is tried on each hostile object, in a process that may take 512 MB: it works, or it raises
an error of Reef's that names the object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.hostile_buckets import CASES, make_healthy

REPO = Path(__file__).resolve().parents[2]
DEADLINE_S = 300
"""Against loops without end only."""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("healthy") / "bucket"
    make_healthy(root)
    return root


def findings(healthy: Path, work: Path, *options: str) -> dict[str, dict[str, str]]:
    """Return what is wrong with each case, by the call that showed it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.read_hostile", *options, healthy, work, *CASES],
        cwd=REPO,
        env=os.environ | {"PYTHONPATH": f"{REPO}/src:{REPO}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    found = {one["case"]: one["found"] for one in map(json.loads, done.stdout.splitlines())}
    missing = [name for name in CASES if name not in found]
    assert not missing, f"died at {missing[0]}: {done.stderr[-2000:]}"
    return {
        case: bad
        for case, calls in found.items()
        if (bad := {what: text for what, text in calls.items() if text.startswith("FINDING")})
    }


def test_every_call_works_or_raises_an_error_of_reefs(healthy: Path, tmp_path: Path) -> None:
    assert findings(healthy, tmp_path) == {}


@pytest.mark.nightly
def test_every_command_works_or_exits_with_one_line(healthy: Path, tmp_path: Path) -> None:
    assert findings(healthy, tmp_path, "--commands") == {}
