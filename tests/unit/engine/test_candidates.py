"""Rows found source by source: whatever is skipped, nothing old comes to light."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from reef.engine import Latest, matching
from reef.engine._read import _candidates
from reef.engine._read._view import ReadState
from reef.format import Manifest
from tests.support.engine.segments import Bench, write

Flags = npt.NDArray[np.bool_]
MANIFEST = Manifest.first("n", author="t", nonce="00" * 16, created_at_us=1)


def state_of(bench: Bench, *histories: list[tuple[bytes, int, bool]]) -> ReadState:
    """Return segments with these versions, newest first."""
    refs = [write(bench.store, rows, number=i) for i, rows in enumerate(histories)]
    reader = bench.reader()
    return ReadState(MANIFEST, tuple(reader.open(ref) for ref in refs), reader)


def found(state: ReadState, lsn: int, kept: slice) -> list[tuple[bytes, int]]:
    """Return the rows that are visible in blocks of which only some are looked at."""

    def prune(index: pa.RecordBatch, _: Collection[str]) -> Flags:
        worth = np.zeros(index.num_rows, np.bool_)
        worth[kept] = True
        return worth

    def match(rows: pa.RecordBatch) -> Flags:
        return np.ones(rows.num_rows, np.bool_)

    batches = matching(state, lsn, match, start=b"", end=None, columns=[], prune=prune)
    return [
        (key, version)
        for rows in batches
        for key, version in zip(rows[0].to_pylist(), rows[1].to_pylist(), strict=True)
    ]


@pytest.mark.parametrize("first", [1, -1])
def test_a_version_whose_newer_one_is_in_a_block_that_was_skipped_is_not_shown(first: int) -> None:
    versions = [(b"k", lsn, False) for lsn in range(2000, 0, -1)]
    state = state_of(Bench(), versions)
    assert found(state, 2000, slice(first, None)) == []
    assert found(state, 2000, slice(None)) == [(b"k", 2000)]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_version_that_another_segment_has_replaced_is_not_shown(is_deleted: bool) -> None:
    keys = [b"%04d" % i for i in range(1000)]
    old = [(key, 1, False) for key in keys]
    new = [(key, 2, is_deleted) for key in keys[::2]]
    state = state_of(Bench(), new, old)
    replaced = {} if is_deleted else dict.fromkeys(keys[::2], 2)
    visible = dict.fromkeys(keys[1::2], 1) | replaced
    assert dict(found(state, 2, slice(None))) == visible
    assert dict(found(state, 1, slice(None))) == dict.fromkeys(keys, 1)
    # Whatever is skipped: what is left is what is visible.
    for kept in (slice(0, 1), slice(1, 2), slice(-1, None)):
        assert set(found(state, 2, kept)) <= set(visible.items())


@pytest.mark.parametrize("checked_rows", [1, 7, 1024])
def test_rows_of_many_segments_are_asked_about_together(
    monkeypatch: pytest.MonkeyPatch, checked_rows: int
) -> None:
    monkeypatch.setattr(_candidates, "_CHECKED_ROWS_MAX", checked_rows)
    asked: list[int] = []
    many = ReadState.many

    def counted(self: ReadState, keys: pa.BinaryArray, lsn: int, *, wide: bool) -> Latest:
        asked.append(len(keys))
        return many(self, keys, lsn, wide=wide)

    monkeypatch.setattr(ReadState, "many", counted)
    histories = [
        [(b"%03d" % (7 * i % 30 + j), i, False) for j in range(5)] for i in range(30, 0, -1)
    ]
    visible = {key: lsn for rows in reversed(histories) for key, lsn, _ in rows}
    shown = found(state_of(Bench(), *histories), 30, slice(None))
    assert dict(shown) == visible
    assert len(shown) == len(visible)
    assert len(asked) <= 150 // checked_rows + 1
    assert sum(asked) <= 150
