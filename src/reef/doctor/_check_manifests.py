"""Checking the manifest chain: every retained generation, and the links between them.

A generation below the boundary of collection does not count unless a snapshot or a pin holds it: it
is a leftover of a collection, or a writer published it that had slept through one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from reef.doctor._problems import ProblemOrNote, Progress, cut_to_fetch, describe, ranges_text
from reef.doctor._quarantine import Quarantine
from reef.errors import (
    DamagedError,
    FormatVersionError,
    InvariantError,
    UnavailableError,
    UnreadableError,
)
from reef.format import (
    Manifest,
    damaged_checksum,
    decode_manifest,
    manifest_checksum,
    manifest_key,
    parse_manifest_key,
)
from reef.log import absent
from reef.manifest import Head, check_successor, retained_of
from reef.store import Store

LISTINGS_MAX = 10


@dataclass(frozen=True)
class ReadGeneration:
    """A generation that is in the bucket."""

    number: int
    size: int
    published_at_us: int
    checksum: int
    """The one it states if it can be read, else the checksum of its damaged bytes."""
    manifest: Manifest | None = None
    error: UnreadableError | None = None


def read_generations(store: Store, namespace: str, progress: Progress) -> list[ReadGeneration]:
    """Return every generation in the bucket, in order; damage is read again before it counts.

    Raises UnavailableError.
    """
    for _ in range(LISTINGS_MAX):
        listed = [
            (named.generation, meta)
            for meta in store.list(f"namespaces/{namespace}/manifest/")
            if (named := parse_manifest_key(meta.key)) is not None
        ]
        generations: list[ReadGeneration] = []
        for some in cut_to_fetch(listed, lambda one: one[1].size):
            for (number, meta), data in zip(
                some, store.get_many([meta.key for _, meta in some]), strict=True
            ):
                if data is not None:  # else it was collected after it was listed
                    read = _decode_generation(store, meta.key, data)
                    generations.append(
                        ReadGeneration(number, meta.size, meta.last_modified_us, *read)
                    )
            progress("manifests", len(generations), len(listed))
        if not listed or (generations and generations[-1].number == listed[-1][0]):
            return generations
        # Even the newest was collected since: there are newer ones.
    raise UnavailableError(
        f"the newest manifest of namespace {namespace!r} was listed but not there, {LISTINGS_MAX} "
        "times in a row: retry"
    )


def _decode_generation(
    store: Store, key: str, data: bytes
) -> tuple[int, Manifest | None, UnreadableError | None]:
    try:
        return manifest_checksum(data, key=key), decode_manifest(data, key=key), None
    except FormatVersionError as error:
        return damaged_checksum(data), None, error
    except DamagedError:
        (again,) = store.get_many([key])
        data = data if again is None else again
    try:
        return manifest_checksum(data, key=key), decode_manifest(data, key=key), None
    except UnreadableError as error:
        return damaged_checksum(data), None, error


def newest_readable(generations: Sequence[ReadGeneration]) -> Head | None:
    """Return the newest generation that can be read; the Head names the damaged ones above it.

    None: no generation can be read. Raises FormatVersionError: falling back behind a generation of
    another format version is not allowed.
    """
    damaged: list[int] = []
    for read in reversed(generations):
        if read.manifest is not None:
            return Head(read.manifest, read.checksum, read.published_at_us, tuple(damaged))
        if isinstance(read.error, FormatVersionError):
            raise read.error
        damaged.insert(0, read.number)
    return None


def retained_manifests(head: Head, generations: Sequence[ReadGeneration]) -> list[Manifest]:
    """Return the generations that count and can be read, in order, the head last."""
    retained = set(retained_of(head.manifest, (read.number for read in generations)))
    return [
        read.manifest
        for read in generations
        if read.manifest is not None and read.number in retained
    ]


def check_generations(
    namespace: str, head: Head, generations: Sequence[ReadGeneration], quarantine: Quarantine
) -> Iterator[ProblemOrNote]:
    """Yield what is wrong with the chain."""
    superseded = _superseded_by_repair(generations)
    there = [read.number for read in generations]
    retained = set(retained_of(head.manifest, there))
    for read in generations:
        if read.error is not None:
            yield _unreadable_generation(namespace, head, read, superseded, retained, quarantine)
    missing = absent(there, head.manifest.gc.boundary.generation, head.generation)
    if missing:
        yield ProblemOrNote(
            "manifest-missing",
            manifest_key(namespace, missing[0].start),
            f"generation {ranges_text(missing)} is not there, and was not collected; reads at it "
            "fail, and a writer that was paused could publish under its number again",
        )
    leftovers = [n for n in there if n not in retained]
    if leftovers:
        yield ProblemOrNote(
            "leftover",
            manifest_key(namespace, leftovers[0]),
            f"generation {ranges_text(leftovers)} lies below the boundary: `reef gc` removes it",
            is_problem=False,
        )
    yield from _links(namespace, [read for read in generations if read.number in retained])


def _superseded_by_repair(generations: Sequence[ReadGeneration]) -> set[int]:
    """Return the generations that a repair has published a new head above."""
    superseded: set[int] = set()
    below: int | None = None
    for read in reversed(generations):
        if below is not None and read.number > below:
            superseded.add(read.number)
        before = None if read.manifest is None else read.manifest.repaired_from
        if before is not None:
            below = before if below is None else min(below, before)
    return superseded


def _unreadable_generation(
    namespace: str,
    head: Head,
    read: ReadGeneration,
    superseded: Collection[int],
    retained: Collection[int],
    quarantine: Quarantine,
) -> ProblemOrNote:
    key = manifest_key(namespace, read.number)
    assert read.error is not None
    what = describe(read.error)
    if isinstance(read.error, FormatVersionError):
        return ProblemOrNote("format-version", key, f"{what}; {read.error.advice}")
    if read.number > head.generation:
        text = f"{what}; it is the head: reads fall back to generation {head.generation}, and nothing can be written before `reef repair`"
        return ProblemOrNote("manifest-damaged", key, text)
    if read.number in superseded or quarantine.holds(key, read.checksum):
        text = f"{what}; repair has dealt with it: nothing needs it"
        return ProblemOrNote("manifest-damaged", key, text, is_problem=False)
    if read.number not in retained:
        text = f"{what}; it lies below the boundary, so nothing needs it: `reef gc` removes it"
        return ProblemOrNote("manifest-damaged", key, text, is_problem=False)
    text = f"{what}; newer generations can be read, so only reads at this one fail"
    return ProblemOrNote("manifest-damaged", key, text)


def _links(namespace: str, retained: Sequence[ReadGeneration]) -> Iterator[ProblemOrNote]:
    by_number = {read.number: read for read in retained}
    for read in retained:
        m = read.manifest
        before = None if m is None else by_number.get(m.repaired_from or read.number - 1)
        if m is None or before is None or before.manifest is None:
            continue
        key = manifest_key(namespace, read.number)
        if m.predecessor_checksum != before.checksum:
            text = (
                f"it follows a generation {before.number} of checksum {m.predecessor_checksum}; "
                f"the one in the bucket has {before.checksum}"
            )
            yield ProblemOrNote("manifest-unlinked", key, text)
            continue
        try:
            check_successor(before.manifest, m, repairing=m.repaired_from is not None)
        except InvariantError as error:
            yield ProblemOrNote("manifest-rule", key, str(error))
