"""Commands that take several parameters as one argument: a dataclass, or an Options struct.

    @grouped
    def count(url: Url, namespace: Namespace, version: Version) -> None: ...

    @derived("IndexOptions", memory_bytes="--memory")
    def index(url: Url, scope: Scope, options: IndexOptions) -> None: ...

A dataclass has a Typer parameter for each field. The options of a struct of `reef.jobs` come from
its fields: the name, the type, the default, and the docstring below the field as the help text. So
a new field is an option without another line. A struct is loaded when its command is called.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from reef.cli._struct_options import StructOptions

_Command = Callable[..., None]


def grouped(command: _Command) -> _Command:
    """Give a command the fields of each dataclass among its arguments as parameters."""
    return _flat(command, None)


@dataclasses.dataclass(frozen=True)
class Derived:
    """A command whose argument `options` is an Options struct of `reef.jobs`."""

    command: _Command
    struct: str
    names: Mapping[str, str]
    """Options that are not called as their fields are."""
    omit: Collection[str]
    """Fields that are no options."""

    def complete(self) -> Any:
        """Return the command with all of its options."""
        from reef.cli._struct_options import StructOptions

        options = StructOptions.of(self.struct, self.names, self.omit)
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command()(_flat(self.command, options))
        return typer.main.get_command(app)


def derived(
    struct: str, *, omit: Collection[str] = (), **names: str
) -> Callable[[_Command], Derived]:
    """Give a command the fields of a struct as options; `names` are those with another name."""
    return lambda command: Derived(command, struct, names, omit)


def register(app: typer.Typer, name: str, command: _Command | Derived) -> None:
    """Add a command to the command line."""
    if not isinstance(command, Derived):
        app.command(name)(command)
        return

    derived_command = command

    class Deferred(TyperCommand):
        """Stands for a command until it is called: `reef --help` must not load the engine."""

        def make_context(self, *arguments: Any, **more: Any) -> Any:
            complete = derived_command.complete()
            self.params, self.callback = complete.params, complete.callback
            return super().make_context(*arguments, **more)

    app.command(name, cls=Deferred, help=inspect.getdoc(derived_command.command))(lambda: None)


def _flat(command: _Command, options: StructOptions | None) -> _Command:
    """Return a command that takes every parameter by itself."""
    known = {} if options is None else {options.struct.__name__: options.struct}
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Callable[..., object], list[str]]] = {}
    for one in inspect.signature(command, locals=known, eval_str=True).parameters.values():
        if options is not None and one.annotation is options.struct:
            groups[one.name] = options.make, [field.name for field in options.fields]
            parameters += options.parameters()
        elif dataclasses.is_dataclass(one.annotation):
            fields = _fields(one.annotation)
            groups[one.name] = cast(_Command, one.annotation), [field.name for field in fields]
            parameters += fields
        else:
            parameters.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def flat(**given: Any) -> None:
        for name, (make, fields) in groups.items():
            given[name] = make(**{field: given.pop(field) for field in fields})
        command(**given)

    flat.__doc__ = command.__doc__
    flat.__annotations__ = {}
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    empty = inspect.Parameter.empty
    return [
        parameter(
            field.name,
            hints[field.name],
            empty if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(group)
    ]


def parameter(name: str, annotation: object, default: object) -> inspect.Parameter:
    """Return a parameter as Typer reads it."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def option(type: object, name: str, **about: Any) -> object:
    """Return the annotation of an option."""
    return Annotated[type, typer.Option(name, **about)]
