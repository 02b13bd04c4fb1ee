"""What runs beside a writer while it is killed: collection, compaction, folds of the log by others."""

from __future__ import annotations

import time
from collections.abc import Callable

from reef.engine import Context
from reef.engine._flush import FlushPlan, plan_flush, write_window
from reef.engine._open import _replay, load_dedup
from reef.errors import NotFoundError, UnavailableError
from reef.format import Manifest
from reef.gc import collect
from reef.log import LogEntry
from reef.manifest import Head, StalePlanError, end_intent, fold, register_intent
from reef.types import new_ulid
from tests.compactor import Compactor, fold_rows

GRACE_SECONDS = 0.005
"""So short that everything that may be deleted is, at once."""

Job = Callable[[Context, str, int], int]
"""One pass over a namespace; given the floor that it may raise, says how much it did."""


def collect_once(context: Context, namespace: str, floor_lsn: int) -> int:
    """Delete what nothing needs any more."""
    report = collect(
        context.chain(namespace),
        context.store,
        settings=context.settings,
        clock=context.clock,
        apply=True,
    )
    return sum(tally.objects for tally in report.deleted)


def compact_once(context: Context, namespace: str, floor_lsn: int) -> int:
    """Merge all segments into one or two, dropping what the floor allows."""
    return len(Compactor(context, namespace).run(floor_lsn=floor_lsn, cuts=2))


def fold_once(context: Context, namespace: str, floor_lsn: int) -> int:
    """Fold the log under the writer's feet, with its dedup window."""
    chain = context.chain(namespace)
    job = f"index-{new_ulid(context.clock, context.rng).lower()}"

    def publish(change: Callable[[Manifest], Manifest]) -> Head:
        return chain.publish(lambda head: change(head.manifest))  # type: ignore[union-attr]

    publish(lambda m: register_intent(m, id=job, kind="index", author="test", opened_at_us=0))
    try:
        planned = _plan_fold(context, chain.head.manifest)  # type: ignore[union-attr]
        if planned is None:
            return 0
        segments = fold_rows(context, namespace, job, planned)
        window = (
            None if planned.window is None else write_window(context, namespace, planned.window)
        )
        publish(
            lambda m: fold(
                m,
                intent=job,
                slot_first=planned.slot_first,
                slot_last=planned.slot_last,
                anchor=planned.anchor,
                segments=segments,
                last_applied_lsn=planned.lsn,
                dedup=window or m.dedup,
                skipped=planned.skipped,
            )
        )
    except (StalePlanError, NotFoundError, UnavailableError):
        return 0  # the writer was faster; with such a grace period it may even be collected
    finally:
        publish(lambda m: end_intent(m, job))
    return 1


def _plan_fold(context: Context, manifest: Manifest) -> FlushPlan | None:
    dedup = load_dedup(context, manifest)

    def decided(entry: LogEntry) -> None:
        if entry.is_valid:
            dedup.replay(entry.log)

    tail, _ = _replay(context, manifest, decided)
    return plan_flush(manifest, tail, dedup, context.clock.now_us())


JOBS: dict[str, Job] = {"collect": collect_once, "compact": compact_once, "fold": fold_once}


def pause() -> None:
    """Wait until what was done may be collected."""
    time.sleep(GRACE_SECONDS)
