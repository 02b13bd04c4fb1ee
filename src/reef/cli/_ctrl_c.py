"""Ctrl-C: the end at once, or an exception while there is something to clean up.

While Python is importing or shutting down, an exception would come out of code that is not
ours as a traceback, or be swallowed by it; there is nothing to clean up then either.
"""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType

INTERRUPTED = 130
MESSAGE = "interrupted"


def end_at_once() -> None:
    """Let Ctrl-C end the process on the spot, with one line and the exit code for it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as for a shell's background jobs
        signal.signal(signal.SIGINT, _end_process)


def unwind() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again: from here on there is something to clean up."""
    if signal.getsignal(signal.SIGINT) is _end_process:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_process(_signal: int, _frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"reef: {MESSAGE}\n".encode())
    os._exit(INTERRUPTED)
