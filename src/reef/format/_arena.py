"""Memory for large encoded batches, used again when the last array on it is gone.

Memory that is touched for the first time costs more than the copy into it: a batch of 5.6 MB takes
0.5 ms in memory that was used before, 2 ms in fresh small pages, and 1 to 15 ms in huge ones, which
Arrow's own pool takes. Huge pages are the large blocks that a virtual machine lends to others while
nobody uses them, and has to get back first. So these blocks are of small pages, and a few are kept.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from contextlib import suppress

import numpy as np
import pyarrow as pa

_STEP_BYTES = 256 << 10  # what a batch leaves of its block was never touched, and so costs nothing
_KEPT_BYTES_MAX = 128 << 20  # a memtable that is flushed, and as much as comes meanwhile


class Arena:
    """Blocks of memory. Safe to share among threads."""

    def __init__(self, kept_bytes_max: int = _KEPT_BYTES_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        # No lock: a block comes back wherever its last array dies, perhaps in the middle of `take`.
        self._kept: deque[mmap.mmap] = deque()

    @property
    def kept_bytes(self) -> int:
        """How much lies here for the next `take`."""
        return sum(map(len, list(self._kept)))

    def take(self, size: int) -> pa.Buffer:
        """Return a buffer that can be written, of at least `size` bytes, whatever is in them.

        Its memory comes back when neither the buffer nor a slice of it is left. Raises MemoryError.
        """
        block = self._kept_block(size) or _new_block(size)
        view = np.frombuffer(block, np.uint8)
        weakref.finalize(view, self._give_back, block).atexit = False
        return pa.py_buffer(view)

    def _kept_block(self, size: int) -> mmap.mmap | None:
        """Return a block of `size` to twice as many bytes that is kept, if there is one."""
        for block in list(self._kept):
            if size <= len(block) <= 2 * size:
                with suppress(ValueError):  # somebody else has taken it meanwhile
                    self._kept.remove(block)
                    return block
        return None

    def _give_back(self, block: mmap.mmap) -> None:
        if self.kept_bytes + len(block) <= self._kept_bytes_max:
            self._kept.append(block)


def _new_block(size: int) -> mmap.mmap:
    size += -size % _STEP_BYTES
    try:
        block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for a batch of {size} bytes: {error}") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel that has no huge pages
            block.madvise(mmap.MADV_NOHUGEPAGE)
    return block
