"""kill -9, over and over: a writer is killed at a random moment, a fresh process looks at the bucket.

    python -m tests.support.crash.kill_loop URL --cycles 500 --seed 1 --parallel 1,2,8

A supervisor forks a writer, which tells of each batch before it begins and after its receipt came;
kills it while it opens, writes, flushes or collects; and forks another process, a reader or the
next writer, which compares what is there with what has to be there (`tests/support/crash/kill_check.py`).
The supervisor itself never touches a store, so that it has no threads and forks are clean.

The last line of its output is a summary in JSON. It ends with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from functools import partial
from typing import Any

import numpy.ma  # noqa: F401 numpy does it when it is needed, then in every child

from reef.database import Database
from reef.engine import Context
from reef.errors import NotFoundError, SnapshotExpiredError
from reef.kv import KeyValue
from reef.store import open_store
from tests.support.crash.forked import BROKEN, Forked, StuckError, reporting, tell
from tests.support.crash.kill_check import Findings, check, view_of, write
from tests.support.crash.kill_jobs import JOBS, pause
from tests.support.crash.kill_model import PLACES, Model, batch_of, digest_of, number_of
from tests.support.crash.kill_time import GRACE_SECONDS, Timeline, TimelineClock, TimelineStore
from tests.support.engine.open_handles import handle_of

HEARD_MAX = 400
"""After so much of it a writer is killed, whatever was waited for."""
OPENING, OPENED, TRY, ACK, SEEN = b"o", b"O", b"t", b"a", b"s"
FLUSHING, FLUSHED, JOB, JOB_DONE = b"f", b"F", b"j", b"J"
MOMENTS = {OPENING: "opening", TRY: "trying", ACK: "acked"} | {
    FLUSHING: "flushing",
    JOB: "in_job",
}


class Stop(Exception):
    """Something is wrong; the run ends here."""


def main() -> int:
    """Run the cycles, print the summary, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parallel", default="1,2,8", help="max_parallel_writes, one per cycle")
    parser.add_argument("--rotate", type=int, default=6, help="cycles per namespace")
    parser.add_argument("--tidy", action="store_true", help="delete namespaces that are done with")
    args = parser.parse_args()
    parallel = [int(number) for number in args.parallel.split(",")]
    loop = KillLoop(args.url, args.seed, parallel, args.rotate, is_tidy=args.tidy)
    problem = ""
    gc.freeze()
    try:
        for cycle in range(args.cycles):
            loop.run(cycle)
            if (cycle + 1) % 1000 == 0:
                print(json.dumps(loop.counts), file=sys.stderr, flush=True)
    except (Stop, StuckError) as error:
        problem = f"cycle {cycle}, namespace {loop.namespace}, seed {args.seed}: {error}"
        print(problem, file=sys.stderr, flush=True)
    print(json.dumps({**loop.counts, "problem": problem}))
    return 1 if problem else 0


