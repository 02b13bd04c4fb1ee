"""Object stores: one small interface, its backends, and the loop that decides a conditional PUT.

open_store(url)   file://  memory://  s3://  gs://  az://
Data              the bytes of an object, in one piece or in parts: bytes_of, size_of
Store             put_if_absent get get_many get_range get_ranges head list delete,
                  upload in parts, sweep
MeteredStore      counts requests, bytes and errors of any other, for reef.metrics
TwoPhaseStore     put-if-absent for a store that has none, decided by a database
create            put_if_absent with the lost reply resolved: what commits go through
backoff           how long to wait before the next attempt
StoreCheck        what `reef check-store` runs
"""

from typing import TYPE_CHECKING

from reef.store._base import Data, ObjectMeta, Store, bytes_of, size_of
from reef.store._check import Check, StoreCheck
from reef.store._conditional import backoff, create
from reef.store._file import FileStore
from reef.store._memory import MemoryStore
from reef.store._metered import MeteredStore
from reef.store._open import open_store
from reef.store._remote import RemoteStore

if TYPE_CHECKING:
    from reef.store._two_phase import TwoPhaseStore

__all__ = [
    "Check",
    "Data",
    "FileStore",
    "MemoryStore",
    "MeteredStore",
    "ObjectMeta",
    "RemoteStore",
    "Store",
    "StoreCheck",
    "TwoPhaseStore",
    "backoff",
    "bytes_of",
    "create",
    "open_store",
    "size_of",
]


def __getattr__(name: str) -> object:
    """Import two-phase CAS, and SQLAlchemy with it, for those who use it."""
    if name == "TwoPhaseStore":
        from reef.store._two_phase import TwoPhaseStore

        return TwoPhaseStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
