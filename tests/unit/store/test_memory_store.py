"""`memory://`: what goes beyond the contract that every store keeps."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import select
import signal

import pytest

from reef.errors import AlreadyExistsError, NotFoundError
from reef.store import MemoryStore, open_store
from reef.testing import ManualClock

_names = itertools.count()


@pytest.fixture
def name() -> str:
    return f"memory-test-{next(_names)}"


def test_stores_of_one_name_share_their_objects(name: str) -> None:
    one, other = open_store(f"memory://{name}"), open_store(f"memory://{name}")
    one.put_if_absent("k", b"1")
    assert other.get("k") == b"1"
    with pytest.raises(AlreadyExistsError):
        other.put_if_absent("k", b"2")


def test_stores_without_a_name_are_alone() -> None:
    one, other = open_store("memory://"), open_store("memory://")
    one.put_if_absent("k", b"1")
    with pytest.raises(NotFoundError):
        other.get("k")


def test_a_prefix_is_a_part_of_the_bucket(name: str) -> None:
    whole, part = open_store(f"memory://{name}"), open_store(f"memory://{name}/a")
    part.put_if_absent("b/k", b"1")
    whole.put_if_absent("a-b", b"2")
    whole.put_if_absent("a0", b"3")
    assert whole.get("a/b/k") == b"1"
    assert [meta.key for meta in part.list()] == ["b/k"]
    assert [meta.key for meta in part.list("b/")] == ["b/k"]
    assert list(part.list(start_after="b/k")) == []
    part.delete("b/k")
    assert [meta.key for meta in whole.list()] == ["a-b", "a0"]


def test_time_is_that_of_the_clock_given() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    store.put_if_absent("a", b"")
    clock.advance(1.5)
    store.put_if_absent("b", b"")
    first, second = store.list()
    assert second.last_modified_us - first.last_modified_us == 1_500_000
    assert first.last_modified_us == ManualClock().now_us()


def test_what_was_put_does_not_change_with_its_source() -> None:
    store, source = MemoryStore(), bytearray(b"abc")
    store.put_if_absent("k", source)
    source[0] = 0
    assert store.get("k") == b"abc"


def test_it_cannot_go_to_another_process(name: str) -> None:
    for move in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=rf"memory://{name}'\) .*lives in this process only"):
            move(open_store(f"memory://{name}"))


def test_objects_may_come_and_go_while_a_listing_is_read() -> None:
    store = MemoryStore()
    for i in range(2500):
        store.put_if_absent(f"k{i:05}", b"")
    listing = store.list()
    seen = [next(listing).key for _ in range(10)]
    for i in range(1500, 1600):
        store.delete(f"k{i:05}")
    store.put_if_absent("k02400-new", b"")
    seen += [meta.key for meta in listing]
    assert seen == sorted(seen)
    assert "k02400-new" in seen
    assert len(seen) == 2500 - 100 + 1


def test_plain_put_and_copy_overwrite() -> None:
    store = MemoryStore()
    store.put("k", b"1")
    store.put("k", b"2")
    store.copy("k", "l")
    assert (store.get("k"), store.get("l")) == (b"2", b"2")
    with pytest.raises(NotFoundError):
        store.copy("missing", "l")
    assert store.get("l") == b"2"


def test_concurrent_ranges_work_in_a_forked_child() -> None:
    """A fork inherits the pool of threads, but no thread."""
    store = MemoryStore()
    store.concurrency, store.merge_gap_bytes = 4, 0
    store.put_if_absent("a", b"0123456789")
    ranges = [(0, 1), (3, 2), (8, 2)]
    assert store.get_ranges("a", ranges) == [b"0", b"34", b"89"]
    child = os.fork()
    if child == 0:
        found = store.get_ranges("a", ranges)
        os._exit(0 if found == [b"0", b"34", b"89"] else 1)
    ended = os.pidfd_open(child)
    if not select.select([ended], [], [], 120)[0]:
        os.kill(child, signal.SIGKILL)
    os.close(ended)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "it hangs, or found others"
    store.close()
