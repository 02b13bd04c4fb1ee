"""Which branches there are: found by name, because a branch of a branch is of the same root."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from reef.context import Context
from reef.engine._branch._create_branch import Branch
from reef.engine._listing import list_namespaces
from reef.errors import CorruptError, InvalidInputError, NotFoundError, UnreadableError
from reef.format import Manifest, Origin, Pin
from reef.manifest import retained_of
from reef.types import namespace_of, split_namespace


def list_branches(context: Context, name: str) -> Iterator[Branch]:
    """Return the live branches of `name` and of its branches, in order: a LIST and a GET for each.

    Raises UnavailableError, CorruptError.
    """
    return (Branch.of(manifest) for manifest in _heads(context, name))


def lost_pins(context: Context, namespace: str, pins: Collection[Pin]) -> list[Pin]:
    """Return the pins that live branches need in a namespace, and that are not among `pins`.

    Where generations are damaged, those that put pins may be. Raises UnavailableError, CorruptError.
    """
    heads = {m.namespace: m for m in _heads(context, split_namespace(namespace)[0], namespace)}
    known = {(pin.child, pin.nonce) for pin in pins}
    lost: list[Pin] = []
    for m in heads.values():
        if m.origin is None or (m.namespace, m.origin.nonce) in known:
            continue
        if _needs(context, m, namespace):
            origin = _origin_in(namespace, m, heads)
            lost.append(Pin(origin.generation, origin.lsn, m.namespace, m.origin.nonce))
    return lost


def _needs(context: Context, m: Manifest, namespace: str) -> bool:
    """Return whether the head of a branch, or what it retains, names objects of `namespace`."""
    chain = context.chain(m.namespace)
    numbers = [found.number for found in chain.generations() if m.born <= found.number]
    for number in {m.generation, *retained_of(m, numbers)}:
        with suppress(NotFoundError, UnreadableError):
            older = m if number == m.generation else chain.at(number).manifest
            if any(ref.namespace == namespace for ref in older.segments):
                return True
    return False


def _origin_in(namespace: str, m: Manifest, heads: Mapping[str, Manifest]) -> Origin:
    """Return where a branch, or the one that it was made from, left `namespace`."""
    origin = m.origin
    while origin is not None and origin.namespace != namespace:
        parent = heads.get(origin.namespace)
        origin = None if parent is None else parent.origin
    if origin is None:
        raise CorruptError(
            f"namespaces/{m.namespace}/manifest/",
            0,
            f"a chain of parents from {m.namespace!r} to {namespace!r}, whose objects it names",
            "none: a branch between them is gone",
        )
    return origin


def _heads(context: Context, name: str, besides: str = "") -> Iterator[Manifest]:
    for listed in list_namespaces(context.store, f"{namespace_of(name)}@"):
        if listed.name == besides:
            continue
        try:
            chain = context.chain(listed.name)
        except InvalidInputError:
            continue  # a name that nothing of Reef's has
        head = chain.load()
        if head is not None and head.manifest.state == "live":
            yield head.manifest
