"""A forked process that tells its parent what it does, record by record, until it is killed."""

from __future__ import annotations

import faulthandler
import logging
import os
import select
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

from tests.support.waiting import DEADLINE_SECONDS

STUCK_SECONDS = DEADLINE_SECONDS
BROKEN = b"x"
"""The kind of record that tells of an error that should not be."""

_RECORD = struct.Struct("<cQQ")


class StuckError(Exception):
    """A child has gone silent; its threads are shown on stderr."""


class Forked:
    """A forked process with a pipe to its parent."""

    def __init__(self, body: Callable[[int], None]) -> None:
        self._in, out = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._in)
            _run(body, out)
        os.close(out)
        self._rest = b""

    def records(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield what the child tells, as it comes, until it is dead."""
        while True:
            while len(self._rest) >= _RECORD.size:
                record = _RECORD.unpack_from(self._rest)
                self._rest = self._rest[_RECORD.size :]
                yield record
            chunk = self._read()
            if not chunk:
                return
            self._rest += chunk

    def read_all(self) -> bytes:
        """Return everything that the child writes until it ends."""
        return b"".join(iter(self._read, b""))

    def kill(self) -> None:
        """kill -9."""
        os.kill(self._pid, signal.SIGKILL)

    def end(self, *, wait: bool = False) -> None:
        """Make sure that it is dead and gone; `wait`: when it has done what it does."""
        if wait:
            self.read_all()
        self.kill()
        os.waitpid(self._pid, 0)
        os.close(self._in)

    def _read(self) -> bytes:
        if not select.select([self._in], [], [], STUCK_SECONDS + 10)[0]:
            raise StuckError(f"nothing was heard of a child for {STUCK_SECONDS} s")
        return os.read(self._in, 1 << 16)


def _run(body: Callable[[int], None], out: int) -> NoReturn:
    """Run a child's body to its end; the parent's stack is not unwound."""
    faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
    logging.getLogger("reef").addHandler(Complaints(out))
    threading.excepthook = lambda args: complain(out, args.exc_value)
    code = 0
    try:
        reporting(out, lambda: body(out))
    except BaseException:  # noqa: BLE001 nothing may get out of a fork
        code = 1
    finally:
        os._exit(code)


def reporting(out: int, body: Callable[[], None]) -> None:
    """Run `body`; what it raises is shown and told."""
    try:
        body()
    except BrokenPipeError:
        os._exit(1)  # the supervisor is dead
    except BaseException as error:  # noqa: BLE001 whatever it is, it is a finding
        complain(out, error)


class Complaints(logging.Handler):
    """What is logged of errors, such as a flush that failed, is a finding here."""

    def __init__(self, out: int) -> None:
        super().__init__(logging.WARNING)
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        given = record.args if isinstance(record.args, tuple) else ()
        has_error = any(isinstance(value, Exception) for value in given)
        if record.levelno >= logging.ERROR or has_error:
            print(record.getMessage(), file=sys.stderr, flush=True)
            tell(self._out, BROKEN)


def complain(out: int, error: BaseException | None) -> None:
    """Show an error and tell that there was one."""
    traceback.print_exception(error)
    tell(out, BROKEN)


def tell(out: int, kind: bytes, number: int = 0, lsn: int = 0) -> None:
    """Tell the supervisor: one write, whole or not at all."""
    os.write(out, _RECORD.pack(kind, number, lsn))
