"""A page store under kill -9, and two writers at once: nothing acknowledged is lost or torn."""

from __future__ import annotations

from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

import reef
from tests.support.crash import page_scenes as scenes
from tests.support.crash.crash_points import crash, forking, fresh
from tests.support.crash.forked import STUCK_SECONDS

STORY, LAST = scenes.STORY, scenes.LAST
LSNS = [0, 10, 15, 20, 30, 40, 45, 50, 60]
NEXT = scenes.Commit(60, (0, 2))


def check(url: str, commits: tuple[scenes.Commit, ...]) -> None:
    """A reader, the next writer, and a reader after that find these commits, at every LSN."""
    for mode in "rw":
        found = fresh(url, scenes.look, mode, LSNS)
        assert found.head == commits[-1].lsn
        for lsn, seen in found.at.items():
            assert seen == scenes.told_by([one for one in commits if one.lsn <= lsn]), lsn
    assert fresh(url, scenes.go_on, NEXT) == NEXT.lsn
    assert fresh(url, scenes.look, "r", [60]).at[60] == scenes.told_by((*commits, NEXT))


def test_killed_after_the_append_before_the_ack(url: str) -> None:
    """(a) The commit is durable and nobody was told: it is there, all of it."""
    child = crash(url, scenes.write_and_die, "after wal put", LAST)
    assert child.all("ack") == [(commit.lsn,) for commit in STORY]
    check(url, (*STORY, LAST))


def test_killed_after_the_ack_before_the_page_is_materialised(url: str) -> None:
    """(b) The commit was told, and is in no segment: replay brings it."""
    child = crash(url, scenes.ack_and_die, "before segment upload")
    assert child.all("ack") == [(commit.lsn,) for commit in (*STORY, LAST)]
    check(url, (*STORY, LAST))


@pytest.mark.parametrize("point", ["after segment upload", "before manifest put"])
def test_killed_while_it_is_materialised(url: str, point: str) -> None:
    child = crash(url, scenes.ack_and_die, point)
    assert child.all("ack") == [(commit.lsn,) for commit in (*STORY, LAST)]
    check(url, (*STORY, LAST))


def test_killed_before_the_append_nothing_of_the_commit_is_there(url: str) -> None:
    child = crash(url, scenes.write_and_die, "before wal put", LAST)
    assert child.all("ack") == [(commit.lsn,) for commit in STORY]
    check(url, STORY)


@pytest.mark.parametrize(
    ("point", "is_durable"),
    [("after segment upload", False), ("before wal put", False), ("after wal put", True)],
)
def test_killed_in_a_commit_that_no_log_object_holds(
    url: str, point: str, is_durable: bool
) -> None:
    """It is all there or nothing is, whatever was uploaded."""
    crash(url, scenes.write_and_die, point, scenes.LAST_LARGE)
    check(url, (*STORY, scenes.LAST_LARGE) if is_durable else STORY)


def test_of_two_writers_one_survives_and_the_other_knows(url: str) -> None:
    start = forking()
    ends: dict[Connection, int] = {}
    processes = []
    for number in range(2):
        parent, child = start.Pipe()
        process = start.Process(target=scenes.contend, args=(url, number, child))
        process.start()
        child.close()
        processes.append(process)
        ends[parent] = number
    try:
        acked, fenced, survivor = _contend(ends)
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert [*fenced] == [1 - survivor]
    loser = [lsn for lsn, (number, _) in acked.items() if number != survivor]
    if fenced[1 - survivor] is not None:
        assert fenced[1 - survivor] == max(loser, default=fenced[1 - survivor])
    with reef.connect(url) as db, db.pages("contended", mode="r") as store:
        assert store.head == max(acked)
        # Every acknowledged commit is there at its LSN, whole, and none of the loser's is newer.
        for lsn, (number, data) in acked.items():
            view = store.at(lsn=lsn)
            assert view.get_page(number) == data
            assert data in view.get_pages(range(100, 107))
        assert max(loser, default=0) < max(lsn for lsn in acked if lsn not in loser)


def _contend(
    ends: dict[Connection, int],
) -> tuple[dict[int, tuple[int, bytes]], dict[int, Any], int]:
    """Let the first write, then the second take over; return what was acked, and who is left."""
    acked: dict[int, tuple[int, bytes]] = {}
    fenced: dict[int, Any] = {}
    first, second = ends
    for writer in ends:
        assert writer.recv() == ("ready",)
    first.send("go")
    waiting = {first, second}
    is_second_told = is_stopping = False
    while waiting:
        ready = wait(waiting, timeout=STUCK_SECONDS)
        assert ready, "nobody says anything"
        for end in ready:
            assert isinstance(end, Connection)
            try:
                kind, *told = end.recv()
            except EOFError:
                waiting.remove(end)
                continue
            if kind == "ack":
                lsn, number, data = told
                assert lsn not in acked  # no two commits share a slot
                acked[lsn] = (number, data)
                if len(acked) >= 20 and not is_second_told:
                    is_second_told = True
                    second.send("go")
            elif kind == "fenced":
                fenced[ends[end]] = told[0]
            elif kind == "survived":
                survivor = ends[end]
        of_survivor = sum(number not in fenced for number, _ in acked.values())
        if fenced and not is_stopping and of_survivor >= 20:
            is_stopping = True
            next(end for end, number in ends.items() if number not in fenced).send("stop")
    return acked, fenced, survivor
