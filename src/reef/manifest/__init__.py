"""The manifest: the chain of generations, the rules between them, and every change there is.

ManifestChain     the head, following it, and publishing the next generation
check_successor   what holds between a generation and its successor
changes           open_writer, open_compactor, fold, register_intent, end_intent, replace_segments,
                  add_snapshot, renew_snapshot, release_snapshot, expire_snapshots,
                  advance_boundary, set_retention: each makes a manifest from the head's
create_snapshot   a snapshot that lasts as long as asked, by the store's clock; renew likewise

A change is published with `chain.publish(lambda head: fold(head.manifest, ...))`. It raises where
it may not be made on that head; nothing is written then.
"""

from reef.manifest._chain import Change, ManifestChain
from reef.manifest._changes import (
    StalePlanError,
    end_intent,
    fold,
    open_compactor,
    open_writer,
    register_intent,
    replace_segments,
)
from reef.manifest._read import Generation, Head
from reef.manifest._retention import (
    add_snapshot,
    advance_boundary,
    expire_snapshots,
    release_snapshot,
    renew_snapshot,
    retained_points,
    set_retention,
)
from reef.manifest._snapshots import create_snapshot, renew
from reef.manifest._successor import check_successor

__all__ = [
    "Change",
    "Generation",
    "Head",
    "ManifestChain",
    "StalePlanError",
    "add_snapshot",
    "advance_boundary",
    "check_successor",
    "create_snapshot",
    "end_intent",
    "expire_snapshots",
    "fold",
    "open_compactor",
    "open_writer",
    "register_intent",
    "release_snapshot",
    "renew",
    "renew_snapshot",
    "replace_segments",
    "retained_points",
    "set_retention",
]
