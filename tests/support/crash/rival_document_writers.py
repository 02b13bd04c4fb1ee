"""A process that upserts documents that others upsert too: it takes over from them as often as it must."""

from __future__ import annotations

import random
import time
from multiprocessing.connection import Connection

import reef
from reef.documents import DocumentReceipt, Documents
from reef.engine import CreateOnly
from reef.errors import FencedError, OutcomeUnknownError, UnavailableError

ROUNDS = 8
IDS_PER_ROUND = 5
WAIT_S, WAIT_S_MAX = 0.05, 2.0


def ids_of(round: int) -> list[str]:
    """Return the ids that everybody writes in a round."""
    return [f"{round}/{i}" for i in range(IDS_PER_ROUND)]


def is_create_only(round: int) -> bool:
    """Return whether in that round a document is left to whoever made it."""
    return round % 2 == 1


def contend(url: str, namespace: str, process: int, told: Connection) -> None:
    """Upsert the ids of each round until that is acknowledged; tell every receipt."""
    db = reef.connect(url, flush_threshold_slots=12)
    rng = random.Random(process)
    told.send(("ready",))
    told.recv()
    handle: Documents | None = None
    for round in range(ROUNDS):
        receipt, wait = None, WAIT_S
        while receipt is None:
            try:
                handle = handle or db.namespace(namespace)
                receipt = _upsert(handle, process, round)
            except (FencedError, OutcomeUnknownError, UnavailableError) as error:
                told.send(("trouble", type(error).__name__))
                handle = None
                time.sleep(rng.uniform(0, wait))  # or all of them do nothing but open
                wait = min(2 * wait, WAIT_S_MAX)
        told.send(("ack", round, receipt.lsn, receipt.outcomes, receipt.replayed))
    told.send(("done",))
    told.recv()  # so that nothing is left in the pipe: it would be reset


def _upsert(ns: Documents, process: int, round: int) -> DocumentReceipt:
    """Upsert all ids of a round as one batch; each process has an attribute of its own besides."""
    rows = [{"id": id, "by": process, f"own_{process}": round} for id in ids_of(round)]
    condition = CreateOnly() if is_create_only(round) else None
    return ns.upsert(rows, condition=condition, atomic=False, idempotency_key=f"{process}/{round}")
