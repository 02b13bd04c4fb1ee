"""The handles of each face and their views, method by method."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from reef import documents, kv, pages
from reef.aio._calls import Wrapped, from_memory, pooled, streamed, wrapped
from reef.engine import HeldSnapshot, Namespace

N_co = TypeVar("N_co", bound=Namespace, covariant=True)
H_co = TypeVar("H_co", bound=HeldSnapshot, covariant=True)

_PAIRS_AT_ONCE = 1000
"""Items that are no batches come from the pool by so many: each step costs a change of threads."""


class Handle(Wrapped[N_co]):
    """What every open namespace offers."""

    @property
    def mode(self) -> str:
        """w for the one writer, r for a reader."""
        return self._inner.mode

    @property
    def is_open(self) -> bool:
        """Whether it was not closed yet."""
        return self._inner.is_open

    @property
    def name(self) -> str:
        """The namespace."""
        return self._inner.name

    @property
    def lsn(self) -> int:
        """The newest version that this handle has seen."""
        return self._inner.lsn

    @property
    def born(self) -> int:
        """The generation with which this life of the namespace began."""
        return self._inner.born

    flush = pooled(Namespace.flush)
    refresh = pooled(Namespace.refresh)
    stats = pooled(Namespace.stats)
    configure = pooled(Namespace.configure)
    branch = pooled(Namespace.branch)
    branches = pooled(Namespace.branches)
    drop_branch = pooled(Namespace.drop_branch)
    reset_branch = pooled(Namespace.reset_branch)
    snapshots = pooled(Namespace.snapshots)
    close = pooled(Namespace.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Snapshot(Wrapped[H_co]):
    """The methods of a snapshot of any face, besides its reads."""

    @property
    def id(self) -> str:
        """Its name: `at(snapshot=id)` opens it elsewhere."""
        return self._inner.id

    @property
    def expires_at_us(self) -> int:
        """When it expires, by the store's clock, in microseconds since 1970; 0 is never."""
        return self._inner.expires_at_us

    renew = pooled(HeldSnapshot.renew)
    release = pooled(HeldSnapshot.release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class DocumentView(Wrapped[Any]):
    """The documents at one version."""

    @property
    def lsn(self) -> int:
        """The version."""
        lsn: int = self._inner.lsn
        return lsn

    get = from_memory(documents.DocumentView.get)
    get_many = pooled(documents.DocumentView.get_many)
    count = pooled(documents.DocumentView.count)
    scan = streamed(documents.DocumentView.scan)
    query = pooled(documents.DocumentView.query)
    aggregate = pooled(documents.DocumentView.aggregate)
    sql = pooled(documents.DocumentView.sql)
    explain_sql = pooled(documents.DocumentView.explain_sql)

    async def to_pandas(self, **query: Any) -> Any:
        """Return what `query` returns as a pandas DataFrame."""
        return await self._pool.run(lambda: self._inner.to_pandas(**query))

    async def to_polars(self, **query: Any) -> Any:
        """Return what `query` returns as a Polars DataFrame."""
        return await self._pool.run(lambda: self._inner.to_polars(**query))


class DocumentSnapshot(_Snapshot[documents.DocumentSnapshot], DocumentView):
    """A view that stays readable until it expires or is released."""


class Documents(Handle[documents.Documents]):
    """Documents by id. Tasks may share it. Use as an asynchronous context manager, or `close`."""

    async def schema(self) -> dict[str, str]:
        """Return the type of each attribute, by name."""
        return await self._pool.run(lambda: self._inner.schema)

    alter = pooled(documents.Documents.alter)
    upsert = pooled(documents.Documents.upsert)
    patch = pooled(documents.Documents.patch)
    delete = pooled(documents.Documents.delete)
    write = pooled(documents.Documents.write)
    delete_where = pooled(documents.Documents.delete_where)
    patch_where = pooled(documents.Documents.patch_where)
    attach = pooled(documents.Documents.attach)
    restore = pooled(documents.Documents.restore)

    get = from_memory(documents.Documents.get)
    get_many = pooled(documents.Documents.get_many)
    count = pooled(documents.Documents.count)
    scan = streamed(documents.Documents.scan)
    query = pooled(documents.Documents.query)
    aggregate = pooled(documents.Documents.aggregate)
    sql = pooled(documents.Documents.sql)
    explain_sql = pooled(documents.Documents.explain_sql)

    async def to_pandas(self, **query: Any) -> Any:
        """Return what `query` returns as a pandas DataFrame."""
        return await self._pool.run(lambda: self._inner.to_pandas(**query))

    async def to_polars(self, **query: Any) -> Any:
        """Return what `query` returns as a Polars DataFrame."""
        return await self._pool.run(lambda: self._inner.to_polars(**query))

    changes = streamed(documents.Documents.changes)
    at = wrapped(documents.Documents.at, DocumentView)
    view = wrapped(documents.Documents.view, DocumentView)
    snapshot = wrapped(documents.Documents.snapshot, DocumentSnapshot)


class KeyValueView(Wrapped[Any]):
    """The keys and values at one version."""

    @property
    def lsn(self) -> int:
        """The version."""
        lsn: int = self._inner.lsn
        return lsn

    get = from_memory(kv.KeyValueView.get)
    get_many = pooled(kv.KeyValueView.get_many)
    scan = streamed(kv.KeyValueView.scan)
    items = streamed(kv.KeyValueView.items, at_once=_PAIRS_AT_ONCE)


class KeyValueSnapshot(_Snapshot[kv.KeyValueSnapshot], KeyValueView):
    """A view that stays readable until it expires or is released."""


class KeyValue(Handle[kv.KeyValue]):
    """Bytes to bytes, in order of keys. Tasks may share it. Use as a context manager, or `close`."""

    put = pooled(kv.KeyValue.put)
    delete = pooled(kv.KeyValue.delete)
    write = pooled(kv.KeyValue.write)
    restore = pooled(kv.KeyValue.restore)

    get = from_memory(kv.KeyValue.get)
    get_many = pooled(kv.KeyValue.get_many)
    scan = streamed(kv.KeyValue.scan)
    items = streamed(kv.KeyValue.items, at_once=_PAIRS_AT_ONCE)
    changes = streamed(kv.KeyValue.changes)
    at = wrapped(kv.KeyValue.at, KeyValueView)
    snapshot = wrapped(kv.KeyValue.snapshot, KeyValueSnapshot)


class PageView(Wrapped[Any]):
    """The pages at one version."""

    @property
    def lsn(self) -> int:
        """The version."""
        lsn: int = self._inner.lsn
        return lsn

    async def n_pages(self) -> int:
        """Return the number of pages."""
        return await self._pool.run(lambda: int(self._inner.n_pages))

    get_page = from_memory(pages.PageView.get_page)
    get_pages = pooled(pages.PageView.get_pages)


class PageSnapshot(_Snapshot[pages.PageSnapshot], PageView):
    """A view that stays readable until it expires or is released."""


class Pages(Handle[pages.Pages]):
    """Pages by number. Tasks may share it. Use as an asynchronous context manager, or `close`."""

    @property
    def head(self) -> int:
        """The newest LSN that this handle has seen."""
        return self._inner.head

    @property
    def page_size(self) -> int:
        """Bytes of a page."""
        return self._inner.page_size

    @property
    def lsn_policy(self) -> str:
        """Who gives LSNs: "kernel" or "caller"."""
        return self._inner.lsn_policy

    async def n_pages(self) -> int:
        """Return the number of pages: 1 + the greatest page id since the last truncate."""
        return await self._pool.run(lambda: self._inner.n_pages)

    append_wal = pooled(pages.Pages.append_wal)
    write = pooled(pages.Pages.write)
    truncate = pooled(pages.Pages.truncate)

    get_page = from_memory(pages.Pages.get_page)
    get_pages = pooled(pages.Pages.get_pages)
    at = wrapped(pages.Pages.at, PageView)
    snapshot = wrapped(pages.Pages.snapshot, PageSnapshot)
