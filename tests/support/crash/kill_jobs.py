"""What runs beside a writer while it is killed: collection, compaction, folds of the log by others."""

from __future__ import annotations

import time
from collections.abc import Callable

from reef.engine import Context
from reef.errors import StalePlanError
from tests.support.engine.collecting import collect_garbage
from tests.support.jobs.compactor import Compactor, fold_log

PAUSE_SECONDS = 0.005

Job = Callable[[Context, str, int], int]
"""One pass over a namespace; given the floor that it may raise, says how much it did."""


def collect_once(context: Context, namespace: str, floor_lsn: int) -> int:
    """Delete what nothing needs any more."""
    report = collect_garbage(context, namespace)
    return sum(tally.objects for tally in report.deleted)


def compact_once(context: Context, namespace: str, floor_lsn: int) -> int:
    """Merge all segments into one or two, dropping what the floor allows."""
    return len(Compactor(context, namespace).run(floor_lsn=floor_lsn, cuts=2))


def fold_once(context: Context, namespace: str, floor_lsn: int) -> int:
    """Fold the log under the writer's feet, with its dedup window."""
    try:
        return int(fold_log(context, namespace) is not None)
    except StalePlanError:
        return 0  # the writer was faster


JOBS: dict[str, Job] = {"collect": collect_once, "compact": compact_once, "fold": fold_once}


def pause() -> None:
    """Leave the writer some time between two passes."""
    time.sleep(PAUSE_SECONDS)
