"""`s3://`, `gs://` and `az://` through obstore, with the differences among servers hidden.

Two clients on one bucket: one that makes single attempts, for conditional PUTs, because a client
that repeats them reports its own success as a conflict; and one that repeats, for everything that
is safe to repeat.

The clients run on threads of obstore's, one set for the process, begun by its first request. A fork
does not copy threads: in a process forked after that, no request would ever be answered, so each is
refused at once.

Differences hidden here: a missing bucket looks like a missing object on some requests; Azure says
NotFound to a repeated delete; Azurite ignores start-after; SeaweedFS lists folder by folder; a range
past the end is cut short by some servers and refused by others. Two show through: to HEAD, a
missing bucket is a missing object, and SeaweedFS makes a missing bucket at the first PUT.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import obstore
from obstore import exceptions
from typing_extensions import Buffer

from reef.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    ClosedError,
    IncompleteError,
    NotFoundError,
    UnavailableError,
    UnsupportedStoreError,
)
from reef.store._base import Data, ObjectMeta, Store, as_view
from reef.store._byte_order import in_byte_order, safe_offset
from reef.store._byte_ranges import check_range
from reef.store._upload import send_parts
from reef.types import check_object_key, check_prefix

PART_BYTES_DEFAULT = 8 << 20
_LIST_PAGE = 1000
# What is matched must not be found in a key, or a lost reply could pass for a refusal.
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_CREDENTIALS = (
    "AccessDenied",
    "AuthenticationFailed",
    "AuthorizationFailure",
    "AuthorizationHeaderMalformed",
    "AuthorizationQueryParametersError",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
)
# Where clients ask for credentials if none were given.
_NO_CREDENTIALS = re.compile(r"://(?:169\.254\.\d+\.\d+|metadata\.google\.internal)\b")
_PAST_END = re.compile(r"object was only \d+ bytes|CONTENT_RANGE header: \"bytes \d+--")


class _ClientThreads:
    """Whether obstore's threads were begun, and whether a fork has left them behind."""

    are_begun = are_lost = False

    def note_fork(self) -> None:
        self.are_lost = self.are_begun


_client_threads = _ClientThreads()
os.register_at_fork(after_in_child=_client_threads.note_fork)


