"""The kernel on every kind of store: the same story, on the real servers."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

import reef
from tests.support.engine.collecting import collect_garbage
from tests.support.servers.object_stores import Azurite, Moto, SeaweedFS
from tests.support.servers.proxy import Proxy

pytestmark = pytest.mark.servers


@pytest.fixture(params=["file", "seaweedfs", "moto", "azurite", "two-phase"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return (tmp_path / "bucket").as_uri()
    if request.param == "two-phase":
        proxy: Proxy = request.getfixturevalue("unconditional")
        seaweedfs: SeaweedFS = request.getfixturevalue("seaweedfs")
        place = seaweedfs.fresh_url().split("?")[0].removeprefix("s3://").split("/", 1)
        records = quote(f"sqlite:///{tmp_path}/records.db", safe="")
        return f"{proxy.url(*place)}&cas=two-phase&cas_store={records}"
    server: SeaweedFS | Moto | Azurite = request.getfixturevalue(request.param)
    return server.fresh_url()


def test_a_life_of_a_namespace(url: str) -> None:
    rng = random.Random(3)
    model: dict[bytes, bytes] = {}
    history: dict[int, dict[bytes, bytes]] = {}
    with reef.connect(url) as db:
        kv = db.kv("life", max_parallel_writes=4, gc_grace=0, retained_generations=1)
        for step in range(12):
            puts = {b"k%03d" % rng.randrange(300): rng.randbytes(200) for _ in range(100)}
            deletes = [b"d%03d" % rng.randrange(50) for _ in range(1)]
            model |= puts
            for key in deletes:
                model.pop(key, None)
            receipt = kv.write(puts, deletes, idempotency_key=f"step {step}")
            history[receipt.lsn] = dict(model)
            if step % 4 == 3:
                kv.flush()
        assert dict(kv.items()) == model
        reader = db.kv("life", mode="r")
        for lsn, then in history.items():
            assert dict(reader.at(lsn=lsn).items()) == then
        with kv.snapshot(ttl="1h") as snapshot:
            kv.write(deletes=list(model)[:50])
            assert dict(snapshot.items()) == model
            assert dict(reader.at(snapshot=snapshot.id).items()) == model
        kept = {key: model[key] for key in list(model)[50:]}
        replayed = kv.write({b"x": b"1"}, idempotency_key="last")
        # Another process takes over: the first one is out, for good.
        with reef.connect(url) as other:
            taker = other.kv("life")
            again = taker.write({b"x": b"1"}, idempotency_key="last")
            assert again == replayed
            assert again.replayed
            with pytest.raises(reef.FencedError):
                kv.put(b"late", b"1")
            taker.flush()
            context = other.context(gc_grace=0, retained_generations=1)
            report = collect_garbage(context, "life")
            assert report is not None
            assert dict(taker.items()) == kept | {b"x": b"1"}
        with reef.connect(url) as fresh:
            assert dict(fresh.kv("life", mode="r").items()) == kept | {b"x": b"1"}


def test_threads_share_log_objects(url: str) -> None:
    with reef.connect(url) as db:
        kv = db.kv("threads")

        def write(number: int) -> None:
            for i in range(20):
                kv.put(b"%d/%d" % (number, i), b"v")

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        slots = len(list(db.store.list("namespaces/threads/wal/")))
        assert slots < 160
        assert len(list(db.kv("threads", mode="r").items())) == 160
