"""An open key-value namespace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from reef.engine import (
    DEFAULT_TTL,
    DELETED,
    WRITTEN,
    Condition,
    Context,
    Equals,
    Namespace,
    Receipt,
    Restored,
    Time,
    WriteRequest,
    check_idempotency_key,
    check_stream,
    encode_condition,
    resolve,
)
from reef.errors import InvalidInputError
from reef.format import KEY
from reef.kv._key_value_feed import COLUMNS, key_value_changes
from reef.kv._key_value_rows import (
    FACE,
    VALUE,
    Puts,
    check_key,
    digest_of,
    one_delete,
    one_put,
    rows_of,
)
from reef.kv._key_value_views import KeyValueSnapshot, KeyValueView, value_of

_ONE_WRITTEN, _ONE_DELETED = bytes([WRITTEN]), bytes([DELETED])


class KeyValue(Namespace):
    """Bytes to bytes, in order of keys. Threads may share it. Use as a context manager, or `close`."""

    READS = ("get", "get_many", "scan", "items", "changes")

    def __init__(self, context: Context, name: str, *, mode: str = "w") -> None:
        """Open for writing (`mode="w"`, creating it if need be) or for reading (`mode="r"`)."""
        super().__init__(context, name, FACE, mode)

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
        (rows, stream), nbytes = one_put(key, value), len(key) + len(value)
        return self._commit(
            rows, nbytes, condition, True, idempotency_key, codes=_ONE_WRITTEN, stream=stream
        )

    def delete(
        self,
        key: bytes,
        *,
        condition: Condition | None = None,
        idempotency_key: bytes | str | None = None,
    ) -> Receipt:
        """Delete one key, durably; it need not exist. See `write` for what it raises."""
        rows = one_delete(key)
        return self._commit(rows, len(key), condition, True, idempotency_key, codes=_ONE_DELETED)

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

        `puts` is a mapping, or an Arrow table with the columns key and value. A `condition` must
        hold for every row; with `atomic=False` rows that do not meet it are left out, and the
        receipt's `outcomes` say so; otherwise ConditionFailedError does. The same `idempotency_key`
        again returns the first receipt and writes nothing; `source` and `sequence` do that for
        streams of numbered requests, without aging out.

        Raises FencedError (open again), OutcomeUnknownError (retry with the same idempotency key),
        NotWrittenError and OverloadedError (retry), ConditionFailedError, IdempotencyError,
        InvalidInputError.
        """
        batch = rows_of(puts, deletes)
        return self._commit(
            batch, batch.nbytes, condition, atomic, idempotency_key, source, sequence
        )

    def restore(self, *, lsn: int | None = None, time: Time | None = None) -> Restored:
        """Make the version at an LSN, or at a time, the newest again: as one commit, all or nothing.

        Nothing is erased: the versions in between stay readable, and the change feed has what the
        restore wrote. Raises RetentionError below the retention floor, NotWrittenError if others keep
        writing while a large difference is uploaded, and what `write` raises.
        """
        return self._restore(FACE.schema, lsn, time)

    # Reading.

    def get(self, key: bytes, *, min_lsn: int | None = None) -> bytes | None:
        """Return the value of `key`, or None. `min_lsn`: a reader catches up to it first."""
        if type(key) is not bytes:
            key = check_key(key)
        if self._reader is not None or min_lsn is not None:
            self._fresh(min_lsn)
        found = self._handle.one(key)
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
        return self._now().scan(start=start, end=end, prefix=prefix, reverse=reverse)

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
        self._fresh(min_lsn)
        return self._now().items(start=start, end=end, prefix=prefix, reverse=reverse)

    def at(
        self,
        *,
        lsn: int | None = None,
        generation: int | None = None,
        snapshot: str | None = None,
        time: Time | None = None,
    ) -> KeyValueView:
        """Return a view of the past: at an LSN, a manifest generation, or a time, or of a snapshot.

        At a time (a datetime with a zone, ISO 8601 text, or microseconds since 1970) it is the newest
        version that was written by then, by the store's clock; `lsn` of the view says which.

        Raises RetentionError, SnapshotExpiredError, NotFoundError, UnavailableError if it lies ahead.
        """
        return KeyValueView(self._view_at(lsn, generation, snapshot, time))

    def changes(
        self,
        *,
        after: int | None = None,
        upto: int | None = None,
        before_image: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield one row for each committed operation after version `after`, in order of commits.

        The columns are `_op` ("upsert" or "delete"), `_lsn`, `_committed_at`, `key`, `value` and,
        with `before_image`, `_before`: what the key held before. Without `after`, from the oldest
        that the log still has; without `upto`, up to the newest version as of this call. To
        continue later, pass the last `_lsn` of a feed that was read to its end, or an `_lsn` that a
        greater one has followed: a bulk load may come in several batches of one `_lsn`. Raises
        RetentionError if the log, or the version below an operation, is not kept any more,
        UnavailableError if `after` or `upto` lies ahead.
        """
        rows = self._changes(COLUMNS, after, upto, before_image)
        return key_value_changes(rows, before_image=before_image)

    def snapshot(
        self,
        ttl: float | str | None = DEFAULT_TTL,
        *,
        id: str | None = None,
        lsn: int | None = None,
        time: Time | None = None,
        keep_log: bool = False,
    ) -> KeyValueSnapshot:
        """Keep a version readable for `ttl` (default: the setting `snapshot_ttl`).

        That is the newest, or the one at an LSN or a time, if it is not below the retention floor.
        None keeps it until it is released. Readers can take snapshots, too. With `keep_log`, the
        changes after it stay in the log as long: for `changes(after=...)` its LSN.
        """
        return KeyValueSnapshot(self._take_snapshot(ttl, id, lsn, time, keep_log=keep_log))

    def _now(self) -> KeyValueView:
        return KeyValueView(self._handle.view())

    def _commit(
        self,
        batch: pa.RecordBatch,
        nbytes: int,
        condition: Condition | None,
        atomic: bool,
        idempotency_key: bytes | str | None,
        source: str | None = None,
        sequence: int | None = None,
        codes: bytes | None = None,
        stream: pa.Buffer | None = None,
    ) -> Receipt:
        if idempotency_key is None and condition is None and source is None and sequence is None:
            request = WriteRequest(batch=batch, stream=stream, nbytes=nbytes, codes=codes)
            return self._writing().write(request)
        key = check_idempotency_key(idempotency_key)
        _check_condition(condition)
        said = encode_condition(condition)
        check_stream(source, sequence)
        digest = None
        if key is not None:
            digest = digest_of(batch, said, b"atomic" if atomic else b"rows")
        return self._writing().write(
            WriteRequest(
                batch=batch,
                stream=stream,
                nbytes=nbytes,
                codes=codes,
                resolve=None
                if condition is None
                else lambda state: resolve(batch, condition, atomic=atomic, state=state),
                prepare=None if condition is None else lambda view: view.many(batch.column(KEY)),
                condition=said,
                idempotency_key=key,
                digest=digest,
                source=source,
                sequence=sequence,
            )
        )


def _check_condition(condition: Condition | None) -> None:
    """Raise InvalidInputError for a value that no row can have."""
    if not isinstance(condition, Equals):
        return
    for name, expected in condition.expected.items():
        if name != VALUE:
            raise InvalidInputError(
                f"the condition compares {name!r}, which keys and values do not have: "
                f"give Equals({VALUE}=...)"
            )
        for one in expected if isinstance(expected, list | tuple) else [expected]:
            if not isinstance(one, bytes):
                raise InvalidInputError.of(f"condition {name}", one, "bytes, or a list of bytes")
