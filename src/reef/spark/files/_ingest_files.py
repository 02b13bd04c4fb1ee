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
from reef.spark.files._input_format import as_spark_takes, without_patterns

# Whole fields, and then one that is begun by a quote and not ended. Possessive: it never goes back.
_QUOTED = r'"[^"]*+(?:""[^"]*+)*+'
_OPEN_LINE = rf'^(?:(?:{_QUOTED}"[^,]*+|[^",][^,]*+|),)*+{_QUOTED}$'
_EXCERPT_CHARS = 80

NOTHING = "\x01"
"""What stands for an empty cell of CSV while Spark reads it, so that a quoted one is another."""


@dataclass(frozen=True)
class Files:
    """The files of a load."""

    spark: SparkSession
    paths: list[str]
    is_nested: bool
    """Whether there are files in folders within folders, which are no partitions."""

    @staticmethod
    def found(spark: SparkSession, paths: Sequence[str]) -> Files:
        """List the files. Raises InvalidInputError for those that Spark would ignore."""
        taken = list(map(as_spark_takes, paths))
        flat = spark.read.text(taken)
        every = Files(spark, taken, True)
        names = every.names()
        if not names:
            raise InvalidInputError(f"there are no such files: {', '.join(paths)}")
        partitions = flat.columns[1:]
        if not partitions:
            return every if set(names) - set(flat.inputFiles()) else Files(spark, taken, False)
        for name in names:
            if not all(f"/{column}=" in unquote(name) for column in partitions):
                raise InvalidInputError(
                    f"{name} is not in a folder "
                    f"{'/'.join(f'{column}=VALUE' for column in partitions)}, as other "
                    "files are: load such files by themselves"
                )
        return Files(spark, taken, False)

    def names(self) -> list[str]:
        """Return the addresses of all files."""
        return list(self.texts().inputFiles())

    def reader(self, **options: str | bool) -> DataFrameReader:
        """Return their reader, with the options of its format."""
        return self.spark.read.options(recursiveFileLookup=self.is_nested, **options)

    def texts(self, **options: str) -> DataFrame:
        """Return their lines, as `value`."""
        return self.reader(**options).text(self.paths)


def check_lines(files: Files, *, may_break: bool) -> None:
    """Raise InvalidInputError for CSV that is not UTF-8: Spark would put other characters there.

    For the character that stands for an empty cell while Spark reads it. And, unless lines `may_break`
    within quotes, for a quoted value that goes on in the next one: Spark would take that for a row of
    its own, often without a word.
    """
    line = F.col("value")
    is_text, is_marked = F.is_valid_utf8(line), line.contains(NOTHING)
    wrong = ~is_text | is_marked
    if not may_break:
        wrong = wrong | (line.contains('"') & line.rlike(_OPEN_LINE))
    valid_text = F.make_valid_utf8(line)
    lines = files.texts().where(wrong)
    found = lines.select(is_text, is_marked, valid_text, "_metadata.file_path").head()
    if found is None:
        return
    file, text = unquote(found[3]), found[2][:_EXCERPT_CHARS]
    if not found[0]:
        raise InvalidInputError(f"{file} is not UTF-8 ({text!r}): convert it, as with iconv")
    if found[1]:
        raise InvalidInputError(
            f"{file} has the control character U+0001 ({text!r}): remove it from the CSV"
        )
    raise InvalidInputError(
        f"a quoted value continues in the next line of the CSV, {text!r}: give "
        "--multiline to read such values; then one task reads each file"
    )


def check_columns(files: Files) -> None:
    """Raise InvalidInputError for Parquet files that do not have the same columns.

    One that a file lacks would be null, which is what a patch takes an attribute away by.
    """
    first: tuple[str, list[str]] | None = None
    for name in files.names():
        file = without_patterns(unquote(name))
        columns = sorted(files.spark.read.parquet(file).columns)
        first = first or (name, columns)
        if columns != first[1]:
            raise InvalidInputError(
                f"{unquote(first[0])} and {unquote(name)} have different columns: a "
                "patch expects the same columns in every file, because it would set a missing one "
                "to null. Load the files of each kind separately"
            )
