"""Rows in memory: versions by key, and their order in segments."""
