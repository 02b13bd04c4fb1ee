"""Filters as tuples: what matches, what is refused and how, what bounds rule out."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, Literal
from uuid import UUID

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from reef.documents.filter._filter import (
    CONDITIONS_MAX,
    NESTING_MAX,
    PARTS_MAX,
    Filter,
    Incoming,
    parse_filter,
)
from reef.documents.filter._operands import VALUES_MAX
from reef.documents.types._schema import Schema
from reef.documents.types._type import Type
from reef.errors import InvalidInputError
from reef.format import bounds_of
from tests.support.documents.document_rows import schema_of

KINDS = {
    "name": "string",
    "stock": "int64",
    "total": "uint64",
    "price": "float64",
    "sold": "bool",
    "made": "datetime",
    "token": "uuid",
    "raw": "bytes",
    "tags": "[]string",
    "sizes": "[]float64",
    "vector": "vector[2]",
    "terms": "sparse",
    "extra": "json",
    "days": "[]datetime",
}
SCHEMA = schema_of(**KINDS)
UUIDS = [UUID(int=1), UUID(int=2)]
NAN = float("nan")
ROWS = [
    {
        "id": "a",
        "name": "apple",
        "stock": 3,
        "total": 2**64 - 1,
        "price": 1.5,
        "sold": True,
        "made": datetime(2024, 1, 1, tzinfo=UTC),
        "token": UUIDS[0].bytes,
        "raw": b"\x00\xff",
        "tags": ["x", "y"],
        "sizes": [0.0, 1.0],
        "vector": [1.0, 2.0],
        "extra": "{}",
        "days": [datetime(2024, 1, 1, tzinfo=UTC)],
    },
    {"id": "b", "name": "Banana\nsplit", "stock": -3, "total": 0, "price": NAN, "sold": False},
    {"id": "c", "name": "", "stock": 0, "price": -0.0, "tags": [], "sizes": [-0.0], "raw": b""},
    {"id": "d"},
    {"id": "é", "name": "été*", "made": datetime(1969, 12, 31, tzinfo=UTC), "tags": ["y"]},
]
ALL = "abcdé"


def batch_of(rows: list[dict[str, object]], schema: Schema = SCHEMA) -> pa.RecordBatch:
    columns = {"_key": pa.array([str(row["id"]).encode() for row in rows], pa.binary())}
    for attribute in schema.attributes:
        values = [row.get(attribute.name) for row in rows]
        columns[attribute.column] = pa.array(values, attribute.type.physical)
    return pa.RecordBatch.from_pydict(columns)


def stats_of(*blocks: list[dict[str, object]], columns: str = "a1 a2 a4 a6") -> pa.RecordBatch:
    """The row index of a segment with these blocks, as far as filters read it."""
    found: dict[str, list[object]] = {"key_first": [], "key_last": [], "rows": []}
    for rows in blocks:
        batch = batch_of(rows)
        found["key_first"].append(batch["_key"][0].as_py())
        found["key_last"].append(batch["_key"][-1].as_py())
        found["rows"].append(len(rows))
        for column in columns.split():
            for end, bound in zip(("min", "max", "nulls"), bounds_of(batch[column]), strict=True):
                found.setdefault(f"{end}:{column}", []).append(bound)
    return pa.RecordBatch.from_pydict(found)


def matching(where: object, batch: pa.RecordBatch | None = None) -> str:
    rows = batch_of(ROWS) if batch is None else batch
    mask = parse_filter(where, SCHEMA).mask(rows)  # type: ignore[arg-type]
    assert mask.null_count == 0
    assert len(mask) == rows.num_rows
    return b"".join(rows["_key"].filter(mask).to_pylist()).decode()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("name", "Eq", "apple"), "a"),
        (("name", "NotEq", "apple"), "bcé"),
        (("name", "Eq", None), "d"),
        (("name", "NotEq", None), "abcé"),
        (("name", "IsNull"), "d"),
        (("Not", ("name", "IsNull")), "abcé"),
        (("stock", "Lt", 3), "bc"),
        (("stock", "Lte", 3), "abc"),
        (("stock", "Gt", 0), "a"),
        (("stock", "Gte", 0), "ac"),
        (("stock", "Lt", 2.5), "bc"),
        (("stock", "Lte", 2.5), "bc"),
        (("stock", "Gt", 2.5), "a"),
        (("stock", "Gte", -2.5), "ac"),
        (("stock", "Eq", 3.0), "a"),
        (("stock", "Eq", np.int32(3)), "a"),
        (("stock", "Eq", pa.scalar(3)), "a"),
        (("stock", "In", [3, 0]), "ac"),
        (("stock", "In", np.array([3, 0])), "ac"),
        (("stock", "In", pa.array([3, 0])), "ac"),
        (("stock", "In", {3}), "a"),
        (("stock", "In", []), ""),
        (("stock", "NotIn", [3]), "bc"),
        (("stock", "NotIn", []), "abc"),
        (("total", "Eq", 2**64 - 1), "a"),
        (("price", "Eq", 0), "c"),
        (("price", "In", [0.0, 1.5]), "ac"),
        (("price", "NotEq", 0), "ab"),
        (("price", "Lt", float("inf")), "ac"),
        (("Not", ("price", "Lt", 1)), "ab"),
        (("sold", "Eq", True), "a"),
        (("sold", "NotEq", True), "b"),
        (("sold", "In", [True, False]), "ab"),
        (("made", "Eq", datetime(2024, 1, 1)), "a"),  # noqa: DTZ001
        (("made", "Eq", datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))), "a"),
        (("made", "Gte", date(2024, 1, 1)), "a"),
        (("made", "Lt", "2024-01-01T00:00:00Z"), "é"),
        (("made", "In", ["2024-01-01", "1969-12-31"]), "aé"),
        (("token", "Eq", UUIDS[0]), "a"),
        (("token", "In", [str(UUIDS[0]), UUIDS[1]]), "a"),
        (("token", "Lt", UUIDS[1]), "a"),
        (("raw", "Eq", b""), "c"),
        (("raw", "Gt", b"\x00"), "a"),
        (("id", "Eq", "é"), "é"),
        (("id", "Gte", "c"), "cdé"),
        (("id", "In", ["a", "zz", "é"]), "aé"),
        (("id", "Glob", "[!a-c]"), "dé"),
        (("id", "IsNull"), ""),
        (("tags", "Contains", "y"), "aé"),
        (("tags", "NotContains", "x"), "cé"),
        (("tags", "ContainsAny", ["x", "z"]), "a"),
        (("tags", "ContainsAny", []), ""),
        (("Not", ("tags", "ContainsAny", [])), "acé"),
        (("tags", "IsNull"), "bd"),
        (("sizes", "Contains", 0), "ac"),
        (("sizes", "ContainsAny", [0.0, 7]), "ac"),
        (("days", "Contains", "2024-01-01"), "a"),
        (("name", "Contains", "pp"), "a"),
        (("name", "NotContains", "pp"), "bcé"),
        (("name", "ContainsAny", ["pp", "*"]), "aé"),
        (("name", "ContainsAny", []), ""),
        (("Not", ("name", "ContainsAny", [])), "abcé"),
        (("name", "Glob", "a*"), "a"),
        (("name", "Glob", "*e"), "a"),
        (("name", "Glob", "*an*"), "b"),
        (("name", "Glob", "*"), "abcé"),
        (("name", "Glob", ""), "c"),
        (("name", "Glob", "?ppl?"), "a"),
        (("name", "Glob", "B*t"), "b"),
        (("name", "Glob", "Banana?split"), "b"),
        (("name", "Glob", "?t?[*]"), "é"),
        (("name", "Glob", "ap"), ""),
        (("name", "Glob", "[^a]*"), "bé"),
        (("name", "Glob", "[b-"), ""),
        (("name", "NotGlob", "a*"), "bcé"),
        (("name", "IGlob", "banana*"), "b"),
        (("name", "IGlob", "ÉTÉ?"), "é"),
        (("name", "Regex", "^[ab]"), "a"),
        (("name", "Regex", "(?i)^[ab]"), "ab"),
        (("name", "Regex", "l"), "ab"),
        (("vector", "IsNull"), "bcdé"),
        (("terms", "IsNull"), ALL),
        (("extra", "NotEq", None), "a"),
        (("And", []), ALL),
        (("Or", []), ""),
        (("And", [("stock", "Gt", -5), ("sold", "Eq", True)]), "a"),
        (("And", (("stock", "Gt", -5), ("sold", "Eq", True))), "a"),
        (["Or", [["stock", "Gt", 0], ["sold", "Eq", False]]], "ab"),
        (("Not", ("And", [("stock", "Gt", 0), ("sold", "Eq", True)])), "bc"),
        (("Not", ("Or", [("stock", "Gt", 0), ("sold", "Eq", True)])), "b"),
        (("Or", [("sold", "Eq", True), ("sold", "IsNull")]), "acdé"),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", repr(value)),
)
def test_matches(where: object, expected: str) -> None:
    assert matching(where) == expected
    # a slice's buffers begin elsewhere
    assert matching(where, batch_of([*ROWS, *ROWS]).slice(len(ROWS))) == expected
    assert parse_filter(parse_filter(where, SCHEMA).where, SCHEMA) == parse_filter(where, SCHEMA)  # type: ignore[arg-type]


def test_columns_that_a_batch_lacks_are_null() -> None:
    old = batch_of(ROWS).select(["_key", "a2"])
    assert matching(("name", "Eq", "apple"), old) == ""
    assert matching(("name", "NotEq", "apple"), old) == ""
    assert matching(("tags", "NotContains", "x"), old) == ""
    assert matching(("name", "IsNull"), old) == ALL
    assert matching(("Or", [("name", "Eq", "apple"), ("stock", "Gt", 0)]), old) == "a"


def test_an_empty_batch_has_an_empty_mask() -> None:
    wheres: list[Any] = [
        ("And", []),
        ("tags", "Contains", "x"),
        ("id", "Glob", "?*"),
        ("terms", "IsNull"),
    ]
    for where in wheres:
        assert matching(where, batch_of([])) == ""


def test_items_that_a_null_list_hides_are_not_looked_at() -> None:
    ends = pa.array([0, 2, 4, 5], pa.int32())
    items = pa.array(["x", "y", "z", "z", "x"])
    tags = pa.ListArray.from_arrays(ends, items, mask=pa.array([False, True, False]))
    rows = pa.record_batch({"_key": [b"a", b"b", b"c"], SCHEMA.attribute("tags").column: tags})

    def found(where: object) -> list[bool]:
        return parse_filter(where, SCHEMA).matches(rows).tolist()

    assert found(("tags", "Contains", "x")) == [True, False, True]
    assert found(("tags", "ContainsAny", ["z", "y"])) == [True, False, False]
    assert found(("tags", "NotContains", "y")) == [False, False, True]


def test_a_renamed_attribute_is_the_same_column() -> None:
    renamed = SCHEMA.renamed({"stock": "count"})
    found = parse_filter(("count", "Eq", 3), renamed)
    assert found.mask(batch_of(ROWS)).to_pylist() == [True, False, False, False, False]
    assert found.encode() == parse_filter(("stock", "Eq", 3), SCHEMA).encode()


def test_long_lists_of_values() -> None:
    numbers = list(range(-VALUES_MAX // 2, VALUES_MAX // 2))
    assert matching(("stock", "In", numbers)) == "abc"
    assert matching(("stock", "In", [n for n in numbers if n != 0])) == "ab"
    names = [f"n{n}" for n in numbers[1:]]
    assert matching(("name", "In", [*names, "apple"])) == "a"
    assert matching(("name", "NotIn", names)) == "abcé"
    assert matching(("price", "In", [float(n) for n in numbers])) == "c"
    days = [datetime(1960, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(30_000)]
    assert matching(("made", "In", days)) == "aé"
    assert matching(("stock", "In", numbers), batch_of(ROWS[3:])) == ""


def test_many_parts_of_a_string() -> None:
    parts = [f"{n}|.(" for n in range(PARTS_MAX - 1)]
    assert matching(("name", "ContainsAny", [*parts, "pple"])) == "a"
    assert matching(("tags", "ContainsAny", [*parts, *"xyz"])) == "aé"


def test_incoming_documents() -> None:
    found = parse_filter(
        ("Or", [("stock", "Lt", Incoming("stock")), ("id", "NotEq", Incoming("name"))]), SCHEMA
    )
    assert found.needs_incoming
    assert found.names == {"stock", "id"}
    stored = batch_of(
        [{"id": key, "stock": stock} for key, stock in zip("abcd", [1, 2, 3, None], strict=True)]
    )
    given = batch_of(
        [
            {"id": "a", "stock": 2, "name": "a"},
            {"id": "b", "stock": 2, "name": "b"},
            {"id": "c", "name": "c"},
            {"id": "d", "stock": 9, "name": "other"},
        ]
    )
    assert found.mask(stored, given).to_pylist() == [True, False, False, True]
    assert found.mask(stored, given.select(["_key"])).to_pylist() == [False] * 4
    with pytest.raises(InvalidInputError, match="uses incoming values"):
        found.mask(stored)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (("color", "Eq", 1), "no attribute 'color'; .* name, stock"),
        (("stock", "Like", 1), "operator 'Like': expected one of Eq, Lt"),
        (
            ("stock", "Eq", "3"),
            r"'stock' of type int64 .* Eq expected a whole number .* got '3' \(str\)",
        ),
        (("stock", "Eq", 1.5), "expected a whole number"),
        (("stock", "Eq", True), "expected a whole number"),
        (("stock", "Lt", NAN), "expected a whole number"),
        (("stock", "Lt", float("inf")), "expected a whole number"),
        (("stock", "Lt", 2**63), "expected a whole number"),
        (("stock", "Lt", None), "expected a whole number .* got None"),
        (("total", "Gt", -1), "from 0 to"),
        (("stock", "In", 3), "expected a list of values"),
        (("stock", "In", "33"), "expected a list of values"),
        (("stock", "In", [1, None]), "got None"),
        (("stock", "In", range(3)), "expected a list"),
        (("stock", "In", [0] * (VALUES_MAX + 1)), f"at most {VALUES_MAX} values"),
        (("price", "Eq", NAN), "not NaN"),
        (("price", "Eq", 2**53 + 1), "holds exactly"),
        (("price", "Eq", 10**400), "holds exactly"),
        (("name", "Eq", b"x"), "expected text"),
        (("name", "Eq", "\ud800"), "valid as UTF-8"),
        (("id", "Eq", 3), "'id' of type string .* expected text"),
        (("sold", "Eq", 1), "expected True or False"),
        (("sold", "Lt", True), "expected one of Eq, NotEq, In, NotIn, IsNull, got Lt"),
        (("made", "Lt", "yesterday"), "ISO 8601"),
        (("made", "Lt", 3), "ISO 8601"),
        (("token", "Eq", "12"), "uuid.UUID"),
        (("raw", "Eq", "x"), "expected bytes"),
        (("tags", "Eq", ["x"]), "expected one of Contains"),
        (("tags", "Contains", 3), r"type \[\]string .* expected text"),
        (("tags", "ContainsAny", "xy"), "expected a list of values"),
        (("stock", "Contains", 3), "got Contains"),
        (("stock", "Glob", "3*"), "got Glob"),
        (("vector", "Eq", [1, 2]), "expected one of IsNull, got Eq"),
        (("extra", "Contains", "x"), "expected one of IsNull"),
        (("terms", "Lt", 1), "expected one of IsNull"),
        (("name", "Regex", "("), "valid pattern .*missing"),
        (("name", "Regex", "(?=a)"), "valid pattern"),
        (("name", "Glob", "[z-a]"), "runs backwards"),
        (("name", "Glob", 3), "expected text"),
        (("name", "ContainsAny", [f"{n}" for n in range(PARTS_MAX + 1)]), "at most 1024 parts"),
        (("stock", "Lt", Incoming("price")), "incoming value of type int64"),
        (("stock", "Lt", Incoming("color")), "no attribute 'color'"),
        (("stock", "In", Incoming("stock")), "expected a list"),
        (("stock", "Eq"), "expected a value"),
        (("stock", "IsNull", True), "expected no value"),
        (("stock",), "expected one of"),
        ((), "expected one of"),
        (3, "expected one of"),
        (("And", ("stock", "Eq", 3)), "expected one of"),
        (("And", ("stock", "Eq", 3), ("stock", "Eq", 4)), "expected one of"),
        (("Not", "stock < 3"), "no attribute 'Not'"),
        ((3, "Eq", 3), "expected one of"),
        (("stock", "Eq", 3, 4), "expected one of"),
        (("And", [("stock", "Eq", 3), 7]), "filter = 7"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_refused(where: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        parse_filter(where, SCHEMA)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 1000


def test_size_is_bounded() -> None:
    deep: object = ("stock", "Eq", 1)
    for _ in range(NESTING_MAX - 1):
        deep = ("Not", deep)
    parse_filter(deep, SCHEMA)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="nested"):
        parse_filter(("Not", deep), SCHEMA)
    wide = [("stock", "Eq", 1)] * (CONDITIONS_MAX + 1)
    with pytest.raises(InvalidInputError, match="use In"):
        parse_filter(("Or", wide), SCHEMA)


def test_names_of_operators_may_name_attributes() -> None:
    schema = Schema().added({"And": Type.parse("int64"), "Not": Type.parse("int64")})
    assert parse_filter(("And", "Eq", 3), schema).names == {"And"}
    assert parse_filter(("Not", "IsNull"), schema).names == {"Not"}


def test_equal_filters_are_equal_in_every_way() -> None:
    one, two, three = ("stock", "Gt", 1), ("price", "Lt", 2), ("name", "In", ["b", "a", "a"])
    nested = parse_filter(("And", [one, ("And", [two, three])]), SCHEMA)
    flat = parse_filter(("And", [one, ("price", "Lt", 2.0), ("name", "In", ("a", "b"))]), SCHEMA)
    assert nested == flat
    assert hash(nested) == hash(flat)
    assert nested.encode() == flat.encode()
    assert nested != parse_filter(one, SCHEMA)
    assert nested.encode() != parse_filter(("Or", [one, two, three]), SCHEMA).encode()
    assert nested.columns == ("a2", "a4", "a1")
    assert nested.names == {"stock", "price", "name"}
    assert not nested.needs_incoming
    assert parse_filter(("id", "Eq", "x"), SCHEMA).columns == ()
    assert parse_filter(("Not", ("Not", one)), SCHEMA) == parse_filter(one, SCHEMA)
    assert parse_filter(("stock", "In", [4]), SCHEMA) == parse_filter(("stock", "Eq", 4), SCHEMA)
    assert nested != "stock > 1"


def test_encoding_is_plain_and_by_column() -> None:
    where = ("And", [("made", "Lt", "1970-01-01T00:00:01Z"), ("stock", "NotEq", Incoming("stock"))])
    assert msgspec.msgpack.decode(parse_filter(where, SCHEMA).encode()) == [
        1,
        ["And", ["Lt", "a6", 1_000_000], ["Not", ["EqIncoming", "a2", "a2"]]],
    ]


def test_repr_reads_as_it_was_written() -> None:
    assert (
        repr(parse_filter(("Not", ("name", "Eq", "x")), SCHEMA)) == "Filter(('name', 'NotEq', 'x'))"
    )
    long = parse_filter(("stock", "In", list(range(10_000))), SCHEMA)
    assert len(repr(long)) < 200


BLOCKS = [ROWS[0:1], ROWS[1:3], ROWS[3:4], ROWS[4:5]]  # a | b c | d | é


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("stock", "Gt", 2), "a"),
        (("stock", "Lt", 3), "b"),
        (("stock", "Lte", 3), "ab"),
        (("stock", "Gte", 3), "a"),
        (("stock", "Eq", -1), "b"),
        (("stock", "NotEq", 3), "b"),
        (("stock", "In", [-9, 2, 4]), ""),
        (("stock", "In", [-9, -1, 4]), "b"),
        (("stock", "In", []), ""),
        (("stock", "NotIn", [1]), "ab"),
        (("stock", "IsNull"), "dé"),
        (("Not", ("stock", "IsNull")), "ab"),
        (("price", "Gt", 1), "a"),
        (("Not", ("price", "Lte", 1.5)), "ab"),  # NaN may be anywhere
        (("name", "Eq", "apple"), "a"),
        (("name", "Glob", "ap?le*"), "a"),
        (("name", "Glob", "é*"), "é"),
        (("name", "Regex", "zzz"), "abé"),
        (("made", "Lt", "1970-01-01"), "é"),
        (("made", "In", ["2024-01-01", "2025-01-01"]), "a"),
        (("id", "Lt", "b"), "a"),
        (("id", "In", ["aa", "c", "cc"]), "b"),
        (("id", "IsNull"), ""),
        (("tags", "Contains", "q"), "abdé"),  # lists have no bounds
        (("token", "In", [UUIDS[0], UUIDS[1]]), "abdé"),
        (("stock", "Lt", Incoming("stock")), "ab"),
        (("And", [("stock", "Gt", 2), ("name", "Glob", "b*")]), ""),
        (("Or", [("stock", "Gt", 2), ("made", "Lt", "1970-01-01")]), "aé"),
        (("Not", ("Or", [("stock", "Gt", 2), ("stock", "Lt", -3)])), "b"),
        (("And", []), "abdé"),
        (("Or", []), ""),
    ],
    ids=repr,
)
def test_bounds_rule_out_blocks(where: object, expected: str) -> None:
    found = parse_filter(where, SCHEMA).may_match(stats_of(*BLOCKS))  # type: ignore[arg-type]
    assert found.dtype == bool
    firsts = [str(rows[0]["id"]) for rows in BLOCKS]  # type: ignore[index]
    assert "".join(key for key, may in zip(firsts, found, strict=True) if may) == expected


def test_boolean_bounds() -> None:
    stats = stats_of(ROWS[0:1], ROWS[1:2], ROWS[3:4], columns="a5")
    for where, expected in {
        ("sold", "Eq", True): [True, False, False],
        ("sold", "NotEq", True): [False, True, False],
        ("sold", "In", (False, True)): [True, True, False],
    }.items():
        assert parse_filter(where, SCHEMA).may_match(stats).tolist() == expected


def test_long_strings_have_wider_bounds() -> None:
    low, high = "m" * 100, "\U0010ffff" * 40
    stats = stats_of(
        [{"id": "a", "name": low}, {"id": "b", "name": high}], [{"id": "c", "name": low}]
    )
    for where, expected in [
        (("name", "Eq", low), [True, True]),
        (("name", "Eq", "m" * 64), [True, True]),  # as far as the bounds can tell
        (("name", "NotEq", low), [True, True]),
        (("name", "Eq", "m" * 63), [False, False]),
        (("name", "Gt", "n" * 64), [True, False]),
    ]:
        assert parse_filter(where, SCHEMA).may_match(stats).tolist() == expected


def test_columns_that_a_segment_lacks_are_null() -> None:
    stats = stats_of(*BLOCKS, columns="a2")
    for where in [("name", "Eq", "x"), ("name", "NotEq", "x"), ("tags", "NotContains", "x")]:
        found = parse_filter(where, SCHEMA)
        assert found.may_match(stats).tolist() == [True] * 4
        assert found.may_match(stats, frozenset({"a1", "a9"})).tolist() == [False] * 4
    is_null = parse_filter(("name", "IsNull"), SCHEMA)
    assert is_null.may_match(stats, frozenset({"a1"})).tolist() == [True] * 4


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("stock", "Eq", 1), (b"", None)),
        (("id", "Eq", "a"), (b"a", b"a\0")),
        (("id", "In", ["é", "a"]), (b"a", "é\0".encode())),
        (("id", "In", []), (b"", b"")),
        (("id", "Lt", "b"), (b"", b"b")),
        (("id", "Lte", "b"), (b"", b"b\0")),
        (("id", "Gt", "b"), (b"b\0", None)),
        (("id", "Gte", "b"), (b"b", None)),
        (("id", "NotEq", "b"), (b"", None)),
        (("id", "Glob", "user/*"), (b"user/", b"user0")),
        (("id", "Glob", "*x"), (b"", None)),
        (("id", "Glob", "\U0010ffff*"), (b"\xf4\x8f\xbf\xbf", b"\xf4\x8f\xbf\xc0")),
        (("id", "IGlob", "user*"), (b"", None)),
        (("And", [("id", "Gte", "b"), ("id", "Lt", "d"), ("stock", "Eq", 1)]), (b"b", b"d")),
        (("And", [("id", "Gte", "x"), ("id", "Lt", "d")]), (b"x", b"x")),
        (("Or", [("id", "Eq", "a"), ("id", "Glob", "c*")]), (b"a", b"d")),
        (("Or", [("id", "Eq", "a"), ("stock", "Eq", 1)]), (b"", None)),
        (("Or", []), (b"", b"")),
        (("And", []), (b"", None)),
        (("Not", ("id", "Lt", "b")), (b"", None)),
    ],
    ids=repr,
)
def test_key_range(where: object, expected: tuple[bytes, bytes | None]) -> None:
    found = parse_filter(where, SCHEMA)  # type: ignore[arg-type]
    assert isinstance(found, Filter)
    assert found.key_range() == expected


@pytest.mark.parametrize(
    "value",
    [
        "2024-01-01T00:00:00.1234567",
        pd.Timestamp("2024-01-01T00:00:00.123456500"),
        np.datetime64("2024-01-01T00:00:00.123456500", "ns"),
    ],
)
def test_times_below_a_microsecond_are_refused_and_not_rounded(value: object) -> None:
    schema = Schema.EMPTY.added({"t": Type.parse("datetime")})
    with pytest.raises(InvalidInputError, match="microseconds"):
        parse_filter(("t", "Lt", value), schema)
    assert parse_filter(("t", "Lt", str(value)[:26]), schema)


FAR = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-5)))
EARLY = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))
BEYOND = pa.scalar(2**62, pa.timestamp("us"))


@pytest.mark.parametrize(
    "value",
    [FAR, FAR.isoformat(), EARLY, BEYOND, np.datetime64("20000", "Y"), np.datetime64(2**62, "s")],
    ids=repr,
)
def test_times_outside_of_the_years_1_to_9999_are_refused(value: object) -> None:
    for where in (("made", "Lt", value), ("made", "In", [value]), ("days", "Contains", value)):
        with pytest.raises(InvalidInputError, match="years 1 to 9999"):
            parse_filter(where, SCHEMA)


def test_the_first_and_the_last_time_there_is_can_be_asked_for_and_shown() -> None:
    for last in (datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)):
        found = parse_filter(("made", "Lte", last), SCHEMA)
        assert last.isoformat() in str(found)


@pytest.mark.parametrize("unit", ["D", "s", "us", "ns", "ps"])
def test_times_of_numpy_are_times_in_every_unit(unit: Literal["D", "s", "us", "ns", "ps"]) -> None:
    time = np.datetime64("1970-01-02", unit)
    expected = parse_filter(("made", "Eq", "1970-01-02"), SCHEMA)
    assert parse_filter(("made", "Eq", time), SCHEMA) == expected
    assert parse_filter(("made", "In", np.array([time])), SCHEMA) == expected
    for nothing in (np.datetime64("NaT", unit), pd.NaT):
        with pytest.raises(InvalidInputError, match="a datetime, a date"):
            parse_filter(("made", "Eq", nothing), SCHEMA)
