"""Where a database lies: a URL, or what SQLite made of one, taken apart.

`s3://bucket/prefix/app.db?region=x` is the page store `app.db` in the bucket `s3://bucket/prefix`.
As a URI of SQLite that is `file:s3://bucket/prefix/app.db?vfs=reef&region=x`; SQLite takes the URI
apart itself and hands over a path and parameters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from reef.errors import InvalidInputError
from reef.settings import parse_choice, parse_int
from reef.store import OPTIONS, SCHEMES, StoreURL, parse_url, without_secrets
from reef.types import LSN_MAX, check_namespace

VFS = "reef"
_OWN = ("branch", "lsn", "page_size", "opening")
# What SQLite itself understands, whatever the VFS.
_SQLITE = ("vfs", "mode", "cache", "psow", "nolock", "immutable", "modeof")
PAGE_SIZES = tuple(512 << i for i in range(8))
_SAFE = "/:@._-~"
_IDENTITY_OPTIONS = ("endpoint", "account_name")
"""Options without which a bucket's name says nothing."""


@dataclass(frozen=True)
class Location:
    """A database: its bucket, its name there, and which version of it."""

    bucket: str
    """The store's URL, options and all."""
    name: str
    branch: str | None = None
    lsn: int | None = None
    """A version to stay at; None: follow the newest."""
    page_size: int | None = None
    """Page size of a new page store; None: SQLite's own default."""
    opening: str | None = None
    """The key of settings, or of an open bucket, in the registry."""

    @property
    def label(self) -> str:
        """The database for people: without options, so without credentials."""
        at = f" at LSN {self.lsn}" if self.lsn is not None else ""
        branch = f" (branch {self.branch})" if self.branch else ""
        return f"{without_secrets(self.bucket)}/{self.name}{branch}{at}"

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for every spelling of one database's URL."""
        store = self._store
        path = os.path.realpath(store.path) if store.scheme == "file" else store.path
        of_store = tuple(store.options.get(name) for name in _IDENTITY_OPTIONS)
        return store.scheme, store.bucket, path, *of_store

    @property
    def options(self) -> Mapping[str, str]:
        """The store's, by name."""
        return self._store.options

    @property
    def _store(self) -> StoreURL:
        return parse_url(self.bucket)

    def with_version(self, branch: str | None, lsn: int | None) -> Location:
        """Return the same database on a branch, at a version; None leaves what the URL says."""
        given = {"branch": branch, "lsn": lsn}
        return _with_own(self, {key: value for key, value in given.items() if value is not None})

    def uri(self, mode: str) -> str:
        """Return what SQLite opens: `mode` is r for reading or w for writing."""
        parts = urlsplit(self.bucket)
        if parts.scheme == "file":
            path = f"{parts.path}/{self.name}"
        else:
            path = quote(f"{parts.scheme}://{parts.netloc}", _SAFE) + f"{parts.path}/{self.name}"
        own = {name: getattr(self, name) for name in _OWN}
        fields = [f"vfs={VFS}", f"mode={'ro' if mode == 'r' else 'rwc'}"]
        fields += [f"{name}={value}" for name, value in own.items() if value is not None]
        return f"file:{path}?" + "&".join(fields + ([parts.query] if parts.query else []))


def parse_location(url: str | os.PathLike[str]) -> Location:
    """Take the URL of a database apart. Raises InvalidInputError that names what is wrong with it."""
    text = os.fspath(url)
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in SCHEMES:
        if "://" in text or text.startswith("file:"):
            raise InvalidInputError.of(
                "URL",
                without_secrets(text),
                "a path, or a URL that starts with " + ", ".join(f"{s}://" for s in SCHEMES),
            )
        text = "file://" + quote(os.path.abspath(text) if text else "")
        parts = urlsplit(text)
    folder, _, name = parts.path.rstrip("/").rpartition("/")
    if not name or (parts.scheme == "file" and not folder):
        raise InvalidInputError.of(
            "URL",
            without_secrets(os.fspath(url)),
            "a bucket and a name in it, as s3://bucket/app.db",
        )
    fields = [field for field in parts.query.split("&") if field]
    for key in ("vfs", "mode"):  # SQLite would go by the last one, and open a file that is not ours
        if any(field.partition("=")[0] == key for field in fields):
            raise InvalidInputError(
                f"the URL has the option {key!r}, which is not allowed there: give mode= "
                "as an argument; a URL takes the options of the store, and branch, lsn, "
                "page_size"
            )
    ours = {
        key: unquote(value)
        for key, _, value in (field.partition("=") for field in fields)
        if key in ("branch", "lsn", "page_size")
    }
    rest = "&".join(field for field in fields if field.partition("=")[0] not in ours)
    bucket = f"{parts.scheme}://{parts.netloc}{folder}" + (f"?{rest}" if rest else "")
    parse_url(bucket)
    return _with_own(Location(bucket, name), ours)


def location_of(path: str, parameters: Mapping[str, str]) -> Location:
    """Return the database that SQLite asks for: a path as `full_path` gives it, and parameters.

    Raises InvalidInputError.
    """
    scheme, separator, _ = path.partition("://")
    if not separator:
        scheme = "file"
    if scheme not in SCHEMES:
        raise InvalidInputError.of(
            "database", path, "a path, or a URL of one of " + ", ".join(SCHEMES)
        )
    for name in parameters:
        if name not in _OWN and name not in _SQLITE and name not in OPTIONS[scheme]:
            known = sorted((*_OWN[:-1], *_SQLITE, *OPTIONS[scheme]))
            raise InvalidInputError(
                f"there is no parameter {name!r}: expected one of {', '.join(known)}"
            )
    for name in ("nolock", "immutable"):
        if parameters.get(name, "0").lower() not in ("0", "off", "no", "false"):
            raise InvalidInputError(
                f"{name} = {parameters[name]!r} cannot be used, because connections "
                "need their locks: leave it out; a database at lsn= never changes "
                "anyway"
            )
    chosen = [f"{key}={quote(parameters[key], '')}" for key in OPTIONS[scheme] if key in parameters]
    if separator:
        head, _, tail = path.partition("://")[2].partition("/")
        url = f"{scheme}://{head}/{quote(tail, _SAFE)}"
    else:
        url = f"file://{quote(path, _SAFE)}"
    found = parse_location(url + ("?" + "&".join(chosen) if chosen else ""))
    return _with_own(found, parameters)


def full_path(name: str) -> str:
    """Return the absolute spelling of a path; a URL stays unchanged."""
    return name if "://" in name else os.path.abspath(name)


def _with_own(found: Location, given: Mapping[str, Any]) -> Location:
    """Return `found` with what is `given` of the options that are ours, and check them."""
    own = {key: given[key] for key in _OWN if key in given}  # an empty branch is refused below
    if "lsn" in own:
        own["lsn"] = parse_int("lsn", own["lsn"], 0, LSN_MAX)
    if "page_size" in own:
        sizes = tuple(map(str, PAGE_SIZES))
        own["page_size"] = int(parse_choice("page_size", own["page_size"], sizes))
    check_namespace(found.name)
    if "branch" in own:
        check_namespace(own["branch"])
    return replace(found, **own)
