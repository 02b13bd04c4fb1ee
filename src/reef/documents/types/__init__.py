"""Types, attributes and the schema of documents, and values as Arrow holds them."""

from reef.documents.types._json import TOO_DEEP, check_nesting, encode_json
from reef.documents.types._lists import hides_items, listed, lists_of_items
from reef.documents.types._output import documents_of, values_of
from reef.documents.types._refusal import (
    CONVERSION_ERRORS,
    InputColumn,
    ReadColumn,
    first_failure,
    first_true,
    first_valid,
)
from reef.documents.types._schema import ATTRIBUTES_MAX, Attribute, Schema, check_attribute_name
from reef.documents.types._types import (
    DIMENSION_MAX,
    MICROSECONDS_MAX,
    MICROSECONDS_MIN,
    SPARSE,
    Type,
    is_bytes,
    is_list,
    is_row,
    is_sparse,
    marked_type,
)

__all__ = [
    "ATTRIBUTES_MAX",
    "CONVERSION_ERRORS",
    "DIMENSION_MAX",
    "MICROSECONDS_MAX",
    "MICROSECONDS_MIN",
    "SPARSE",
    "TOO_DEEP",
    "Attribute",
    "InputColumn",
    "ReadColumn",
    "Schema",
    "Type",
    "check_attribute_name",
    "check_nesting",
    "documents_of",
    "encode_json",
    "first_failure",
    "first_true",
    "first_valid",
    "hides_items",
    "is_bytes",
    "is_list",
    "is_row",
    "is_sparse",
    "listed",
    "lists_of_items",
    "marked_type",
    "values_of",
]
