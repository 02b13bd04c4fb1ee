"""One open database file: what SQLite reads, writes, locks and commits through it.

Written pages are kept here until SQLite says that the transaction commits (COMMIT_PHASETWO, which
comes on real commits only, after everything was written and cut). Then they go to the page store as
one commit, or, if that fails, nowhere: they are dropped at once, and nothing is read through this file
any more until SQLite has released its locks. They are dropped as well when it goes back to SHARED,
which is how a rollback ends: what it has written to undo its own writes is then of no interest.

A lock level is of this process. Between processes there is no lock: the writer is fenced.
"""

from __future__ import annotations

from reef.errors import InvalidInputError, ReefError, UnavailableError
from reef.sqlite._abi import FCNTL_COMMIT_PHASETWO, FCNTL_SYNC
from reef.sqlite._database_version import DatabaseVersion, TransactionPages
from reef.sqlite._header import CHANGE_COUNTER_READ, HEADER_BYTES, with_schema, without_wal
from reef.sqlite._shared import SharedStore

NONE, SHARED, RESERVED, PENDING, EXCLUSIVE = range(5)

_OTHER_VERSION = b"\xff" * 16
NO_WAL = (
    "a write-ahead log is a file beside the database, and a bucket has none; the commit is durable "
    "and atomic without"
)
_REFUSED = {
    "wal": NO_WAL,
    "off": "without a rollback journal SQLite cannot undo a transaction that was begun",
}
OVER_SEVERAL = (
    "a transaction that writes to several databases needs journal_mode=MEMORY in those of Reef: run "
    "PRAGMA journal_mode=MEMORY after ATTACH, and start it over; nothing of it was written"
)


