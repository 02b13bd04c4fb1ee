"""Bulk load: rows in any order become segments, committed by one record of the log."""
