"""A driver in a process of its own, as a JVM serves one master: prints its outcomes as JSON.

python -m tests.spark.drive MASTER|REMOTE TASK COUNT FOLDER [NAME=VALUE...]
"""

from __future__ import annotations

import json
import sys

from reef.pipeline import Bucket
from reef.pipeline._spark import SparkRunner
from reef.spark import session
from tests.spark import tasks
from tests.spark.tasks import Ask, Told


def main(where: str, task: str, count: int, folder: str, *conf: str) -> None:
    """Run a task `count` times and print what became of it."""
    is_remote = where.startswith("sc://")
    spark = session(
        "reef-tests",
        master=None if is_remote else where,
        remote=where if is_remote else None,
        conf=dict(setting.split("=", 1) for setting in conf),
    )
    runner = SparkRunner(spark, Bucket(f"file://{folder}?fsync=off", {}))
    seen: list[int] = []
    outcomes = runner.run(
        getattr(tasks, task),
        [Ask(number, folder) for number in range(count)],
        Told,
        name=task,
        progress=lambda done, total: seen.append(done),
    )
    numbers = [None if one.result is None else one.result.number for one in outcomes]
    told = {
        "numbers": numbers,
        "errors": [type(one.error).__name__ for one in outcomes],
        "attempts": [one.attempt for one in outcomes],
        "seen": seen,
        "parallelism": runner.parallelism,
        "session": type(spark).__module__,
    }
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
