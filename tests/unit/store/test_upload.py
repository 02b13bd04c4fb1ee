"""Handing parts from their source to a client in another thread: nothing lost, nobody stuck."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from reef.store._upload import send_parts
from tests.support.waiting import DEADLINE_SECONDS, until


class Refused(Exception):
    pass


class Broken(Exception):
    pass


def endless(made: list[int]) -> Iterator[bytes]:
    while True:
        made.append(len(made))
        yield b"part"


def test_every_part_arrives_in_order() -> None:
    got: list[bytes] = []
    send_parts((b"%d" % i for i in range(100)), lambda given: got.extend(map(bytes, given)))
    assert got == [b"%d" % i for i in range(100)]


def test_the_source_runs_in_the_callers_thread_and_the_client_does_not() -> None:
    threads: list[threading.Thread] = []

    def source() -> Iterator[bytes]:
        threads.append(threading.current_thread())
        yield b"x"

    def send(given: Iterator[memoryview]) -> None:
        list(given)
        threads.append(threading.current_thread())

    send_parts(source(), send)
    assert threads[0] is threading.current_thread()
    assert threads[1] is not threading.current_thread()
    assert not threads[1].is_alive()


@pytest.mark.parametrize("after", [0, 1, 2, 3, 10])
def test_a_client_that_refuses_stops_the_source(after: int) -> None:
    made: list[int] = []

    def send(given: Iterator[memoryview]) -> None:
        for _ in range(after):
            next(given)
        raise Refused("no")

    with pytest.raises(Refused, match="no"):
        send_parts(endless(made), send)
    assert len(made) >= after


def test_a_client_that_refuses_frees_a_source_that_waits_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two parts wait, the third is being handed over, and nobody will ever take one."""
    feeds: list[queue.Queue[object]] = []
    outcome: list[str] = []

    class Feed(queue.Queue[object]):
        def __init__(self, maxsize: int) -> None:
            super().__init__(maxsize)
            feeds.append(self)

    monkeypatch.setattr(queue, "Queue", Feed)

    def send(given: Iterator[memoryview]) -> None:
        until(lambda: feeds[0].not_full._waiters, "the third part waits")  # type: ignore[attr-defined]
        raise Refused("no")

    def run() -> None:
        try:
            send_parts([b"1", b"2", b"3", b"4"], send)
        except Refused:
            outcome.append("refused")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE_SECONDS)
    assert outcome == ["refused"]


def test_a_client_that_is_content_early_stops_the_source() -> None:
    made: list[int] = []
    send_parts(endless(made), lambda given: next(given) and None)
    assert made


@pytest.mark.parametrize("after", [0, 1, 2, 3, 10])
def test_a_source_that_breaks_is_noticed_by_the_client_and_told_to_the_caller(after: int) -> None:
    ended: list[str] = []

    def source() -> Iterator[bytes]:
        yield from [b"x"] * after
        raise Broken("gone")

    def send(given: Iterator[memoryview]) -> None:
        try:
            for _ in given:
                pass
            ended.append("complete")
        except Exception:
            ended.append("abandoned")
            raise

    with pytest.raises(Broken, match="gone"):
        send_parts(source(), send)
    assert ended == ["abandoned"]


def test_the_source_is_never_far_ahead() -> None:
    made: list[int] = []
    ahead = 0

    def source() -> Iterator[bytes]:
        for i in range(50):
            made.append(i)
            yield b"x"

    def send(given: Iterator[memoryview]) -> None:
        nonlocal ahead
        for sent, _ in enumerate(given):
            ahead = max(ahead, len(made) - sent - 1)

    send_parts(source(), send)
    assert ahead <= 4  # two that wait, the one in each hand
