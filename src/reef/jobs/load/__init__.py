"""Bulk load: sorted segments written by tasks, committed by one record of the log.

    plan = plan_load(context, "ns", job_key="2026-07-01")     # the schema is decided
    register_load(context, plan)                              # an intent stands
    part = write_part(context, plan, batches)          # in tasks: one range of keys each
    commit_load(context, plan, [part, ...])                   # all visible at one LSN; the intent ends

bulk_load                     all of it in this process; LoadResult
plan_load, register_load      decide how rows are stored; have an intent stand; LoadPlan
join_load, close_load         a task has the intent stand; after closing, no task can
write_part                    a task: one range of keys becomes segments; LoadedPart
find_load, commit_load        was the job key committed before; make all parts visible at once
end_load, abandon_load        end the intent after a commit, or without one
schema_for                    the schema with the attributes that a table's columns add
LOAD_KIND, FaceName, TARGET_BYTES_DEFAULT, BUDGET_BYTES_DEFAULT
                              the kind of a load's intent; names of faces; default options

Invariants:

- Nothing is visible before the commit, and everything is after it, at one version.
- A job key is committed once, however often the load is tried (as long as the dedup window
  keeps it; a `source` and its `sequence` are kept for good).
- No key is in two parts, and none twice in a part.

Crash points: before the commit there are an intent and segments that nothing names: the same job key
can be loaded again, and `abandon_load` lets collection have the rest. In the commit the namespace may
have new attributes and no new rows. After it the intent may still stand: to commit again ends it.
"""

from reef.jobs.load._bulk import BUDGET_BYTES_DEFAULT, bulk_load
from reef.jobs.load._load_commit import LoadResult, commit_load, find_load
from reef.jobs.load._load_intent import abandon_load, close_load, end_load, join_load, register_load
from reef.jobs.load._load_part import LoadedPart, write_part
from reef.jobs.load._load_plan import LOAD_KIND, TARGET_BYTES_DEFAULT, FaceName, LoadPlan, plan_load
from reef.jobs.load._segment_rows import schema_for

__all__ = [
    "BUDGET_BYTES_DEFAULT",
    "LOAD_KIND",
    "TARGET_BYTES_DEFAULT",
    "FaceName",
    "LoadPlan",
    "LoadResult",
    "LoadedPart",
    "abandon_load",
    "bulk_load",
    "close_load",
    "commit_load",
    "end_load",
    "find_load",
    "join_load",
    "plan_load",
    "register_load",
    "schema_for",
    "write_part",
]
