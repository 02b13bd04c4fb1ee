"""The kernel's façade: a versioned, ordered map of Arrow rows per namespace, in a bucket.

Opening     open_for_writing, open_for_reading: recovery, fencing; a Writer, a Reader; Context is what
            they share; Face and face_of, FACE: what a face asks of a namespace; newest_manifest;
            durable_settings, change_settings: those that a namespace keeps
Writing     WriteRequest, Receipt: a batch to commit, and its result; Restored; CreateOnly, MustExist, Equals
            (Condition): what must hold of a row for its write to count; resolve, Resolved, refuse,
            encode_condition, plain_codes; check_idempotency_key, check_stream, check_number
Outcomes    WRITTEN, DELETED, EXISTS, MISSING, DIFFERS, OUTCOMES, unpack_codes: what became of a row
Handles     Namespace, HeldSnapshot: what every face offers of a namespace and of a snapshot;
            DEFAULT_TTL; Time: what a time may be given as
Reading     View, SnapshotView, ReadState: reads at one version; Latest, FEW_ROWS_MAX: many keys;
            candidates, matching, are_newest, Cover: rows found source by source, without a merge;
            lookup_counted: a point read that counts what it reads; take_snapshot
Branches    create_branch, list_branches, Branch, drop_namespace, expire_branch, reset_branch,
            refuse_branches, lost_pins
Namespaces  list_namespaces, Listed, are_live
Changes     Feed, FeedLog, Position, LinkedHeader, operations: what was committed, operation by
            operation; its columns COMMITTED_AT, OP, BEFORE, EXISTED
For jobs    Memtable, Tail, FoldRows, DedupIndex, load_dedup, read_window, write_window, ATTACH_DIGEST: the
            parts of recovery and flush that a fold on Spark shares; list_unfolded, check_end, log_object_gone: the
            unfolded log, if it has no hole
"""

from reef.context import Context
from reef.engine._branch._create_branch import Branch, create_branch
from reef.engine._branch._drop import (
    drop_namespace,
    expire_branch,
    refuse_branches,
    reset_branch,
)
from reef.engine._branch._list import list_branches, lost_pins
from reef.engine._commit._attach import ATTACH_DIGEST
from reef.engine._commit._conditions import (
    Condition,
    CreateOnly,
    Equals,
    MustExist,
    Resolved,
    encode_condition,
    plain_codes,
    refuse,
    resolve,
)
from reef.engine._commit._dedup_index import DedupIndex
from reef.engine._commit._flush import read_window, write_window
from reef.engine._commit._receipt import (
    DELETED,
    DIFFERS,
    EXISTS,
    MISSING,
    OUTCOMES,
    WRITTEN,
    Receipt,
    unpack_codes,
)
from reef.engine._commit._request import WriteRequest
from reef.engine._durable_settings import change_settings, durable_settings
from reef.engine._feed._before import BEFORE, EXISTED
from reef.engine._feed._change_feed import COMMITTED_AT, OP, Feed, operations
from reef.engine._feed._feed_log import FeedLog, LinkedHeader
from reef.engine._feed._position import Position
from reef.engine._holes import check_end, list_unfolded, log_object_gone
from reef.engine._listing import Listed, are_live, list_namespaces
from reef.engine._memtable._fold_rows import FoldRows
from reef.engine._memtable._memtable import Memtable
from reef.engine._namespace import (
    DEFAULT_TTL,
    HeldSnapshot,
    Namespace,
    Time,
    check_idempotency_key,
    check_number,
    check_stream,
)
from reef.engine._open_namespace import (
    FACE,
    Face,
    face_of,
    load_dedup,
    newest_manifest,
    open_for_reading,
    open_for_writing,
)
from reef.engine._read._candidates import are_newest, candidates, matching
from reef.engine._read._cover import Cover
from reef.engine._read._latest import Latest
from reef.engine._read._layers import lookup_counted
from reef.engine._read._snapshot_view import SnapshotView, take_snapshot
from reef.engine._read._thresholds import FEW_ROWS_MAX
from reef.engine._read._view import ReadState, View
from reef.engine._reader import Reader
from reef.engine._return_to_version import Restored
from reef.engine._tail import Tail
from reef.engine._writer import Writer

__all__ = [
    "ATTACH_DIGEST",
    "BEFORE",
    "COMMITTED_AT",
    "DEFAULT_TTL",
    "DELETED",
    "DIFFERS",
    "EXISTED",
    "EXISTS",
    "FACE",
    "FEW_ROWS_MAX",
    "MISSING",
    "OP",
    "OUTCOMES",
    "WRITTEN",
    "Branch",
    "Condition",
    "Context",
    "Cover",
    "CreateOnly",
    "DedupIndex",
    "Equals",
    "Face",
    "Feed",
    "FeedLog",
    "FoldRows",
    "HeldSnapshot",
    "Latest",
    "LinkedHeader",
    "Listed",
    "Memtable",
    "MustExist",
    "Namespace",
    "Position",
    "ReadState",
    "Reader",
    "Receipt",
    "Resolved",
    "Restored",
    "SnapshotView",
    "Tail",
    "Time",
    "View",
    "WriteRequest",
    "Writer",
    "are_live",
    "are_newest",
    "candidates",
    "change_settings",
    "check_end",
    "check_idempotency_key",
    "check_number",
    "check_stream",
    "create_branch",
    "drop_namespace",
    "durable_settings",
    "encode_condition",
    "expire_branch",
    "face_of",
    "list_branches",
    "list_namespaces",
    "list_unfolded",
    "load_dedup",
    "log_object_gone",
    "lookup_counted",
    "lost_pins",
    "matching",
    "newest_manifest",
    "open_for_reading",
    "open_for_writing",
    "operations",
    "plain_codes",
    "read_window",
    "refuse",
    "refuse_branches",
    "reset_branch",
    "resolve",
    "take_snapshot",
    "unpack_codes",
    "write_window",
]
