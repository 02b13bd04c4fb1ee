"""Everything that reads or rewrites a bucket in bulk: plan on the driver, tasks, one publish.

index, compact, rebuild               passes over some namespaces, or all: PassResult
verify, collect                       likewise: every byte checked; what nothing needs deleted
preview_index, preview_compaction     what they would do; nothing is written; and preview_rebuild
detach                                a branch gets its own copy of what it shares
bulk_load                             rows in any order, committed by one record of the log
work                                  a worker: round after round, what is worth it
passes, find_pass                     the history of passes
standing_intents, end_job             jobs that may still publish, or were killed; and end_old_jobs
Bucket, Outcome, Runner, InProcess    tasks, and who runs them
"""

from reef.jobs._checks import collect, preview_rebuild, rebuild, verify
from reef.jobs._compaction._compact import check_plan
from reef.jobs._compaction._detach import detach
from reef.jobs._compaction._options import CompactionOptions
from reef.jobs._compaction._plan import CompactionPlan
from reef.jobs._compaction._result import CompactionResult
from reef.jobs._fold._index import IndexResult
from reef.jobs._fold._plan import Backlog, IndexOptions
from reef.jobs._gc import CollectOptions
from reef.jobs._history import (
    NamespaceRecord,
    PassRecord,
    end_job,
    end_old_jobs,
    find_pass,
    passes,
    standing_intents,
)
from reef.jobs._job import Job
from reef.jobs._load._load import (
    BUDGET_BYTES_DEFAULT,
    FACES,
    KIND,
    TARGET_BYTES_DEFAULT,
    FaceName,
    LoadPlan,
    LoadResult,
    abandon_load,
    bulk_load,
    close_load,
    commit_load,
    current_schema,
    end_load,
    find_load,
    is_closed,
    schema_bytes,
)
from reef.jobs._load._part import LoadedPart, write_part
from reef.jobs._load._rows import schema_for, stored_pairs, stored_rows
from reef.jobs._pass import (
    NamespaceResult,
    PassProgress,
    PassResult,
    TaskTimes,
    Watch,
)
from reef.jobs._passes import compact, index, preview_compaction, preview_index
from reef.jobs._rebuild._result import RebuildOptions, RebuildPlan, RebuildResult
from reef.jobs._tasks import (
    Bucket,
    D,
    InProcess,
    Outcome,
    Progress,
    R,
    Runner,
    Task,
    check_travels,
    pack,
    perform,
    refuse,
    unpack,
)
from reef.jobs._verify import VerifyOptions
from reef.jobs._worker import WorkerOptions, work

__all__ = [
    "BUDGET_BYTES_DEFAULT",
    "FACES",
    "KIND",
    "TARGET_BYTES_DEFAULT",
    "Backlog",
    "Bucket",
    "CollectOptions",
    "CompactionOptions",
    "CompactionPlan",
    "CompactionResult",
    "D",
    "FaceName",
    "InProcess",
    "IndexOptions",
    "IndexResult",
    "Job",
    "LoadPlan",
    "LoadResult",
    "LoadedPart",
    "NamespaceRecord",
    "NamespaceResult",
    "Outcome",
    "PassProgress",
    "PassRecord",
    "PassResult",
    "Progress",
    "R",
    "RebuildOptions",
    "RebuildPlan",
    "RebuildResult",
    "Runner",
    "Task",
    "TaskTimes",
    "VerifyOptions",
    "Watch",
    "WorkerOptions",
    "abandon_load",
    "bulk_load",
    "check_plan",
    "check_travels",
    "close_load",
    "collect",
    "commit_load",
    "compact",
    "current_schema",
    "detach",
    "end_job",
    "end_load",
    "end_old_jobs",
    "find_load",
    "find_pass",
    "index",
    "is_closed",
    "pack",
    "passes",
    "perform",
    "preview_compaction",
    "preview_index",
    "preview_rebuild",
    "rebuild",
    "refuse",
    "schema_bytes",
    "schema_for",
    "standing_intents",
    "stored_pairs",
    "stored_rows",
    "unpack",
    "verify",
    "work",
    "write_part",
]
