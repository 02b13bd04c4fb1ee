"""The commit of a write: what tasks have staged becomes visible.

By one attach record, if it was uploaded or is more than the log should carry: all at once, at one
version. Else through the log: atomic by batches, of which a small write has one.

It fences every other writer of the namespace for the time being; if that is another write of
Spark's, both retry, a few times. Nothing is committed twice: a batch write is known by its job key, a
batch of a stream by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from reef.documents import Documents
from reef.engine import Context, Receipt
from reef.errors import (
    FencedError,
    IdempotencyError,
    InvalidInputError,
    NotWrittenError,
    OutcomeUnknownError,
    StalePlanError,
)
from reef.jobs import end_job, standing_intents
from reef.jobs.load import (
    LoadedPart,
    LoadPlan,
    abandon_load,
    close_load,
    commit_load,
    end_load,
    find_load,
    register_load,
)
from reef.kv import KeyValue
from reef.segment import UniqueKeys
from reef.spark._write._merge_parts import FAN_IN, Run, are_disjoint, merge_parts, merged_rows
from reef.spark._write._stage import Staged, Write, as_stored_rows, inline_rows, planned
from reef.spark._write._write_log import LogWriteResult, write_batches
from reef.spark._write._write_options import WriteOptions

LOG_BYTES_MAX = 8 << 20
ATTEMPTS = 8
_WAIT_SECONDS = 0.2
_R = TypeVar("_R")
_AGAIN = (FencedError, OutcomeUnknownError, NotWrittenError)


@dataclass(frozen=True)
class WriteResult:
    """The result of a write."""

    method: str
    lsn: int | None
    """The version of its last batch; None: there was nothing to write."""
    rows: int
    dropped: int = 0
    """Rows that gave way to a later one of the same id."""
    skipped: int = 0
    """Rows that could not be patched or created, and were left out."""
    segments: int = 0
    replayed: bool = False
    """Nothing was written: an earlier attempt had written it."""


def commit(write: Write, staged: Sequence[Staged]) -> WriteResult:
    """Make visible what tasks have staged.

    Raises InvalidInputError, ConditionFailedError, IdempotencyError, StalePlanError (write again),
    and after a few tries FencedError, OutcomeUnknownError or NotWrittenError.
    """
    context = write.open()
    for one in staged:
        if one.error is not None:
            raise InvalidInputError(one.error)
    staged = sorted((one for one in staged if one.rows), key=lambda one: one.task)
    if not staged:
        return WriteResult("none", None, 0)
    uploaded = next((one.plan for one in staged if one.plan is not None), None)
    if uploaded is not None:
        close_load(context, uploaded.namespace, uploaded.job)
    earlier = earlier_load(context, write.options)
    if earlier is not None:
        if uploaded is not None:
            abandon_load(context, uploaded, may_be_committed=False)
        return WriteResult("bulk", earlier.lsn, 0, replayed=True)
    plan = _load_plan(context, write, staged)
    if _method(context, write, staged) == "bulk":
        return _bulk(context, write, plan, staged)
    return _commit_by_log(context, write, plan, staged)


def earlier_load(context: Context, options: WriteOptions) -> Receipt | None:
    """Return the receipt of a bulk load of the same job key, if there was one.

    Raises IdempotencyError if the key was used for another operation.
    """
    if options.job_key is None:
        return None
    earlier = find_load(context, options.ref.namespace, options.job_key)
    if earlier is not None and options.operation != "upsert":
        raise IdempotencyError(
            f"job key {options.job_key!r} was used for a load, at LSN {earlier.lsn}, and cannot "
            f"stand for operation {options.operation!r} too; use a new key"
        )
    return earlier


def abort(write: Write, staged: Sequence[Staged | None]) -> None:
    """Give up what tasks have staged. A task that did not come back is None.

    Raises UnavailableError, OutcomeUnknownError, FencedError: the intent may stand then.
    """
    context = write.open()
    plan = write.plan or next((one.plan for one in staged if one and one.plan), None)
    if plan is not None:
        close_load(context, plan.namespace, plan.job)
        # If all tasks came back, the commit failed, and its progress is unknown.
        failed = any(one is None or one.error is not None for one in staged)
        abandon_load(context, plan, may_be_committed=not failed)
    elif write.attempts:  # it is not known which task failed
        for intent in standing_intents(context, write.namespace):
            if intent.id.startswith(write.attempts):
                end_job(context, write.namespace, intent.id)


def _method(context: Context, write: Write, staged: Sequence[Staged]) -> str:
    """Return how rows go in: as they did when the same write was tried before, or as they are."""
    options = write.options
    if options.job_key is not None:
        try:
            find_load(context, write.namespace, f"{write.job_key}/0")
        except IdempotencyError:  # used, and not by an attach
            return "log"
    if options.method != "auto":
        return options.method
    if options.operation != "upsert":
        return "log"
    is_large = sum(one.nbytes for one in staged) > min(LOG_BYTES_MAX, _batch_bytes(context))
    return "bulk" if is_large or any(one.part is not None for one in staged) else "log"


def _load_plan(context: Context, write: Write, staged: Sequence[Staged]) -> LoadPlan:
    """Return how rows are stored. Raises StalePlanError if tasks found different schemas."""
    plans = [one.plan for one in staged if one.plan is not None]
    if any(plan != plans[0] for plan in plans):
        raise StalePlanError(
            f"the schema of namespace {write.namespace!r} was changed while rows were written to "
            "it; nothing was committed: write anew"
        )
    return plans[0] if plans else write.plan or planned(context, write)


def _bulk(context: Context, write: Write, plan: LoadPlan, staged: Sequence[Staged]) -> WriteResult:
    parts = [one.part for one in staged if one.part is not None]
    if not parts:
        # An intent that uploaded segments and ended since must not stand again: they may be gone.
        register_load(context, plan)
    runs, dropped = _sorted_runs(plan, staged)
    if len(parts) < len(runs) or not are_disjoint(parts):
        parts = [merge_parts(context, plan, runs)]
        dropped += parts[0].dropped
    result = _tried(
        context,
        lambda: commit_load(context, plan, parts, source=write.source, sequence=write.sequence),
    )
    return WriteResult(
        "bulk",
        result.lsn,
        result.rows,
        dropped=0 if result.replayed else dropped,
        segments=result.segments,
        replayed=result.replayed,
    )


def _commit_by_log(
    context: Context, write: Write, plan: LoadPlan, staged: Sequence[Staged]
) -> WriteResult:
    runs, dropped = _sorted_runs(plan, staged)
    is_uploaded = any(one.part is not None for one in staged)
    if len(runs) > FAN_IN and is_uploaded:
        merged = merge_parts(context, plan, runs)
        runs, dropped = [merged], dropped + merged.dropped
    written, unique = _tried(context, lambda: _write_through_log(context, write, plan, runs))
    if is_uploaded:
        end_load(context, plan)  # copied into the log, so the segments are not needed
    return WriteResult(
        "log",
        written.lsn,
        written.rows,
        dropped=dropped + unique.dropped,
        skipped=written.skipped,
        replayed=0 < written.batches == written.replayed,
    )


def _write_through_log(
    context: Context, write: Write, plan: LoadPlan, runs: Sequence[Run | LoadedPart]
) -> tuple[LogWriteResult, UniqueKeys]:
    unique = UniqueKeys(plan.duplicates)
    rows = merged_rows(context, plan, runs, unique)
    face = Documents if write.options.face == "documents" else KeyValue
    with face(context, write.namespace) as handle:
        return write_batches(handle, write, plan, rows, _batch_bytes(context)), unique


def _sorted_runs(plan: LoadPlan, staged: Sequence[Staged]) -> tuple[list[Run | LoadedPart], int]:
    """Return what tasks have staged as sorted runs, in their order, and how many rows that dropped.

    What came back in the messages of tasks that follow upon each other is one run.
    """
    runs: list[Run | LoadedPart] = []
    dropped = 0
    for is_inline, some in groupby(staged, key=lambda one: one.part is None):
        if not is_inline:
            parts = [one.part for one in some if one.part is not None]
            runs += parts
            dropped += sum(part.dropped for part in parts)
            continue
        table = pa.concat_tables([inline_rows(one) for one in some])
        rows = as_stored_rows(plan, table)
        rows = rows.take(pc.array_sort_indices(rows.column(0)))  # stable: the last stays the last
        unique = UniqueKeys(plan.duplicates)
        runs.append(partial(iter, list(unique.batches([rows]))))
        dropped += table.num_rows - rows.num_rows + unique.dropped
    return runs, dropped


def _batch_bytes(context: Context) -> int:
    # The size of rows excludes the log's overhead, so use half of the limit.
    return max(1, context.settings.log_segment_max_bytes // 2)


def _tried(context: Context, attempt: Callable[[], _R]) -> _R:
    """Return what `attempt` does, which is safe to repeat; another writer may be in between."""
    for number in range(1, ATTEMPTS + 1):
        try:
            return attempt()
        except StalePlanError:
            raise
        except _AGAIN:
            if number == ATTEMPTS:
                raise
            # Two that fence each other must not keep step.
            context.clock.sleep(context.rng.uniform(0, _WAIT_SECONDS * number))
    raise AssertionError
