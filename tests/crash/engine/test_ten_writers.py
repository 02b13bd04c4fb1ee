"""Ten processes open one namespace, at once or each in the middle of another's writes: one is left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

import reef
from reef.engine import open_for_reading
from reef.format import LogKind, LogObject, log_key
from reef.kv import FACE
from reef.log import ChainPoint, LogReader, Replay
from reef.store import open_store
from tests.support.crash.crash_points import forking
from tests.support.crash.forked import STUCK_SECONDS
from tests.support.crash.rival_writers import LAST_WRITES, NAMESPACE, Id, contend, rows_of

WRITERS = 10
ACKS_BEFORE_NEXT = 6


@dataclass
class Told:
    """What the ten processes told."""

    acked: dict[Id, int] = field(default_factory=dict)
    tried: set[Id] = field(default_factory=set)
    failed: set[Id] = field(default_factory=set)
    ends: Counter[str] = field(default_factory=Counter)

    def take(self, kind: str, *details: Any) -> None:
        if kind == "ack":
            self.acked[details[0]] = details[1]
        elif kind == "try":
            self.tried.add(details[0])
        elif kind == "failed":
            self.failed.add(details[0])
        elif kind != "unknown":
            self.ends[kind] += 1


class Rivals:
    """Ten processes that wait to be let loose on the namespace."""

    def __init__(self, url: str, parallel: int) -> None:
        start = forking()
        self._processes = []
        self._ends: dict[Connection, int] = {}
        for number in range(WRITERS):
            parent, child = start.Pipe()
            process = start.Process(target=contend, args=(url, number, parallel, child))
            process.start()
            child.close()
            self._processes.append(process)
            self._ends[parent] = number
        for parent in self._ends:
            assert parent.recv() == ("ready",)

    def run(self, waves: Sequence[int]) -> Told:
        """Let them open, so many at a time: the next ones when those before have written some.

        All of those before have opened by then: one that came later would fence the next ones.
        """
        told = Told()
        waiting, ready, acks = list(waves), list(self._ends), 0
        newest: set[int] = set()

        def let_go(count: int) -> None:
            newest.clear()
            for parent in ready[:count]:
                parent.send("go")
                newest.add(self._ends[parent])
            del ready[:count]

        let_go(opening := waiting.pop(0))
        try:
            for message in self._listen():
                told.take(*message)
                opening -= message[0] in ("opened", "fenced at open")
                acks += message[0] == "ack" and message[1][0] in newest
                if waiting and not opening and acks >= ACKS_BEFORE_NEXT:
                    let_go(opening := waiting.pop(0))
                    acks = 0
        finally:
            for process in self._processes:
                process.kill()
                process.join()
        return told

    def _listen(self) -> Iterator[tuple[Any, ...]]:
        """Yield what they tell; when one is left that writes, tell it that it is the last."""
        left = list(self._ends)
        is_told = False
        while left:
            heard = wait(left, STUCK_SECONDS)
            assert heard, f"nothing was heard of {len(left)} processes for {STUCK_SECONDS} s"
            for parent in heard:
                assert isinstance(parent, Connection)
                try:
                    message = parent.recv()
                except EOFError:
                    left.remove(parent)
                    continue
                yield message
                if len(left) == 1 and message[0] == "ack" and not is_told:
                    parent.send("you are the last one")
                    is_told = True


def check_rows(url: str, told: Told) -> None:
    """Everything acknowledged is there, whole, at its LSN; nothing that failed is."""
    reader = open_for_reading(reef.connect(url).context(), NAMESPACE, FACE)
    rows = {}
    for batch in reader.view().scan():
        columns = (batch.column(name).to_pylist() for name in ("_key", "_lsn", "value"))
        rows.update({key: (lsn, value) for key, lsn, value in zip(*columns, strict=True)})
    assert rows.pop(b"afterwards")[1] == b"never"  # the survivor's, and nobody else's
    hot = rows.pop(b"hot")
    visible: dict[Id, set[int]] = defaultdict(set)
    for key, (lsn, value) in rows.items():
        process, thread, number = map(int, value.split(b"/"))
        assert key in rows_of((process, thread, number))
        visible[process, thread, number].add(lsn)
    for id, lsns in visible.items():
        assert len(lsns) == 1
        assert id in told.tried
        assert id not in told.failed
        assert all(key in rows for key in rows_of(id) if key != b"hot")
    for id, lsn in told.acked.items():
        assert visible[id] == {lsn}
    newest = max(visible, key=lambda id: max(visible[id]))
    assert hot == (max(visible[newest]), rows_of(newest)[b"hot"])


def check_log(url: str, told: Told) -> None:
    """The log has no gap, epochs only rise in it, and what is void was acknowledged to nobody."""
    acked = set(told.acked.values())
    epoch = 0
    for log, is_valid in read_log(url):
        lsns = {record.lsn for record in log.records} if log.kind is LogKind.DATA else set()
        if is_valid:
            assert log.epoch >= epoch
            epoch = log.epoch
            acked -= lsns
        else:
            assert not acked & lsns
    assert not acked
    newest = open_for_reading(reef.connect(url).context(), NAMESPACE, FACE).manifest
    assert newest.writer_epoch == epoch  # the last one to open is the one that is left


def read_log(url: str) -> Iterator[tuple[LogObject, bool]]:
    """Yield every log object there is, from the first on, and whether it is valid."""
    store = open_store(url)
    keys = [meta.key for meta in store.list(f"namespaces/{NAMESPACE}/wal/")]
    assert keys == [log_key(NAMESPACE, slot) for slot in range(1, len(keys) + 1)]  # no gap
    replay = Replay(ChainPoint(0, 0, 0), 1)
    count = 0
    for entry in LogReader(store, NAMESPACE, "packed").read(replay):
        count += 1
        yield entry.log, entry.is_valid
    assert count == len(keys)


def run_and_check(url: str, parallel: int, waves: Sequence[int]) -> Told:
    told = Rivals(url, parallel).run(waves)
    print(told.ends, len(told.acked), len(told.failed), len(told.tried))
    assert told.ends["survived"] == 1
    assert told.ends["fenced at open"] + told.ends["fenced at write"] == WRITERS - 1
    assert len(told.acked) >= LAST_WRITES * parallel
    check_rows(url, told)
    check_log(url, told)
    return told


@pytest.mark.parametrize("parallel", [1, 8])
def test_ten_that_open_at_once_leave_one_survivor(url: str, parallel: int) -> None:
    run_and_check(url, parallel, [WRITERS])


@pytest.mark.parametrize("parallel", [1, 8])
def test_ten_that_take_over_from_each_other_leave_one_survivor(url: str, parallel: int) -> None:
    waves = [1, 1, 2, 1, 1, 2, 1, 1]
    told = run_and_check(url, parallel, waves)
    # Whoever opened alone was writing when the next one came.
    assert told.ends["fenced at write"] >= len(waves) - 1
    assert len(told.failed) >= len(waves) - 1
