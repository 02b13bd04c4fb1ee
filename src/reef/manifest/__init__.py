"""The manifest: the chain of generations, the rules between them, and every change there is.

ManifestChain, Head, Change
                  the head, following it, and publishing the next generation by a change
ManifestReader, Generation
                  reads generations by number; what a LIST says of one
begin_again       a first generation where all manifests were lost
check_successor   what holds between a generation and its successor
changes           open_writer, end_writer, open_compactor, advance_floor, register_intent, end_intent,
                  replace_segments, add_snapshot, renew_snapshot, release_snapshot, expire_snapshots,
                  advance_boundary, set_retention, set_grace, settle_grace: each makes one from the head's
                  and of branches: add_pin, share_pin, release_pins, begin_branch, go_on, drop,
                  abort, detach; BranchPoint, has_branches
check_standing    refuse to go on if a job was ended, or another compactor has begun
live_inputs       what a compaction would replace, or StalePlanError
keys_seen, lsn_max_seen
                  the keys and the newest version that a clipped reference shows
retained_points, is_retained, retained_of
                  the LSNs and generations that stay readable
longest_grace_ms  the longest grace period that somebody may rely on
overlaps          pairs of segments with keys and versions in common, which must not be
no_namespace, manifests_gone
                  the errors for a namespace that does not exist, and for one without manifests
create_snapshot, renew
                  a snapshot that lasts as long as asked, by the store's clock

A change is published with `chain.publish(lambda head: advance_floor(head.manifest, ...))`. It raises where
it may not be made on that head; nothing is written then.
"""

from reef.manifest._branches import (
    BranchPoint,
    abort,
    add_pin,
    begin_branch,
    detach,
    drop,
    go_on,
    has_branches,
    release_pins,
    share_pin,
)
from reef.manifest._changes import (
    advance_floor,
    check_standing,
    end_intent,
    end_writer,
    live_inputs,
    open_compactor,
    open_writer,
    register_intent,
    replace_segments,
)
from reef.manifest._manifest_chain import Change, ManifestChain
from reef.manifest._manifest_reader import (
    Generation,
    Head,
    ManifestReader,
    manifests_gone,
    no_namespace,
)
from reef.manifest._overlap import keys_seen, lsn_max_seen, overlaps
from reef.manifest._repaired_chain import begin_again
from reef.manifest._retention import (
    add_snapshot,
    advance_boundary,
    expire_snapshots,
    is_retained,
    longest_grace_ms,
    release_snapshot,
    renew_snapshot,
    retained_of,
    retained_points,
    set_grace,
    set_retention,
    settle_grace,
)
from reef.manifest._successor import check_successor
from reef.manifest._timed_snapshots import create_snapshot, renew

__all__ = [
    "BranchPoint",
    "Change",
    "Generation",
    "Head",
    "ManifestChain",
    "ManifestReader",
    "abort",
    "add_pin",
    "add_snapshot",
    "advance_boundary",
    "advance_floor",
    "begin_again",
    "begin_branch",
    "check_standing",
    "check_successor",
    "create_snapshot",
    "detach",
    "drop",
    "end_intent",
    "end_writer",
    "expire_snapshots",
    "go_on",
    "has_branches",
    "is_retained",
    "keys_seen",
    "live_inputs",
    "longest_grace_ms",
    "lsn_max_seen",
    "manifests_gone",
    "no_namespace",
    "open_compactor",
    "open_writer",
    "overlaps",
    "register_intent",
    "release_pins",
    "release_snapshot",
    "renew",
    "renew_snapshot",
    "replace_segments",
    "retained_of",
    "retained_points",
    "set_grace",
    "set_retention",
    "settle_grace",
    "share_pin",
]
