"""Handles for asyncio: what runs where, what a cancelled call leaves, and that nothing is missing."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

import reef
from reef import aio, documents, kv, pages
from reef.aio import Database, connect
from reef.errors import ClosedError, InvalidInputError
from reef.store import MemoryStore
from reef.testing import Operation
from tests.support.engine.collecting import HookedStore
from tests.support.engine.held_puts import Gate
from tests.support.waiting import DEADLINE_SECONDS

FACES = [
    (documents.Documents, aio.Documents),
    (documents.DocumentView, aio.DocumentView),
    (documents.DocumentSnapshot, aio.DocumentSnapshot),
    (kv.KeyValue, aio.KeyValue),
    (kv.KeyValueView, aio.KeyValueView),
    (kv.KeyValueSnapshot, aio.KeyValueSnapshot),
    (pages.Pages, aio.Pages),
    (pages.PageView, aio.PageView),
    (pages.PageSnapshot, aio.PageSnapshot),
    (reef.Database, aio.Database),
]
NOT_FOR_USERS = {"tell_metrics", "context", "store", "abandon", "READS"}
"""What metrics, traces and a fork use, what jobs take, and the bucket, whose requests block."""


@pytest.mark.parametrize(("own", "awaited"), FACES, ids=[own.__name__ for own, _ in FACES])
def test_every_method_of_a_handle_is_there(own: type, awaited: type) -> None:
    missing = {
        name
        for name, _ in inspect.getmembers(own)
        if not name.startswith("_") and not hasattr(awaited, name)
    }
    assert missing <= NOT_FOR_USERS


def test_the_faces_answer_as_their_handles_do() -> None:
    async def use() -> None:
        async with connect("memory://") as db:
            async with db.kv("pairs") as pairs:
                receipts = await asyncio.gather(*(pairs.put(b"%03d" % i, b"v") for i in range(50)))
                assert len({receipt.lsn for receipt in receipts}) == 50
                assert [key async for key, _ in pairs.items()] == [b"%03d" % i for i in range(50)]
                before = await pairs.at(lsn=min(receipt.lsn for receipt in receipts))
                assert [*filter(None, await before.get_many([b"%03d" % i for i in range(50)]))] == [
                    b"v"
                ]
                async with await pairs.snapshot(None) as held:
                    assert await held.get(b"001") == b"v"
                feed = [batch.num_rows async for batch in pairs.changes()]
                assert sum(feed) == 50
            async with db.namespace("docs", schema={"n": "int64"}) as docs:
                await docs.upsert([{"id": "a", "n": 1}, {"id": "b", "n": 2}])
                assert await docs.get("b") == {"id": "b", "n": 2}
                assert await docs.schema() == {"n": "int64"}
                assert (await docs.sql("SELECT sum(n) AS s FROM docs")).to_pylist() == [{"s": 3}]
                assert len(await docs.to_pandas()) == 2
                assert [b.num_rows async for b in docs.scan()] == [2]
                assert (await docs.branch("trial")).name == "trial"
            store = await db.pages("pages")
            await store.write({0: b"x" * store.page_size})
            assert await store.get_page(0) == b"x" * 4096
            assert await store.n_pages() == 1
            assert [name async for name in db.namespaces()] == [
                *("docs", "docs@trial", "pages", "pairs")
            ]
        with pytest.raises(ClosedError):
            await store.get_page(0)

    asyncio.run(use())


def test_errors_come_to_the_one_that_awaits() -> None:
    async def use() -> None:
        async with connect("memory://") as db, db.kv("pairs") as pairs:
            with pytest.raises(InvalidInputError):
                await pairs.put(1, b"v")  # type: ignore[arg-type]
            with pytest.raises(InvalidInputError):
                await pairs.get("text")  # type: ignore[arg-type]
            with pytest.raises(InvalidInputError):
                [_ async for _ in pairs.items(start=1)]  # type: ignore[arg-type]

    asyncio.run(use())
    with pytest.raises(InvalidInputError, match="threads"):
        connect("memory://", threads=0)


def test_a_read_from_memory_needs_no_thread() -> None:
    """The only thread waits for a PUT; a row in the memtable, or in a cached block, is read."""
    gate = Gate(MemoryStore())

    async def use() -> None:
        db = Database(reef.Database(gate), threads=1)
        pairs = await db.kv("pairs")
        await pairs.put(b"folded", b"1")
        await pairs.flush()
        await pairs.put(b"fresh", b"2")
        assert await pairs.get(b"folded") == b"1"
        gate.is_open = False
        put = asyncio.create_task(pairs.put(b"late", b"3"))
        await asyncio.to_thread(gate.wait_until_held)
        assert await pairs.get(b"folded") == b"1"
        assert await pairs.get(b"fresh") == b"2"
        assert not put.done()
        gate.is_open = True
        gate.let()
        await put
        await db.close()

    asyncio.run(use())


@pytest.mark.parametrize("mode", ["w", "r"])
def test_a_read_that_has_to_fetch_never_blocks_the_loop(mode: str) -> None:
    """What it asks of the store, it asks in a thread of the pool, and once."""
    store = HookedStore(MemoryStore())
    loop_thread = threading.get_ident()
    asked: list[int] = []

    async def use() -> None:
        writer = reef.Database(store).kv("pairs")
        writer.put(b"a", b"1")
        writer.flush()
        db = Database(reef.Database(store, max_staleness=0))
        pairs = await db.kv("pairs", mode=mode)
        store.before = lambda operation, key: asked.append(threading.get_ident())
        assert await pairs.get(b"a") == b"1"
        assert asked
        assert loop_thread not in asked
        await db.close()

    asyncio.run(use())


def test_a_cancelled_commit_that_was_sent_is_there() -> None:
    gate = Gate(MemoryStore())

    async def use() -> None:
        db = Database(reef.Database(gate))
        pairs = await db.kv("pairs")
        gate.is_open = False
        put = asyncio.create_task(pairs.put(b"a", b"1", idempotency_key="k"))
        await asyncio.to_thread(gate.wait_until_held)
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        assert await pairs.get(b"a") is None
        gate.is_open = True
        gate.let()
        again = await pairs.put(b"a", b"1", idempotency_key="k")
        assert again.replayed
        assert await pairs.get(b"a") == b"1"
        await db.close()

    asyncio.run(use())
    assert reef.Database(gate).kv("pairs", mode="r").get(b"a") == b"1"


def test_a_call_cancelled_before_its_turn_does_nothing() -> None:
    gate = Gate(MemoryStore())

    async def use() -> None:
        db = Database(reef.Database(gate), threads=1)
        pairs = await db.kv("pairs")
        gate.is_open = False
        first = asyncio.create_task(pairs.put(b"a", b"1"))
        await asyncio.to_thread(gate.wait_until_held)
        second = asyncio.create_task(pairs.put(b"b", b"2"))
        await asyncio.sleep(0)  # it has begun, and waits for the thread
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.is_open = True
        gate.let()
        await first
        assert [pair async for pair in pairs.items()] == [(b"a", b"1")]
        await db.close()

    asyncio.run(use())


def test_close_waits_for_what_a_cancelled_commit_left_under_way() -> None:
    gate = Gate(MemoryStore())

    async def use() -> None:
        db = Database(reef.Database(gate))
        pairs = await db.kv("pairs")
        gate.is_open = False
        put = asyncio.create_task(pairs.put(b"a", b"1"))
        await asyncio.to_thread(gate.wait_until_held)
        put.cancel()
        closing = asyncio.create_task(db.close())
        gate.is_open = True
        gate.let()
        await closing

    asyncio.run(use())
    assert reef.Database(gate).kv("pairs", mode="r").get(b"a") == b"1"


def test_a_cancelled_scan_asks_for_nothing_more() -> None:
    """The step under way ends; the thread is free for other calls then."""
    store = HookedStore(MemoryStore())
    in_step, go = threading.Event(), threading.Event()

    async def use() -> None:
        writer = reef.Database(store).kv("pairs")
        values = random.Random(1)
        writer.write({b"%05d" % i: values.randbytes(10_000) for i in range(1500)})
        writer.flush()
        db = Database(reef.Database(store), threads=1)
        pairs = await db.kv("pairs", mode="r")
        scan = pairs.scan()
        assert (await anext(scan)).num_rows < 1500

        def hold(operation: Operation, key: str) -> None:
            in_step.set()
            assert go.wait(DEADLINE_SECONDS)

        store.before = hold
        rest = asyncio.create_task(_rows(scan))
        assert await asyncio.to_thread(in_step.wait, DEADLINE_SECONDS)
        rest.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rest
        go.set()
        await pairs.refresh()
        asked = len(store.requests)
        await db.close()
        assert len(store.requests) == asked

    asyncio.run(use())


def test_a_closed_database_says_so_and_is_closed_again() -> None:
    async def use() -> None:
        db = Database(reef.Database(MemoryStore()))
        pairs = await db.kv("pairs")
        await pairs.put(b"a", b"1")
        scan = pairs.items()
        await anext(scan)
        await db.close()
        await scan.aclose()  # type: ignore[attr-defined]
        for call in (pairs.put(b"a", b"2"), pairs.get_many([b"a"]), db.drop("pairs")):
            with pytest.raises(ClosedError):
                await call
        with pytest.raises(ClosedError):
            await db.kv("pairs")
        await pairs.close()
        await db.close()

    asyncio.run(use())


async def _rows(batches: AsyncIterator[pa.RecordBatch]) -> int:
    return sum([batch.num_rows async for batch in batches])


def test_requests_are_made_in_the_pool_only() -> None:
    """Every method that may ask the store runs off the loop's thread."""
    store = HookedStore(MemoryStore())
    seen: set[tuple[Operation, bool]] = set()

    async def use() -> None:
        loop_thread = threading.get_ident()
        store.before = lambda operation, key: seen.add(
            (operation, threading.get_ident() == loop_thread)
        )
        async with Database(reef.Database(store)) as db, db.namespace("docs") as docs:
            await docs.upsert([{"id": "a", "n": 1}])
            await docs.flush()
            await docs.snapshot("1h")
            await docs.branch("trial")
            await docs.query(where=("n", "Eq", 1))
            [_ async for _ in docs.changes()]
            await db.drop("docs", branch="trial")

    asyncio.run(use())
    assert seen
    assert not any(in_loop for _, in_loop in seen)
