"""Where else the rows of a damaged segment are, and the entries of a damaged dedup window.

The rows of a segment are taken from the first of these that has them:

1. The log. The footer of a flushed segment names the slots that it was made from; if the footer is
   lost, the versions of the segment name them. If all of them are still there, they are folded again,
   and the result must agree with the manifest: rows, tombstones, keys and versions.
2. The segments that it replaced, as the newest retained generation that names them has them, if each
   is sound or can itself be restored. They also hold versions that a compaction dropped; that costs
   space, and no read returns them. Their tombstones are among them, so no deleted row comes back.
3. Its own sound blocks, found through its index, or by their frames if the tail is lost. The rows of
   the damaged blocks are lost.

For a segment that a branch shares with another namespace, that namespace's log and generations are used.

Nothing here writes. Rows come in bounded memory, except for a fold of the log, which takes as much as
the flush did.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from reef.doctor._check_log import UnreadableKind
from reef.doctor._examine import Diagnosis, diagnose
from reef.doctor._problems import cut_to_fetch
from reef.doctor._quarantine import stored_size
from reef.doctor._refold_plan import RefoldPlanner
from reef.doctor._restore_rows import (
    BlockWalk,
    Lost,
    Restored,
    RowSums,
    Source,
    all_versions,
    own_rows,
    restored_source,
    rows_between,
    segment_source,
    walked_rows,
)
from reef.engine import Context, DedupIndex, Memtable
from reef.errors import IncompleteError, NotFoundError, UnreadableError
from reef.format import (
    DedupWindow,
    LogObject,
    Manifest,
    SegmentRef,
    decode_schema,
    log_key,
    segment_key,
    segment_schema,
    vector_columns,
)
from reef.log import ChainPoint, Damaged, LogEntry, LogReader, Replay
from reef.manifest import keys_seen
from reef.segment import CheckedSegment, check_segment
from reef.types import unpack_lsn

_DEPTH_MAX = 32
_FLUSHED = re.compile(r".*-e[0-9]+")


@dataclass(frozen=True)
class RestoredWindow:
    """A dedup window to write in place of a damaged one."""

    window: DedupWindow
    text: str
    """Where it comes from."""
    lost: str = ""
    """What is missing from it, "" if nothing is."""


class CannotRestoreError(Exception):
    """A segment cannot be restored from one of its sources, or from any; the text says why."""


class Restorer:
    """Finds what the damaged objects of one namespace held."""

    def __init__(self, context: Context, diagnosis: Diagnosis) -> None:
        assert diagnosis.head is not None
        assert diagnosis.log is not None
        self._context = context
        self._diagnosis = diagnosis
        self._head = diagnosis.head.manifest
        self._log = log = diagnosis.log
        self._checked = {checked.key: checked for checked in diagnosis.segments}
        lost = {*log.unreadable} - {*log.slots(UnreadableKind.SKIPPED)}
        self._planner = RefoldPlanner(self._head, diagnosis.retained, log.sizes, lost)
        self._restorers: dict[str, Restorer] = {}

    def restore(self, segment: CheckedSegment, depth: int = 0) -> Restored:
        """Return all rows of a damaged segment, which was replaced `depth` times since.

        What is returned was read once, so it can be read. Raises CannotRestoreError, UnavailableError.
        """
        if segment.ref.namespace not in ("", self._diagnosis.namespace):
            return self._restorer_of(segment.ref.namespace).restore(segment, depth)
        try:
            return self._from_log(segment)
        except CannotRestoreError as error:
            why = str(error)
        try:
            return self._from_inputs(segment, depth)
        except CannotRestoreError as error:
            raise CannotRestoreError(f"{why}; {error}") from None

    def sound_blocks(self, segment: CheckedSegment) -> Restored | None:
        """Return the sound blocks of a damaged segment; None: there are none."""
        tail = segment.tail
        if tail is None:
            return self._walk(segment)
        good = [n for n in range(len(tail.row_places)) if n not in set(segment.bad_rows)]
        if not good:
            return None
        bad = (Lost.block(tail, segment.ref, n) for n in segment.bad_rows)
        return Restored(
            f"its {len(good)} sound blocks of {len(tail.row_places)}",
            tail.schema,
            partial(own_rows, self._context.store, segment, good),
            sum(tail.row_places[n].rows for n in good),
            tail.footer.replaced_slots,
            tuple(lost for lost in bad if self._is_exposed(segment.ref, lost)),
        )

    def _is_exposed(self, ref: SegmentRef, lost: Lost) -> bool:
        """Return whether the head still exposes any of the lost keys of a segment."""
        named = (r for r in (*self._head.segments, *self._log.attached) if r.id == ref.id)
        return any(low <= lost.key_max and lost.key_min < end for low, end in map(keys_seen, named))

    def _walk(self, segment: CheckedSegment) -> Restored | None:
        """Return the sound blocks of a segment without its tail, if it has no wide columns."""
        naming = (m for m in self._planner.retained if segment.ref in m.segments)
        oldest = next(naming, self._head)
        if segment.is_missing or segment.ref.version is not None or not oldest.schema:
            return None
        columns = decode_schema(pa.py_buffer(oldest.schema), "", 0)
        if vector_columns(columns):
            return None
        schema, store = segment_schema(list(columns)), self._context.store
        walk = BlockWalk(segment.ref)
        for batch in walked_rows(store, segment, schema):
            walk.add(batch)
        if not walk.sums.fits(segment.ref):
            return None
        return Restored(
            f"its {walk.sound} sound blocks, found without its tail",
            schema,
            lambda: (batch for batch in walked_rows(store, segment, schema) if batch is not None),
            walk.sums.rows,
            lost=walk.lost(),
        )

    def window(self) -> RestoredWindow:
        """Return the dedup window of the head, as far as it can be restored."""
        windows = {checked.ref.id: checked.window for checked in self._diagnosis.windows}
        base, window = self._planner.window_base(windows)
        dedup = DedupIndex(
            window,
            keys_max=self._context.settings.dedup_max_keys,
            age_max_us=round(self._context.settings.dedup_max_age * 1_000_000),
        )
        last = self._head.wal_floor - 1
        first = self._planner.log_first if base is None else base.wal_floor
        for entry in self._read_slots(first, last, base) if first <= last else ():
            if entry.is_valid:
                dedup.apply(entry.log)
        restored = dedup.window(self._head.last_applied_lsn, self._context.clock.now_us())
        if base is not None:
            log = f" and log objects {first} to {last}" if first <= last else ""
            return RestoredWindow(restored, f"the window of generation {base.generation}{log}")
        lost = "" if first == 1 else f"idempotency keys and streams of log objects below {first}"
        return RestoredWindow(restored, f"log objects {first} to {last}", lost)

    def _restorer_of(self, namespace: str) -> Restorer:
        """Return the Restorer of another namespace. Raises CannotRestoreError."""
        if namespace not in self._restorers:
            try:
                diagnosis = diagnose(self._context, namespace, deep=False)
            except NotFoundError:
                raise CannotRestoreError(
                    f"namespace {namespace!r}, which owns it, does not exist"
                ) from None
            if diagnosis.head is None:
                raise CannotRestoreError(
                    f"no generation of namespace {namespace!r}, which owns it, can be read"
                )
            self._restorers[namespace] = Restorer(self._context, diagnosis)
        return self._restorers[namespace]

    # From the log.

    def _from_log(self, segment: CheckedSegment) -> Restored:
        first, last = slots = self._slots_of(segment)
        if why := self._planner.why_not(first, last):
            raise CannotRestoreError(why)
        memtable, ref = Memtable(), segment.ref
        try:
            for entry in self._read_slots(first, last, self._planner.base_below(first)):
                for record in entry.log.records if entry.is_valid else ():
                    if record.batch is not None:
                        memtable.apply(record.lsn, record.batch)
        except UnreadableError as error:
            raise CannotRestoreError(f"the log cannot be replayed: {error}") from error
        sums, batches = RowSums(), []
        for batch in memtable.flush_batches(ref.lsn_max):
            batches.append(rows_between(batch, ref.key_min, ref.key_max + b"\0"))
            sums.add(batches[-1])
        text = f"log objects {first} to {last}"
        if problem := sums.difference(ref):
            raise CannotRestoreError(f"{text} give {problem}")
        return Restored(text, batches[0].schema, lambda: iter(batches), ref.rows, slots)

    def _slots_of(self, segment: CheckedSegment) -> tuple[int, int]:
        """Return the slots that a flushed segment was made from. Raises CannotRestoreError."""
        ref = segment.ref
        if ref.version is not None:
            raise CannotRestoreError(
                "it was attached: the log names it, but does not have its rows"
            )
        if segment.tail is not None:
            if segment.tail.footer.replaced_slots is None:
                raise CannotRestoreError("it was not made from the log")
            return segment.tail.footer.replaced_slots
        if ref.level or not _FLUSHED.fullmatch(ref.id) or self._head.lsn_policy != "packed":
            raise CannotRestoreError(
                "its footer, which names the log objects that it was made from, is lost"
            )
        return unpack_lsn(ref.lsn_min)[0], unpack_lsn(ref.lsn_max)[0]

    def _read_slots(self, first: int, last: int, base: Manifest | None) -> Iterator[LogEntry]:
        """Yield the log objects `first` to `last`, decided by the chain entered at `base`.

        Without a base, the first object counts as valid. Raises UnreadableError.
        """
        skipped = self._head.skipped_slots
        fold = None
        if base is not None:
            fold = Replay(Replay.of(base).point, base.wal_floor, skipped)
        begin = first if base is None else base.wal_floor
        for slot, decoded in self._decoded(range(begin, last + 1)):
            if isinstance(decoded, Damaged):
                if fold is not None:
                    fold.add_damaged(decoded)
                continue
            if fold is None:
                prev = decoded[0].prev
                fold = Replay(ChainPoint(prev.slot, prev.checksum, 0), slot, skipped)
            entry = fold.add(*decoded)
            if slot >= first:
                yield entry

    def _decoded(self, slots: range) -> Iterator[tuple[int, tuple[LogObject, int, int] | Damaged]]:
        reader = LogReader(self._context.store, self._diagnosis.namespace, self._head.lsn_policy)
        sizes = self._log.sizes
        for some in cut_to_fetch(slots, lambda slot: sizes.get(slot, 0)):
            keys = [log_key(self._diagnosis.namespace, slot) for slot in some]
            for slot, key, data in zip(some, keys, self._context.store.get_many(keys), strict=True):
                if data is None:
                    raise IncompleteError(key, 0, "a log object", "nothing")
                yield slot, reader.decode(slot, data)

    # From the segments that it replaced.

    def _from_inputs(self, segment: CheckedSegment, depth: int) -> Restored:
        ids = self._inputs_of(segment)
        if depth >= _DEPTH_MAX:
            raise CannotRestoreError("segments replaced each other too many times")
        ref = segment.ref
        sources = [self._source(input, depth) for input in self._refs_before(ref, ids)]
        schema = pa.unify_schemas([source.schema for source in sources])
        text = "the segments that it replaced: " + ", ".join(source.text for source in sources)
        rows = partial(all_versions, sources, schema, ref.key_min, ref.key_max + b"\0")
        return Restored(text, schema, rows, ref.rows)

    def _inputs_of(self, segment: CheckedSegment) -> Sequence[str]:
        """Return the ids of the segments that a segment replaced. Raises CannotRestoreError."""
        if segment.tail is not None:
            if not segment.tail.footer.replaced_segments:
                raise CannotRestoreError("it replaced no other segment")
            return segment.tail.footer.replaced_segments
        before, named = self._first_named(segment.ref.id)
        if before and named and named.generation == before[-1].generation + 1:
            # A compaction may have taken a part of a segment's keys: then its reference is another.
            stay = {_clipped_keys(ref) for ref in named.segments}
            gone = dict.fromkeys(
                ref.id for ref in before[-1].segments if _clipped_keys(ref) not in stay
            )
            if gone:
                return tuple(gone)
        raise CannotRestoreError("no retained generation tells which segments it replaced")

    def _source(self, ref: SegmentRef, depth: int) -> Source:
        segment = self._check(ref)
        if segment.is_sound:
            reader = self._context.segments(self._diagnosis.namespace)
            return segment_source(reader, replace(segment, ref=ref))
        try:
            return restored_source(ref, self.restore(segment, depth + 1))
        except CannotRestoreError as error:
            state = "missing" if segment.is_missing else "damaged"
            raise CannotRestoreError(
                f"segment {ref.id}, which it replaced, is {state} ({error})"
            ) from None

    def _refs_before(self, output: SegmentRef, ids: Sequence[str]) -> list[SegmentRef]:
        """Return the references to segments that a compaction read to write `output`.

        A compaction reads what the references of its head let it see. If a part of a segment was
        compacted before, its rows must not come back. So the references are those of a generation that
        names all of the segments, and not yet `output`; a later one names only what `output` has left.

        Raises CannotRestoreError.
        """
        for manifest in reversed(self._first_named(output.id)[0]):
            named = [ref for ref in manifest.segments if ref.id in ids]
            if {ref.id for ref in named} == {*ids}:
                return named
        return [self._whole_ref(id) for id in ids]

    def _first_named(self, id: str) -> tuple[Sequence[Manifest], Manifest | None]:
        """Return the retained generations before a segment was named, and the first that names it."""
        retained = self._planner.retained
        for at, manifest in enumerate(retained):
            if any(ref.id == id for ref in manifest.segments):
                return retained[:at], manifest
        return retained, None

    def _whole_ref(self, id: str) -> SegmentRef:
        """Return the newest reference to a segment, if that exposes all of its keys.

        Raises CannotRestoreError.
        """
        for manifest in reversed(self._planner.retained):
            for ref in manifest.segments:
                if ref.id != id:
                    continue
                if (ref.clip_key_min, ref.clip_key_max) == (None, None):
                    return ref
                raise CannotRestoreError(
                    f"no retained generation tells which keys of segment {id} it took over"
                )
        raise CannotRestoreError(f"no retained generation names segment {id}, which it replaced")

    def _check(self, ref: SegmentRef) -> CheckedSegment:
        """Return the result of checking every block of a segment."""
        namespace, store = self._diagnosis.namespace, self._context.store
        key = segment_key(ref.namespace or namespace, ref.id)
        checked = self._checked.get(key)
        if checked is None or (checked.is_sound and not checked.blocks):
            checked = check_segment(store, namespace, ref, stored_size(store, key), deep=True)
            self._checked[key] = checked
        return checked


def _clipped_keys(ref: SegmentRef) -> tuple[str, bytes | None, bytes | None]:
    return ref.id, ref.clip_key_min, ref.clip_key_max
