"""The VFS for the standard library's `sqlite3`, registered in the shared library that it is linked to.

The logic is that of the other VFS; this only speaks C. An error has a number there and no words, so
SQLite says "disk I/O error" and no more: what it was is in Reef's log, and `last_error` has it.
"""

from __future__ import annotations

import atexit
import ctypes as c
import ctypes.util
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Any

from reef.errors import InvalidInputError, ReefError, UnsupportedStoreError
from reef.sqlite import _abi as abi
from reef.sqlite._database_file import NO_WAL, OVER_SEVERAL, DatabaseFile
from reef.sqlite._interrupts import all_through, defer_interrupts, guarded
from reef.sqlite._location import VFS, full_path
from reef.sqlite._open_pages import close_file, open_file
from reef.sqlite._scratch import ScratchFile
from reef.sqlite._shared import Busy

_OURS = abi.OPEN_MAIN_DB | abi.OPEN_MAIN_JOURNAL | abi.OPEN_SUPER_JOURNAL | abi.OPEN_WAL

_log = logging.getLogger("reef.sqlite")
_trouble = threading.local()


def last_error() -> BaseException | None:
    """Return why the last call of SQLite in this thread failed in Reef, if one did."""
    return getattr(_trouble, "error", None)


def forget_error() -> None:
    """Forget what failed before."""
    _trouble.error = None


class _CtypesVfs:
    """What SQLite calls. It lives as long as the process: SQLite keeps pointers into it."""

    def __init__(self, library: c.CDLL) -> None:
        self._library = library
        self._files: dict[int, DatabaseFile | ScratchFile] = {}
        self._next = count(1).__next__
        self._default = self._find_default()
        self._methods = self._make_methods()
        self._vfs = self._make_vfs()
        code = library.sqlite3_vfs_register(c.byref(self._vfs), 0)
        if code != abi.OK:
            raise UnsupportedStoreError(f"SQLite refused the VFS {VFS!r} with code {code}")
        c.pythonapi.Py_IncRef(c.py_object(self))  # SQLite may call to the very end of the process
        atexit.register(self._retire)

    def _retire(self) -> None:
        """Answer without Python's modules, which go before the last connections do."""
        nothing, trouble = (lambda *_: 0), (lambda *_: 10)
        methods = self._methods
        for name, kind in abi.IoMethods._fields_[1:]:
            setattr(methods, name, kind(trouble if name in ("read", "write") else nothing))

    def _find_default(self) -> abi.Vfs:
        find = self._library.sqlite3_vfs_find
        find.restype = c.POINTER(abi.Vfs)
        default = find(None)
        if not default:
            raise UnsupportedStoreError("this SQLite has no VFS of its own to build on")
        self._default_at = c.cast(default, c.c_void_p)
        found: abi.Vfs = default.contents
        return found

    def _make_methods(self) -> abi.IoMethods:
        return abi.IoMethods(
            version=1,
            close=abi.Close(guarded(self._close, _failed, again=True)),
            read=abi.Read(guarded(self._read, _failed)),
            write=abi.Read(guarded(self._write, _failed)),
            truncate=abi.Truncate(self._call(lambda file, size: file.truncate(size))),
            sync=abi.Sync(self._call(lambda file, _flags: file.sync())),
            file_size=abi.FileSize(guarded(self._size, _failed)),
            lock=abi.Lock(self._call(lambda file, level: file.lock(level))),
            unlock=abi.Lock(self._call(lambda file, level: file.unlock(level), again=True)),
            check_reserved=abi.CheckReserved(guarded(self._check_reserved, _failed)),
            file_control=abi.FileControl(guarded(self._file_control, _failed)),
            sector_size=abi.Number(_always(abi.SECTOR_BYTES)),
            characteristics=abi.Number(_always(abi.CHARACTERISTICS)),
        )

    def _make_vfs(self) -> abi.Vfs:
        vfs = abi.Vfs.from_buffer_copy(self._default)
        vfs.version, vfs.next, vfs.data = 1, None, None
        vfs.file_bytes = max(c.sizeof(abi.File), vfs.file_bytes)
        vfs.path_bytes = abi.PATH_BYTES_MAX
        vfs.name = VFS.encode()
        vfs.open = abi.Open(guarded(self._open, _failed))
        vfs.delete = abi.Delete(_always(abi.OK))
        vfs.access = abi.Access(guarded(self._access, _failed))
        vfs.full_pathname = abi.FullPathname(guarded(self._full_pathname, _failed_to_open))
        return vfs

    # Files.

    def _open(self, _vfs: int, name: int | None, at: int, flags: int, out: Any) -> int:
        file = abi.File.from_address(at)
        if not flags & _OURS or name is None:
            return int(self._default.open(self._default_at, name, at, flags, out))
        c.memset(at, 0, c.sizeof(abi.File))  # no methods: SQLite does not close what did not open
        if flags & abi.OPEN_SUPER_JOURNAL:
            raise InvalidInputError(OVER_SEVERAL)
        if flags & abi.OPEN_WAL:
            raise InvalidInputError(NO_WAL)
        opened: DatabaseFile | ScratchFile
        if flags & abi.OPEN_MAIN_JOURNAL:
            opened, out_flags = ScratchFile(), flags
        else:
            try:
                opened = self._open_database(name, flags)
            except Exception as error:  # noqa: BLE001 SQLite gets it as an error code
                return _failed_to_open(error)
            mode = abi.OPEN_READONLY if opened.is_read_only else abi.OPEN_READWRITE
            out_flags = abi.OPEN_MAIN_DB | mode
        number = self._next()
        self._files[number] = opened
        file.number = number
        file.methods = c.pointer(self._methods)
        if out:
            out[0] = out_flags
        return abi.OK

    def _open_database(self, name: int, flags: int) -> DatabaseFile:
        path = c.string_at(name).decode()
        return open_file(
            path,
            self._parameters(name),
            may_create=bool(flags & abi.OPEN_CREATE),
            read_only=bool(flags & abi.OPEN_READONLY),
        )

    @staticmethod
    def _parameters(name: int) -> dict[str, str]:
        """Return the parameters of a URI: SQLite keeps them behind the path, one after the other."""
        found: dict[str, str] = {}
        at = name + len(c.string_at(name)) + 1
        while key := c.string_at(at):
            at += len(key) + 1
            value = c.string_at(at)
            at += len(value) + 1
            found[key.decode()] = value.decode()
        return found

    def _file(self, at: int) -> DatabaseFile | ScratchFile:
        return self._files[abi.File.from_address(at).number]

    def _close(self, at: int) -> int:
        file = self._files.pop(abi.File.from_address(at).number, None)
        if isinstance(file, DatabaseFile):
            close_file(file)
        return abi.OK

    def _call(self, do: Callable[[Any, int], object], *, again: bool = False) -> Callable[..., int]:
        def call(at: int, value: int) -> int:
            do(self._file(at), value)
            return abi.OK

        return guarded(call, _failed, again=again)

    def _read(self, at: int, into: int, amount: int, offset: int) -> int:
        data = self._file(at).read(amount, offset)
        c.memmove(into, data, len(data))
        if len(data) == amount:
            return abi.OK
        c.memset(into + len(data), 0, amount - len(data))
        return abi.IOERR_SHORT_READ

    def _write(self, at: int, source: int, amount: int, offset: int) -> int:
        self._file(at).write(c.string_at(source, amount), offset)
        return abi.OK

    def _size(self, at: int, out: Any) -> int:
        out[0] = self._file(at).size()
        return abi.OK

    def _check_reserved(self, at: int, out: Any) -> int:
        out[0] = int(self._file(at).is_reserved())
        return abi.OK

    def _file_control(self, at: int, op: int, argument: int | None) -> int:
        file = self._file(at)
        if op == abi.FCNTL_PRAGMA and argument is not None:
            return self._pragma(file, argument)
        return abi.OK if file.control(op, argument) else abi.NOTFOUND

    def _pragma(self, file: DatabaseFile | ScratchFile, argument: int) -> int:
        words = (c.c_char_p * 3).from_address(argument)
        name, value = words[1] or b"", words[2]
        try:
            answer = file.pragma(name.decode(), None if value is None else value.decode())
            code = abi.OK
        except InvalidInputError as error:
            answer, code = str(error), abi.ERROR
        if answer is None:
            return abi.NOTFOUND
        say = self._library.sqlite3_mprintf
        say.restype = c.c_void_p
        c.c_void_p.from_address(argument).value = say(b"%s", answer.encode())
        return code

    # Names.

    def _access(self, _vfs: int, _name: bytes, _flags: int, out: Any) -> int:
        out[0] = 0  # no journal is ever left behind
        return abi.OK

    def _full_pathname(self, _vfs: int, name: bytes, most: int, out: int) -> int:
        path = full_path(name.decode()).encode() + b"\0"
        if len(path) > most:
            return abi.CANTOPEN
        c.memmove(out, path, len(path))
        return abi.OK


