"""`reef inspect`: the content of single objects, and where they are damaged."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli._bucket import PROBLEM, AsJson, Namespace, Url, connect
from reef.cli._output import (
    key_text,
    print_facts,
    print_json,
    print_table,
    size_text,
    time_text,
)
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
    as_json: AsJson = False,
) -> None:
    """List the objects of a namespace, or print one object.

    A damaged object is printed as far as it can be read. Exit code 2: it is damaged.
    """
    with connect(url) as db:
        found = _look(db.context(), namespace, what, which or [], limit, deep)
    if as_json:
        print_json(found)
    else:
        _PRINTERS[what](found)
    if found.get("damage"):
        raise typer.Exit(PROBLEM)


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

    asked = [] if what is None else [what, *which]
    match asked:
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
    raise InvalidInputError.of("WHAT", " ".join(asked), _WHAT)


def _print_namespace(found: dict[str, Any]) -> None:
    head = "none can be read" if found["head"] is None else found["head"]
    print_facts([("namespace", found["namespace"]), ("head", f"generation {head}")])
    print_table(
        ("generation", "bytes", "published (UTC)", "retained"),
        (
            (g["generation"], g["size"], time_text(g["published_at_us"]), _yes(g["retained"]))
            for g in found["generations"]
        ),
        title="generations",
    )
    print_table(
        ("slot", "bytes", "folded"),
        ((s["slot"], s["size"], _yes(s["folded"])) for s in found["log"]),
        title="log objects",
    )
    print_table(
        ("segment", "state", "level", "rows", "bytes", "keys", "LSNs"),
        map(_segment_row, found["segments"]),
        title="segments",
    )
    for name, column in (("dedup", "id"), ("quarantine", "key")):
        if found[name]:
            rows = ((one[column], one["size"]) for one in found[name])
            print_table((column, "bytes"), rows, title=name)


def _segment_row(segment: dict[str, Any]) -> tuple[object, ...]:
    keys = lsns = None
    if segment["key_min"] is not None:
        keys = f"{_key(segment['key_min'])} to {_key(segment['key_max'])}"
        lsns = f"{segment['lsn_min']} to {segment['lsn_max']}"
    return (
        *(segment[name] for name in ("id", "state", "level", "rows")),
        size_text(segment["size"]),
        keys,
        lsns,
    )


def _print_manifest(found: dict[str, Any]) -> None:
    _print_about(found, ("generation",))
    members = found.get("members")
    if members is None:
        print(found.get("text", ""))
        return
    if found["damage"]:
        print("Read from damaged bytes, so not proven:")
    lists = {name: value for name, value in members.items() if isinstance(value, list)}
    print_facts((name, _shown(value)) for name, value in members.items() if name not in lists)
    for name, value in lists.items():
        if value and isinstance(value[0], dict):
            # Most segments have no clip, no version and no other namespace: not worth a column.
            columns = [
                key for key in value[0] if any(one.get(key) not in (None, "") for one in value)
            ]
            rows = ([_cell(key, one.get(key)) for key in columns] for one in value)
            print_table(columns, rows, title=name)
        elif value:
            print_table((name,), ((json.dumps(one),) for one in value), title=name)


def _print_log(found: dict[str, Any]) -> None:
    _print_about(found, ("slot",))
    header = found.get("header", found)
    if header is None:
        print("It is too short for a header.")
        return
    if found["damage"]:
        print("Read from damaged bytes, so not proven:")
    shown = (n for n in header if n not in ("records", "damage", "header", "key", "slot", "size"))
    print_facts((name, _shown(header[name])) for name in shown)
    for number, record in enumerate(found["records"]):
        _print_record(number, record)


def _print_record(number: int, record: dict[str, Any]) -> None:
    about = {**record, **(record.get("envelope") or {})}
    if counts := about.pop("outcome_counts", None):
        # Of all rows: the names one by one are for programs.
        about["outcomes"] = ", ".join(f"{count} {name}" for name, count in counts.items())
    facts = [
        (name, _shown(value))
        for name, value in about.items()
        if name not in ("rows", "envelope", "schema", "segments") and value not in (None, [])
    ]
    state = "" if record.get("is_whole", True) else ", DAMAGED"
    print(f"\nrecord {number}{state}")
    print_facts(facts)
    _print_rows(record)


def _print_segment(found: dict[str, Any]) -> None:
    _print_about(found, ("id",))
    if "parts" in found:
        print_table(
            ("part", "offset", "bytes", "state"),
            (
                (p["part"], p["offset"], p.get("length"), "whole" if p["is_whole"] else "DAMAGED")
                for p in found["parts"]
            ),
            title="parts",
        )
        return
    footer = found["footer"]
    plain = (n for n in footer if n not in ("schema", "sections", "key_min", "key_max", "id"))
    print_facts(
        [
            *((name, _shown(footer[name])) for name in plain),
            ("keys", f"{_key(footer['key_min'])} to {_key(footer['key_max'])}"),
            ("checksum", found["checksum"]),
            ("filter", size_text(found["bloom_bytes"])),
        ]
    )
    columns = ("name", "type", "nullable", "id")
    print_table(columns, ([f[name] for name in columns] for f in footer["schema"]), title="columns")
    states = {None: "not read (--deep)", False: "whole", True: "DAMAGED"}
    print_table(
        ("block", "rows", "tombstones", "keys", "LSNs", "offset", "bytes", "state"),
        (
            (
                *(b[name] for name in ("block", "rows", "tombstones")),
                f"{_key(b['key_first'])} to {_key(b['key_last'])}",
                f"{b['lsn_min']} to {b['lsn_max']}",
                *(b[name] for name in ("offset", "length")),
                states[b["damaged"]],
            )
            for b in found["blocks"]
        ),
        title="row blocks",
    )
    for name, blocks in found["columns"].items():
        rows = ([b[n] for n in ("block", "row", "rows", "offset", "length")] for b in blocks)
        print_table(("block", "row", "rows", "offset", "bytes"), rows, title=f"blocks of {name}")


def _print_block(found: dict[str, Any]) -> None:
    _print_about(found, ("id", "block"))
    names = ("count", "tombstones", "lsn_min", "lsn_max", "offset", "length", "checksum")
    keys = f"{_key(found['key_first'])} to {_key(found['key_last'])}"
    print_facts([("keys", keys), *((name, found[name]) for name in names)])
    _print_rows(found)


def _print_rows(found: dict[str, Any]) -> None:
    if found["rows"]:
        names = tuple(found["rows"][0])
        left = found["count"] - len(found["rows"])
        print_table(
            names,
            ([_cell(name, row[name]) for name in names] for row in found["rows"]),
            title="rows",
        )
        if left:
            print(f"and {left} more (--limit)")


def _print_about(found: dict[str, Any], names: Sequence[str]) -> None:
    facts: list[tuple[str, object]] = [("key", found["key"])]
    facts += [(name, found[name]) for name in names]
    if "size" in found:
        facts.append(("size", size_text(found["size"])))
    damages = found.get("damages") or ([found["damage"]] if found["damage"] else [])
    for d in damages:
        what = f"{d['what']} at byte {d['offset']}: expected {d['expected']}, got {d['got']}"
        facts.append(("DAMAGE", what))
    print_facts(facts)


# Columns of bytes, which JSON has as base64.
_BYTES = frozenset({"_key", "value", "key_min", "key_max", "clip_key_min", "clip_key_max"})


def _cell(name: str, value: Any) -> object:
    if name in _BYTES and isinstance(value, str):
        return _key(value)
    return _shown(value)


def _shown(value: Any) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _key(encoded: str) -> str:
    try:
        return key_text(base64.b64decode(encoded, validate=True))
    except ValueError:
        return encoded


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


_PRINTERS = {
    None: _print_namespace,
    "manifest": _print_manifest,
    "log": _print_log,
    "segment": _print_segment,
    "block": _print_block,
}
