"""rebuild of a namespace without any manifest: what is left is planned, checked, published and fenced.

1. Plan, and check every block of the segments that will be named.   crash: nothing happened
2. Publish the generation, far above all that anybody holds.         crash: the namespace is there; a
   An older writer can still commit: what it does is in the log           sleeping writer may go on, and
   that this generation goes on from.                                     the next to open fences it
3. Put fences, as many as any writer may have objects in flight.     crash: fences nobody stands behind
4. Publish how many the settings allow.                              crash: opening puts more fences
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from reef.doctor import fence_writers, plan_without_manifests, stored_size
from reef.documents.types import schema_of_columns
from reef.engine import FACE, Context, Face
from reef.errors import CorruptError
from reef.format import PARALLEL_WRITES_MAX, Manifest, SegmentRef, field_id, segment_key
from reef.jobs._pass_protocol import Work
from reef.jobs._rebuild._rebuild_result import RebuildOptions, RebuildResult
from reef.jobs._verify_pass import check_segments
from reef.kv import FACE as KV_FACE
from reef.manifest import Head
from reef.pages import face_of_pages


def rebuild_without_manifests(
    context: Context, namespace: str, options: RebuildOptions
) -> Work[RebuildResult]:
    """Make a manifest for a namespace that has none, of what the rest of its objects proves.

    Raises what `plan_without_manifests` does; CorruptError if a segment that is live is damaged;
    StalePlanError if the namespace has a manifest again; FencedError; OutcomeUnknownError.
    """
    plan = plan_without_manifests(context, namespace, _schema_of, assume_live=options.assume_live)
    yield from _check(context, namespace, plan.manifest.segments, options)
    chain = context.chain(namespace)
    published = chain.publish_again(plan.manifest)
    fence_writers(context, chain, published.manifest, PARALLEL_WRITES_MAX)
    epoch, allowed = published.manifest.writer_epoch, context.settings.max_parallel_writes or 1

    def settled(head: Head | None) -> Manifest | None:
        if head is None or head.manifest.writer_epoch != epoch:
            return None  # somebody has opened it: the fences stand
        return msgspec.structs.replace(head.manifest, max_parallel_writes=allowed)

    generation = chain.publish(settled).generation
    return RebuildResult(
        namespace=namespace,
        generation=generation,
        slot_first=plan.manifest.wal_floor,
        slot_last=plan.manifest.wal_last_seen,
        kept=plan.manifest.segments,
        window="none" if plan.manifest.dedup is None else "kept",
        unproven=plan.unproven,
        plans=1,
    )


def _check(
    context: Context, namespace: str, refs: tuple[SegmentRef, ...], options: RebuildOptions
) -> Work[None]:
    """Raise CorruptError if any block of a segment is damaged."""
    named = {segment_key(ref.namespace or namespace, ref.id): ref for ref in refs}
    sized = [(ref, stored_size(context.store, key)) for key, ref in named.items()]
    for facts in (yield from check_segments(namespace, sized, options.verify)):
        if not facts.is_sound:
            what = "missing" if facts.is_missing else "; ".join(map(str, facts.errors))
            raise CorruptError(
                facts.key,
                0,
                "a sound segment: the log no longer has its rows, and there is no manifest",
                f"{what}; nothing was published: restore the segment or a manifest from a backup",
            )


def _schema_of(fields: Sequence[pa.Field], value_bytes: int) -> tuple[pa.Schema, bool] | None:
    """Return the schema of the face that has such columns, and whether it always has just those."""
    for face in (KV_FACE, face_of_pages(max(1, value_bytes), "packed")):
        if [(f.name, field_id(f)) for f in fields] == [(f.name, field_id(f)) for f in face.schema]:
            return _recorded(face), True
    known = schema_of_columns(fields)
    return None if known is None else (known.to_arrow(), False)


def _recorded(face: Face) -> pa.Schema:
    metadata = {**(face.schema.metadata or {}), FACE: face.name.encode()}
    return face.schema.with_metadata(metadata)
