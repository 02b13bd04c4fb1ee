"""Reads of one segment, or of many at once: tails and blocks through caches, then rows out of them."""
