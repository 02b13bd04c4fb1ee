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
spark_runner                          tasks on a Spark session; nothing else needs PySpark
"""

from reef.pipeline._checks import collect, preview_rebuild, rebuild, verify
from reef.pipeline._compact_options import CompactionOptions
from reef.pipeline._compact_plan import CompactionPlan
from reef.pipeline._compact_result import CompactionResult
from reef.pipeline._detach import detach
from reef.pipeline._gc import CollectOptions
from reef.pipeline._history import (
    NamespaceRecord,
    PassRecord,
    end_job,
    end_old_jobs,
    find_pass,
    passes,
    standing_intents,
)
from reef.pipeline._index import IndexResult
from reef.pipeline._index_plan import Backlog, IndexOptions
from reef.pipeline._load import LoadResult, bulk_load
from reef.pipeline._pass import (
    NamespaceResult,
    PassProgress,
    PassResult,
    TaskTimes,
    check_spark,
    spark_runner,
)
from reef.pipeline._passes import compact, index, preview_compaction, preview_index
from reef.pipeline._rebuild_result import RebuildOptions, RebuildPlan, RebuildResult
from reef.pipeline._tasks import Bucket, InProcess, Outcome, Progress, Runner, Task
from reef.pipeline._verify import VerifyOptions
from reef.pipeline._worker import WorkerOptions, work

__all__ = [
    "Backlog",
    "Bucket",
    "CollectOptions",
    "CompactionOptions",
    "CompactionPlan",
    "CompactionResult",
    "InProcess",
    "IndexOptions",
    "IndexResult",
    "LoadResult",
    "NamespaceRecord",
    "NamespaceResult",
    "Outcome",
    "PassProgress",
    "PassRecord",
    "PassResult",
    "Progress",
    "RebuildOptions",
    "RebuildPlan",
    "RebuildResult",
    "Runner",
    "Task",
    "TaskTimes",
    "VerifyOptions",
    "WorkerOptions",
    "bulk_load",
    "check_spark",
    "collect",
    "compact",
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
    "spark_runner",
    "standing_intents",
    "verify",
    "work",
]
