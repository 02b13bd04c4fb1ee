"""A database: a bucket, opened."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from reef.clock import Clock, SystemClock
from reef.engine import Context, Namespace, are_live, drop_namespace, list_namespaces
from reef.errors import ClosedError
from reef.fork import abandon_in_child, forked_error
from reef.kv import KeyValue
from reef.maintenance import MaintenancePool, process_pool
from reef.metrics import Metrics
from reef.segment import BlockCache, DiskCache
from reef.settings import load_settings
from reef.store import MeteredStore, Store, open_store
from reef.threads import SystemThreads, Threads, for_each
from reef.types import namespace_of

if TYPE_CHECKING:
    from reef.documents import Documents
    from reef.pages import Pages


_CLOSING_WIDTH = 16  # namespaces that `close` waits for side by side


class Database:
    """The namespaces of one bucket, with the caches and the metrics that they share."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        threads: Threads | None = None,
        author: str = "",
        **settings: object,
    ) -> None:
        """Use `store`; `author` names the writer, for people: by default the host and the process."""
        self._arguments = settings
        loaded = load_settings(settings)
        clock = clock or SystemClock()
        self._metrics = Metrics()
        self._is_closed = self._is_abandoned = False
        self._opened: WeakSet[Namespace] = WeakSet()
        disk = None
        if loaded.disk_cache_dir:
            disk = DiskCache(
                loaded.disk_cache_dir, loaded.disk_cache_bytes, metrics=self._metrics, clock=clock
            )
        host = socket.gethostname() or "unknown"
        self._context = Context(
            store=MeteredStore(store, self._metrics, clock),
            settings=loaded,
            clock=clock,
            rng=rng or random.SystemRandom(),
            threads=threads or SystemThreads(),
            metrics=self._metrics,
            cache=BlockCache(loaded.block_cache_bytes, metrics=self._metrics),
            disk=disk,
            maintenance=(
                process_pool()
                if threads is None and isinstance(clock, SystemClock)
                else MaintenancePool(threads or SystemThreads(), clock)
            ),
            author=author or f"{host}:{os.getpid()}",
            host=host,
        )
        abandon_in_child(self)

    def abandon(self) -> None:
        """Be closed, in a forked process."""
        self._is_closed = self._is_abandoned = True

    @property
    def store(self) -> Store:
        """The bucket. It counts every request."""
        return self._context.store

    @property
    def metrics(self) -> Metrics:
        """What this process has counted; `metrics.text()` is what Prometheus reads."""
        self._context.cache.publish()  # hits are counted without a lock, and told once in a while
        for opened in sorted(
            self._opened, key=lambda one: one.mode
        ):  # the writer's say is the last
            if opened.is_open:
                opened.tell_metrics()
        return self._metrics

    def kv(
        self, name: str, *, branch: str | None = None, mode: str = "w", **settings: object
    ) -> KeyValue:
        """Open the key-value namespace `name`, for writing (`mode="w"`) or reading (`mode="r"`).

        A `branch` of it must exist. `settings` override those of the database. Opening for writing
        fences earlier writers.
        """
        self._check_open()
        opened = KeyValue(self.context(**settings), namespace_of(name, branch), mode=mode)
        self._opened.add(opened)
        return opened

    def namespace(
        self,
        name: str,
        *,
        branch: str | None = None,
        mode: str = "w",
        schema: Mapping[str, str] | None = None,
        **settings: object,
    ) -> Documents:
        """Open the documents `name`, for writing (`mode="w"`) or reading (`mode="r"`).

        `schema` declares attributes by name and type, such as {"price": "float64"}; what is not
        declared is inferred. A `branch` of it must exist. `settings` override those of the
        database. Opening for writing fences earlier writers.
        """
        self._check_open()
        # Imported here: a program that uses keys and values only need not load it.
        from reef.documents import Documents

        opened = Documents(
            self.context(**settings), namespace_of(name, branch), mode=mode, schema=schema
        )
        self._opened.add(opened)
        return opened

    def pages(
        self,
        name: str,
        *,
        branch: str | None = None,
        page_size: int | None = None,
        lsn_policy: str | None = None,
        mode: str = "w",
        **settings: object,
    ) -> Pages:
        """Open the page store `name`, for writing (`mode="w"`) or reading (`mode="r"`).

        A new one gets pages of `page_size` bytes (default: 4096). The kernel numbers its versions;
        with `lsn_policy="caller"` each write gives its own. An existing store keeps what it was
        created with. A `branch` of it must exist. `settings` override those of the database.
        Opening for writing fences earlier writers.
        """
        self._check_open()
        from reef.pages import Pages

        opened = Pages(
            self.context(**settings),
            namespace_of(name, branch),
            page_size=page_size,
            lsn_policy=lsn_policy,
            mode=mode,
        )
        self._opened.add(opened)
        return opened

    def _check_open(self) -> None:
        if self._is_abandoned:
            raise forked_error(f"the database at {self.store.url}")
        if self._is_closed:
            raise ClosedError(f"the database at {self.store.url} was closed: connect again")

    def context(self, **settings: object) -> Context:
        """Return what namespaces share, under other settings."""
        if not settings:
            return self._context
        return replace(self._context, settings=load_settings({**self._arguments, **settings}))

    def namespaces(self, *, dropped: bool = False) -> Iterator[str]:
        """Yield the namespaces, in byte order: a branch is NAME@BRANCH. A listing, and a GET for each.

        With `dropped`, also those that were dropped but still have objects in the bucket; no GET
        then.
        """
        found = list_namespaces(self.store)
        while some := [*islice(found, self.store.concurrency)]:
            live = [True] * len(some) if dropped else are_live(self._context, some)
            yield from (one.name for one, is_live in zip(some, live, strict=True) if is_live)

    def drop(self, name: str, *, branch: str | None = None) -> None:
        """Drop a namespace, or a branch of it; collection deletes what it had, after the grace period.

        A handle that has it open raises FencedError or DroppedError. Raises NotFoundError,
        InvalidInputError that names its branches if it has any, OutcomeUnknownError.
        """
        self._check_open()
        drop_namespace(self._context, namespace_of(name, branch))

    def close(self) -> None:
        """Close the open namespaces, several at a time; release connections and threads.

        Waits for the writes and flushes in flight, and begins nothing. If a namespace cannot be
        closed, all others are, and then its error is raised.
        """
        self._is_closed = True
        errors: list[Exception] = []

        def close(opened: Namespace) -> None:
            try:
                opened.close()
            except Exception as error:  # noqa: BLE001 raised below
                errors.append(error)

        still_open = [one for one in list(self._opened) if one.is_open]
        threads, width = self._context.threads, min(_CLOSING_WIDTH, len(still_open))
        try:
            for_each(still_open, close, width=width, threads=threads)
        finally:
            self._context.store.close()
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Database({self.store.url!r})"


def connect(url: str | os.PathLike[str], **settings: Any) -> Database:
    """Open the bucket at `url`: file://, memory://, s3://, gs:// or az://; or a folder, as a `Path`.

    `settings` are those of `docs/settings.md`; they override `REEF_*` variables and `reef.toml`.
    """
    if isinstance(url, os.PathLike):
        url = Path(url).absolute().as_uri()
    return Database(open_store(url), **settings)
