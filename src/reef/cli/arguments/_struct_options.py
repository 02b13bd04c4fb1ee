"""An Options struct as options of a command, and back."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import typer

from reef.cli.arguments._parameters import parameter
from reef.errors import InvalidInputError
from reef.settings import BYTES_MAX, SECONDS_MAX, parse_bytes, parse_seconds

# Nouns of a size: an option `--memory SIZE` needs no unit, whereas `--task-bytes SIZE` would say
# nothing without.
_NOUNS_OF_SIZE = ("size", "memory")


@dataclass(frozen=True)
class _Field:
    """A field of a struct, or those of the same name of the structs within it."""

    name: str
    option: str
    type: Any
    help: str
    defaults: dict[str, object]
    """By the name of the struct within it that has the field; '': the struct itself."""

    @property
    def is_flag(self) -> bool:
        """Whether it is off unless the option is given."""
        return self.type is bool

    def annotation(self) -> object:
        """Return the annotation for Typer."""
        if self.is_flag:
            return Annotated[bool, typer.Option(self.option, help=self.help)]
        is_count = self.type is int and not self._is_size
        about = typer.Option(
            self.option, metavar=self._metavar, help=self.help + self._default_text()
        )
        return Annotated[int | None if is_count else str | None, about]

    def value(self, given: Any) -> object:
        """Return what was given as the struct has it. Raises InvalidInputError."""
        if self.is_flag:
            return True
        if self._is_size:
            return parse_bytes(self.option, given, 0, BYTES_MAX)
        if self.type is int and given < 0:
            raise InvalidInputError(f"{self.option} is {given}; expected 0 or more")
        if self.type is float:
            return parse_seconds(self.option, given, 0.0, SECONDS_MAX)
        if self.type is bytes:
            return given.encode()
        if get_origin(self.type) is Literal and given not in get_args(self.type):
            raise InvalidInputError(
                f"{self.option} is {given!r}; expected {' or '.join(get_args(self.type))}"
            )
        return given

    @property
    def _is_size(self) -> bool:
        return self.type is int and self.name.endswith("_bytes")

    @property
    def _metavar(self) -> str:
        if get_origin(self.type) is Literal:
            return "|".join(get_args(self.type))
        if self.type is int:
            return "SIZE" if self._is_size else "N"
        return {float: "DURATION", bytes: "KEY"}.get(self.type, "TEXT")

    def _default_text(self) -> str:
        """Return the default; if it differs from struct to struct, with the name of each."""
        texts = {inner: self._text(default) for inner, default in self.defaults.items()}
        if len(set(texts.values())) > 1:
            default = ", ".join(f"{text} for {inner}" for inner, text in texts.items())
        else:
            default = next(iter(texts.values()))
        return f" [default: {default}]" if default else ""

    def _text(self, default: object) -> str:
        if default is None or default == b"":
            return ""
        if isinstance(default, int) and self._is_size:
            return _size(default)
        return f"{default:g}s" if isinstance(default, float) else str(default)


@dataclass(frozen=True)
class StructOptions:
    """The options that the fields of a struct are."""

    struct: type[msgspec.Struct]
    fields: list[_Field]

    @classmethod
    def of(cls, name: str, omit: Collection[str] = ()) -> StructOptions:
        """Return the options of the struct called `package.Name`."""
        package, _, called = name.rpartition(".")
        struct = getattr(import_module(package), called)
        found: dict[str, _Field] = {}
        for inner, owner, field, default in _leaves(struct()):
            if field.name in omit:
                continue
            if field.name in found:
                found[field.name].defaults[inner] = default
                continue
            text = _docstrings(owner).get(field.name, "")
            help, _, otherwise = text.partition("None: ")
            if otherwise:
                default = otherwise.removesuffix(".")
            type = _without_none(field.type)
            option = _option_of(field.name)
            found[field.name] = _Field(field.name, option, type, help.strip(), {inner: default})
        return cls(struct, list(found.values()))

    def parameters(self) -> list[inspect.Parameter]:
        """Return a parameter for each field; what is not given is as the struct has it."""
        return [
            parameter(field.name, field.annotation(), False if field.is_flag else None)
            for field in self.fields
        ]

    def make(self, **given: Any) -> msgspec.Struct:
        """Return the struct. Raises InvalidInputError, which names the option."""
        values = {
            field.name: field.value(given[field.name])
            for field in self.fields
            if given[field.name] is not None and given[field.name] is not False
        }
        try:
            made = _with_values(self.struct(), values)
            check: Callable[[], None] = getattr(made, "check", lambda: None)
            check()
        except InvalidInputError as error:
            error.args = (self._in_terms_of_options(str(error)), *error.args[1:])
            raise
        return made

    def _in_terms_of_options(self, text: str) -> str:
        named = {field.name: field.option for field in self.fields}
        return re.sub(r"^\w+\b", lambda match: named.get(match[0], match[0]), text)


def _option_of(field: str) -> str:
    stem = field.removesuffix("_bytes")
    return "--" + (stem if stem.endswith(_NOUNS_OF_SIZE) else field).replace("_", "-")


def _leaves(
    struct: msgspec.Struct, name: str = ""
) -> Iterator[tuple[str, type[msgspec.Struct], msgspec.structs.FieldInfo, object]]:
    """Yield every field that is no struct itself, of a struct and of those within it, by name."""
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if isinstance(value, msgspec.Struct):
            yield from _leaves(value, field.name)
        else:
            yield name, type(struct), field, value


def _with_values(struct: msgspec.Struct, values: Mapping[str, object]) -> msgspec.Struct:
    changed: dict[str, object] = {}
    for name in struct.__struct_fields__:
        if isinstance(inner := getattr(struct, name), msgspec.Struct):
            changed[name] = _with_values(inner, values)
        elif name in values:
            changed[name] = values[name]
    return msgspec.structs.replace(struct, **changed)


def _docstrings(struct: type) -> dict[str, str]:
    """Return the docstring below each field.

    `None: 4` in one says what the option's default is.
    """
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found


def _without_none(annotation: Any) -> Any:
    some = [one for one in get_args(annotation) if one is not NoneType]
    return some[0] if NoneType in get_args(annotation) else annotation


def _size(size: int) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)
