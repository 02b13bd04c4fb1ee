"""Segments checked against their manifest, whole or in parts."""
