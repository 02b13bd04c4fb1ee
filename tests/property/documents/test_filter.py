"""Filters agree with plain three-valued logic over dicts, and bounds never hide a match."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.documents.filter import Incoming, parse_filter
from reef.format import bounds_of, ordered_columns
from tests.support.documents.document_model import COMPARE
from tests.support.documents.document_rows import schema_of

Row = dict[str, Any]

KINDS = {
    "text": "string",
    "whole": "int64",
    "count": "uint64",
    "real": "float64",
    "flag": "bool",
    "time": "datetime",
    "token": "uuid",
    "raw": "bytes",
    "tags": "[]string",
    "reals": "[]float64",
}
SCHEMA = schema_of(**KINDS)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# few values, so that they meet; long ones, so that bounds are cut
_long = st.sampled_from(["ab" * 40, "ab" * 40 + "c", "\U0010ffff" * 20])
texts = st.text("abé*'\n", max_size=3) | _long
floats = st.sampled_from([0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), 2.0**60])
ids = st.text("abcé", min_size=1, max_size=3) | st.just("b" * 200)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": texts,
    "whole": st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1]),
    "count": st.integers(0, 3) | st.just(2**64 - 1),
    "real": floats,
    "flag": st.booleans(),
    "time": st.integers(-3, 3).map(lambda n: EPOCH + timedelta(microseconds=n)),
    "token": st.integers(0, 3).map(lambda n: UUID(int=n)),
    "raw": st.binary(max_size=2) | st.just(b"\xff" * 70),
    "id": ids,
}
stored: dict[str, st.SearchStrategy[Any]] = {
    **{name: VALUES[name] for name in KINDS if name in VALUES},
    "real": floats | st.just(float("nan")),
    "tags": st.lists(texts, max_size=3),
    "reals": st.lists(floats | st.just(float("nan")), max_size=3),
}
EVERYTHING = ("id", *KINDS)
# one attribute alone meets its own corners far more often than one of eleven
subjects = st.sampled_from([EVERYTHING, *((name,) for name in EVERYTHING)])


def documents(names: tuple[str, ...]) -> st.SearchStrategy[Row]:
    present = {name: st.none() | stored[name] for name in names if name != "id"}
    return st.fixed_dictionaries({"id": ids}, optional=present)


@st.composite
def conditions(draw: st.DrawFn, names: tuple[str, ...]) -> tuple[Any, ...]:
    name = draw(st.sampled_from(names))
    if name in ("tags", "reals"):
        items = texts if name == "tags" else floats
        if draw(st.booleans()):
            return name, "ContainsAny", draw(st.lists(items, max_size=3))
        return name, draw(st.sampled_from(["Contains", "NotContains"])), draw(items)
    values = VALUES[name]
    operators = ["Eq", "NotEq", "In", "NotIn", "IsNull"]
    operators += ["Lt", "Lte", "Gt", "Gte"] if name != "flag" else []
    operators += ["Contains", "ContainsAny", "Glob", "NotGlob"] if name in ("text", "id") else []
    kind = draw(st.sampled_from(operators))
    if kind == "IsNull":
        return name, kind
    if kind in ("In", "NotIn", "ContainsAny"):
        return name, kind, draw(st.lists(values, max_size=4))
    if kind in ("Glob", "NotGlob"):
        return name, kind, draw(st.sampled_from(["a*", "*a", "*é*", "?b*", "[ab]*", "[!a]?", "ab"]))
    if kind in COMPARE and name != "id" and draw(st.booleans()):
        return name, kind, Incoming(name)
    if kind in COMPARE and name == "whole" and draw(st.booleans()) and "Eq" not in kind:
        return name, kind, draw(st.sampled_from([-0.5, 0.5, 2.5]))
    return name, kind, draw(values)


def filters(names: tuple[str, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.recursive(
        conditions(names),
        lambda inner: st.one_of(
            st.tuples(st.just("Not"), inner),
            st.tuples(st.sampled_from(["And", "Or"]), st.lists(inner, max_size=3)),
        ),
        max_leaves=6 if len(names) > 1 else 2,
    )


def truth(where: tuple[Any, ...], row: Row, incoming: Row) -> bool | None:
    """What a filter says of one row, by SQL's rules, in plain Python."""
    if where[0] in ("And", "Or") and isinstance(where[1], list):
        found = [truth(part, row, incoming) for part in where[1]]
        decides = where[0] == "Or"
        if decides in found:
            return decides
        return None if None in found else not decides
    if where[0] == "Not":
        inner = truth(where[1], row, incoming)
        return None if inner is None else not inner
    name, kind, *rest = where
    held = row.get(name)
    if kind == "IsNull":
        return held is None
    given = incoming.get(rest[0].name) if isinstance(rest[0], Incoming) else rest[0]
    if held is None or given is None:
        return None
    return condition_holds(kind, held, given)


