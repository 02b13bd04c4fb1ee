"""What every store promises of creating objects: one winner of each name, and whole or not at all."""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

import pytest

from reef.clock import SystemClock
from reef.errors import AlreadyExistsError, ConflictError, NotFoundError, UnavailableError
from reef.settings import Settings
from reef.store import ObjectMeta, Store, create

T = TypeVar("T")


def keys(listing: Iterator[ObjectMeta]) -> list[str]:
    return [meta.key for meta in listing]


class CreationContract:
    """The part of `StoreContract` that is about creating and deleting, at once and in parts."""

    thread_rounds: ClassVar[int] = 10
    thread_racers: ClassVar[int] = 8
    process_rounds: ClassVar[int] = 10
    process_racers: ClassVar[int] = 3
    """0: the store lives in one process."""

    # Creating and deleting

    def test_the_first_creator_wins(self, store: Store, store2: Store) -> None:
        store.put_if_absent("k", b"first")
        for other in (store, store2):
            for data in (b"second", b"first", b""):
                with pytest.raises(AlreadyExistsError, match="k"):
                    other.put_if_absent("k", data)
        assert store.get("k") == b"first"

    def test_an_empty_object_takes_its_name_too(self, store: Store, store2: Store) -> None:
        store.put_if_absent("k", b"")
        with pytest.raises(AlreadyExistsError):
            store2.put_if_absent("k", b"1")
        assert store.get("k") == b""

    def test_an_uploaded_object_takes_its_name_too(self, store: Store, store2: Store) -> None:
        store.upload("k", [b"first"])
        with pytest.raises(AlreadyExistsError):
            store2.put_if_absent("k", b"second")
        assert store.get("k") == b"first"

    def test_deleting_twice_succeeds(self, store: Store, store2: Store) -> None:
        store.put_if_absent("a/k", b"1")
        store.delete("a/k")
        store.delete("a/k")
        store2.delete("a/k")
        store.delete("never/there")
        with pytest.raises(NotFoundError):
            store2.get("a/k")

    def test_a_deleted_name_can_be_created_again(self, store: Store, store2: Store) -> None:
        for i in range(3):
            store.put_if_absent("k", b"%d" % i)
            with pytest.raises(AlreadyExistsError):
                store2.put_if_absent("k", b"other")
            store2.delete("k")
        store2.put_if_absent("k", b"last")
        assert store.get("k") == b"last"

    def test_racing_threads_have_one_winner(self, store: Store, store2: Store) -> None:
        for round_ in range(self.thread_rounds):
            key = f"race/{round_}"
            results = _at_once(
                self.thread_racers,
                (store, store2),
                lambda one, racer, wait: _race(one, key, racer, wait),  # noqa: B023
            )
            _check_race(store, key, results)

    def test_racing_processes_have_one_winner(self, store: Store) -> None:
        if not self.process_racers:
            return
        context = multiprocessing.get_context("spawn")
        with context.Manager() as manager:
            start = manager.Barrier(self.process_racers)
            with ProcessPoolExecutor(self.process_racers, mp_context=context) as pool:
                runs = [
                    pool.submit(_race_rounds, store, i, self.process_rounds, start)
                    for i in range(self.process_racers)
                ]
                by_racer = [run.result() for run in runs]
        for round_ in range(self.process_rounds):
            _check_race(store, f"race/{round_}", [results[round_] for results in by_racer])

    def test_create_tells_each_racer_the_truth(self, store: Store, store2: Store) -> None:
        for round_ in range(3):
            key = f"wal/{round_}"
            said = _at_once(
                min(self.thread_racers, 4),
                (store, store2),
                lambda one, racer, wait: _create(one, key, racer, wait),  # noqa: B023
            )
            held = store.get(key)
            assert [i for i, found in enumerate(said) if found is None] == [held[0]]
            assert all(found in (None, held) for found in said)

    # Uploads in parts

    def test_parts_become_one_object(self, store: Store, store2: Store) -> None:
        rng = random.Random(3)
        parts = [rng.randbytes(size) for size in (1, 6 << 20, 0, 5 << 20, 17, 7 << 20)]
        seen_before_the_end = []

        def given() -> Iterator[bytes]:
            for part in parts:
                seen_before_the_end.append(_exists(store2, "segments/1.seg"))
                yield part

        store.upload("segments/1.seg", given())
        assert not any(seen_before_the_end)
        assert store2.get("segments/1.seg") == b"".join(parts)
        assert store2.head("segments/1.seg").size == sum(map(len, parts))

    def test_parts_may_be_made_of_what_the_store_holds(self, store: Store) -> None:
        """What a compaction does: read here, write there, a part at a time."""
        data = random.Random(4).randbytes(6 << 20)
        store.put_if_absent("segments/1.seg", data)
        half = len(data) // 2

        def merged() -> Iterator[bytes]:
            yield store.get("segments/1.seg")
            yield from store.get_ranges("segments/1.seg", [(half, 9), (0, 9)])
            yield keys(store.list("segments/"))[0].encode()

        store.upload("segments/2.seg", merged())
        expected = data + data[half : half + 9] + data[:9] + b"segments/1.seg"
        assert store.get("segments/2.seg") == expected

    @pytest.mark.parametrize("parts", [[], [b""], [b"x"], [b"", b"x", b""]])
    def test_small_uploads_are_objects_too(self, store: Store, parts: list[bytes]) -> None:
        store.upload("segments/1.seg", parts)
        assert store.get("segments/1.seg") == b"".join(parts)
        assert keys(store.list()) == ["segments/1.seg"]

    @pytest.mark.parametrize("after", [0, 1, 12 << 20])
    def test_parts_that_fail_leave_nothing(self, store: Store, after: int) -> None:
        class Broken(Exception):
            pass

        def given() -> Iterator[bytes]:
            if after:
                yield bytes(after)
            raise Broken("the source went away")

        with pytest.raises(Broken, match="the source went away"):
            store.upload("segments/1.seg", given())
        assert not _exists(store, "segments/1.seg")
        assert keys(store.list()) == []
        store.upload("segments/1.seg", [b"now"])
        assert store.get("segments/1.seg") == b"now"

    def test_finished_uploads_are_never_discarded(self, store: Store) -> None:
        store.upload("segments/1.seg", [bytes(6 << 20), b"x"])
        store.put_if_absent("k", b"1")
        assert list(store.sweep(2**53)) == []
        assert store.head("segments/1.seg").size == (6 << 20) + 1
        assert store.get("k") == b"1"


