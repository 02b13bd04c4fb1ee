"""SQLite on Reef: databases whose every commit is in the bucket, with branches and time travel.

connect, Connection   an apsw connection to a database by its URL
register              makes apsw know URIs with `vfs=reef`
import_file, export_file, CopyResult
                      a database file into a bucket, and a version of a database out of one
history, restore, version_at
                      the commits that are kept; make an old one the newest; how large one is
parse_location        the URL of a database taken apart

`reef.sqlite.dbapi` is the standard library's `sqlite3` with the same databases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reef.sqlite._location import parse_location

if TYPE_CHECKING:
    from reef.sqlite._connect import Connection, connect
    from reef.sqlite._copy import CopyResult, export_file, history, import_file, restore, version_at
    from reef.sqlite._vfs_apsw import register

__all__ = [
    "Connection",
    "CopyResult",
    "connect",
    "export_file",
    "history",
    "import_file",
    "parse_location",
    "register",
    "restore",
    "version_at",
]


def __getattr__(name: str) -> Any:
    """Import apsw on first use: `reef.sqlite.dbapi` does not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from reef.sqlite import _connect, _copy
    except ModuleNotFoundError as error:
        if error.name != "apsw":
            raise
        raise ModuleNotFoundError(
            f"reef.sqlite.{name} needs apsw: pip install 'reefdb[sqlite]'; "
            "reef.sqlite.dbapi does without",
            name="apsw",
        ) from error
    return getattr(_connect if hasattr(_connect, name) else _copy, name)
