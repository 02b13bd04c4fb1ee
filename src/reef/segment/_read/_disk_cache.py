"""Bytes of segments in a local folder, the least recently used removed first.

Invariants:

- A file appears whole, by a rename, and carries a checksum: one that is torn or damaged is removed
  and counts as missing. Nothing is synced: bytes lost in a power failure are fetched again.
- A failure of this cache never fails a read: bytes that cannot be stored are not kept, a file that
  cannot be read is missing.
- The files that this process knows take at most `capacity_bytes`. Several processes may share a
  folder: each looks at all of it again when it has added a sixteenth of the capacity, so that they
  exceed the bound by a sixteenth each, at most.
- The time of a file's last use is its modification time, so that the order outlives the process.

    file = bytes, magic "RFCACH1\\0", crc32c u32 of the bytes, u32 zero
    name = sha256 of what it is called, in a folder of the first two hex digits
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import struct
import tempfile
import threading
from collections import OrderedDict

import pyarrow as pa
from crc32c import crc32c

from reef.clock import Clock
from reef.errors import InvalidInputError
from reef.metrics import Metrics
from reef.threads import check_may_wait

_MAGIC = b"RFCACH1\0"
_TRAILER = struct.Struct("<8sII")
_TEMPORARY = "reef-tmp-"
_FOLDER = re.compile(r"[0-9a-f]{2}")
_FILE = re.compile(r"[0-9a-f]{64}")
_STALE_TEMPORARY_US = 3600 * 1_000_000
_log = logging.getLogger("reef.segment")


class DiskCache:
    """A folder of byte strings by name, bounded in bytes. Safe among threads and processes."""

    def __init__(
        self, folder: str | os.PathLike[str], capacity_bytes: int, *, metrics: Metrics, clock: Clock
    ) -> None:
        """Use `folder` and the files in it; create it if needed. Raises InvalidInputError."""
        self.folder = os.path.abspath(folder)
        self.capacity_bytes = capacity_bytes
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._writing: dict[str, int] = {}
        self._nbytes = 0
        self._added = 0
        self._warned = False
        try:
            os.makedirs(self.folder, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise InvalidInputError(
                f"disk_cache_dir = {str(self.folder)!r} cannot be used "
                f"({error.strerror}): give a folder that Reef can write to"
            ) from error
        with self._lock:
            self._scan()
            self._evict(0)

    @property
    def nbytes(self) -> int:
        """The bytes of the files that this process knows."""
        return self._nbytes

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, name: str) -> bool:
        """Return whether this process knows of such a file, without looking."""
        return _digest(name) in self._sizes

    def get(self, name: str) -> pa.Buffer | None:
        """Return the bytes kept under `name`, checked, or None."""
        check_may_wait()
        digest = _digest(name)
        try:
            data = self._read(digest)
        except OSError as error:
            self._failed("read", error)
            data = None
            with self._lock:
                self._forget(digest)
        if data is None:
            self._metrics.count("reef_cache_misses_total", cache="disk")
            return None
        self._metrics.count("reef_cache_hits_total", cache="disk")
        return data

    def put(self, name: str, data: pa.Buffer) -> None:
        """Keep `data`, and remove other files for it, unless it is too large by itself."""
        size = data.size + _TRAILER.size
        if size > self.capacity_bytes:
            return
        digest = _digest(name)
        with self._lock:
            if self._added + size > self.capacity_bytes // 16:
                self._scan()
            self._forget(digest)
            self._evict(size)
            self._added += size
            # Before the file exists: no other thread may use its room meanwhile.
            self._writing[digest] = size
            self._note(digest, size)
        written = False
        try:
            self._write(digest, data)
            written = True
        except OSError as error:
            self._failed("write", error)
        finally:
            with self._lock:
                self._writing.pop(digest, None)
                self._forget(digest)  # whatever others made of it before it was there
                if written:
                    self._note(digest, size)
                    self._evict(0)

    def drop(self, name: str) -> None:
        """Remove the file of `name`."""
        digest = _digest(name)
        with self._lock:
            self._remove(digest)

    def _read(self, digest: str) -> pa.Buffer | None:
        path = self._path(digest)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            with self._lock:
                self._forget(digest)
            return None
        try:
            size = os.fstat(descriptor).st_size
            length = max(size - _TRAILER.size, 0)
            is_ours = size <= self.capacity_bytes  # a larger one was put there by somebody else
            data = os.pread(descriptor, length, 0) if is_ours else b""
            trailer = os.pread(descriptor, _TRAILER.size, length) if is_ours else b""
            if trailer != _trailer(data):
                _log.warning("%s in the disk cache is damaged and was removed", path)
                with self._lock:
                    self._remove(digest)
                return None
            with contextlib.suppress(OSError):  # of another user's file
                os.utime(descriptor)
        finally:
            os.close(descriptor)
        with self._lock:
            if digest in self._sizes:
                self._sizes.move_to_end(digest)
            else:  # another process has put it there
                self._note(digest, size)
                self._evict(0)
        return pa.py_buffer(data)

    def _write(self, digest: str, data: pa.Buffer) -> None:
        path = self._path(digest)
        descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=self.folder)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                for part in (memoryview(data).cast("B"), memoryview(_trailer(data))):
                    while part:
                        part = part[file.write(part) :]
            try:
                os.rename(temporary, path)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _scan(self) -> None:
        """Read the folder, with the files of other processes."""
        found: list[tuple[int, str, int]] = []
        stale_us = self._clock.now_us() - _STALE_TEMPORARY_US
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if entry.name.startswith(_TEMPORARY):
                        _remove_stale(entry, stale_us)
                    elif _FOLDER.fullmatch(entry.name):
                        found += _files(entry.path)
        except OSError as error:
            self._failed("scan", error)
        found.sort()
        self._sizes.clear()
        self._sizes.update((digest, size) for _, digest, size in found)
        self._sizes.update(self._writing)
        self._nbytes = sum(self._sizes.values())
        self._added = 0

    def _evict(self, room: int) -> None:
        while self._sizes and self._nbytes + room > self.capacity_bytes:
            self._remove(next(iter(self._sizes)))

    def _note(self, digest: str, size: int) -> None:
        self._sizes[digest] = size
        self._nbytes += size

    def _forget(self, digest: str) -> None:
        self._nbytes -= self._sizes.pop(digest, 0)

    def _remove(self, digest: str) -> None:
        self._forget(digest)
        with contextlib.suppress(OSError):
            os.unlink(self._path(digest))

    def _path(self, digest: str) -> str:
        return f"{self.folder}/{digest[:2]}/{digest}"

    def _failed(self, what: str, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("the disk cache in %s cannot %s: %s", self.folder, what, error)


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _trailer(data: bytes | pa.Buffer) -> bytes:
    return _TRAILER.pack(_MAGIC, crc32c(data), 0)


def _files(folder: str) -> list[tuple[int, str, int]]:
    """Return (time of last use, digest, size) of the files in a folder."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            # Other files there are not ours to remove.
            if _FILE.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError):  # removed by another process
                    seen = entry.stat(follow_symlinks=False)
                    found.append((seen.st_mtime_ns, entry.name, seen.st_size))
    return found


def _remove_stale(temporary: os.DirEntry[str], stale_us: int) -> None:
    """Remove the temporary files of processes that died."""
    with contextlib.suppress(OSError):
        if temporary.stat().st_mtime_ns // 1000 < stale_us:
            os.unlink(temporary.path)
