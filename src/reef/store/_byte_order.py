"""Keys in byte order from servers that list folder by folder.

Some servers (SeaweedFS) keep a tree and list it as one: they compare keys part by part, so that all of
`a/` comes before `a-b` and `a.b`, although `-` and `.` are smaller bytes than `/`. Asked to start after a
key, they also leave out the folder of that name and what belongs behind it. What is here gives byte
order for both kinds of server, without knowing which it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reef.store._base import ObjectMeta


def safe_offset(folder: str, start_after: str) -> str | None:
    """Return a key under `folder` to start listing after, in either order, without losing any.

    It may lie a few keys below `start_after`: the caller drops those. None: list from the start.
    """
    offset = None
    for part in start_after[len(folder) :].split("/"):
        # From the first byte below "/" on, the two orders differ. One byte less, because a folder
        # of exactly the offset's name would be left out.
        name = next((part[:i] for i, byte in enumerate(part) if byte < "/"), part)
        if len(name) > 1:
            offset = folder + name[:-1]
        if name != part:
            break
        folder += f"{part}/"
    return offset


def in_byte_order(entries: Iterable[ObjectMeta], folder: str) -> Iterator[ObjectMeta]:
    """Yield `entries`, which a server listed under `folder` in either order, in byte order.

    Objects that lie in `folder` itself pass straight through. Those of one folder below it, with all
    that lies in it, are held in memory until the server has gone past the names that sort before
    it: as long as nothing shows in which order a server lists, `a-b` may still come behind `a/`.
    """
    held: list[ObjectMeta] = []
    name = ""
    for entry in entries:
        beyond = not entry.key.startswith(name) or entry.key[len(name) : len(name) + 1] > "/"
        if held and beyond:
            yield from sorted(held)
            held.clear()
        if not held:
            part, slash, _ = entry.key[len(folder) :].partition("/")
            if not slash:
                yield entry
                continue
            name = folder + part
        held.append(entry)
    yield from sorted(held)
