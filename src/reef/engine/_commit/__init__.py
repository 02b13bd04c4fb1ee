"""Commits: from a request to a log object, and from its answer to a receipt; and the flush."""
