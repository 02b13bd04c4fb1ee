"""Running a command whose stderr is a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import threading
from collections.abc import Sequence
from typing import NamedTuple


class Ran(NamedTuple):
    """What a command has left."""

    code: int
    out: bytes
    shown: bytes
    """What it wrote to the terminal."""


def run_on_terminal(command: Sequence[str], **environment: str) -> Ran:
    """Run a command to its end, with `environment` added to the one here."""
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # when nobody is left who could write
            while chunk := os.read(ours, 1 << 16):
                shown.append(chunk)

    # Beside it: the slower the machine, the more progress is shown, and a terminal holds little.
    reader = threading.Thread(target=read)
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", **environment},
        )
        os.close(theirs)
        reader.start()
        out, _ = process.communicate()
        reader.join()
    finally:
        os.close(ours)
    return Ran(process.returncode, out, b"".join(shown))
