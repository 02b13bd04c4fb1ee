"""Which namespaces a bucket has: found by listing it, because nothing else knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import NamedTuple

from reef.engine._context import Context
from reef.errors import InvalidInputError, UnreadableError
from reef.format import decode_manifest, manifest_key, parse_manifest_key
from reef.store import ObjectMeta, Store

_NAMESPACES = "namespaces/"
_AT_ONCE = 1000
# Most stores list them all again if asked anew: so many are passed over first.
_PASSED_MAX = 100_000


class Listed(NamedTuple):
    """A namespace of which something is there."""

    name: str
    generation: int
    """Its newest manifest; 0: not seen."""


def list_namespaces(store: Store, beginning: str = "") -> Iterator[Listed]:
    """Yield what has a name that begins so, in byte order. Raises UnavailableError.

    What lies in between is listed too, a thousand objects with a request; of a namespace that has very
    many, the rest is passed by where the store can. No listing is left open while the caller is at work.
    """
    after = f"{_NAMESPACES}{beginning}"
    while some := _next(store, beginning, after):
        yield from some
        after = f"{_NAMESPACES}{some[-1].name}/~"


def are_live(context: Context, some: Sequence[Listed]) -> list[bool]:
    """Return of each namespace whether it was not dropped: a GET for each, side by side.

    One that cannot be read counts as there: that is for others to tell. Raises UnavailableError.
    """
    keys = {one: manifest_key(*one) for one in some if one.generation}
    read = dict(zip(keys, context.store.get_many([*keys.values()]), strict=True))
    return [_is_live(context, one, read.get(one)) for one in some]


def _next(store: Store, beginning: str, after: str) -> list[Listed]:
    """Return the next ones that a listing shows, before it has to pass over too much."""
    found: list[Listed] = []
    for name, objects in groupby(store.list(_NAMESPACES, after), _name):
        if not name.startswith(beginning) or len(found) == _AT_ONCE:
            break
        manifests = f"{_NAMESPACES}{name}/manifest/"
        newest, last = 0, ""
        for meta in islice(objects, _PASSED_MAX):
            last = meta.key
            if last.startswith(manifests) and (named := parse_manifest_key(last)) is not None:
                newest = named.generation
        is_long = next(objects, None) is not None
        found.append(Listed(name, 0 if is_long and last < f"{manifests}~" else newest))
        if is_long:
            break
    return found


def _name(meta: ObjectMeta) -> str:
    return meta.key[len(_NAMESPACES) :].split("/", 1)[0]


def _is_live(context: Context, one: Listed, data: bytes | None) -> bool:
    try:
        if data is not None:
            return decode_manifest(data, key=manifest_key(*one)).state == "live"
    except UnreadableError:
        pass  # on the way, perhaps, or damaged: then an older one is the head
    try:
        head = context.chain(one.name).load()
    except (InvalidInputError, UnreadableError):
        return True
    return head is None or head.manifest.state == "live" or bool(head.damaged)
