"""The block cache: bounded, least recently used first, exact in its counts, and safe among threads."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

import pytest

from reef.metrics import Metrics
from reef.segment import BlockCache


@dataclass(eq=False)
class Sized:
    """An entry of so many bytes."""

    nbytes: int


def new_cache(capacity_bytes: int = 100) -> tuple[BlockCache, Metrics]:
    metrics = Metrics()
    return BlockCache(capacity_bytes, metrics=metrics), metrics


def kept(cache: BlockCache, keys: str) -> str:
    return "".join(key for key in keys if cache.find(key) is not None)


def test_what_was_put_is_found() -> None:
    cache, _ = new_cache()
    entry = Sized(10)
    cache.put("a", entry)
    assert cache.find("a") is entry
    assert cache.use("block", "a") is entry
    assert cache.find("b") is None
    assert cache.use("block", "b") is None
    assert (len(cache), cache.nbytes) == (1, 10)


def test_the_least_recently_used_goes_first() -> None:
    cache, _ = new_cache(30)
    for key in "abc":
        cache.put(key, Sized(10))
    cache.use("block", "a")
    cache.put("d", Sized(10))
    assert kept(cache, "abcd") == "acd"
    cache.used("c", "a")  # as a hot read does: the tail, then the block
    cache.put("e", Sized(10))
    assert kept(cache, "acde") == "ace"
    cache.used_tail("c")
    cache.put("f", Sized(20))
    assert kept(cache, "acef") == "cf"
    assert cache.nbytes == 30


def test_finding_is_not_using() -> None:
    cache, _ = new_cache(20)
    cache.put("a", Sized(10))
    cache.put("b", Sized(10))
    cache.find("a")
    cache.put("c", Sized(10))
    assert kept(cache, "abc") == "bc"


def test_one_entry_may_push_out_several() -> None:
    cache, _ = new_cache(30)
    for key in "abc":
        cache.put(key, Sized(10))
    cache.put("d", Sized(15))
    assert kept(cache, "abcd") == "cd"
    assert cache.nbytes == 25


@pytest.mark.parametrize("capacity_bytes", [0, 99])
def test_what_is_too_large_by_itself_is_not_kept_and_pushes_nothing_out(
    capacity_bytes: int,
) -> None:
    cache, _ = new_cache(capacity_bytes)
    cache.put("a", Sized(capacity_bytes))
    cache.put("b", Sized(capacity_bytes + 1))
    assert kept(cache, "ab") == "a"


def test_another_entry_under_the_same_key_takes_its_place() -> None:
    cache, _ = new_cache()
    cache.put("a", Sized(40))
    other = Sized(30)
    cache.put("a", other)
    assert cache.find("a") is other
    assert (len(cache), cache.nbytes) == (1, 30)


def test_an_entry_that_grows_is_accounted_for() -> None:
    cache, _ = new_cache(50)
    first, second = Sized(10), Sized(10)
    cache.put("a", first)
    cache.put("b", second)
    cache.resize("b", second, 30)
    cache.resize("b", second, 30)  # two threads may make the same lists
    assert (second.nbytes, cache.nbytes) == (30, 40)
    cache.resize("b", second, 45)
    assert kept(cache, "ab") == "b"
    assert cache.nbytes == 45
    cache.resize("b", second, 60)
    assert (len(cache), cache.nbytes) == (0, 0)


def test_an_entry_that_is_not_kept_may_grow_as_it_likes() -> None:
    cache, _ = new_cache(50)
    old, new = Sized(10), Sized(20)
    cache.put("a", old)
    cache.put("a", new)
    cache.resize("a", old, 1000)
    cache.resize("b", old, 2000)
    assert cache.nbytes == 20
    cache.resize("a", new, 21)
    assert cache.nbytes == 21


def test_hits_and_misses_are_counted_by_kind() -> None:
    cache, metrics = new_cache()
    cache.put("t", Sized(1))
    cache.put("b", Sized(1))
    cache.use("tail", "t")
    cache.use("tail", "no")
    cache.use("block", "no")
    cache.use("block", "no")
    for _ in range(3):
        cache.used("t", "b")
    cache.used_tail("t")
    cache.publish()
    cache.publish()  # what was told is not told again
    counted = metrics.snapshot()
    assert counted['reef_cache_hits_total{cache="tail"}'] == 5
    assert counted['reef_cache_hits_total{cache="block"}'] == 3
    assert counted['reef_cache_misses_total{cache="tail"}'] == 1
    assert counted['reef_cache_misses_total{cache="block"}'] == 2


def test_the_metrics_learn_of_many_hot_reads_without_being_asked() -> None:
    cache, metrics = new_cache()
    for _ in range(5000):
        cache.used("t", "b")
    counted = metrics.snapshot()
    for kind in ("tail", "block"):
        told = counted[f'reef_cache_hits_total{{cache="{kind}"}}']
        assert isinstance(told, (int, float))
        assert 5000 - 1024 <= told <= 5000


def test_threads_keep_the_bound_and_lose_no_count() -> None:
    cache, metrics = new_cache(1000)
    threads, steps = 4, 3000
    hits = [0] * threads

    def run(number: int) -> None:
        rng = random.Random(number)
        for _ in range(steps):
            key = rng.randrange(60)
            entry = cache.find(key)
            if entry is None:
                cache.put(key, Sized(rng.randrange(1, 60)))
            else:
                cache.used(key, key)
                hits[number] += 1
                if rng.random() < 0.1:
                    cache.resize(key, entry, entry.nbytes + 1)

    runners = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    entries = [entry for key in range(60) if (entry := cache.find(key)) is not None]
    assert sum(entry.nbytes for entry in entries) == cache.nbytes <= 1000
    assert len(entries) == len(cache)
    cache.publish()
    assert metrics.snapshot()['reef_cache_hits_total{cache="block"}'] == sum(hits) > 0
