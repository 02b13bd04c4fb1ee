"""The structures of SQLite's C interface that a VFS is made of, as ctypes has them."""

from __future__ import annotations

import ctypes as c

OK, ERROR, BUSY, IOERR, NOTFOUND, CANTOPEN = 0, 1, 5, 10, 12, 14
IOERR_SHORT_READ = IOERR | 2 << 8
OPEN_READONLY, OPEN_READWRITE, OPEN_CREATE = 0x1, 0x2, 0x4
OPEN_MAIN_DB, OPEN_MAIN_JOURNAL, OPEN_SUPER_JOURNAL, OPEN_WAL = 0x100, 0x800, 0x4000, 0x80000
FCNTL_PRAGMA, FCNTL_SYNC, FCNTL_COMMIT_PHASETWO = 14, 21, 22
CHARACTERISTICS = 0x200 | 0x400 | 0x800 | 0x1000
"""Safe append, sequential, undeletable when open, power-safe overwrite."""
SECTOR_BYTES = 4096
PATH_BYTES_MAX = 2048


def _int_function(*arguments: type) -> type:
    return c.CFUNCTYPE(c.c_int, *arguments)


_P, _I, _L = c.c_void_p, c.c_int, c.c_longlong
_POUT = c.POINTER(c.c_int)

Close = _int_function(_P)
Read = _int_function(_P, _P, _I, _L)
Truncate = _int_function(_P, _L)
Sync = _int_function(_P, _I)
FileSize = _int_function(_P, c.POINTER(c.c_longlong))
Lock = _int_function(_P, _I)
CheckReserved = _int_function(_P, _POUT)
FileControl = _int_function(_P, _I, _P)
Number = _int_function(_P)

Open = _int_function(_P, _P, _P, _I, _POUT)
Delete = _int_function(_P, c.c_char_p, _I)
Access = _int_function(_P, c.c_char_p, _I, _POUT)
FullPathname = _int_function(_P, c.c_char_p, _I, _P)


class IoMethods(c.Structure):
    """`sqlite3_io_methods`, version 1: no shared memory, no mapping."""

    _fields_ = (
        ("version", _I),
        ("close", Close),
        ("read", Read),
        ("write", Read),
        ("truncate", Truncate),
        ("sync", Sync),
        ("file_size", FileSize),
        ("lock", Lock),
        ("unlock", Lock),
        ("check_reserved", CheckReserved),
        ("file_control", FileControl),
        ("sector_size", Number),
        ("characteristics", Number),
    )


class Vfs(c.Structure):
    """`sqlite3_vfs`, version 1. Members that are not ours are copied from the system's own VFS."""

    _fields_ = (
        ("version", _I),
        ("file_bytes", _I),
        ("path_bytes", _I),
        ("next", _P),
        ("name", c.c_char_p),
        ("data", _P),
        ("open", Open),
        ("delete", Delete),
        ("access", Access),
        ("full_pathname", FullPathname),
        ("dl_open", _P),
        ("dl_error", _P),
        ("dl_sym", _P),
        ("dl_close", _P),
        ("randomness", _P),
        ("sleep", _P),
        ("current_time", _P),
        ("last_error", _P),
    )


class File(c.Structure):
    """`sqlite3_file`, and behind it which of our files it is."""

    _fields_ = (("methods", c.POINTER(IoMethods)), ("number", c.c_longlong))
