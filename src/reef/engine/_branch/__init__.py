"""Branches: made, listed and dropped."""
