"""The types of attributes: their text, and the Arrow types they are stored and shown in."""

from __future__ import annotations

import pyarrow as pa
import pytest

from reef.documents.types._type import DIMENSION_MAX, Type
from reef.errors import InvalidInputError

SCALARS = ["string", "int64", "uint64", "float64", "bool", "datetime", "uuid", "bytes"]
EVERY = [
    *SCALARS,
    *(f"[]{name}" for name in SCALARS),
    "json",
    "sparse",
    "vector[3]",
    "vector[3]f16",
]


@pytest.mark.parametrize("text", EVERY)
def test_a_type_is_its_text(text: str) -> None:
    type = Type.parse(text)

    assert type.text == str(type) == text
    assert type == Type.parse(text)
    assert hash(type) == hash(Type.parse(text))
    assert len({Type.parse(other) for other in EVERY}) == len(EVERY)


@pytest.mark.parametrize(
    ("text", "kind", "physical"),
    [
        ("string", "string", pa.string()),
        ("datetime", "datetime", pa.timestamp("us", tz="UTC")),
        ("uuid", "uuid", pa.binary(16)),
        ("json", "json", pa.string()),
        ("[]uuid", "list", pa.list_(pa.binary(16))),
        ("vector[128]", "vector", pa.list_(pa.float32(), 128)),
        ("vector[128]f32", "vector", pa.list_(pa.float32(), 128)),
        ("vector[2]f16", "vector", pa.list_(pa.float16(), 2)),
    ],
)
def test_what_lies_in_the_log(text: str, kind: str, physical: pa.DataType) -> None:
    assert Type.parse(text).kind == kind
    assert Type.parse(text).physical == physical


def test_parts_of_a_type() -> None:
    assert Type.parse("[]int64").item == Type.parse("int64")
    assert Type.parse("int64").item is None
    assert Type.vector(7, half=True) == Type.parse("vector[7]f16")
    assert Type.vector(7).dimension == 7
    assert Type.parse("vector[7]f32").text == "vector[7]"
    assert Type.parse("uuid").logical == pa.uuid()
    assert Type.parse("json").logical == pa.string()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "text",
        "[]json",
        "[][]int64",
        "[]vector[2]",
        "vector",
        "vector[0]",
        "vector[01]",
        "vector[65536]",
        "vector[-1]",
        "vector[3]f64",
        "vector[3] ",
        "String",
        "[]",
        None,
        3,
    ],
)
def test_what_is_no_type_is_told_what_is(text: object) -> None:
    with pytest.raises(InvalidInputError, match=r"string, int64.*vector\[128\]f16"):
        Type.parse(text)  # type: ignore[arg-type]


def test_the_largest_dimension() -> None:
    assert Type.vector(DIMENSION_MAX).dimension == 65_535
    with pytest.raises(InvalidInputError):
        Type.vector(DIMENSION_MAX + 1)


@pytest.mark.parametrize(
    ("arrow", "text"),
    [
        (pa.string_view(), "string"),
        (pa.dictionary(pa.int8(), pa.large_string()), "string"),
        (pa.int8(), "int64"),
        (pa.uint32(), "int64"),
        (pa.uint64(), "uint64"),
        (pa.float16(), "float64"),
        (pa.bool_(), "bool"),
        (pa.timestamp("ns"), "datetime"),
        (pa.date32(), "datetime"),
        (pa.uuid(), "uuid"),
        (pa.binary(16), "bytes"),
        (pa.large_binary(), "bytes"),
        (pa.json_(), "json"),
        (pa.list_(pa.int32()), "[]int64"),
        (pa.large_list(pa.string_view()), "[]string"),
        (pa.list_(pa.uuid()), "[]uuid"),
        (pa.list_(pa.float32()), "[]float64"),
        (pa.list_(pa.float32(), 4), "vector[4]"),
        (pa.list_(pa.float16(), 4), "vector[4]f16"),
        (pa.list_(pa.float64(), 2), "[]float64"),  # a place on a map must keep its digits
        (pa.list_(pa.int8(), 4), "[]int64"),
        (pa.list_(pa.list_(pa.int8())), "json"),
        (pa.struct([("a", pa.int8())]), "json"),
        (pa.map_(pa.string(), pa.int8()), "json"),
        (Type.parse("sparse").physical, "sparse"),
        (
            pa.struct([("values", pa.list_(pa.float64())), ("indices", pa.list_(pa.int64()))]),
            "sparse",
        ),
        (pa.struct([("values", pa.list_(pa.string())), ("indices", pa.list_(pa.int64()))]), "json"),
    ],
)
def test_the_type_of_arrow_values(arrow: pa.DataType, text: str) -> None:
    assert Type.of_arrow(arrow).text == text


@pytest.mark.parametrize(
    "arrow", [pa.null(), pa.decimal128(9, 2), pa.duration("s"), pa.time64("us")]
)
def test_arrow_types_without_one_are_refused(arrow: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match="Arrow type"):
        Type.of_arrow(arrow)


@pytest.mark.parametrize("text", EVERY)
def test_shown_types_are_read_as_what_they_were(text: str) -> None:
    type = Type.parse(text)
    expected = {"json": "string", "[]uuid": "[]bytes"}.get(text, text)  # known to the schema only

    assert Type.of_arrow(type.logical).text == expected
