"""An open key-value namespace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

import pyarrow as pa

from reef.engine import (
    Condition,
    Context,
    Equals,
    Reader,
    Receipt,
    Writer,
    WriteRequest,
    encode_condition,
    namespace_stats,
    open_for_reading,
    open_for_writing,
)
from reef.errors import InvalidInputError
from reef.kv._rows import (
    FACE,
    VALUE,
    Puts,
    check_key,
    digest_of,
    one_delete,
    one_put,
    pairs,
    rows_of,
    scanned,
)
from reef.kv._views import KeyValueSnapshot, KeyValueView, parse_ttl, value_of
from reef.types import LSN_MAX, check_snapshot_id

_DEFAULT_TTL: Any = object()


class KeyValue:
    """Bytes to bytes, in order of keys. Threads may share it. Use as a context manager, or `close`."""

    def __init__(self, context: Context, name: str, *, mode: str = "w") -> None:
        """Open for writing (`mode="w"`, creating it if need be) or for reading (`mode="r"`)."""
        if mode not in ("w", "r"):
            raise InvalidInputError.of("mode", mode, "w for the one writer, r for a reader")
        self._context = context
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        if mode == "w":
            self._writer = open_for_writing(context, name, FACE)
        else:
            self._reader = open_for_reading(context, name, FACE)
        self._handle: Writer | Reader = self._writer or self._reader  # type: ignore[assignment]

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

    # Writing.

    def put(
        self,
        key: bytes,
        value: bytes,
        *,
        condition: Condition | None = None,
        idempotency_key: bytes | str | None = None,
    ) -> Receipt:
        """Set the value of one key, durably; see `write` for what it raises."""
        batch = one_put(key, value)
        return self._commit(batch, len(key) + len(value), condition, True, idempotency_key)

    def delete(
        self,
        key: bytes,
        *,
        condition: Condition | None = None,
        idempotency_key: bytes | str | None = None,
    ) -> Receipt:
        """Delete one key, durably; it need not exist. See `write` for what it raises."""
        return self._commit(one_delete(key), len(key), condition, True, idempotency_key)

    def write(
        self,
        puts: Puts | None = None,
        deletes: Iterable[bytes] | None = None,
        *,
        condition: Condition | None = None,
        atomic: bool = True,
        idempotency_key: bytes | str | None = None,
        source: str | None = None,
        sequence: int | None = None,
    ) -> Receipt:
        """Commit puts and deletes as one batch: all of it is durable and visible, or nothing is.

        `puts` is a mapping, or an Arrow table with the columns key and value. A `condition` holds
        for every row; with `atomic=False` rows that do not meet it are left out, and the receipt's
        `outcomes` say so; otherwise ConditionFailedError does. The same `idempotency_key` again
        returns the first receipt and writes nothing; `source` and `sequence` do that for streams of
        numbered requests, without aging out.

        Raises FencedError (open again), OutcomeUnknownError (retry with the same idempotency key),
        NotWrittenError and OverloadedError (retry), ConditionFailedError, IdempotencyError,
        InvalidInputError.
        """
        batch = rows_of(puts, deletes)
        return self._commit(
            batch, batch.nbytes, condition, atomic, idempotency_key, source, sequence
        )

    def flush(self) -> None:
        """Fold what is committed into a segment, so that opening need not replay it."""
        self._writing().flush()

    # Reading.

    def get(self, key: bytes, *, min_lsn: int | None = None) -> bytes | None:
        """Return the value of `key`, or None. `min_lsn`: a reader catches up to it first."""
        if type(key) is not bytes:
            key = check_key(key)
        if self._reader is not None or min_lsn is not None:
            self._fresh(min_lsn)
        found = self._handle.get(key)
        return None if found is None else value_of(found)

    def get_many(self, keys: Iterable[bytes], *, min_lsn: int | None = None) -> list[bytes | None]:
        """Return the value of each key, or None, all at one version."""
        self._fresh(min_lsn)
        return self._now().get_many(keys)

    def scan(
        self,
        *,
        start: bytes | None = None,
        end: bytes | None = None,
        prefix: bytes | None = None,
        reverse: bool = False,
        min_lsn: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches (key, value) in order of keys, all at one version."""
        self._fresh(min_lsn)
        return scanned(
            self._handle.scan(start=start, end=end, prefix=prefix, reverse=reverse, columns=[VALUE])
        )

    def items(
        self,
        *,
        start: bytes | None = None,
        end: bytes | None = None,
        prefix: bytes | None = None,
        reverse: bool = False,
        min_lsn: int | None = None,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield each key with its value, in order of keys, all at one version."""
        return pairs(
            self.scan(start=start, end=end, prefix=prefix, reverse=reverse, min_lsn=min_lsn)
        )

    def at(
        self,
        *,
        lsn: int | None = None,
        generation: int | None = None,
        snapshot: str | None = None,
    ) -> KeyValueView:
        """Return a view of the past: at an LSN, at a manifest generation, or of a snapshot.

        Raises RetentionError, SnapshotExpiredError, NotFoundError, UnavailableError if it lies ahead.
        """
        given = [name for name in (lsn, generation, snapshot) if name is not None]
        if len(given) != 1:
            raise InvalidInputError.of("at", len(given), "one of lsn, generation and snapshot")
        if lsn is not None:
            _check_number("lsn", lsn)
            return KeyValueView(self._handle.at_lsn(lsn))
        if generation is not None:
            _check_number("generation", generation)
            return KeyValueView(self._handle.at_generation(generation))
        return KeyValueView(self._handle.at_snapshot(str(snapshot)))

    def snapshot(
        self, ttl: float | str | None = _DEFAULT_TTL, *, id: str | None = None
    ) -> KeyValueSnapshot:
        """Keep the newest version readable for `ttl` (default: the setting `snapshot_ttl`).

        None keeps it until it is released. A reader may take one as well as the writer.
        """
        if id is not None:
            check_snapshot_id(id)
        wanted = self._context.settings.snapshot_ttl if ttl is _DEFAULT_TTL else parse_ttl(ttl)
        return KeyValueSnapshot(self._handle.snapshot(wanted, id=id))

    def refresh(self) -> int:
        """Take in what was committed meanwhile; return the newest LSN.

        The writer always has it, until it is superseded: then it raises FencedError.
        """
        return self._handle.newest_lsn()

    def stats(self) -> dict[str, Any]:
        """Return figures of the namespace as this handle sees it."""
        return namespace_stats(self._handle)

    def tell_metrics(self) -> None:
        """Bring the gauges of this namespace up to date."""
        self._handle.tell()

    def close(self) -> None:
        """Wait for what is on its way and let go. Everything acknowledged is in the bucket."""
        self._handle.close()
        self._context.metrics.forget(namespace=self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"KeyValue({self.name!r}, {self.mode})"

    def _now(self) -> KeyValueView:
        return KeyValueView(self._handle.view())

    def _fresh(self, min_lsn: int | None) -> None:
        if self._reader is not None:
            self._reader.keep_fresh()
        if min_lsn is not None:
            _check_number("min_lsn", min_lsn)
            self._handle.catch_up(min_lsn)

    def _writing(self) -> Writer:
        if self._writer is None:
            raise InvalidInputError.of("mode", "r", "w: this handle was opened for reading")
        return self._writer

    def _commit(
        self,
        batch: pa.RecordBatch,
        nbytes: int,
        condition: Condition | None,
        atomic: bool,
        idempotency_key: bytes | str | None,
        source: str | None = None,
        sequence: int | None = None,
    ) -> Receipt:
        if idempotency_key is None and condition is None and source is None and sequence is None:
            return self._writing().write(WriteRequest(batch=batch, nbytes=nbytes))
        key = _check_idempotency_key(idempotency_key)
        _check_condition(condition)
        said = encode_condition(condition)
        _check_stream(source, sequence)
        digest = None
        if key is not None:
            digest = digest_of(batch, said, b"atomic" if atomic else b"rows")
        return self._writing().write(
            WriteRequest(
                batch=batch,
                nbytes=nbytes,
                condition=condition,
                atomic=atomic,
                idempotency_key=key,
                digest=digest,
                source=source,
                sequence=sequence,
            )
        )


def _check_idempotency_key(key: bytes | str | None) -> bytes | None:
    if key is None:
        return None
    if not isinstance(key, str | bytes):
        raise InvalidInputError.of("idempotency_key", key, "text or bytes")
    raw = key.encode() if isinstance(key, str) else key
    if not 1 <= len(raw) <= 512:
        raise InvalidInputError.of("idempotency_key", key, "1 to 512 bytes")
    return raw


def _check_stream(source: str | None, sequence: int | None) -> None:
    if (source is None) != (sequence is None):
        raise InvalidInputError.of("source", source, "given together with sequence")
    if source is not None and (not isinstance(source, str) or not 1 <= len(source.encode()) <= 512):
        raise InvalidInputError.of("source", source, "1 to 512 bytes of text")
    if sequence is not None:
        _check_number("sequence", sequence)


def _check_number(name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value <= LSN_MAX:
        raise InvalidInputError.of(name, value, "a whole number from 0 to 2**63 - 1")


def _check_condition(condition: Condition | None) -> None:
    """Raise InvalidInputError for a value that no row can have."""
    if not isinstance(condition, Equals):
        return
    for name, expected in condition.expected.items():
        if name != VALUE:
            raise InvalidInputError.of("condition", name, f"Equals({VALUE}=...)")
        for one in expected if isinstance(expected, list | tuple) else [expected]:
            if not isinstance(one, bytes):
                raise InvalidInputError.of(f"condition {name}", one, "bytes, or a list of bytes")
