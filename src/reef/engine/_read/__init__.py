"""Reads at one version: one key, many keys, or all."""
