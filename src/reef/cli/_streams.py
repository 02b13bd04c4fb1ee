"""Stdout and stderr, whatever they are: closed, full, or read by nobody."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, TextIO


class _Descriptor(io.FileIO):
    """A file descriptor that remembers that it could not be written: no other error is its own."""

    failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            raise


def prepare_streams() -> None:
    """Make stdout and stderr streams that exist, take every character, and know of their failures."""
    sys.stdout = _writable_stream(sys.stdout, 1)
    sys.stderr = _writable_stream(sys.stderr, 2)


def failure_of(stream: TextIO) -> OSError | None:
    """Return why a stream could not be written, if it could not."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.failure if isinstance(raw, _Descriptor) else None


def discard(stream: TextIO) -> None:
    """Let what is left in a stream go nowhere: Python would try it again at the end, and complain."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


def _writable_stream(stream: TextIO | None, descriptor: int) -> TextIO:
    if stream is None:  # closed (`>&-`): the number would go to the next file that is opened
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    else:
        stream.flush()
    raw = _Descriptor(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", None),
        errors="replace",  # a terminal may not know every character
        line_buffering=descriptor == 2 or raw.isatty(),
    )
