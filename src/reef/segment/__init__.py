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
"""

from reef.segment._cache import BlockCache
from reef.segment._columns import align, at_or_below, changes, union, visible
from reef.segment._disk_cache import DiskCache
from reef.segment._merge import lookup, lookup_many, merge
from reef.segment._merge_versions import merge_versions, versions_schema
from reef.segment._model import Found, Prune, RowSource
from reef.segment._retention import keep_versions
from reef.segment._source import SegmentReader, SegmentSource
from reef.segment._write import write_segment

__all__ = [
    "BlockCache",
    "DiskCache",
    "Found",
    "Prune",
    "RowSource",
    "SegmentReader",
    "SegmentSource",
    "align",
    "at_or_below",
    "changes",
    "keep_versions",
    "lookup",
    "lookup_many",
    "merge",
    "merge_versions",
    "union",
    "versions_schema",
    "visible",
    "write_segment",
]
