"""From a URL to a store: which options there are, and clear refusals for everything else.

Credentials may come in the URL or from the variables that the services' own tools read. They are
kept out of `Store.url`, of every message and of every log line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from reef.errors import InvalidInputError
from reef.types import check_object_key

SCHEMES = ("file", "memory", "s3", "gs", "az")

_COMMON = ("cas", "cas_store", "concurrency", "merge_gap_bytes", "part_bytes")
_HTTP = ("timeout", "connect_timeout", "endpoint", "skip_signature")
ACCOUNT_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "s3": ("region", "access_key_id", "secret_access_key", "session_token"),
    "gs": ("service_account", "application_credentials"),
    "az": ("account_name", "account_key", "sas_key", "client_id", "client_secret", "tenant_id"),
}
"""Options that go to the service's client as they are."""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "file": ("fsync",),
    "memory": (),
    "s3": (*_COMMON, *_HTTP, *ACCOUNT_OPTIONS["s3"], "profile", "virtual_hosted_style"),
    "gs": (*_COMMON, *_HTTP, *ACCOUNT_OPTIONS["gs"]),
    "az": (*_COMMON, *_HTTP, *ACCOUNT_OPTIONS["az"]),
}
# A name that starts or ends with anything but a letter or a digit is refused by every service.
_BUCKET = re.compile(r"[a-z0-9](?:[a-z0-9._-]{1,61})[a-z0-9]")
_MEMORY = re.compile(r"[A-Za-z0-9._-]{0,64}")


@dataclass(frozen=True)
class StoreURL:
    """A URL taken apart: nothing has been opened yet."""

    scheme: str
    bucket: str
    path: str
    """For `file` the folder; otherwise the prefix, "" or ending in "/"."""
    options: Mapping[str, str]

    @property
    def redacted(self) -> str:
        """The URL for people: no options but the harmless, so no credentials."""
        if self.scheme == "file":
            return f"file://{self.path}"
        return f"{self.scheme}://{self.bucket}/{self.path}".rstrip("/")


def parse_url(url: str) -> StoreURL:
    """Take a store's URL apart. Raises InvalidInputError that names what is wrong with it."""
    if " " in url or not url.isprintable():  # which urlsplit would drop, some of them silently
        raise InvalidInputError(
            f"the URL {without_secrets(url)!r} has blanks or control characters: "
            "percent-encode them"
        )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidInputError(
            f"{without_secrets(url)!r} is not a URL: expected a scheme, a bucket and a "
            "path, as in s3://my-bucket/prefix"
        ) from None
    if parts.scheme not in SCHEMES:
        raise InvalidInputError.of(
            "URL",
            without_secrets(url),
            "a URL that starts with " + ", ".join(f"{s}://" for s in SCHEMES),
        )
    if parts.username is not None or parts.fragment:
        raise InvalidInputError(
            f"the URL {parts.scheme}://... has a user, a password or a #fragment: leave "
            "it out, and give credentials as options or environment variables"
        )
    options = _parse_options(parts.scheme, parts.query)
    if parts.scheme == "file":
        return StoreURL("file", "", _file_path(parts.netloc, unquote(parts.path)), options)
    allowed = _MEMORY if parts.scheme == "memory" else _BUCKET
    if not allowed.fullmatch(parts.netloc):
        raise InvalidInputError.of(
            "bucket",
            parts.netloc,
            "at most 64 of A-Z a-z 0-9 . _ -, as in memory://trial"
            if parts.scheme == "memory"
            else "3 to 63 of a-z 0-9 . _ -, between letters or digits, as in s3://my-bucket/prefix",
        )
    prefix = unquote(parts.path).strip("/")
    return StoreURL(
        parts.scheme, parts.netloc, f"{check_object_key(prefix)}/" if prefix else "", options
    )


def _parse_options(scheme: str, query: str) -> dict[str, str]:
    fields = [field.partition("=") for field in query.split("&")] if query else []
    if not all(name and equals for name, equals, _ in fields):
        raise InvalidInputError(
            "the options of the URL, behind '?', are not name=value pairs: join them "
            "with '&' and percent-encode the values"
        )
    # A "+" stays one: it is no blank in a URL's path either, and secrets have them.
    pairs = [(unquote(name), unquote(value)) for name, _, value in fields]
    options = dict(pairs)
    if len(options) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidInputError(
            f"an option of the URL is given more than once: {', '.join(twice)}; give each once"
        )
    known = sorted(OPTIONS[scheme])
    for name, value in options.items():
        if not value.isprintable():
            raise InvalidInputError(
                f"the option {name!r} of {scheme}:// has control characters in its "
                "value: leave them out"
            )
        if name not in OPTIONS[scheme]:
            raise InvalidInputError(
                f"{scheme}:// has no option {name!r}: "
                + ("expected one of " + ", ".join(known) if known else "it takes none")
            )
    return options


def _file_path(host: str, path: str) -> str:
    if host not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise InvalidInputError.of(
            "URL",
            f"file://{host}{path}",
            "an absolute path after three slashes: file:///data/bucket",
        )
    path = os.path.normpath(path).replace("//", "/")
    if path == "/":
        raise InvalidInputError.of("URL", "file:///", "a folder below /, as in file:///data/bucket")
    return path


def without_secrets(url: str) -> str:
    """Return what can be shown of a URL that was refused: no options, user or password."""
    return re.sub(r".*@", "...@", url.split("?", 1)[0], flags=re.DOTALL)
