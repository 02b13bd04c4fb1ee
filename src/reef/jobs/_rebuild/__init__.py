"""Rebuild: segments and windows derived again from the log, as far as it is whole."""
