"""What every store promises, as tests: a backend's test class inherits `StoreContract`.

It gives two fixtures: `store`, on a bucket or prefix of its own that is empty, and `store2`, a
second handle on the same place. The class's numbers say how hard to race where that is slow.

StoreContract   the tests, to inherit
keys            the keys of a listing, in its order
"""

from __future__ import annotations

import multiprocessing
import pickle
import random
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from reef.clock import SystemClock
from reef.errors import AlreadyExistsError, IncompleteError, InvalidInputError, NotFoundError
from reef.store import Store
from reef.testing import CountingStore, Operation, WrapperStore
from reef.testing._creation import CreationContract, keys
from reef.testing._wrapper import T

__all__ = ["StoreContract", "keys"]

CLOCK_SLACK_US = 5_000_000
# Byte order: "-" and "." come before "/", digits and letters after, capitals before small ones.
# None is a folder of another: file systems cannot have both.
MIXED = [
    "A/z",
    "a-b/c",
    "a.b",
    "a/b",
    "a/b-c",
    "a/b.c",
    "a/b0",
    "a/c/d",
    "a/c-d",
    "a0",
    "aa/b",
    "b",
]
INVALID = ["", "/", "/a", "a/", "a//b", "..", "a/../b", "a/./b", "a b", "ä", "a\0b", "x" * 256]


