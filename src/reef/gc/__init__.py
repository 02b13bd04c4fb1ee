"""Garbage collection: finds what nothing needs any more, and deletes it.

plan_collection, CollectionPlan
                   what would go, and why everything else stays; writes nothing
collect, CollectionReport
                   plans, and with `apply=True` deletes, safe beside writers, readers and jobs
KnownGarbage, NamedObjects, named_objects
                   what an open writer knows about its own namespace
Kind, Reason, ObjectCount, Doomed, Retained, Progress
                   what an object is, why it stays or goes, how many; told after each delete
Pins, JudgedPin, PinReason
                   which branches need what is kept for them
parse_segment, owner_of, epoch_of, folder_prefix
                   what the names of objects say
read_log_kind, FENCE_BYTES
                   whether a log object is a fence, by its size or its header
DAY_US             the age from which an object without a reference may go
"""

from reef.gc._collection import (
    CollectionPlan,
    CollectionReport,
    Doomed,
    Kind,
    ObjectCount,
    Progress,
    Reason,
    Retained,
)
from reef.gc._collection_plan import plan_collection
from reef.gc._collector import collect
from reef.gc._folded_slots import FENCE_BYTES, read_log_kind
from reef.gc._judge import DAY_US
from reef.gc._known_garbage import KnownGarbage, NamedObjects, named_objects
from reef.gc._names import epoch_of, folder_prefix, owner_of, parse_segment
from reef.gc._pins import JudgedPin, PinReason, Pins

__all__ = [
    "DAY_US",
    "FENCE_BYTES",
    "CollectionPlan",
    "CollectionReport",
    "Doomed",
    "JudgedPin",
    "Kind",
    "KnownGarbage",
    "NamedObjects",
    "ObjectCount",
    "PinReason",
    "Pins",
    "Progress",
    "Reason",
    "Retained",
    "collect",
    "epoch_of",
    "folder_prefix",
    "named_objects",
    "owner_of",
    "parse_segment",
    "plan_collection",
    "read_log_kind",
]
