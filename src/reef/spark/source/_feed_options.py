"""Options of a stream of changes.

    spark.readStream.format("reef").options(url=..., namespace=..., starting="earliest").load()

`starting` is what makes it a stream of changes: Spark does not tell a source whether its columns
are asked for by `read` or by `readStream`, so it has to be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reef.errors import InvalidInputError
from reef.settings import parse_bytes, parse_flag, parse_int, parse_seconds
from reef.spark.source._read_options import (
    NAMESPACE_OPTIONS,
    PARTITION_BYTES_DEFAULT,
    SETTING,
    NamespaceRef,
    ReadOptions,
    check_names,
    parse_columns,
)
from reef.types import LSN_MAX, check_snapshot_id

STARTING = "starting"
BYTES_DEFAULT = 256 << 20
TTL_DEFAULT = "1d"

_NAMES = (
    *(*NAMESPACE_OPTIONS, STARTING, "before", "columns", "snapshot", "snapshot_ttl"),
    *("max_bytes_per_batch", "max_slots_per_batch", "partition_bytes"),
)


def is_feed(options: Mapping[str, str]) -> bool:
    """Return whether the options are those of a stream of changes."""
    return any(name.lower() == STARTING for name in options)


@dataclass(frozen=True)
class FeedOptions:
    """How the changes of a namespace are read."""

    texts: tuple[tuple[str, str], ...]
    """Which namespace, and settings: as they were given."""
    ref: NamespaceRef
    starting: str | int
    """latest, earliest, snapshot, or the LSN after which to begin."""
    snapshot: str | None
    """A snapshot to begin with, taken beforehand; None: one is taken, and released when done."""
    snapshot_ttl_s: float
    before: bool
    columns: tuple[str, ...] | None
    bytes_max: int | None
    slots_max: int | None
    """At most one of these two is set."""
    partition_bytes: int

    @staticmethod
    def of(options: Mapping[str, str]) -> FeedOptions:
        """Return the options of a stream. Raises InvalidInputError, which names the option."""
        known = {name.lower(): value for name, value in options.items()}
        check_names(known, _NAMES)
        starting = _starting(known.get(STARTING))
        snapshot = known.get("snapshot")
        if snapshot and starting != "snapshot":
            raise InvalidInputError(
                f"snapshot = {snapshot!r} is given without starting=snapshot: give "
                "that, or leave it out"
            )
        slots, size = known.get("max_slots_per_batch"), known.get("max_bytes_per_batch")
        if slots and size:
            raise InvalidInputError(
                "both max_slots_per_batch and max_bytes_per_batch are given: give at most one"
            )
        return FeedOptions(
            texts=tuple(
                (name, value)
                for name, value in known.items()
                if name in NAMESPACE_OPTIONS or name.startswith(SETTING)
            ),
            ref=NamespaceRef.of(known),
            starting=starting,
            snapshot=check_snapshot_id(snapshot) if snapshot else None,
            snapshot_ttl_s=parse_seconds(
                "snapshot_ttl", known.get("snapshot_ttl", TTL_DEFAULT), low=1.0
            ),
            before=parse_flag("before", known.get("before", "off")),
            columns=parse_columns(known["columns"]) if "columns" in known else None,
            bytes_max=None
            if slots
            else parse_bytes("max_bytes_per_batch", size or BYTES_DEFAULT, 1, 1 << 50),
            slots_max=parse_int("max_slots_per_batch", slots, 1, LSN_MAX) if slots else None,
            partition_bytes=parse_bytes(
                "partition_bytes", known.get("partition_bytes", PARTITION_BYTES_DEFAULT), 1, 1 << 40
            ),
        )

    def read(self, snapshot: str | None = None) -> ReadOptions:
        """Return how a batch read of the same namespace would be asked for."""
        texts = dict(self.texts)
        if snapshot is not None:
            texts["snapshot"] = snapshot
        size = f"{self.partition_bytes}B"
        return ReadOptions.of({**texts, "hold": "none", "partition_bytes": size})


def _starting(value: str | None) -> str | int:
    if value in ("latest", "earliest", "snapshot"):
        return value
    try:
        return parse_int(STARTING, value, 0, LSN_MAX)
    except InvalidInputError:
        raise InvalidInputError.of(
            STARTING, value, "latest, earliest, snapshot, or the LSN to begin after"
        ) from None
