"""An open namespace, as users see it: the methods that every face offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, ClassVar, Self

import pyarrow as pa

from reef.context import Context
from reef.engine._branch._create_branch import Branch, create_branch
from reef.engine._branch._drop import drop_namespace, reset_branch
from reef.engine._branch._list import list_branches
from reef.engine._feed._change_feed import changes_of
from reef.engine._feed._position import KnownPositions
from reef.engine._open_namespace import Face, open_for_reading, open_for_writing
from reef.engine._read._snapshot_view import SnapshotView
from reef.engine._read._view import View
from reef.engine._reader import Reader
from reef.engine._return_to_version import Restored, restore_version
from reef.engine._writer import Writer
from reef.errors import InvalidInputError
from reef.format import Snapshot
from reef.settings import parse_seconds, parse_time
from reef.types import LSN_MAX, check_snapshot_id, namespace_of, split_namespace

DEFAULT_TTL: Any = object()
"""The setting `snapshot_ttl`."""

Time = datetime | str | int
"""A time with a zone, as ISO 8601 text or a datetime; or microseconds since 1970."""


class Namespace:
    """An open namespace. Threads may share it. Use as a context manager, or `close`."""

    READS: ClassVar[tuple[str, ...]] = ()
    """The methods of a face that read, for tracing."""

    def __init__(self, context: Context, name: str, face: Face, mode: str) -> None:
        """Open for writing (`mode="w"`, creating it if need be) or for reading (`mode="r"`)."""
        if mode not in ("w", "r"):
            raise InvalidInputError.of("mode", mode, "'w' for the one writer, or 'r' for a reader")
        self._context = context
        self._known_positions = KnownPositions()
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        if mode == "w":
            self._writer = open_for_writing(context, name, face)
        else:
            self._reader = open_for_reading(context, name, face)
        self._handle: Writer | Reader = self._writer or self._reader  # type: ignore[assignment]
        if (tracer := context.metrics.tracer) is not None:
            for read in self.READS:
                call = getattr(self, read)
                traced = tracer.traced("reef.read", call, namespace=name, operation=read)
                setattr(self, read, traced)

    @property
    def mode(self) -> str:
        """w for the one writer, r for a reader."""
        return "r" if self._writer is None else "w"

    @property
    def is_open(self) -> bool:
        """Whether it was not closed yet."""
        return self._handle.is_open

    @property
    def name(self) -> str:
        """The namespace."""
        return self._handle.namespace

    @property
    def lsn(self) -> int:
        """The newest version that this handle has seen."""
        return self._handle.lsn

    @property
    def born(self) -> int:
        """The generation with which this life of the namespace began."""
        return self._handle.manifest.born

    def flush(self) -> None:
        """Fold what is committed into a segment, so that opening need not replay it."""
        self._writing().flush()

    def refresh(self) -> int:
        """Read what was committed meanwhile; return the newest LSN.

        A writer has it already, and raises FencedError if it was superseded.
        """
        return self._handle.newest_lsn()

    def stats(self) -> dict[str, Any]:
        """Return figures of the namespace as this handle sees it."""
        return self._handle.stats(self.mode)

    def configure(self, /, **settings: object) -> dict[str, Any]:
        """Change settings that the namespace keeps, `gc_grace` and `pitr_window`; return them all.

        Without arguments, only return them. Raises InvalidInputError for any other setting, and what
        a write of the manifest raises. Readers can do it, too.
        """
        return self._handle.configure(settings)

    def tell_metrics(self) -> None:
        """Update the gauges of this namespace."""
        self._handle.tell()

    def branch(
        self,
        name: str,
        *,
        lsn: int | None = None,
        time: Time | None = None,
        ttl: float | str | None = None,
    ) -> Branch:
        """Make a branch of what is visible at `lsn`, at a time, or now; both share data until written to.

        Open it by the namespace's name and `branch=`. Branch names are unique under one root. With
        a `ttl` (seconds, or text such as "7d"), collection drops it after that time. Raises
        AlreadyExistsError, RetentionError below the floor, UnavailableError if `lsn` lies ahead,
        OutcomeUnknownError.
        """
        child, ttl_s = self._branch_namespace(name), parse_ttl(ttl)
        self._handle.check_open()
        lsn = self._version(lsn, time)
        if lsn is None:
            lsn = self._handle.newest_lsn()
        else:
            self._handle.catch_up(lsn)
        return create_branch(self._context, self.name, child, lsn, born=self.born, ttl_s=ttl_s)

    def branches(self) -> list[Branch]:
        """Return the live branches of this namespace's root, in order of their names."""
        return list(list_branches(self._context, split_namespace(self.name)[0]))

    def drop_branch(self, name: str) -> None:
        """Drop a branch of this namespace's root; collection deletes what only it had.

        A handle that has it open raises FencedError or DroppedError. Raises NotFoundError,
        InvalidInputError that names its branches if it has any, OutcomeUnknownError.
        """
        self._handle.check_open()
        drop_namespace(self._context, self._branch_namespace(name))

    def reset_branch(self, name: str) -> Branch:
        """Drop a branch of this namespace's root, and make it anew from what its parent holds now.

        What was written to it is gone. It expires as before. Raises like `drop_branch` and `branch`; NotWrittenError if it was dropped, but not made anew.
        """
        self._handle.check_open()
        return reset_branch(self._context, self._branch_namespace(name))

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots of this namespace. One that has expired is there until it is collected."""
        self._handle.check_open()
        self._handle.reload()
        return list(self._handle.manifest.snapshots)

    def close(self) -> None:
        """Wait for writes in flight, then release the handle. Acknowledged writes are in the bucket."""
        self._handle.close()
        self._context.metrics.forget(namespace=self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.mode})"

    def _branch_namespace(self, name: str) -> str:
        if not isinstance(name, str):
            raise InvalidInputError.of("branch", name, "the name of a branch")
        return namespace_of(split_namespace(self.name)[0], name)

    # For the faces.

    def _changes(
        self,
        columns: Sequence[pa.Field],
        after: int | None,
        upto: int | None,
        before_image: bool,
    ) -> Iterator[pa.RecordBatch]:
        self._handle.check_open()
        if after is not None:
            check_number("after", after)
        if upto is not None:
            check_number("upto", upto)
        return changes_of(
            self._handle,
            self._context,
            self._known_positions,
            columns,
            after=after,
            upto=upto,
            before=before_image,
        )

    def _view_at(
        self,
        lsn: int | None = None,
        generation: int | None = None,
        snapshot: str | None = None,
        time: Time | None = None,
    ) -> View:
        given = [name for name in (lsn, generation, snapshot, time) if name is not None]
        if len(given) != 1:
            raise InvalidInputError(
                f"at() takes one version, {len(given)} were given: give one of lsn, "
                "generation, snapshot and time"
            )
        if time is not None:
            return self._handle.at_time(parse_time("time", time))
        if lsn is not None:
            return self._handle.at_lsn(check_number("lsn", lsn))
        if generation is not None:
            return self._handle.at_generation(check_number("generation", generation))
        return self._handle.at_snapshot(str(snapshot))

    def _restore(self, schema: pa.Schema, lsn: int | None, time: Time | None) -> Restored:
        writer = self._writing()
        version = self._version(lsn, time)
        if version is None:
            raise InvalidInputError("restore() takes a version: give lsn or time")
        return restore_version(self._context, writer, version, schema)

    def _version(self, lsn: int | None, time: Time | None) -> int | None:
        """Return the version that is given as an LSN or as a time; None: neither is."""
        if lsn is not None and time is not None:
            raise InvalidInputError("lsn and time are both given: give at most one")
        if time is not None:
            return self._handle.version_by_time(parse_time("time", time)).lsn
        return None if lsn is None else check_number("lsn", lsn)

    def _take_snapshot(
        self,
        ttl: float | str | None,
        id: str | None,
        lsn: int | None,
        time: Time | None,
        *,
        keep_log: bool = False,
    ) -> SnapshotView:
        if id is not None:
            check_snapshot_id(id)
        wanted = self._context.settings.snapshot_ttl if ttl is DEFAULT_TTL else parse_ttl(ttl)
        version = self._version(lsn, time)
        return self._handle.snapshot(wanted, id=id, lsn=version, keeps_log=keep_log)

    def _fresh(self, min_lsn: int | None) -> None:
        if self._reader is not None:
            self._reader.keep_fresh()
        if min_lsn is not None:
            self._handle.catch_up(check_number("min_lsn", min_lsn))

    def _writing(self) -> Writer:
        if self._writer is None:
            raise InvalidInputError(
                'this handle is read-only; open the namespace with mode="w" to write'
            )
        return self._writer


class HeldSnapshot:
    """The methods of a snapshot of any face, besides its reads."""

    def __init__(self, view: SnapshotView) -> None:
        self._snapshot = view

    @property
    def id(self) -> str:
        """Its name: `at(snapshot=id)` opens it elsewhere."""
        return self._snapshot.snapshot.id

    @property
    def expires_at_us(self) -> int:
        """When it expires, by the store's clock, in microseconds since 1970; 0 is never."""
        return self._snapshot.snapshot.expires_at_us

    def renew(self, ttl: float | str | None) -> None:
        """Let it expire `ttl` from now (seconds, or text such as "1h"); None: never."""
        self._snapshot.renew(parse_ttl(ttl))

    def release(self) -> None:
        """Release it."""
        self._snapshot.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def parse_ttl(ttl: float | str | None) -> float | None:
    """Return seconds, or None for never. Raises InvalidInputError."""
    return None if ttl is None else parse_seconds("ttl", ttl, low=0.001)


