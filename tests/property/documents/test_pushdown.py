"""Expressions of Arrow as filters: the same rows, or more of them if something is left to Arrow."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reef.documents.filter import parse_filter
from reef.documents.query._pushdown import pushed_filter
from tests.support.documents.document_rows import schema_of

SCHEMA = schema_of(n="int64", price="float64", name="string", on="bool", ts="datetime", j="json")
DAYS = [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
VALUES: dict[str, list[Any]] = {
    "id": ["a", "b", "c", "d"],
    "n": [-1, 0, 1, 2],
    "price": [0.5, 1.0, 2.0],
    "name": ["", "x", "it's", 'a "b"'],
    "on": [True, False],
    "ts": DAYS,
    "j": ["1", "[2]"],
}
TYPES = {"id": pa.string(), **{a.name: a.type.physical for a in SCHEMA.attributes}}


def _value(name: str) -> st.SearchStrategy[pa.Scalar]:
    return st.sampled_from(VALUES[name]).map(lambda value: pa.scalar(value, TYPES[name]))


def _compared(name: str) -> st.SearchStrategy[pc.Expression]:
    field = pc.field(name)
    orders = st.sampled_from(
        ["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"]
        if name != "on"
        else ["__eq__", "__ne__"]
    )
    # As DuckDB says it: a null is in no list, and is not out of it.
    among = st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=3).map(
        lambda some: pc.if_else(
            field.is_valid(), field.isin(pa.array(some, TYPES[name])), pa.scalar(None, pa.bool_())
        )
    )
    return st.one_of(
        st.builds(lambda order, value: getattr(field, order)(value), orders, _value(name)),
        among,
        st.just(field.is_null()),
        st.just(field.is_valid()),
        # What no filter says.
        st.just(field == field),
        st.just(field.isin(pa.array([VALUES[name][0]], TYPES[name]))),
    )


expressions = st.recursive(
    st.sampled_from(sorted(VALUES)).flatmap(_compared),
    lambda parts: st.one_of(
        st.builds(lambda a, b: a & b, parts, parts),
        st.builds(lambda a, b: a | b, parts, parts),
        st.builds(lambda a: ~a, parts),
    ),
    max_leaves=8,
)
documents = st.lists(
    st.fixed_dictionaries(
        {
            name: st.one_of(st.none(), st.sampled_from(values))
            for name, values in VALUES.items()
            if name != "id"
        }
    ),
    max_size=20,
)


@settings(max_examples=300, deadline=None)
@given(documents=documents, expression=expressions)
def test_a_filter_says_what_the_expression_says_or_less(
    documents: list[dict[str, Any]], expression: pc.Expression
) -> None:
    ids = [VALUES["id"][i % 4] for i in range(len(documents))]
    table = pa.table(
        {
            "row": pa.array(range(len(documents)), pa.int64()),
            "id": pa.array(ids, pa.string()),
            **{name: pa.array([d[name] for d in documents], TYPES[name]) for name in SCHEMA.names},
        }
    )
    expected = set(table.filter(expression).column("row").to_pylist())
    pushed = pushed_filter(expression, SCHEMA)
    through = set(range(len(documents)))
    if pushed.where is not None:
        stored = pa.RecordBatch.from_pydict(
            {
                "_key": table.column("id").combine_chunks().cast(pa.binary()),
                **{a.column: table.column(a.name).combine_chunks() for a in SCHEMA.attributes},
            }
        )
        mask = parse_filter(pushed.where, SCHEMA).mask(stored).to_pylist()
        through = {row for row, is_in in enumerate(mask) if is_in}
    if pushed.rest is None:
        assert through == expected
    else:
        assert pushed.rest.equals(expression)
        assert through >= expected
    # The columns it names are enough to evaluate it.
    few = table.select(["row", *sorted(pushed.names)])
    assert set(few.filter(expression).column("row").to_pylist()) == expected


def test_what_is_not_understood_is_left_to_arrow(caplog: pytest.LogCaptureFixture) -> None:
    nested = pc.field("n", "inner") == 1
    pushed = pushed_filter(nested, SCHEMA)
    assert "cannot read the Arrow expression" in caplog.text
    assert (pushed.where, pushed.names) == (None, frozenset({"id", *SCHEMA.names}))
    assert pushed.rest is nested
    alone = pushed_filter(pc.field("on"), SCHEMA)
    assert (alone.where, alone.names) == (None, frozenset({"on"}))
