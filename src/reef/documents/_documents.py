"""An open namespace of documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from reef.documents._change import Change, Condition, change_of
from reef.documents._document_changes import document_changes, stored_columns
from reef.documents._document_receipt import DocumentReceipt
from reef.documents._document_view import DocumentSnapshot, DocumentView
from reef.documents._namespace_schema import (
    FACE,
    NamespaceSchema,
    check_declared,
    declared_types,
)
from reef.documents._where import bulk_digest, delete_matching, patch_matching
from reef.documents.filter import Where, parse_filter
from reef.documents.input import ID, Duplicates, RequestColumns
from reef.documents.query import Aggregates, OrderBy, Selection, page_version
from reef.documents.types import Schema
from reef.engine import (
    ATTACH_DIGEST,
    DEFAULT_TTL,
    Context,
    Namespace,
    Receipt,
    Restored,
    Time,
    Writer,
    check_idempotency_key,
    check_stream,
)
from reef.errors import InvalidInputError, StalePlanError
from reef.format import SegmentRef


class Documents(Namespace):
    """Documents by id. Threads may share it. Use as a context manager, or `close`."""

    READS = (
        *("get", "get_many", "count", "query", "scan", "aggregate", "sql", "explain_sql"),
        *("to_pandas", "to_polars", "changes"),
    )

    def __init__(
        self,
        context: Context,
        name: str,
        *,
        mode: str = "w",
        schema: Mapping[str, str] | None = None,
    ) -> None:
        """Open for writing (`mode="w"`, creating it if need be) or for reading (`mode="r"`).

        `schema` declares attributes: new ones are added, existing ones must have the same types.
        """
        declared = declared_types("schema", schema)
        Schema.EMPTY.added(declared)
        if mode == "w" and declared:
            check_declared(context, name, declared)
        super().__init__(context, name, FACE, mode)
        self._schema = NamespaceSchema(self._handle, context.threads)
        try:
            self._schema.declare(declared, self._writer)
        except BaseException:
            self.close()
            raise

    # The schema.

    @property
    def schema(self) -> dict[str, str]:
        """The type of each attribute, by name."""
        self._fresh(None)
        return self._schema.current().as_dict()

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
        types = declared_types("add", add)
        if not isinstance(rename or {}, Mapping):
            raise InvalidInputError.of("rename", rename, "a dict of old to new names")
        if not isinstance(drop, Iterable):
            raise InvalidInputError.of("drop", drop, "a list of names")
        return self._schema.change(
            self._writing(), lambda now: now.added(types).renamed(rename or {}).dropped(drop)
        ).as_dict()

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

        A `condition` must hold for every row: `CreateOnly()`, `MustExist()`,
        `Equals(attribute=value)`, or any filter on the stored document, which may compare with the
        new one (`Incoming("attribute")`). A patch requires that its document exists. With
        `atomic=False` rows that do not meet this are left out, and the receipt's `outcomes` say so;
        otherwise ConditionFailedError does, and nothing is written. Attributes that are new are
        added to the schema first.

        The same `idempotency_key` again returns the first receipt and writes nothing. For a
        `source` that numbers its requests in order, a request whose `sequence` is not above the highest
        one written counts as already written; that never ages out, and the contents are not
        compared.

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
                return self._receipt(receipt, 0, 0)  # also if the request is no longer valid
        if type(atomic) is not bool:
            raise InvalidInputError.of("atomic", atomic, "True or False")
        columns = RequestColumns.of(upserts, patches, deletes, duplicates)
        change, receipt = self._change(writer, columns, condition, atomic, key, source, sequence)
        if receipt is None:
            receipt = writer.write(change.request(key, source, sequence))
        return self._receipt(receipt, change.upserts, change.patches, change.is_kept)

    def delete_where(
        self, where: Where, *, idempotency_key: bytes | str | None = None
    ) -> DocumentReceipt:
        """Delete every document that matches, in one atomic step.

        Raises InvalidInputError if that is more than one batch holds (`log_segment_max_bytes`).
        """
        key = check_idempotency_key(idempotency_key)
        filter = parse_filter(where, self._schema.current())
        request = delete_matching(filter, self._bytes_max, key, bulk_digest(filter, b""))
        return self._receipt(self._writing().write(request), 0, 0)

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
        schema = self._schema.current()
        filter = parse_filter(where, schema)
        columns = RequestColumns.of(patches=[{ID: "-", **patch}])
        digest = bulk_digest(filter, columns.read(schema)[0].digest())
        writer = self._writing()
        receipt = writer.known(key, digest)
        if receipt is None:  # not a retry: the schema may change
            change, _ = self._change(writer, columns)
            receipt = writer.write(patch_matching(filter, change, self._bytes_max, key, digest))
        return self._receipt(receipt, 0, len(receipt.codes))

    def restore(self, *, lsn: int | None = None, time: Time | None = None) -> Restored:
        """Make the version at an LSN, or at a time, the newest again: as one commit, all or nothing.

        Nothing is erased: the versions in between stay readable, and the change feed has what the
        restore wrote. Attributes keep the names and types that they have now; those dropped since
        stay dropped. Raises RetentionError below the retention floor, NotWrittenError if others
        keep writing while a large difference is uploaded, and what `write` raises.
        """
        return self._restore(self._schema.current().to_arrow(), lsn, time)

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
            self._schema.change(writer, lambda now: now.with_loaded(base, schema))
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
        return self.view(min_lsn=min_lsn).get(id, columns=columns)

    def get_many(
        self,
        ids: Iterable[str],
        *,
        columns: Sequence[str] | None = None,
        min_lsn: int | None = None,
    ) -> list[dict[str, Any] | None]:
        """Return each document, or None, all at one version."""
        return self.view(min_lsn=min_lsn).get_many(ids, columns=columns)

    def count(self, where: Where | None = None, *, min_lsn: int | None = None) -> int:
        """Return how many documents there are, or how many match."""
        return self.view(min_lsn=min_lsn).count(where)

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
        return self.view(min_lsn=min_lsn).scan(
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

        `after` takes a page, or its token, and returns the next page, at the version of that page.
        """
        return self._page_view(after, min_lsn).query(
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
        aggregates: Aggregates,
        *,
        group_by: str | Sequence[str] | None = None,
        where: Where | None = None,
        min_lsn: int | None = None,
    ) -> pa.Table:
        """Return count, sum, min, max, avg of the documents, or of groups of them."""
        return self.view(min_lsn=min_lsn).aggregate(aggregates, group_by=group_by, where=where)

    def sql(
        self,
        text: str,
        parameters: Sequence[Any] | None = None,
        *,
        timeout: float | str | None = None,
        memory_limit: int | str | None = None,
        min_lsn: int | None = None,
    ) -> pa.Table:
        """Return the result of a SELECT over the table `docs`, all at one version.

        It is ended after `timeout` (seconds, or text such as "30s"; None: never), or if it takes more
        memory, or gives a larger result, than `memory_limit` (bytes, or text; by default 1 GB).
        Raises InvalidInputError.
        """
        view = self.view(min_lsn=min_lsn)
        return view.sql(text, parameters, timeout=timeout, memory_limit=memory_limit)

    def explain_sql(
        self,
        text: str,
        parameters: Sequence[Any] | None = None,
        *,
        timeout: float | str | None = None,
        memory_limit: int | str | None = None,
        min_lsn: int | None = None,
    ) -> str:
        """Run a SELECT and return its plan: what the scans evaluated, and DuckDB's plan for the rest."""
        view = self.view(min_lsn=min_lsn)
        return view.explain_sql(text, parameters, timeout=timeout, memory_limit=memory_limit)

    def to_pandas(self, *, min_lsn: int | None = None, **query: Any) -> Any:
        """Return the result of `query` as a pandas DataFrame."""
        return self._page_view(query.get("after"), min_lsn).to_pandas(**query)

    def to_polars(self, *, min_lsn: int | None = None, **query: Any) -> Any:
        """Return the result of `query` as a Polars DataFrame."""
        return self._page_view(query.get("after"), min_lsn).to_polars(**query)

    def at(
        self,
        *,
        lsn: int | None = None,
        generation: int | None = None,
        snapshot: str | None = None,
        time: Time | None = None,
    ) -> DocumentView:
        """Return a view of the past: at an LSN, a manifest generation, or a time, or of a snapshot.

        At a time (a datetime with a zone, ISO 8601 text, or microseconds since 1970) it is the newest
        version that was written by then, by the store's clock; `lsn` of the view says which.

        It shows the attributes that the schema has now. Raises RetentionError,
        SnapshotExpiredError, NotFoundError, UnavailableError if it lies ahead.
        """
        self._fresh(None)
        view = self._view_at(lsn, generation, snapshot, time)
        return DocumentView(view, self._schema.current())

    def view(self, *, min_lsn: int | None = None) -> DocumentView:
        """Return a view of the newest version: later writes do not change it."""
        self._fresh(min_lsn)
        return DocumentView(self._handle.view(), self._schema.current())

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
        log still has; without `upto`, up to the newest version as of this call. To continue later,
        pass the last `_lsn` of a feed that was read to its end, or an `_lsn` that a greater one has
        followed: a bulk load may come in several batches of one `_lsn`. Raises RetentionError if
        the log, or the version below an operation, is no longer kept, UnavailableError if `after`
        or `upto` lies ahead.
        """
        self._handle.check_open()
        self.refresh()  # the newest rows come with the newest attributes
        selection = Selection.of(self._schema.current(), columns)
        rows = self._changes(stored_columns(selection), after, upto, before_image)
        return document_changes(rows, selection, before_image=before_image)

    def snapshot(
        self,
        ttl: float | str | None = DEFAULT_TTL,
        *,
        id: str | None = None,
        lsn: int | None = None,
        time: Time | None = None,
        keep_log: bool = False,
    ) -> DocumentSnapshot:
        """Keep a version readable for `ttl` (default: the setting `snapshot_ttl`).

        That is the newest, or the one at an LSN or a time, if it is not below the retention floor.
        None keeps it until it is released. Readers can take snapshots, too. With `keep_log`, the
        changes after it stay in the log as long: for `changes(after=...)` its LSN.
        """
        view = self._take_snapshot(ttl, id, lsn, time, keep_log=keep_log)
        return DocumentSnapshot(view, self._schema.current())

    # Internals.

    def _page_view(self, after: str | pa.Table | None, min_lsn: int | None) -> DocumentView:
        now = self.view(min_lsn=min_lsn)
        lsn = None if after is None else page_version(after, (self.name, self.born))
        return now if lsn is None else self.at(lsn=lsn)

    @property
    def _bytes_max(self) -> int:
        return self._context.settings.log_segment_max_bytes

    def _change(
        self,
        writer: Writer,
        columns: RequestColumns,
        condition: Condition | None = None,
        atomic: bool = True,
        key: bytes | None = None,
        source: str | None = None,
        sequence: int | None = None,
    ) -> tuple[Change, Receipt | None]:
        """Return a checked request, whose attributes are in the schema.

        If it would change the schema and was made before, its receipt as well: it does not, then.
        """
        while True:
            schema = self._schema.current()
            rows, wider = columns.read(schema)
            change = change_of(
                wider, rows, condition=condition, atomic=atomic, needs_digest=key is not None
            )
            if wider is schema:
                return change, None
            writer.check_bytes(change.nbytes)
            receipt = writer.known(key, change.digest, source, sequence)
            if receipt is not None or self._schema.widen(writer, schema, wider):
                return change, receipt

    def _receipt(
        self, receipt: Receipt, upserts: int, patches: int, is_kept: bytes | None = None
    ) -> DocumentReceipt:
        generation = self._handle.manifest.generation
        return DocumentReceipt.of(receipt, generation, upserts, patches, is_kept)
