"""The namespaces of a bucket, found by LIST: they are recorded nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import NamedTuple

from reef.context import Context
from reef.errors import (
    AccessDeniedError,
    InvalidInputError,
    UnavailableError,
    UnreadableError,
)
from reef.format import decode_manifest, manifest_key, parse_manifest_key
from reef.store import ObjectMeta, Store

_NAMESPACES = "namespaces/"
_AT_ONCE = 1000
# Up to this many objects of one namespace are skipped; a new LIST that starts behind them costs
# more.
_PASSED_MAX = 100_000


class Listed(NamedTuple):
    """A namespace that has any object. Two that are equal and whole list the same state of it.

    A publish makes a generation, a commit the last key of the log, an upload one object more.
    """

    name: str
    generation: int
    """Its newest generation; 0: none was seen."""
    objects: int = 0
    last_key: str = ""
    is_whole: bool = True
    """False: it has more objects than were listed."""


def list_namespaces(store: Store, beginning: str = "") -> Iterator[Listed]:
    """Yield the namespaces whose names have this beginning, in byte order. Raises UnavailableError.

    All their objects are listed, a thousand with a request. If a namespace has very many, a new
    listing starts behind it. No listing stays open while the caller works.
    """
    after = f"{_NAMESPACES}{beginning}"
    while some := _next(store, beginning, after):
        yield from some
        after = f"{_NAMESPACES}{some[-1].name}/~"


def are_live(context: Context, some: Sequence[Listed]) -> list[bool]:
    """Return for each namespace whether it is live (not dropped): one GET each, concurrently.

    One that cannot be read counts as live: its reader reports the damage. Raises UnavailableError.
    """
    keys = {one: manifest_key(one.name, one.generation) for one in some if one.generation}
    try:
        read = dict(zip(keys, context.store.get_many([*keys.values()]), strict=True))
    except (AccessDeniedError, UnavailableError):
        read = {}  # one of them: each is looked at by itself
    return [_is_live(context, one, read.get(one)) for one in some]


def _next(store: Store, beginning: str, after: str) -> list[Listed]:
    """Return the next namespaces of one listing, up to one with very many objects."""
    found: list[Listed] = []
    for name, objects in groupby(store.list(_NAMESPACES, after), _name):
        if not name.startswith(beginning) or len(found) == _AT_ONCE:
            break
        manifests = f"{_NAMESPACES}{name}/manifest/"
        newest, last, count = 0, "", 0
        for meta in islice(objects, _PASSED_MAX):
            last = meta.key
            count += 1
            if last.startswith(manifests) and (named := parse_manifest_key(last)) is not None:
                newest = named.generation
        is_long = next(objects, None) is not None
        generation = 0 if is_long and last < f"{manifests}~" else newest
        found.append(Listed(name, generation, count, last, not is_long))
        if is_long:
            break
    return found


def _name(meta: ObjectMeta) -> str:
    return meta.key[len(_NAMESPACES) :].split("/", 1)[0]


def _is_live(context: Context, one: Listed, data: bytes | None) -> bool:
    try:
        if data is not None:
            return decode_manifest(data, key=manifest_key(one.name, one.generation)).state == "live"
    except UnreadableError:
        pass  # perhaps in flight, or damaged: then an older one is the head
    try:
        head = context.chain(one.name).load()
    except (InvalidInputError, UnreadableError, UnavailableError):
        return True
    return head is None or head.manifest.state == "live" or bool(head.damaged)