def condition_holds(kind: str, held: Any, given: Any) -> bool:
    if kind in COMPARE:
        return COMPARE[kind](held, given)
    is_negated, kind = kind.startswith("Not"), kind.removeprefix("Not")
    if kind == "In":
        holds = any(held == value for value in given)
    elif kind == "Glob":
        pattern = given.replace("*", ".*").replace("?", ".").replace("[!", "[^")
        holds = re.fullmatch(pattern, held, re.DOTALL) is not None
    else:
        wanted = given if kind == "ContainsAny" else [given]
        if isinstance(held, str):
            holds = any(value in held for value in wanted)
        else:
            holds = any(item == value for item in held for value in wanted)
    return holds != is_negated


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    columns = {"_key": pa.array([row["id"].encode() for row in rows], pa.binary())}
    for attribute in SCHEMA.attributes:
        values = [row.get(attribute.name) for row in rows]
        if attribute.type.kind == "uuid":
            values = [value.bytes if value else None for value in values]
        columns[attribute.column] = pa.array(values, attribute.type.physical)
    return pa.RecordBatch.from_pydict(columns)


def without_empty_columns(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, frozenset[str]]:
    """A batch as an older schema would have left it, and the columns that it lacks."""
    lacks = {name for name in batch.schema.names if batch[name].null_count == batch.num_rows}
    kept = [name for name in batch.schema.names if name not in lacks]
    return batch.select(kept), frozenset(lacks)


def cases_of_pairs(names: tuple[str, ...]) -> st.SearchStrategy[Any]:
    pairs = st.tuples(documents(names), documents(names))
    return st.tuples(filters(names), st.lists(pairs, min_size=1, max_size=8))


def cases_of_blocks(names: tuple[str, ...]) -> st.SearchStrategy[Any]:
    blocks = st.lists(documents(names), min_size=1, max_size=4)
    return st.tuples(filters(names), st.lists(blocks, min_size=1, max_size=4))


@given(subjects.flatmap(cases_of_pairs))
def test_a_mask_is_three_valued_logic(case: tuple[Any, list[tuple[Row, Row]]]) -> None:
    where, pairs = case
    rows, incoming = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    expected = [truth(where, *pair) is True for pair in pairs]
    found = parse_filter(where, SCHEMA)
    batch, given = batch_of(rows), batch_of(incoming)
    assert found.mask(batch, given).to_pylist() == expected
    assert found.mask(batch[1:], given[1:]).to_pylist() == expected[1:]
    older, _ = without_empty_columns(batch)
    assert found.mask(older, given).to_pylist() == expected