def check_number(name: str, value: object) -> int:
    """Return `value` if it can be a version, a generation or a sequence. Raises InvalidInputError."""
    if type(value) is not int or not 0 <= value <= LSN_MAX:
        raise InvalidInputError.of(name, value, "a whole number from 0 to 2**63 - 1")
    return value


def check_idempotency_key(key: bytes | str | None) -> bytes | None:
    """Return the key of a request as bytes. Raises InvalidInputError."""
    if key is None:
        return None
    if not isinstance(key, str | bytes):
        raise InvalidInputError.of("idempotency_key", key, "text or bytes")
    raw = _utf8("idempotency_key", key) if isinstance(key, str) else key
    if not 1 <= len(raw) <= 512:
        raise InvalidInputError.of("idempotency_key", key, "1 to 512 bytes")
    return raw


def check_stream(source: str | None, sequence: int | None) -> None:
    """Raise InvalidInputError unless `source` and `sequence` are both given, or neither."""
    if (source is None) != (sequence is None):
        raise InvalidInputError("source and sequence go together: give both, or neither")
    if source is not None and (
        not isinstance(source, str) or not 1 <= len(_utf8("source", source)) <= 512
    ):
        raise InvalidInputError.of("source", source, "1 to 512 bytes of text")
    if sequence is not None:
        check_number("sequence", sequence)


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError.of(name, text, f"text that UTF-8 can hold ({error})") from None
