"""The cache on disk: bounded, checked on every read, shared by processes, and never in the way."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from reef.clock import SystemClock
from reef.errors import InvalidInputError
from reef.metrics import Metrics
from reef.segment import DiskCache
from reef.segment._read._disk_cache import _digest

TRAILER = 16


def open_cache(
    folder: Path, capacity_bytes: int = 1 << 20, metrics: Metrics | None = None
) -> DiskCache:
    return DiskCache(folder, capacity_bytes, metrics=metrics or Metrics(), clock=SystemClock())


def content(name: str, size: int = 84) -> pa.Buffer:
    return pa.py_buffer(random.Random(name).randbytes(size))


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def kept(cache: DiskCache, names: str) -> str:
    return "".join(name for name in names if name in cache)


def put(cache: DiskCache, names: str, size: int = 84) -> None:
    for name in names:
        cache.put(name, content(name, size))


def age(folder: Path, seconds: int) -> None:
    """Let every file look as if it was last used so long ago."""
    for path in files(folder):
        seen = path.stat().st_mtime_ns - seconds * 10**9
        os.utime(path, ns=(seen, seen))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "of" / "blocks"


def test_what_was_put_comes_back(folder: Path) -> None:
    metrics = Metrics()
    cache = open_cache(folder, metrics=metrics)
    put(cache, "ab")
    cache.put("empty", pa.py_buffer(b""))
    assert cache.get("a") == content("a")
    assert cache.get("b") == content("b")
    assert cache.get("empty") == pa.py_buffer(b"")
    assert cache.get("c") is None
    assert "a" in cache
    assert "c" not in cache
    assert (len(cache), cache.nbytes) == (3, 2 * 100 + TRAILER)
    counted = metrics.snapshot()
    assert counted['reef_cache_hits_total{cache="disk"}'] == 3
    assert counted['reef_cache_misses_total{cache="disk"}'] == 1


def test_a_slice_of_a_larger_buffer_is_kept_alone(folder: Path) -> None:
    cache = open_cache(folder)
    cache.put("a", content("a", 1000).slice(100, 84))
    assert cache.get("a") == content("a", 1000).slice(100, 84)
    assert cache.nbytes == 100


def test_files_are_named_by_hash_whatever_they_are_called(folder: Path) -> None:
    cache = open_cache(folder)
    names = ["../../escape", "a/b", "s3://bucket/ü \0", "x" * 5000]
    for name in names:
        cache.put(name, content(name))
    assert [cache.get(name) for name in names] == [content(name) for name in names]
    for path in files(folder):
        assert path.parent.parent == folder
        assert path.parent.name == path.name[:2]
        assert len(path.name) == 64


def test_the_least_recently_used_is_removed_first_and_the_bound_is_kept(folder: Path) -> None:
    cache = open_cache(folder, 300)
    put(cache, "abc")
    cache.get("a")
    put(cache, "d")
    assert kept(cache, "abcd") == "acd"
    assert cache.get("b") is None
    assert cache.get("a") == content("a")
    put(cache, "e", size=184)
    assert kept(cache, "acde") == "ae"
    assert sum(path.stat().st_size for path in files(folder)) == cache.nbytes == 300


def test_a_use_counts_without_looking_at_the_folder_again(folder: Path) -> None:
    cache = open_cache(folder, 100 * 160)
    for number in range(160):
        cache.put(f"{number}", content(f"{number}"))
    age(folder, 300)
    cache = open_cache(folder, 100 * 160)
    oldest = next(iter(cache._sizes))
    name = next(f"{number}" for number in range(160) if _digest(f"{number}") == oldest)
    cache.get(name)
    put(cache, "abcde")
    assert (name in cache, len(cache)) == (True, 160)
    assert cache.get(name) == content(name)


class Interrupted(DiskCache):
    """Puts something else while it writes `a`."""

    def _write(self, digest: str, data: pa.Buffer) -> None:
        if digest == _digest("a"):
            put(self, "b")
            self.between = self.nbytes
        super()._write(digest, data)


def test_room_is_taken_before_a_file_is_there(folder: Path) -> None:
    cache = Interrupted(folder, 250, metrics=Metrics(), clock=SystemClock())
    put(cache, "a")
    assert cache.between == 200
    put(cache, "c")
    assert cache.nbytes == sum(path.stat().st_size for path in files(folder)) == 200


def test_a_file_larger_than_the_cache_is_not_read(folder: Path) -> None:
    cache = open_cache(folder)
    put(cache, "a")
    (path,) = files(folder)
    os.truncate(path, 1 << 40)
    assert cache.get("a") is None
    assert not path.exists()


def test_what_is_too_large_by_itself_is_not_kept(folder: Path) -> None:
    cache = open_cache(folder, 300)
    put(cache, "a")
    put(cache, "b", size=300)
    assert kept(cache, "ab") == "a"
    assert len(files(folder)) == 1


def test_putting_again_replaces(folder: Path) -> None:
    cache = open_cache(folder, 300)
    cache.put("a", content("old", 184))
    cache.put("a", content("a"))
    assert cache.get("a") == content("a")
    assert (len(cache), cache.nbytes, len(files(folder))) == (1, 100, 1)


def test_dropping_removes_the_file(folder: Path) -> None:
    cache = open_cache(folder)
    put(cache, "ab")
    cache.drop("a")
    cache.drop("never there")
    assert cache.get("a") is None
    assert (len(files(folder)), cache.nbytes) == (1, 100)


def test_it_survives_a_restart_with_its_order(folder: Path) -> None:
    cache = open_cache(folder, 300)
    put(cache, "a")
    age(folder, 300)
    put(cache, "b")
    age(folder, 300)
    put(cache, "c")
    cache.get("a")  # used last, though oldest
    again = open_cache(folder, 300)
    assert (len(again), again.nbytes) == (3, 300)
    put(again, "d")
    assert kept(again, "abcd") == "acd"
    assert again.get("a") == content("a")


def test_a_smaller_bound_is_met_at_the_start(folder: Path) -> None:
    put(open_cache(folder, 1000), "abcdef")
    again = open_cache(folder, 250)
    assert (len(again), again.nbytes, len(files(folder))) == (2, 200, 2)


@pytest.mark.parametrize("damage", ["flip", "flip trailer", "cut", "cut short", "empty", "longer"])
def test_a_damaged_file_is_missing_and_goes(
    folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    cache = open_cache(folder, metrics=metrics)
    put(cache, "a")
    (path,) = files(folder)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[7] ^= 4
    elif damage == "flip trailer":
        data[-5] ^= 4
    elif damage == "longer":
        data += b"\0"
    else:
        del data[{"cut": 50, "cut short": 3, "empty": 0}[damage] :]
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING, "reef"):
        assert cache.get("a") is None
    assert "damaged" in caplog.text
    assert files(folder) == []
    assert (len(cache), cache.nbytes) == (0, 0)
    assert metrics.snapshot()['reef_cache_misses_total{cache="disk"}'] == 1
    put(cache, "a")
    assert cache.get("a") == content("a")


def test_two_handles_see_what_the_other_put(folder: Path) -> None:
    first, second = open_cache(folder), open_cache(folder)
    put(first, "a")
    assert "a" not in second
    assert second.get("a") == content("a")
    assert (len(second), second.nbytes) == (1, 100)
    first.drop("a")
    assert second.get("a") is None
    assert second.nbytes == 0


def test_a_handle_that_adds_much_looks_at_what_others_added(folder: Path) -> None:
    capacity = 100 * 160
    first, second = open_cache(folder, capacity), open_cache(folder, capacity)
    for number in range(300):
        first.put(f"first {number}", content(f"first {number}"))
        second.put(f"second {number}", content(f"second {number}"))
    there = sum(path.stat().st_size for path in files(folder))
    assert there <= capacity + 2 * capacity // 16
    assert first.nbytes <= capacity
    assert second.nbytes <= capacity


def test_what_others_keep_in_the_folder_is_left_alone(folder: Path) -> None:
    (folder / "ab").mkdir(parents=True)
    foreign = [
        folder / "README",
        folder / "ab" / "abstract.txt",
        folder / "photos" / "cd" / "x.jpg",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(bytes(5000))
    cache = open_cache(folder, 300)
    put(cache, "abcdefgh")
    assert cache.nbytes == 300
    assert all(path.exists() for path in foreign)


def test_leftovers_of_a_process_that_died_go_when_they_are_old(folder: Path) -> None:
    folder.mkdir(parents=True)
    old, fresh = folder / "reef-tmp-old", folder / "reef-tmp-fresh"
    old.write_bytes(b"torn")
    age(folder, 7200)
    fresh.write_bytes(b"on its way")
    open_cache(folder)
    assert [path.name for path in files(folder)] == [fresh.name]


@pytest.mark.parametrize("instead", ["nothing", "a file"])
def test_a_folder_that_goes_away_fails_no_read(
    folder: Path, instead: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache(folder)
    put(cache, "a")
    shutil.rmtree(folder)
    if instead == "a file":
        folder.write_bytes(b"")
    with caplog.at_level(logging.WARNING, "reef"):
        assert cache.get("a") is None
        put(cache, "bc")
        assert cache.get("b") is None
    assert caplog.text.count("cannot") == 1  # said once, not for every read
    assert cache.nbytes == 0


def test_a_place_that_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInputError, match="disk_cache_dir"):
        open_cache(tmp_path / "file")
    with pytest.raises(InvalidInputError, match="disk_cache_dir"):
        open_cache(tmp_path / "file" / "below")


def is_right(cache: DiskCache, name: str) -> bool:
    """Return whether a name is missing, or what was put."""
    found = cache.get(name)
    return found is None or bool(found == content(name, 1000))


def churn(folder: Path, seed: int, steps: int) -> None:
    """Put, get and drop names at random; whatever comes back must be right."""
    cache = open_cache(folder, 20_000)
    rng = random.Random(seed)
    for _ in range(steps):
        name = f"name {rng.randrange(50)}"
        choice = rng.random()
        if choice < 0.45:
            cache.put(name, content(name, 1000))
        elif choice < 0.95:
            assert is_right(cache, name)
        else:
            cache.drop(name)
    assert cache.nbytes <= 20_000


@pytest.mark.slow
def test_processes_that_share_a_folder_read_what_is_right(folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    runners = [context.Process(target=churn, args=(folder, seed, 600)) for seed in range(2)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    assert [runner.exitcode for runner in runners] == [0, 0]
    assert not [path for path in files(folder) if path.name.startswith("reef-tmp-")]
    # Whoever comes next finds a folder in order.
    cache = open_cache(folder, 20_000)
    assert sum(path.stat().st_size for path in files(folder)) == cache.nbytes <= 20_000


def test_threads_keep_the_bound(folder: Path) -> None:
    cache = open_cache(folder, 20_000)
    problems: list[str] = []

    def run(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(300):
            name = f"name {rng.randrange(50)}"
            if rng.random() < 0.5:
                cache.put(name, content(name, 1000))
            elif not is_right(cache, name):
                problems.append(name)

    runners = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    assert problems == []
    assert cache.nbytes <= 20_000
    again = open_cache(folder, 1 << 30)
    assert again.nbytes <= 20_000
