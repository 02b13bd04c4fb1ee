"""Generations of a manifest as they lie on the store: listing them, and reading one or the newest.

Invariants:

- What fails its checks is read again before it counts as damaged.
- The newest generation that can be read is the head. Damaged ones above it are named, never hidden.
- A generation in another format version is not damaged: nobody may fall back behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from reef.errors import CorruptError, DamagedError, NotFoundError
from reef.format import (
    Manifest,
    decode_manifest,
    manifest_checksum,
    manifest_key,
    parse_manifest_key,
)
from reef.settings import WRITES_ASKED_MAX
from reef.store import Store
from reef.types import check_namespace, split_namespace


@dataclass(frozen=True)
class Head:
    """A generation that was read from the store, or written to it."""

    manifest: Manifest
    checksum: int
    """What its successor records of it."""
    published_at_us: int
    """Its Last-Modified: the store's clock."""
    damaged: tuple[int, ...] = ()
    """Generations above it that cannot be read, in order: readers fell back to this one."""

    @property
    def generation(self) -> int:
        """The number of this generation."""
        return self.manifest.generation

    @property
    def parallel_writes_max(self) -> int:
        """How many log objects a writer may have in flight, at most."""
        manifest = self.manifest
        if self.damaged or manifest.repaired_from is not None:
            # What the damaged ones allowed is lost, and repair's fences may not stand yet. All that
            # the format allows would be too many: what counts as in flight is voided by repair's
            # fences, and may have been acknowledged.
            return max(manifest.max_parallel_writes, WRITES_ASKED_MAX)
        return manifest.max_parallel_writes

    @property
    def last_taken(self) -> int:
        """The highest number that is known to be taken: its own, or that of a damaged one."""
        return max((self.generation, *self.damaged))


def no_namespace(url: str, namespace: str) -> NotFoundError:
    """Return the error for a namespace, or a branch, that a bucket does not have."""
    name, branch = split_namespace(namespace)
    if branch is None:
        return NotFoundError(f"there is no namespace {namespace!r} in {url}")
    return NotFoundError(f"namespace {name!r} in {url} has no branch {branch!r}")


def manifests_gone(namespace: str, found: str) -> CorruptError:
    """Return the error for a namespace that has objects and no manifest; `found` is one of them."""
    return CorruptError(
        f"namespaces/{namespace}/manifest/",
        0,
        f"the manifests of a namespace that has objects, such as {found}",
        "none: they were deleted, or a copy has not ended; restore one from a backup, run `reef copy` "
        "again, or run `reef rebuild`, which goes by what is left",
    )


class Generation(NamedTuple):
    """What a LIST says of a generation."""

    number: int
    published_at_us: int
    size: int


class ManifestReader:
    """Reads the generations of one namespace."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._namespace = check_namespace(namespace)

    def key(self, generation: int) -> str:
        """Return where a generation is stored."""
        return manifest_key(self._namespace, generation)

    def list(self, first: int = 1) -> list[Generation]:
        """Return the generations from `first` on that are there, in order: one LIST."""
        listed = self._store.list(
            f"namespaces/{self._namespace}/manifest/", self.key(first - 1) if first > 1 else ""
        )
        return [
            Generation(named.generation, entry.last_modified_us, entry.size)
            for entry in listed
            if (named := parse_manifest_key(entry.key)) is not None
        ]

    def left_behind(self) -> str | None:
        """Return an object that only a namespace with manifests can have; None: there is none.

        The rows that an unfinished branch has uploaded come before its first manifest; those end in
        the epoch 0. One LIST.
        """
        prefix = f"namespaces/{self._namespace}/"
        for entry in self._store.list(prefix):
            folder, _, name = entry.key[len(prefix) :].partition("/")
            if folder in ("wal", "dedup") or (
                folder == "segments" and name.endswith(".seg") and not name.endswith("-e0.seg")
            ):
                return entry.key
        return None

    def read(self, generation: int) -> tuple[Manifest, int]:
        """Return a generation and its checksum; what looks damaged is fetched once more.

        Raises NotFoundError, CorruptError, IncompleteError, FormatVersionError, UnavailableError.
        """
        try:
            return self._read(generation)
        except DamagedError:
            return self._read(generation)

    def newest(self, listed: Sequence[Generation], behind: Head | None = None) -> Head | None:
        """Return the newest of `listed` that can be read, with the damaged ones above it named.

        `behind` is what comes before them, read earlier. None: there is no generation. Raises
        CorruptError or IncompleteError if none can be read, NotFoundError if one has gone since it
        was listed, FormatVersionError, UnavailableError.
        """
        damaged: list[int] = []
        first: DamagedError | None = None
        for found in reversed(listed):
            try:
                manifest, checksum = self.read(found.number)
            except DamagedError as error:
                first = first or error
                damaged.insert(0, found.number)
            else:
                return Head(manifest, checksum, found.published_at_us, tuple(damaged))
        if behind is not None:
            return replace(behind, damaged=tuple(damaged))
        if first is not None:
            raise first
        return None

    def published_at_us(self, generation: int) -> int:
        """Return the Last-Modified of a generation. Raises NotFoundError, UnavailableError."""
        return self._store.head(self.key(generation)).last_modified_us

    def collected(self, generation: int) -> NotFoundError:
        """Return the error for a generation that is not there, or not any more."""
        return NotFoundError(
            f"generation {generation} of namespace {self._namespace!r} is not there: it has been "
            "collected, or was never published; ask for one that is still retained"
        )

    def _read(self, generation: int) -> tuple[Manifest, int]:
        key = self.key(generation)
        try:
            data = self._store.get(key)
        except NotFoundError as error:
            raise self.collected(generation) from error
        return decode_manifest(data, key=key), manifest_checksum(data, key=key)
