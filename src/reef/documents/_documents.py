"""An open namespace of documents."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from reef.documents._bulk import Bulk, delete_matching, patch_matching
from reef.documents._change import Change, change_of
from reef.documents._feed import shown_changes, stored_columns
from reef.documents._request import Condition, DocumentReceipt, condition_of
from reef.documents._snapshot import DocumentSnapshot
from reef.documents._view import DocumentView
from reef.documents.filter import Filter, Where, parse_filter
from reef.documents.input import ID, Duplicates, RequestColumns
from reef.documents.query import OrderBy, Selection, page_version
from reef.documents.types import Schema, Type
from reef.engine import (
    ATTACH_DIGEST,
    DEFAULT_TTL,
    Context,
    Face,
    Namespace,
    Receipt,
    Writer,
    WriteRequest,
    check_idempotency_key,
    check_stream,
    open_for_reading,
)
from reef.errors import InvalidInputError, NotFoundError, StalePlanError
from reef.format import SegmentRef, log_schema
from reef.types import LSN_MAX

_NOTHING = pa.RecordBatch.from_pylist([], schema=log_schema([]))
FACE = Face("documents", Schema.EMPTY.to_arrow())


class _Said(NamedTuple):
    """What the log records of a request in addition to its rows."""

    condition: bytes | None
    digest: bytes | None


class Documents(Namespace):
    """Documents by id. Threads may share it. Use as a context manager, or `close`."""

    def __init__(
        self,
        context: Context,
        name: str,
        *,
        mode: str = "w",
        schema: Mapping[str, str] | None = None,
    ) -> None:
        """Open for writing (`mode="w"`, creating it if need be) or for reading (`mode="r"`).

        `schema` declares attributes: those that are not there are added, others must agree.
        """
        declared = _types("schema", schema)
        Schema.EMPTY.added(declared)
        if mode == "w" and declared:
            _check_declared(context, name, declared)
        super().__init__(context, name, FACE, mode)
        self._altering = context.threads.condition()
        self._known: tuple[pa.Schema | None, Schema] = (None, Schema.EMPTY)
        try:
            self._declare(declared)
        except BaseException:
            self.close()
            raise

    # The schema.

    @property
    def schema(self) -> dict[str, str]:
        """The type of each attribute, by name."""
        self._fresh(None)
        return self._schema().as_dict()

    def alter(
        self,
        *,
        add: Mapping[str, str] | None = None,
        rename: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
    ) -> dict[str, str]:
        """Add, rename and drop attributes, in this order, in one durable step; return the schema.

        No data is rewritten. What was dropped does not come back under the same name.
        Raises InvalidInputError, and what `write` raises.
        """
        types = _types("add", add)
        if not isinstance(rename or {}, Mapping):
            raise InvalidInputError.of("rename", rename, "a dict of old to new names")
        if not isinstance(drop, Iterable):
            raise InvalidInputError.of("drop", drop, "a list of names")
        return self._change_schema(
            lambda schema: schema.added(types).renamed(rename or {}).dropped(drop)
        ).as_dict()

    def _schema(self) -> Schema:
        arrow = self._handle.tail.schema
        known, schema = self._known
        if arrow is not known and arrow is not None:
            schema = Schema.from_arrow(arrow)
            self._known = (arrow, schema)
        return schema

    def _change_schema(self, change: Callable[[Schema], Schema]) -> Schema:
        writer = self._writing()
        with self._altering:  # one at a time: each starts from the durable schema
            schema = change(self._schema())
            if schema != self._schema():
                writer.change_schema(schema.to_arrow())
            return schema

    def _declare(self, declared: Mapping[str, Type]) -> None:
        if self.mode == "w":
            if declared:
                self._change_schema(lambda schema: _with_declared(schema, declared))
        elif _with_declared(self._schema(), declared) != self._schema():
            raise InvalidInputError(
                "schema has attributes that the namespace does not have, and this handle is "
                "read-only: open it with mode='w' to add them"
            )

    # Writing.

    def upsert(
        self,
        documents: object,
        *,
        condition: Condition | None = None,
        atomic: bool = True,
        duplicates: Duplicates = "last",
        idempotency_key: bytes | str | None = None,
    ) -> DocumentReceipt:
        """Write whole documents, durably: rows, columns, or a pyarrow, pandas or Polars table."""
        return self.write(
            upserts=documents,
            condition=condition,
            atomic=atomic,
            duplicates=duplicates,
            idempotency_key=idempotency_key,
        )

    def patch(
        self,
        documents: object,
        *,
        condition: Condition | None = None,
        atomic: bool = True,
        duplicates: Duplicates = "last",
        idempotency_key: bytes | str | None = None,
    ) -> DocumentReceipt:
        """Change some attributes of documents that exist; None deletes one."""
        return self.write(
            patches=documents,
            condition=condition,
            atomic=atomic,
            duplicates=duplicates,
            idempotency_key=idempotency_key,
        )

    def delete(
        self,
        ids: Iterable[str] | str,
        *,
        condition: Condition | None = None,
        atomic: bool = True,
        idempotency_key: bytes | str | None = None,
    ) -> DocumentReceipt:
        """Delete documents; they need not exist."""
        return self.write(
            deletes=[ids] if isinstance(ids, str) else ids,
            condition=condition,
            atomic=atomic,
            idempotency_key=idempotency_key,
        )

    def write(
        self,
        *,
        upserts: object = None,
        patches: object = None,
        deletes: Iterable[str] | None = None,
        condition: Condition | None = None,
        atomic: bool = True,
        duplicates: Duplicates = "last",
        idempotency_key: bytes | str | None = None,
        source: str | None = None,
        sequence: int | None = None,
    ) -> DocumentReceipt:
        """Commit upserts, patches and deletes as one batch: all of it becomes durable and visible, or none.

        A `condition` holds for every row: `CreateOnly()`, `MustExist()`, `Equals(attribute=value)`,
        or any filter on the document as it is, which may compare with the one that comes in
        (`Incoming("attribute")`). A patch needs its document. With `atomic=False` rows that do not
        meet this are left out, and the receipt's `outcomes` say so; otherwise ConditionFailedError
        does, and nothing is written. Attributes that are new are added to the schema first.

        The same `idempotency_key` again returns the first receipt and writes nothing. Of a `source`
        that numbers its requests in order, whatever is not above the highest `sequence` written counts
        as written before; that never ages out, and what is in it is not compared.

        Raises InvalidInputError, which names row, attribute, expected and got; FencedError (open
        again), OutcomeUnknownError (retry with the same idempotency key), NotWrittenError and
        OverloadedError (retry), ConditionFailedError, IdempotencyError.
        """
        key = check_idempotency_key(idempotency_key)
        check_stream(source, sequence)
        writer = self._writing()
        if source is not None and key is None:
            receipt = writer.known(None, None, source, sequence)
            if receipt is not None:
                return self._told(receipt, 0, 0)  # also if the request is no longer valid
        asked = RequestColumns.of(upserts, patches, deletes, duplicates)
        change, said, receipt = self._change(
            writer, asked, condition, atomic, key, source, sequence
        )
        if receipt is None:
            receipt = writer.write(
                WriteRequest(
                    batch=change.batch,
                    stream=change.stream,
                    nbytes=change.nbytes,
                    resolve=change.resolve if change.needs_state else None,
                    prepare=change.prepare if change.needs_state else None,
                    condition=said.condition,
                    idempotency_key=key,
                    digest=said.digest,
                    source=source,
                    sequence=sequence,
                )
            )
        return self._told(receipt, change.upserts, change.patches, change.is_kept)

    def delete_where(
        self, where: Where, *, idempotency_key: bytes | str | None = None
    ) -> DocumentReceipt:
        """Delete every document that matches, in one atomic step.

        Raises InvalidInputError if that is more than one batch holds (`log_segment_max_bytes`).
        """
        key = check_idempotency_key(idempotency_key)
        filter = parse_filter(where, self._schema())
        digest = _bulk_digest(filter, b"")
        bulk = delete_matching(filter, self._bytes_max)
        return self._told(self._bulk(filter, bulk, key, digest), 0, 0)

    def patch_where(
        self,
        where: Where,
        patch: Mapping[str, object],
        *,
        idempotency_key: bytes | str | None = None,
    ) -> DocumentReceipt:
        """Change some attributes of every document that matches, in one atomic step.

        Raises InvalidInputError if that is more than one batch holds (`log_segment_max_bytes`).
        """
        if not isinstance(patch, Mapping) or not patch or ID in patch:
            raise InvalidInputError.of(
                "patch", patch, "a dict of attributes without 'id'; ids never change"
            )
        key = check_idempotency_key(idempotency_key)
        schema = self._schema()
        filter = parse_filter(where, schema)
        asked = RequestColumns.of(patches=[{ID: "-", **patch}])
        digest = _bulk_digest(filter, asked.read(schema)[0].digest())
        writer = self._writing()
        receipt = writer.known(key, digest)
        if receipt is None:  # not a retry: the schema may change
            change, _, _ = self._change(writer, asked)
            bulk = patch_matching(filter, change, self._bytes_max)
            receipt = self._bulk(filter, bulk, key, digest)
        return self._told(receipt, 0, len(receipt.codes))

    def attach(
        self,
        segments: Sequence[SegmentRef],
        *,
        base: Schema,
        schema: Schema,
        idempotency_key: bytes | str | None = None,
        source: str | None = None,
        sequence: int | None = None,
    ) -> Receipt:
        """Commit documents that a bulk load has written as segments, in the columns of `schema`.

        That is `base`, the schema of this namespace then, with the attributes that the load brings;
        they are added first. The rest is as `Writer.attach` says. Raises StalePlanError if the
        numbers of those attributes were given to others meanwhile: nothing was written then.
        """
        key = check_idempotency_key(idempotency_key)
        check_stream(source, sequence)
        writer = self._writing()
        receipt = writer.known(key, ATTACH_DIGEST, source, sequence)
        if receipt is not None:
            return receipt  # before the schema is changed
        try:
            self._change_schema(lambda now: _with_loaded(now, base, schema))
        except StalePlanError:
            writer.reload()
            writer.newest_lsn()  # a fenced writer never sees a newer schema: raises FencedError
            raise
        return writer.attach(segments, idempotency_key=key, source=source, sequence=sequence)

    # Reading.

    def get(
        self, id: str, *, columns: Sequence[str] | None = None, min_lsn: int | None = None
    ) -> dict[str, Any] | None:
        """Return one document, or None. `min_lsn`: a reader catches up to it first."""
        self._fresh(min_lsn)
        return self._now().get(id, columns=columns)

    def get_many(
        self,
        ids: Iterable[str],
        *,
        columns: Sequence[str] | None = None,
        min_lsn: int | None = None,
    ) -> list[dict[str, Any] | None]:
        """Return each document, or None, all at one version."""
        self._fresh(min_lsn)
        return self._now().get_many(ids, columns=columns)

    def count(self, where: Where | None = None, *, min_lsn: int | None = None) -> int:
        """Return how many documents there are, or how many match."""
        self._fresh(min_lsn)
        return self._now().count(where)

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        start: str | None = None,
        end: str | None = None,
        reverse: bool = False,
        ordered: bool = True,
        min_lsn: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches in order of ids, all at one version, in bounded memory.

        Without `ordered`, the same documents come in an order that costs less.
        """
        self._fresh(min_lsn)
        return self._now().scan(
            columns=columns, where=where, start=start, end=end, reverse=reverse, ordered=ordered
        )

    def query(
        self,
        *,
        where: Where | None = None,
        order_by: OrderBy | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        after: str | pa.Table | None = None,
        vector: object = None,
        metric: str | None = None,
        vector_column: str | None = None,
        min_lsn: int | None = None,
    ) -> pa.Table:
        """Return the documents that match: see `DocumentView.query`.

        `after` takes a page, or its token, and goes on behind it, at the version of that page.
        """
        self._fresh(min_lsn)
        return self._page_view(after).query(
            where=where,
            order_by=order_by,
            limit=limit,
            columns=columns,
            after=after,
            vector=vector,
            metric=metric,
            vector_column=vector_column,
        )

    def aggregate(
        self,
        aggregates: Mapping[str, Any],
        *,
        group_by: str | Sequence[str] | None = None,
        where: Where | None = None,
        min_lsn: int | None = None,
    ) -> pa.Table:
        """Return count, sum, min, max, avg of the documents, or of groups of them."""
        self._fresh(min_lsn)
        return self._now().aggregate(aggregates, group_by=group_by, where=where)

    def sql(
        self, text: str, parameters: Sequence[Any] | None = None, *, min_lsn: int | None = None
    ) -> pa.Table:
        """Return the result of a SELECT over the table `docs`, all at one version."""
        self._fresh(min_lsn)
        return self._now().sql(text, parameters)

    def explain_sql(
        self, text: str, parameters: Sequence[Any] | None = None, *, min_lsn: int | None = None
    ) -> str:
        """Run a SELECT and return its plan: what the scans evaluated, and DuckDB's plan for the rest."""
        self._fresh(min_lsn)
        return self._now().explain_sql(text, parameters)

    def to_pandas(self, **asked: Any) -> Any:
        """Return the result of `query` as a pandas DataFrame."""
        self._fresh(asked.pop("min_lsn", None))
        return self._page_view(asked.get("after")).to_pandas(**asked)

    def to_polars(self, **asked: Any) -> Any:
        """Return the result of `query` as a Polars DataFrame."""
        self._fresh(asked.pop("min_lsn", None))
        return self._page_view(asked.get("after")).to_polars(**asked)

    def at(
        self,
        *,
        lsn: int | None = None,
        generation: int | None = None,
        snapshot: str | None = None,
    ) -> DocumentView:
        """Return a view of the past: at an LSN, at a manifest generation, or of a snapshot.

        It shows the attributes that the schema has now. Raises RetentionError,
        SnapshotExpiredError, NotFoundError, UnavailableError if it lies ahead.
        """
        self._fresh(None)
        view = self._view_at(lsn, generation, snapshot)
        return DocumentView(view, self._schema())

    def view(self, *, min_lsn: int | None = None) -> DocumentView:
        """Return a view of the newest version: later writes do not change it."""
        self._fresh(min_lsn)
        return self._now()

    def changes(
        self,
        *,
        after: int | None = None,
        upto: int | None = None,
        before_image: bool = False,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield one row for each committed operation after version `after`, in order of commits.

        The columns are `_op` ("upsert" or "delete"), `_lsn`, `_committed_at`, `id`, the attributes
        that the schema has now (or those of `columns`), whole documents also for patches, and, with
        `before_image`, `_before`: the document as it was. Without `after`, from the oldest that the
        log still has; without `upto`, up to the newest version as of this call. What to go
        on after is the last `_lsn` when all has been seen, or one that a greater one has followed: a
        bulk load may come in several batches of one `_lsn`. Raises RetentionError if the log, or the
        version below an operation, is no longer kept, UnavailableError if `after` or `upto` lies
        ahead.
        """
        self._handle.check_open()
        self.refresh()  # the newest rows come with the newest attributes
        selection = Selection.of(self._schema(), columns)
        rows = self._changes(stored_columns(selection), after, upto, before_image)
        return shown_changes(rows, selection, before_image=before_image)

    def snapshot(
        self, ttl: float | str | None = DEFAULT_TTL, *, id: str | None = None
    ) -> DocumentSnapshot:
        """Keep the newest version readable for `ttl` (default: the setting `snapshot_ttl`).

        None keeps it until it is released. A reader may take one as well as the writer.
        """
        return DocumentSnapshot(self._take_snapshot(ttl, id), self._schema())

    # Internals.

    def _now(self) -> DocumentView:
        return DocumentView(self._handle.view(), self._schema())

    def _page_view(self, after: str | pa.Table | None) -> DocumentView:
        lsn = None if after is None else page_version(after, (self.name, self.born))
        return self._now() if lsn is None else self.at(lsn=lsn)

    @property
    def _bytes_max(self) -> int:
        return self._context.settings.log_segment_max_bytes

    def _change(
        self,
        writer: Writer,
        asked: RequestColumns,
        condition: Condition | None = None,
        atomic: bool = True,
        key: bytes | None = None,
        source: str | None = None,
        sequence: int | None = None,
    ) -> tuple[Change, _Said, Receipt | None]:
        """Return a checked request, whose attributes are in the schema, and its log record.

        If it would change the schema and was made before, its receipt as well: it does not, then.
        """
        if type(atomic) is not bool:
            raise InvalidInputError.of("atomic", atomic, "True or False")
        while True:
            schema = self._schema()
            rows, wider = asked.read(schema)
            wanted, condition_said = condition_of(condition, wider)
            parts = (condition_said, b"atomic" if atomic else b"rows")
            said = _Said(condition_said, None if key is None else rows.digest(*parts))
            change = change_of(wider, rows, condition=wanted, atomic=atomic)
            if wider is not schema:
                writer.check_bytes(change.nbytes)
                receipt = writer.known(key, said.digest, source, sequence)
                if receipt is not None:
                    return change, said, receipt
            if self._is_taken(schema, wider):
                return change, said, None

    def _is_taken(self, schema: Schema, wider: Schema) -> bool:
        """Make `wider` the schema if it still is `schema`; return whether it is `wider` now."""
        if wider is schema:
            return True
        return self._change_schema(lambda now: wider if now == schema else now) == wider

    def _bulk(self, filter: Filter, bulk: Bulk, key: bytes | None, digest: bytes) -> Receipt:
        return self._writing().write(
            WriteRequest(
                batch=_NOTHING,
                nbytes=0,
                resolve=lambda state: bulk(state, LSN_MAX),
                prepare=lambda view: view.read(lambda state: bulk(state, view.lsn)),
                condition=filter.encode(),
                idempotency_key=key,
                digest=None if key is None else digest,
            )
        )

    def _told(
        self, receipt: Receipt, upserts: int, patches: int, is_kept: bytes | None = None
    ) -> DocumentReceipt:
        generation = self._handle.manifest.generation
        return DocumentReceipt.of(receipt, generation, upserts, patches, is_kept)


def _bulk_digest(filter: Filter, said: bytes) -> bytes:
    """Return the digest of a change of every matching document; `said` is the change."""
    return hashlib.blake2b(filter.encode() + said, digest_size=16).digest()


def _types(name: str, texts: Mapping[str, str] | None) -> dict[str, Type]:
    if not isinstance(texts or {}, Mapping):
        raise InvalidInputError.of(
            name, texts, "a dict of names to types, as in {'price': 'float64'}"
        )
    return {name: Type.parse(text) for name, text in (texts or {}).items()}


def _with_declared(schema: Schema, declared: Mapping[str, Type]) -> Schema:
    """Return `schema` with those of `declared` that it lacks. Raises InvalidInputError."""
    for name, type in declared.items():
        found = schema.find(name)
        if found is not None and found.type != type:
            raise InvalidInputError(
                f"schema gives attribute {name!r} the type {type.text}, but it is "
                f"{found.type} already: give that, or leave it out"
            )
    return schema.added({n: t for n, t in declared.items() if schema.find(n) is None})


def _with_loaded(now: Schema, base: Schema, loaded: Schema) -> Schema:
    """Return `now` with what `loaded` adds to `base`, under the same numbers. Raises StalePlanError."""
    new = [a for a in loaded.attributes if a.id >= base.next_id]
    if all(attribute in now.attributes for attribute in new):
        return now
    if now.next_id == base.next_id and all(now.find(a.name) is None for a in new):
        wider = now.added({a.name: a.type for a in new})
        if wider.attributes[len(now.attributes) :] == tuple(new):
            return wider
    raise StalePlanError(
        f"attributes {', '.join(a.name for a in new)} were to be added by a load, but the schema has "
        "been changed since that was planned; nothing was written: load anew"
    )


def _check_declared(context: Context, name: str, declared: Mapping[str, Type]) -> None:
    """Raise InvalidInputError if a namespace has other types: before its writer is fenced."""
    try:
        reader = open_for_reading(context, name, FACE)
    except NotFoundError:
        return
    if reader.tail.schema is not None:
        _with_declared(Schema.from_arrow(reader.tail.schema), declared)
    reader.close()
