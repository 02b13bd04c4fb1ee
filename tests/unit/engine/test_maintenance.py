"""Self-maintenance: an open writer compacts and collects its own namespace, step by step."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest

from reef.compaction import CompactionOptions
from reef.doctor import verify
from reef.errors import FencedError, InvalidInputError, UnavailableError
from reef.format import encode_manifest
from reef.jobs import InProcess, Job, compact
from reef.kv import KeyValue
from reef.store import MemoryStore
from reef.testing import Fault, FaultyStore, ManualClock, Operation
from tests.support.engine.collecting import HookedStore
from tests.support.engine.open_database import contents, database
from tests.support.engine.open_handles import handle_of, writer_of
from tests.support.engine.upkeep import HandKept, maintenance_of
from tests.support.waiting import until

GRACE_S = 60


class Kept:
    """A namespace with maintenance by hand, and what it must hold."""

    def __init__(self, store: HookedStore | None = None, **settings: object) -> None:
        self.clock = ManualClock()
        self.bucket = MemoryStore(clock=self.clock)
        self.store = store or HookedStore(self.bucket)
        self.settings = {
            "flush_interval": 0,
            "gc_grace": GRACE_S,
            "retained_generations": 2,
            **settings,
        }
        self.model: dict[bytes, bytes] = {}
        self.rng = random.Random(1)
        self.db = self.database()
        self.pool = self.db.pool
        self.kv = self.db.kv("ns")

    def database(self) -> HandKept:
        return HandKept(self.store, self.clock, **self.settings)

    def flush(self, times: int = 1, puts: int = 3) -> None:
        for _ in range(times):
            for _ in range(puts):
                key, value = b"k%03d" % self.rng.randrange(500), self.rng.randbytes(8)
                self.kv.put(key, value)
                self.model[key] = value
            self.clock.advance(1)
            self.kv.flush()

    @property
    def live(self) -> int:
        return len(handle_of(self.kv).manifest.segments)

    def objects(self, folder: str) -> set[str]:
        return {meta.key for meta in self.bucket.list(f"namespaces/ns/{folder}/")}

    def check(self) -> None:
        assert dict(self.kv.items()) == self.model
        assert dict(contents(self.bucket)) == self.model
        context = database(self.bucket, clock=self.clock).context()
        head = context.chain("ns").load()
        assert head is not None
        assert head.manifest.intents == ()
        report = verify(context, "ns")
        assert report.problems == ()


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.mark.parametrize(
    ("flushes", "puts"),
    [
        (250, 3),
        pytest.param(
            10_000, 100, marks=(pytest.mark.nightly, pytest.mark.timeout(7200)), id="a million"
        ),
    ],
)
def test_a_writer_that_gets_no_other_call_stays_small(flushes: int, puts: int, kept: Kept) -> None:
    live, objects, beyond = [], [], []
    for number in range(flushes):
        kept.flush(puts=puts)
        kept.pool.work()
        if number % 10:
            continue
        manifest = handle_of(kept.kv).manifest
        live.append(kept.live)
        objects.append(sum(1 for _ in kept.bucket.list()))
        alone = msgspec.structs.replace(manifest, segments=())
        beyond.append(len(encode_manifest(alone)))
    assert max(live) <= 20
    # Per second the log objects, a segment and two generations: a grace period's worth, and a quarter.
    assert max(objects) < GRACE_S * (puts + 5) * 1.5
    assert max(objects[18:]) <= max(objects[10:18]) * 1.2
    assert max(beyond) < 2048
    stats = maintenance_of(kept.kv).stats()
    assert stats["compactions"] >= 25
    assert stats["collections"] >= 5
    assert stats["last_error"] is None
    kept.check()


def test_few_segments_are_left_alone(kept: Kept) -> None:
    kept.flush(7)
    assert kept.pool.asked == []
    kept.flush()
    assert len(kept.pool.asked) == 1
    assert kept.kv.stats()["maintenance"]["due"] == ["compact"]
    before = kept.live
    assert kept.pool.work() >= 1
    assert kept.live < before
    assert kept.kv.stats()["maintenance"]["due"] == []
    kept.check()


def test_off_means_off() -> None:
    kept = Kept(maintenance="off")
    kept.flush(20)
    assert kept.pool.asked == []
    assert kept.live == 20
    assert kept.kv.stats()["maintenance"]["mode"] == "off"


def test_a_handle_that_only_reads_keeps_nothing(kept: Kept) -> None:
    kept.flush(20)
    kept.pool.asked.clear()
    reader = kept.db.kv("ns", mode="r")
    assert dict(reader.items()) == kept.model
    assert kept.pool.asked == []
    assert "maintenance" not in reader.stats()


def test_an_idle_writer_sends_nothing(kept: Kept) -> None:
    kept.flush(40)
    kept.pool.work()
    kept.store.requests.clear()
    kept.clock.advance(10 * GRACE_S)
    assert kept.pool.work() == 0
    assert kept.store.requests == []


def test_a_step_has_few_requests(kept: Kept) -> None:
    kept.flush(8)
    maintenance_of(kept.kv)._floor_at = float("inf")
    kept.store.requests.clear()
    assert kept.pool.work(1) == 1
    asked = Counter(operation for operation, _ in kept.store.requests)
    # A tail and the rows of each input, at most; the output; the manifest and its check.
    assert asked["get_range"] <= 2 * 8
    assert (asked["upload"], asked["put_if_absent"], asked["list"]) == (1, 1, 1)
    assert sum(asked.values()) <= 2 * 8 + 3

    kept.flush(60)
    kept.pool.work()
    kept.clock.advance(GRACE_S)
    kept.flush(1)
    doomed = (
        len(kept.objects("wal")) + len(kept.objects("segments")) + len(kept.objects("manifest"))
    )
    kept.store.requests.clear()
    kept.pool.work()
    asked = Counter(operation for operation, _ in kept.store.requests)
    assert 0 < asked["delete"] <= doomed
    # Generations that the writer knows are not read again: what is left are heads, and log headers.
    assert asked["get"] <= 12
    assert asked["get_range"] <= doomed
    assert asked["list"] <= 20
    kept.check()


def test_versions_stay_readable_for_the_grace_period(kept: Kept) -> None:
    kept.flush(4)
    lsn, rows = kept.kv.lsn, dict(kept.model)
    kept.flush(16)
    kept.pool.work()
    assert dict(kept.kv.at(lsn=lsn).items()) == rows
    kept.clock.advance(2 * GRACE_S)
    kept.flush(16)
    kept.pool.work()
    assert handle_of(kept.kv).manifest.retention.floor_lsn > lsn
    kept.check()


def test_snapshots_and_branches_see_what_they_saw(kept: Kept) -> None:
    kept.flush(5)
    snapshot, rows = kept.kv.snapshot(ttl=None), dict(kept.model)
    kept.kv.branch("b")
    for _ in range(8):
        kept.flush(10)
        kept.clock.advance(GRACE_S)
        kept.pool.work()
    assert dict(snapshot.items()) == rows
    fresh = database(kept.bucket, clock=kept.clock)
    assert dict(fresh.kv("ns", branch="b", mode="r").items()) == rows
    assert dict(fresh.kv("ns", mode="r").at(snapshot=snapshot.id).items()) == rows
    kept.check()


# Beside jobs.


def flush_and_work(kept: Kept, times: int = 10) -> None:
    kept.flush(times)
    kept.pool.work()


def test_a_compaction_of_a_job_is_never_overtaken(kept: Kept) -> None:
    """Maintenance works before most of the job's requests, also between its plan and its intent."""
    kept.flush(30)
    kept.pool.asked.clear()
    is_nested: list[bool] = []
    publishes = [0]

    def beside(operation: Operation, key: str) -> None:
        if "/manifest/" not in key and "/segments/" not in key:
            return
        publishes[0] += operation == "put_if_absent"
        is_lost = operation == "put_if_absent" and publishes[0] % 2  # by the race for its number
        if (is_lost or (publishes[0] and "/segments/" in key)) and not is_nested:
            is_nested.append(True)
            flush_and_work(kept)
            is_nested.pop()

    store = HookedStore(kept.bucket)
    other = database(store, clock=kept.clock, gc_grace=GRACE_S, retained_generations=2)
    store.before = beside
    result = compact(
        other, "ns", runner=InProcess(other.context()), options=CompactionOptions(full=True)
    )
    store.before = lambda operation, key: None
    (one,) = result.namespaces
    assert one.error is None
    assert one.result is not None
    assert {group.state for group in one.result.groups} == {"published"}
    assert maintenance_of(kept.kv).stats()["compactions"] > 0
    kept.check()