class RemoteStore(Store):
    """A bucket (or container) behind HTTP."""

    def __init__(
        self,
        url: str,
        *,
        single: Any,
        repeating: Any,
        prefix: str,
        reopen: Callable[[], Store],
        sweep: Callable[[str, int], Sequence[str]],
        part_bytes: int = PART_BYTES_DEFAULT,
        **options: Any,
    ) -> None:
        """Use `single` (one attempt) and `repeating` (retries), both obstore clients of one bucket.

        `reopen` makes the same store in another process; `sweep(prefix, before_us)` discards
        unfinished uploads, where the service can.
        """
        super().__init__(url, **options)
        self._single = single
        self._repeating = repeating
        self._prefix = prefix
        self._reopen = reopen
        self._sweep = sweep
        self._part_bytes = part_bytes

    def put_if_absent(self, key: str, data: Data) -> None:
        given = [*map(as_view, data)] if isinstance(data, tuple) else as_view(data)
        with self._explained(key):
            obstore.put(self._single, self._path(key), given, mode="create", use_multipart=False)

    def put(self, key: str, data: Buffer) -> None:
        """Write `key` whatever is there."""
        with self._explained(key):
            obstore.put(self._repeating, self._path(key), as_view(data), use_multipart=False)

    def copy(self, source: str, destination: str) -> None:
        """Write the bytes of `source` to `destination`, on the server. Raises NotFoundError."""
        with self._explained(source):
            obstore.copy(self._repeating, self._path(source), self._path(destination))

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        path = self._path(key)

        def send(given: Any, **how: Any) -> None:
            try:
                with self._explained(key):
                    obstore.put(self._repeating, path, given, **how)
            except NotFoundError as error:
                # Its parts were discarded, or it was completed already and the reply got lost.
                raise UnavailableError(
                    f"{self.url}: the upload of {key!r} no longer exists: it was finished or "
                    "discarded. Check whether the object is there; if not, upload it again"
                ) from error

        source = iter(parts)
        first = list(_taken(source, self._part_bytes))
        if sum(part.nbytes for part in first) <= self._part_bytes:
            send(first[0] if len(first) == 1 else b"".join(first), use_multipart=False)
        else:
            in_parts = partial(
                send,
                use_multipart=True,
                chunk_size=self._part_bytes,
                max_concurrency=self.concurrency,
            )
            send_parts(chain(first, source), in_parts)

    def sweep(self, before_us: int) -> Sequence[str]:
        return [key[len(self._prefix) :] for key in self._sweep(self._prefix, before_us)]

    def get(self, key: str) -> bytes:
        with self._explained(key):
            found = obstore.get(self._repeating, self._path(key))
            data = bytes(found.bytes())
        if len(data) != found.meta["size"]:
            raise IncompleteError(key, len(data), f"{found.meta['size']} bytes", str(len(data)))
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        with self._explained(key, start):
            data = bytes(
                obstore.get_range(self._repeating, self._path(key), start=start, length=length)
            )
        if len(data) != length:
            raise IncompleteError(key, start, f"{length} bytes", str(len(data)))
        return data

    def head(self, key: str) -> ObjectMeta:
        with self._explained(key):
            return _meta(key, obstore.head(self._repeating, self._path(key)))

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        folder = check_prefix(prefix)
        if start_after > folder and not start_after.startswith(folder):
            return  # it lies behind everything in the folder
        last = start_after
        for meta in in_byte_order(self._listed(folder, start_after), folder):
            if meta.key <= start_after:
                continue  # some servers list from the start, or from a bit before
            if meta.key <= last:
                raise UnsupportedStoreError(
                    f"{self.url} lists {meta.key!r} after {last!r}, neither by bytes nor folder by "
                    "folder: a log cannot be found in it; use another store"
                )
            last = meta.key
            yield meta

    def _listed(self, folder: str, start_after: str) -> Iterator[ObjectMeta]:
        """Yield what the server lists, as it does."""
        under = self._prefix + folder
        skip = len(self._prefix)
        offset = safe_offset(folder, start_after) if start_after > folder else None
        with self._explained(folder):
            pages = obstore.list(
                self._repeating,
                under or None,
                offset=None if offset is None else self._prefix + offset,
                chunk_size=_LIST_PAGE,
            )
            for page in pages:
                for found in page:
                    yield _meta(found["path"][skip:], found)

    def delete(self, key: str) -> None:
        try:
            with self._explained(key):
                obstore.delete(self._repeating, self._path(key))
        except NotFoundError:
            pass

    def __reduce__(self) -> tuple[Callable[[], Store], tuple[()]]:
        return self._reopen, ()

    def _path(self, key: str) -> str:
        return self._prefix + check_object_key(key)

    @contextmanager
    def _explained(self, key: str, offset: int = 0) -> Iterator[None]:
        """Turn what obstore raises into what the caller should do."""
        if _client_threads.are_lost:
            raise ClosedError(
                f"{self.url}: this process was forked from one that had sent requests to s3://, gs:// "
                "or az://, whose threads a fork does not copy: start it by spawn or forkserver, as "
                'in multiprocessing.get_context("forkserver"), or fork before the first request'
            )
        _client_threads.are_begun = True
        try:
            yield
        except exceptions.AlreadyExistsError as error:
            raise AlreadyExistsError(f"{key!r} exists in {self.url}, or may") from error
        except (FileNotFoundError, PermissionError, exceptions.BaseError, OSError) as error:
            raise self._explain(key, offset, error) from error

    def _explain(self, key: str, offset: int, error: BaseException) -> Exception:
        text = str(error).split("\n\nDebug source", 1)[0]
        found = _STATUS.search(text)
        status = int(found[1]) if found else 0
        found = _CODE.search(text) if status else None
        code = found[1] if found else ""
        if code in _NO_BUCKET:
            return BucketNotFoundError(
                f"{self.url}: there is no such bucket; create it, or fix the URL"
            )
        if isinstance(error, FileNotFoundError):
            return NotFoundError(f"{key!r} is not in {self.url}")
        if status in (401, 403) or code in _CREDENTIALS:
            return AccessDeniedError(
                f"{self.url}: access to {key!r} was refused ({f'{status} {code}'.strip()}); "
                "check the credentials, the region, and what they allow"
            )
        if _NO_CREDENTIALS.search(text):
            return AccessDeniedError(
                f"{self.url}: no credentials were found; give them as options of the URL, "
                "or in the variables that the service's own tools read"
            )
        if status == 501:
            return UnsupportedStoreError(
                f"{self.url} does not implement a request for {key!r} (501 {code}); use another "
                "store, or cas=two-phase if it only lacks conditional PUTs"
            )
        if status == 416 or _PAST_END.search(text):
            return IncompleteError(key, offset, "bytes there", "the end of the object")
        return UnavailableError(
            f"{self.url}: no answer for {key!r} ({_first_line(text)}); check the endpoint and retry"
        )


def _taken(source: Iterator[Buffer], most: int) -> Iterator[memoryview]:
    """Yield parts until they are more than `most` bytes together, or there are no more."""
    size = 0
    while size <= most and (part := next(source, None)) is not None:
        view = as_view(part)
        size += view.nbytes
        yield view


def _first_line(text: str) -> str:
    """Return the client's own words, without the server's whole reply."""
    line = text.split("\n", 1)[0]
    code = _CODE.search(text)
    return re.sub(r": <\?xml.*| with body.*", "", line)[:300] + (f": {code[1]}" if code else "")


def _meta(key: str, found: Any) -> ObjectMeta:
    return ObjectMeta(key, found["size"], round(found["last_modified"].timestamp() * 1_000_000))
