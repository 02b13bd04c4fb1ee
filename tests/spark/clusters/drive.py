"""One life of a namespace on a Spark session: a driver in a process of its own, as a JVM serves one master.

Rows are written, folded, merged, checked and read, loaded in bulk, collected and rebuilt; after each
step what Spark reads is compared with a dict. Its feed is streamed into another namespace meanwhile.
Prints what happened as JSON.

python -m tests.spark.clusters.drive MASTER|"" URL FOLDER STEP=ACT,STEP=ACT...|"" [NAME=VALUE...]

Without a master the session is where SPARK_REMOTE says. Steps have gates that do as `gates` says.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import reef
from reef import jobs
from reef.errors import CorruptError
from reef.jobs import CompactionOptions, IndexOptions, VerifyOptions
from reef.spark import session, spark_runner
from tests.support.spark import runner_tasks as tasks
from tests.support.spark.runner_tasks import Ask, Told
from tests.support.spark.task_gates import Act, Gate, Gatekeeper, gated_frame
from tests.support.waiting import until

NAME = "life"
COPY = "copy"
Rows = dict[str, dict[str, Any]]


class Life:
    """A namespace, and what has to be in it."""

    def __init__(self, spark: SparkSession, url: str, folder: str) -> None:
        self._spark = spark
        self._url = url
        self._folder = folder
        self._db = reef.connect(url, gc_grace=0, row_block_bytes=4096)
        self.runner = Gatekeeper(spark_runner(self._db.context(), spark), folder)
        self.rows: Rows = {}
        self.told: dict[str, Any] = {"seconds": {}}

    # What changes it.

    def write(self, serial: int) -> None:
        """Put, patch and delete, in four commits: some rows are hit by each, most by none."""
        with self._step("write"), self._db.namespace(NAME) as ns:
            for part in range(4):
                first = 800 * serial + 200 * part
                new = {
                    f"{7919 * i % 10007:05d}": _row(i, serial) for i in range(first, first + 400)
                }
                ids = sorted(self.rows.keys() - new.keys())
                patched, gone = ids[part::17], ids[part + 5 :: 19]
                patched = [id for id in patched if id not in gone]
                ns.write(
                    upserts=[{"id": id, **row} for id, row in new.items()],
                    patches=[{"id": id, "s": f"patched {serial}", "tags": None} for id in patched]
                    or None,
                    deletes=gone or None,
                )
                self.rows |= new
                for id in patched:
                    self.rows[id] = {"n": self.rows[id]["n"], "s": f"patched {serial}"}
                for id in gone:
                    del self.rows[id]

    def load(self, job_key: str, act: Act | None = None) -> None:
        """Load a frame in bulk, half of it over what is there; once, however often it is tried."""
        frame = self._spark.range(0, 2000, 1, 4).selectExpr(
            "lpad(cast(pmod(id * 7919, 4001) * 5 as string), 5, '0') id", "id n", "'loaded' s"
        )
        with self._step("load"), self._frame_gate(act, "load") as gate:
            for _ in range(2):
                given = gated_frame(frame, gate) if gate else frame
                given.write.format("reef").options(
                    url=self._url, namespace=NAME, method="bulk", job_key=job_key
                ).mode("append").save()
        self.rows |= {f"{i * 7919 % 4001 * 5:05d}": {"n": i, "s": "loaded"} for i in range(2000)}

    def stream(self, act: Act | None = None) -> None:
        """Stream what has changed since the last time into another namespace: each change once."""
        feed = (
            self._spark.readStream.format("reef")
            .options(url=self._url, namespace=NAME, starting="earliest")
            .load()
            .selectExpr("concat(id, '@', _lsn) id", "_op op")
        )
        with self._step("stream"), self._frame_gate(act, "stream") as gate:
            query = (
                (gated_frame(feed, gate) if gate else feed)
                .writeStream.format("reef")
                .options(url=self._url, namespace=COPY)
                .options(checkpointLocation=f"{self._folder}/checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        found, wanted = Counter[str](), Counter[str]()
        with (
            self._db.namespace(NAME, mode="r") as ns,
            self._db.namespace(COPY, mode="r") as copy,
        ):
            for rows in copy.changes():
                found.update(rows.column("id").to_pylist())
            for rows in ns.changes():
                named = zip(
                    rows.column("id").to_pylist(), rows.column("_lsn").to_pylist(), strict=True
                )
                wanted.update(f"{id}@{lsn}" for id, lsn in named)
        assert found == wanted, (len(found), len(wanted))

    def index(self, act: Act | None = None, attached: int = 0) -> None:
        """Fold one log object in each task; so many segments of a bulk load are among them."""
        with self._step("index", act):
            done = jobs.index(
                self._db, NAME, runner=self.runner, options=IndexOptions(task_slots=1)
            )
        assert not done.failed, done.failed
        self._check_gate(act)
        assert done.totals["rows"] > 0
        assert done.totals.get("attached", 0) == attached, done.totals

    def compact(self, act: Act | None = None) -> None:
        """Merge everything, in many ranges."""
        options = CompactionOptions(full=True, target_size_bytes=16 << 10, memory_bytes=1 << 30)
        with self._step("compact", act):
            done = jobs.compact(self._db, NAME, runner=self.runner, options=options)
        assert not done.failed, done.failed
        self._check_gate(act)
        assert done.totals["groups"] >= 1, done.totals

    def rebuild(self) -> None:
        """Make everything anew from the bucket."""
        with self._step("rebuild"):
            done = jobs.rebuild(self._db, NAME, runner=self.runner)
        assert not done.failed, done.failed

    def collect(self) -> None:
        """Delete what nothing needs; no segment that nobody names is left."""

        def is_done() -> bool:
            done = jobs.collect(self._db, NAME, apply=True, runner=self.runner)
            assert not done.failed, done.failed
            return not self.orphans()

        with self._step("collect"):
            until(is_done)  # some stores tell seconds: what is of this one is not old yet

    def snapshot(self) -> tuple[str, Rows]:
        """Keep a version; return its name and what is in it."""
        with self._db.namespace(NAME, mode="r") as ns:
            return ns.snapshot(ttl=None).id, dict(self.rows)

    # What is compared.

    def check(self, act: Act | None = None) -> None:
        """Compare what Spark reads with the dict."""
        found = self._read(act)
        assert found == self.rows, _difference(found, self.rows)

    def check_at(self, snapshot: tuple[str, Rows]) -> None:
        """Compare a version of the past."""
        found = self._read(None, snapshot=snapshot[0])
        assert found == snapshot[1], _difference(found, snapshot[1])

    def check_directly(self) -> None:
        """Compare what a reader without Spark sees."""
        with self._db.namespace(NAME, mode="r") as ns:
            rows = [row for batch in ns.scan() for row in batch.to_pylist()]
        found = {row.pop("id"): _present(row) for row in rows}
        assert found == self.rows, _difference(found, self.rows)

    def verify(self) -> None:
        """Check every byte."""
        with self._step("verify"):
            done = jobs.verify(
                self._db,
                NAME,
                runner=self.runner,
                options=VerifyOptions(task_bytes=32 << 10, small_bytes=1),
            )
        assert not done.failed, done.failed
        assert done.totals["segments"], done.totals

    def _check_gate(self, act: Act | None) -> None:
        """Look at what came of a gate: one attempt of two is published, the other's is an orphan."""
        if act is None:
            return
        gate = self.runner.gate
        assert gate is not None
        assert gate.act == act
        arrivals = gate.arrivals()
        assert len(arrivals) == 2, arrivals
        keys = [arrival.key for arrival in arrivals]
        winner = 0 if act == "lead" else 1
        assert keys[winner] in self._named(), keys
        assert keys[1 - winner] in self.orphans(), keys
        assert (self.runner.attempt > 0) == (winner == 1), self.runner.attempt
        assert arrivals[0].executor != arrivals[1].executor
        self.told[gate.name] = [arrival.executor for arrival in arrivals]

    def orphans(self) -> set[str]:
        """Return the segments that no manifest names or has named."""
        keys = [meta.key for meta in self._db.store.list(f"namespaces/{NAME}/segments/")]
        there = {key for key in keys if key.endswith(".seg")}
        head = self._db.context().chain(NAME).load()
        assert head is not None
        assert not head.manifest.intents
        return there - self._named() - {one.key for one in head.manifest.gc.pending}

    def _named(self) -> set[str]:
        head = self._db.context().chain(NAME).load()
        assert head is not None
        return {f"namespaces/{NAME}/segments/{ref.id}.seg" for ref in head.manifest.segments}

    def _read(self, act: Act | None, **at: str) -> Rows:
        frame: DataFrame = (
            self._spark.read.format("reef")
            .options(
                url=self._url, namespace=NAME, min_partitions="3", partition_bytes="20000", **at
            )
            .load()
        )
        with self._step("read"), self._frame_gate(act, "read") as gate:
            given = gated_frame(frame, gate) if gate else frame
            rows = [row.asDict(recursive=True) for row in given.collect()]
        found = {row.pop("id"): _present(row) for row in rows}
        assert len(found) == len(rows)
        return found

    @contextmanager
    def _frame_gate(self, act: Act | None, name: str) -> Iterator[Gate | None]:
        """Give a gate for frames, and look that two attempts came to it."""
        gate = Gate(act, self._folder, name) if act else None
        yield gate
        if gate:
            arrivals = gate.arrivals()
            assert len(arrivals) == 2, arrivals
            self.told[name] = [arrival.executor for arrival in arrivals]

    @contextmanager
    def _step(self, name: str, act: Act | None = None) -> Iterator[None]:
        self.runner.arm(act)
        begun = time.monotonic()
        yield
        seconds = self.told["seconds"]
        seconds[name] = round(seconds.get(name, 0) + time.monotonic() - begun, 1)


