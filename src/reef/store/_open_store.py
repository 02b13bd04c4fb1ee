"""`open_store`: the store behind a URL."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError

from reef.clock import Clock, SystemClock
from reef.errors import InvalidInputError
from reef.settings import parse_bytes, parse_choice, parse_flag, parse_int, parse_seconds
from reef.store._base import CONCURRENCY_DEFAULT, MERGE_GAP_BYTES_DEFAULT, Store
from reef.store._file_store import FileStore
from reef.store._memory import MemoryStore
from reef.store._remote import PART_BYTES_DEFAULT, RemoteStore
from reef.store._s3_uploads import abort_s3_uploads
from reef.store._url import ACCOUNT_OPTIONS, StoreURL, parse_url, without_secrets

_PATH = re.compile(r"[\w./-]+")
_REPEATS = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
_ONCE = {"max_retries": 0}

_ENDPOINT = re.compile(
    r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(:\d{1,5})?(/[A-Za-z0-9._/-]*)?"
)


def open_store(url: str, *, clock: Clock | None = None, rng: random.Random | None = None) -> Store:
    """Open the store that `url` names. Sends no request; a missing bucket shows at the first one.

    Raises InvalidInputError for a URL, an option or a value that cannot be.
    """
    parsed = parse_url(url)
    clock = clock or SystemClock()
    if parsed.scheme == "file":
        return FileStore(parsed.path, fsync=parse_flag("fsync", parsed.options.get("fsync", "on")))
    if parsed.scheme == "memory":
        return MemoryStore(parsed.bucket, parsed.path, clock=clock)
    remote = _open_remote(parsed, url)
    cas = parse_choice("cas", parsed.options.get("cas", "native"), ("native", "two-phase"))
    if cas == "native":
        if "cas_store" in parsed.options:
            raise InvalidInputError(
                "cas_store is given without cas=two-phase: add cas=two-phase, or leave "
                "cas_store out"
            )
        return remote
    try:
        from reef.store.two_phase import Records, TwoPhaseStore
    except ModuleNotFoundError as error:
        if error.name != "sqlalchemy":
            raise
        raise InvalidInputError(f"cas=two-phase cannot be used: {error}") from error
    if "cas_store" not in parsed.options:
        raise InvalidInputError(
            "cas=two-phase needs cas_store: give the SQLAlchemy URL of a database that "
            "all clients share"
        )
    records = Records(parsed.options["cas_store"], bucket=parsed.redacted)
    return TwoPhaseStore(
        remote,
        records,
        clock=clock,
        rng=rng or random.SystemRandom(),
        reopen=partial(open_store, url),
    )


def _open_remote(url: StoreURL, source: str) -> RemoteStore:
    options = url.options
    make = _client(url)
    try:
        single, repeating = make(retry_config=_ONCE), make(retry_config=_REPEATS)
    except BaseError as error:
        # Its words may quote an option's value: the path of a key is worth showing, a key is not.
        why = str(error).split("\n", 1)[0]
        said = why
        for value in url.options.values():
            if len(value) >= 8 and not _PATH.fullmatch(value):
                why = why.replace(value, "...")
        raise InvalidInputError(f"{url.redacted} cannot be opened with these options: {why}") from (
            error if why == said else None
        )
    return RemoteStore(
        url.redacted,
        single=single,
        repeating=repeating,
        prefix=url.path,
        reopen=partial(open_store, source),
        sweep=partial(abort_s3_uploads, url) if url.scheme == "s3" else _nothing_to_sweep,
        part_bytes=parse_bytes(
            "part_bytes", options.get("part_bytes", PART_BYTES_DEFAULT), 5 << 20, 1 << 30
        ),
        concurrency=parse_int(
            "concurrency", options.get("concurrency", CONCURRENCY_DEFAULT), 1, 256
        ),
        merge_gap_bytes=parse_bytes(
            "merge_gap_bytes", options.get("merge_gap_bytes", MERGE_GAP_BYTES_DEFAULT), 0, 1 << 30
        ),
    )


def _nothing_to_sweep(_prefix: str, _before_us: int) -> Sequence[str]:
    """Azure drops uncommitted blocks after a week; on GCS it takes a lifecycle rule."""
    return ()


def _client(url: StoreURL) -> Callable[..., Any]:
    """Return what makes a client of obstore's, given how it repeats requests."""
    from obstore.store import AzureStore, GCSStore, S3Store

    given = url.options
    # obstore has the same names for them, with one exception.
    options: dict[str, Any] = {
        {"session_token": "token"}.get(name, name): given[name]
        for name in ACCOUNT_OPTIONS[url.scheme]
        if name in given
    }
    if "skip_signature" in given:
        options["skip_signature"] = parse_flag("skip_signature", given["skip_signature"])
    if "endpoint" in given:
        options["base_url" if url.scheme == "gs" else "endpoint"] = given["endpoint"]
    if url.scheme == "gs":
        return partial(GCSStore, url.bucket, client_options=_client_options(url), **options)
    if url.scheme == "az":
        timeouts = _client_options(url, "AZURE_STORAGE_ENDPOINT")
        return partial(AzureStore, url.bucket, client_options=timeouts, **options)
    options["conditional_put"] = "etag"
    options["virtual_hosted_style_request"] = parse_flag(
        "virtual_hosted_style", given.get("virtual_hosted_style", "off")
    )
    profile = given.get("profile") or os.environ.get("AWS_PROFILE")
    if profile and "access_key_id" not in options and not os.environ.get("AWS_ACCESS_KEY_ID"):
        options["credential_provider"] = _profile(profile)
    timeouts = _client_options(url, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return partial(S3Store, url.bucket, client_options=timeouts, **options)


def _has_port(endpoint: str) -> bool:
    """Return whether the port is one, or left out: the client below would panic."""
    try:
        return urlsplit(endpoint).port != 0
    except ValueError:
        return False


def _client_options(url: StoreURL, *variables: str) -> Any:
    """Plain HTTP is allowed exactly if the given endpoint says http://."""
    named = [url.options.get("endpoint"), *(os.environ.get(name) or None for name in variables)]
    endpoint = next((found for found in named if found is not None), None)
    if endpoint is not None and not (_ENDPOINT.fullmatch(endpoint) and _has_port(endpoint)):
        raise InvalidInputError.of(
            "endpoint", without_secrets(endpoint), "http:// or https://, a host, a port, a path"
        )
    return {
        "allow_http": endpoint is not None and endpoint.startswith("http://"),
        "timeout": _duration(url, "timeout", "30s"),
        "connect_timeout": _duration(url, "connect_timeout", "5s"),
    }


def _duration(url: StoreURL, name: str, default: str) -> timedelta:
    return timedelta(seconds=parse_seconds(name, url.options.get(name, default), low=0.001))


def _profile(name: str) -> Any:
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise InvalidInputError(
            f"profile = {name!r} needs boto3, which is not installed: pip install 'reefdb[s3]'"
        ) from None
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=name))
    except Exception as error:
        raise InvalidInputError(
            f"profile = {name!r} gives no credentials ({error}): check ~/.aws/config "
            "and ~/.aws/credentials"
        ) from error
