"""A process that wants to be the one writer: it opens when told to, and writes until it is fenced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

import reef
from reef.errors import FencedError, OutcomeUnknownError
from reef.kv import KeyValue

NAMESPACE = "contended"
LAST_WRITES = 20
"""What each thread of the survivor still writes when the others have ended."""

Id = tuple[int, int, int]
"""Process, thread, number."""


def rows_of(id: Id) -> dict[bytes, bytes]:
    """Return the rows of a batch: some of its own, and one that everybody writes."""
    name = "/".join(map(str, id)).encode()
    own = {b"w/%s/%d" % (name, row): name for row in range(1 + sum(id) % 4)}
    return {**own, b"hot": name}


def contend(url: str, process: int, parallel: int, told: Connection) -> None:
    """Open when the parent says so, write until fenced, tell everything."""
    db = reef.connect(url)
    lock = threading.Lock()

    def tell(*message: object) -> None:
        with lock:
            told.send(message)

    tell("ready")
    told.recv()
    try:
        kv = db.kv(
            NAMESPACE,
            max_parallel_writes=parallel,
            flush_threshold_slots=40,
            group_commit_max_batches=2,
        )
    except FencedError:
        tell("fenced at open")
        return
    tell("opened")
    threads = [
        threading.Thread(target=_write, args=(kv, (process, n), tell, told))
        for n in range(parallel)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        kv.put(b"afterwards", b"never")  # once fenced, for good
    except FencedError:
        tell("fenced at write")
        return
    kv.close()
    told.recv()  # so that nothing is left in the pipe: it would be reset
    tell("survived")


def _write(kv: KeyValue, who: tuple[int, int], tell: Callable[..., None], told: Connection) -> None:
    """Write batches until this writer is fenced, or the parent says that it is the last one."""
    left = None
    number = 0
    while left != 0:
        id = (*who, number)
        tell("try", id)
        try:
            receipt = kv.write(rows_of(id))
        except FencedError:
            tell("failed", id)
            return
        except OutcomeUnknownError:
            tell("unknown", id)
        else:
            tell("ack", id, receipt.lsn)
        number += 1
        if left is not None:
            left -= 1
        elif told.poll():
            left = LAST_WRITES
