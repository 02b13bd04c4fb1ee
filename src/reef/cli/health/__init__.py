"""What is in a bucket, whether it is whole, and what can go.

stats, inspect       figures; the content of single objects
verify, repair, gc   find damage, repair it, delete what nothing needs
check_store          test whether a store can back a log
"""

from __future__ import annotations

from reef.cli.health._check_store import check_store
from reef.cli.health._gc import gc
from reef.cli.health._inspect_command import inspect
from reef.cli.health._repair_command import repair
from reef.cli.health._stats_command import stats
from reef.cli.health._verify_command import verify

__all__ = ["check_store", "gc", "inspect", "repair", "stats", "verify"]
