"""`file://` — a folder as a bucket, durable and safe among processes.

Invariants:

- An object appears whole or not at all: it is written to a temporary file, which is fsynced and
  then *linked* to its name. The link is the put-if-absent: it fails if the name is taken.
- After a put returns, the object survives a power failure: the folder's entry is fsynced too, and
  so is the entry of every folder that had to be made.
- Nothing is written in place, so a reader never sees a partial object.
- Whatever fails before the link is `NotWrittenError`, or a refusal: the object is not there.

Crash points: before the link, a stray temporary file, which `sweep` removes; after the link, the
object, whole. A delete is not fsynced: after a power failure the object may be back. If the fsync of
a folder fails, the kernel may have dropped what was to be written, and report success the next time:
the handle refuses everything from then on, and after a link the outcome is unknown.

A full disk must not keep collection from freeing it, and collection has to publish a manifest first. So
a few small files are kept in `.reserve~`, from the bucket's first object on. When there is no room for
a PUT of collection, it takes one of them by a rename, writes over its blocks, and links it to the
object's name. A file is whole before it has its name there, and is never written to under it: what
one process takes, no other one still fills.

`?fsync=off` skips every fsync: still atomic and safe among processes, not safe against power loss.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import threading
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from typing_extensions import Buffer

from reef.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    IncompleteError,
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedStoreError,
)
from reef.store._base import Data, ObjectMeta, Store, as_view, parts_of
from reef.store._byte_ranges import check_range
from reef.types import OBJECT_KEY_BYTES_MAX, check_object_key, check_prefix

TEMPORARY = ".tmp~"  # no object can be called that: keys have no "~"
RESERVE = ".reserve~"
# A collection publishes up to three manifests, and one of 600 segments has this size.
_RESERVE_FILES, _RESERVE_BYTES = 3, 256 << 10


# The larger a write, the larger the blocks of memory that the kernel takes for it. A virtual machine
# that lends its large free blocks to others has to get them back first: it took 4 to 7 ms of a
# processor to write 5.6 MB at once, and 1 ms in such pieces. Smaller ones pass the GIL on more often.
_WRITE_BYTES = 256 << 10

_FULL = (errno.ENOSPC, errno.EDQUOT)

# What link(2) says when it has not made the link: no room for it, or nothing to link.
_NOT_LINKED = (errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.ENOTDIR, errno.EROFS)
_NOT_THERE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class FileStore(Store):
    """A folder on a local file system that has hard links."""

    def __init__(self, root: str | Path, *, fsync: bool = True) -> None:
        self.root = os.path.abspath(root)
        if self.root == "/":
            raise InvalidInputError.of("root", "/", "a folder below /, as in /data/bucket")
        super().__init__(
            f"file://{quote(self.root)}" + ("" if fsync else "?fsync=off"), concurrency=1
        )
        self._fsync = fsync
        self._failed = ""
        self._known_folders: set[str] = set()
        self._has_reserve = False
        self._spending = threading.local()

    def put_if_absent(self, key: str, data: Data) -> None:
        try:
            self._create(key, parts_of(data))
        except NotWrittenError as error:
            if not (_is_full(error.__cause__) and getattr(self._spending, "is_on", False)):
                raise
            self._create(key, parts_of(data), from_reserve=True)

    @contextlib.contextmanager
    def reserve(self) -> Iterator[None]:
        self._spending.is_on = True
        try:
            yield
        finally:
            self._spending.is_on = False

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        self._create(key, parts)

    def sweep(self, before_us: int) -> Sequence[str]:
        """Remove temporary files last written before that time: their writers are gone."""
        self._check_usable()
        self._check_root()
        removed = []
        with self._explained(TEMPORARY), contextlib.suppress(FileNotFoundError):
            for entry in sorted(os.scandir(self._path(TEMPORARY)), key=lambda e: e.name):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat().st_mtime_ns // 1000 < before_us:
                        os.unlink(entry.path)
                        removed.append(f"{TEMPORARY}/{entry.name}")
            self._keep_reserve()
        return removed

    def get(self, key: str) -> bytes:
        path = self._object(key)
        with self._explained(key), open(path, "rb", buffering=0) as file:
            return file.read()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        path = self._object(key)
        with self._explained(key), open(path, "rb", buffering=0) as file:
            there = os.fstat(file.fileno()).st_size - start
            if there < length:
                raise IncompleteError(key, start, f"{length} bytes", f"{max(there, 0)}")
            data = os.pread(file.fileno(), length, start)
            while 0 < len(data) < length:  # one call reads 2 GiB at most
                more = os.pread(file.fileno(), length - len(data), start + len(data))
                if not more:
                    break
                data += more
        if len(data) != length:
            raise IncompleteError(key, start, f"{length} bytes", f"{len(data)}")
        return data

    def head(self, key: str) -> ObjectMeta:
        path = self._object(key)
        with self._explained(key):
            found = os.stat(path)
            if stat.S_ISDIR(found.st_mode):
                raise NotFoundError(f"{key!r} is not in {self.url}")
            return _meta(key, found)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        self._check_usable()
        folder = check_prefix(prefix)
        self._check_root()
        with self._explained(prefix):
            yield from self._walk(folder, start_after)

    def delete(self, key: str) -> None:
        path = self._object(key)
        with self._explained(key):
            try:
                os.unlink(path)
            except _NOT_THERE:
                self._check_root()

    def __reduce__(self) -> tuple[partial[FileStore], tuple[str]]:
        return partial(FileStore, fsync=self._fsync), (self.root,)

    # How an object comes to be.

    def _create(self, key: str, parts: Iterable[Buffer], *, from_reserve: bool = False) -> None:
        self._check_usable(NotWrittenError)
        path = self._object(key)
        folder = os.path.dirname(path)
        temporary = self._path(f"{TEMPORARY}/{uuid.uuid4().hex}")
        try:
            with self._unwritten(key):
                self._make_folder(self._path(TEMPORARY))
                self._make_folder(folder)
            if not self._has_reserve and not from_reserve:
                self._keep_reserve()
            self._write(temporary, parts, key, from_reserve=from_reserve)
            try:
                self._link(temporary, path, key)
            except AlreadyExistsError:
                # It may be our own, linked before its folder was synced: who finds it counts on it.
                with self._explained(key):
                    self._sync_folder(folder)
                raise
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        try:
            self._sync_folder(folder)
        except OSError as error:
            raise OutcomeUnknownError(key, self._failed or str(error)) from error

    def _link(self, temporary: str, path: str, key: str) -> None:
        with self._explained(key):
            try:
                os.link(temporary, path)
            except FileExistsError:
                if os.path.isdir(path):
                    raise self._clash(key) from None
                raise AlreadyExistsError(f"{key!r} exists in {self.url}") from None
            except OSError as error:
                if error.errno in (errno.EPERM, errno.ENOTSUP):
                    raise UnsupportedStoreError(
                        f"{self.url}: this file system has no hard links; use one that has"
                    ) from error
                if error.errno not in _NOT_LINKED:
                    raise  # nothing says that it was not carried out
                with self._unwritten(key):
                    raise

    def _write(
        self, path: str, parts: Iterable[Buffer], key: str, *, from_reserve: bool = False
    ) -> None:
        """Write the parts to a new file, durably. Errors of the caller's parts pass unchanged."""
        with self._unwritten(key):
            flags = os.O_WRONLY | os.O_CLOEXEC
            if from_reserve:
                self._take_reserve(path)
            else:
                flags |= os.O_CREAT | os.O_EXCL
            descriptor = os.open(path, flags, 0o644)
        try:
            for part in parts:
                left = as_view(part)
                with self._unwritten(key):
                    while left:
                        left = left[os.write(descriptor, left[:_WRITE_BYTES]) :]
            with self._unwritten(key):
                if from_reserve:
                    os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR))
                if self._fsync:
                    os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _keep_reserve(self) -> None:
        """Make what is missing of the reserve, if there is room; it need not be durable."""
        self._has_reserve = True
        with contextlib.suppress(OSError):
            os.makedirs(self._path(RESERVE), exist_ok=True)
            for path in self._reserve_files():
                if not os.path.exists(path):
                    self._fill_reserve(path)

    def _fill_reserve(self, path: str) -> None:
        temporary = self._path(f"{TEMPORARY}/{uuid.uuid4().hex}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o644)
            try:
                _allocate(descriptor, _RESERVE_BYTES)
            finally:
                os.close(descriptor)
            os.link(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _take_reserve(self, path: str) -> None:
        """Give a file of the reserve the name `path`; raises OSError, as for a full disk, if none is left."""
        for kept in self._reserve_files():
            with contextlib.suppress(FileNotFoundError):
                os.rename(kept, path)
                return
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, and the reserve is used up")

    def _reserve_files(self) -> Sequence[str]:
        return [self._path(f"{RESERVE}/{number}") for number in range(_RESERVE_FILES)]

    def _make_folder(self, path: str) -> None:
        """Make `path` and what is missing above it in the bucket, and make that durable.

        A folder that another process has just made may not be durable yet, so every entry from
        the bucket down is synced the first time this handle comes by.
        """
        if path in self._known_folders:
            return
        self._check_root()
        chain = [path]
        while chain[-1] != self.root:
            chain.append(os.path.dirname(chain[-1]))
        for folder in reversed(chain):
            try:
                os.mkdir(folder)
            except FileExistsError:
                # The folder above the bucket is somebody else's, and may be closed to us.
                if folder == self.root and not os.access(os.path.dirname(folder), os.R_OK):
                    continue
            self._sync_folder(os.path.dirname(folder))
        self._known_folders.add(path)

    def _sync_folder(self, path: str) -> None:
        if not self._fsync:
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            self._failed = f"the fsync of {path!r} failed ({error.strerror})"
            raise
        finally:
            os.close(descriptor)

    # How objects are found.

    def _walk(self, folder: str, start_after: str) -> Iterator[ObjectMeta]:
        """Yield what lies under `folder` in the byte order of whole keys, above `start_after`."""
        try:
            with os.scandir(self._path(folder)) as entries:
                names = sorted(filter(None, (_listed_name(folder, e) for e in entries)))
        except (FileNotFoundError, NotADirectoryError):
            return
        # What sorts below `start_after` without being a folder above it cannot hold what is asked.
        if start_after > folder:
            if not start_after.startswith(folder):
                return
            first = start_after[len(folder) :].split("/", 1)[0]
            names = names[bisect_left(names, first) :]
        for name in names:
            key = folder + name
            if name.endswith("/"):
                yield from self._walk(key, start_after)
            elif key > start_after:
                with contextlib.suppress(FileNotFoundError):
                    yield _meta(key, os.lstat(self._path(key)))

    def _object(self, key: str) -> str:
        self._check_usable()
        return self._path(check_object_key(key))

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}"

    # Errors, in clear words.

    def _check_usable(self, kind: type[UnavailableError] = UnavailableError) -> None:
        if self._failed:
            raise kind(f"{self.url} was closed because {self._failed}; open it again")

    def _check_root(self) -> None:
        parent = os.path.dirname(self.root)
        if not os.path.isdir(parent):
            raise BucketNotFoundError(
                f"{self.url}: the folder {parent!r} does not exist; create it, or fix the URL"
            )
        if os.path.exists(self.root) and not os.path.isdir(self.root):
            raise BucketNotFoundError(f"{self.url} is a file, not a folder; fix the URL")

    def _clash(self, key: str) -> InvalidInputError:
        return InvalidInputError(
            f"object {key!r} clashes with a folder or another object: on file:// no "
            "object can have the name of a folder or lie below an object; use another "
            "name"
        )

    @contextlib.contextmanager
    def _unwritten(self, key: str) -> Iterator[None]:
        """Explain what goes wrong before the link: the object was not created, for certain."""
        with self._explained(key, NotWrittenError):
            try:
                yield
            except NotADirectoryError:
                raise self._clash(key) from None
            except FileNotFoundError as error:
                self._known_folders.clear()
                raise NotWrittenError(
                    f"{self.url}: a folder was removed while {key!r} was written; retry"
                ) from error

    @contextlib.contextmanager
    def _explained(
        self, key: str, otherwise: type[UnavailableError] = UnavailableError
    ) -> Iterator[None]:
        try:
            yield
        except _NOT_THERE:
            self._check_root()
            raise NotFoundError(f"{key!r} is not in {self.url}") from None
        except PermissionError as error:
            raise AccessDeniedError(
                f"{self.url}: no permission for {key!r} ({error.strerror}); "
                "check the owner and mode of the folder"
            ) from error
        except OSError as error:
            advice = "check the disk, then retry"
            if _is_full(error):
                advice = "free some space; `reef gc --apply` does, from a reserve of its own"
            raise otherwise(f"{self.url}: {key!r}: {error.strerror}; {advice}") from error


def _is_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in _FULL


def _allocate(descriptor: int, size: int) -> None:
    """Take `size` bytes of the disk for a file."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.write(descriptor, bytes(size))


def _listed_name(folder: str, entry: os.DirEntry[str]) -> str:
    """Return the entry's name, with "/" for a folder; "" for what no object of Reef's can be.

    Links are not followed: they may lead out of the bucket, or round in circles.
    """
    try:
        check_object_key(entry.name)
    except InvalidInputError:
        return ""
    if len(folder) + len(entry.name) > OBJECT_KEY_BYTES_MAX:
        return ""
    if entry.is_dir(follow_symlinks=False):
        return entry.name + "/"
    return entry.name if entry.is_file(follow_symlinks=False) else ""


def _meta(key: str, stat: os.stat_result) -> ObjectMeta:
    return ObjectMeta(key, stat.st_size, stat.st_mtime_ns // 1000)
