"""Compaction: runs merged into fewer, key range by key range."""
