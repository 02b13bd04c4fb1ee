"""`reef settings`: the settings that a namespace keeps, and changing them."""

from __future__ import annotations

from typing import Annotated

import typer

from reef.cli._report import Report
from reef.cli.arguments import Namespace, Url, connect
from reef.errors import InvalidInputError


def settings(
    url: Url,
    namespace: Namespace,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a setting, such as gc_grace=1h or pitr_window=none. May be repeated.",
        ),
    ] = None,
) -> Report:
    """Print the settings that a namespace keeps, or change them."""
    from reef.engine import change_settings, durable_settings, newest_manifest
    from reef.manifest import no_namespace

    given = dict(map(_named, changes or ()))
    with connect(url) as db:
        context = db.context()
        if given:
            manifest = change_settings(context.chain(namespace), given).manifest
        else:
            manifest = newest_manifest(context, namespace)
        if manifest.state != "live":
            raise no_namespace(db.store.url, namespace)
    now = durable_settings(manifest)
    lines = [f"{name} = {_text(name, value)}" for name, value in now.items()]
    return Report({"namespace": namespace, "settings": now}, lines)


def _named(change: str) -> tuple[str, str]:
    name, separator, value = change.partition("=")
    if not separator or not name:
        raise InvalidInputError.of("--set", change, "NAME=VALUE, such as gc_grace=1h")
    return name.strip(), value.strip()


def _text(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    return str(value) if name == "max_parallel_writes" else f"{value:g}s"
