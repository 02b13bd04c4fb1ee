"""The files of a load as Spark lists them, and what is checked of their text before anything is read.

A folder stands for all files within it, at any depth; folders called `NAME=VALUE` are partitions, whose
names are a column more. Spark leaves out files whose names begin with `_` or `.`, and without a word
also those that lie elsewhere than it expects: what it would leave out is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

from reef.errors import InvalidInputError

# Whole fields, and then one that is begun by a quote and not ended. Possessive: it never goes back.
_QUOTED = r'"[^"]*+(?:""[^"]*+)*+'
_OPEN_LINE = rf'^(?:(?:{_QUOTED}"[^,]*+|[^",][^,]*+|),)*+{_QUOTED}$'
_SHOWN = 80


@dataclass(frozen=True)
class Files:
    """What is to be loaded."""

    spark: SparkSession
    paths: list[str]
    is_nested: bool
    """Whether there are files in folders within folders, which are no partitions."""

    @staticmethod
    def found(spark: SparkSession, paths: Sequence[str]) -> Files:
        """Look which files there are. Raises InvalidInputError for those that Spark would leave out."""
        flat = spark.read.text(list(paths))
        every = Files(spark, list(paths), True)
        names = every.names()
        if not names:
            raise InvalidInputError.of("files", ", ".join(paths), "files that are there")
        partitions = flat.columns[1:]
        if not partitions:
            return (
                every if set(names) - set(flat.inputFiles()) else Files(spark, list(paths), False)
            )
        for name in names:
            if not all(f"/{column}=" in unquote(name) for column in partitions):
                raise InvalidInputError.of(
                    "files",
                    name,
                    f"a file in a folder {'/'.join(f'{column}=VALUE' for column in partitions)}, as "
                    "others are: load those by themselves",
                )
        return Files(spark, list(paths), False)

    def names(self) -> list[str]:
        """Return the addresses of all files."""
        return list(self.texts().inputFiles())

    def reader(self, **options: str | bool) -> DataFrameReader:
        """Return what reads them, with options of its format."""
        return self.spark.read.options(recursiveFileLookup=self.is_nested, **options)

    def texts(self) -> DataFrame:
        """Return their lines, as `value`."""
        return self.reader().text(self.paths)


def check_lines(files: Files, *, may_break: bool) -> None:
    """Raise InvalidInputError for text that is not UTF-8: Spark would put other characters there.

    And, unless lines `may_break` within quotes, for a quoted value that goes on in the next one: Spark
    would take that for a row of its own, often without a word.
    """
    line = F.col("value")
    is_text = F.is_valid_utf8(line)
    wrong = ~is_text
    if not may_break:
        wrong = wrong | (line.contains('"') & line.rlike(_OPEN_LINE))
    shown = F.make_valid_utf8(line)
    found = files.texts().where(wrong).select(is_text, shown, "_metadata.file_path").head()
    if found is None:
        return
    if not found[0]:
        raise InvalidInputError.of(
            f"{unquote(found[2])}", found[1][:_SHOWN], "a file of UTF-8: convert it, as by iconv"
        )
    raise InvalidInputError.of(
        "CSV",
        found[1][:_SHOWN],
        "lines that end outside of quotes: in this one a quoted value goes on in the next; "
        "with --multiline that is a row, and each file is read by one task",
    )


def check_keys(files: Files) -> None:
    """Raise InvalidInputError for JSON lines that do not have the same keys, each as the others.

    As columns, a key that a line lacks would be null, which is what a patch takes an attribute away by.
    """
    line = F.col("value")
    keys = F.array_sort(F.json_object_keys(line))
    lines = files.texts().where(F.trim(line) != "")
    found = lines.select(keys).distinct().limit(2).collect()
    if not found or (len(found) == 1 and found[0][0] is not None):
        return
    some = [", ".join(row[0]) if row[0] is not None else "no object" for row in found]
    raise InvalidInputError.of(
        "files",
        " | ".join(some),
        "for a patch, lines that all have the same keys, because a key that is missing would be "
        "taken for null; load lines of each kind by themselves, or use `reef docs patch`",
    )


def check_columns(files: Files) -> None:
    """Raise InvalidInputError for Parquet files that do not have the same columns, as `check_keys`."""
    first: tuple[str, list[str]] | None = None
    for name in files.names():
        columns = sorted(files.spark.read.parquet(name).columns)
        first = first or (name, columns)
        if columns != first[1]:
            raise InvalidInputError.of(
                "files",
                f"{unquote(first[0])}, {unquote(name)}",
                "for a patch, files that all have the same columns, because one that is missing "
                "would be taken for null; load files of each kind by themselves",
            )
