"""The VFS of `apsw`: SQLite's calls, handed to the file they are for."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

import apsw

from reef.clock import SystemClock
from reef.errors import InvalidInputError, ReefError
from reef.sqlite._abi import CHARACTERISTICS, FCNTL_PRAGMA, PATH_BYTES_MAX, SECTOR_BYTES
from reef.sqlite._database_file import NO_WAL, OVER_SEVERAL, DatabaseFile
from reef.sqlite._interrupts import at_entry
from reef.sqlite._location import VFS, full_path
from reef.sqlite._open_pages import close_file, open_file
from reef.sqlite._scratch import ScratchFile
from reef.sqlite._shared import Busy

_P = ParamSpec("_P")
_T = TypeVar("_T")


_classes: dict[tuple[type, type], type[BaseException]] = {}
"""Classes of errors that are one of Reef's and one of apsw's, so that both can be caught."""


def as_apsw(error: BaseException, theirs: type[apsw.Error] = apsw.IOError) -> BaseException:
    """Return the same error as one that SQLite can handle."""
    try:
        return _both(type(error), theirs, error.args, error.__dict__)
    except TypeError:  # it cannot be both
        return theirs(str(error))


def _both(
    kind: type[BaseException],
    theirs: type[apsw.Error],
    args: tuple[Any, ...],
    state: dict[str, Any],
) -> BaseException:
    made = _classes.get((kind, theirs))
    if made is None:
        named = {"__module__": kind.__module__, "__reduce__": _reduced}
        made = _classes[kind, theirs] = type(kind.__name__, (kind, theirs), named)
    error = made.__new__(made)
    error.args = args
    error.__dict__.update(state)
    return error


def _reduced(error: BaseException) -> tuple[Any, ...]:
    """Have an error travel between processes: its class is made anew where it arrives."""
    return _both, (*type(error).__bases__, error.args, error.__dict__)


def _as_sqlite_error(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Have what a call raises become an error of SQLite, too."""

    @wraps(call)
    def translated(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return call(*args, **kwargs)
        except Busy as busy:
            raise apsw.BusyError(str(busy)) from None
        except ReefError as error:
            if isinstance(error, apsw.Error):
                raise
            raise as_apsw(error) from error

    return translated


class ApswFile:
    """An open database file, as apsw calls it."""

    def __init__(self, file: DatabaseFile | ScratchFile) -> None:
        self._file = file
        # SQLite calls these most; `_as_sqlite_error` translates what they raise, as for the others.
        self.xRead = _as_sqlite_error(file.read)
        self.xLock = _as_sqlite_error(file.lock)
        self.xFileSize = _as_sqlite_error(file.size)
        self.xTruncate = _as_sqlite_error(file.truncate)
        self.xCheckReservedLock = file.is_reserved

    @at_entry
    def xUnlock(self, level: int) -> None:
        try:
            self._file.unlock(level)
        except BaseException:  # Ctrl-C: SQLite goes on as if it were unlocked
            self._file.unlock(level)
            raise

    @_as_sqlite_error
    def xWrite(self, data: Any, offset: int) -> None:
        self._file.write(bytes(data), offset)

    def xSync(self, flags: int) -> None:
        self._file.sync()

    @at_entry
    def xFileControl(self, op: int, pointer: int) -> bool:
        try:
            if op == FCNTL_PRAGMA:
                return self._pragma(apsw.VFSFcntlPragma(pointer))
            return self._file.control(op, pointer)
        except BaseException as error:
            if isinstance(error, apsw.Error):
                raise
            # Whatever it is, Ctrl-C too: after any other code SQLite would go on as if it had
            # committed.
            raise as_apsw(error) from error

    def _pragma(self, pragma: apsw.VFSFcntlPragma) -> bool:
        try:
            answer = self._file.pragma(pragma.name, pragma.value)
        except InvalidInputError as error:
            pragma.result = str(error)
            raise as_apsw(error, apsw.SQLError) from error
        if answer is None:
            return False
        pragma.result = answer
        return True

    def xSectorSize(self) -> int:
        return SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:
        return CHARACTERISTICS

    @_as_sqlite_error
    def xClose(self) -> None:
        if isinstance(self._file, DatabaseFile):
            close_file(self._file)


class ApswVFS(apsw.VFS):
    """Databases by Reef; temporary files by the system's own VFS; journals in memory."""

    def __init__(self) -> None:
        super().__init__(VFS, "", maxpathname=PATH_BYTES_MAX)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        wanted = flags[0]
        if wanted & apsw.SQLITE_OPEN_MAIN_DB and name is not None:
            return cast(apsw.VFSFile, self._open(name, flags))
        if wanted & apsw.SQLITE_OPEN_MAIN_JOURNAL:
            flags[1] = wanted
            return cast(apsw.VFSFile, ApswFile(ScratchFile()))
        if wanted & apsw.SQLITE_OPEN_SUPER_JOURNAL:
            raise as_apsw(InvalidInputError(OVER_SEVERAL), apsw.CantOpenError)
        if wanted & apsw.SQLITE_OPEN_WAL:
            raise as_apsw(InvalidInputError(NO_WAL), apsw.CantOpenError)
        return apsw.VFSFile("", name, flags)

    @_as_sqlite_error
    def _open(self, name: str | apsw.URIFilename, flags: list[int]) -> ApswFile:
        parameters: dict[str, str] = {}
        path = name if isinstance(name, str) else name.filename()
        if isinstance(name, apsw.URIFilename):
            parameters = {key: name.uri_parameter(key) or "" for key in name.parameters}
        try:
            file = open_file(
                path,
                parameters,
                may_create=bool(flags[0] & apsw.SQLITE_OPEN_CREATE),
                read_only=bool(flags[0] & apsw.SQLITE_OPEN_READONLY),
            )
        except ReefError as error:
            raise as_apsw(error, apsw.CantOpenError) from error
        mode = apsw.SQLITE_OPEN_READONLY if file.is_read_only else apsw.SQLITE_OPEN_READWRITE
        flags[1] = apsw.SQLITE_OPEN_MAIN_DB | mode
        return ApswFile(file)

    def xFullPathname(self, name: str) -> str:
        return full_path(name)

    def xAccess(self, pathname: str, flags: int) -> bool:
        return False  # no journal is ever left behind

    def xDelete(self, filename: str, syncdir: bool) -> None:
        pass

    def xSleep(self, microseconds: int) -> int:
        # SQLite's own sleep would hold the interpreter's lock, so the awaited thread could not run.
        SystemClock().sleep(microseconds / 1e6)
        return microseconds


@lru_cache(1)
def register() -> ApswVFS:
    """Register the VFS with apsw's SQLite, once; return it: it must be kept alive."""
    return ApswVFS()