def _exists(store: Store, key: str) -> bool:
    try:
        store.head(key)
    except NotFoundError:
        return False
    return True


def _at_once(
    racers: int,
    stores: Sequence[Store],
    race: Callable[[Store, int, Callable[[], object]], T],
) -> list[T]:
    """Let racers begin at the same moment, each in a thread of its own, by one of the handles."""
    start = threading.Barrier(racers)
    with ThreadPoolExecutor(racers) as pool:
        return [*pool.map(lambda i: race(stores[i % len(stores)], i, start.wait), range(racers))]


def _body(racer: int) -> bytes:
    """Return what a racer writes: its number, over and over, so that a mixture would show."""
    return bytes([racer]) * (1000 + racer)


def _race(store: Store, key: str, racer: int, wait: Callable[[], object]) -> str:
    wait()
    try:
        store.put_if_absent(key, _body(racer))
    except AlreadyExistsError:
        return "lost"
    except UnavailableError:
        return "unclear"
    return "won"


def _race_rounds(store: Store, racer: int, rounds: int, start: Any) -> list[str]:
    return [_race(store, f"race/{round_}", racer, start.wait) for round_ in range(rounds)]


def _check_race(store: Store, key: str, results: list[str]) -> None:
    """Exactly one won, and what is there is its bytes, whole."""
    assert results.count("won") == 1, results
    assert results.count("lost") == len(results) - 1, results
    assert store.get(key) == _body(results.index("won"))


def _create(store: Store, key: str, racer: int, wait: Callable[[], object]) -> bytes | None:
    """Return None if this racer created the object, the other's bytes if it did not."""
    nonce = random.SystemRandom().randbytes(16)
    wait()
    try:
        create(
            store,
            key,
            bytes([racer]) + nonce,
            nonce=nonce,
            is_collected=lambda: False,
            settings=Settings(),
            clock=SystemClock(),
            rng=random.Random(racer),
        )
    except ConflictError as error:
        return error.found
    return None
