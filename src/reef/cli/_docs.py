"""`reef docs`: documents from the command line.

Writing takes the namespace over: a writer that runs elsewhere is fenced, but not by a command line,
or a first batch of input, that cannot be read.
"""

from __future__ import annotations

import typer

from reef.cli._docs_read import count, get, query, sql
from reef.cli._docs_write import delete, patch, put, schema

app = typer.Typer(
    name="docs",
    help="Read and write documents. Writing fences a writer that runs elsewhere.",
    add_completion=False,
    rich_markup_mode=None,
)
for _name, _command in (
    ("get", get),
    ("query", query),
    ("count", count),
    ("sql", sql),
    ("put", put),
    ("patch", patch),
    ("delete", delete),
    ("schema", schema),
):
    app.command(_name)(_command)
