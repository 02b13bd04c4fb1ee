"""Forks: a process may use what it opened itself, never what its parent has open.

Each test forks in a process of its own, which has no threads but those that the test starts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DEADLINE_SECONDS = 120
UNREACHABLE = (
    "s3://bucket/?endpoint=http://127.0.0.1:1&region=x&access_key_id=a&secret_access_key=b"
)

PRELUDE = """
import multiprocessing, os, signal, sys, threading
import reef
from reef import jobs
from reef.errors import ClosedError, UnavailableError

def forked(body):
    # The child has a minute: one that hangs is killed, and then has not returned 0.
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 1
        try:
            body()
            code = 0
        finally:
            if code:
                import traceback
                traceback.print_exc()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

def refused(call, *says):
    try:
        found = call()
    except ClosedError as error:
        assert all(word in str(error) for word in says or ("forked", "forkserver")), error
        return
    raise AssertionError(f"{found!r} came of a handle of the parent's")
"""

HANDLES = """
db = reef.connect(sys.argv[1], flush_threshold_slots=4)
kv, reader = db.kv("k"), None
for i in range(6):
    kv.put(b"%d" % i, b"v")
kv.flush()
kv.put(b"memory", b"v")
reader = db.kv("k", mode="r")
docs = db.namespace("d")
docs.upsert([{"id": "a", "n": 1}])
pages = db.pages("p")
pages.write({1: b"p" * 4096})
views = [kv.at(lsn=kv.lsn), kv.snapshot(), docs.at(lsn=docs.lsn), docs.snapshot()]
old = kv.at(generation=kv.stats()["generation"])
page_views = [pages.at(lsn=pages.lsn), pages.snapshot()]
scan, feed = kv.scan(), kv.changes()
begun = docs.changes()
list(views[0].items()), old.get(b"1"), page_views[0].get_page(1)

def child():
    refused(lambda: kv.put(b"c", b"child"))
    refused(lambda: kv.write({b"c": b"child"}, idempotency_key="k"))
    refused(lambda: kv.delete(b"0"))
    for handle in (kv, reader, *views[:2], old):
        refused(lambda: handle.get(b"1"))
        refused(lambda: handle.get_many([b"1"]))
        refused(lambda: list(handle.scan()))
    refused(lambda: list(scan))
    refused(lambda: list(feed))
    refused(lambda: list(begun))
    refused(lambda: list(kv.changes()))
    refused(kv.flush)
    refused(reader.refresh)
    refused(kv.snapshot)
    refused(views[1].release)
    refused(lambda: views[1].renew("1h"))
    refused(lambda: kv.branch("b"))
    refused(lambda: kv.drop_branch("b"))
    refused(kv.branches)
    refused(lambda: docs.upsert([{"id": "b", "n": 1}]))
    refused(lambda: docs.patch([{"id": "a", "n": 2}]))
    refused(lambda: docs.delete(["a"]))
    refused(lambda: docs.alter(add={"m": "int64"}))
    for handle in (docs, *views[2:]):
        refused(lambda: handle.get("a"))
        refused(lambda: list(handle.scan()))
        refused(lambda: handle.sql("select * from docs"))
    refused(lambda: pages.write({2: b"c" * 4096}))
    for handle in (pages, *page_views):
        refused(lambda: handle.get_page(1))
        refused(lambda: handle.get_pages([1]))
    refused(lambda: list(db.namespaces()))
    refused(lambda: db.kv("other"))
    refused(lambda: db.namespace("other"))
    refused(lambda: db.pages("other"))
    refused(lambda: db.drop("k"))
    assert isinstance(jobs.index(db.context(), ["k"]).namespaces[0].error, ClosedError)
    assert not kv.is_open
    db.metrics.text()
    for handle in (kv, reader, docs, pages, db):
        handle.close()
    with reef.connect(sys.argv[1]) as own:
        own.kv("child").put(b"c", b"child")
        assert own.kv("child").get(b"c") == b"child"

forked(child)
assert kv.put(b"p", b"parent").lsn and kv.get(b"p") == b"parent" and kv.get(b"c") is None
assert docs.upsert([{"id": "c", "n": 1}]).lsn and docs.get("c")["n"] == 1
pages.write({3: b"q" * 4096})
assert views[0].get(b"1") == b"v" and [*views[2].scan()] and [*feed] and [*scan]
views[1].release()
kv.flush()
db.close()
with reef.connect(sys.argv[1]) as again:
    assert again.kv("k").get(b"p") == b"parent"
"""

AWAITED = """
import asyncio
from reef import aio

