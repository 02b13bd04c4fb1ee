"""Byte order from servers of either order: by bytes, or folder by folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.store import ObjectMeta
from reef.store._byte_order import in_byte_order, safe_offset

# Few letters, so that names are often folders, beginnings and neighbours of each other.
PARTS = st.text("a-.0", min_size=1, max_size=4).filter(lambda part: part not in (".", ".."))
KEYS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
BUCKETS = st.sets(KEYS, max_size=25).map(
    lambda names: {n for n in names if not any(o.startswith(f"{n}/") for o in names)}
)
Order = Callable[[str], object]


def by_folder(key: str) -> list[str]:
    return key.split("/")


def by_bytes(key: str) -> str:
    return key


def server(bucket: set[str], order: Order, folder: str, offset: str | None) -> list[str]:
    """List as such a server does: by folder it also leaves out the folder of the offset's name."""
    found = sorted((key for key in bucket if key.startswith(folder)), key=order)
    if offset is None:
        return found
    return [
        key
        for key in found
        if order(key) > order(offset)  # type: ignore[operator]
        and not (order is by_folder and key.startswith(f"{offset}/"))
    ]


@pytest.mark.parametrize("order", [by_bytes, by_folder])
@given(bucket=BUCKETS, folder=st.one_of(st.just(""), KEYS.map(lambda k: f"{k}/")))
def test_either_order_becomes_byte_order(order: Order, bucket: set[str], folder: str) -> None:
    entries = [ObjectMeta(key, 0, 0) for key in server(bucket, order, folder, None)]
    expected = sorted(key for key in bucket if key.startswith(folder))
    assert [meta.key for meta in in_byte_order(entries, folder)] == expected


@pytest.mark.parametrize("order", [by_bytes, by_folder])
@given(
    bucket=BUCKETS, start=KEYS, folder=st.one_of(st.just(""), PARTS.map(lambda part: f"{part}/"))
)
def test_no_key_is_lost_behind_a_safe_offset(
    order: Order, bucket: set[str], start: str, folder: str
) -> None:
    if not start.startswith(folder):
        start = folder + start
    offset = safe_offset(folder, start)
    listed = server(bucket, order, folder, offset)
    wanted = {key for key in bucket if key.startswith(folder) and key > start}
    assert wanted <= set(listed)


@pytest.mark.parametrize(
    ("folder", "start", "offset"),
    [
        ("", "a", None),
        ("", "ab", "a"),
        ("", "a.b", None),
        ("", "abc.d", "ab"),
        ("", "abc/def", "abc/de"),
        ("", "abc/d", "ab"),  # `abc` alone would leave out the folder of that name
        ("", "a-bc/def", None),
        ("", "ab-c/def", "a"),
        ("ns/wal/", "ns/wal/00000000000000000012.wal", "ns/wal/0000000000000000001"),
        ("my-ns/wal/", "my-ns/wal/0012.wal", "my-ns/wal/001"),
    ],
)
def test_a_safe_offset_is_close(folder: str, start: str, offset: str | None) -> None:
    assert safe_offset(folder, start) == offset


def test_objects_of_the_folder_itself_are_not_held_back() -> None:
    taken = []

    def entries() -> object:
        for i in range(1000):
            taken.append(i)
            yield ObjectMeta(f"wal/{i:05}.wal", 0, 0)

    listing = in_byte_order(entries(), "wal/")  # type: ignore[arg-type]
    assert next(listing).key == "wal/00000.wal"
    assert len(taken) == 1
