"""DB-API 2.0: the standard library's `sqlite3`, with databases in buckets.

`connect(url)` returns a plain `sqlite3.Connection`. With SQLAlchemy:

    create_engine("sqlite://", creator=lambda: dbapi.connect("s3://bucket/app.db"))

Importing this module registers the VFS, so that URIs with `vfs=reef` work as well:

    sqlite3.connect("file:/data/bucket/app.db?vfs=reef&branch=dev", uri=True)
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import fields, replace
from sqlite3 import *  # noqa: F403
from typing import TYPE_CHECKING, Any

from reef.errors import InvalidInputError
from reef.settings import Settings
from reef.sqlite._location import Location, parse_location
from reef.sqlite._registry import Opening, registry
from reef.sqlite._vfs_ctypes import forget_error, last_error, register_sqlite3

if TYPE_CHECKING:
    from reef.database import Database

_SETTINGS = {field.name for field in fields(Settings)}

register_sqlite3()


def connect(  # type: ignore[no-redef]
    url: str | os.PathLike[str],
    *,
    branch: str | None = None,
    lsn: int | None = None,
    mode: str = "w",
    database: Database | None = None,
    **options: Any,
) -> sqlite3.Connection:
    """Open the database at `url`, like `reef.sqlite.connect`; it takes what sqlite3.connect does, too.

    Raises NotFoundError, RetentionError, InvalidInputError, UnavailableError.
    """
    if mode not in ("w", "r"):
        raise InvalidInputError.of("mode", mode, "'w' for writing, or 'r' for reading")
    location = parse_location(url) if database is None else Location("memory://", str(url))
    location = location.with_version(branch, lsn)
    settings = {name: options.pop(name) for name in _SETTINGS & options.keys()}
    token = registry.leave(Opening(database, settings))
    forget_error()
    try:
        uri = replace(location, opening=token).uri(mode)
        connection: sqlite3.Connection = sqlite3.connect(uri, uri=True, **options)
    except sqlite3.OperationalError as error:
        why = last_error()
        if why is not None:
            raise why from error
        raise
    finally:
        registry.take_back(token)
    try:
        connection.execute("PRAGMA journal_mode=MEMORY").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection
