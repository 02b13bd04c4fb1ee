"""Checking the manifest chain: every retained generation, and the links between them.

A generation below the boundary of collection does not count, unless a snapshot or a pin holds it: it
may be a leftover, or have been made by somebody who slept through a collection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reef.doctor._findings import Finding, Progress, portions, ranges_text, said
from reef.doctor._quarantine import Quarantine
from reef.errors import DamagedError, FormatVersionError, InvariantError, UnreadableError
from reef.format import (
    Manifest,
    damaged_checksum,
    decode_manifest,
    manifest_checksum,
    manifest_key,
    parse_manifest_key,
)
from reef.manifest import Head, check_successor, is_retained
from reef.store import Store


@dataclass(frozen=True)
class ReadGeneration:
    """A generation that is there, and what its bytes are."""

    number: int
    size: int
    published_at_us: int
    checksum: int
    """Its own if it can be read, else that of its damaged bytes."""
    manifest: Manifest | None = None
    error: UnreadableError | None = None


def read_generations(store: Store, namespace: str, progress: Progress) -> list[ReadGeneration]:
    """Return every generation that is there, in order; what looks damaged is read again."""
    listed = [
        (named.generation, meta)
        for meta in store.list(f"namespaces/{namespace}/manifest/")
        if (named := parse_manifest_key(meta.key)) is not None
    ]
    found: list[ReadGeneration] = []
    for some in portions(listed, lambda one: one[1].size):
        for (number, meta), data in zip(
            some, store.get_many([meta.key for _, meta in some]), strict=True
        ):
            if data is not None:  # else it was collected after it was listed
                read = _decode(store, meta.key, data)
                found.append(ReadGeneration(number, meta.size, meta.last_modified_us, *read))
        progress("manifests", len(found), len(listed))
    return found


def _decode(
    store: Store, key: str, data: bytes
) -> tuple[int, Manifest | None, UnreadableError | None]:
    for again in (True, False):
        try:
            return manifest_checksum(data, key=key), decode_manifest(data, key=key), None
        except DamagedError as error:
            if not again:
                return damaged_checksum(data), None, error
            (found,) = store.get_many([key])
            data = data if found is None else found
        except FormatVersionError as error:
            return damaged_checksum(data), None, error
    raise AssertionError


def newest_readable(found: Sequence[ReadGeneration]) -> Head | None:
    """Return the newest generation that can be read, with the damaged ones above it named.

    None: there is none. Raises FormatVersionError: nobody may fall back behind another version.
    """
    damaged: list[int] = []
    for read in reversed(found):
        if read.manifest is not None:
            return Head(read.manifest, read.checksum, read.published_at_us, tuple(damaged))
        if isinstance(read.error, FormatVersionError):
            raise read.error
        damaged.insert(0, read.number)
    return None


def retained_manifests(head: Head, found: Sequence[ReadGeneration]) -> list[Manifest]:
    """Return the generations that count and can be read, in order, the head last."""
    return [
        read.manifest
        for read in found
        if read.manifest is not None and is_retained(head.manifest, read.number)
    ]


def check_generations(
    namespace: str, head: Head, found: Sequence[ReadGeneration], quarantine: Quarantine
) -> Iterator[Finding]:
    """Yield what is wrong with the chain."""
    given_up = _given_up(found)
    for read in found:
        if read.error is not None:
            yield _unreadable(namespace, head, read, read.number in given_up, quarantine)
    first, there = head.manifest.gc.boundary.generation, {read.number for read in found}
    missing = [n for n in range(first, head.generation) if n not in there]
    if missing:
        yield Finding(
            "manifest-missing",
            manifest_key(namespace, missing[0]),
            f"generation {ranges_text(missing)} is not there, and was not collected; reads at it "
            "fail, and somebody who slept could take its number again",
        )
    leftovers = [n for n in sorted(there) if not is_retained(head.manifest, n)]
    if leftovers:
        yield Finding(
            "leftover",
            manifest_key(namespace, leftovers[0]),
            f"generation {ranges_text(leftovers)} lies below the boundary: `reef gc` removes it",
            is_problem=False,
        )
    yield from _links(namespace, head, found)


def _given_up(found: Sequence[ReadGeneration]) -> set[int]:
    """Return the generations that a repair has gone on behind."""
    return {
        number
        for read in found
        if read.manifest is not None and read.manifest.repaired_from is not None
        for number in range(read.manifest.repaired_from + 1, read.number)
    }


def _unreadable(
    namespace: str, head: Head, read: ReadGeneration, given_up: bool, quarantine: Quarantine
) -> Finding:
    key = manifest_key(namespace, read.number)
    assert read.error is not None
    what = said(read.error)
    if isinstance(read.error, FormatVersionError):
        return Finding("format-version", key, f"{what}; use a version of Reef that reads it")
    if read.number > head.generation:
        text = f"{what}; it is the head: reads fall back to generation {head.generation}, writing waits for repair"
        return Finding("manifest-damaged", key, text)
    if given_up or quarantine.holds(key, read.checksum):
        text = f"{what}; repair has dealt with it: nothing needs it, and its name stays taken"
        return Finding("manifest-damaged", key, text, is_problem=False)
    if not is_retained(head.manifest, read.number):
        text = f"{what}; it lies below the boundary and counts for nothing: `reef gc` removes it"
        return Finding("manifest-damaged", key, text, is_problem=False)
    text = f"{what}; newer ones can be read, so only reads at this generation are lost"
    return Finding("manifest-damaged", key, text)


def _links(namespace: str, head: Head, found: Sequence[ReadGeneration]) -> Iterator[Finding]:
    by_number = {read.number: read for read in found}
    for read in found:
        m = read.manifest
        if m is None or not is_retained(head.manifest, read.number):
            continue
        before = by_number.get(m.repaired_from or read.number - 1)
        if (
            before is None
            or before.manifest is None
            or not is_retained(head.manifest, before.number)
        ):
            continue
        key = manifest_key(namespace, read.number)
        if m.predecessor_checksum != before.checksum:
            text = (
                f"it goes on from a generation {before.number} of checksum "
                f"{m.predecessor_checksum}; the one there has {before.checksum}"
            )
            yield Finding("manifest-unlinked", key, text)
            continue
        try:
            check_successor(before.manifest, m, repairing=m.repaired_from is not None)
        except InvariantError as error:
            yield Finding("manifest-rule", key, str(error))
