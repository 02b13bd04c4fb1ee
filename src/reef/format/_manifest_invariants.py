"""What must hold between the fields of a manifest, before it is written and after it is read.

Only what every correct history keeps is here. Left out on purpose, because a correct history can
break it: a snapshot below the retention floor (retained points stay readable there), a snapshot of
a generation below the boundary (collection spares it), and any bound on the LSNs seen through a
clipped reference (a branch may be cut between two versions).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import pyarrow as pa

from reef.errors import InvalidInputError, InvariantError, UnreadableError
from reef.format._frame import short_repr
from reef.format._manifest_model import Manifest, SegmentRef, schema_fingerprint
from reef.format._row_stream import decode_schema, ids_problem
from reef.types import check_namespace, check_object_key, unpack_lsn

Violation = tuple[str, str]
"""What was expected, and what was found instead."""

# Nearly every key passes this; `check_object_key` is the authority on the rest.
_PLAIN_TAIL = r"[a-z]{1,16}/[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"


def check_invariants(manifest: Manifest) -> None:
    """Raise InvariantError, naming the first rule that `manifest` breaks.

    The types and ranges of single fields are taken to hold: decoding checks them.
    """
    violation = find_violation(manifest)
    if violation is not None:
        expected, got = violation
        raise InvariantError(
            f"generation {manifest.generation} of namespace {manifest.namespace!r} "
            f"breaks a rule of manifests: expected {expected}, got {got}; nothing was written"
        )


def find_violation(manifest: Manifest) -> Violation | None:
    """Return the first rule that `manifest` breaks, or None."""
    rules = (_identity, _log, _ended, _references, _collection, _segments)
    return next((violation for rule in rules for violation in rule(manifest)), None)


def _identity(m: Manifest) -> Iterator[Violation]:
    yield from _bad_names("namespace", [m.namespace])
    if (m.generation == 1) != (m.predecessor_checksum is None):
        yield (
            "a predecessor_checksum for every generation but the first",
            f"predecessor_checksum {m.predecessor_checksum} in generation {m.generation}",
        )
    if m.schema_fingerprint != schema_fingerprint(m.schema):
        yield (
            f"schema_fingerprint {schema_fingerprint(m.schema)} of the schema present",
            m.schema_fingerprint,
        )
    if m.repaired_from is not None and m.repaired_from >= m.generation:
        yield f"repaired_from below generation {m.generation}", str(m.repaired_from)
    yield from _bad_schema(m.schema)
    if m.born > m.generation:
        yield f"born at generation {m.generation} or before", str(m.born)
    if m.state != "live":
        yield from _left_over(m)


def _left_over(m: Manifest) -> Iterator[Violation]:
    """What a namespace that is not live must no longer have."""
    for name in ("segments", "snapshots", "pins", "intents"):
        if getattr(m, name):
            yield f"no {name} in a generation that is {m.state}", f"{len(getattr(m, name))} of them"
    if m.dedup is not None or m.lease is not None:
        yield f"no dedup window and no lease in a generation that is {m.state}", "one"


def _log(m: Manifest) -> Iterator[Violation]:
    anchor = m.wal_anchor
    if anchor.slot >= m.wal_floor:
        yield f"wal_anchor.slot below wal_floor {m.wal_floor}", str(anchor.slot)
    if anchor.slot == 0 and (anchor.checksum or anchor.epoch):
        yield (
            "checksum 0 and epoch 0 in a wal_anchor of slot 0",
            f"checksum {anchor.checksum} and epoch {anchor.epoch}",
        )
    if anchor.epoch > m.writer_epoch:
        yield f"wal_anchor.epoch at most writer_epoch {m.writer_epoch}", str(anchor.epoch)
    if m.lease is not None and m.writer_epoch == 0:
        yield "no lease before the first writer_epoch", f"a lease of {short_repr(m.lease.holder)}"
    if m.wal_floor > m.wal_last_seen + 1:
        yield f"wal_floor at most wal_last_seen {m.wal_last_seen} + 1", str(m.wal_floor)
    if m.lsn_policy == "packed" and unpack_lsn(m.last_applied_lsn)[0] >= m.wal_floor:
        yield (
            f"last_applied_lsn in a slot below wal_floor {m.wal_floor}",
            f"{m.last_applied_lsn} in slot {unpack_lsn(m.last_applied_lsn)[0]}",
        )
    yield from _repeated("slot in skipped_slots", (s.slot for s in m.skipped_slots))
    if any(skipped.slot > m.wal_last_seen for skipped in m.skipped_slots):
        yield (
            f"skipped slots up to wal_last_seen {m.wal_last_seen}",
            short_repr(m.skipped_slots[-1]),
        )


def _ended(m: Manifest) -> Iterator[Violation]:
    if m.ended is None:
        return
    if m.ended.epoch > m.writer_epoch:
        yield f"ended.epoch at most writer_epoch {m.writer_epoch}", str(m.ended.epoch)
    if m.ended.slot > m.wal_last_seen + 1:
        yield f"ended.slot at most {m.wal_last_seen + 1}", str(m.ended.slot)


def _bad_schema(schema: bytes) -> Iterator[Violation]:
    if not schema:
        return
    try:
        problem = ids_problem(decode_schema(pa.py_buffer(schema), "", 0))
    except UnreadableError as error:
        problem = error.got
    if problem:
        yield "a schema of columns with stable ids", problem


def _references(m: Manifest) -> Iterator[Violation]:
    yield from _repeated("snapshot id", [s.id for s in m.snapshots])
    if m.followed:
        yield from _repeated("generation in followed", m.followed)
        for number in sorted(set(m.followed) - {s.generation for s in m.snapshots}):
            yield "followed to name generations of snapshots", str(number)
    yield from _repeated("intent id", (i.id for i in m.intents))
    yield from _repeated("pin of one child and nonce", ((p.child, p.nonce) for p in m.pins))
    yield from _bad_names("child of a pin", {p.child for p in m.pins})
    if m.origin is not None:
        yield from _bad_names("origin.namespace", [m.origin.namespace])
    for what, records in (("snapshot", m.snapshots), ("pin", m.pins), ("intent", m.intents)):
        newest = max([r.generation for r in records], default=0)
        if newest > m.generation:
            yield f"every {what} of a generation up to {m.generation}", f"generation {newest}"


def _collection(m: Manifest) -> Iterator[Violation]:
    boundary = m.gc.boundary
    if boundary.slot > m.wal_floor:
        yield f"gc.boundary.slot at most wal_floor {m.wal_floor}", str(boundary.slot)
    if boundary.generation > m.generation:
        yield f"gc.boundary.generation at most {m.generation}", str(boundary.generation)
    shortened = m.gc.shortened
    if shortened is not None and shortened.from_ms <= m.gc.grace_ms:
        yield f"gc.shortened.from_ms above grace_ms {m.gc.grace_ms}", str(shortened.from_ms)
    if shortened is not None and shortened.since_generation > m.generation:
        got = str(shortened.since_generation)
        yield f"gc.shortened.since_generation at most {m.generation}", got
    if not m.gc.pending:
        return
    newest = max(p.since_generation for p in m.gc.pending)
    if newest > m.generation:
        yield f"gc.pending since a generation up to {m.generation}", f"generation {newest}"
    keys = [p.key for p in m.gc.pending]
    prefix = f"namespaces/{m.namespace}/"
    if not all(map(re.compile(re.escape(prefix) + _PLAIN_TAIL).fullmatch, keys)):
        for key in keys:
            if not key.startswith(prefix) or not _is_object_key(key):
                yield f"gc.pending to hold keys of objects under {prefix}", short_repr(key)
    yield from _repeated("key in gc.pending", keys)
    live = {f"{prefix}segments/{s.id}.seg" for s in m.segments if not s.namespace}
    if m.dedup is not None:
        live.add(f"{prefix}dedup/{m.dedup.id}.dedup")
    for key in live.intersection(keys):
        yield "gc.pending to hold nothing that this generation names", short_repr(key)


def _segments(m: Manifest) -> Iterator[Violation]:
    applied = m.last_applied_lsn
    # One pass: 100,000 of them are checked on every publish.
    for s in m.segments:
        if s.key_min > s.key_max:
            least = short_repr(s.key_min)
            yield f"key_min at most key_max {short_repr(s.key_max)} in segment {s.id}", least
        if s.lsn_min > s.lsn_max:
            yield f"lsn_min at most lsn_max {s.lsn_max} in segment {s.id}", str(s.lsn_min)
        if s.tombstones > s.rows:
            yield f"tombstones at most rows {s.rows} in segment {s.id}", str(s.tombstones)
        if s.footer_length > s.size:
            yield f"footer_length at most size {s.size} in segment {s.id}", str(s.footer_length)
        if s.lsn_max > applied and not _clipped(s):
            yield f"lsn_max at most last_applied_lsn {applied} in segment {s.id}", str(s.lsn_max)
        if s.version is not None and not s.lsn_min == s.lsn_max == s.version:
            got = f"{s.lsn_min}, {s.lsn_max}"
            yield f"lsn_min and lsn_max {s.version}, its version, in segment {s.id}", got
        low, high = s.clip_key_min, s.clip_key_max
        if low is not None and high is not None and low >= high:
            expected = f"clip_key_min below clip_key_max {short_repr(high)} in segment {s.id}"
            yield expected, short_repr(low)
    owners = {s.namespace for s in m.segments} - {""}
    if owners and m.origin is None:
        yield "segments of others in a branch only", f"segments of {short_repr(min(owners))}"
    yield from _bad_names("namespace of a segment", owners)
    if m.namespace in owners:
        yield "a segment of this namespace to give its namespace as ''", short_repr(m.namespace)
    if len({s.id for s in m.segments}) < len(m.segments):
        yield from _repeated(
            "segment of one namespace, id and clip", map(_segment_name, m.segments)
        )


def _clipped(s: SegmentRef) -> bool:
    return not (s.clip_lsn is None and s.clip_key_min is None and s.clip_key_max is None)


def _segment_name(s: SegmentRef) -> tuple[object, ...]:
    return s.namespace, s.id, s.clip_lsn, s.clip_key_min, s.clip_key_max


def _is_object_key(key: str) -> bool:
    try:
        check_object_key(key)
    except InvalidInputError:
        return False
    return True


def _bad_names(what: str, names: Iterable[str]) -> Iterator[Violation]:
    for name in names:
        try:
            check_namespace(name)
        except InvalidInputError:
            yield f"{what} to be a valid name of a namespace", short_repr(name)


def _repeated(what: str, values: Iterable[object]) -> Iterator[Violation]:
    listed = values if isinstance(values, list) else list(values)
    if len(set(listed)) < len(listed):
        value, times = Counter(listed).most_common(1)[0]
        yield f"each {what} once", f"{short_repr(value)} {times} times"
