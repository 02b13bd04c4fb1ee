"""Where else the rows of a damaged segment are, and the entries of a damaged dedup window.

A segment, in this order:

1. The log: a flushed segment holds what the slots did that its footer names (or, where the footer is
   lost, the slots that its versions tell). If all of them are still there, they are folded once more,
   and the result must be what the manifest says of the segment: rows, tombstones, keys and versions.
2. The segments that it replaced, as the newest retained generation that names them has them, if each
   is sound or can itself be restored. They hold more than the segment did, versions that a compaction
   dropped; that costs space and is visible to nobody. Their tombstones are among them, so nothing
   comes back to life.
3. Its own blocks, those that are not damaged, found through its index, or by their frames where the
   tail is lost. What the others held is lost.

A segment that a branch shares with another namespace is sought there, in that one's log and generations.

Nothing here writes. Rows come in bounded memory, but for a fold of the log, which takes what the
flush took.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from reef.doctor._findings import portions
from reef.doctor._quarantine import size_of
from reef.doctor._restore_rows import (
    Lost,
    Restored,
    Source,
    Tally,
    Walk,
    between,
    merged,
    of_restored,
    of_segment,
    own_rows,
    walked_rows,
)
from reef.doctor._verify import Survey, survey_namespace
from reef.doctor._verify_segments import SegmentFacts, check_segment
from reef.engine import Context, Dedup, Memtable
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
from reef.log import ChainPoint, Damaged, LogEntry, LogFold, LogReader
from reef.manifest import keys_seen
from reef.types import unpack_lsn

_DEPTH_MAX = 32
_FLUSHED = re.compile(r".*-e[0-9]+")


@dataclass(frozen=True)
class RestoredWindow:
    """A dedup window to write instead of a damaged one."""

    window: DedupWindow
    text: str
    """Where it comes from."""
    lost: str = ""
    """What it does not know, "" if it knows everything."""


class Restorer:
    """Finds what the damaged objects of one namespace held. Why it cannot be had is told as text."""

    def __init__(self, context: Context, survey: Survey) -> None:
        assert survey.head is not None
        assert survey.log is not None
        self._context = context
        self._survey = survey
        self._head = survey.head.manifest
        self._log = survey.log
        self._known = {facts.key: facts for facts in survey.segments}
        # Of this life of the namespace: another one's log and segments are none of its own.
        self._retained = [m for m in survey.retained if m.born == self._head.born]
        self._slot_lowest = 1 if self._head.born == 1 else self._head.gc.boundary.slot
        self._owners: dict[str, Restorer | str] = {}

    def restore(self, facts: SegmentFacts) -> Restored | str:
        """Return all rows of a damaged segment, or why they cannot be had.

        What is returned can be read: that was tried. Raises UnavailableError.
        """
        return self._restore(facts, 0)

    def salvage(self, facts: SegmentFacts) -> Restored | None:
        """Return the sound blocks of a damaged segment; None: there are none."""
        tail = facts.tail
        if tail is None:
            return self._walk(facts)
        good = [n for n in range(len(tail.row_places)) if n not in set(facts.bad_rows)]
        if not good:
            return None
        bad = (Lost.block(tail, facts.ref, n) for n in facts.bad_rows)
        return Restored(
            f"its {len(good)} sound blocks of {len(tail.row_places)}",
            tail.schema,
            partial(own_rows, self._context.store, facts, good),
            sum(tail.row_places[n].rows for n in good),
            tail.footer.replaced_slots,
            tuple(lost for lost in bad if self._is_seen(facts.ref, lost)),
        )

    def _is_seen(self, ref: SegmentRef, lost: Lost) -> bool:
        """Return whether the head still shows any of the lost keys through a segment."""
        named = (r for r in (*self._head.segments, *self._log.attached) if r.id == ref.id)
        return any(low <= lost.key_max and lost.key_min < end for low, end in map(keys_seen, named))

    def _walk(self, facts: SegmentFacts) -> Restored | None:
        """Return what blocks a segment without its tail has, if it has no wide columns."""
        naming = (m for m in self._retained if facts.ref in m.segments)
        oldest = next(naming, self._head)
        if facts.is_missing or facts.ref.version is not None or not oldest.schema:
            return None
        columns = decode_schema(pa.py_buffer(oldest.schema), "", 0)
        if vector_columns(columns):
            return None
        schema, store = segment_schema(list(columns)), self._context.store
        walk = Walk(facts.ref)
        for batch in walked_rows(store, facts, schema):
            walk.add(batch)
        if not walk.tally.fits(facts.ref):
            return None
        return Restored(
            f"its {walk.sound} sound blocks, found without its tail",
            schema,
            lambda: (batch for batch in walked_rows(store, facts, schema) if batch is not None),
            walk.tally.rows,
            lost=walk.lost(),
        )

    def window(self) -> RestoredWindow:
        """Return the dedup window that holds at the head, as far as it can be had."""
        base, window = self._window_base()
        dedup = Dedup(
            window,
            keys_max=self._context.settings.dedup_max_keys,
            age_max_us=round(self._context.settings.dedup_max_age * 1_000_000),
        )
        last = self._head.wal_floor - 1
        first = self._log_reaches_to() if base is None else base.wal_floor
        for entry in self._read_slots(first, last, base) if first <= last else ():
            if entry.is_valid:
                dedup.replay(entry.log)
        found = dedup.window(self._head.last_applied_lsn, self._context.clock.now_us())
        if base is not None:
            text = f"the window of generation {base.generation} and log objects {first} to {last}"
            return RestoredWindow(found, text)
        lost = "" if first == 1 else f"idempotency keys and streams of log objects below {first}"
        return RestoredWindow(found, f"log objects {first} to {last}", lost)

    def _window_base(self) -> tuple[Manifest | None, DedupWindow | None]:
        """Return the newest generation whose window can be read and completed from the log."""
        windows = {facts.ref.id: facts.window for facts in self._survey.dedups}
        for m in reversed(self._retained):
            window = None if m.dedup is None else windows.get(m.dedup.id)
            if m.dedup is not None and window is None:
                continue
            if self._log.is_whole(m.wal_floor, self._head.wal_floor - 1):
                return m, window
        return None, None

    def _log_reaches_to(self) -> int:
        """Return the first slot from which on the folded log is whole."""
        first = self._head.wal_floor
        while first > self._slot_lowest and self._log.is_whole(first - 1, first - 1):
            first -= 1
        return first

    def _restore(self, facts: SegmentFacts, depth: int) -> Restored | str:
        if facts.ref.namespace not in ("", self._survey.namespace):
            owner = self._owner(facts.ref.namespace)
            return owner if isinstance(owner, str) else owner._restore(facts, depth)
        from_log = self._from_log(facts)
        if isinstance(from_log, Restored):
            return from_log
        from_inputs = self._from_inputs(facts, depth)
        if isinstance(from_inputs, Restored):
            return from_inputs
        return f"{from_log}; {from_inputs}"

    def _owner(self, namespace: str) -> Restorer | str:
        """Return who finds what segments of another namespace held, or why nobody can."""
        if namespace not in self._owners:
            self._owners[namespace] = self._surveyed(namespace)
        return self._owners[namespace]

    def _surveyed(self, namespace: str) -> Restorer | str:
        try:
            survey = survey_namespace(self._context, namespace, deep=False)
        except NotFoundError:
            return f"namespace {namespace!r}, to which it belongs, is not there"
        if survey.head is None:
            return f"no generation of {namespace!r}, to which it belongs, can be read"
        return Restorer(self._context, survey)

    # From the log.

    def _from_log(self, facts: SegmentFacts) -> Restored | str:
        slots = self._slots_of(facts)
        if isinstance(slots, str):
            return slots
        first, last = slots
        if first < self._slot_lowest:
            return f"log objects {first} to {last} may be of a namespace that was dropped"
        if not self._log.is_whole(first, last):
            return f"log objects {first} to {last} are not all there"
        memtable, ref = Memtable(), facts.ref
        try:
            for entry in self._read_slots(first, last, self._base_of(first)):
                for record in entry.log.records if entry.is_valid else ():
                    if record.batch is not None:
                        memtable.apply(record.lsn, record.batch)
        except UnreadableError as error:
            return f"the log cannot be replayed: {error}"
        tally, batches = Tally(), []
        for batch in memtable.flush_batches(ref.lsn_max):
            batches.append(between(batch, ref.key_min, ref.key_max + b"\0"))
            tally.add(batches[-1])
        text = f"log objects {first} to {last}"
        if problem := tally.difference(ref):
            return f"{text} give {problem}"
        return Restored(text, batches[0].schema, lambda: iter(batches), ref.rows, slots)

    def _slots_of(self, facts: SegmentFacts) -> tuple[int, int] | str:
        """Return the slots that a flushed segment has the rows of, or why that is not known."""
        ref = facts.ref
        if ref.version is not None:
            return "it was attached: the log names it, but has not its rows"
        if facts.tail is not None:
            return facts.tail.footer.replaced_slots or "it was not made from the log"
        if ref.level or not _FLUSHED.fullmatch(ref.id) or self._head.lsn_policy != "packed":
            return "its footer, which names the log objects that it was made from, is lost"
        return unpack_lsn(ref.lsn_min)[0], unpack_lsn(ref.lsn_max)[0]

    def _base_of(self, first: int) -> Manifest | None:
        """Return the newest generation at whose floor the chain can be entered to reach a slot."""
        reaching = [
            m
            for m in self._retained
            if m.wal_floor <= first and self._log.is_whole(m.wal_floor, first - 1)
        ]
        return max(reaching, key=lambda m: m.wal_floor, default=None)

    def _read_slots(self, first: int, last: int, base: Manifest | None) -> Iterator[LogEntry]:
        """Yield the log objects `first` to `last`, decided by the chain entered at `base`.

        Without one, the first object is taken at its word. Raises UnreadableError.
        """
        skipped = self._head.skipped_slots
        fold = None
        if base is not None:
            fold = LogFold(LogFold.of(base).point, base.wal_floor, skipped)
        begin = first if base is None else base.wal_floor
        for slot, found in self._decoded(range(begin, last + 1)):
            if isinstance(found, Damaged):
                if fold is not None:
                    fold.add_damaged(found)
                continue
            if fold is None:
                prev = found[0].prev
                fold = LogFold(ChainPoint(prev.slot, prev.checksum, 0), slot, skipped)
            entry = fold.add(*found)
            if slot >= first:
                yield entry

    def _decoded(self, slots: range) -> Iterator[tuple[int, tuple[LogObject, int, int] | Damaged]]:
        reader = LogReader(self._context.store, self._survey.namespace, self._head.lsn_policy)
        sizes = self._log.sizes
        for some in portions(slots, lambda slot: sizes.get(slot, 0)):
            keys = [log_key(self._survey.namespace, slot) for slot in some]
            for slot, key, data in zip(some, keys, self._context.store.get_many(keys), strict=True):
                if data is None:
                    raise IncompleteError(key, 0, "a log object", "nothing any more")
                yield slot, reader.decode(slot, data)

    # From the segments that it replaced.

    def _from_inputs(self, facts: SegmentFacts, depth: int) -> Restored | str:
        ids = self._inputs_of(facts)
        if isinstance(ids, str):
            return ids
        if depth >= _DEPTH_MAX:
            return "segments replaced each other too many times"
        refs = self._shown_before(facts.ref, ids)
        if isinstance(refs, str):
            return refs
        sources: list[Source] = []
        for input in refs:
            source = self._source(input, depth)
            if isinstance(source, str):
                return source
            sources.append(source)
        ref = facts.ref
        schema = pa.unify_schemas([source.schema for source in sources])
        text = "the segments that it replaced: " + ", ".join(source.text for source in sources)
        rows = partial(merged, sources, schema, ref.key_min, ref.key_max + b"\0")
        return Restored(text, schema, rows, ref.rows)

    def _inputs_of(self, facts: SegmentFacts) -> Sequence[str] | str:
        if facts.tail is not None:
            return facts.tail.footer.replaced_segments or "it replaced no other segment"
        before, named = self._first_named(facts.ref.id)
        if before and named and named.generation == before[-1].generation + 1:
            # A compaction may have taken a part of a segment's keys: then its reference is another.
            stay = {_keys_of(ref) for ref in named.segments}
            gone = dict.fromkeys(ref.id for ref in before[-1].segments if _keys_of(ref) not in stay)
            if gone:
                return tuple(gone)
        return "no retained generation tells which segments it replaced"

    def _source(self, ref: SegmentRef, depth: int) -> Source | str:
        facts = self._looked_at(ref)
        if facts.is_sound:
            seen = replace(facts, ref=ref)
            return of_segment(self._context.segments(self._survey.namespace), seen)
        restored = self._restore(facts, depth + 1)
        if isinstance(restored, str):
            state = "missing" if facts.is_missing else "damaged"
            return f"segment {ref.id}, which it replaced, is {state} ({restored})"
        return of_restored(ref, restored)

    def _shown_before(self, output: SegmentRef, ids: Sequence[str]) -> list[SegmentRef] | str:
        """Return how segments were seen when `output` took over rows of theirs, or why nobody knows.

        What a compaction takes over is what it sees: of a segment of which a part was compacted before
        nothing of that part may come back. A generation that names all of them, and not yet `output`,
        shows it; one that does not name `output` any more shows only what that has left of them.
        """
        for manifest in reversed(self._first_named(output.id)[0]):
            named = [ref for ref in manifest.segments if ref.id in ids]
            if {ref.id for ref in named} == {*ids}:
                return named
        found = [self._ref_of(id) for id in ids]
        for id, ref in zip(ids, found, strict=True):
            if ref is None:
                return f"no retained generation names segment {id}, which it replaced"
            if (ref.clip_key_min, ref.clip_key_max) != (None, None):
                return f"no retained generation tells which keys of segment {id} it took over"
        return [ref for ref in found if ref is not None]

    def _first_named(self, id: str) -> tuple[Sequence[Manifest], Manifest | None]:
        """Return the retained generations from before a segment was named, and the first after."""
        retained = self._retained
        for at, manifest in enumerate(retained):
            if any(ref.id == id for ref in manifest.segments):
                return retained[:at], manifest
        return retained, None

    def _ref_of(self, id: str) -> SegmentRef | None:
        """Return what the newest generation that names a segment says of it."""
        for manifest in reversed(self._retained):
            for ref in manifest.segments:
                if ref.id == id:
                    return ref
        return None

    def _looked_at(self, ref: SegmentRef) -> SegmentFacts:
        """Return what is known of a segment, every block looked at."""
        namespace, store = self._survey.namespace, self._context.store
        key = segment_key(ref.namespace or namespace, ref.id)
        known = self._known.get(key)
        if known is None or (known.is_sound and not known.blocks):
            known = check_segment(store, namespace, ref, size_of(store, key), deep=True)
            self._known[key] = known
        return known


def _keys_of(ref: SegmentRef) -> tuple[str, bytes | None, bytes | None]:
    return ref.id, ref.clip_key_min, ref.clip_key_max
