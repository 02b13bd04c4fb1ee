"""Schemas: ids that stay, names that may change, and the Arrow schema that keeps both."""

from __future__ import annotations

import pyarrow as pa
import pytest

from reef.documents.types._schema import ATTRIBUTES_MAX, Attribute, Schema
from reef.documents.types._type import Type
from reef.errors import InvalidInputError, InvariantError
from reef.format import field_id

STRING, INT = Type.parse("string"), Type.parse("int64")
SCHEMA = Schema().added({"name": STRING, "größe": INT, "v": Type.vector(3)})


def test_attributes_get_ids_in_order() -> None:
    assert SCHEMA.attributes == (
        Attribute(1, "name", STRING),
        Attribute(2, "größe", INT),
        Attribute(3, "v", Type.vector(3)),
    )
    assert SCHEMA.next_id == 4
    assert SCHEMA.names == ("name", "größe", "v")
    assert SCHEMA.as_dict() == {"name": "string", "größe": "int64", "v": "vector[3]"}
    assert SCHEMA.attribute("v").column == "a3"
    assert SCHEMA.find("w") is None
    assert Schema.EMPTY == Schema() != SCHEMA


def test_an_id_is_never_given_out_twice() -> None:
    again = SCHEMA.dropped(["v"]).added({"v": STRING})

    assert again.attribute("v") == Attribute(4, "v", STRING)
    assert again.next_id == 5
    assert SCHEMA.dropped(SCHEMA.names) == Schema((), 4)


def test_a_rename_is_only_a_name() -> None:
    renamed = SCHEMA.renamed({"name": "größe", "größe": "name"})

    assert renamed.attribute("größe") == Attribute(1, "größe", STRING)
    assert renamed.attribute("name") == Attribute(2, "name", INT)
    assert renamed.next_id == SCHEMA.next_id


@pytest.mark.parametrize(
    "change", [{"name": "v"}, {"x": "y"}, {"name": "id"}, {"v": "w", "name": "w"}]
)
def test_renames_that_cannot_be(change: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        SCHEMA.renamed(change)


def test_unknown_attributes_are_told_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"'nam'.*name, größe, v"):
        SCHEMA.attribute("nam")
    with pytest.raises(InvalidInputError, match="none yet"):
        Schema().attribute("x")
    with pytest.raises(InvalidInputError, match="'w'"):
        SCHEMA.dropped(["v", "w"])
    with pytest.raises(InvalidInputError, match="a list of names"):
        SCHEMA.dropped("v")


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'name'.*as string"):
        SCHEMA.added({"name": STRING})


@pytest.mark.parametrize(
    "name",
    ["", "id", "_x", "$x", "a\nb", "a\x7f", "a\x85", "é" * 65, "x" * 129, "\ud800", None, 3],
)
def test_names_that_no_attribute_may_have(name: object) -> None:
    with pytest.raises(InvalidInputError, match="attribute"):
        Schema().added({name: STRING})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "name", ["x", "ID", "x_y", "a b", "é" * 64, "x" * 128, "日本", "x.y", "a\u00a0b"]
)
def test_names_that_attributes_may_have(name: str) -> None:
    assert Schema().added({name: STRING}).names == (name,)


def test_there_is_a_largest_schema() -> None:
    full = Schema().added({f"n{i}": INT for i in range(ATTRIBUTES_MAX)})

    assert Schema.from_arrow(full.to_arrow()) == full
    with pytest.raises(InvalidInputError, match="1024"):
        full.added({"more": INT})
    assert full.dropped(["n0"]).added({"more": INT}).attribute("more").id == ATTRIBUTES_MAX + 1


def test_arrow_and_back() -> None:
    for schema in (Schema(), SCHEMA, SCHEMA.dropped(["name"]).renamed({"v": "name"})):
        arrow = schema.to_arrow()

        assert Schema.from_arrow(arrow) == schema
        assert Schema.from_arrow(pa.ipc.read_schema(arrow.serialize())) == schema
        assert arrow.names == [attribute.column for attribute in schema.attributes]
        assert [field_id(field) for field in arrow] == [a.id for a in schema.attributes]
        assert all(field.nullable for field in arrow)


def test_every_type_survives_arrow() -> None:
    texts = ["[]uuid", "[]datetime", "sparse", "json", "bool", "vector[5]f16", "bytes", "uint64"]
    schema = Schema().added({f"n{i}": Type.parse(text) for i, text in enumerate(texts)})

    assert Schema.from_arrow(schema.to_arrow()).as_dict() == schema.as_dict()


def nonsense() -> list[pa.Schema]:
    arrow = SCHEMA.to_arrow()
    first = arrow.field(0)
    return [
        arrow.remove_metadata(),
        arrow.with_metadata({**arrow.metadata, b"reef:face": b"kv"}),
        arrow.with_metadata({**arrow.metadata, b"reef:next-id": b"x"}),
        arrow.with_metadata({**arrow.metadata, b"reef:next-id": b"3"}),
        arrow.append(first),
        arrow.set(0, first.remove_metadata()),
        arrow.set(0, first.with_name("a9")),
        arrow.set(0, first.with_type(pa.int64())),
        arrow.set(0, first.with_nullable(False)),
        arrow.set(0, first.with_metadata({**first.metadata, b"reef:name": b"v"})),
        arrow.set(0, first.with_metadata({**first.metadata, b"reef:name": b"_v"})),
        arrow.set(0, first.with_metadata({**first.metadata, b"reef:name": b"\xff"})),
        arrow.set(0, first.with_metadata({**first.metadata, b"reef:type": b"text"})),
        arrow.set(0, first.with_metadata({**first.metadata, b"reef:field-id": b"2"})),
    ]


@pytest.mark.parametrize("i", range(14))
def test_an_arrow_schema_that_no_schema_made(i: int) -> None:
    assert len(nonsense()) == 14
    with pytest.raises(InvariantError):
        Schema.from_arrow(nonsense()[i])
