"""Object stores: one small interface, its backends, and the loop that decides a conditional PUT.

open_store(url)   file://  memory://  s3://  gs://  az://
Data, bytes_of, size_of
                  the bytes of an object, in one piece or in parts
Store, ObjectMeta put_if_absent get get_many get_range get_ranges head list delete,
                  upload in parts, sweep; what a store says of an object without its bytes
FileStore, MemoryStore, RemoteStore
                  the backends
MeteredStore      counts requests, bytes and errors of any other, for reef.metrics
TwoPhaseStore     put-if-absent for a store that has none, decided by a database
create            put_if_absent with the lost reply resolved: what commits go through
backoff           how long to wait before the next attempt
merge_ranges      joins ranges of one object that lie close together
parse_url, StoreURL, SCHEMES, OPTIONS, without_secrets
                  a store's URL taken apart, and as it may be printed
StoreCheck, Check what `reef check-store` runs, and what one check saw
"""

from typing import TYPE_CHECKING

from reef.store._base import Data, ObjectMeta, Store, bytes_of, size_of
from reef.store._byte_ranges import merge_ranges
from reef.store._check import Check, StoreCheck
from reef.store._conditional import backoff, create
from reef.store._file_store import FileStore
from reef.store._memory import MemoryStore
from reef.store._metered import MeteredStore
from reef.store._open_store import open_store
from reef.store._remote import RemoteStore
from reef.store._url import OPTIONS, SCHEMES, StoreURL, parse_url, without_secrets

if TYPE_CHECKING:
    from reef.store.two_phase import TwoPhaseStore

__all__ = [
    "OPTIONS",
    "SCHEMES",
    "Check",
    "Data",
    "FileStore",
    "MemoryStore",
    "MeteredStore",
    "ObjectMeta",
    "RemoteStore",
    "Store",
    "StoreCheck",
    "StoreURL",
    "TwoPhaseStore",
    "backoff",
    "bytes_of",
    "create",
    "merge_ranges",
    "open_store",
    "parse_url",
    "size_of",
    "without_secrets",
]


def __getattr__(name: str) -> object:
    """Import two-phase CAS, and SQLAlchemy with it, for those who use it."""
    if name == "TwoPhaseStore":
        from reef.store.two_phase import TwoPhaseStore

        return TwoPhaseStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