def _row(number: int, serial: int) -> dict[str, Any]:
    return {"n": number, "s": f"{serial} {number}", "tags": ["t", str(number % 7)]}


def _present(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _difference(found: Rows, wanted: Rows) -> str:
    ids = sorted(id for id in found.keys() | wanted.keys() if found.get(id) != wanted.get(id))
    shown = [(id, found.get(id), wanted.get(id)) for id in ids[:5]]
    return f"{len(ids)} of {len(wanted)} rows differ, found and wanted: {shown}"


def live(life: Life, acts: dict[str, Act]) -> None:
    """Go through one life, with gates in its steps."""
    life.write(0)
    life.index()
    life.write(1)
    life.stream()
    early = life.snapshot()
    life.index(acts.get("index"))
    life.check_directly()
    life.write(2)
    life.index()
    life.compact(acts.get("compact"))
    life.verify()
    life.check(acts.get("read"))
    life.load("first", acts.get("load"))
    life.check_directly()
    life.write(3)
    life.stream(acts.get("stream"))
    life.index(attached=1)
    life.collect()
    life.verify()
    life.check_at(early)
    life.rebuild()
    life.check()
    life.check_directly()


def run_many(runner: Gatekeeper) -> dict[str, Any]:
    """Run a hundred tasks, of which two thirds fail, and tell what came back."""
    seen: list[int] = []
    outcomes = runner.run(
        tasks.fail_by_number,
        [Ask(number) for number in range(100)],
        Told,
        name="fail_by_number",
        progress=lambda done, total: seen.append(done),
    )
    assert isinstance(outcomes[1].error, CorruptError)
    return {
        "numbers": [None if one.result is None else one.result.number for one in outcomes],
        "errors": [type(one.error).__name__ for one in outcomes],
        "seen": seen,
    }


def main(master: str, url: str, folder: str, acts: str, *conf: str) -> None:
    """Live on a session of that master and print what happened."""
    begun = time.monotonic()
    spark = session(
        "reef-tests",
        master=master or None,
        conf=dict(setting.split("=", 1) for setting in conf),
    )
    life = Life(spark, url, folder)
    life.told["seconds"]["start"] = round(time.monotonic() - begun, 1)
    live(life, dict(one.split("=") for one in acts.split(",") if one))  # type: ignore[misc]
    told = {
        **life.told,
        "rows": len(life.rows),
        **run_many(life.runner),
        "runs": life.runner.runs,
        "parallelism": life.runner.parallelism,
        "session": type(spark).__module__,
    }
    life.told["seconds"]["all"] = round(time.monotonic() - begun, 1)
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
