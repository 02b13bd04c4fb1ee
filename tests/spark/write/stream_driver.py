"""A driver of a stream that writes, in a process of its own: it dies on the way, with its JVM.

python -m tests.spark.write.stream_driver FOLDER LAST_BATCH ROWS METHOD [before|after=BATCH...]

Dies by SIGKILL before or after the commit of the batches that are said, each time once, and ends when
Spark has LAST_BATCH behind it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from reef.spark import session
from reef.spark._write._stream import ReefStreamWriter
from reef.spark._write._write_options import WriteOptions
from reef.spark.source._data_source import ReefDataSource


class MortalWriter(ReefStreamWriter):
    """Takes the driver with it at some points."""

    folder: Path
    deaths: list[str]

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._die(f"before={batchId}")
        super().commit(messages, batchId)
        self._die(f"after={batchId}")

    def _die(self, point: str) -> None:
        mark = self.folder / point
        if point not in self.deaths or mark.exists():
            return
        mark.touch()
        for pid in (self.folder / "pids").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        os._exit(9)


class MortalSource(ReefDataSource):
    """The data source with that writer."""

    @classmethod
    def name(cls) -> str:
        return "reef-mortal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        texts = dict(self.options)
        folder, deaths = Path(texts.pop("folder")), texts.pop("deaths").split()
        writer = MortalWriter(WriteOptions.of(texts, is_stream=True), schema)
        writer.folder, writer.deaths = folder, deaths
        return writer


def main(folder: str, last: int, rows: int, method: str, *deaths: str) -> None:
    """Run the stream until batch `last` is behind it."""
    spark = session("reef-tests", master="local[2,4]")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    Path(folder, "pids").write_text(f"{gateway.proc.pid} {os.getpid()}")
    spark.dataSource.register(MortalSource)
    stream = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=rows, numPartitions=2, startTimestamp=0, advanceMillisPerBatch=1000)
        .load()
        .selectExpr("printf('%08d', value) as id", "value as n")
        .writeStream.format("reef-mortal")
        .options(url=f"file://{folder}/bucket?fsync=off", namespace="ns", method=method)
        .options(checkpointLocation=f"{folder}/checkpoint", folder=folder, deaths=" ".join(deaths))
    )
    query = stream.start()
    while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < last):
        time.sleep(0.05)
    failure = query.exception()
    query.stop()
    spark.stop()
    if failure is not None:
        raise failure


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
