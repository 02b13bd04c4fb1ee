"""Bulk load: one log record attaches segments that were uploaded beforehand.

Invariants, checked before the record is sent:

- Every segment is there, with the size that its reference says: what is attached can be read.
- No key is in two of them: the rows of one record are of one version, and a version is there once.
- A segment's id names its author: an intent that stands, or the writer's own epoch. So collection
  spares the segment until the record is durable. The writer looks this up after it has taken its
  epoch. An intent may be ended by its own job, after the record is durable or if none was sent. The
  only other one that may end it is a later writer of the namespace: by then the record of the
  earlier writer can no longer get its slot.

Crash points: before the PUT of the record nothing is visible, and there are an intent and segments
that nothing names; after it all rows are visible, at the record's version, whether or not the
caller got the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pyarrow as pa

from reef.context import Context
from reef.engine._commit._conditions import Resolve
from reef.engine._commit._request import WriteRequest
from reef.engine._tail import Tail
from reef.errors import (
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    StalePlanError,
    UnavailableError,
)
from reef.format import Manifest, SegmentRef, log_schema, segment_key
from reef.gc import epoch_of, owner_of
from reef.threads import for_each

NO_ROWS = pa.RecordBatch.from_pylist([], schema=log_schema([]))
ATTACH_DIGEST = b"reef: an attach."
"""The digest of every request with a key and no digest: segments are attached once per key."""


def attach_request(
    segments: Sequence[SegmentRef],
    *,
    bytes_max: int,
    idempotency_key: bytes | None,
    digest: bytes | None,
    source: str | None,
    sequence: int | None,
    lsn: int | None,
    resolve: Resolve | None,
) -> WriteRequest:
    """Return the request to attach `segments`, or raise InvalidInputError if one record cannot."""
    if not segments:
        raise InvalidInputError("there are no segments to attach: give at least one")
    for ref in segments:
        said = (ref.version, ref.namespace, ref.clip_lsn, ref.clip_key_min, ref.clip_key_max)
        if said != (None, "", None, None, None):
            raise InvalidInputError(
                f"segment {ref.id} cannot be attached: expected a new one of this "
                "namespace, without a version and without clips"
            )
    ordered = sorted(segments, key=lambda ref: ref.key_min)
    for ref, other in pairwise(ordered):
        if other.key_min <= ref.key_max:
            raise InvalidInputError(
                f"segments {ref.id} and {other.id} have keys in common: the first ends "
                f"at {ref.key_max!r}, the other begins at {other.key_min!r}; give "
                "segments that do not overlap"
            )
    nbytes = len(msgspec.msgpack.encode(ordered))
    if nbytes > bytes_max:
        raise InvalidInputError(
            f"the names of {len(ordered)} segments take {nbytes} bytes: expected at "
            f"most log_segment_max_bytes = {bytes_max}; make the segments fewer and "
            "larger"
        )
    return WriteRequest(
        batch=NO_ROWS,
        nbytes=nbytes,
        segments=tuple(ordered),
        idempotency_key=idempotency_key,
        digest=digest or (None if idempotency_key is None else ATTACH_DIGEST),
        source=source,
        sequence=sequence,
        lsn=lsn,
        resolve=resolve,
    )


def check_spared(segments: Sequence[SegmentRef], manifest: Manifest, epoch: int) -> None:
    """Raise unless collection spares each of `segments`, as of a head read under `epoch`.

    Raises StalePlanError if the intent of one no longer stands, InvalidInputError if an id names
    neither an intent nor an epoch.
    """
    standing = {intent.id for intent in manifest.intents}
    for name, id in {owner_of(ref.id): ref.id for ref in segments}.items():
        if name in standing or epoch_of(name) == epoch:
            continue
        if not name or epoch_of(name) is not None:
            raise InvalidInputError(
                f"segment {id} belongs to no job: expected an id that ends in the intent of its "
                "job; upload the segment under such an id"
            )
        raise StalePlanError(
            f"intent {name!r} does not stand in generation {manifest.generation} of namespace "
            f"{manifest.namespace!r}: it was ended, and its segments may have been collected; "
            "nothing was attached: start another job"
        )


def check_new(segments: Sequence[SegmentRef], tail: Tail, manifest: Manifest) -> None:
    """Raise InvalidInputError if any of `segments` is, or was, part of the namespace.

    Under the writer's lock: no unsettled batch may attach one of them either. A segment that
    compaction replaced waits for collection, which does not check again whether anything names it.
    """
    there = {ref.id for ref in (*tail.attached, *tail.attaching)}
    there.update(ref.id for ref in manifest.segments if not ref.namespace)
    waiting = {pending.key for pending in manifest.gc.pending}
    for ref in segments:
        if ref.id in there or segment_key(manifest.namespace, ref.id) in waiting:
            raise InvalidInputError(
                f"segment {ref.id} is part of the namespace already, or was: a segment "
                "is attached once. Retry with the idempotency key of the first attempt "
                "to learn what became of it"
            )


def check_uploaded(context: Context, namespace: str, segments: Sequence[SegmentRef]) -> None:
    """Raise InvalidInputError unless each of `segments` is there in its size: a HEAD for each.

    As many at a time as the store takes. Raises NotWrittenError if it does not answer.
    """

    def look(ref: SegmentRef) -> None:
        key = segment_key(namespace, ref.id)
        try:
            size = context.store.head(key).size
        except NotFoundError:
            raise InvalidInputError(
                f"{key} does not exist: upload the segment before you attach it"
            ) from None
        if size != ref.size:
            raise InvalidInputError(
                f"{key} has {size} bytes: expected {ref.size}; upload the segment again"
            )

    try:
        for_each(segments, look, width=context.store.concurrency, threads=context.threads)
    except UnavailableError as error:
        raise NotWrittenError(
            f"the check that every segment is uploaded failed: the store did not answer ({error}). "
            "Nothing was attached: retry"
        ) from error


def at_version(segments: Sequence[SegmentRef], lsn: int) -> tuple[SegmentRef, ...]:
    """Return references by which every row of `segments` is of version `lsn`."""
    return tuple(
        msgspec.structs.replace(ref, version=lsn, lsn_min=lsn, lsn_max=lsn) for ref in segments
    )
