"""The newest manifest that can be read, without reading more than needed."""

from __future__ import annotations

from collections.abc import Iterable

from reef.errors import NotFoundError, ReefError, UnreadableError
from reef.format import Manifest, decode_manifest, parse_manifest_key
from reef.store import ObjectMeta, Store


def newest_readable_manifest(
    store: Store, listed: Iterable[ObjectMeta]
) -> tuple[Manifest | None, dict[int, ReefError]]:
    """Return the newest of the listed manifests that can be read, and why each newer one cannot.

    Those that are gone were collected since, and there are newer ones: NotFoundError says so.
    """
    unreadable: dict[int, ReefError] = {}
    for meta in reversed([*listed]):
        if (named := parse_manifest_key(meta.key)) is None:
            continue
        try:
            return decode_manifest(store.get(meta.key), key=meta.key), unreadable
        except (UnreadableError, NotFoundError) as error:
            unreadable[named.generation] = error
    return None, unreadable
