"""index on logs of any shape, cut into parts anywhere: as recovery reads them, so they are folded."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from reef.engine import Context, load_dedup
from reef.format import DedupWindow, Manifest
from reef.jobs import IndexOptions, InProcess
from reef.store import open_store
from reef.types import LSN_MAX
from tests.support.engine.log_script import (
    NS,
    LogScript,
    copied,
    flush_at_once,
    folded_rows,
    give_up,
    versions,
)
from tests.support.engine.open_database import database
from tests.support.jobs.passes import index

WINDOW = {"dedup_max_keys": 4, "dedup_max_age": 3e9}

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
ROWS = st.dictionaries(KEYS, st.one_of(st.none(), st.binary(max_size=3)), min_size=1)
PUTS = st.dictionaries(KEYS, st.binary(max_size=3), min_size=1)
STEPS = st.one_of(
    st.tuples(st.just("data"), st.lists(ROWS, min_size=1, max_size=3)),
    st.tuples(st.just("wide"), ROWS),
    st.tuples(st.just("void"), ROWS),
    st.tuples(st.just("behind void"), ROWS),
    st.tuples(st.just("late"), ROWS),
    st.tuples(st.just("fence"), st.none()),
    st.tuples(st.just("schema"), st.none()),
    st.tuples(st.just("attach"), PUTS),
    st.tuples(st.just("damaged, fence"), st.integers(1, 3)),
    st.tuples(st.just("given up"), st.integers(1, 2)),
    st.tuples(st.just("fold"), st.none()),
)


def _window(context: Context, manifest: Manifest) -> DedupWindow:
    """Return the dedup window that a writer would begin with."""
    return load_dedup(context, manifest).window(LSN_MAX, 0)


def _step(script: LogScript, name: str, what: object, options: IndexOptions) -> None:
    context = database(script.store, seed=script.slot + 100, **WINDOW).context()
    if name == "data":
        script.data(*what, key=b"%d-" % (script.slot % 5), sequence=script.slot)  # type: ignore[misc]
    elif name == "wide":
        script.data(what, extra=script.slot)  # type: ignore[arg-type]
    elif name == "void":
        script.void(what, key=b"void")  # type: ignore[arg-type]
    elif name == "behind void":
        script.void(what, behind_void=True)  # type: ignore[arg-type]
    elif name == "late":
        if script.epoch > 1:
            script.late(what)  # type: ignore[arg-type]
    elif name == "damaged, fence":
        for _ in range(what):  # type: ignore[call-overload]
            script.damaged()
        script.fence()
    elif name == "given up":
        lost = [script.damaged() for _ in range(what)]  # type: ignore[call-overload]
        script.lost.clear()
        give_up(context, *lost)
        script.prev = type(script.prev)(lost[-1].slot, 99)
        script.data({b"a": b"behind"})
    elif name == "fold":
        index(context, NS, InProcess(context), options=options)
    elif name == "attach":
        script.attach(what)  # type: ignore[arg-type]
    else:
        getattr(script, name)()


@settings(max_examples=60)
@given(
    steps=st.lists(STEPS, max_size=14),
    ends_damaged=st.integers(0, 2),
    task_slots=st.integers(1, 6),
    memory_bytes=st.sampled_from([1, 500, 1 << 20]),
)
def test_a_fold_in_parts_is_what_recovery_reads(
    steps: list[tuple[str, object]], ends_damaged: int, task_slots: int, memory_bytes: int
) -> None:
    options = IndexOptions(task_slots=task_slots, memory_bytes=memory_bytes)
    with open_store("memory://") as store:
        script = LogScript(store)
        for name, what in steps:
            _step(script, name, what, options)
        script.data({b"last": b"1"})
        for _ in range(ends_damaged):
            script.damaged()
        before = versions(store, script.lsns)
        with copied(store) as other:
            theirs = database(other, seed=4, **WINDOW).context()
            flushed = flush_at_once(theirs)
            rows, window = folded_rows(other), _window(theirs, flushed)
        context = database(store, seed=9, **WINDOW).context()
        result = index(context, NS, InProcess(context), options=options)
        assert result.generation is not None
        assert versions(store, script.lsns) == before
        assert folded_rows(store) == rows
        manifest = script.head()
        for field in ("wal_floor", "wal_anchor", "last_applied_lsn", "schema", "skipped_slots"):
            assert getattr(manifest, field) == getattr(flushed, field), field
        assert _window(context, manifest) == window
        assert not manifest.intents
        spans = sorted((ref.lsn_min, ref.lsn_max) for ref in manifest.segments)
        assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))
