"""Passes over namespaces, on Spark or in this process.

_pass              where a pass runs, its progress, its report
_rewrite           index, compact and rebuild
_worker            fold and compact, round after round
_ingest, _export   files into a namespace, and out of one
_jobs              what passes did, and unfinished jobs
"""
