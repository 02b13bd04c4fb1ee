"""Passes over namespaces, on Spark or in this process.

index, compact, rebuild          passes that rewrite a namespace
worker                           fold and compact, round after round
copy                             namespaces in another bucket
ingest, export                   files into a namespace, and out of one
jobs_app                         `reef jobs`: what passes did, and unfinished jobs
RunnerOptions, SparkOptions      where a pass runs
run_watched                      a pass with its progress shown
"""

from __future__ import annotations

from reef.cli.pipeline._copy_command import copy
from reef.cli.pipeline._export_command import export
from reef.cli.pipeline._ingest_command import ingest
from reef.cli.pipeline._jobs import jobs_app
from reef.cli.pipeline._rewrite import compact, index, rebuild
from reef.cli.pipeline._run_pass import RunnerOptions, SparkOptions, run_watched
from reef.cli.pipeline._worker_command import worker

__all__ = [
    "RunnerOptions",
    "SparkOptions",
    "compact",
    "copy",
    "export",
    "index",
    "ingest",
    "jobs_app",
    "rebuild",
    "run_watched",
    "worker",
]