def _always(number: int) -> Callable[..., int]:
    return guarded(lambda *_: number, lambda _: number)


def _failed_to_open(error: BaseException) -> int:
    return _failed(error, abi.CANTOPEN)


@all_through
def _failed(error: BaseException, code: int = abi.IOERR) -> int:
    if isinstance(error, Busy):
        return abi.BUSY
    _trouble.error = error
    with suppress(Exception):
        _log.warning("SQLite's call failed: %s", error, exc_info=not isinstance(error, ReefError))
    return code


@lru_cache(1)
def register_sqlite3() -> object:
    """Make `sqlite3.connect("file:...?vfs=reef", uri=True)` work; return the VFS, to keep it alive.

    Raises UnsupportedStoreError where the standard library's SQLite is not a shared library.
    """
    import sqlite3

    # From here on any URI may open a database, and no answer to that call may be left to chance.
    defer_interrupts(for_good=True)
    for name in (ctypes.util.find_library("sqlite3"), "libsqlite3.so.0"):
        with suppress(OSError):
            library = c.CDLL(name) if name else None
            if library is None:
                continue
            library.sqlite3_libversion.restype = c.c_char_p
            if library.sqlite3_libversion() == sqlite3.sqlite_version.encode():
                with sqlite3.connect(":memory:"):  # which initializes it
                    return _CtypesVfs(library)
    raise UnsupportedStoreError(
        f"the SQLite {sqlite3.sqlite_version} of the sqlite3 module is not a shared library that can "
        "be found, so no VFS can be registered in it: use reef.sqlite.connect, which uses apsw"
    )
