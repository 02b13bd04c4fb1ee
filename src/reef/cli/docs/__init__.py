"""`reef docs`: documents from the command line.

Writing takes the namespace over: a writer elsewhere is fenced. A command line, or a first batch of
input, that cannot be read fences nobody.

app                              the commands
Columns, Where, Declared         options that `reef ingest` and `reef export` share
column_list, pairs_of            what the texts of --columns and of NAME=VALUE options stand for
"""

from __future__ import annotations

from reef.cli.arguments import group
from reef.cli.docs._docs_options import Columns, Declared, Where, column_list, pairs_of
from reef.cli.docs._read_commands import count, get, query, sql
from reef.cli.docs._write_commands import delete, patch, put, restore, schema

__all__ = ["Columns", "Declared", "Where", "app", "column_list", "pairs_of"]

app = group(
    "docs",
    "Read and write documents. A command that writes fences other writers: they must open the "
    "namespace again.",
    {
        "get": get,
        "query": query,
        "count": count,
        "sql": sql,
        "put": put,
        "patch": patch,
        "delete": delete,
        "restore": restore,
        "schema": schema,
    },
)
