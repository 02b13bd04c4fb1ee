"""A bucket as other processes open it: its address and settings, never credentials."""

from __future__ import annotations

import functools
import os
import threading
from dataclasses import asdict
from typing import Any

import msgspec

from reef.database import Database
from reef.engine import Context
from reef.errors import InvalidInputError
from reef.store import MeteredStore, Store, open_store, parse_url

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


_opened: dict[tuple[int, bytes], Context] = {}
_opened_lock = threading.Lock()


class Bucket(msgspec.Struct, frozen=True):
    """A bucket as a task opens it: its address and settings, never credentials.

    Credentials come from the environment of the process that opens it.
    """

    url: str
    settings: dict[str, Any]

    @staticmethod
    def of(context: Context) -> Bucket:
        """Return what another process needs to open the bucket of `context`.

        Raises InvalidInputError if that includes a secret, or if only this process has the bucket.
        """
        return Bucket(_url_of(context.store), asdict(context.settings))

    @staticmethod
    def check_url(url: str) -> str:
        """Return a URL that may go to other processes. Raises InvalidInputError if it has secrets."""
        options = parse_url(url).options
        secrets = sorted(_SECRETS & options.keys())
        if "@" in options.get("cas_store", ""):
            user = options["cas_store"].split("@", 1)[0]
            secrets += ["cas_store"] if ":" in user.split("://", 1)[-1] else []
        if secrets:
            raise InvalidInputError(
                f"the bucket's URL has credentials in {', '.join(secrets)}, and credentials are not "
                "sent to other processes; take them out, and set the service's own variables (such "
                "as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or PGPASSWORD) where the tasks run"
            )
        return url

    def open(self) -> Context:
        """Return the bucket opened, the same each time within one process."""
        key = (os.getpid(), msgspec.msgpack.encode(self))
        with _opened_lock:
            if key not in _opened:
                _opened[key] = self._open()
            return _opened[key]

    def _open(self) -> Context:
        cache_bytes = min(self.settings.get("block_cache_bytes", CACHE_BYTES_MAX), CACHE_BYTES_MAX)
        settings = {**self.settings, "block_cache_bytes": cache_bytes}
        return Database(open_store(self.url), **settings).context()


def _url_of(store: Store) -> str:
    """Return the URL that opens `store` elsewhere. Raises InvalidInputError if there is none."""
    while isinstance(store, MeteredStore):
        store = store.inner
    source = _opened_by(store)
    url = parse_url(source)
    if url.scheme == "memory" and not url.bucket:
        raise InvalidInputError(
            f"the bucket {store.url} has no name, so no other process can open it; "
            "use memory://NAME, or a bucket that other processes can open"
        )
    return Bucket.check_url(source)


def _opened_by(store: Store) -> str:
    """Return the URL that a store was opened by: its `url` is for people and has no options."""
    if store.url.startswith(("file:", "memory:")):
        return store.url
    reopen = store.__reduce__()[0]
    if isinstance(reopen, functools.partial) and reopen.args:
        return str(reopen.args[0])
    raise InvalidInputError(
        f"the bucket {store.url} was not opened by its URL, so other processes cannot open it; "
        "open it with reef.connect(URL)"
    )
