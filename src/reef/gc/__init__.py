"""Garbage collection: what nothing needs any more, and how it goes.

plan_collection    what would go, and why everything else stays; writes nothing
collect            that, and with `apply=True` the deletes, safe beside writers, readers and jobs
CollectionPlan     what was decided: counts and bytes by kind and reason
CollectionReport   what was done
Pins, PinFate      which branches need what is kept for them
"""

from reef.gc._collect import collect
from reef.gc._judge import DAY_US
from reef.gc._model import (
    CollectionPlan,
    CollectionReport,
    Doomed,
    Kind,
    Progress,
    Reason,
    Retained,
    Tally,
)
from reef.gc._names import epoch_of, folder, owner_of
from reef.gc._pins import PinFate, PinReason, Pins
from reef.gc._plan import plan_collection
from reef.gc._slots import FENCE_BYTES, read_kind

__all__ = [
    "DAY_US",
    "FENCE_BYTES",
    "CollectionPlan",
    "CollectionReport",
    "Doomed",
    "Kind",
    "PinFate",
    "PinReason",
    "Pins",
    "Progress",
    "Reason",
    "Retained",
    "Tally",
    "collect",
    "epoch_of",
    "folder",
    "owner_of",
    "plan_collection",
    "read_kind",
]