def test_what_a_job_may_read_is_left_alone_while_it_stands(kept: Kept) -> None:
    kept.flush(20)
    kept.pool.asked.clear()
    before = {ref.id for ref in handle_of(kept.kv).manifest.segments}
    job = Job.begin(database(kept.bucket, clock=kept.clock).context(), "ns", "compact")
    flush_and_work(kept, 20)
    live = {ref.id for ref in handle_of(kept.kv).manifest.segments}
    assert before <= live
    assert len(live - before) < 8  # what came later is compacted all the same
    job.end()
    flush_and_work(kept, 8)
    assert kept.live < 8
    kept.check()


def test_a_job_that_begins_meanwhile_goes_first(kept: Kept) -> None:
    kept.flush(8)
    jobs: list[Job] = []
    other = database(kept.bucket, clock=kept.clock).context()
    kept.store.once("upload", "segments", lambda: jobs.append(Job.begin(other, "ns", "compact")))
    kept.pool.work()
    assert kept.live == 8
    assert maintenance_of(kept.kv).stats()["compactions"] == 0
    jobs[0].end()
    kept.flush(8)
    kept.pool.work()
    assert kept.live < 8
    # What the first attempt uploaded is garbage, and goes although the epoch lasts.
    kept.clock.advance(2 * GRACE_S)
    flush_and_work(kept, 40)
    kept.clock.advance(2 * GRACE_S)
    flush_and_work(kept, 40)
    live = {ref.id for ref in handle_of(kept.kv).manifest.segments}
    assert len(kept.objects("segments")) < len(live) + 60
    kept.check()


