"""The kinds of values, put together from pieces, tell the type that one batch of all of them has."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.documents.input import read_values
from reef.documents.types import InputColumn
from reef.errors import InvalidInputError
from reef.spark.files._json_kinds import Kinds

integers = st.sampled_from([0, 1, -1, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1])
numbers = integers | st.sampled_from([0.5, -2.0, 1e300])
scalars = st.none() | st.booleans() | numbers | st.sampled_from(["", "x"])
lists = st.lists(numbers, max_size=3) | st.lists(
    scalars | st.lists(scalars, max_size=1), max_size=3
)
objects = st.sampled_from(
    [
        {},
        {"a": 1},
        {"indices": "x"},
        {"indices": [1], "values": [0.5]},
        {"indices": "x", "values": [0.5]},
        {"indices": [1], "values": ["x"]},
    ]
)
# Columns of one kind for the most part: others are refused, and tell little.
columns = st.one_of(
    *(
        st.lists(one | st.none(), max_size=6)
        for one in (st.booleans(), integers, numbers, st.just("x"), lists, objects)
    ),
    st.lists(scalars | lists | objects, max_size=6),
)


@given(columns, st.integers(0, 6), st.sampled_from(["a", "vector"]))
def test_kinds_tell_the_type_that_a_batch_has(values: list[Any], at: int, name: str) -> None:
    pieces = [Kinds.of(values[:at]), Kinds.of(values[at:])]
    sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=Kinds) for one in pieces]
    kinds = sent[0].merged(sent[1])
    assert kinds == Kinds.of(values)
    try:
        read = read_values(values, None, InputColumn(name))
    except InvalidInputError:
        with pytest.raises(InvalidInputError):
            # By the kinds alone, or with the type that they tell.
            read_values(values, kinds.type(name), InputColumn(name))
        return
    assert kinds.type(name) == (None if read is None else read.type)