class StoreContract(CreationContract):
    """Inherit this, give it `store` and `store2`, and every promise is a test."""

    many: ClassVar[int] = 1100
    """Entries for the long listing: more than one page."""

    # Writing and reading

    @pytest.mark.parametrize("size", [0, 1, 1000, (3 << 20) + 1])
    def test_what_was_put_is_what_is_read(self, store: Store, store2: Store, size: int) -> None:
        data = random.Random(size).randbytes(size)
        store.put_if_absent("ns/wal/1", data)
        for reader in (store, store2):
            assert reader.get("ns/wal/1") == data
            assert reader.head("ns/wal/1")[:2] == ("ns/wal/1", size)
            assert [(m.key, m.size) for m in reader.list()] == [("ns/wal/1", size)]

    def test_every_byte_value_survives(self, store: Store) -> None:
        data = bytes(range(256)) * 3 + b"\r\n\0\xff"
        store.put_if_absent("k", data)
        assert store.get("k") == data

    def test_any_buffer_can_be_put(self, store: Store) -> None:
        buffers: dict[str, Any] = {
            "bytearray": bytearray(b"abc"),
            "view": memoryview(b"xabcx")[1:4],
            "array": array("i", [1, -2]),
            "numpy": np.arange(5, dtype="float64"),
            "matrix": np.arange(6, dtype="int16").reshape(2, 3),
            "strided": np.arange(6, dtype="int16")[::2],
            "none": np.arange(0),
            "arrow": pa.py_buffer(b"abc"),
        }
        for name, buffer in buffers.items():
            expected = memoryview(buffer).tobytes()
            store.put_if_absent(f"put/{name}", buffer)
            store.upload(f"upload/{name}", [buffer, buffer])
            assert store.get(f"put/{name}") == expected, name
            assert store.get(f"upload/{name}") == expected * 2, name

    def test_an_object_may_come_in_parts(self, store: Store, store2: Store) -> None:
        body = random.Random(1).randbytes((3 << 20) + 1)
        parts = (b"head", pa.py_buffer(body), b"", memoryview(b"xabcx")[1:4], bytearray(b"end"))
        store.put_if_absent("k", parts)
        assert store2.get("k") == b"head" + body + b"abcend"
        with pytest.raises(AlreadyExistsError):
            store.put_if_absent("k", parts)
        store.put_if_absent("empty", (b"", b""))
        assert store2.get("empty") == b""

    def test_a_store_keeps_nothing_of_what_it_was_given(self, store: Store) -> None:
        data = bytearray(b"abc")
        store.put_if_absent("whole", data)
        store.put_if_absent("parts", (data, data))
        data[:] = b"???"
        assert store.get("whole") + store.get("parts") == b"abc" * 3

    def test_what_was_read_is_plain_bytes(self, store: Store) -> None:
        store.put_if_absent("k", bytearray(b"abc"))
        assert type(store.get("k")) is bytes
        assert type(store.get_range("k", 0, 2)) is bytes

    def test_a_write_is_read_at_once_by_another_handle(self, store: Store, store2: Store) -> None:
        for i in range(20):
            with pytest.raises(NotFoundError):
                store2.get(f"k/{i}")  # nothing may remember this answer
            store.put_if_absent(f"k/{i}", b"%d" % i)
            assert store2.get(f"k/{i}") == b"%d" % i
            assert store2.get_range(f"k/{i}", 0, 1) == b"%d" % (i // 10 or i)
            assert f"k/{i}" in keys(store2.list("k/"))
            store.delete(f"k/{i}")
            with pytest.raises(NotFoundError):
                store2.get(f"k/{i}")
            assert keys(store2.list("k/")) == []

    def test_what_is_not_there_is_not_found(self, store: Store) -> None:
        store.put_if_absent("a/b", b"1")
        asks: list[Callable[[str], object]] = [
            store.get,
            store.head,
            lambda key: store.get_range(key, 0, 1),
            lambda key: store.get_ranges(key, [(0, 1)]),
        ]
        for key in ("missing", "a/missing", "a", "a/b/c"):
            for ask in asks:
                with pytest.raises(NotFoundError, match=key):
                    ask(key)

    def test_many_objects_come_in_the_order_asked_with_none_for_those_that_are_missing(
        self, store: Store
    ) -> None:
        for i in range(20):
            store.put_if_absent(f"k/{i}", b"%d" % i * i)
        watched = _Concurrency(store)
        asked = [f"k/{i}" for i in (3, 99, 0, 19, 3, 98)]
        expected = [b"333", None, b"", b"19" * 19, b"333", None]
        assert store.get_many(asked) == expected
        assert watched.get_many(asked * 10) == expected * 10
        assert 1 <= watched.most <= store.concurrency
        assert store.get_many([]) == []
        assert store.get_many(["k/98"]) == [None]
        watched.close()

    # Ranges

    def test_ranges_are_exact(self, store: Store) -> None:
        data = random.Random(1).randbytes(10_000)
        store.put_if_absent("k", data)
        for start, length in [(0, 1), (0, 10_000), (9_999, 1), (1234, 4321), (5000, 5000)]:
            assert store.get_range("k", start, length) == data[start : start + length]

    @pytest.mark.parametrize(
        ("start", "length"), [(0, 11), (9, 2), (10, 1), (11, 1), (5, 1 << 40), (1 << 40, 1)]
    )
    def test_a_range_past_the_end_is_incomplete(
        self, store: Store, start: int, length: int
    ) -> None:
        store.put_if_absent("k", b"0123456789")
        with pytest.raises(IncompleteError) as caught:
            store.get_range("k", start, length)
        assert (caught.value.key, caught.value.offset) == ("k", start)

    def test_an_empty_object_has_no_range(self, store: Store) -> None:
        store.put_if_absent("k", b"")
        with pytest.raises(IncompleteError):
            store.get_range("k", 0, 1)

    @pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, 0), (0, -1)])
    def test_an_impossible_range_is_refused(self, store: Store, start: int, length: int) -> None:
        store.put_if_absent("k", b"0123456789")
        with pytest.raises(InvalidInputError, match="range"):
            store.get_range("k", start, length)
        with pytest.raises(InvalidInputError, match="range"):
            store.get_ranges("k", [(0, 1), (start, length)])

    def test_many_ranges_come_in_the_order_asked_and_near_ones_share_a_request(
        self, store: Store
    ) -> None:
        gap = store.merge_gap_bytes
        data = random.Random(1).randbytes(6 * gap)
        store.put_if_absent("k", data)
        ranges = [(4 * gap, 7), (0, 10), (20, 5), (5 + gap, 9), (3, 30), (4 * gap, 7)]
        expected = [data[start : start + length] for start, length in ranges]
        assert list(store.get_ranges("k", ranges)) == expected
        counting = CountingStore(store)
        assert list(counting.get_ranges("k", ranges)) == expected
        assert counting.counts.requests == {"get_range": 2}
        assert counting.counts.bytes == {"get_range": gap + 14 + 7}
        assert list(store.get_ranges("k", [])) == []

    def test_ranges_are_read_concurrently_within_the_bound(self, store: Store) -> None:
        data = random.Random(2).randbytes(200_000)
        store.put_if_absent("k", data)
        watched = _Concurrency(store)
        watched.merge_gap_bytes = 0
        ranges = [(i * 1000, 10) for i in range(100)]
        got = watched.get_ranges("k", ranges)
        assert list(got) == [data[start : start + length] for start, length in ranges]
        assert 1 <= watched.most <= store.concurrency
        watched.close()

    def test_one_range_past_the_end_fails_the_whole(self, store: Store) -> None:
        store.put_if_absent("k", b"0123456789")
        with pytest.raises(IncompleteError):
            store.get_ranges("k", [(0, 1), (8, 5)])

    # Listing

    def test_a_listing_is_in_byte_order(self, store: Store) -> None:
        expected = sorted(MIXED)
        for key in random.Random(1).sample(expected, len(expected)):
            store.put_if_absent(key, b"1")
        assert keys(store.list()) == expected
        for prefix in ("a/", "A/", "a-b/", "aa/", "a/c/", "zz/", "a/b/"):
            under = [key for key in expected if key.startswith(prefix)]
            assert keys(store.list(prefix)) == under, prefix

    def test_a_listing_starts_after_any_key(self, store: Store) -> None:
        here = sorted(MIXED)
        for key in here:
            store.put_if_absent(key, b"1")
        starts = [*here, *(f"{key}0" for key in here), *(key[:-1] for key in here)]
        starts += ["", "A", "a", "a-", "a.", "a/", "a/c/", "a0", "Z", "zz", "a/bb", "a-b/", "0"]
        for prefix in ("", "a/", "a-b/", "A/"):
            for start in starts:
                expected = [key for key in here if key > start and key.startswith(prefix)]
                assert keys(store.list(prefix, start)) == expected, (prefix, start)

    def test_a_folder_between_siblings_of_its_name_is_listed_in_place(self, store: Store) -> None:
        """What a namespace `shop` and its neighbours `shop-eu` and `shop.old` look like."""
        names = ["shop", "shop-eu", "shop.old", "shop0", "shop_1"]
        expected = sorted(f"namespaces/{name}/wal/{i}.wal" for name in names for i in range(3))
        for key in expected:
            store.put_if_absent(key, b"1")
        assert keys(store.list("namespaces/")) == expected
        for i, key in enumerate(expected):
            assert keys(store.list("namespaces/", key)) == expected[i + 1 :]
            assert keys(store.list("", key)) == expected[i + 1 :]

    def test_a_long_listing_is_whole(self, store: Store) -> None:
        expected = sorted(f"wal/{i:020}.wal" for i in range(self.many))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda key: store.put_if_absent(key, b"1"), expected))
        store.put_if_absent("wal-2/x", b"1")
        store.put_if_absent("wal0", b"1")
        assert keys(store.list("wal/")) == expected
        assert keys(store.list()) == ["wal-2/x", *expected, "wal0"]
        half = len(expected) // 2
        assert keys(store.list("wal/", expected[half])) == expected[half + 1 :]
        assert keys(store.list("wal/", expected[-1])) == []
        first = store.list("wal/")
        assert next(first).key == expected[0]  # and nobody has to read the rest

    def test_an_empty_place_lists_nothing(self, store: Store) -> None:
        assert keys(store.list()) == []
        assert keys(store.list("a/")) == []
        store.put_if_absent("a/b/c", b"1")
        store.delete("a/b/c")
        assert keys(store.list()) == []
        assert keys(store.list("a/")) == []
        assert keys(store.list("a/b/")) == []

    def test_a_listing_tells_what_head_tells(self, store: Store) -> None:
        store.put_if_absent("a/b", b"123")
        assert list(store.list("a/")) == [store.head("a/b")]

    def test_last_modified_is_about_now(self, store: Store) -> None:
        before = SystemClock().now_us()
        store.put_if_absent("a", b"1")
        store.upload("b", [b"1"])
        after = SystemClock().now_us()
        for meta in store.list():
            modified = meta.last_modified_us
            assert before - CLOCK_SLACK_US <= modified <= after + CLOCK_SLACK_US
            assert store.head(meta.key).last_modified_us == modified

    # Refusals and the handle itself

    @pytest.mark.parametrize("key", INVALID)
    def test_an_invalid_key_is_refused_before_any_request(self, store: Store, key: str) -> None:
        asks: list[Callable[[], object]] = [
            lambda: store.put_if_absent(key, b"1"),
            lambda: store.upload(key, [b"1"]),
            lambda: store.get(key),
            lambda: store.get_range(key, 0, 1),
            lambda: store.get_ranges(key, [(0, 1)]),
            lambda: store.get_many([key]),
            lambda: store.head(key),
            lambda: store.delete(key),
        ]
        for ask in asks:
            with pytest.raises(InvalidInputError, match="object key"):
                ask()
        assert keys(store.list()) == []

    @pytest.mark.parametrize("prefix", ["a", "/", "a//", "../", "ä/"])
    def test_an_invalid_prefix_is_refused(self, store: Store, prefix: str) -> None:
        with pytest.raises(InvalidInputError):
            list(store.list(prefix))

    def test_it_works_in_another_process(self, store: Store) -> None:
        if not self.process_racers:
            return
        store.put_if_absent("here", b"1")
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            assert pool.submit(_use_elsewhere, pickle.dumps(store)).result() == (b"1", store.url)
        assert store.get("there") == b"2"

    def test_it_can_be_closed_twice(self, store2: Store) -> None:
        store2.put_if_absent("k", bytes(3 * store2.merge_gap_bytes))
        store2.get_ranges("k", [(0, 1), (2 * store2.merge_gap_bytes, 1)])
        store2.close()
        store2.close()

    def test_it_shows_where_it_is(self, store: Store) -> None:
        assert store.url.split("://")[0] in ("file", "memory", "s3", "az")
        assert store.url in repr(store)
        assert "secret" not in repr(store).lower()


class _Concurrency(WrapperStore):
    """Notices how many reads run at once."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._now = self.most = 0

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            return call()
        finally:
            with self._lock:
                self._now -= 1


def _use_elsewhere(pickled: bytes) -> tuple[bytes, str]:
    store: Store = pickle.loads(pickled)
    with store:
        store.put_if_absent("there", b"2")
        return store.get("here"), store.url
