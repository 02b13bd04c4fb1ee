"""Rows, columns, Arrow and frames in: read, checked and coerced to the schema."""

from reef.documents.input._coerce import coerce
from reef.documents.input._coerce_vectors import is_number
from reef.documents.input._given import Asked, Given, told_of_all
from reef.documents.input._input import ID, Duplicates, read_rows
from reef.documents.input._json_lines import document_of
from reef.documents.input._text_cells import CELL_ERRORS, LIKE_A_NAME, got, reader_of
from reef.documents.input._values import SPARSE_KEYS, is_vector_name, may_be_sparse, read_values

__all__ = [
    "CELL_ERRORS",
    "ID",
    "LIKE_A_NAME",
    "SPARSE_KEYS",
    "Asked",
    "Duplicates",
    "Given",
    "coerce",
    "document_of",
    "got",
    "is_number",
    "is_vector_name",
    "may_be_sparse",
    "read_rows",
    "read_values",
    "reader_of",
    "told_of_all",
]
