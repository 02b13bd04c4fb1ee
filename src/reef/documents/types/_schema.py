"""The schema of a namespace of documents: names and types of attributes, under ids that never change.

In the log and in segments an attribute is the column `a{id}`. A rename changes only the name of an
id, a drop only forgets it; an id is never given out twice and its type never changes. So rows that
were written under an older schema are read by column name: what they lack is null.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pyarrow as pa

from reef.documents.types._type import Type
from reef.errors import InvalidInputError, InvariantError, StalePlanError
from reef.format import field_id, with_field_id

ATTRIBUTES_MAX = 1024
ATTRIBUTE_NAME_BYTES_MAX = 128

_FACE, _NEXT_ID = b"reef:face", b"reef:next-id"
_NAME, _TYPE = b"reef:name", b"reef:type"
_NAME_RULE = (
    f"1 to {ATTRIBUTE_NAME_BYTES_MAX} bytes of UTF-8 without control characters, "
    "not 'id' and not starting with '_' or '$'"
)


@dataclass(frozen=True, slots=True)
class Attribute:
    """A name and a type under a number that stays."""

    id: int
    name: str
    type: Type

    @property
    def column(self) -> str:
        """The column that holds it in the log and in segments."""
        return f"a{self.id}"


ID_ATTRIBUTE = Attribute(0, "id", Type.parse("string"))
"""The id, which is the key. No attribute of a schema has the number 0."""


@dataclass(frozen=True)
class Schema:
    """The attributes of a namespace, in the order they were added; `next_id` was never given out."""

    EMPTY: ClassVar[Schema]

    attributes: tuple[Attribute, ...] = ()
    next_id: int = 1

    @cached_property
    def _by_name(self) -> dict[str, Attribute]:
        return {attribute.name: attribute for attribute in self.attributes}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def find(self, name: str) -> Attribute | None:
        """Return the attribute called `name`, or None."""
        return self._by_name.get(name)

    def attribute(self, name: str) -> Attribute:
        """Return the attribute called `name`. Raises InvalidInputError, which says what there is."""
        attribute = self._by_name.get(name)
        if attribute is None:
            known = ", ".join(self._by_name) or "none yet"
            raise InvalidInputError(f"there is no attribute {name!r}; the attributes are: {known}")
        return attribute

    def attribute_or_id(self, name: str) -> Attribute:
        """Return the attribute called `name`, or the id. Raises InvalidInputError."""
        return ID_ATTRIBUTE if name == ID_ATTRIBUTE.name else self.attribute(name)

    def added(self, types: Mapping[str, Type]) -> Schema:
        """Return this schema with new attributes. Raises InvalidInputError if a name is taken."""
        for name in types:
            check_attribute_name(name)
            if name in self._by_name:
                raise InvalidInputError(
                    f"attribute {name!r} exists already, as "
                    f"{self._by_name[name].type}: choose another name"
                )
        new = (Attribute(self.next_id + i, *item) for i, item in enumerate(types.items()))
        attributes = (*self.attributes, *new)
        if len(attributes) > ATTRIBUTES_MAX:
            raise InvalidInputError(
                f"the namespace would have {len(attributes)} attributes: expected at "
                f"most {ATTRIBUTES_MAX}"
            )
        return Schema(attributes, self.next_id + len(types))

    def renamed(self, names: Mapping[str, str]) -> Schema:
        """Return this schema with other names for some attributes; names may be swapped.

        Raises InvalidInputError for an attribute that is not there or a name that is taken.
        """
        for old, new in names.items():
            self.attribute(old)
            check_attribute_name(new)
        attributes = tuple(
            Attribute(a.id, names.get(a.name, a.name), a.type) for a in self.attributes
        )
        taken: set[str] = set()
        for attribute in attributes:
            if attribute.name in taken:
                raise InvalidInputError(
                    f"two attributes would have the name {attribute.name!r}: choose "
                    "another for one of them"
                )
            taken.add(attribute.name)
        return Schema(attributes, self.next_id)

    def dropped(self, names: Iterable[str]) -> Schema:
        """Return this schema without some attributes. Raises InvalidInputError for unknown ones."""
        if isinstance(names, str):
            raise InvalidInputError.of("drop", names, "a list of names of attributes")
        gone = {self.attribute(name).id for name in names}
        return Schema(tuple(a for a in self.attributes if a.id not in gone), self.next_id)

    def with_declared(self, declared: Mapping[str, Type]) -> Schema:
        """Return this schema with those of `declared` that it lacks.

        Raises InvalidInputError for one that has another type.
        """
        for name, type in declared.items():
            attribute = self.find(name)
            if attribute is not None and attribute.type != type:
                raise InvalidInputError(
                    f"schema gives attribute {name!r} the type {type.text}, but it is "
                    f"{attribute.type} already: give that, or leave it out"
                )
        return self.added({n: t for n, t in declared.items() if self.find(n) is None})

    def with_loaded(self, base: Schema, loaded: Schema) -> Schema:
        """Return this schema with what `loaded` adds to `base`, under the same numbers.

        Raises StalePlanError if those numbers or names were given to others.
        """
        new = tuple(a for a in loaded.attributes if a.id >= base.next_id)
        if all(attribute in self.attributes for attribute in new):
            return self
        if self.next_id == base.next_id and all(self.find(a.name) is None for a in new):
            wider = self.added({a.name: a.type for a in new})
            if wider.attributes[len(self.attributes) :] == new:
                return wider
        raise StalePlanError(
            f"the schema changed after a load was planned that adds {', '.join(a.name for a in new)}; "
            "nothing was written: start the load again"
        )

    def as_dict(self) -> dict[str, str]:
        """Return the text of each attribute's type, by name."""
        return {attribute.name: attribute.type.text for attribute in self.attributes}

    def to_arrow(self) -> pa.Schema:
        """Return the columns as they lie in the log and in segments; `from_arrow` reads it back."""
        return self._arrow

    @cached_property
    def _arrow(self) -> pa.Schema:
        fields = [
            with_field_id(
                pa.field(
                    a.column, a.type.physical, metadata={_NAME: a.name.encode(), _TYPE: a.type.text}
                ),
                a.id,
            )
            for a in self.attributes
        ]
        return pa.schema(fields, {_FACE: b"documents", _NEXT_ID: b"%d" % self.next_id})

    @staticmethod
    def from_arrow(arrow: pa.Schema) -> Schema:
        """Return the schema that `to_arrow` made `arrow` of. Raises InvariantError if none did."""
        metadata = arrow.metadata or {}
        next_id = _field_number(metadata.get(_NEXT_ID, b""))
        if metadata.get(_FACE) != b"documents" or next_id is None:
            raise InvariantError(f"this is not the schema of documents: metadata {metadata!r}")
        attributes = tuple(_attribute(column) for column in arrow)
        schema = Schema(attributes, next_id)
        ids = {attribute.id for attribute in attributes}
        if len(ids) < len(attributes) or len(schema.names) < len(attributes):
            raise InvariantError(f"an id or a name is there twice in the schema: {attributes}")
        if not all(1 <= id < next_id for id in ids) or len(attributes) > ATTRIBUTES_MAX:
            raise InvariantError(f"ids of the schema are not from 1 to {next_id - 1}: {attributes}")
        return schema


