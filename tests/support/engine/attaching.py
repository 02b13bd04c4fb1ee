"""Segments that a test uploads under an intent, to be attached by a writer."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from reef.engine import Context
from reef.format import SegmentOrigin, SegmentRef, segment_schema, with_field_id
from reef.jobs import Job
from reef.segment import write_segment
from reef.types import new_ulid

_SCHEMA = segment_schema([with_field_id(pa.field("value", pa.binary()), 1)])


def begin_load(context: Context, namespace: str = "ns") -> Job:
    """Register the intent of a load."""
    return Job.begin(context, namespace, "load")


def upload(
    context: Context, job: Job, rows: Mapping[bytes, bytes | None], *, row_lsn: int = 1
) -> SegmentRef:
    """Upload keys and values, None for a tombstone, as one segment of `job`."""
    keys = sorted(rows)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array([row_lsn] * len(keys), pa.int64()),
            pa.array([rows[key] is None for key in keys], pa.bool_()),
            pa.array([rows[key] for key in keys], pa.binary()),
        ],
        schema=_SCHEMA,
    )
    origin = SegmentOrigin(
        id=f"{new_ulid(context.clock, context.rng)}-{job.id}",
        namespace=job.namespace,
        level=1,
        author="test",
        created_at_us=1,
    )
    return write_segment(context.store, job.namespace, _SCHEMA, origin, None, [batch])
