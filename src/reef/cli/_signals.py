"""Ctrl-C and SIGTERM: the end at once, or an exception while there is something to clean up.

While Python is importing or shutting down, an exception would come out of code that is not
ours as a traceback, or be swallowed by it; there is nothing to clean up then either.

SIGTERM does what Ctrl-C does at that moment: PySpark cancels its jobs, SQLite's calls put it off. A second
SIGTERM ends the process on the spot.
"""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType

INTERRUPTED, TERMINATED = 130, 143
_CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
_MESSAGES = {INTERRUPTED: "interrupted", TERMINATED: "terminated"}

_is_terminated = False


def end_at_once() -> None:
    """Let both signals end the process on the spot, with one line and the exit code for it."""
    for number in _CODES:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as for a shell's background jobs
            signal.signal(number, _end_process)


def unwind() -> None:
    """Let both signals raise KeyboardInterrupt: from here on there is something to clean up."""
    if signal.getsignal(signal.SIGINT) is _end_process:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is _end_process:
        signal.signal(signal.SIGTERM, _terminate)


def is_terminated() -> bool:
    """Return whether SIGTERM has come."""
    return _is_terminated


def interrupted() -> tuple[str, int]:
    """Return what is said of a command that a signal has ended, and its exit code."""
    code = TERMINATED if _is_terminated else INTERRUPTED
    return _MESSAGES[code], code


def _terminate(_number: int, frame: FrameType | None) -> None:
    global _is_terminated
    _is_terminated = True
    on_interrupt = signal.getsignal(signal.SIGINT)
    if not callable(on_interrupt):  # ignored, as for a shell's background jobs
        on_interrupt = signal.default_int_handler
    signal.signal(signal.SIGTERM, _end_process)
    try:
        on_interrupt(signal.SIGINT, frame)
    except Exception:  # noqa: BLE001 PySpark's JVM may have had the same signal and be gone
        raise KeyboardInterrupt from None


def _end_process(number: int, _frame: FrameType | None) -> None:
    code = _CODES[signal.Signals(number)]
    with contextlib.suppress(OSError):
        os.write(2, f"reef: {_MESSAGES[code]}\n".encode())
    os._exit(code)
