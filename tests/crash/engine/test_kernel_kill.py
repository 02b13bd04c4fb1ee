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

from tests.crash.engine.kernel_kill import summary_of
from tests.support.servers.object_stores import REPO, SeaweedFS

SUPERVISORS = 2


def run_cycles(urls: Sequence[str], cycles: int, *, rotate: int) -> Counter[str]:
    """Run supervisors side by side, one per URL, each with its part of the cycles."""
    each = -(-cycles // len(urls))
    command = [sys.executable, "-m", "tests.crash.engine.kernel_kill", f"--cycles={each}"]
    command += [f"--rotate={rotate}"]
    runs = [
        subprocess.Popen(
            [*command, f"--seed={seed}", url],
            cwd=REPO,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed, url in enumerate(urls, 1)
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
    return total


def check_that_it_hit(counts: Counter[str], cycles: int) -> None:
    """The run must have been worth something: kills fell into every phase, with every outcome."""
    print(dict(counts))
    assert counts["kills"] == counts["cycles"] >= cycles
    assert counts["kills_in_flight"] >= cycles // 2  # a batch was on its way
    assert counts["unacked_found"] >= cycles // 20  # it was durable, and nobody had been told
    assert counts["unacked_gone"] >= cycles // 20  # it was not, and never will be
    for moment in ("opening", "trying", "acked", "flushing", "in_job"):
        assert counts[f"kills_{moment}"] >= cycles // 50
    for done in ("flushes", "collect_done", "views_followed"):
        assert counts[done] >= cycles // 50
    assert counts["compact_done"] + counts["fold_done"] >= cycles // 50
    assert min(counts[f"parallel_{parallel}"] for parallel in (1, 2, 8)) >= cycles // 4
    assert min(counts["looks_r"], counts["looks_w"]) >= cycles // 3
    assert counts["replays"] >= cycles // 4  # a retry got the receipt of the first attempt
    assert counts["rewrites"] >= cycles // 20  # a retry was the first to arrive
    assert counts["misuses"] >= cycles // 10


def test_500_kills_on_files(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/bucket-{n}" for n in range(SUPERVISORS)]
    check_that_it_hit(run_cycles(urls, 500, rotate=6), 500)


@pytest.mark.servers
def test_100_kills_on_seaweedfs(seaweedfs: SeaweedFS) -> None:
    urls = [seaweedfs.fresh_url() for _ in range(SUPERVISORS)]
    # Time comes in whole seconds there: a namespace has to live for some, to be collected.
    check_that_it_hit(run_cycles(urls, 100, rotate=25), 100)
