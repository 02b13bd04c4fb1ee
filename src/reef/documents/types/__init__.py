"""Types, attributes and the schema of documents, and values as Arrow holds them.

Schema, Attribute, ID_ATTRIBUTE, check_attribute_name, ATTRIBUTES_MAX
                    the attributes of a namespace, each under a number that stays; the id as one
schema_of_columns   a schema made of the columns that rows have
Type, marked_type   what the values of an attribute are; the type that a field's metadata names
is_bytes, is_list, is_number_or_null, is_row, is_sparse, is_text, SPARSE, DIMENSION_MAX,
MICROSECONDS_MIN, MICROSECONDS_MAX
                    questions about Arrow types, and limits of values
documents_of, values_of
                    rows as dicts, columns as Python values
encode_json, check_nesting, TOO_DEEP
                    attributes of type json
rebuild_lists, list_of_each_item, hides_items
                    lists as flat items and back
InputColumn, ReadColumn, first_failure, first_true, first_valid, CONVERSION_ERRORS
                    a column being read, and which of its values is refused
"""

from reef.documents.types._dicts import documents_of, values_of
from reef.documents.types._json import TOO_DEEP, check_nesting, encode_json
from reef.documents.types._lists import hides_items, list_of_each_item, rebuild_lists
from reef.documents.types._refusal import (
    CONVERSION_ERRORS,
    InputColumn,
    ReadColumn,
    first_failure,
    first_true,
    first_valid,
)
from reef.documents.types._schema import (
    ATTRIBUTES_MAX,
    ID_ATTRIBUTE,
    Attribute,
    Schema,
    check_attribute_name,
    schema_of_columns,
)
from reef.documents.types._type import (
    DIMENSION_MAX,
    MICROSECONDS_MAX,
    MICROSECONDS_MIN,
    SPARSE,
    Type,
    is_bytes,
    is_list,
    is_number_or_null,
    is_row,
    is_sparse,
    is_text,
    marked_type,
)

__all__ = [
    "ATTRIBUTES_MAX",
    "CONVERSION_ERRORS",
    "DIMENSION_MAX",
    "ID_ATTRIBUTE",
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
    "is_number_or_null",
    "is_row",
    "is_sparse",
    "is_text",
    "list_of_each_item",
    "marked_type",
    "rebuild_lists",
    "schema_of_columns",
    "values_of",
]