def test_a_fold_beside_it_does_no_harm(kept: Kept) -> None:
    kept.flush(8)
    job = Job.begin(database(kept.bucket, clock=kept.clock).context(), "ns", "index")
    kept.pool.work()
    assert kept.live < 8
    job.end()


# Trouble.


def failing(kept: Kept, *, part: str, times: int) -> None:
    left = [times]

    def before(operation: Operation, key: str) -> None:
        if left[0] and part in key and operation in ("put_if_absent", "upload", "get_range"):
            left[0] -= 1
            raise UnavailableError("the store does not answer")

    kept.store.before = before


def test_outputs_that_were_never_published_do_not_pile_up(kept: Kept) -> None:
    kept.flush(8)
    for _ in range(20):
        job: list[Job] = []
        other = database(kept.bucket, clock=kept.clock).context()
        kept.store.once(
            "upload", "segments", lambda o=other, j=job: j.append(Job.begin(o, "ns", "compact"))
        )
        kept.pool.work()
        if job:
            job[0].end()
        kept.clock.advance(10)
        kept.flush()
    kept.clock.advance(2 * GRACE_S)
    flush_and_work(kept, 40)
    kept.clock.advance(2 * GRACE_S)
    flush_and_work(kept, 8)
    manifest = handle_of(kept.kv).manifest
    named = {ref.id for ref in manifest.segments}
    young = {key for key in kept.objects("segments") if key.split("/")[-1][:-4] not in named}
    assert len(young) < 20
    assert manifest.writer_epoch == 1
    kept.check()


