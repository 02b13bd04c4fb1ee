"""Filters as SQL text: the same filters as tuples, and errors that say where."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from reef.documents.filter._filter import Incoming, parse_filter
from reef.documents.filter._parse_sql import SQL_NESTING_MAX
from reef.documents.filter._tokens import TEXT_BYTES_MAX
from reef.errors import InvalidInputError
from tests.support.documents.document_rows import schema_of

KINDS = {
    "name": "string",
    "stock": "int64",
    "price": "float64",
    "sold": "bool",
    "made": "datetime",
    "token": "uuid",
    "raw": "bytes",
    "tags": "[]string",
    "odd name": "string",
    'quo"ted': "int64",
    "and": "int64",
    "date": "datetime",
    "contains": "string",
    "incoming": "int64",
    "x": "int64",
    "größe": "int64",
}
SCHEMA = schema_of(**KINDS)
DAY = datetime(2024, 1, 1, tzinfo=UTC)
ONE, TWO, THREE = ("stock", "Eq", 1), ("stock", "Eq", 2), ("stock", "Eq", 3)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("stock = 1", ONE),
        ("  stock=1  ", ONE),
        ("stock\n=\t1", ONE),
        ("stock != 1", ("stock", "NotEq", 1)),
        ("stock <> 1", ("stock", "NotEq", 1)),
        ("stock < -1", ("stock", "Lt", -1)),
        ("stock<-1", ("stock", "Lt", -1)),
        ("stock <= +1", ("stock", "Lte", 1)),
        ("price > 1.5", ("price", "Gt", 1.5)),
        ("price >= .5", ("price", "Gte", 0.5)),
        ("price >= 5.", ("price", "Gte", 5)),
        ("price = 1e-3", ("price", "Eq", 0.001)),
        ("10 > price", ("price", "Lt", 10)),
        ("10 <= price", ("price", "Gte", 10)),
        ("'x' = name", ("name", "Eq", "x")),
        ("'x' != name", ("name", "NotEq", "x")),
        ("name = 'it''s'", ("name", "Eq", "it's")),
        ("name = ''", ("name", "Eq", "")),
        ("name = ''''", ("name", "Eq", "'")),
        ("name = 'and or (--'", ("name", "Eq", "and or (--")),
        ("\"odd name\" = 'x'", ("odd name", "Eq", "x")),
        ('"quo""ted" = 1', ('quo"ted', "Eq", 1)),
        ('"and" = 1 and "and" = 2', ("And", [("and", "Eq", 1), ("and", "Eq", 2)])),
        ("größe = 1", ("größe", "Eq", 1)),
        ("id in ('a', 'b')", ("id", "In", ["a", "b"])),
        ("id not in ('a')", ("id", "NotIn", ["a"])),
        ("stock in ()", ("stock", "In", [])),
        ("stock between 1 and 2", ("And", [("stock", "Gte", 1), ("stock", "Lte", 2)])),
        (
            "stock not between 1 and 2 and sold",
            (
                "And",
                [
                    ("Not", ("And", [("stock", "Gte", 1), ("stock", "Lte", 2)])),
                    ("sold", "Eq", True),
                ],
            ),
        ),
        ("name like 'a%'", ("name", "Glob", "a*")),
        ("name like 'a_[*?]%'", ("name", "Glob", "a?[[][*][?]]*")),
        ("name like '10!%' escape '!'", ("name", "Glob", "10%")),
        ("name like '!_!!%' escape '!'", ("name", "Glob", "_!*")),
        ("name not like 'a%'", ("name", "NotGlob", "a*")),
        ("name ilike 'a%'", ("name", "IGlob", "a*")),
        ("name glob '[a-c]*'", ("name", "Glob", "[a-c]*")),
        ("name not glob 'a*'", ("name", "NotGlob", "a*")),
        ("name iglob 'A*'", ("name", "IGlob", "A*")),
        ("name not iglob 'A*'", ("Not", ("name", "IGlob", "A*"))),
        ("name regexp '^a'", ("name", "Regex", "^a")),
        ("tags contains 'x'", ("tags", "Contains", "x")),
        ("tags not contains 'x'", ("tags", "NotContains", "x")),
        ("tags contains any ('x', 'y')", ("tags", "ContainsAny", ["x", "y"])),
        ("not tags contains any ('x')", ("Not", ("tags", "ContainsAny", ["x"]))),
        ("stock is null", ("stock", "IsNull")),
        ("stock IS NOT NULL", ("Not", ("stock", "IsNull"))),
        ("stock = null", ("stock", "Eq", None)),
        ("stock != null", ("stock", "NotEq", None)),
        ("sold", ("sold", "Eq", True)),
        ("not sold", ("Not", ("sold", "Eq", True))),
        ("sold = false", ("sold", "Eq", False)),
        ("(sold)", ("sold", "Eq", True)),
        ("true", ("And", [])),
        ("false", ("Or", [])),
        ("made >= timestamp '2024-01-01'", ("made", "Gte", DAY)),
        ("made >= TIMESTAMP '2024-01-01T00:00:00Z'", ("made", "Gte", DAY)),
        ("made >= '2024-01-01'", ("made", "Gte", DAY)),
        ("date >= date '2024-01-01'", ("date", "Gte", DAY)),
        ("date = '2024-01-01'", ("date", "Eq", DAY)),
        ("token = uuid '00000000-0000-0000-0000-000000000001'", ("token", "Eq", UUID(int=1))),
        ("raw = x'00Ff'", ("raw", "Eq", b"\x00\xff")),
        ("x = 1", ("x", "Eq", 1)),
        ("contains contains 'contains'", ("contains", "Contains", "contains")),
        ("stock < incoming.stock", ("stock", "Lt", Incoming("stock"))),
        ('stock < Incoming."quo""ted"', ("stock", "Lt", Incoming('quo"ted'))),
        ("incoming = 1", ("incoming", "Eq", 1)),
        ("stock = 1 or stock = 2 and stock = 3", ("Or", [ONE, ("And", [TWO, THREE])])),
        ("(stock = 1 or stock = 2) and stock = 3", ("And", [("Or", [ONE, TWO]), THREE])),
        ("stock = 1 AND stock = 2 And stock = 3", ("And", [ONE, TWO, THREE])),
        ("not stock = 1 and stock = 2", ("And", [("Not", ONE), TWO])),
        ("not (stock = 1 and stock = 2)", ("Not", ("And", [ONE, TWO]))),
        ("not not stock = 1", ONE),
        (
            "price < 10 and (tags contains 'x' or name like 'a%') and not sold and id in ('a','b')"
            " and made >= timestamp '2024-01-01' and x is not null and stock between 1 and 2",
            (
                "And",
                [
                    ("price", "Lt", 10),
                    ("Or", [("tags", "Contains", "x"), ("name", "Glob", "a*")]),
                    ("sold", "NotEq", True),
                    ("id", "In", ["a", "b"]),
                    ("made", "Gte", DAY),
                    ("x", "NotEq", None),
                    ("stock", "Gte", 1),
                    ("stock", "Lte", 2),
                ],
            ),
        ),
    ],
    ids=repr,
)
def test_text_says_what_tuples_say(text: str, where: object) -> None:
    found, expected = parse_filter(text, SCHEMA), parse_filter(where, SCHEMA)  # type: ignore[arg-type]
    assert found == expected
    assert found.encode() == expected.encode()


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 0, "a name, a value, 'not' or '\\('"),
        ("stock", None, "expected a whole number"),
        ("stock <", 7, "a value, got the end"),
        ("stock < and", 8, "a value, got 'and'"),
        ("stock < price", 8, "a value"),
        ("stock 1", 6, "=, !=, <"),
        ("stock == 1", 7, "a value"),
        ("stock not 1", 10, "=, !=, <"),
        ("stock = 1 2", 10, "'and', 'or' or the end"),
        ("stock = 1;", 9, "a name, a value or an operator"),
        ("stock = 1 -- x", 10, "a number"),
        ("stock = 12a", 8, "a number"),
        ("stock = " + "9" * 5000, 8, "at most 400 digits"),
        ("(stock = 1", 10, "'\\)'"),
        ("stock = 1)", 9, "the end of the filter"),
        ("and stock = 1", 0, "a name"),
        ("stock = 1 and", 13, "a name"),
        ("name = 'x", 7, "single quote"),
        ('"name = 1', 0, "double quote"),
        ('"" = 1', 0, "double quote"),
        ("stock in 1", 9, "'\\('"),
        ("stock in (1 2)", 12, "',' or '\\)'"),
        ("stock in (1,)", 12, "a value"),
        ("stock is 1", 9, "'null'"),
        ("stock between 1", 15, "'and'"),
        ("name like a", 10, "a pattern in 'quotes'"),
        ("name like 'a' escape 'ab'", 21, "one character"),
        ("name like 'a!' escape '!'", 10, "ends in its escape"),
        ("made > timestamp 'noon'", 17, "a time in ISO 8601"),
        ("made > timestamp '2024-01-01T00:00:00.0000001'", 17, "at most microseconds"),
        ("token = uuid '1'", 13, "the text of a uuid"),
        ("raw = x'0'", 7, "pairs of hexadecimal"),
        ("stock < incoming.", 17, "the name of an attribute"),
        ("10 < 20", 5, "the name of an attribute"),
        ("10", 0, "a comparison"),
        ("10 between 1 and 2", 0, "a comparison"),
        ("null", 0, "a comparison"),
        ("not", 3, "a name"),
        ("stock = 1 or or", 13, "a name"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_errors_say_where(text: str, position: int | None, expected: str) -> None:
    place = "" if position is None else f"at position {position}: expected "
    with pytest.raises(InvalidInputError, match=f"{place}.*{expected}") as caught:
        parse_filter(text, SCHEMA)
    assert len(str(caught.value)) < 500


def test_values_are_checked_as_in_tuples() -> None:
    for text, message in {
        "name = timestamp '2024-01-01'": "'name' of type string .* expected text",
        "stock = 'x'": "expected a whole number",
        "stock in (1, null)": "got None",
        "color = 1": "no attribute 'color'",
        "stock like '1%'": "got Glob",
        "name regexp '('": "valid pattern",
    }.items():
        with pytest.raises(InvalidInputError, match=message):
            parse_filter(text, SCHEMA)


def test_size_is_bounded() -> None:
    parse_filter("name = '" + "x" * (TEXT_BYTES_MAX - 9) + "'", SCHEMA)
    for text in ("x" * (TEXT_BYTES_MAX + 1), "é" * (TEXT_BYTES_MAX // 2 + 1)):
        with pytest.raises(InvalidInputError, match="bytes of text"):
            parse_filter(text, SCHEMA)
    depth = SQL_NESTING_MAX - 1
    assert parse_filter("(" * depth + "sold" + ")" * depth, SCHEMA) == parse_filter("sold", SCHEMA)
    for opening in ("(", "not ", "not ("):
        with pytest.raises(InvalidInputError, match="nested at most"):
            parse_filter(opening * 10_000 + "sold", SCHEMA)
    many = " or ".join(["sold"] * 8_000)
    assert len(parse_filter(many, SCHEMA).where[1]) == 8_000
