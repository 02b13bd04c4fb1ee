"""Everything that reads or rewrites a bucket in bulk: plan on the driver, tasks, publish, record.

index, compact, rebuild      passes that rewrite some namespaces, or all; each returns a PassResult
verify, collect              likewise: every byte checked; what nothing needs any more deleted
copy_namespace               a namespace in another bucket; CopyResult says what was brought
detach                       a branch gets its own copy of what it shares; returns a generation
preview_index, preview_compaction, preview_rebuild
                             what they would do: UnfoldedLog, CompactionPlan, `reef.doctor.RebuildPlan`;
                             writes nothing
check_plan                   whether a kept CompactionPlan still holds
IndexOptions, CompactionOptions, RebuildOptions, VerifyOptions, CollectOptions
                             how a pass works
PassResult, NamespaceResult  what a pass did, in each namespace: IndexResult, CompactionResult,
                             RebuildResult, a VerifyReport or a CollectionReport
PassProgress, Watch          how far a pass is, and who is called with it
TaskTimes                    what the tasks of a pass took
work, WorkerOptions          a worker: round after round, what is worth it
WorkerHealth, worker_health  whether its rounds succeed
passes, find_pass            the history of passes: PassRecord, NamespaceRecord
standing_intents             jobs that may still publish, or whose driver was killed
end_job, end_old_jobs        end such jobs
Job                          an intent of one's own
bulk_load, LoadResult        rows in any order, committed by one record of the log; its steps are in
                             `reef.jobs.load`
Runner, InProcess, RunArguments
                             who runs tasks; the one that runs them here; how
BySize                       two runners, for small namespaces and for large ones
Task, TaskOutcome, Progress  a task, what came of one descriptor, and the callback for progress
TaskWire, Bucket             for runners in other processes: how tasks cross, and open the bucket
"""

from reef.compaction import CompactionOptions, CompactionPlan
from reef.jobs._bucket_address import Bucket
from reef.jobs._by_size import BySize
from reef.jobs._collect_pass import CollectOptions
from reef.jobs._compaction._compact_pass import check_plan
from reef.jobs._compaction._compaction_result import CompactionResult
from reef.jobs._copy_namespace import CopyResult, copy_namespace
from reef.jobs._fold._index_pass import IndexResult
from reef.jobs._fold._unfolded_log import IndexOptions, UnfoldedLog
from reef.jobs._intents import end_job, end_old_jobs, standing_intents
from reef.jobs._job import Job
from reef.jobs._pass_protocol import NamespaceResult, PassResult, TaskTimes
from reef.jobs._pass_records import NamespaceRecord, PassRecord, find_pass, passes
from reef.jobs._passes import (
    collect,
    compact,
    detach,
    index,
    preview_compaction,
    preview_index,
    preview_rebuild,
    rebuild,
    verify,
)
from reef.jobs._progress import PassProgress, Watch
from reef.jobs._rebuild._rebuild_result import RebuildOptions, RebuildResult
from reef.jobs._tasks import InProcess, Progress, RunArguments, Runner, Task, TaskOutcome, TaskWire
from reef.jobs._verify_pass import VerifyOptions
from reef.jobs._worker_health import WorkerHealth
from reef.jobs._worker_rounds import WorkerOptions, work, worker_health
from reef.jobs.load import LoadResult, bulk_load

__all__ = [
    "Bucket",
    "BySize",
    "CollectOptions",
    "CompactionOptions",
    "CompactionPlan",
    "CompactionResult",
    "CopyResult",
    "InProcess",
    "IndexOptions",
    "IndexResult",
    "Job",
    "LoadResult",
    "NamespaceRecord",
    "NamespaceResult",
    "PassProgress",
    "PassRecord",
    "PassResult",
    "Progress",
    "RebuildOptions",
    "RebuildResult",
    "RunArguments",
    "Runner",
    "Task",
    "TaskOutcome",
    "TaskTimes",
    "TaskWire",
    "UnfoldedLog",
    "VerifyOptions",
    "Watch",
    "WorkerHealth",
    "WorkerOptions",
    "bulk_load",
    "check_plan",
    "collect",
    "compact",
    "copy_namespace",
    "detach",
    "end_job",
    "end_old_jobs",
    "find_pass",
    "index",
    "passes",
    "preview_compaction",
    "preview_index",
    "preview_rebuild",
    "rebuild",
    "standing_intents",
    "verify",
    "work",
    "worker_health",
]
