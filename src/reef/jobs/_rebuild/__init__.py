"""Rebuild: all derived state made again from the log and the bottom runs."""
