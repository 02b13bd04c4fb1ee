"""The kernel under kill -9: nothing acknowledged is lost, nothing is torn, nothing comes back.

`make kill` runs the same for as long as one likes.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.crash.kill_loop import summary_of
from tests.support.servers.object_stores import REPO, SeaweedFS

pytestmark = pytest.mark.timeout(3600)  # the kills are as many as it takes
SUPERVISORS = 2
TURNS_MAX = 5


def run_cycles(urls: Sequence[str], cycles: int, *, rotate: int, seed: int) -> Counter[str]:
    """Run supervisors side by side, one per URL, each with its part of the cycles."""
    each = -(-cycles // len(urls))
    command = [sys.executable, "-m", "tests.support.crash.kill_loop", f"--cycles={each}"]
    command += [f"--rotate={rotate}"]
    runs = [
        subprocess.Popen(
            [*command, f"--seed={seed}", url],
            cwd=REPO,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed, url in enumerate(urls, seed)
    ]
    total: Counter[str] = Counter()
    try:
        for run in runs:
            out, told = run.communicate()
            assert run.returncode == 0, told + out
            total.update({k: v for k, v in summary_of(out).items() if isinstance(v, int)})
    finally:
        for run in runs:
            run.kill()
            run.communicate()
    assert total["kills"] == total["cycles"] >= cycles
    return total


def wanted(cycles: int) -> dict[str, int]:
    """Return what a run must have met to be worth something: each phase, with every outcome."""
    every_moment = ("opening", "trying", "acked", "flushing", "in_job")
    return {
        "kills_in_flight": cycles // 2,  # a batch was on its way
        "unacked_found": cycles // 20,  # it was durable, and nobody had been told
        "unacked_gone": cycles // 20,  # it was not, and never will be
        **{f"kills_{moment}": cycles // 50 for moment in every_moment},
        **dict.fromkeys(("flushes", "collect_done", "views_followed"), cycles // 50),
        "jobs_done": cycles // 50,
        **{f"parallel_{parallel}": cycles // 4 for parallel in (1, 2, 8)},
        **dict.fromkeys(("looks_r", "looks_w"), cycles // 3),
        "replays": cycles // 4,  # a retry got the receipt of the first attempt
        "rewrites": cycles // 20,  # a retry was the first to arrive
        "misuses": cycles // 10,
    }


def kill_until_all_is_met(urls: Sequence[str], cycles: int, *, rotate: int) -> None:
    """Run the cycles, and again as many if the machine's speed has kept the kills from something."""
    counts: Counter[str] = Counter()
    for turn in range(TURNS_MAX):
        counts += run_cycles(urls, cycles, rotate=rotate, seed=1 + turn * len(urls))
        counts["jobs_done"] = counts["compact_done"] + counts["fold_done"]
        missing = {what: n for what, n in wanted(cycles).items() if counts[what] < n}
        if not missing:
            break
    print(dict(counts))
    assert not missing


def test_500_kills_on_files(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/bucket-{n}" for n in range(SUPERVISORS)]
    kill_until_all_is_met(urls, 500, rotate=6)


@pytest.mark.servers
def test_100_kills_on_seaweedfs(seaweedfs: SeaweedFS) -> None:
    urls = [seaweedfs.fresh_url() for _ in range(SUPERVISORS)]
    # Time comes in whole seconds there: a namespace has to live for some, to be collected.
    kill_until_all_is_met(urls, 100, rotate=25)
