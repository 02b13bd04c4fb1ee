"""The bounds that a segment's index gives of the columns of row blocks, held against the values.

Blocks are held against them many at a time: `agree` has no more than a few calls for each column,
however many blocks there are. It says True only where nothing is wrong. Where it does not, `problem`
looks at a single block, by the function that the bounds were written with, and that is what counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.format import BOUND_BYTES_MAX, bounds_of, ordered_columns

_HEAD_BYTES = 8
_FEW = 4
"""So many values of a block that begin alike are compared one by one; with more, Arrow is faster."""
_SHORT_BYTES = 32
"""Columns of shorter values are put together for many blocks: a copy takes less than a call."""

Heads = npt.NDArray[np.uint64]
Lengths = npt.NDArray[np.int32]


class Bounds:
    """The bounds that the index gives of the columns of row blocks."""

    def __init__(self, index: pa.RecordBatch) -> None:
        self._index = index
        self._told: dict[str, list[object]] = {}
        """As Python has them: to compare what agrees, which is nearly everything, at once."""
        self._arrays: dict[str, npt.NDArray[Any] | None] = {}
        self._columns: list[tuple[int, str]] | None = None

    def agree(self, first: int, blocks: Sequence[pa.RecordBatch]) -> bool:
        """Return True only if the index is right about all of `blocks`, numbered from `first` on."""
        starts = _starts(blocks)
        return all(
            self._column_agrees(name, first, [rows.column(at) for rows in blocks], starts)
            for at, name in self._ordered(blocks[0].schema)
        )

    def problem(self, number: int, rows: pa.RecordBatch) -> str:
        """Return the first column whose bounds in the index are not those of a block's values, or ""."""
        for at, name in self._ordered(rows.schema):
            what = self._problem(name, number, rows.column(at))
            if what:
                return f"a column {name!r} whose {what} is not what the index says"
        return ""

    def _ordered(self, schema: pa.Schema) -> list[tuple[int, str]]:
        """Return where the columns are that have bounds, and their names."""
        if self._columns is None:  # they are the same in every block
            names = [field.name for field in ordered_columns(schema)]
            self._columns = [(schema.get_field_index(name), name) for name in names]
        return self._columns

    def _column_agrees(
        self, name: str, first: int, columns: list[pa.Array], starts: npt.NDArray[np.intp]
    ) -> bool:
        some = slice(first, first + len(columns))
        if isinstance(columns[0], pa.ExtensionArray):
            columns = [column.storage for column in columns]
        nulls = [column.null_count for column in columns]
        if nulls != self._list(f"nulls:{name}")[some]:
            return False
        kind = columns[0].type
        if not any(nulls):
            if pa.types.is_string(kind) or pa.types.is_binary(kind):
                least, greatest = self._list(f"min:{name}")[some], self._list(f"max:{name}")[some]
                if _texts_agree(columns, starts, least, greatest):
                    return True
            elif self._numbers_agree(name, some, columns, starts):
                return True
        return not any(
            self._problem(name, number, column) for number, column in enumerate(columns, first)
        )

    def _numbers_agree(
        self, name: str, some: slice, columns: list[pa.Array], starts: npt.NDArray[np.intp]
    ) -> bool:
        least, greatest = self._array(f"min:{name}"), self._array(f"max:{name}")
        if least is None or greatest is None:
            return False
        values = _numbers(pa.concat_arrays(columns))
        # Of floats, those that pass over what is not a number.
        found = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
        return bool((found[0] == least[some]).all() and (found[1] == greatest[some]).all())

    def _problem(self, name: str, number: int, column: pa.Array) -> str:
        """Return which bound of a column the index has wrong for a block, or ""."""
        for what, value in zip(("min", "max", "nulls"), bounds_of(column), strict=True):
            if not self._agrees(f"{what}:{name}", number, value):
                return what
        return ""

    def _agrees(self, name: str, number: int, value: object) -> bool:
        told = self._list(name)
        plain = value.as_py() if isinstance(value, pa.Scalar) else value
        if type(plain) is type(told[number]) and plain == told[number]:
            return True
        column = self._index[name]
        return bool(pa.array([value], column.type).equals(column.slice(number, 1)))

    def _list(self, name: str) -> list[Any]:
        told = self._told.get(name)
        if told is None:
            told = self._told[name] = self._index[name].to_pylist()
        return told

    def _array(self, name: str) -> npt.NDArray[Any] | None:
        """Return the bounds of numbers; None: they are none, or some blocks have no bounds."""
        if name not in self._arrays:
            column = self._index[name]
            is_plain = not column.null_count and _number_type(column.type) is not None
            self._arrays[name] = _numbers(column) if is_plain else None
        return self._arrays[name]


def _starts(blocks: Sequence[pa.RecordBatch]) -> npt.NDArray[np.intp]:
    """Return where each block begins among the rows of all."""
    ends = np.cumsum([rows.num_rows for rows in blocks], dtype=np.intp)
    return np.append(0, ends[:-1])


# Numbers, and times, which are numbers.