def test_a_store_that_fails_is_asked_again_later(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.flush(8)
    failing(kept, part="segments/", times=100)
    with caplog.at_level(logging.WARNING, "reef"):
        assert kept.pool.work() == 1
    assert "does not answer" in str(maintenance_of(kept.kv).stats()["last_error"])
    kept.store.before = lambda operation, key: None
    kept.flush()
    assert kept.pool.asked == []  # not at once
    kept.clock.advance(10)
    flush_and_work(kept, 1)
    assert kept.live < 8
    assert maintenance_of(kept.kv).stats()["last_error"] is None
    kept.check()


def test_a_publish_of_unknown_outcome_loses_nothing() -> None:
    for is_written in (False, True):
        clock = ManualClock()
        bucket = MemoryStore(clock=clock)
        faulty = FaultyStore(bucket, clock=clock)
        kept = Kept(HookedStore(faulty), cas_max_retries=0)
        kept.bucket, kept.clock = bucket, clock
        kept.flush(8)
        key = f"manifest/{handle_of(kept.kv).manifest.generation + 1:020}"
        faulty.arm(
            Fault("reply_lost" if is_written else "error_before", "put_if_absent", key=key),
            Fault("error_before", "get", key=key, times=5),
        )
        kept.pool.work()
        clock.advance(10)
        flush_and_work(kept, 8)
        kept.clock.advance(2 * GRACE_S)
        flush_and_work(kept, 40)
        kept.clock.advance(2 * GRACE_S)
        flush_and_work(kept, 40)
        kept.check()


@pytest.mark.parametrize(
    "kills", [6, pytest.param(10**9, marks=(pytest.mark.nightly, pytest.mark.timeout(3600)))]
)
def test_whatever_request_is_its_last_nothing_stands_and_nothing_is_lost(kills: int) -> None:
    """The process is killed at a request of its steps: at some of them, or at each."""

    class KilledError(BaseException):
        pass

    def life(last: int) -> tuple[Kept, int]:
        kept = Kept(gc_grace=1)
        kept.flush(34, puts=1)
        left = [last]

        def before(operation: Operation, key: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KilledError

        kept.store.before = before
        with suppress(KilledError):
            kept.pool.work()
        kept.store.before = lambda operation, key: None
        return kept, last - left[0]

    _, requests = life(10**9)
    assert requests > 40
    for last in range(0, requests, max(1, requests // kills)):
        kept, _ = life(last)
        kept.db = kept.database()
        kept.pool = kept.db.pool
        kept.kv = kept.db.kv("ns")
        kept.check()
        for _ in range(2):  # what the first replaces, the second collects
            kept.clock.advance(10)
            kept.flush(34, puts=1)
            kept.pool.work()
        kept.check()
        # Outputs of the dead epoch are gone, too.
        ends = {key.rpartition("-")[2] for key in kept.objects("segments")}
        assert ends <= {"e2.seg"} | {
            f"{ref.id.rpartition('-')[2]}.seg" for ref in handle_of(kept.kv).manifest.segments
        }


def test_a_segment_that_it_has_made_cannot_be_attached(kept: Kept) -> None:
    kept.flush(3)
    (ref, *_) = handle_of(kept.kv).manifest.segments
    with pytest.raises(InvalidInputError, match="a segment of its own"):
        writer_of(kept.kv).attach([ref])


def test_what_is_too_large_is_left_to_a_worker_and_said_once(
    kept: Kept, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reef.engine._maintenance._maintenance.BYTES_MAX", 100)
    with caplog.at_level(logging.WARNING, "reef"):
        for _ in range(5):
            flush_and_work(kept, 10)
    assert kept.live == 50
    (said,) = [record for record in caplog.records if "too large" in record.getMessage()]
    assert "reef worker" in said.getMessage()
    assert "segments of" in kept.kv.stats()["maintenance"]["too_large"][0]


def test_idempotency_windows_do_not_wait_in_the_manifest(kept: Kept) -> None:
    for number in range(120):
        kept.kv.put(b"k", b"%d" % number, idempotency_key=f"key-{number}")
        kept.model[b"k"] = b"%d" % number
        kept.clock.advance(1)
        kept.kv.flush()
        kept.pool.work()
    assert handle_of(kept.kv).manifest.gc.pending == ()
    assert len(kept.objects("dedup")) <= GRACE_S * 1.6
    kept.check()


# In a thread of its own.


def many_flushes(kv: KeyValue, times: int) -> dict[bytes, bytes]:
    model = {}
    for number in range(times):
        key = b"k%04d" % (number * 7919 % 1000)
        kv.put(key, b"%d" % number)
        model[key] = b"%d" % number
        kv.flush()
    return model


def test_by_default_it_runs_beside_the_writer() -> None:
    store = MemoryStore()
    with database(store, maintenance="auto", flush_interval=0) as db:
        kv = db.kv("ns")
        model = many_flushes(kv, 60)
        until(lambda: len(handle_of(kv).manifest.segments) < 8, "compaction")
        assert dict(kv.items()) == model
    assert dict(contents(store)) == model
    until(lambda: "reef-maintenance" not in names_of_threads(), "the end of the thread")


def names_of_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("end", ["close", "fence", "drop"])
def test_a_handle_that_ends_in_the_middle_ends_cleanly(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = HookedStore(MemoryStore())
    db = database(store, maintenance="auto", flush_interval=0)
    kv = db.kv("ns")
    ended, reached = threading.Event(), threading.Event()

    def close() -> None:
        kv.close()
        ended.set()

    ends: dict[str, Callable[[], object]] = {
        "close": lambda: threading.Thread(target=close).start(),
        "fence": lambda: database(store).kv("ns"),
        "drop": lambda: database(store).drop("ns"),
    }

    def strike() -> None:
        reached.set()
        ends[end]()
        if end == "close":
            until(lambda: not kv.is_open, "the close to begin")

    store.once("upload", "segments", lambda: None)
    with caplog.at_level(logging.WARNING, "reef"):
        with suppress(FencedError):
            model = many_flushes(kv, 7)
        hooked = [False]

        def before(operation: Operation, key: str) -> None:
            is_step = threading.current_thread().name == "reef-maintenance"
            if operation == "upload" and is_step and not hooked[0]:
                hooked[0] = True
                strike()

        store.before = before
        kv.put(b"last", b"1")
        model[b"last"] = b"1"
        with suppress(FencedError):
            kv.flush()
        assert reached.wait(30)
        if end == "close":
            assert ended.wait(30)
        until(lambda: "reef-maintenance" not in names_of_threads(), "the end of the thread")
    store.before = lambda operation, key: None
    assert [r for r in caplog.records if "maintenance" in r.getMessage()] == []
    if end != "drop":
        assert dict(contents(store)) == model
    kv.close()


def test_a_process_that_does_not_close_exits_all_the_same() -> None:
    script = """
import reef
db = reef.connect("memory://", flush_interval=0)
kv = db.kv("ns")
for number in range(100):
    kv.put(b"k%d" % number, bytes(100))
    kv.flush()
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_a_forked_child_begins_without_threads_and_the_parent_goes_on() -> None:
    script = """
import os, sys, reef
db = reef.connect("memory://", flush_interval=0)
kv = db.kv("ns")
for number in range(100):
    kv.put(b"k%d" % number, bytes(100))
    kv.flush()
    if number == 50:
        child = os.fork()
        if child == 0:
            other = reef.connect("memory://", flush_interval=0)
            own = other.kv("own")
            for n in range(40):
                own.put(b"k%d" % n, b"v")
                own.flush()
            other.close()
            os._exit(len(own.stats()["levels"]["0"]) == 0)
        assert os.waitpid(child, 0)[1] == 0
db.close()
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, b"")
