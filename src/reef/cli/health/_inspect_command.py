"""`reef inspect`: the content of single objects, and where they are damaged."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli._report import Part, Report, Table, key_text, label_of, value_text
from reef.cli.arguments import Namespace, Url, connect
from reef.errors import InvalidInputError
from reef.settings import parse_int
from reef.types import LSN_MAX, SLOT_MAX

if TYPE_CHECKING:
    from reef.engine import Context

ROWS_MAX = 1_000_000
_WHAT = "nothing, manifest [GENERATION], log SLOT, segment ID or block ID NUMBER"


def inspect(
    url: Url,
    namespace: Namespace,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT", help="manifest, log, segment or block. [default: list all objects]"
        ),
    ] = None,
    which: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHICH", help="manifest [GENERATION], log SLOT, segment ID, block ID NUMBER."
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=ROWS_MAX, help="The most rows to print of a record or block."
        ),
    ] = 10,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="segment: read every block, and name the damaged ones."),
    ] = False,
) -> Report:
    """List the objects of a namespace, or print one object.

    A damaged object is printed as far as it can be read. Exit code 2: it is damaged.
    """
    with connect(url) as db:
        found = _look(db.context(), namespace, what, which or [], limit, deep)
    return Report(found, _inspect_parts(found), is_problem=bool(found.get("damage")))


def _look(
    context: Context, namespace: str, what: str | None, which: Sequence[str], limit: int, deep: bool
) -> dict[str, Any]:
    from reef.doctor import (
        inspect_block,
        inspect_log,
        inspect_manifest,
        inspect_namespace,
        inspect_segment,
    )

    words = [] if what is None else [what, *which]
    match words:
        case []:
            return inspect_namespace(context, namespace)
        case ["manifest"]:
            return inspect_manifest(context, namespace)
        case ["manifest", generation]:
            number = parse_int("GENERATION", generation, 1, LSN_MAX)
            return inspect_manifest(context, namespace, number)
        case ["log", slot]:
            number = parse_int("SLOT", slot, 1, SLOT_MAX)
            return inspect_log(context, namespace, number, rows=limit)
        case ["segment", id]:
            return inspect_segment(context, namespace, id, deep=deep)
        case ["block", id, block]:
            number = parse_int("NUMBER", block, 0, LSN_MAX)
            return inspect_block(context, namespace, id, number, rows=limit)
    raise InvalidInputError.of("WHAT", " ".join(words), _WHAT)


# Values that have parts of their own. Others fill a line or, if they are lists of objects, a table.
_SECTIONS = ("members", "header", "footer", "envelope", "columns")
_DAMAGE = ("damage", "damages")  # a line each
# Columns of bytes, which JSON has as base64.
_BYTES = frozenset(
    {"_key", "value", "key_min", "key_max", "key_first", "key_last", "clip_key_min", "clip_key_max"}
)


def _inspect_parts(found: Mapping[str, Any], prefix: str = "") -> Iterator[Part]:
    """Yield what was found: single values first, then sections and tables."""
    known = {name: value for name, value in found.items() if name not in _DAMAGE}
    long = {name: value for name, value in known.items() if _is_long(name, value)}
    facts = {
        label_of(name): value_text(name, _printable(name, value))
        for name, value in known.items()
        if name not in long and (name not in _SECTIONS or value is not None)
    }
    damage = found.get("damage")
    for one in found.get("damages") or ([damage] if damage else []):
        what = f"{one['what']}: expected {one['expected']}, got {one['got']}"
        facts[f"DAMAGE at byte {one['offset']}"] = what
    if facts:
        yield facts
    if damage and long.keys() & {"members", "header"}:
        yield "Read from damaged bytes, so not proven:"
    for name, value in long.items():
        if name == "records":
            for number, record in enumerate(value):
                yield f"\nrecord {number}"
                yield from _inspect_parts(_said_of(record))
        elif isinstance(value, dict):
            new = {n: v for n, v in value.items() if n not in found or v != found[n]}
            yield from _inspect_parts(new, "blocks of " if name == "columns" else "")
        else:
            # Bounds of attributes are only in JSON.
            rows = [{n: _printable(n, v) for n, v in row.items() if ":" not in n} for row in value]
            yield Table.of(rows, prefix + name)
            if name == "rows" and found["count"] > len(value):
                yield f"and {found['count'] - len(value)} more (--limit)"


def _said_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record has; of the outcomes, which are for programs, how many there are."""
    known = {name: value for name, value in record.items() if value not in (None, [])}
    if counts := known.pop("outcome_counts", None):
        known["outcomes"] = ", ".join(f"{count} {name}" for name, count in counts.items())
    if isinstance(condition := known.get("condition"), list):
        known["condition"] = _condition_text(condition)
    return known


def _condition_text(where: Any) -> str:
    """Return a condition, as JSON has it, as people write one."""
    match where:
        case ["And" | "Or" as kind, list(parts)]:
            return f" {kind.lower()} ".join(f"({_condition_text(part)})" for part in parts)
        case ["Not", list(part)]:
            return f"not ({_condition_text(part)})"
        case [str(name), str(operator), *values]:
            return " ".join([name, operator, *(json.dumps(v, ensure_ascii=False) for v in values)])
    return json.dumps(where, ensure_ascii=False)


def _is_long(name: str, value: object) -> bool:
    if isinstance(value, dict):
        return name in _SECTIONS
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _printable(name: str, value: Any) -> Any:
    """Return a value with bytes, which JSON has as base64, as text."""
    if not isinstance(value, str) or (name not in _BYTES and not name.startswith(("min:", "max:"))):
        return value
    try:
        return key_text(base64.b64decode(value, validate=True))
    except ValueError:
        return value
