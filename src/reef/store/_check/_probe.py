"""What the checks share: the store under its own prefix, what was written there, and when."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

from reef.clock import Clock
from reef.errors import ReefError
from reef.settings import Settings
from reef.store._base import Store
from reef.store._conditional import create
from reef.types import NONCE_BYTES, new_nonce


class ViolationError(Exception):
    """The store did what a store that backs a log must not do. Never leaves the run."""


def require(held: bool, otherwise: str) -> None:
    """Raise ViolationError with `otherwise` unless `held`."""
    if not held:
        raise ViolationError(otherwise)


@contextlib.contextmanager
def must_raise(error: type[ReefError], otherwise: str) -> Iterator[None]:
    """Raise ViolationError with `otherwise` unless the body raises `error`."""
    try:
        yield
    except error:
        return
    raise ViolationError(otherwise)


@dataclass(frozen=True)
class Stamp:
    """When an object was written: between two readings of our clock, and by the store's."""

    before_us: int
    after_us: int
    modified_us: int


class Probe:
    """The store, and a record of everything that was created under `prefix`."""

    def __init__(
        self, store: Store, prefix: str, *, settings: Settings, clock: Clock, rng: random.Random
    ) -> None:
        self.store = store
        self.prefix = prefix
        self.settings = settings
        self.clock = clock
        self.rng = rng
        self.begun = clock.monotonic()
        self.made: set[str] = set()
        self.stamps: list[Stamp] = []

    def key(self, name: str) -> str:
        """Return the key of `name`, which from now on may exist."""
        key = self.prefix + name
        self.made.add(key)
        return key

    def put(self, key: str, size: int = 256) -> bytes:
        """Create `key` as a commit does; return its bytes. Raises what `create` raises."""
        data = self.new_data(size)
        self.create(key, data)
        return data

    def new_data(self, size: int) -> bytes:
        """Return bytes that nobody else will write: they begin with a nonce."""
        nonce = new_nonce(self.rng)
        return nonce + self.rng.randbytes(size - len(nonce))

    def create(self, key: str, data: bytes) -> None:
        """Create `key` with what `new_data` gave, as a commit does. Raises what `create` raises."""
        create(
            self.store,
            key,
            data,
            nonce=data[:NONCE_BYTES],
            is_collected=lambda: False,
            settings=self.settings,
            clock=self.clock,
            rng=self.rng,
        )

    def put_timed(self, key: str) -> bytes:
        """Create `key`, and note what time it was and what time the store says it was."""
        before_us = self.clock.now_us()
        data = self.put(key)
        after_us = self.clock.now_us()
        modified_us = self.store.head(key).last_modified_us
        self.stamps.append(Stamp(before_us, after_us, modified_us))
        return data

    def listed(self, folder: str = "", start_after: str = "") -> list[str]:
        """Return the names under `folder`, relative to it, as the store lists them."""
        under = self.prefix + folder
        found = self.store.list(under, under + start_after if start_after else "")
        return [meta.key.removeprefix(under) for meta in found]