class KillLoop:
    """The supervisor: what it knows of the namespace at hand, and what it has counted."""

    def __init__(
        self, url: str, seed: int, parallel: list[int], rotate: int, *, is_tidy: bool
    ) -> None:
        self._url = url
        self._seed = seed
        self._parallel = parallel
        self._rotate = rotate
        self._is_tidy = is_tidy
        self._rng = random.Random(seed)
        self._open_seconds = 0.02
        self._timeline = Timeline()
        self._model = Model(seed)
        self._in_flight: set[int] = set()
        self.namespace = ""
        self.counts: Counter[str] = Counter()

    def run(self, cycle: int) -> None:
        """Start a writer, kill it, and have what is left looked at."""
        if cycle % self._rotate == 0:
            if self._is_tidy and self.namespace:
                Forked(self._delete_namespace).end(wait=True)
            self.namespace = f"kill-{self._seed}-{cycle}"
            self._model = Model(self._seed)
        self._timeline.begin_cycle()
        parallel = self._parallel[cycle % len(self._parallel)]
        settings = self._settings(parallel)
        follower = Forked(self._follow) if cycle % 5 == 4 else None
        victim = Forked(lambda out: self._write_for_ever(out, cycle, settings))
        try:
            self._kill(victim, cycle)
        finally:
            victim.end()
            seen = [] if follower is None else self._hear(follower)
        self.counts["cycles"] += 1
        self.counts[f"parallel_{parallel}"] += 1
        mode = "rw"[cycle % 2]
        self._take(self._look(mode, settings), mode)
        for lsn, digest in seen:
            self.counts["views_followed"] += 1
            if digest != digest_of(self._model.state(lsn)):
                raise Stop(
                    f"a reader has seen at LSN {lsn} what was not, or is not any more, there"
                )

    def _settings(self, parallel: int) -> dict[str, object]:
        """Return settings under which there are flushes, and groups of every size."""
        return {
            "max_parallel_writes": parallel,
            "flush_threshold_slots": self._rng.choice((3, 8, 30)),
            "flush_threshold_bytes": self._rng.choice((2 << 10, 64 << 10)),
            "group_commit_max_batches": self._rng.choice((1, 2, 256)),
            "group_commit_window": self._rng.choice((None, 0.002)),
            "gc_grace": GRACE_SECONDS,
            "retained_generations": self._rng.choice((1, 3)),
            "row_block_bytes": self._rng.choice((1 << 10, 256 << 10, 256 << 10, 256 << 10)),
        }

    def _connect(self) -> Database:
        clock = TimelineClock(self._timeline)
        return Database(TimelineStore(self._url, self._timeline), clock=clock)

    def _delete_namespace(self, _: int) -> None:
        with open_store(self._url) as store:
            for meta in list(store.list(f"namespaces/{self.namespace}/")):
                store.delete(meta.key)
            store.sweep(2**62)

    # The victim.

    def _write_for_ever(self, out: int, cycle: int, settings: dict[str, object]) -> None:
        """Write from as many threads as there may be PUTs in flight; what was left open first."""
        tell(out, OPENING)
        db = self._connect()
        kv = db.kv(self.namespace, **settings)
        tell(out, OPENED)
        for number in sorted(self._model.open | self._model.gone):
            if batch_of(self._seed, number).idempotency_key is not None:
                self._write_one(kv, out, number)

        def work(thread: int) -> None:
            rng = random.Random(f"{self._seed}/{cycle}/{thread}")
            for place in range(PLACES):
                self._write_one(kv, out, number_of(cycle, thread, place))
                if rng.random() < 0.1:
                    tell(out, FLUSHING)
                    kv.flush()
                    tell(out, FLUSHED)

        jobs = [
            partial(work, thread) for thread in range(int(str(settings["max_parallel_writes"])))
        ]
        for number, name in enumerate(JOBS):
            if self._has_job(cycle, number):
                jobs.append(partial(self._run_job, db.context(**settings), name, number, out))
        threads = [threading.Thread(target=reporting, args=(out, job)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _write_one(self, kv: KeyValue, out: int, number: int) -> None:
        tell(out, TRY, number)
        batch = batch_of(self._seed, number)
        receipt = write(kv, batch)
        tell(out, ACK, number, receipt.lsn)
        found, wanted = kv.get(batch.marker), batch.puts.get(batch.marker)
        if found != wanted and batch.kind != "hot":
            raise AssertionError(f"batch {number}, just written at {receipt.lsn}: {found!r}")

    def _has_job(self, cycle: int, job: int) -> bool:
        """Return whether a job runs in a cycle: each in half of them, in every combination."""
        return bool(cycle >> job & 1)

    def _run_job(self, context: Context, name: str, number: int, out: int) -> None:
        while True:
            tell(out, JOB, number)
            tell(out, JOB_DONE, number, JOBS[name](context, self.namespace, self._model.head))
            pause()

    # A reader beside it.

    def _follow(self, out: int) -> None:
        """Follow the writer; tell of each version what was there."""
        db = self._connect()
        kv = None
        while kv is None:
            with contextlib.suppress(NotFoundError):
                kv = db.kv(self.namespace, mode="r")
        last = 0
        while True:
            lsn = kv.refresh()
            if lsn < last:
                raise AssertionError(f"a reader went back from LSN {last} to {lsn}")
            if lsn > last:
                # A compaction may have raised the floor above it.
                with contextlib.suppress(SnapshotExpiredError):
                    tell(out, SEEN, lsn, digest_of(view_of(handle_of(kv).at_lsn(lsn))))
            last = lsn

    def _hear(self, follower: Forked) -> list[tuple[int, int]]:
        follower.kill()
        try:
            records = list(follower.records())
        finally:
            follower.end()
        if any(kind == BROKEN for kind, *_ in records):
            raise Stop("the reader failed; see above")
        return [(lsn, digest) for _, lsn, digest in records]

    # The kill.

    def _kill(self, victim: Forked, cycle: int) -> None:
        """Kill the writer at a moment that chance chooses, and take note of all that it told."""
        rng = self._rng
        event = rng.choice([TRY, TRY, ACK, FLUSHING, OPENING, JOB if cycle % 8 else TRY])
        most = rng.choice((3, 10, 10, 40)) if event in (TRY, ACK) else 3 if event == JOB else 1
        count = rng.randint(1, most)
        longest = (
            self._open_seconds * 1.2 if event == OPENING else rng.choice((0.0005, 0.005, 0.02))
        )
        delay = rng.uniform(0, longest)
        self.counts[f"kills_{MOMENTS[event]}"] += 1
        started = 0.0
        seen = 0
        for heard, (kind, number, lsn) in enumerate(victim.records(), 1):
            self._note(kind, number, lsn)
            if kind == OPENING:
                started = time.monotonic()
            elif kind == OPENED:
                self._open_seconds = time.monotonic() - started
            seen += kind == event
            if seen == count or heard == HEARD_MAX:
                break
        else:
            raise Stop("the writer ended by itself")
        if delay:
            time.sleep(delay)  # any moment will do: each is a crash point
        victim.kill()
        for kind, number, lsn in victim.records():
            self._note(kind, number, lsn)
        self.counts["kills"] += 1
        self.counts["kills_in_flight"] += bool(self._in_flight)

    def _note(self, kind: bytes, number: int, lsn: int) -> None:
        if kind == OPENING:
            self._in_flight.clear()
        elif kind == TRY:
            self._in_flight.add(number)
            self._model.tried(number)
        elif kind == ACK:
            self._in_flight.remove(number)
            self.counts["acks"] += 1
            self._wrong(self._model.answered(number, lsn))
        elif kind == FLUSHED:
            self.counts["flushes"] += 1
        elif kind == JOB_DONE:
            self.counts[f"{list(JOBS)[number]}_done"] += lsn
        elif kind == BROKEN:
            raise Stop("the writer failed; see above")

    # The look.

    def _look(self, mode: str, settings: dict[str, object]) -> Findings:
        seed = self._rng.random()

        def look(out: int) -> None:
            rng = random.Random(seed)
            found = check(self._connect(), self.namespace, mode, settings, self._model, rng)
            payload = json.dumps(found._asdict()).encode()
            while payload:
                payload = payload[os.write(out, payload) :]

        child = Forked(look)
        try:
            answer = child.read_all()
        finally:
            child.end()
        try:
            return Findings(**json.loads(answer))
        except ValueError:
            raise Stop(f"looking ({mode}) failed; see above") from None

    def _take(self, found: Findings, mode: str) -> None:
        model = self._model
        self._wrong("; ".join(found.problems))
        for number, lsn in found.committed:
            self.counts["unacked_found"] += number in model.open
            model.commit(number, lsn)
        for number in found.gone:
            self.counts["unacked_gone"] += number in model.open
            model.open.discard(number)
            model.gone.add(number)
        for number, lsn in found.retried:
            self._wrong(model.answered(number, lsn))
            model.gone.discard(number)
            model.commit(number, lsn)
        model.head = found.head
        self.counts.update(found.counts)
        self.counts[f"looks_{mode}"] += 1

    def _wrong(self, problem: str | None) -> None:
        if problem:
            raise Stop(problem)


def summary_of(text: str) -> dict[str, Any]:
    """Return the summary from the output of a run."""
    found: dict[str, Any] = json.loads(text.strip().rsplit("\n", 1)[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
