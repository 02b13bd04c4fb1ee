"""Tasks for the tests of runners: at module level, so that an executor can import them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from reef.engine import Context
from reef.errors import ConflictError, CorruptError, NotFoundError
from tests.support.waiting import until


class Ask(msgspec.Struct, frozen=True):
    """What a task of these tests is to do."""

    number: int
    folder: str = ""
    payload: bytes = b""


class Told(msgspec.Struct, frozen=True):
    """What it did, and where."""

    number: int
    pid: int
    parent: int
    url: str


def double(context: Context, ask: Ask) -> Told:
    """Return twice the number."""
    return Told(2 * ask.number, os.getpid(), os.getppid(), context.store.url)


def put(context: Context, ask: Ask) -> Told:
    """Create an object of that number, by which the bucket is shown to be the one meant."""
    context.store.put_if_absent(f"made/{ask.number}", ask.payload)
    return double(context, ask)


def fail_by_number(context: Context, ask: Ask) -> Told:
    """Raise another error of Reef's for each remainder of three."""
    if ask.number % 3 == 1:
        raise CorruptError(f"segments/{ask.number}.seg", 17, "abc", "abd")
    if ask.number % 3 == 2:
        raise ConflictError("manifest/7", b"theirs")
    return double(context, ask)


def fail_first(context: Context, ask: Ask) -> Told:
    """Raise what is no error of Reef's the first time, return the second."""
    try:
        os.close(os.open(Path(ask.folder, str(ask.number)), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return double(context, ask)
    raise OSError(f"the disk of {ask.number} is gone")


def die_first(context: Context, ask: Ask) -> Told:
    """Die with the whole process the first time, return the second."""
    try:
        os.close(os.open(Path(ask.folder, str(ask.number)), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return double(context, ask)
    os._exit(9)


def fail_always(context: Context, ask: Ask) -> Told:
    """Raise what is no error of Reef's."""
    raise ZeroDivisionError(f"number {ask.number} has no inverse")


def miss(context: Context, ask: Ask) -> Told:
    """Ask the store for what is not there."""
    context.store.get(f"nothing/{ask.number}")
    raise AssertionError("it is there")


def wait_for_word(context: Context, ask: Ask) -> Told:
    """Say in a file that this attempt has begun, then wait for a file called "go"."""
    told = double(context, ask)
    mine = Path(ask.folder, f"begun-{ask.number}-{told.pid}")
    mine.with_suffix(".tmp").write_text(str(executor_of(told.pid)))
    mine.with_suffix(".tmp").rename(mine)
    until(Path(ask.folder, "go").exists)
    return told


def last_waits(context: Context, ask: Ask) -> Told:
    """Number 8 waits for a file called "go"."""
    if ask.number == 8:
        until(Path(ask.folder, "go").exists)
    return double(context, ask)


def executor_of(pid: int) -> int:
    """Return the JVM that a Python worker works for: the nearest ancestor that is one."""
    while True:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)
        if fields[0].endswith("(java"):
            return pid
        pid = int(fields[1].split()[1])
        if pid <= 1:
            raise NotFoundError("no JVM above this process")
