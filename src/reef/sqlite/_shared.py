"""The one open page store of a database in this process, shared by its connections.

Invariants:

- A transaction reads one version from its begin to its end, whatever is committed meanwhile.
- At most one connection is between RESERVED and the end of its transaction, and only on top of the
  newest version: a connection that read an older one gets an error and starts over.
- A version moves in one step: the cached pages first, then what begins read.
- Where a version does not go on from the one before, because acknowledged commits are lost, or the
  database is another of the same name, it says so: the numbers in its header may have been in use.
- After a commit whose outcome is unknown nothing is served before it is known: the page store is
  opened for writing again, whose fence decides it, or for reading if somebody else's fence has.

It is a reader until somebody wants to write. Then it opens the page store for writing, which fences
every other process that does.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from reef.errors import (
    ClosedError,
    DroppedError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    ReefError,
    RetentionError,
    SnapshotExpiredError,
    UnavailableError,
)
from reef.format import log_key
from reef.sqlite._behind import Behind, Holder, Queued
from reef.sqlite._database_version import DatabaseVersion, TransactionPages, merged_transactions
from reef.sqlite._header import size_in_header
from reef.sqlite._page_cache import PageCache

if TYPE_CHECKING:
    from reef.database import Database
    from reef.pages import Pages, PageView

PAGE_SIZE_DEFAULT = 4096

_log = logging.getLogger("reef.sqlite")


class Busy(Exception):
    """Another connection writes, or has written since this transaction began: start it over."""


class SharedStore:
    """One database, open once. Threads may share it; `release` it as often as it was opened."""

    def __init__(
        self,
        db: Database,
        name: str,
        *,
        branch: str | None = None,
        page_size: int | None = None,
    ) -> None:
        """Use the page store `name` of `db`; it need not exist before the first write."""
        self._db = db
        self._name = name
        self._branch = branch
        context = db.context()
        self._clock = context.clock
        self._staleness_max_s = context.settings.max_staleness
        self._cond = context.threads.condition()
        self._pages: Pages | None = None
        self._is_writer = False
        self._is_in_doubt = False
        self._slot_in_doubt = 0
        self._is_closed = False
        self._holder: Holder | None = None
        self._looked_at: float | None = None
        self._version = DatabaseVersion(0, 0, 0, bytes(page_size or PAGE_SIZE_DEFAULT))
        self._born: int | None = None
        self.rng = context.rng
        self._behind = self._new_behind()
        self.cache = PageCache(self._version.page_size)
        with self._cond:
            self._follow()

    def abandon(self) -> None:
        """Be closed, as it is in a process that was forked: its threads and its fence are the parent's.

        It neither waits nor takes a lock: the thread that held it is not in this process.
        """
        self._cond = self._db.context().threads.condition()
        self._behind = self._new_behind()
        self._pages, self._is_writer, self._looked_at = None, False, None
        self._is_closed = True

    def _new_behind(self) -> Behind:
        threads = self._db.context().threads
        return Behind(self._cond, threads, self._clock, self._send_behind, self._drop_behind)

    @property
    def exists(self) -> bool:
        """Whether there is such a page store, as far as this process knows."""
        return self._pages is not None

    @property
    def page_size(self) -> int:
        """Of the newest version, or of the page store that is made."""
        return self._version.page_size

    @property
    def label(self) -> str:
        """The database for people."""
        branch = f" (branch {self._branch})" if self._branch else ""
        return f"{self._db.store.url.partition('?')[0]}/{self._name}{branch}"

    # Reading.

    def begin(self) -> DatabaseVersion:
        """Return the version that a transaction beginning now reads.

        It is the newest, or in a process that does not write, one that was the newest within
        `max_staleness`. Raises what asking the store can raise.
        """
        looked_at = self._looked_at
        is_fresh = (
            looked_at is not None and self._clock.monotonic() - looked_at <= self._staleness_max_s
        )
        if is_fresh and not self._is_in_doubt:
            return self._version
        with self._cond:
            return self._newest()

    def refresh(self) -> DatabaseVersion:
        """Return the newest version in the bucket, also if another writer made it."""
        with self._cond:
            self._looked_at = None
            return self._newest()

    def at(self, lsn: int) -> DatabaseVersion:
        """Return the version at `lsn`. Raises RetentionError, NotFoundError, UnavailableError."""
        with self._cond:
            self._settle()
            try:
                view = self._opened().at(lsn=lsn)
            except (UnavailableError, NotFoundError, DroppedError):
                self._looked_at = None  # it may be another writer's, and newer
                self._follow()
                view = self._opened().at(lsn=lsn)
            return DatabaseVersion(-1, view.lsn, view.n_pages, bytes(view.page_size), view)

    def load(self, page_id: int, version: DatabaseVersion) -> bytes:
        """Return a page that is not in the cache, as of `version`'s durable part."""
        if page_id >= version.n_pages_durable:
            return version.zeros
        assert version.view is not None  # but for the version with no pages
        try:
            data = version.view.get_page(page_id)
        except (RetentionError, SnapshotExpiredError):
            self._looked_at = None  # the next transaction gets a version that is kept
            raise
        if data is None:
            data = version.zeros
        with self._cond:
            # Only the newest pages may go there, and another thread may have committed meanwhile.
            if self._version.lsn == version.lsn and not self._is_in_doubt and version.serial >= 0:
                self.cache.put({page_id: data}, version.lsn)
        return data

    def page(self, page_id: int, version: DatabaseVersion) -> bytes:
        """Return a page as of `version`."""
        for commit in reversed(version.behind):
            found = commit.pages.get(page_id)
            if found is not None:
                return found
            if page_id >= commit.n_pages:
                return version.zeros
        cached = self.cache.pages.get(page_id)
        if cached is not None and version.serial >= 0 and cached[1] <= version.lsn:
            return cached[0]
        return self.load(page_id, version)

    def size_of(self, version: DatabaseVersion) -> int:
        """Return how many bytes the database has as of `version`.

        Pages of SQLite may be smaller than ours: then its own header says where the last one ends.
        """
        if version.size is None:
            size = version.n_pages * version.page_size
            if version.n_pages:
                header_size = size_in_header(self.page(0, version))
                if size - version.page_size < header_size <= size:
                    size = header_size
            version.size = size
        return version.size

    # Writing.

    def reserve(self, holder: Holder, version: DatabaseVersion) -> None:
        """Let `holder` write, on top of `version`. Raises Busy.

        Takes the page store over from other processes, if it has not yet.
        """
        with self._cond:
            if self._holder is not None:
                raise Busy(f"{self.label} is being written by another connection of this process")
            self._settle()
            if not self._is_writer:
                self._open_writer()
            if self._version.serial != version.serial:
                raise Busy(f"{self.label} has changed since this transaction began")
            self._holder = holder

    def is_reserved(self) -> bool:
        """Return whether a connection of this process is writing."""
        return self._holder is not None

    def is_held_by(self, holder: Holder) -> bool:
        """Return whether `holder` may write now."""
        return self._holder is holder

    def give_back(self, holder: Holder) -> None:
        """Let others write.

        It takes no lock: the garbage collector may close an unused connection while this very thread
        has the lock, and until it is given back, nobody else can become the holder.
        """
        if self._holder is holder:
            self._holder = None

    def commit(
        self, holder: Holder, base: DatabaseVersion, commit: TransactionPages, *, waits: bool
    ) -> DatabaseVersion:
        """Commit on top of `base` and return the new version: durable, if `waits`.

        Raises FencedError (start over: somebody else writes), NotWrittenError (nothing was
        written), OutcomeUnknownError (the outcome is found out before anything is served again).
        """
        with self._cond:
            self._check_writing(holder, base)
            if not waits:
                self._behind.wait_for_room()
                self._check_writing(holder, base)  # its base may have been lost meanwhile
                return self._acknowledge(holder, commit)
        self.drain()
        with self._cond:
            self._check_writing(holder, base)
            pages = self._pages
            assert pages is not None
        try:
            view = self._write(pages, commit)
            with self._cond:
                return self._advance(view, commit, self._version.serial + 1)
        except ReefError:
            raise
        except BaseException:  # Ctrl-C: it may be durable without being recorded
            self._doubt(pages)
            raise

    def _check_writing(self, holder: Holder, base: DatabaseVersion) -> None:
        holder.raise_lost()
        self._check_open()
        if self._holder is not holder or not self._is_writer or self._is_in_doubt:
            raise FencedError(
                f"{self.label} was taken over by another writer during this transaction; nothing of "
                "it was written there: start it over"
            )
        if base.serial != self._version.serial:
            raise NotWrittenError(
                f"a version of {self.label} that this transaction has read was lost; nothing of it "
                "was written there: start it over"
            )

    def _write(self, pages: Pages, commit: TransactionPages) -> PageView:
        """Make a commit durable and return the view after it. No lock held."""
        try:
            return pages.at(lsn=pages.write(commit.pages, n_pages=commit.n_pages))
        except FencedError as error:
            with self._cond:
                self._step_down()
            raise FencedError(
                f"{self.label} was taken over by another writer; nothing of this transaction was "
                "written there: start it over, which takes it back",
                error.durable_lsn,
            ) from error
        except DroppedError:
            with self._cond:
                self._step_down()
            raise
        except BaseException as error:
            if not isinstance(error, NotWrittenError | InvalidInputError):
                self._doubt(pages)
            raise

    def _doubt(self, pages: Pages) -> None:
        with self._cond:
            self._is_in_doubt = True
            self._slot_in_doubt = pages.stats()["next_slot"]

    def _advance(
        self,
        view: PageView,
        commit: TransactionPages,
        serial: int,
        behind: tuple[TransactionPages, ...] = (),
    ) -> DatabaseVersion:
        """Let reads see `commit`, which is durable as `view`. Lock held."""
        if commit.n_pages < self._version.n_pages_durable:
            self.cache.cut(commit.n_pages)
        self.cache.put(commit.pages, view.lsn)
        self._version = replace(
            self._version,
            serial=serial,
            lsn=view.lsn,
            n_pages_durable=commit.n_pages,
            view=view,
            behind=behind,
        )
        self._looked_at = self._clock.monotonic()
        return self._version

    # Acknowledging before it is durable.

    def _acknowledge(self, holder: Holder, commit: TransactionPages) -> DatabaseVersion:
        self._behind.add(Queued(holder, commit))
        now = self._version
        self._version = replace(now, serial=now.serial + 1, behind=(*now.behind, commit))
        return self._version

    def _send_behind(self, queued: list[Queued]) -> None:
        """Make the oldest commits that are behind durable, as one. No lock held."""
        with self._cond:
            pages, base = self._pages, self._version
            if pages is None or not self._is_writer or self._is_in_doubt:
                raise FencedError(
                    f"{self.label} was taken over by another writer: begin a new transaction to go on"
                )
        commit = merged_transactions(
            (one.commit for one in queued), base.n_pages_durable, base.zeros
        )
        view = self._write(pages, commit)
        with self._cond:
            now = self._version
            self._advance(view, commit, now.serial, now.behind[len(queued) :])

    def _drop_behind(self) -> None:
        """Drop all commits that are not durable. Lock held."""
        now = self._version
        self._version = replace(now, serial=now.serial + 1, behind=(), breaks=now.breaks + 1)

    def drain(self) -> None:
        """Return when everything that was acknowledged is durable, or known to be lost."""
        self._behind.drain()

    # What the page store is, and which version it has. Everything from here on holds the lock.

    def _newest(self) -> DatabaseVersion:
        self._settle()
        self._follow()
        return self._version

    def _settle(self) -> None:
        """Find out what became of a commit whose outcome is unknown."""
        self._check_open()
        if not self._is_in_doubt:
            return
        self._let_go()
        reader = self._open_reader()
        # A newer epoch alone decides nothing: its fence may not stand yet. An object in the slot does.
        if reader.stats()["next_slot"] <= self._slot_in_doubt:
            self._open_writer()  # its fence stands where the commit would have gone, or behind it
        self._is_in_doubt = False
        _log.warning(
            "an unknown outcome is settled: %s is at LSN %s", self.label, self._version.lsn
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self.label} was closed: open it again")

    def _follow(self) -> None:
        """Take in what others have committed, if the last look is too long ago."""
        now = self._clock.monotonic()
        last = self._looked_at
        if last is not None and now - last <= self._staleness_max_s:
            return
        if self._holder is not None and self._pages is not None:
            return  # the commit will tell
        if self._pages is None:
            try:
                self._open_reader()
            except NotFoundError:
                if self._version.view is not None:  # it existed: the store in memory was dropped
                    raise
        elif not self._is_writer:
            try:
                self._pages.refresh()
                self._stand_on(self._pages)
            except (NotFoundError, DroppedError):  # it was dropped: another may have its name
                self._step_down()
                self._open_reader()
        elif not self._behind.is_busy and self._is_superseded(self._pages):
            self._step_down()
            self._open_reader()
        self._looked_at = now

    def _is_superseded(self, pages: Pages) -> bool:
        """Return whether another writer's object is in this writer's next slot."""
        slot = pages.stats()["next_slot"]
        try:
            self._db.store.head(log_key(pages.name, slot))
        except NotFoundError:
            return False
        return True

    def _opened(self) -> Pages:
        return self._open_reader() if self._pages is None else self._pages

    def _open_reader(self) -> Pages:
        reader = self._open("r")
        self._use(reader, is_writer=False)
        return reader

    def _open_writer(self) -> None:
        try:
            pages = self._open("w", None if self._pages is not None else self._version.page_size)
        except InvalidInputError:
            if self._pages is not None:
                raise
            pages = self._open("w")  # somebody else has made it meanwhile, with other pages
        self._use(pages, is_writer=True)

    def _open(self, mode: str, page_size: int | None = None) -> Pages:
        return self._db.pages(self._name, branch=self._branch, page_size=page_size, mode=mode)

    def _use(self, pages: Pages, *, is_writer: bool) -> None:
        self._let_go()
        now, born = self._version, pages.born
        breaks = now.breaks + (self._born not in (None, born))
        self._born = born
        if pages.page_size != now.page_size:
            self.cache = PageCache(pages.page_size)
            breaks += 1
        if breaks != now.breaks:
            self._version = DatabaseVersion(
                now.serial + 1, 0, 0, bytes(pages.page_size), breaks=breaks
            )
        self._pages = pages
        self._is_writer = is_writer
        self._stand_on(pages)
        self._looked_at = self._clock.monotonic()

    def _stand_on(self, pages: Pages) -> None:
        view, now = pages.at(lsn=pages.head), self._version
        if (view.lsn, view.n_pages) != (now.lsn, now.n_pages) or now.behind:
            self.cache.clear()
            breaks = now.breaks + bool(now.behind)
            self._version = DatabaseVersion(
                now.serial + 1, view.lsn, view.n_pages, now.zeros, view, breaks=breaks
            )

    def _step_down(self) -> None:
        """Continue as a reader, from the next request on."""
        self._let_go()
        self._looked_at = None

    def _let_go(self) -> None:
        pages, self._pages, self._is_writer = self._pages, None, False
        if pages is not None:
            with suppress(ReefError):
                pages.close()

    def close(self) -> None:
        """Wait for commits in flight, then close the page store."""
        self._behind.close()
        with self._cond:
            self._is_closed = True
            self._let_go()