def stats_of(blocks: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The row index of the blocks, as far as filters read it."""
    system = [pa.field(name, pa.int64()) for name in ("key", "lsn", "kind")]
    ordered = ordered_columns(pa.schema([*system, *list(blocks[0].schema)[1:]]))
    found = {
        "key_first": pa.array([block["_key"][0].as_py() for block in blocks], pa.binary()),
        "key_last": pa.array([block["_key"][-1].as_py() for block in blocks], pa.binary()),
        "rows": pa.array([block.num_rows for block in blocks], pa.int64()),
    }
    for field in ordered:
        is_text = pa.types.is_string(field.type)
        low, high, nulls = zip(*(bounds_of(block[field.name]) for block in blocks), strict=True)
        kind = pa.binary() if is_text else field.type
        plain = [[v.as_py() if isinstance(v, pa.Scalar) else v for v in end] for end in (low, high)]
        found[f"min:{field.name}"] = pa.array(plain[0], kind)
        found[f"max:{field.name}"] = pa.array(plain[1], kind)
        found[f"nulls:{field.name}"] = pa.array(nulls, pa.int64())
    return pa.RecordBatch.from_pydict(found)


@given(subjects.flatmap(cases_of_blocks))
def test_bounds_never_hide_a_match(case: tuple[Any, list[list[Row]]]) -> None:
    where, groups = case
    blocks = [batch_of(sorted(rows, key=lambda row: row["id"])) for rows in groups]
    found = parse_filter(where, SCHEMA)
    low, high = found.key_range()
    may = found.may_match(stats_of(blocks))
    assert may.dtype == bool
    assert len(may) == len(blocks)
    for group, block, may_match in zip(groups, blocks, may.tolist(), strict=True):
        # a block may not be ruled out that matches for any incoming document
        matches = [row for row in group if any(truth(where, row, other) for other in group)]
        assert may_match or not matches
        assert all(low <= row["id"].encode() for row in matches)
        assert all(high is None or row["id"].encode() < high for row in matches)
        kept, lacks = without_empty_columns(block)
        assert found.may_match(stats_of([kept]), lacks)[0] or not matches


CORNERS: dict[str, list[Any]] = {
    "text": ["", "a", "ab", "ab" * 40, "ab" * 40 + "c", "\U0010ffff" * 20],
    "whole": [-(2**63), -1, 0, 1, 2**63 - 1],
    "count": [0, 1, 2**53 + 1, 2**64 - 1],
    "real": [float("-inf"), -0.0, 0.0, 1.5, float("inf"), float("nan")],
    "flag": [False, True],
    "time": [EPOCH - timedelta(microseconds=1), EPOCH, EPOCH + timedelta(microseconds=1)],
    "token": [UUID(int=0), UUID(int=1), UUID(int=2**128 - 1)],
    "raw": [b"", b"\x00", b"\xff" * 64, b"\xff" * 65],
}


@pytest.mark.parametrize("name", CORNERS)
def test_every_order_at_every_corner(name: str) -> None:
    values = [value for value in CORNERS[name] if value == value]
    groups = [
        [{"id": f"{n}", name: value} for n, value in enumerate(block)]
        for size in (1, 2)
        for block in itertools.combinations_with_replacement([None, *CORNERS[name]], size)
    ]
    rows = [row for group in groups for row in group]
    batch, stats = batch_of(rows), stats_of([batch_of(group) for group in groups])
    orders = ["Eq", "NotEq"] if name == "flag" else list(COMPARE)
    wheres: list[tuple[Any, ...]] = [(name, order, value) for order in orders for value in values]
    wheres += [(name, "In", list(pair)) for pair in itertools.combinations(values, 2)]
    if name == "whole":
        wheres += [(name, order, n + 0.5) for order in orders[2:] for n in (-2, -1, 0, 1)]
    for where in [*wheres, *(("Not", where) for where in wheres)]:
        found = parse_filter(where, SCHEMA)
        assert found.mask(batch).to_pylist() == [truth(where, row, {}) is True for row in rows]
        for group, may in zip(groups, found.may_match(stats).tolist(), strict=True):
            assert may or not any(truth(where, row, {}) for row in group), (where, group)


def sql_of(where: tuple[Any, ...]) -> str:
    if where[0] in ("And", "Or") and isinstance(where[1], list):
        if not where[1]:
            return "true" if where[0] == "And" else "false"
        return f" {where[0].lower()} ".join(f"({sql_of(part)})" for part in where[1])
    if where[0] == "Not":
        return f"not ({sql_of(where[1])})"
    name, kind, *rest = where
    if kind == "IsNull":
        return f'"{name}" is null'
    word = SQL_WORDS[kind]
    value = rest[0]
    if isinstance(value, list):
        return f"{name} {word} ({', '.join(map(literal_of, value))})"
    return f"{name} {word} {literal_of(value)}"


SQL_WORDS = {
    "Eq": "=",
    "NotEq": "!=",
    "Lt": "<",
    "Lte": "<=",
    "Gt": ">",
    "Gte": ">=",
    "In": "in",
    "NotIn": "NOT IN",
    "Contains": "contains",
    "NotContains": "not contains",
    "ContainsAny": "contains any",
    "Glob": "glob",
    "NotGlob": "not glob",
}


def literal_of(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bytes():
            return f"x'{value.hex()}'"
        case datetime():
            return f"timestamp '{value.isoformat()}'"
        case UUID():
            return f"uuid '{value}'"
        case Incoming(name):
            return f"incoming.{name}"
    return repr(value).replace("inf", "1e999")


@given(subjects.flatmap(filters))
def test_text_and_tuples_give_equal_filters(where: Any) -> None:
    found = parse_filter(where, SCHEMA)
    assert parse_filter(sql_of(where), SCHEMA) == found
    assert parse_filter(found.where, SCHEMA) == found
    assert parse_filter(sql_of(where), SCHEMA).encode() == found.encode()


pieces = st.lists(
    st.one_of(
        st.text("ab.\\^-\n+(", min_size=1, max_size=2).map(lambda text: (text, re.escape(text))),
        st.sampled_from([("*", ".*"), ("?", "."), ("[[]", r"\["), ("[*]", r"\*"), ("[]]", r"\]")]),
        st.sampled_from([("[a-c]", "[a-c]"), ("[!a-c]", "[^a-c]"), ("[^\\.]", "[^\\\\.]")]),
        st.sampled_from([("[a-]", r"[a\-]"), ("[!]]", r"[^\]]"), ("[&~é]", "[&~é]")]),
    ),
    max_size=5,
)


@given(pieces, st.lists(st.text("abA.\\-\n([]*é", max_size=4), max_size=30))
def test_globs(parts: list[tuple[str, str]], held: list[str]) -> None:
    glob, pattern = ("".join(part[i] for part in parts) for i in (0, 1))
    batch = batch_of([{"id": "x", "text": text} for text in held])
    for kind, flags in (("Glob", re.DOTALL), ("IGlob", re.DOTALL | re.IGNORECASE)):
        expected = [re.fullmatch(pattern, text, flags) is not None for text in held]
        assert parse_filter(("text", kind, glob), SCHEMA).mask(batch).to_pylist() == expected


@given(st.text("ab%_*?[\\!", max_size=6), st.lists(st.text("ab%_*?[\\!", max_size=5), max_size=20))
def test_like(pattern: str, held: list[str]) -> None:
    batch = batch_of([{"id": "x", "text": text} for text in held])
    quoted = re.escape(pattern).replace("%", ".*").replace("_", ".")
    expected = [re.fullmatch(quoted, text, re.DOTALL) is not None for text in held]
    found = parse_filter(f"text like '{pattern}'", SCHEMA)
    assert found.mask(batch).to_pylist() == expected
