"""`reef.sqlite.connect`: an apsw connection to a database in a bucket."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING

import apsw

from reef.errors import ReefError
from reef.sqlite._open_pages import uri_of
from reef.sqlite._vfs_apsw import register

if TYPE_CHECKING:
    from reef.database import Database
    from reef.engine import Time

BUSY_MS = 5000
_SIGNAL_STEPS = 1_000_000  # of SQLite's virtual machine: some 10 ms
# The URI says with which of these the database is really opened.
_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI


class Connection(apsw.Connection):
    """An apsw connection that raises Reef's own errors, also at the end of a `with` block."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        has_ended = not self.in_transaction
        try:
            return super().__exit__(kind, error, trace)
        except apsw.Error as failed:
            if has_ended and error is not None:  # SQLite rolled back by itself when that was raised
                return False
            # apsw gives only SQLite's number here: Reef's error comes along as context.
            below: BaseException | None = failed
            while below is not None and not isinstance(below, ReefError):
                below = below.__context__
            if below is None or below is error:
                raise
            raise below from None


def connect(
    url: str | os.PathLike[str],
    *,
    branch: str | None = None,
    lsn: int | None = None,
    time: Time | None = None,
    mode: str = "w",
    database: Database | None = None,
    **settings: object,
) -> Connection:
    """Open the SQLite database at `url`, such as s3://bucket/app.db; return an apsw connection.

    The last part of the URL is the name of the page store, what is before it the bucket; options of
    the store go into its query. `branch` is one of the page store, `lsn` a version of it, which is
    read for good, and `time` the version at a time with a zone; that and `mode="r"` are read-only. With `database` a bucket that is open already is
    used, and of the URL only the name. `settings` are those of `docs/settings.md`.

    Opening reads. The first write takes the database over: a writer in another process is fenced.
    Raises NotFoundError for reading a database that does not exist, RetentionError,
    InvalidInputError.
    """
    register()
    with uri_of(
        url, branch=branch, lsn=lsn, time=time, mode=mode, database=database, settings=settings
    ) as uri:
        connection = Connection(uri, flags=_FLAGS)
    try:
        connection.set_busy_timeout(BUSY_MS)
        connection.set_progress_handler(_let_signals_in, _SIGNAL_STEPS)
        connection.execute("PRAGMA journal_mode=MEMORY").fetchall()
    except BaseException:
        connection.close(force=True)
        raise
    return connection


def _let_signals_in() -> bool:
    """Let Python handle signals, such as Ctrl-C, in a statement that needs no page for a long time."""
    return False