def _number_type(kind: pa.DataType) -> np.dtype[Any] | None:
    if pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind):
        found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return found
    if pa.types.is_temporal(kind) and pa.types.is_primitive(kind) and kind.bit_width in (32, 64):
        return np.dtype(f"i{kind.bit_width // 8}")
    return None


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a column without nulls, as they lie in memory."""
    kind = _number_type(column.type)
    assert kind is not None
    data = column.buffers()[1]
    return np.frombuffer(data, kind, len(column), column.offset * kind.itemsize)


# Texts, and bytes.


@dataclass(frozen=True)
class _Texts:
    """The first bytes of every value, and how long it is."""

    heads: Heads
    """As numbers that sort like them; shorter ones have zeros behind."""
    lengths: Lengths
    shortest: int
    longest: int

    @classmethod
    def of(cls, columns: Sequence[pa.Array]) -> _Texts | None:
        """Return them for columns without nulls; None if one of them has hardly any bytes."""
        nbytes = sum(data.size for column in columns if (data := column.buffers()[2]))
        if nbytes <= _SHORT_BYTES * sum(map(len, columns)):
            columns = [pa.concat_arrays(columns)]
        words, ends = [], []
        for column in columns:
            _, offsets, data = column.buffers()
            if data is None or data.size < _HEAD_BYTES:
                return None
            ends.append(np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4))
            words.append(_words(data, ends[-1][:-1]))
        lengths = np.concatenate([some[1:] - some[:-1] for some in ends])
        heads, shortest, longest = np.concatenate(words), int(lengths.min()), int(lengths.max())
        if shortest < _HEAD_BYTES:
            heads = _own(heads, lengths if shortest < longest else lengths[:1])
        return cls(heads, lengths, shortest, longest)


def _own(heads: Heads, lengths: Lengths) -> Heads:
    """Return `heads` without what follows a value that is shorter."""
    gone = _bits(np.clip(_HEAD_BYTES - lengths, 0, _HEAD_BYTES - 1))
    return np.where(lengths == 0, np.uint64(0), heads >> gone << gone)


def _words(data: pa.Buffer, starts: Lengths) -> Heads:
    """Return the eight bytes from each of `starts` on; zeros stand for what is behind the end."""
    last = data.size - _HEAD_BYTES
    words: Heads = np.ndarray((last + 1,), np.dtype("<u8"), data, strides=(1,))
    if int(starts[-1]) <= last:
        return words[starts].byteswap()
    at = np.minimum(starts, last)
    # From the very end on there is nothing: such a value is empty.
    found: Heads = words[at].byteswap() << _bits(np.minimum(starts - at, _HEAD_BYTES - 1))
    return found


def _bits(count: Lengths) -> Heads:
    return count.astype(np.uint64) * np.uint64(8)


def _texts_agree(
    columns: list[pa.Array],
    starts: npt.NDArray[np.intp],
    least: list[bytes | None],
    greatest: list[bytes | None],
) -> bool:
    """Return True only if `least` and `greatest` are the bounds of columns without nulls."""
    texts = _Texts.of(columns)
    if texts is None or None in least or None in greatest:
        return False
    low = np.minimum.reduceat(texts.heads, starts)
    high = np.maximum.reduceat(texts.heads, starts)
    if texts.shortest == texts.longest <= _HEAD_BYTES:
        same = texts.lengths[: len(columns)]
        return _are(least, low, same) and _are(greatest, high, same)
    counts = np.diff(starts, append=len(texts.heads))
    is_low, is_high = (texts.heads == np.repeat(end, counts) for end in (low, high))
    if texts.longest <= _HEAD_BYTES:
        # Then they are told by their heads and lengths: of the same head, the shorter sorts first.
        shortest = np.minimum.reduceat(np.where(is_low, texts.lengths, _HEAD_BYTES + 1), starts)
        longest = np.maximum.reduceat(np.where(is_high, texts.lengths, -1), starts)
        return _are(least, low, shortest) and _are(greatest, high, longest)
    lows, highs = (_places(of, starts, len(columns)) for of in (is_low, is_high))
    if lows is None or highs is None:
        return False
    return all(
        min(_bytes_at(column, some))[:BOUND_BYTES_MAX] == told
        for column, some, told in zip(columns, lows, least, strict=True)
    ) and all(
        _is_raised(max(_bytes_at(column, some)), told)
        for column, some, told in zip(columns, highs, greatest, strict=True)
    )


def _are(told: list[bytes | None], heads: Heads, lengths: Lengths) -> bool:
    """Return whether `told` has the values of these heads and lengths, none longer than a head."""
    return all(
        one == head.to_bytes(_HEAD_BYTES, "big")[:length]
        for one, head, length in zip(told, heads.tolist(), lengths.tolist(), strict=True)
    )


def _places(
    of: npt.NDArray[np.bool_], starts: npt.NDArray[np.intp], blocks: int
) -> list[list[int]] | None:
    """Return the rows of each block that `of` is true of; None if there are many of a block."""
    rows = np.flatnonzero(of)
    if len(rows) > _FEW * blocks:
        return None
    found: list[list[int]] = [[] for _ in range(blocks)]
    numbers = np.searchsorted(starts, rows, side="right") - 1
    for number, row in zip(numbers.tolist(), (rows - starts[numbers]).tolist(), strict=True):
        found[number].append(row)
    return found


def _bytes_at(column: pa.Array, rows: list[int]) -> list[bytes]:
    return [column[row].as_buffer().to_pybytes() for row in rows]


def _is_raised(greatest: bytes, told: bytes | None) -> bool:
    """Return True only if `told` is the upper bound that is kept for `greatest`."""
    if told is None or len(greatest) <= BOUND_BYTES_MAX:
        return told == greatest
    # The last byte that is kept, raised by one; a greatest one would have raised that before it.
    last = BOUND_BYTES_MAX - 1
    return (
        greatest[last] < 0xFF
        and told[:last] == greatest[:last]
        and told[last:] == bytes([greatest[last] + 1])
    )
