"""Writes of DataFrames: plan, stage by tasks, commit once."""
