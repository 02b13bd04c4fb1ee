"""The change feed: what was committed, operation by operation."""
