"""Opening a database, and closing it, whichever SQLite it is: the URI, then the file that it asks for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from reef.errors import InvalidInputError, NotFoundError
from reef.sqlite._database_file import DatabaseFile
from reef.sqlite._header import HEADER_BYTES
from reef.sqlite._location import Location, location_of, parse_location
from reef.sqlite._registry import Opening, registry

if TYPE_CHECKING:
    from reef.database import Database
    from reef.engine import Time


@contextmanager
def uri_of(
    url: str | os.PathLike[str],
    *,
    branch: str | None,
    lsn: int | None,
    time: Time | None,
    mode: str,
    database: Database | None,
    settings: Mapping[str, object],
) -> Iterator[str]:
    """Give the URI by which SQLite opens the database at `url`. Raises InvalidInputError."""
    if mode not in ("w", "r"):
        raise InvalidInputError.of("mode", mode, "'w' for writing, or 'r' for reading")
    location = parse_location(url) if database is None else Location("memory://", str(url))
    location = location.with_version(branch, lsn)
    if time is not None:
        location = location.with_version(None, _lsn_at(location, time, database, settings))
    with registry.keep(Opening(database, settings)) as token:
        yield replace(location, opening=token).uri(mode)


def _lsn_at(
    location: Location, time: Time, database: Database | None, settings: Mapping[str, object]
) -> int:
    """Return the version of a database at a time. Raises NotFoundError, RetentionError."""
    if location.lsn is not None:
        raise InvalidInputError("lsn and time are both given: give at most one")
    with ExitStack() as stack:
        if database is None:
            from reef.database import connect

            database = stack.enter_context(connect(location.bucket, **settings))
        pages = stack.enter_context(database.pages(location.name, branch=location.branch, mode="r"))
        return pages.at(time=time).lsn


def open_file(
    path: str, parameters: Mapping[str, str], *, may_create: bool, read_only: bool
) -> DatabaseFile:
    """Open the file that SQLite asks for. Raises NotFoundError, InvalidInputError, UnavailableError."""
    location = location_of(path, parameters)
    if "://" not in path and os.path.isfile(path):
        raise InvalidInputError(
            f"{path!r} is a file, not a database in a bucket: `reef sqlite import` "
            f"copies it into one; in ATTACH and VACUUM INTO write file:{path}?vfs=unix"
        )
    shared = registry.acquire(location)
    try:
        if location.page_size not in (None, shared.page_size):
            raise InvalidInputError(
                f"{location.label} was made with page_size = {shared.page_size}, not "
                f"{location.page_size}: give that, or leave page_size out"
            )
        may_create = may_create and location.lsn is None and location.branch is None
        if not shared.exists and not may_create:
            raise NotFoundError(f"there is no database {location.label}")
        file = DatabaseFile(shared, lsn=location.lsn, read_only=read_only)
        # SQLite reads the header next in any case.
        if file.size() and not any(file.read(HEADER_BYTES, 0)):
            raise NotFoundError(
                f"there is no database {location.label}: its first page is missing, which an import "
                "writes last; `reef sqlite import` again"
            )
        return file
    except BaseException:
        registry.release(shared)
        raise


def close_file(file: DatabaseFile) -> None:
    """Close a file. Raises UnavailableError if commits that it acknowledged are lost."""
    try:
        file.close()
    finally:
        registry.release(file.shared)
