"""How a race is judged, and races of real processes."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from typing_extensions import Buffer

from reef.clock import SystemClock
from reef.settings import Settings
from reef.store import FileStore, Store
from reef.store._check import Check, StoreCheck
from reef.store._check._probe import ViolationError
from reef.store._check._race import (
    RaceAttempt,
    RaceOutcome,
    RaceResult,
    judge_answers,
    judge_bytes,
    judge_rounds,
)


def attempt(author: int, outcome: RaceOutcome, found: bytes = b"") -> RaceAttempt:
    return RaceAttempt(author, outcome, wrote=b"%d" % author, found=found)


WON, LOST, UNKNOWN = RaceOutcome.WON, RaceOutcome.LOST, RaceOutcome.UNKNOWN


@pytest.mark.parametrize(
    ("told", "final", "problem"),
    [
        ([(WON, b""), (LOST, b"1")], b"1", ""),
        ([(WON, b""), (UNKNOWN, b"")], b"1", ""),
        ([(UNKNOWN, b""), (LOST, b"1")], b"1", ""),
        ([(UNKNOWN, b""), (UNKNOWN, b"")], None, ""),
        ([(WON, b""), (LOST, b"1")], None, "racer 1 created the object, and it is not there"),
        ([(UNKNOWN, b""), (LOST, b"1")], None, "racer 2 lost to an object that is not there"),
        ([(WON, b""), (LOST, b"1")], b"9", "the object holds the bytes of none of the racers"),
        ([(WON, b""), (UNKNOWN, b"")], b"2", "the bytes are those of racer 2"),
        ([(UNKNOWN, b""), (LOST, b"1")], b"2", "racer 2 was told that it lost, and the bytes"),
        ([(WON, b""), (LOST, b"9")], b"1", "racer 2 lost to an object that has been replaced"),
    ],
)
def test_the_bytes_that_stay_decide(
    told: list[tuple[RaceOutcome, bytes]], final: bytes | None, problem: str
) -> None:
    attempts = [attempt(i, *what) for i, what in enumerate(told, start=1)]
    assert judge_answers(attempts) == ""
    found = judge_bytes(attempts, final)
    assert problem in found
    assert bool(problem) == bool(found)


@pytest.mark.parametrize(
    ("attempts", "problem"),
    [
        ([attempt(1, WON), attempt(2, WON)], "2 of 2 racers were told that they created"),
        ([attempt(1, LOST), attempt(2, LOST)], "nobody created the object"),
        ([attempt(1, WON), RaceAttempt(2, RaceOutcome.FAILED, b"2", why="torn")], "racer 2: torn"),
    ],
)
def test_answers_that_cannot_be(attempts: list[RaceAttempt], problem: str) -> None:
    assert problem in judge_answers(attempts)


def test_rounds_that_show_nothing_are_no_proof() -> None:
    with pytest.raises(ViolationError, match="only 5 of 10 rounds were decided"):
        judge_rounds(RaceResult(rounds=10, undecided=5, unknown=9, violations=[]), 4)
    assert judge_rounds(RaceResult(10, 4, 9, []), 4).startswith("6 rounds of 4: one winner each")


def race_of_processes(store: Store) -> tuple[StoreCheck, Check]:
    check = StoreCheck(
        store,
        racers=4,
        rounds=2,
        settings=Settings(),
        clock=SystemClock(),
        rng=random.Random(7),
    )
    (race,) = (seen for seen in check.run() if seen.name == "racing processes")
    return check, race


class EverybodyWinsInFiles(FileStore):
    """Puts objects into place by renaming, which replaces what is there."""

    def put_if_absent(self, key: str, data: Buffer) -> None:
        path = f"{self.root}/{key}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.getpid()}.{threading.get_ident()}"
        Path(temporary).write_bytes(data)
        os.replace(temporary, path)

    def __reduce__(self) -> tuple[type[FileStore], tuple[str]]:
        return type(self), (self.root,)


class KillsItsProcess(FileStore):
    """Ends the process that puts an object in a race of processes."""

    def put_if_absent(self, key: str, data: Buffer) -> None:
        if "/racing-processes/" in key:
            os._exit(41)
        super().put_if_absent(key, data)

    def __reduce__(self) -> tuple[type[FileStore], tuple[str]]:
        return type(self), (self.root,)


def test_racing_processes_notice_that_all_win(tmp_path: Path) -> None:
    _, race = race_of_processes(EverybodyWinsInFiles(tmp_path / "b"))
    assert race.ok is False
    assert "round 1: 4 of 4 racers were told that they created the object" in race.seen


def test_a_racing_process_that_dies_is_told(tmp_path: Path) -> None:
    check, race = race_of_processes(KillsItsProcess(tmp_path / "b"))
    assert race.ok is False
    assert "a racing process ended early with exit code 41" in race.seen
    assert check.remove() == []
