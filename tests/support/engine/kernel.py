"""For tests of the kernel: databases on a store of one's own, writes held back, calls beside, damage."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping

import pytest

from reef.clock import Clock
from reef.database import Database
from reef.store import Store, open_store
from reef.testing import FaultyStore
from tests.support.waiting import DEADLINE_SECONDS


def database(
    store: Store | None = None, *, clock: Clock | None = None, seed: int = 1, **settings: object
) -> Database:
    """Return a database on `store` (a fresh memory store), with seeded randomness."""
    return Database(
        store or open_store("memory://"), clock=clock, rng=random.Random(seed), **settings
    )


def contents(store: Store, namespace: str = "ns") -> Mapping[bytes, bytes]:
    """Return what a fresh reader of the bucket finds."""
    with database(store).kv(namespace, mode="r") as kv:
        return dict(kv.items())


def flip(store: Store, key: str) -> bytes:
    """Damage an object where it lies; return what it was."""
    whole = store.get(key)
    data = bytearray(whole)
    data[len(data) // 2] ^= 1
    store.delete(key)
    store.put_if_absent(key, bytes(data))
    return whole


def interrupt_next_write(monkeypatch: pytest.MonkeyPatch, db: Database) -> None:
    """Let Ctrl-C come when the next write draws the nonce of its log object; those behind it go on."""
    rng = db.context().rng
    randbytes = rng.randbytes

    def interrupted(_: int) -> bytes:
        monkeypatch.setattr(rng, "randbytes", randbytes)
        raise KeyboardInterrupt

    monkeypatch.setattr(rng, "randbytes", interrupted)


class Gate(FaultyStore):
    """Holds log PUTs back while it is shut, until they are let through."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._held = threading.Semaphore(0)
        self._go = threading.Semaphore(0)
        self.is_open = True

    def put_if_absent(self, key: str, data: object) -> None:
        if "/wal/" in key and not self.is_open:
            self._held.release()
            assert self._go.acquire(timeout=DEADLINE_SECONDS)
        super().put_if_absent(key, data)  # type: ignore[arg-type]

    def wait_until_held(self, count: int = 1) -> None:
        """Return when so many PUTs more are held back."""
        for _ in range(count):
            assert self._held.acquire(timeout=DEADLINE_SECONDS), "no PUT came"

    def let(self, count: int = 1) -> None:
        for _ in range(count):
            self._go.release()


class Beside(threading.Thread):
    """A call that runs beside the test, from now on."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._told: list[object] = []
        self.start()

    def run(self) -> None:
        try:
            self._told.append(self._call())
        except BaseException as error:  # noqa: BLE001 the test looks at it
            self._told.append(error)

    def finish(self) -> object:
        """Wait for its end; return what it returned or raised."""
        self.join(timeout=DEADLINE_SECONDS)
        assert not self.is_alive(), "it hangs"
        return self._told[0]
