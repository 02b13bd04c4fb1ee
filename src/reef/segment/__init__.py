"""Segments: immutable sorted files of rows, written whole and read through caches.

RowSource             what a read asks of anything that holds rows; Found is a version of a key
SegmentReader         opens what a manifest names: SegmentSource, a RowSource
BlockCache            decoded tails and blocks in memory
DiskCache             the bytes of both in a local folder
write_segment         sorted batches into a bucket
lookup, lookup_many   the newest version of a key, or of many, in several sources
merge                 the visible rows of several sources, in the order of keys
merge_versions        all versions of several segments, in the order of segments; their columns:
                      versions_schema
keep_versions         which versions a compaction keeps
align, union, changes columns by name where schemas differ, and where keys change
owned                 columns on memory that no caller has
check_segment         a segment against its manifest, every block if asked: a CheckedSegment
cut_segment           a segment cut into SegmentParts; check_segment_part gives a CheckedPart of each,
                      and join_parts the CheckedSegment
"""

from reef.segment._cache import BlockCache
from reef.segment._check import CheckedSegment, check_segment
from reef.segment._check_parts import (
    CheckedPart,
    SegmentPart,
    check_segment_part,
    cut_segment,
    join_parts,
)
from reef.segment._clip import Clipped
from reef.segment._columns import align, at_or_below, changes, owned, union, visible
from reef.segment._disk_cache import DiskCache
from reef.segment._merge import lookup, lookup_many, merge
from reef.segment._merge_versions import merge_versions, versions_schema
from reef.segment._model import Found, Prune, RowSource
from reef.segment._retention import keep_versions
from reef.segment._sorted_runs import Duplicates, SortedRuns, Unique, merge_runs
from reef.segment._source import SegmentReader, SegmentSource
from reef.segment._write import write_segment

__all__ = [
    "BlockCache",
    "CheckedPart",
    "CheckedSegment",
    "Clipped",
    "DiskCache",
    "Duplicates",
    "Found",
    "Prune",
    "RowSource",
    "SegmentPart",
    "SegmentReader",
    "SegmentSource",
    "SortedRuns",
    "Unique",
    "align",
    "at_or_below",
    "changes",
    "check_segment",
    "check_segment_part",
    "cut_segment",
    "join_parts",
    "keep_versions",
    "lookup",
    "lookup_many",
    "merge",
    "merge_runs",
    "merge_versions",
    "owned",
    "union",
    "versions_schema",
    "visible",
    "write_segment",
]
