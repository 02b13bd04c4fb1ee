"""Reads of keys and values at one version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from reef.engine import HeldSnapshot, SnapshotView, View
from reef.kv._key_value_rows import VALUE, check_key, key_values, pairs
from reef.segment import RowVersion

_VALUES = pa.schema([pa.field(VALUE, pa.binary())])


def value_of(found: RowVersion) -> bytes:
    """Return the value of a row."""
    value: bytes = found.batch.column(VALUE)[found.row].as_py()
    return value


class KeyValueView:
    """The keys and values at one version; nothing changes in it any more."""

    def __init__(self, view: View) -> None:
        self._view = view

    @property
    def lsn(self) -> int:
        """The version."""
        return self._view.lsn

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None if it has none."""
        found = self._view.one(check_key(key))
        return None if found is None else value_of(found)

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None; the blocks that are needed are fetched at once."""
        listed = [check_key(key) for key in keys]
        found = self._view.many(listed)
        if (few := found.few) is not None:
            return [None if row is None else value_of(row) for row in few]
        values: list[bytes | None] = found.rows(_VALUES).column(0).to_pylist()
        return values

    def scan(
        self,
        *,
        start: bytes | None = None,
        end: bytes | None = None,
        prefix: bytes | None = None,
        reverse: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches (key, value) in order of keys from `start` up to `end` (exclusive)."""
        return key_values(self._scan(start, end, prefix, reverse))

    def items(
        self,
        *,
        start: bytes | None = None,
        end: bytes | None = None,
        prefix: bytes | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield each key with its value, in order of keys."""
        return pairs(self._scan(start, end, prefix, reverse))

    def _scan(
        self, start: bytes | None, end: bytes | None, prefix: bytes | None, reverse: bool
    ) -> Iterator[pa.RecordBatch]:
        return self._view.scan(
            start=start, end=end, prefix=prefix, reverse=reverse, columns=[VALUE]
        )


class KeyValueSnapshot(HeldSnapshot, KeyValueView):
    """A view that stays readable until it expires or is released, in this process or another."""

    def __init__(self, view: SnapshotView) -> None:
        HeldSnapshot.__init__(self, view)
        KeyValueView.__init__(self, view)
