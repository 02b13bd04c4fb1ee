"""How far vectors are from one another, by metric; smaller is always nearer.

cosine   1 - cos of the angle, from 0 to 2; 1 if either vector is zero, which has no direction
l2       the euclidean distance (not its square)
dot      the negative inner product

Distances are float32 and depend on the two vectors alone, not on where in a segment or a batch one
lies: equal vectors are equally far, so that ties are ties. Where float32 does not reach on the way,
float64 does; a distance beyond float32 itself is infinite.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.documents.types import Attribute
from reef.errors import InvalidInputError

Floats: TypeAlias = npt.NDArray[np.float32]
_Doubles: TypeAlias = npt.NDArray[np.float64]

METRICS: Final = ("cosine", "l2", "dot")

_SQUARE_MIN, _SQUARE_MAX = 1e-30, 1e30
# What is worked on at once, so that what is made in between stays in the processor's cache.
_AT_ONCE_BYTES = 512 << 10


class Distance:
    """Distances of the vectors of an attribute from one vector."""

    def __init__(self, metric: str, vector: object, column: Attribute) -> None:
        """Check the vector that is searched for. Raises InvalidInputError."""
        if metric not in METRICS:
            raise InvalidInputError.of("metric", metric, f"one of {', '.join(METRICS)}")
        exact = _checked_vector(vector, column)
        self.metric = metric
        self.column = column.column
        """The column of vectors."""
        length = np.sqrt(np.vecdot(exact, exact))
        self._exact: _Doubles = exact / length if metric == "cosine" and length else exact
        self._vector: Floats = self._exact.astype(np.float32)
        self._rows = max(1, _AT_ONCE_BYTES // (4 * len(exact)))

    def of(self, vectors: npt.NDArray[np.floating]) -> Floats:
        """Return the distance of each row of a matrix of float16 or float32."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            distances, is_odd = self._fast(vectors)
            if is_odd.any():
                odd = np.flatnonzero(is_odd)
                for first in range(0, len(odd), self._rows):
                    some = odd[first : first + self._rows]
                    distances[some] = self._careful(vectors[some].astype(np.float64))
        distances += 0  # there is but one zero
        return distances

    def _fast(self, vectors: npt.NDArray[np.floating]) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return distances, and which of them float32 may have got wrong."""
        products, squares = self._sums(vectors)
        if self.metric == "dot":
            return -products, ~np.isfinite(products)
        # Squares in between are far from what float32 loses or cannot hold.
        is_odd = ~((squares > _SQUARE_MIN) & (squares < _SQUARE_MAX))
        lengths = np.sqrt(squares)
        if self.metric == "l2":
            return lengths, is_odd
        return np.maximum(1 - products / lengths, 0), is_odd

    def _sums(self, vectors: npt.NDArray[np.floating]) -> tuple[Floats, Floats]:
        """Return inner products, and the squares of lengths or distances, as the metric needs them."""
        products: Floats = np.empty(len(vectors), np.float32)
        squares: Floats = np.empty(len(vectors), np.float32)
        # vecdot takes the rows one by one, so that what is next to one does not matter to its sum.
        for first in range(0, len(vectors), self._rows):
            some = vectors[first : first + self._rows].astype(np.float32, copy=False)
            at = slice(first, first + len(some))
            if self.metric == "l2":
                some = some - self._vector
            else:
                np.vecdot(some, self._vector, out=products[at])
            if self.metric != "dot":
                np.vecdot(some, some, out=squares[at])
        return products, squares

    def _careful(self, vectors: _Doubles) -> Floats:
        distances: _Doubles
        if self.metric == "l2":
            apart = vectors - self._exact
            distances = np.sqrt(np.vecdot(apart, apart))
        else:
            products = np.vecdot(vectors, self._exact)
            distances = -products
            if self.metric == "cosine":
                lengths = np.sqrt(np.vecdot(vectors, vectors))
                cosines = np.divide(
                    products, lengths, out=np.zeros_like(products), where=lengths > 0
                )
                distances = np.maximum(1 - cosines, 0)
        return distances.astype(np.float32)


def matrix_of(vectors: pa.FixedSizeListArray) -> npt.NDArray[np.floating]:
    """Return the values of a column of vectors, a row for each, without a copy.

    The rows of nulls hold anything.
    """
    dimension = vectors.type.list_size
    values = vectors.values
    first = values.offset + vectors.offset * dimension
    numbers = np.frombuffer(values.buffers()[1], values.type.to_pandas_dtype())
    return numbers[first : first + len(vectors) * dimension].reshape(len(vectors), dimension)


def _checked_vector(vector: object, column: Attribute) -> _Doubles:
    expected = f"{column.type.dimension} finite numbers, as in attribute {column.name!r}"
    if isinstance(vector, str | bytes):
        raise InvalidInputError.of("vector", vector[:64], expected)
    try:
        numbers = np.asarray(vector)
        if numbers.dtype.kind not in "iuf":
            raise InvalidInputError(
                f"vector has values of type {numbers.dtype}: expected {expected}"
            )
    except ValueError as error:  # a ragged list
        raise InvalidInputError(
            f"vector is made of lists of different lengths: expected {expected}"
        ) from error
    if numbers.shape != (column.type.dimension,):
        shape = " x ".join(map(str, numbers.shape)) or "one"
        raise InvalidInputError(f"vector has {shape} numbers: expected {expected}")
    with np.errstate(over="ignore"):
        kept = numbers.astype(np.float32).astype(np.float64)
    if not np.isfinite(kept).all():
        at = int(np.flatnonzero(~np.isfinite(kept))[0])
        raise InvalidInputError(f"vector has {numbers[at]} at position {at}: expected {expected}")
    return kept
