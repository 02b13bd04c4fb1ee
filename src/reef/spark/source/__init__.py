"""The data source "reef": reads, the change feed, and their options."""
