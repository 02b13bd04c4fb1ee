"""Object stores: one small interface, its backends, and the loop that decides a conditional PUT.

open_store(url)   file://  memory://  s3://  gs://  az://
Store             put_if_absent get get_range get_ranges head list delete, and upload in parts
create            put_if_absent with the lost reply resolved: what commits go through
StoreCheck        what `reef check-store` runs
"""

from reef.store._base import ObjectMeta, Store
from reef.store._check import Check, StoreCheck
from reef.store._conditional import create
from reef.store._file import FileStore
from reef.store._memory import MemoryStore
from reef.store._open import open_store
from reef.store._remote import RemoteStore

__all__ = [
    "Check",
    "FileStore",
    "MemoryStore",
    "ObjectMeta",
    "RemoteStore",
    "Store",
    "StoreCheck",
    "create",
    "open_store",
]