async def opened():
    db = aio.connect(sys.argv[1])
    kv = await db.kv("k")
    await asyncio.gather(*(kv.put(b"k", b"v") for _ in range(8)))  # threads that are idle at the fork
    return db, kv

async def ends(db, kv):
    await kv.put(b"p", b"parent")
    await db.close()

async def both(*calls):
    for call in calls:
        await call()

db, kv = asyncio.run(opened())

def child():
    refused(lambda: asyncio.run(both(lambda: kv.put(b"c", b"child"))))
    refused(lambda: asyncio.run(both(lambda: kv.get(b"k"))))
    async def own():
        async with aio.connect(sys.argv[1]) as mine, mine.kv("child") as pairs:
            await pairs.put(b"c", b"child")
    asyncio.run(own())

forked(child)
asyncio.run(ends(db, kv))
"""

LOCKED = """
db = reef.connect(sys.argv[1])
kv = db.kv("k")
kv.put(b"k", b"v")
locks = [kv._writer._cond, db.metrics._lock, *(
    [db.store.inner._bucket.lock] if sys.argv[1].startswith("memory") else []
)]
held, over = threading.Barrier(2), threading.Event()

def hold():
    with locks[0], locks[1], locks[-1] if len(locks) > 2 else open(os.devnull):
        held.wait()
        over.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()

def child():
    refused(lambda: kv.put(b"k", b"w"))
    refused(lambda: kv.get(b"k"))
    db.metrics.text()
    db.close()
    reef.connect(sys.argv[1]).kv("mine").put(b"k", b"v")

forked(child)
over.set()
thread.join()
kv.put(b"k", b"w")
"""

POOL = """
db = reef.connect(sys.argv[1])
kv = db.kv("served")
kv.put(b"k", b"v")

def serve(i):
    refused(lambda: kv.get(b"k"))
    with reef.connect(sys.argv[1]) as own:
        own.kv(f"worker-{i}").put(b"k", b"%d" % i)
        return own.kv("served", mode="r").get(b"k")

with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map_async(serve, range(4)).get(60) == [b"v"] * 4
kv.put(b"k", b"w")
assert sorted(db.namespaces()) == ["served", *(f"worker-{i}" for i in range(4))]
"""

REMOTE = """
db = reef.connect(sys.argv[1])

def unavailable(db):
    try:
        db.kv("k")
    except UnavailableError:
        return
    raise AssertionError("nobody answers there")

# A server that preloads has connected, and sent nothing: its workers may connect.
forked(lambda: unavailable(reef.connect(sys.argv[1])))

# Once the parent has sent a request, a fork cannot.
unavailable(db)

def child():
    refused(lambda: db.kv("k"))
    refused(lambda: reef.connect(sys.argv[1]).kv("k"), "forked", "forkserver", "s3://bucket")
    forked(lambda: refused(lambda: reef.connect(sys.argv[1]).kv("k")))

forked(child)
unavailable(db)
"""

SPAWNED = """
import multiprocessing, sys
import reef

def serve(url):
    try:
        reef.connect(url).kv("k")
    except reef.UnavailableError:
        return
    raise AssertionError("nobody answers there")

if __name__ == "__main__":
    serve(sys.argv[1])
    process = multiprocessing.get_context("forkserver").Process(target=serve, args=sys.argv[1:])
    process.start()
    process.join(60)
    assert process.exitcode == 0
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str, str], None]:
    """Return what runs a program with a URL, and raises what it prints if it fails."""

    def run(code: str, url: str) -> None:
        program = tmp_path / "program.py"
        program.write_text(code)
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", program, url],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket?fsync=off" if request.param == "file" else "memory://bucket"


def test_no_handle_works_on_both_sides_of_a_fork(run: Callable[[str, str], None], url: str) -> None:
    run(PRELUDE + HANDLES, url)


def test_a_child_waits_for_no_lock_of_its_parent(run: Callable[[str, str], None], url: str) -> None:
    run(PRELUDE + LOCKED, url)


def test_handles_for_asyncio_are_the_parents_too(run: Callable[[str, str], None], url: str) -> None:
    run(PRELUDE + AWAITED, url)


def test_processes_of_a_pool_connect_themselves(
    run: Callable[[str, str], None], tmp_path: Path
) -> None:
    run(PRELUDE + POOL, f"file://{tmp_path}/bucket?fsync=off")


def test_a_remote_store_works_in_a_fork_or_raises_at_once(
    run: Callable[[str, str], None],
) -> None:
    run(PRELUDE + REMOTE, UNREACHABLE)


def test_a_fork_server_starts_processes_that_can_use_a_remote_store(
    run: Callable[[str, str], None],
) -> None:
    run(SPAWNED, UNREACHABLE)