class DatabaseFile:
    """The logic of one file that SQLite has opened, whatever calls it. One thread at a time."""

    def __init__(self, shared: SharedStore, *, lsn: int | None = None, read_only: bool) -> None:
        """Read at `lsn` for good, or the newest. Raises what asking the store can raise."""
        self.shared = shared
        self.is_read_only = read_only or lsn is not None
        self.level = NONE
        self.lost: ReefError | None = None
        self._waits = True
        """Whether the commit that comes returns when it is durable; not with synchronous=OFF."""
        self._is_behind = False
        """Whether one was acknowledged that may not be durable yet."""
        self._fixed = None if lsn is None else shared.at(lsn)
        self._version: DatabaseVersion | None = None
        self._serial = -2
        self._is_other = False
        self._breaks: int | None = None
        self._cookie: bytes | None = None
        """What to show instead of the number of the schema, which another one may have had."""
        self._cookie_was_read = False
        self._has_failed = False
        self._dirty: dict[int, bytes] = {}
        self._size: int | None = None
        """In bytes, if it was written; None: that of the version."""
        self._kept_pages = 0
        """Pages of the version not truncated since."""

    @property
    def lsn(self) -> int:
        """The version that is read: of the transaction, or of one that would begin now."""
        version = self._version or self._fixed or self.shared.begin()
        return version.lsn

    # Locks.

    def lock(self, level: int) -> None:
        """Raise the lock level. Raises Busy, and what asking the store can raise."""
        if level <= self.level:
            return
        if self.level == NONE:
            self._begin()
            self.level = SHARED
        if level >= RESERVED:
            if self.level < RESERVED:
                self._reserve()
            self.level = level

    def unlock(self, level: int) -> None:
        """Lower the lock level; at SHARED and below, uncommitted writes are dropped."""
        if level <= SHARED:
            if self.level >= RESERVED or self.shared.is_held_by(self):  # Ctrl-C came in between
                self._drop()
                self.shared.give_back(self)
            if level == NONE:
                self._version = None
                self._has_failed = False
        self.level = min(self.level, level)

    def is_reserved(self) -> bool:
        """Return whether any connection of this process is about to write."""
        return self.shared.is_reserved()

    def _begin(self) -> None:
        self.raise_lost()
        version = self._fixed or self.shared.begin()
        # SQLite compares 16 bytes of the header to find out whether its cached pages are good. They
        # may be the same in two versions, one of which was lost: the version decides.
        self._is_other = version.serial != self._serial
        self._serial = version.serial
        self._version = version
        self._begin_cookie(version)

    def _begin_cookie(self, version: DatabaseVersion) -> None:
        """Make SQLite read the schema again if this version does not follow from the last one.

        One transaction gets a number that no schema has. If it commits, that number stays.
        """
        if self._cookie_was_read:
            self._cookie, self._cookie_was_read, self._is_other = None, False, True
        if self._breaks not in (None, version.breaks):
            self._cookie = self.shared.rng.randbytes(4)
        self._breaks = version.breaks

    def _reserve(self) -> None:
        if self.is_read_only:
            raise InvalidInputError(
                "this database was opened for reading: open it with mode='w' to write, without lsn="
            )
        version = self._read_version()
        self.shared.reserve(self, version)
        self._kept_pages = version.n_pages

    # Reading.

    def size(self) -> int:
        """Return how many bytes there are."""
        if self._size is not None:
            return self._size
        return self.shared.size_of(self._read_version())

    def read(self, amount: int, offset: int) -> bytes:
        """Return bytes; fewer than asked for at the end."""
        if self._is_other and (offset, amount) == CHANGE_COUNTER_READ:
            self._is_other = False
            return _OTHER_VERSION
        if self._cookie is not None and offset == 0:
            return self._with_cookie(amount, self._cookie)
        return self._read(amount, offset)

    def _with_cookie(self, amount: int, cookie: bytes) -> bytes:
        """Return the beginning of the file with another number of the schema."""
        data = self._read(amount, 0)
        if len(data) < HEADER_BYTES or 0 in self._dirty:
            return data
        self._cookie_was_read = True
        return with_schema(data, cookie)

    def _read(self, amount: int, offset: int) -> bytes:
        version = self._read_version()
        size = self.shared.size_of(version) if self._size is None else self._size
        page_size = version.page_size
        page_id, start = divmod(offset, page_size)
        end = start + amount
        if end <= page_size and offset + amount <= size:
            page = self._page(page_id, version)
            return page if amount == page_size else page[start:end]
        amount = max(0, min(amount, size - offset))
        last = (offset + amount - 1) // page_size
        pieces = [self._page(one, version) for one in range(page_id, last + 1)]
        return b"".join(pieces)[start : start + amount]

    def _page(self, page_id: int, version: DatabaseVersion) -> bytes:
        dirty = self._dirty.get(page_id)
        if dirty is not None:
            return dirty
        if self._size is not None and page_id >= self._kept_pages:
            return version.zeros
        return self.shared.page(page_id, version)

    def _read_version(self) -> DatabaseVersion:
        if self._has_failed:
            raise UnavailableError(
                f"a commit to {self.shared.label} failed: end the transaction before reading again"
            )
        version = self._version
        if version is None:  # SQLite looks at the header before it locks anything
            return self._fixed or self.shared.begin()
        return version

    # Writing.

    def write(self, data: bytes, offset: int) -> None:
        """Keep bytes until the commit."""
        version = self._written_version()
        size = self.size()
        page_id, start = divmod(offset, version.page_size)
        if start == 0 and len(data) == version.page_size:
            self._dirty[page_id] = data
        else:
            self._splice(page_id, start, data, version)
        self._size = max(size, offset + len(data))

    def _splice(self, page_id: int, start: int, data: bytes, version: DatabaseVersion) -> None:
        page_size = version.page_size
        at = 0
        while at < len(data):
            piece = data[at : at + page_size - start]
            if len(piece) < page_size:
                page = self._page(page_id, version)
                piece = page[:start] + piece + page[start + len(piece) :]
            self._dirty[page_id] = piece
            at += page_size - start
            page_id, start = page_id + 1, 0

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros, until the commit."""
        version = self._written_version()
        n_pages, rest = divmod(size, version.page_size)
        if size < self.size():
            if rest:  # bytes that are cut off must not come back when the file grows again
                self._dirty[n_pages] = self._page(n_pages, version)[:rest] + version.zeros[rest:]
                n_pages += 1
            self._kept_pages = min(self._kept_pages, n_pages)
            for page_id in [one for one in self._dirty if one >= n_pages]:
                del self._dirty[page_id]
        self._size = size

    def _written_version(self) -> DatabaseVersion:
        if self.level < RESERVED:
            raise InvalidInputError(
                f"SQLite wrote at lock level {self.level}: expected RESERVED or above; "
                "nothing was written"
            )
        return self._read_version()

    def control(self, op: int, argument: int | None) -> bool:
        """Carry out a file control other than a PRAGMA; return False for one that is not ours."""
        if op == FCNTL_COMMIT_PHASETWO:
            self.commit()
        elif op == FCNTL_SYNC:
            self.before_sync(with_others=bool(argument))  # the name of the journal over all
        else:
            return False
        return True

    def before_sync(self, *, with_others: bool) -> None:
        """Prepare for a commit: with synchronous=OFF, SQLite does not call `sync` before it.

        A PRAGMA's text is no proof: SQLite may have refused it, or only read the value.
        `with_others`: SQLite commits several databases by a journal over all of them, and goes on as
        if it had, whatever a single one answers then. Raises InvalidInputError for that.
        """
        if with_others:
            raise InvalidInputError(OVER_SEVERAL)
        self._waits = False

    def sync(self) -> None:
        """Let the commit wait to be durable; sends nothing, as SQLite also calls it for
        rollbacks."""
        self._waits = True

    def commit(self) -> None:
        """Make the writes durable; with synchronous=OFF, in the background.

        Raises FencedError, NotWrittenError, OutcomeUnknownError; the writes are dropped then.
        """
        if self._size is None:
            return
        base = self._read_version()
        n_pages = -(-self._size // base.page_size)
        for page_id in range(self._kept_pages, min(base.n_pages, n_pages)):
            self._dirty.setdefault(page_id, base.zeros)
        is_other = self._leave_wal()
        commit = TransactionPages(self._dirty, n_pages)
        try:
            self._is_behind = self._is_behind or not self._waits
            version = self.shared.commit(self, base, commit, waits=self._waits)
        except BaseException:
            self._has_failed = True
            self._serial = -2  # SQLite's cached pages are of no version
            raise
        finally:
            self._drop()
        self._version = version
        self._serial = -2 if is_other else version.serial
        self._kept_pages = version.n_pages

    def _leave_wal(self) -> bool:
        """Return whether the header was one of WAL mode, in which it could not be opened again.

        A backup of a database that is in that mode brings its header along.
        """
        first = self._dirty.get(0)
        if first is None:
            return False
        self._dirty[0] = without_wal(first)
        return self._dirty[0] != first

    def _drop(self) -> None:
        self._dirty = {}
        self._size = None
        self._waits = True
        self._kept_pages = self._version.n_pages if self._version is not None else 0

    # What else there is to say.

    def pragma(self, name: str, value: str | None) -> str | None:
        """Return the answer to a PRAGMA that is ours; None: SQLite answers it. Raises
        InvalidInputError for what cannot be."""
        name, setting = name.lower(), (value or "").lower().strip("'\"")
        if name == "journal_mode" and setting:
            for mode, why in _REFUSED.items():
                if mode.startswith(setting):  # to SQLite the beginning of the word is enough
                    raise InvalidInputError(
                        f"journal_mode = {setting!r} cannot be used: {why}; use memory, or "
                        "any other but wal and off"
                    )
        if name == "synchronous" and setting not in ("", "0", "off", "no", "false"):
            self.settle()
        if name == "wal_checkpoint":
            self.settle()
        if name == "reef_lsn":
            if self._version is self._fixed is None:  # a commit that is not durable yet has no LSN
                self.settle()
            return str(self.lsn)
        if name == "reef_refresh":
            return str(self.shared.refresh().lsn)
        return None

    def settle(self) -> None:
        """Wait until what was acknowledged is durable. Raises UnavailableError if some is lost."""
        self.shared.drain()
        self._is_behind = False
        self.raise_lost()

    def raise_lost(self) -> None:
        """Raise why acknowledged commits are lost, if some are; once."""
        lost, self.lost = self.lost, None
        if lost is not None:
            raise lost

    def close(self) -> None:
        """Release every lock. Raises UnavailableError if acknowledged commits are lost."""
        self.unlock(NONE)
        if self._is_behind or self.lost is not None:
            self.settle()
