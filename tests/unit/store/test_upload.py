"""Handing parts from their source to a client in another thread: nothing lost, nobody stuck."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from reef.store._upload import send_parts
from tests.support.waiting import DEADLINE_SECONDS


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


def test_a_client_that_refuses_frees_a_source_that_waits_for_room() -> None:
    """Two parts wait, the third is being handed over, and nobody will ever take one."""
    third, outcome = threading.Event(), []

    def source() -> Iterator[bytes]:
        yield b"1"
        yield b"2"
        third.set()
        yield b"3"
        yield b"4"

    def send(given: Iterator[memoryview]) -> None:
        third.wait()
        time.sleep(0.05)  # so that the third is most likely waiting; right either way
        raise Refused("no")

    def run() -> None:
        try:
            send_parts(source(), send)
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
