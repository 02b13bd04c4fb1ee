"""The kernel's façade: a versioned, ordered map of Arrow rows per namespace, in a bucket.

open_for_writing, open_for_reading    recovery, fencing; a `Writer`, a `Reader`
WriteRequest, Receipt                 a batch to commit, and what its author is told
CreateOnly, MustExist, Equals         what must hold of a row for its write to count
Namespace, Held                       what every face offers of a namespace and of a snapshot
create_branch, list_branches, Branch  branches; `drop_namespace` drops them too
list_namespaces, are_live             which namespaces there are
View, SnapshotView                    reads at one version
Feed, FeedLog                         what was committed, operation by operation
candidates, matching, Cover           rows found source by source, without a merge
verify, repair                        what is damaged, and mending it
inspect_*, storage_stats              single objects and figures, for people
"""

from reef.engine._branch import Branch, create_branch
from reef.engine._branch_drop import drop_namespace, refuse_branches
from reef.engine._branch_list import list_branches
from reef.engine._candidates import are_newest, candidates, matching
from reef.engine._conditions import (
    Condition,
    CreateOnly,
    Equals,
    MustExist,
    Resolved,
    encode_condition,
    refuse,
    resolve,
)
from reef.engine._context import Context
from reef.engine._cover import Cover
from reef.engine._feed import COMMITTED_AT, OP, Feed, operations
from reef.engine._feed_before import BEFORE, EXISTED
from reef.engine._feed_log import FeedLog
from reef.engine._feed_place import Position
from reef.engine._findings import Finding
from reef.engine._inspect import (
    inspect_block,
    inspect_log,
    inspect_manifest,
    inspect_namespace,
    inspect_segment,
)
from reef.engine._latest import Latest
from reef.engine._listing import are_live, list_namespaces
from reef.engine._namespace import (
    DEFAULT_TTL,
    Held,
    Namespace,
    check_idempotency_key,
    check_stream,
)
from reef.engine._open import (
    FACE,
    Face,
    face_of,
    newest_manifest,
    open_for_reading,
    open_for_writing,
)
from reef.engine._reader import Reader
from reef.engine._receipt import (
    DELETED,
    DIFFERS,
    EXISTS,
    MISSING,
    OUTCOMES,
    WRITTEN,
    Receipt,
)
from reef.engine._repair import RepairReport, repair
from reef.engine._repair_plan import RepairStep
from reef.engine._request import WriteRequest
from reef.engine._snapshots import SnapshotView
from reef.engine._stats import namespace_stats
from reef.engine._storage_stats import storage_stats
from reef.engine._verify import VerifyReport, verify
from reef.engine._view import ReadState, View
from reef.engine._writer import Writer

__all__ = [
    "BEFORE",
    "COMMITTED_AT",
    "DEFAULT_TTL",
    "DELETED",
    "DIFFERS",
    "EXISTED",
    "EXISTS",
    "FACE",
    "MISSING",
    "OP",
    "OUTCOMES",
    "WRITTEN",
    "Branch",
    "Condition",
    "Context",
    "Cover",
    "CreateOnly",
    "Equals",
    "Face",
    "Feed",
    "FeedLog",
    "Finding",
    "Held",
    "Latest",
    "MustExist",
    "Namespace",
    "Position",
    "ReadState",
    "Reader",
    "Receipt",
    "RepairReport",
    "RepairStep",
    "Resolved",
    "SnapshotView",
    "VerifyReport",
    "View",
    "WriteRequest",
    "Writer",
    "are_live",
    "are_newest",
    "candidates",
    "check_idempotency_key",
    "check_stream",
    "create_branch",
    "drop_namespace",
    "encode_condition",
    "face_of",
    "inspect_block",
    "inspect_log",
    "inspect_manifest",
    "inspect_namespace",
    "inspect_segment",
    "list_branches",
    "list_namespaces",
    "matching",
    "namespace_stats",
    "newest_manifest",
    "open_for_reading",
    "open_for_writing",
    "operations",
    "refuse",
    "refuse_branches",
    "repair",
    "resolve",
    "storage_stats",
    "verify",
]