Schema.EMPTY = Schema()


def check_attribute_name(name: str) -> str:
    """Return `name` if an attribute may be called that. Raises InvalidInputError."""
    problem = not isinstance(name, str) or not name or name == "id" or name[0] in "_$"
    if problem or len(name) > ATTRIBUTE_NAME_BYTES_MAX or not _is_plain(name):
        raise InvalidInputError.of("attribute", name, _NAME_RULE)
    return name


def _is_plain(name: str) -> bool:
    if name.isascii():
        return name.isprintable()
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return False
    is_short = len(encoded) <= ATTRIBUTE_NAME_BYTES_MAX
    return is_short and not any(unicodedata.category(char) == "Cc" for char in name)


def _attribute(column: pa.Field) -> Attribute:
    metadata = column.metadata or {}
    id = field_id(column)
    try:
        name = check_attribute_name(metadata.get(_NAME, b"").decode())
        type = Type.parse(metadata.get(_TYPE, b"").decode())
    except (InvalidInputError, UnicodeDecodeError) as error:
        raise InvariantError(f"column {column.name!r} is not an attribute: {error}") from error
    if id is None or column.name != f"a{id}" or column.type != type.physical or not column.nullable:
        raise InvariantError(
            f"column {column.name!r} ({column.type}, id {id}) cannot hold attribute {name!r} of type {type}"
        )
    return Attribute(id, name, type)


def schema_of_columns(columns: Sequence[pa.Field]) -> Schema | None:
    """Return a schema of the columns that rows have; None: there are none, or not of documents.

    Of attributes of one name it has the newest. New ones get numbers above theirs.
    """
    if not columns or any(_NAME not in (column.metadata or {}) for column in columns):
        return None
    ordered = sorted(map(_attribute, columns), key=lambda attribute: attribute.id)
    newest = {attribute.name: attribute for attribute in ordered}
    return Schema(tuple(newest.values()), ordered[-1].id + 1)


def _field_number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and 1 <= len(text) <= 10 else None
