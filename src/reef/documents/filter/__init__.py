"""Filters: tuples or SQL text, parsed to one tree; evaluated as masks, pruned by block.

parse_filter, Where, Filter
                    what callers write, and the checked filter
Incoming            in the condition of a write: the value of the incoming document
like_to_glob        SQL's LIKE as a glob
VALUES_MAX          how many values one IN may have
"""

from reef.documents.filter._filter import Filter, Incoming, Where, parse_filter
from reef.documents.filter._operands import VALUES_MAX
from reef.documents.filter._pattern import like_to_glob

__all__ = ["VALUES_MAX", "Filter", "Incoming", "Where", "like_to_glob", "parse_filter"]
