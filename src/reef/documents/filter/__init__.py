"""Filters: tuples or SQL text, parsed to one tree; evaluated as masks, pruned by block."""

from reef.documents.filter._filter import Filter, Incoming, Where, parse_filter
from reef.documents.filter._pattern import glob_of_like
from reef.documents.filter._values import VALUES_MAX

__all__ = ["VALUES_MAX", "Filter", "Incoming", "Where", "glob_of_like", "parse_filter"]
