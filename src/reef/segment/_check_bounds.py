"""The bounds that a segment's index gives for the columns of its row blocks, compared with the values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from reef.format import bounds_of, ordered_columns


class IndexedBounds:
    """The bounds that the row index of a segment gives."""

    def __init__(self, index: pa.RecordBatch) -> None:
        self._index = index
        self._values: dict[str, list[Any]] = {}
        """Columns of the index as Python values: nearly all bounds agree, and compare fast so."""
        self._columns: list[tuple[int, str]] | None = None

    def problem(self, number: int, rows: pa.RecordBatch) -> str:
        """Return the first column of block `number` whose bounds the index has wrong, or ""."""
        for at, name in self._ordered(rows.schema):
            bounds = bounds_of(rows.column(at))
            for what, value in zip(("min", "max", "nulls"), bounds, strict=True):
                if not self._agrees(f"{what}:{name}", number, value):
                    return f"a column {name!r} whose {what} is not what the index says"
        return ""

    def _ordered(self, schema: pa.Schema) -> list[tuple[int, str]]:
        """Return the positions and names of the columns that have bounds."""
        if self._columns is None:  # they are the same in every block
            names = [field.name for field in ordered_columns(schema)]
            self._columns = [(schema.get_field_index(name), name) for name in names]
        return self._columns

    def _agrees(self, name: str, number: int, value: object) -> bool:
        indexed = self._values.get(name)
        if indexed is None:
            indexed = self._values[name] = self._index[name].to_pylist()
        plain = value.as_py() if isinstance(value, pa.Scalar) else value
        if type(plain) is type(indexed[number]) and plain == indexed[number]:
            return True
        column = self._index[name]
        return bool(pa.array([value], column.type).equals(column.slice(number, 1)))
