"""Databases on a store of the test's own, and what a fresh reader finds."""

from __future__ import annotations

import random
from collections.abc import Mapping

from reef.clock import Clock
from reef.database import Database
from reef.store import Store, open_store


def database(
    store: Store | None = None, *, clock: Clock | None = None, seed: int = 1, **settings: object
) -> Database:
    """Return a database on `store` (a fresh memory store), with seeded randomness.

    Without maintenance, unless it is asked for: tests count objects and requests.
    """
    settings = {"maintenance": "off", **settings}
    return Database(
        store or open_store("memory://"), clock=clock, rng=random.Random(seed), **settings
    )


def contents(store: Store, namespace: str = "ns") -> Mapping[bytes, bytes]:
    """Return what a fresh reader of the bucket finds."""
    with database(store).kv(namespace, mode="r") as kv:
        return dict(kv.items())
