"""Reef for asyncio: the same handles, whose methods are awaited.

connect(url) -> Database                a bucket, opened: see `reef.connect`
Database                                the namespaces of one bucket
Documents, DocumentView, DocumentSnapshot
KeyValue, KeyValueView, KeyValueSnapshot
Pages, PageView, PageSnapshot           what a database opens, and their reads at one version

A method takes the arguments of the handle's own and gives the same result: the page of the face
says what they are. Feeds and scans are asynchronous iterators. Point reads that find all they need in
memory run in the event loop; everything else runs in a thread of the database's pool.

To cancel a call is to stop waiting for it. A commit that had begun goes on, like that of a process
that was killed after it sent the request: it is there or it is not, whole, and the idempotency key
tells which. A call that was still waiting for a thread does nothing.
"""

from reef.aio._database import Database, connect
from reef.aio._faces import (
    Documents,
    DocumentSnapshot,
    DocumentView,
    KeyValue,
    KeyValueSnapshot,
    KeyValueView,
    Pages,
    PageSnapshot,
    PageView,
)

__all__ = [
    "Database",
    "DocumentSnapshot",
    "DocumentView",
    "Documents",
    "KeyValue",
    "KeyValueSnapshot",
    "KeyValueView",
    "PageSnapshot",
    "PageView",
    "Pages",
    "connect",
]
