"""Six processes upsert the same new ids at once: one document each, and nothing acknowledged is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import reef
from reef.doctor import verify
from reef.documents import Documents
from tests.support.crash.crash_points import forking
from tests.support.crash.rival_document_writers import (
    ROUNDS,
    contend,
    ids_of,
    is_create_only,
)

PROCESSES = 6
ACKS_BEFORE_KILL = 3
TURNS_MAX = 20


@dataclass(frozen=True)
class Ack:
    """What a process was told of its upsert in a round."""

    process: int
    round: int
    lsn: int
    outcomes: tuple[str, ...]
    replayed: bool


class Rivals:
    """Six processes; the first is killed in the middle, and another does the same all over."""

    def __init__(self, url: str, namespace: str) -> None:
        self._url = url
        self._namespace = namespace
        self._ends: dict[Connection, tuple[int, BaseProcess]] = {}
        self.acks: list[Ack] = []
        self.troubles: Counter[str] = Counter()
        for number in range(PROCESSES):
            self._start(number)
        for parent in self._ends:
            assert parent.recv() == ("ready",)

    def _start(self, number: int) -> Connection:
        parent, child = forking().Pipe()
        process = forking().Process(
            target=contend, args=(self._url, self._namespace, number, child)
        )
        process.start()
        child.close()
        self._ends[parent] = (number, process)
        return parent

    def run(self) -> None:
        done: list[int] = []
        victim = next(iter(self._ends))
        for end in self._ends:
            end.send("go")
        try:
            while self._ends:
                for parent in wait(list(self._ends)):
                    assert isinstance(parent, Connection)
                    number, process = self._ends[parent]
                    try:
                        kind, *details = parent.recv()
                    except (EOFError, ConnectionResetError):
                        del self._ends[parent]
                        assert parent is victim, f"process {number} died"
                        continue
                    if kind == "ack":
                        self.acks.append(Ack(number, *details))
                        if parent is victim and details[0] == ACKS_BEFORE_KILL - 1:
                            process.kill()
                            process.join()
                            again = self._start(number)
                            assert again.recv() == ("ready",)
                            again.send("go")
                    elif kind == "trouble":
                        self.troubles[details[0]] += 1
                    elif kind == "done" and process.is_alive():  # not what the killed one left
                        done.append(number)
                        parent.send("thanks")
                        process.join()
                        del self._ends[parent]
        finally:
            for _, process in self._ends.values():
                process.kill()
                process.join()
        assert sorted(done) == list(range(PROCESSES))


def test_six_processes_that_upsert_the_same_new_ids_make_one_document_each(url: str) -> None:
    for turn in range(TURNS_MAX):
        rivals = Rivals(url, namespace := f"contended-{turn}")
        rivals.run()
        print(rivals.troubles, len(rivals.acks))
        check_acks(url, namespace, rivals.acks)
        if rivals.troubles["FencedError"]:  # they did meet, and not each when another had finished
            break
    else:
        raise AssertionError(f"in {TURNS_MAX} turns nobody was fenced")


def check_acks(url: str, namespace: str, acks: list[Ack]) -> None:
    """Each process got one answer a round, and the documents are what the answers say."""
    told: dict[tuple[int, int], Ack] = {}
    for ack in acks:
        first = told.setdefault((ack.process, ack.round), ack)
        # Asked again by whoever came after the one that was killed: the first answer, once more.
        assert (ack.lsn, ack.outcomes) == (first.lsn, first.outcomes)
        assert ack is first or ack.replayed
    assert len(told) == PROCESSES * ROUNDS
    with reef.connect(url) as db, db.namespace(namespace, mode="r") as ns:
        found = [row for batch in ns.scan() for row in batch.to_pylist()]
        assert [row["id"] for row in found] == sorted(i for r in range(ROUNDS) for i in ids_of(r))
        assert ns.count() == len(found)
        assert ns.schema == {"by": "int64", **{f"own_{n}": "int64" for n in range(PROCESSES)}}
        for round in range(ROUNDS):
            check_round(ns, round, [ack for ack in told.values() if ack.round == round])
        assert verify(db.context(), namespace, deep=True).problems == ()


def check_round(ns: Documents, round: int, acks: list[Ack]) -> None:
    """Each id is the work of one: of who wrote last, or of who made it where others may not."""
    ids = ids_of(round)
    writers = [ack for ack in acks if "written" in ack.outcomes]
    for ack in acks:
        assert set(ack.outcomes) in ({"written"}, {"exists"})  # a batch is atomic
    if is_create_only(round):
        assert len(writers) == 1
    else:
        assert len(writers) == PROCESSES
        assert len({ack.lsn for ack in writers}) == PROCESSES
    for ack in writers:
        mine = [{"id": id, "by": ack.process, f"own_{ack.process}": round} for id in ids]
        assert ns.at(lsn=ack.lsn).get_many(ids) == mine
        assert ns.at(lsn=ack.lsn - 1).get_many(ids) != mine
    last = max(writers, key=lambda ack: ack.lsn)
    assert [row and row["by"] for row in ns.get_many(ids)] == [last.process] * len(ids)
