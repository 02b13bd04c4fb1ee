"""Rows in memory: versions by key, and the order in which segments take them."""
