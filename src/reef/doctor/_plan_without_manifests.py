"""The plan of a rebuild without any manifest: a generation made from log, segments and branches.

What it rests on, and what it cannot know, is said in docs/pipeline.md. Its head:

- The log from the beginning of its last run without a gap is unfolded again. It decides; segments count
  only for what lies below it.
- Below that, the segments that `choose_live` finds.
- The retention floor is the last version: which older versions a compaction has dropped, nobody knows.
- The generation, the epochs and the boundary lie above all that a sleeper can hold, so that nothing of
  it counts that is published later: a generation it publishes lies below the boundary, and its next log
  object meets a fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import pyarrow as pa

from reef.doctor._live_segments import FoundSegment, LiveSegments, choose_live
from reef.doctor._log_remains import LogRemains, attached_until, largest_value, read_remains
from reef.engine import Context, face_of, list_namespaces, lost_pins, open_for_reading
from reef.errors import CorruptError, InvalidInputError, NotFoundError, UnreadableError
from reef.format import (
    GRACE_MS_DEFAULT,
    PARALLEL_WRITES_MAX,
    Boundary,
    DedupRef,
    Footer,
    Manifest,
    Origin,
    Pin,
    SegmentRef,
    SegmentTail,
    WalAnchor,
    decode_dedup,
    decode_tail,
    dedup_checksum,
    joined_slots,
    schema_fingerprint,
    slots_of,
    tail_length,
    ulid_number,
)
from reef.gc import epoch_of, owner_of, parse_segment
from reef.manifest import BranchPoint, ManifestReader, begin_again
from reef.types import LSN_MAX, check_namespace, pack_lsn, split_namespace, unpack_lsn

_TRAILER_BYTES = 40
_END_BYTES = 64 << 10
_ROWS = 64

SchemaOf = Callable[[Sequence[pa.Field], int], tuple[pa.Schema, bool] | None]
"""Makes the schema of a face from the columns of its rows and the bytes of a value, and says whether the
face has no others; None: no face has them."""


@dataclass(frozen=True)
class PlanWithoutManifests:
    """A generation to begin again with, and what of it is not proved."""

    manifest: Manifest
    unproven: tuple[str, ...]


def has_no_manifest(context: Context, namespace: str) -> bool:
    """Return whether all manifests of a namespace are gone, but other objects are not."""
    reader = ManifestReader(context.store, check_namespace(namespace))
    return not reader.list() and reader.left_behind() is not None and not reader.list()


def plan_without_manifests(
    context: Context, namespace: str, schema_of: SchemaOf, *, assume_live: bool = False
) -> PlanWithoutManifests:
    """Plan a rebuild of a namespace without manifests. Writes nothing.

    Raises CorruptError where what is left does not tell what is live, or other namespaces without
    manifests may be its branches; InvalidInputError if it may have been dropped, unless `assume_live`;
    UnavailableError.
    """
    return _Planner(context, namespace, schema_of).plan(assume_live)


class _Segment(NamedTuple):
    """A segment in the bucket: without its filter and indexes, because there may be many."""

    ref: SegmentRef
    footer: Footer
    schema: pa.Schema


class _Planner:
    def __init__(self, context: Context, namespace: str, schema_of: SchemaOf) -> None:
        self._context = context
        self._namespace = namespace
        self._schema_of = schema_of
        self._parent_schema = b""
        self._unproven: list[str] = []

    def plan(self, assume_live: bool) -> PlanWithoutManifests:
        self._check_family()
        segments = list(self._segments())
        folded = joined_slots(
            span for one in segments for span in slots_of(one.footer, one.ref, is_packed=True) or ()
        )
        ids = {one.ref.id for one in segments}
        log = read_remains(self._context, self._namespace, folded, ids)
        if log.in_flight is not None:
            first, last = log.in_flight
            self._unproven.append(
                f"slots {first} to {last}: they lie behind a gap, and count as never committed"
            )
        if not log.is_open and not assume_live:
            raise InvalidInputError(
                f"namespace {self._namespace!r} may have been dropped: its manifests are gone, and its "
                "log ends in a fence, as that of a dropped namespace does; give --assume-live if it was "
                "not dropped"
            )
        is_packed = log.is_packed and all(map(_is_packed, segments))
        found = [
            FoundSegment(one.ref, one.footer, slots_of(one.footer, one.ref, is_packed=is_packed))
            for one in segments
        ]
        origin, shared = self._origin(log)
        begins_at = log.born if origin is None else 1
        if log.born > 1 and origin is None:  # behind a dropped namespace of this name
            found = [one for one in found if not one.slots or one.slots[0][0] >= log.born]
        if origin is not None:
            found = [one for one in found if not self._is_other_attempts(one, origin)]
        attached = (*shared, *log.attached)
        live = self._live(found, attached, log, begins_at, is_packed=is_packed)
        schema = self._schema(log, segments, live)
        last_applied = max((_newest(ref) for ref in live.refs), default=0)
        if origin is not None:
            last_applied = max(last_applied, origin.lsn)
        epochs = (epoch_of(owner_of(one.ref.id)) or 0 for one in segments)
        manifest = msgspec.structs.replace(
            self._manifest(log, is_packed=is_packed),
            origin=origin,
            writer_epoch=max((log.epoch, *epochs)),
            last_applied_lsn=last_applied,
            dedup=self._window(log),
            schema=schema,
            schema_fingerprint=schema_fingerprint(schema),
            pins=tuple(lost_pins(self._context, self._namespace, ())),
            segments=live.refs,
        )
        floor_lsn = max(log.lsn_last, last_applied)
        retention = msgspec.structs.replace(manifest.retention, floor_lsn=floor_lsn)
        manifest = begin_again(msgspec.structs.replace(manifest, retention=retention))
        return PlanWithoutManifests(manifest, tuple(dict.fromkeys(self._unproven)))

    # The family.

    def _check_family(self) -> None:
        """Raise CorruptError if another namespace without manifests may be a branch of this one."""
        root = split_namespace(self._namespace)[0]
        lost = [
            one.name
            for one in list_namespaces(self._context.store, f"{root}@")
            if one.name != self._namespace and has_no_manifest(self._context, one.name)
        ]
        if lost:
            raise CorruptError(
                f"namespaces/{lost[0]}/manifest/",
                0,
                f"the manifests of what may be a branch of {self._namespace!r}: which of its segments "
                "that branch needs is stated nowhere else",
                "none; restore one, or rebuild that namespace first",
            )

    def _holders(self) -> Iterator[tuple[Manifest, Pin]]:
        """Yield the namespaces that have a pin for this branch, and the pin."""
        root = split_namespace(self._namespace)[0]
        names = [root, *(one.name for one in list_namespaces(self._context.store, f"{root}@"))]
        for name in names:
            if name == self._namespace:
                continue
            head = self._context.chain(name).load()
            for pin in () if head is None else head.manifest.pins:
                if pin.child == self._namespace:
                    assert head is not None
                    yield head.manifest, pin

    def _origin(self, log: LogRemains) -> tuple[Origin | None, list[SegmentRef]]:
        """Return where a branch left its parent, and what it shares with it: by the parent's pin only."""
        if split_namespace(self._namespace)[1] is None:
            return None, []
        held = list(self._holders())
        if not held:
            self._unproven.append(
                "origin: no namespace has a pin for this branch: it counts as detached"
            )
            self._parent_schema = self._schema_now(split_namespace(self._namespace)[0])
            return None, []
        if len({pin.nonce for _, pin in held}) > 1:
            raise CorruptError(
                f"namespaces/{held[0][0].namespace}/manifest/",
                0,
                f"pins for one life of branch {self._namespace!r}",
                "pins for several; run `reef gc` of that namespace, then rebuild again",
            )
        points: list[tuple[Manifest, Pin, Manifest]] = []
        for holder, pin in held:
            points.append(
                (holder, pin, self._context.chain(holder.namespace).at(pin.generation).manifest)
            )
        names = {holder.namespace for holder, _ in held}
        parents = [
            (pin, m)
            for holder, pin, m in points
            if names - {holder.namespace} <= {ref.namespace for ref in m.segments}
        ]
        pin, parent = max(parents, key=lambda one: len(one[1].namespace))
        self._parent_schema = self._schema_now(parent.namespace)
        head = WalAnchor(slot=log.lowest.slot, checksum=log.lowest.checksum, epoch=0)
        origin = Origin(parent.namespace, pin.generation, pin.lsn, head, pin.nonce)
        point = BranchPoint(
            parent=parent, lsn=pin.lsn, slot_last=0, head=head, schema=b"", nonce=pin.nonce
        )
        attached = attached_until(self._context, parent, pin.lsn)
        return origin, list(point.share((*attached, *parent.segments)))

    def _schema_now(self, namespace: str) -> bytes:
        """Return the newest schema of a namespace; b"" if there is none.

        The branch had a newer one only if its own log says so, or one whose attributes the parent
        has dropped since.
        """
        head = self._context.chain(namespace).load()
        if head is None or head.manifest.state != "live":
            return b""
        face = face_of(head.manifest)
        with closing(open_for_reading(self._context, namespace, face)) as reader:
            schema = reader.tail.schema
            return b"" if schema is None else bytes(schema.serialize().to_pybytes())

    def _is_other_attempts(self, one: FoundSegment, origin: Origin) -> bool:
        """Return whether an unfinished attempt at this branch uploaded a segment, at a later version."""
        is_upload = owner_of(one.ref.id) == "e0" and not one.is_output
        return is_upload and one.ref.lsn_max > origin.lsn

    # Segments.

    def _segments(self) -> Iterator[_Segment]:
        """Yield all segments in the bucket whose tails can be read."""
        store, prefix = self._context.store, f"namespaces/{self._namespace}/segments/"
        for meta in store.list(prefix):
            if parse_segment(meta.key[len(prefix) :]) is None:
                continue
            try:
                tail, length = self._read_tail(meta.key, meta.size)
            except UnreadableError as error:
                self._unproven.append(f"segments: {meta.key} cannot be read ({error.got})")
                continue
            except NotFoundError:
                continue
            footer = tail.footer
            names = (
                "id",
                "level",
                "rows",
                "tombstones",
                "key_min",
                "key_max",
                "lsn_min",
                "lsn_max",
            )
            ref = SegmentRef(
                **{name: getattr(footer, name) for name in names},
                size=meta.size,
                footer_length=length,
                checksum=tail.checksum,
            )
            yield _Segment(ref, footer, tail.schema)

    def _read_tail(self, key: str, size: int) -> tuple[SegmentTail, int]:
        store = self._context.store
        end = min(size, _END_BYTES)
        last = store.get_range(key, size - end, end) if end else b""
        length = tail_length(last[-_TRAILER_BYTES:], key=key, size=size)
        data = last[-length:] if length <= end else store.get_range(key, size - length, length)
        return decode_tail(data, key=key, size=size), length

    def _live(
        self,
        found: Sequence[FoundSegment],
        shared: Sequence[SegmentRef],
        log: LogRemains,
        begins_at: int,
        *,
        is_packed: bool,
    ) -> LiveSegments:
        if log.first <= begins_at:
            return LiveSegments((), (), ())
        lsn_end = pack_lsn(log.first, 0) if is_packed else log.lsn_first or LSN_MAX
        there = {one.ref.id for one in found}
        own = [ref for ref in shared if ref.namespace or ref.id in there]
        missing = [ref.id for ref in shared if not ref.namespace and ref.id not in there]
        if missing:
            consumed = {n for one in found for n in one.replaced}
            self._unproven += [
                f"segments: {id}, which the log attaches, is not there"
                for id in missing
                if ulid_number(id) not in consumed
            ]
        live = choose_live(self._namespace, found, own, slot_end=log.first, lsn_end=lsn_end)
        self._unproven += live.unproven
        at = max([begins_at, *(unpack_lsn(r.lsn_max)[0] + 1 for r in shared if r.namespace)])
        covered = [*live.slots, *((slot, slot) for slot in log.sizes if slot < log.first)]
        for first, last in joined_slots(covered):
            if first > at and at < log.first:
                self._gap(at, min(first, log.first) - 1)
            at = max(at, last + 1)
        if at < log.first:
            self._gap(at, log.first - 1)
        return live

    def _gap(self, first: int, last: int) -> None:
        self._unproven.append(
            f"slots {first} to {last}: no segment says that it was folded from them: they had no "
            "rows, or a segment was lost"
        )

    # The rest.

    def _schema(self, log: LogRemains, segments: Sequence[_Segment], live: LiveSegments) -> bytes:
        if log.schema is not None:
            return bytes(log.schema.serialize().to_pybytes())
        if self._parent_schema:
            self._unproven.append("attributes: those that the parent has now are taken")
            return self._parent_schema
        fields = dict(log.fields)
        schemas = {one.ref.id: one.schema for one in segments}
        largest = log.value_bytes_max
        for ref in live.refs:
            for column in schemas.get(ref.id, ()):
                if not column.name.startswith("_"):
                    fields.setdefault(column.name, column)
            if not largest:
                largest = self._largest_value(ref)
        told = self._schema_of([*fields.values()], largest)
        if told is None:
            self._unproven.append("face: no schema and no rows tell what the namespace was made as")
            return b""
        schema, is_fixed = told
        if not is_fixed:
            self._unproven.append(
                "attributes: no log object sets a schema; those of the rows are taken, also such as "
                "were dropped"
            )
        return bytes(schema.serialize().to_pybytes())

    def _largest_value(self, ref: SegmentRef) -> int:
        source = self._context.segments(self._namespace).open(ref)
        rows = source.batches(b"", None, columns=None, reverse=False, lsn=LSN_MAX)
        first = next(rows, None)
        return 0 if first is None else largest_value(first.slice(0, _ROWS))

    def _window(self, log: LogRemains) -> DedupRef | None:
        """Return the newest dedup window: what comes after it is in the log."""
        store = self._context.store
        newest: tuple[int, DedupRef] | None = None
        for meta in store.list(f"namespaces/{self._namespace}/dedup/"):
            id = meta.key.rsplit("/", 1)[-1].partition(".")[0]
            try:
                data = store.get(meta.key)
                ref = DedupRef(id=id, size=len(data), checksum=dedup_checksum(data, key=meta.key))
                window = decode_dedup(data, key=meta.key)
            except (UnreadableError, NotFoundError):
                self._unproven.append(f"idempotency keys: {meta.key} cannot be read")
                continue
            if log.born > 1 and window.last_lsn < pack_lsn(log.born, 0):
                continue  # of the dropped namespace before this one
            if newest is None or window.last_lsn > newest[0]:
                newest = window.last_lsn, ref
        if newest is None and log.first > 1:
            self._unproven.append(
                f"idempotency keys of log objects below {log.first}: there is no dedup window"
            )
        return None if newest is None else newest[1]

    def _manifest(self, log: LogRemains, *, is_packed: bool) -> Manifest:
        """Return what the log and the settings say."""
        context = self._context
        grace_s = context.settings.gc_grace
        grace_ms = GRACE_MS_DEFAULT if grace_s is None else round(grace_s * 1000)
        first = context.chain(self._namespace).first(grace_ms)
        window_s = context.settings.pitr_window
        self._unproven += [
            f"settings: gc_grace is {grace_ms / 1000:g} s, and pitr_window "
            + ("is none" if window_s is None else f"is {window_s:g} s"),
            "snapshots: if there were any, they are lost",
        ]
        point = log.point
        window_ms = None if window_s is None else round(window_s * 1000)
        return msgspec.structs.replace(
            first,
            lsn_policy="packed" if is_packed else "caller",
            max_parallel_writes=PARALLEL_WRITES_MAX,  # nobody knows how many were allowed
            wal_floor=log.first,
            wal_anchor=WalAnchor(slot=point.slot, checksum=point.checksum, epoch=point.epoch),
            wal_last_seen=log.end - 1,
            retention=msgspec.structs.replace(first.retention, pitr_window_ms=window_ms),
            gc=msgspec.structs.replace(first.gc, boundary=Boundary(slot=log.first, generation=1)),
        )


def _is_packed(one: _Segment) -> bool:
    """Return whether a segment's versions can be those of its slots."""
    slots = one.footer.replaced_slots
    return slots is None or slots[0] <= unpack_lsn(one.ref.lsn_min)[0] <= slots[1]


def _newest(ref: SegmentRef) -> int:
    return ref.lsn_max if ref.clip_lsn is None else min(ref.lsn_max, ref.clip_lsn)
