"""What Python workers of Spark's do once, before their first task."""

from __future__ import annotations

import functools
import gc
import os


@functools.cache
def freeze_imports() -> None:
    """Keep what a worker of Spark's has imported out of its garbage collections, once and for all.

    A worker that is used again collects all garbage after each task. That looks at each of some
    100,000 objects, next to all of them modules, functions and types that stay: 40 ms for a task.
    """
    if "SPARK_REUSE_WORKER" in os.environ:  # set for such workers, and nowhere else
        gc.collect()
        gc.freeze()
