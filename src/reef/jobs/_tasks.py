"""Tasks: plain functions from a small descriptor to a small result, and who runs them.

A task is a module-level function `task(context, descriptor) -> result`. Descriptor and result are
msgspec Structs and cross between processes as msgpack; payload never does, it goes through the
bucket. A task may run twice, side by side even, and may die anywhere: what it writes has names that
no other attempt uses, and counts only when its driver publishes what came back.
"""

from __future__ import annotations

import functools
import os
import pickle
import resource
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from reef.database import Database
from reef.engine import Context
from reef.errors import InvalidInputError, ReefError
from reef.store import MeteredStore, Store, open_store, parse_url

D = TypeVar("D", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)
Task: TypeAlias = Callable[[Context, D], R]
Progress: TypeAlias = Callable[[int, int], None]
"""Told how many descriptors are done, and how many there are."""

CACHE_BYTES_MAX = 64 << 20
"""Blocks kept by a process that runs tasks: they read nearly everything once."""

_SECRETS = frozenset(
    {
        "access_key_id",
        "secret_access_key",
        "session_token",
        "account_key",
        "sas_key",
        "client_secret",
    }
)


class Bucket(msgspec.Struct, frozen=True):
    """A bucket as a task opens it: its address and settings, never credentials.

    Those come from the environment of the process that opens it.
    """

    url: str
    settings: dict[str, Any]

    @staticmethod
    def of(context: Context) -> Bucket:
        """Return what another process needs to open the bucket of `context`.

        Raises InvalidInputError if that is a secret, or if the bucket lives in this process only.
        """
        return Bucket(_address(context.store), asdict(context.settings))

    def open(self) -> Context:
        """Return the bucket opened, the same each time within one process."""
        key = (os.getpid(), msgspec.msgpack.encode(self))
        with _opened_lock:
            if key not in _opened:
                _opened[key] = self._open()
            return _opened[key]

    def _open(self) -> Context:
        kept = min(self.settings.get("block_cache_bytes", CACHE_BYTES_MAX), CACHE_BYTES_MAX)
        settings = {**self.settings, "block_cache_bytes": kept}
        return Database(open_store(self.url), **settings).context()


_opened: dict[tuple[int, bytes], Context] = {}
_opened_lock = threading.Lock()


class Outcome(msgspec.Struct, Generic[R], frozen=True):
    """What became of one descriptor: a result, or the error that its task raised."""

    result: R | None
    error: ReefError | None
    seconds: float
    peak_rss_bytes: int
    """The most memory that the process had while the task ran, where the kernel tells."""
    attempt: int
    """0 for the first try; the one that came back."""

    def returned(self) -> R:
        """Return the result, or raise the task's error."""
        if self.result is None:
            assert self.error is not None
            raise self.error
        return self.result


