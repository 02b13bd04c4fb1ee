"""Options of the data source: text from Spark → checked values, with errors that say what to write.

Spark gives option names in any case and values as text. A name that is not known is refused: a
misspelt `snapshot` would otherwise read another version without a word.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from reef.errors import InvalidInputError
from reef.jobs import Bucket
from reef.settings import load_settings, parse_bytes, parse_flag, parse_int, parse_seconds
from reef.store import parse_url
from reef.types import LSN_MAX, check_snapshot_id, namespace_of

PARTITION_BYTES_DEFAULT = 128 << 20
BATCH_BYTES_DEFAULT = 1 << 20
PARTITIONS_MAX = 100_000
SETTING = "reef."

NAMESPACE_OPTIONS = ("url", "namespace", "branch")
_READ = (
    *("lsn", "generation", "snapshot", "columns", "where", "hold", "pushdown"),
    *("partition_bytes", "min_partitions", "batch_bytes"),
)


@dataclass(frozen=True)
class NamespaceRef:
    """Which namespace of which bucket."""

    bucket: Bucket
    namespace: str

    @staticmethod
    def of(options: Mapping[str, str]) -> NamespaceRef:
        """Return what `url`, `namespace` and `branch` name; `reef.NAME` sets a setting of the engine.

        Raises InvalidInputError.
        """
        url = _needed(options, "url", "the bucket, such as s3://bucket/folder or file:///data")
        if parse_url(url).scheme == "memory":
            raise InvalidInputError(
                f"url = {url!r} cannot be opened by other processes, and Spark reads in "
                "its workers: use another bucket than memory://"
            )
        name = _needed(options, "namespace", "the namespace to read or write")
        settings = {
            key[len(SETTING) :]: value for key, value in options.items() if key.startswith(SETTING)
        }
        # All of them, so that workers go by what holds where the query was written.
        bucket = Bucket(Bucket.check_url(url), asdict(load_settings(settings)))
        return NamespaceRef(bucket, namespace_of(name, options.get("branch") or None))


@dataclass(frozen=True)
class ReadOptions:
    """How a namespace is read."""

    ref: NamespaceRef
    lsn: int | None
    generation: int | None
    snapshot: str | None
    columns: tuple[str, ...] | None
    """None: all, or what the user's schema names."""
    where: str | None
    """A filter of documents, as SQL text; None: all."""
    hold_s: float | None
    """None: as the size suggests; 0: do not hold."""
    pushes: bool | None
    """None: if Spark keeps the filters of one scan from another's."""
    partition_bytes: int
    min_partitions: int
    batch_bytes: int

    @staticmethod
    def of(options: Mapping[str, str]) -> ReadOptions:
        """Return the options of a read. Raises InvalidInputError, which names the option."""
        known = {name.lower(): value for name, value in options.items()}
        check_names(known, (*NAMESPACE_OPTIONS, *_READ))
        at = [name for name in ("lsn", "generation", "snapshot") if known.get(name)]
        if len(at) > 1:
            raise InvalidInputError(
                f"{' and '.join(at)} are given, and a read has one version: give one of them"
            )
        hold, pushdown = known.get("hold"), known.get("pushdown", "auto")
        hold_s = None if hold in (None, "auto") else 0.0 if hold == "none" else _hold(hold)
        if hold_s and at in (["generation"], ["snapshot"]):
            raise InvalidInputError(
                f"hold = {hold!r} is given with {at[0]}, which keeps its rows for as "
                "long as it lasts: leave hold out"
            )
        return ReadOptions(
            ref=NamespaceRef.of(known),
            lsn=_number_option(known, "lsn"),
            generation=_number_option(known, "generation"),
            snapshot=check_snapshot_id(known["snapshot"]) if known.get("snapshot") else None,
            columns=parse_columns(known["columns"]) if "columns" in known else None,
            hold_s=hold_s,
            where=known.get("where") or None,
            pushes=None if pushdown == "auto" else parse_flag("pushdown", pushdown),
            partition_bytes=parse_bytes(
                "partition_bytes", known.get("partition_bytes", PARTITION_BYTES_DEFAULT), 1, 1 << 40
            ),
            min_partitions=parse_int(
                "min_partitions",
                known.get("min_partitions", os.cpu_count() or 1),
                1,
                PARTITIONS_MAX,
            ),
            batch_bytes=parse_bytes(
                "batch_bytes", known.get("batch_bytes", BATCH_BYTES_DEFAULT), 1, 1 << 30
            ),
        )


def check_names(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Raise InvalidInputError if an option is neither one of `known` nor a setting."""
    for name in options:
        if name not in known and not name.startswith(SETTING):
            raise InvalidInputError(
                f"there is no option {name!r}: expected one of {', '.join(known)}, or "
                f"{SETTING}NAME for a setting"
            )


def parse_columns(text: str) -> tuple[str, ...]:
    """Return names of columns from `a,b` or, for names with commas in them, JSON: `["a","b"]`."""
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            names = None
    else:
        names = [name.strip() for name in text.split(",")]
    if (
        not isinstance(names, list)
        or not names
        or not all(isinstance(name, str) and name for name in names)
        or len(set(names)) < len(names)
    ):
        raise InvalidInputError.of(
            "columns", text, 'names, each once: a,b,c or, as JSON, ["a","b","c"]'
        )
    return tuple(names)


def _needed(options: Mapping[str, str], name: str, what: str) -> str:
    value = options.get(name)
    if not value:
        raise InvalidInputError.of(f"option {name}", value, what)
    return value


def _number_option(options: Mapping[str, str], name: str) -> int | None:
    return parse_int(name, options[name], 0, LSN_MAX) if options.get(name) else None


def _hold(value: str) -> float:
    return parse_seconds("hold", value)
