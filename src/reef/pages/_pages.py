"""An open namespace of pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from reef.engine import (
    DEFAULT_TTL,
    Context,
    Namespace,
    Time,
    check_idempotency_key,
    lookup_counted,
)
from reef.errors import InvalidInputError
from reef.format import LsnPolicy, Manifest
from reef.pages._ahead import Ahead
from reef.pages._page_commit import Commits, PageCommit
from reef.pages._page_rows import (
    EXTENT_KEY,
    PAGE_SIZE_DEFAULT,
    check_n_pages,
    check_page_size,
    data_of,
    extent_of,
    face_of_pages,
    is_of_pages,
    key_of,
    keys_of,
    page_key,
    page_size_of,
)
from reef.pages._page_views import PageSnapshot, PageView, bring_ahead, page_of, pages_of
from reef.types import check_namespace

_POLICIES: Mapping[str, LsnPolicy] = {"kernel": "packed", "caller": "caller"}
_SAMPLED_MASK = 63  # one read in 64 is measured


class WalRecord(NamedTuple):
    """A page, as of one version."""

    page_id: int
    lsn: int | None
    """None: the kernel numbers versions. Otherwise the caller does, for every record."""
    data: bytes
    """As many bytes as a page has."""


class Pages(Namespace):
    """Pages by number. Threads may share it. Use as a context manager, or `close`."""

    READS = ("get_page", "get_pages")

    def __init__(
        self,
        context: Context,
        name: str,
        *,
        page_size: int | None = None,
        lsn_policy: str | None = None,
        mode: str = "w",
    ) -> None:
        """Open for writing (`mode="w"`, creating it if need be) or for reading (`mode="r"`).

        A new store has a `page_size` of 4096 and the `lsn_policy` "kernel" unless they are given
        ("caller": the caller gives LSNs). An existing store keeps its own; other values are
        refused.
        """
        if lsn_policy is not None and lsn_policy not in _POLICIES:
            raise InvalidInputError.of("lsn_policy", lsn_policy, "'kernel' or 'caller'")
        if page_size is not None:
            check_page_size(page_size)
        asked = (page_size, lsn_policy)
        if asked != (None, None) and mode == "w":
            _check_before(context, name, *asked)  # first: opening would fence the writer
        face = face_of_pages(page_size or PAGE_SIZE_DEFAULT, _POLICIES[lsn_policy or "kernel"])
        super().__init__(context, name, face, mode)
        try:
            self.page_size, self.lsn_policy = _made_as(self._handle.manifest)
            _check_made_as(name, (self.page_size, self.lsn_policy), asked)
        except BaseException:
            self.close()
            raise
        settings = context.settings
        self._ahead_bytes = min(settings.read_ahead_bytes, settings.block_cache_bytes // 4)
        self._ahead = Ahead(self.page_size, self._ahead_bytes)
        self._reads = count(1).__next__
        self._note_layers = context.metrics.recorder("reef_page_read_layers")
        self._commits = Commits(context, self._writer, self.page_size) if self._writer else None

    @property
    def head(self) -> int:
        """The newest LSN that this handle has seen."""
        return self._handle.lsn

    @property
    def n_pages(self) -> int:
        """The number of pages: 1 + the greatest page id since the last truncate."""
        return extent_of(self._handle.one(EXTENT_KEY))

    # Writing.

    def append_wal(
        self,
        records: Iterable[WalRecord],
        *,
        n_pages: int | None = None,
        idempotency_key: bytes | str | None = None,
    ) -> int:
        """Commit pages, all or none, durable when it returns; return the LSN of the last.

        Records of the same LSN are one version; LSNs rise from one to the next, and lie above `head`.
        If a page appears twice in one version, the last one counts. `n_pages` cuts or extends the
        store to that number of pages in the same commit. The same `idempotency_key` again writes
        nothing and returns the first LSN; it goes with one LSN only.

        Raises FencedError (open again; `durable_lsn` is this handle's newest durable LSN),
        OutcomeUnknownError (retry with the same idempotency key, or look at `head` after opening
        again), NotWrittenError and OverloadedError (retry), InvalidInputError.
        """
        versions: list[tuple[int | None, dict[int, bytes]]] = []
        try:
            for page_id, lsn, data in records:
                if not versions or versions[-1][0] != lsn:
                    versions.append((lsn, {}))
                versions[-1][1][page_id] = data
        except (TypeError, ValueError) as error:
            wanted = "WalRecords: each a page_id, an LSN or None, and the page's bytes"
            raise InvalidInputError.of("records", records, wanted) from error
        return self._commit(versions or [(None, {})], n_pages, idempotency_key)

    def write(
        self,
        pages: Mapping[int, bytes],
        *,
        n_pages: int | None = None,
        lsn: int | None = None,
        idempotency_key: bytes | str | None = None,
    ) -> int:
        """Commit pages by their numbers, as one version; like `append_wal`, of any size.

        Pages that do not fit into a log object are uploaded as a segment first, which the log then
        names; the commit is still atomic. Give `lsn` exactly if `lsn_policy` is "caller".
        """
        return self._commit([(lsn, pages)], n_pages, idempotency_key)

    def truncate(self, n_pages: int, *, lsn: int | None = None) -> int:
        """Cut the store to `n_pages`, durably; return the LSN. What is cut off reads as absent."""
        return self._commit([(lsn, {})], check_n_pages(n_pages), None)

    def _commit(
        self,
        versions: Sequence[tuple[int | None, Mapping[int, bytes]]],
        n_pages: int | None,
        idempotency_key: bytes | str | None,
    ) -> int:
        self._writing().check_open()
        assert self._commits is not None
        if n_pages is not None:
            check_n_pages(n_pages)
        key = check_idempotency_key(idempotency_key)
        return self._commits.commit(PageCommit(versions, n_pages, key))

    # Reading.

    def get_page(self, page_id: int, lsn: int | None = None) -> bytes | None:
        """Return a page as of `lsn`, or the newest; None if there is no such page at that LSN.

        Raises RetentionError, UnavailableError if `lsn` lies ahead, InvalidInputError.
        """
        if lsn is not None:
            return page_of(self._view_at(lsn), self._ahead, page_id)
        if self._reader is not None:
            self._reader.keep_fresh()
        key = page_key(page_id)
        if run := self._ahead.next(page_id):
            bring_ahead(self._handle.view(), self._ahead, key, key_of(run))
        if not self._reads() & _SAMPLED_MASK:
            return self._measured(key)
        found = self._handle.one(key)
        return None if found is None else data_of(found)

    def get_pages(self, page_ids: Iterable[int], lsn: int | None = None) -> list[bytes | None]:
        """Return each page as `get_page` would, all of one version, with as few requests as it takes."""
        if lsn is not None:
            return self.at(lsn=lsn).get_pages(page_ids)
        self._fresh(None)
        return pages_of(self._handle.view(), keys_of(page_ids))

    def at(
        self,
        *,
        lsn: int | None = None,
        generation: int | None = None,
        snapshot: str | None = None,
        time: Time | None = None,
    ) -> PageView:
        """Return a view of the past: at an LSN, a manifest generation, or a time, or of a snapshot.

        At a time (a datetime with a zone, ISO 8601 text, or microseconds since 1970) it is the newest
        version that was written by then, by the store's clock; `lsn` of the view says which.

        Raises RetentionError, SnapshotExpiredError, NotFoundError, UnavailableError if it lies ahead.
        """
        view = self._view_at(lsn, generation, snapshot, time)
        return PageView(view, self.page_size, self._ahead_bytes)

    def snapshot(
        self,
        ttl: float | str | None = DEFAULT_TTL,
        *,
        id: str | None = None,
        lsn: int | None = None,
        time: Time | None = None,
    ) -> PageSnapshot:
        """Keep a version readable for `ttl` (default: the setting `snapshot_ttl`).

        That is the newest, or the one at an LSN or a time, if it is not below the retention floor. None keeps it until it is released. A reader may take one as well as the writer.
        """
        view = self._take_snapshot(ttl, id, lsn, time)
        return PageSnapshot(view, self.page_size, self._ahead_bytes)

    def _measured(self, key: bytes) -> bytes | None:
        """Return a page, and tell the metrics how many layers it took."""
        view = self._handle.view()
        found, layers = view.read(lambda state: lookup_counted(state.layers, key, view.lsn))
        self._note_layers(layers)
        return None if found is None or found.tombstone else data_of(found)


def _check_before(
    context: Context, name: str, page_size: int | None, lsn_policy: str | None
) -> None:
    """Raise InvalidInputError if a store exists with other settings than requested."""
    head = context.chain(check_namespace(name)).load()
    if head is not None and head.manifest.state == "live" and is_of_pages(head.manifest):
        _check_made_as(name, _made_as(head.manifest), (page_size, lsn_policy))


def _made_as(manifest: Manifest) -> tuple[int, str]:
    return page_size_of(manifest), "kernel" if manifest.lsn_policy == "packed" else "caller"


def _check_made_as(
    name: str, made_as: tuple[int, str], wanted_as: tuple[int | None, str | None]
) -> None:
    for what, has, wanted in zip(("page_size", "lsn_policy"), made_as, wanted_as, strict=True):
        if wanted is not None and wanted != has:
            raise InvalidInputError(
                f"{name!r} was made with {what} = {has!r}, not {wanted!r}: give that, "
                f"or leave {what} out"
            )