class Runner(Protocol):
    """Runs tasks."""

    @property
    def parallelism(self) -> int:
        """How many tasks run side by side."""
        ...

    def run(
        self,
        task: Task[D, R],
        descriptors: Sequence[D],
        result: type[R],
        *,
        name: str,
        weights: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> list[Outcome[R]]:
        """Run `task` for each descriptor; return an Outcome each, in their order.

        A ReefError of a task is an outcome and is not retried; anything else is retried where the
        runner can, and then raises. `name` is what people see of it. `weights` say how much work
        each descriptor is, in any unit.
        """
        ...


class InProcess:
    """Runs tasks one after the other in this process, on a context that is given.

    Descriptors and results go through msgpack all the same.
    """

    parallelism = 1

    def __init__(self, context: Context) -> None:
        self._context = context

    def run(
        self,
        task: Task[D, R],
        descriptors: Sequence[D],
        result: type[R],
        *,
        name: str,
        weights: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> list[Outcome[R]]:
        """Run `task` for each descriptor, in their order; whatever is no ReefError raises at once."""
        packed, kind = pack(descriptors)
        outcomes = []
        for done, payload in enumerate(packed, 1):
            outcomes.append(unpack(perform(self._context, task, payload, kind, attempt=0), result))
            if progress is not None:
                progress(done, len(packed))
        return outcomes


# How a descriptor and an outcome cross.


class _Crossing(msgspec.Struct, array_like=True):
    """An outcome on its way: the result as it was packed, the error pickled."""

    result: bytes | None
    error: bytes | None
    seconds: float
    peak_rss_bytes: int
    attempt: int


def pack(descriptors: Sequence[D]) -> tuple[list[bytes], type[D]]:
    """Return each descriptor packed, and their class. Raises InvalidInputError if it is not one."""
    kinds = {type(descriptor) for descriptor in descriptors}
    if len(kinds) > 1:
        names = sorted(kind.__qualname__ for kind in kinds)
        raise InvalidInputError.of("descriptors", names, "all of one class")
    kind: type[Any] = kinds.pop() if kinds else msgspec.Struct
    return [msgspec.msgpack.encode(descriptor) for descriptor in descriptors], kind


def perform(
    context: Context, task: Task[D, R], payload: bytes, kind: type[D], *, attempt: int
) -> bytes:
    """Run a task for one packed descriptor and return its outcome, packed."""
    descriptor = msgspec.msgpack.decode(payload, type=kind)
    result = error = None
    _forget_peak()
    begun = context.clock.monotonic()
    try:
        result = msgspec.msgpack.encode(task(context, descriptor))
    except ReefError as raised:
        error = pickle.dumps(raised)
    seconds = context.clock.monotonic() - begun
    return msgspec.msgpack.encode(_Crossing(result, error, seconds, _peak_bytes(), attempt))


def refuse(error: ReefError, *, attempt: int) -> bytes:
    """Return the outcome, packed, of a task that could not begin."""
    return msgspec.msgpack.encode(_Crossing(None, pickle.dumps(error), 0.0, _peak_bytes(), attempt))


def unpack(packed: bytes, result: type[R]) -> Outcome[R]:
    """Return the outcome that `perform` packed."""
    crossed = msgspec.msgpack.decode(packed, type=_Crossing)
    return Outcome(
        None if crossed.result is None else msgspec.msgpack.decode(crossed.result, type=result),
        # From a process that runs our own code: what it pickled is as trusted as what it wrote.
        None if crossed.error is None else pickle.loads(crossed.error),
        crossed.seconds,
        crossed.peak_rss_bytes,
        crossed.attempt,
    )


def _forget_peak() -> None:
    """Make the kernel count the most memory anew, where it can: a process runs many tasks."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _peak_bytes() -> int:
    with suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# Where a bucket is, for another process.


def _address(store: Store) -> str:
    """Return the URL that opens `store` elsewhere. Raises InvalidInputError if there is none."""
    while isinstance(store, MeteredStore):
        store = store.inner
    source = _source(store)
    url = parse_url(source)
    if url.scheme == "memory" and not url.bucket:
        raise InvalidInputError.of("URL", store.url, "a bucket with a name")
    return check_travels(source)


def check_travels(source: str) -> str:
    """Return a URL that may go to other processes. Raises InvalidInputError if secrets are in it."""
    url = parse_url(source)
    secrets = sorted(_SECRETS & url.options.keys())
    if "@" in url.options.get("cas_store", ""):
        before = url.options["cas_store"].split("@", 1)[0]
        secrets += ["cas_store"] if ":" in before.split("://", 1)[-1] else []
    if secrets:
        raise InvalidInputError.of(
            "URL options",
            secrets,
            "left out: credentials do not travel to other processes. Set the service's own variables "
            "(such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, PGPASSWORD) where the tasks run",
        )
    return source


def _source(store: Store) -> str:
    """Return the URL that a store was opened by: its `url` is for people and has no options."""
    if store.url.startswith(("file:", "memory:")):
        return store.url
    reopen = store.__reduce__()[0]
    if isinstance(reopen, functools.partial) and reopen.args:
        return str(reopen.args[0])
    raise InvalidInputError.of("URL", store.url, "a bucket that was opened by its URL")
