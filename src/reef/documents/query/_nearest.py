"""The rows that are nearest so far, while a search goes on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.query._distance import Floats

__all__ = ["Kept", "NearestRows", "by_distance"]


class Kept(NamedTuple):
    """Rows that may be among the nearest."""

    keys: pa.BinaryArray
    lsns: npt.NDArray[np.int64]
    distances: Floats
    is_sure: npt.NDArray[np.bool_]
    """Whether nothing newer can hide the row."""

    def take(self, rows: npt.NDArray[np.int64]) -> Kept:
        """Return some of them, in the order of `rows`."""
        keys = self.keys.take(pa.array(rows))
        return Kept(keys, self.lsns[rows], self.distances[rows], self.is_sure[rows])


class NearestRows:
    """The nearest rows so far: all, or once it `is_cut`, those that are among the nearest `most`."""

    def __init__(self, most: int) -> None:
        self.bound = np.float32(np.inf)
        """What is further away is not among them."""
        self.is_cut = False
        self._most = most
        self._count = 0
        nothing = np.empty(0, np.int64)
        self._parts = [
            Kept(
                pa.array([], pa.binary()),
                nothing,
                np.empty(0, np.float32),
                nothing.astype(np.bool_),
            )
        ]

    def add(
        self,
        keys: pa.BinaryArray,
        lsns: npt.NDArray[np.int64],
        distances: Floats,
        is_sure: npt.NDArray[np.bool_],
    ) -> None:
        """Add rows, none of them further than `bound`."""
        self._parts.append(Kept(keys, lsns, distances, is_sure))
        self._count += len(distances)
        if self._count > 2 * self._most:
            self._cut()

    def sorted(self) -> Kept:
        """Return the rows by distance and then key."""
        if self._count > self._most:
            self._cut()
        rows = self._joined()
        return rows.take(by_distance(rows.keys, rows.distances))

    def _joined(self) -> Kept:
        keys, *rest = zip(*self._parts, strict=True)
        return Kept(pa.concat_arrays(keys), *map(np.concatenate, rest))

    def _cut(self) -> None:
        """Keep the nearest `most`; of those that are equally far, the least keys."""
        rows = self._joined()
        distances = rows.distances
        self.bound = np.partition(distances, self._most - 1)[self._most - 1]
        nearer = np.flatnonzero(distances < self.bound)
        ties = np.flatnonzero(distances == self.bound)
        room = self._most - len(nearer)
        if len(ties) > room:
            keys = rows.keys.take(pa.array(ties))
            ties = ties[pc.array_sort_indices(keys).to_numpy()[:room]]
        self._parts = [rows.take(np.concatenate([nearer, ties]))]
        self._count = self._most
        self.is_cut = True


def by_distance(keys: pa.Array, distances: Floats) -> npt.NDArray[np.int64]:
    """Return the rows by distance and then key."""
    table = pa.table({"distance": distances, "key": keys})
    order: npt.NDArray[np.int64] = pc.sort_indices(
        table, sort_keys=[("distance", "ascending"), ("key", "ascending")]
    ).to_numpy()
    return order
