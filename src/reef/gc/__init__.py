"""Garbage collection: what nothing needs any more, and how it goes.

plan_collection    what would go, and why everything else stays; writes nothing
collect            that, and with `apply=True` the deletes, safe beside writers, readers and jobs
CollectionPlan     what was decided: counts and bytes by kind and reason
CollectionReport   what was done
Pins, PinFate      which branches need what is kept for them
"""

from reef.gc._collect import collect
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
from reef.gc._pins import PinFate, PinReason, Pins
from reef.gc._plan import plan_collection

__all__ = [
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
    "plan_collection",
]
