"""Segments: immutable sorted files of rows, written whole and read through caches.

`_read` has the caches and all reads of segments, `_merge` what makes one order of several sources,
`_check` the checks that verify makes.

RowSource, RowVersion   anything that holds rows, as reads see it; one version of a key in it
SegmentReader, SegmentSource
                        opens the segments that a manifest names; one of them, as a RowSource
Clip                    the keys and versions that a manifest's reference shows
Prune                   decides from a segment's index which blocks are worth reading
BlockCache, DiskCache   decoded tails and blocks in memory; their bytes in a local folder
write_segment           writes sorted batches into a bucket
lookup, lookup_many     the newest version of a key, or of many, in several sources
merge                   the visible rows of several sources, in the order of keys
merge_versions          all versions of several segments, in the order of segments; versions_schema
                        has their columns
keep_versions           which versions a compaction keeps
SortedRuns, merge_runs, UniqueKeys, Duplicates
                        sort rows in bounded memory, and what becomes of keys that come twice
align, union, changes   columns by name where schemas differ, and where keys change
visible, at_or_below    the rows of a batch that a reader at some LSN sees
check_segment, CheckedSegment
                        a segment against its manifest, every block if asked
cut_segment, SegmentPart, check_segment_part, CheckedPart, join_parts
                        the same in parts, and the parts joined
"""

from reef.segment._check._check import CheckedSegment, check_segment
from reef.segment._check._parts import (
    CheckedPart,
    SegmentPart,
    check_segment_part,
    cut_segment,
    join_parts,
)
from reef.segment._merge._kept_versions import keep_versions
from reef.segment._merge._merged_sources import lookup, lookup_many, merge
from reef.segment._merge._sorted_runs import Duplicates, SortedRuns, UniqueKeys, merge_runs
from reef.segment._merge._versions import merge_versions, versions_schema
from reef.segment._read._block_cache import BlockCache
from reef.segment._read._disk_cache import DiskCache
from reef.segment._read._segment_source import SegmentReader, SegmentSource
from reef.segment._row_columns import align, at_or_below, changes, union, visible
from reef.segment._row_source import Clip, Prune, RowSource, RowVersion
from reef.segment._write_segment import write_segment

__all__ = [
    "BlockCache",
    "CheckedPart",
    "CheckedSegment",
    "Clip",
    "DiskCache",
    "Duplicates",
    "Prune",
    "RowSource",
    "RowVersion",
    "SegmentPart",
    "SegmentReader",
    "SegmentSource",
    "SortedRuns",
    "UniqueKeys",
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
    "union",
    "versions_schema",
    "visible",
    "write_segment",
]
