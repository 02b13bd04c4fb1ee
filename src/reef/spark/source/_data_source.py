"""The Spark data source `reef`.

    spark.read.format("reef").options(url="s3://bucket", namespace="products").load()
    spark.readStream.format("reef").options(url=..., namespace=..., starting="earliest").load()
    df.write.format("reef").options(url=..., namespace=...).mode("append").save()
    df.writeStream.format("reef").options(url=..., namespace=..., checkpointLocation=...).start()

A DataFrame is one version: `load()` finds it, and every query on that DataFrame, and every scan
within a query, reads it. Load again to see what was written since. With a schema of the user's
(`.schema(...)`) Spark does not ask the source before the first query: then that finds the version.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from reef.spark._write._batch_write import writer_of
from reef.spark._write._stream import stream_writer_of
from reef.spark._write._write_options import WriteOptions
from reef.spark.source._batch_reader import reader_of, spark_schema
from reef.spark.source._feed_options import FeedOptions, is_feed
from reef.spark.source._feed_read import FeedReader, stream_schema
from reef.spark.source._read_options import ReadOptions
from reef.spark.source._read_version import ReadVersion, find_version
from reef.spark.source._scan_plan import pushed_where


class ReefDataSource(DataSource):
    """A namespace of a bucket, for Spark."""

    _version: ReadVersion | None = None

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "reef"

    def schema(self) -> StructType:
        """Return the columns of the version that this DataFrame will read, or of the changes."""
        if is_feed(self.options):
            feed = FeedOptions.of(self.options)
            return stream_schema(self._found(feed.read()), feed)
        options = ReadOptions.of(self.options)
        version = self._found(options)
        pushed_where(
            options.where, version
        )  # load() raises for a wrong condition, not a later query
        return spark_schema(version, options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of that version."""
        options = ReadOptions.of(self.options)
        return reader_of(options, self._found(options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of the changes."""
        options = FeedOptions.of(self.options)
        return FeedReader(options, self._found(options.read()), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of rows."""
        return writer_of(WriteOptions.of(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer of micro-batches."""
        return stream_writer_of(WriteOptions.of(self.options, is_stream=True), schema, overwrite)

    def _found(self, options: ReadOptions) -> ReadVersion:
        """Return the version; once found it travels with this object, which Spark pickles."""
        if self._version is None:
            self._version = find_version(options)
        return self._version
