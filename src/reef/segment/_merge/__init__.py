"""Sorted rows of several sources as one: for reads, for compactions and for loads."""
