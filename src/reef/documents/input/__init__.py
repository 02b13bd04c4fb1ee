"""Rows, columns, Arrow and frames in: read, checked and coerced to the schema.

read_rows, read_values, Duplicates
                    what `upsert` takes, in the types of a schema; what becomes of ids that come twice
ID                  the name of the attribute that every document has
coerce              a column in the physical type of a type
CheckedRequest, RequestColumns, outcomes_of_rows
                    upserts, patches and deletes of one request, and an outcome for each row of it
parse_document      the object that a line of JSON is
cell_reader, cell_failure, CELL_ERRORS, LIKE_A_NAME
                    cells of CSV, and why one is refused
is_vector_name, may_be_sparse, SPARSE_KEYS
                    what is taken for a vector unless the schema says otherwise
"""

from reef.documents.input._coerce import coerce
from reef.documents.input._given import CheckedRequest, RequestColumns, outcomes_of_rows
from reef.documents.input._input_rows import ID, Duplicates, read_rows
from reef.documents.input._text import (
    CELL_ERRORS,
    LIKE_A_NAME,
    cell_failure,
    cell_reader,
    parse_document,
)
from reef.documents.input._values import SPARSE_KEYS, is_vector_name, may_be_sparse, read_values

__all__ = [
    "CELL_ERRORS",
    "ID",
    "LIKE_A_NAME",
    "SPARSE_KEYS",
    "CheckedRequest",
    "Duplicates",
    "RequestColumns",
    "cell_failure",
    "cell_reader",
    "coerce",
    "is_vector_name",
    "may_be_sparse",
    "outcomes_of_rows",
    "parse_document",
    "read_rows",
    "read_values",
]
