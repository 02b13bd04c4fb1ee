"""Functions as commands: their parameters, `--json`, and what they return.

    def count(url: Url, namespace: Namespace, version: Version) -> Report: ...

    @derived("reef.jobs.IndexOptions")
    def index(url: Url, scope: Scope, options: IndexOptions) -> Report: ...

A dataclass has a Typer parameter for each field. The options of a struct come from its fields: the
name, the type, the default, and the docstring below the field as the help text. So a new field is an
option without another line. A struct is loaded when its command is called.

A command that returns a `Report` takes `--json`; one with a parameter `as_json` gets its value.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast, get_type_hints

import typer
from typer.core import TyperCommand

from reef.cli._report import Report

if TYPE_CHECKING:
    from reef.cli.arguments._struct_options import StructOptions

_Command: TypeAlias = Callable[..., Report | None]

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@dataclasses.dataclass(frozen=True)
class Derived:
    """A command whose argument `options` is an Options struct."""

    command: _Command
    struct: str
    omit: Collection[str]
    """Fields that are no options."""

    def complete(self) -> Any:
        """Return the command with all of its options."""
        from reef.cli.arguments._struct_options import StructOptions

        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command()(_flat(self.command, StructOptions.of(self.struct, self.omit)))
        return typer.main.get_command(app)


def derived(struct: str, *, omit: Collection[str] = ()) -> Callable[[_Command], Derived]:
    """Give a command the fields of a struct as options."""
    return lambda command: Derived(command, struct, omit)


def group(name: str, help: str, commands: Mapping[str, _Command | Derived]) -> typer.Typer:
    """Return commands under one name."""
    app = typer.Typer(name=name, help=help, add_completion=False, rich_markup_mode=None)
    add_commands(app, commands)
    return app


def add_commands(app: typer.Typer, commands: Mapping[str, _Command | Derived]) -> None:
    """Add commands to the command line."""
    for name, command in commands.items():
        if isinstance(command, Derived):
            deferred = _deferred(command)
            about = inspect.getdoc(command.command)
            app.command(name, cls=deferred, help=about)(lambda: None)
        else:
            app.command(name, cls=PlainHelpCommand)(_flat(command, None))


class PlainHelpCommand(TyperCommand):
    """A command whose help leaves out Python's types, `NAME <str>`, and ranges, `[x>=0]`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        records: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for parameter in self.get_params(ctx):
            without_range: Any = copy.copy(parameter)
            without_range.min = without_range.max = None
            if (record := without_range.get_help_record(ctx)) is not None:
                name, about = record
                records[parameter.param_type_name].append((name.partition(" <")[0], about))
        for kind, listed in records.items():
            if listed:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(listed)


def _deferred(derived_command: Derived) -> type[TyperCommand]:
    class Deferred(PlainHelpCommand):
        """Stands for a command until it is called: `reef --help` must not load the engine."""

        def make_context(self, *arguments: Any, **more: Any) -> Any:
            complete = derived_command.complete()
            self.params, self.callback = complete.params, complete.callback
            return super().make_context(*arguments, **more)

    return Deferred


def _flat(command: _Command, options: StructOptions | None) -> _Command:
    """Return a command that takes every parameter by itself, and prints its report."""
    known = {} if options is None else {options.struct.__name__: options.struct}
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Callable[..., object], list[str]]] = {}
    signature = inspect.signature(command, locals=known, eval_str=True)
    for one in signature.parameters.values():
        if options is not None and one.annotation is options.struct:
            groups[one.name] = options.make, [field.name for field in options.fields]
            parameters += options.parameters()
        elif dataclasses.is_dataclass(one.annotation):
            fields = _field_parameters(one.annotation)
            groups[one.name] = cast(_Command, one.annotation), [field.name for field in fields]
            parameters += fields
        elif one.name != "as_json":
            parameters.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    reports = signature.return_annotation is Report
    wants_as_json = "as_json" in signature.parameters
    if reports or wants_as_json:
        kind = signature.parameters["as_json"].annotation if wants_as_json else AsJson
        parameters.append(parameter("as_json", kind, False))

    def flat(**given: Any) -> None:
        for name, (make, fields) in groups.items():
            given[name] = make(**{field: given.pop(field) for field in fields})
        as_json = (given.get if wants_as_json else given.pop)("as_json", False)
        report = command(**given)
        if report is not None:
            report.print(as_json)

    flat.__doc__ = command.__doc__
    flat.__annotations__ = {}
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat


def _field_parameters(group: Any) -> list[inspect.Parameter]:
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
