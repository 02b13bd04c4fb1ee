"""The commit of a bulk load: one record of the log makes all of it visible."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from reef.documents import Documents
from reef.engine import (
    ATTACH_DIGEST,
    Context,
    Namespace,
    Receipt,
    check_idempotency_key,
    load_dedup,
)
from reef.errors import InvalidInputError, NotFoundError, ReefError
from reef.format import SegmentRef
from reef.jobs.load._load_intent import end_load
from reef.jobs.load._load_part import LoadedPart
from reef.jobs.load._load_plan import LoadPlan
from reef.kv import KeyValue
from reef.log import LogReader, Replay

_log = logging.getLogger("reef.jobs")


@dataclass(frozen=True)
class LoadResult:
    """What a load has done."""

    namespace: str
    lsn: int | None
    """The version at which everything is visible; None: there was nothing to load."""
    rows: int
    bytes: int
    segments: int
    dropped: int
    """Rows that a later one of the same id replaced."""
    replayed: bool = False
    """Nothing was attached: the job key was committed before, at `lsn`."""


def find_load(context: Context, namespace: str, job_key: str) -> Receipt | None:
    """Return the receipt of a load of that key, if it was committed; fences no writer."""
    chain = context.chain(namespace)
    head = chain.load()
    key = check_idempotency_key(job_key)
    if head is None or head.manifest.state != "live" or key is None:
        return None
    manifest = head.manifest
    with suppress(NotFoundError):  # collected in the meantime: the commit will see it
        dedup = load_dedup(context, manifest)
        reader = LogReader(context.store, namespace, manifest.lsn_policy)
        for entry in reader.read(Replay.of(manifest), last_known=manifest.wal_last_seen):
            if entry.is_valid:
                dedup.apply(entry.log)
        return dedup.find(key, ATTACH_DIGEST, chain.estimated_now_us)
    return None


def commit_load(
    context: Context,
    plan: LoadPlan,
    parts: Sequence[LoadedPart],
    *,
    into: Namespace | None = None,
    source: str | None = None,
    sequence: int | None = None,
) -> LoadResult:
    """Make all rows of `parts` visible at once, durably, and end the load.

    The commit goes through `into`, an open handle of the namespace for writing, or else opens the
    namespace, which fences its writer. If a `source` numbers its loads, a `sequence` that it has reached
    before counts as loaded. Raises InvalidInputError (parts with keys in common), StalePlanError
    (attributes were added, or the load was ended: load again), FencedError, OutcomeUnknownError,
    NotWrittenError. After an error the intent stands: commit again with the same plan and parts, or call
    `abandon_load`.
    """
    segments = [ref for part in parts for ref in part.segments]
    receipt: Receipt | None = None
    if segments:
        with _handle(context, plan, into) as handle:
            receipt = _attach(handle, plan, segments, source, sequence)
    try:
        end_load(context, plan)
    except ReefError as error:  # the load itself is done
        _log.warning(
            "load %s of namespace %r is committed, but its intent may still stand (%s)",
            plan.job,
            plan.namespace,
            error,
        )
    dropped = sum(part.dropped for part in parts)
    if receipt is not None and receipt.replayed:
        return LoadResult(plan.namespace, receipt.lsn, 0, 0, 0, 0, replayed=True)
    return LoadResult(
        plan.namespace,
        None if receipt is None else receipt.lsn,
        sum(part.rows for part in parts),
        sum(part.bytes for part in parts),
        len(segments),
        dropped,
    )


def _attach(
    handle: Namespace,
    plan: LoadPlan,
    segments: Sequence[SegmentRef],
    source: str | None,
    sequence: int | None,
) -> Receipt:
    key = check_idempotency_key(plan.job_key)
    if isinstance(handle, Documents):
        return handle.attach(
            segments,
            base=plan.base_schema,
            schema=plan.document_schema,
            idempotency_key=key,
            source=source,
            sequence=sequence,
        )
    return handle._writing().attach(segments, idempotency_key=key, source=source, sequence=sequence)


@contextmanager
def _handle(context: Context, plan: LoadPlan, into: Namespace | None) -> Iterator[Namespace]:
    """Give the handle to commit through: the caller's, or one that is closed afterwards."""
    wanted = Documents if plan.face == "documents" else KeyValue
    if into is not None:
        if not isinstance(into, wanted) or into.name != plan.namespace:
            raise InvalidInputError(
                f"into is {into!r}; give an open handle of namespace {plan.namespace!r}, "
                f"of {plan.face}"
            )
        yield into
        return
    with wanted(context, plan.namespace) as opened:
        yield opened
