"""DB-API 2.0: the standard library's `sqlite3`, with databases in buckets.

`connect(url)` returns a plain `sqlite3.Connection`. With SQLAlchemy:

    create_engine("sqlite://", creator=lambda: dbapi.connect("s3://bucket/app.db"))

Importing this module registers the VFS, so that URIs with `vfs=reef` work as well:

    sqlite3.connect("file:/data/bucket/app.db?vfs=reef&branch=dev", uri=True)
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import fields
from sqlite3 import *  # noqa: F403
from typing import TYPE_CHECKING, Any

from reef.settings import Settings
from reef.sqlite._open_pages import uri_of
from reef.sqlite._vfs_ctypes import forget_error, last_error, register_sqlite3

if TYPE_CHECKING:
    from reef.database import Database
    from reef.engine import Time as ReefTime

_SETTINGS = {field.name for field in fields(Settings)}

register_sqlite3()


def connect(  # type: ignore[no-redef]
    url: str | os.PathLike[str],
    *,
    branch: str | None = None,
    lsn: int | None = None,
    time: ReefTime | None = None,
    mode: str = "w",
    database: Database | None = None,
    **options: Any,
) -> sqlite3.Connection:
    """Open the database at `url`, like `reef.sqlite.connect`; it takes what sqlite3.connect does, too.

    Raises NotFoundError, RetentionError, InvalidInputError, UnavailableError.
    """
    settings = {name: options.pop(name) for name in _SETTINGS & options.keys()}
    forget_error()
    try:
        with uri_of(
            url, branch=branch, lsn=lsn, time=time, mode=mode, database=database, settings=settings
        ) as uri:
            connection: sqlite3.Connection = sqlite3.connect(uri, uri=True, **options)
    except sqlite3.OperationalError as error:
        why = last_error()
        if why is not None:
            raise why from error
        raise
    try:
        connection.execute("PRAGMA journal_mode=MEMORY").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection
