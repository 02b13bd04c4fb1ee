"""`reef stats`: figures of what namespaces take in their bucket."""

from __future__ import annotations

from typing import Any

import typer

from reef.cli._bucket import (
    PROBLEM,
    AsJson,
    Scope,
    Url,
    connect,
    none_text,
)
from reef.cli._output import print_facts, print_json, print_table, size_text, time_text
from reef.cli._parameters import grouped
from reef.errors import ReefError


@grouped
def stats(url: Url, scope: Scope, as_json: AsJson = False) -> None:
    """Print sizes, counts and state of namespaces. Reads only LISTs and manifests.

    Exit code 2: the newest manifest of some namespace cannot be read.
    """
    from reef.doctor import storage_stats

    found: list[dict[str, Any]] = []
    with connect(url) as db:
        for name, one in scope.each(db, lambda name: storage_stats(db.context(), name)):
            error = str(one) if isinstance(one, ReefError) else None
            figures = {"namespace": name} if isinstance(one, ReefError) else one
            found.append({**figures, "error": error})
        where = db.store.url
    if as_json:
        print_json({"url": where, "namespaces": found})
    elif not found:
        print(none_text(where))
    elif scope.every:
        _print_all(found)
    else:
        _print_one(found[0])
    if any(one["error"] or one["damaged"] for one in found):
        raise typer.Exit(PROBLEM)


def _print_all(found: list[dict[str, Any]]) -> None:
    columns = (
        "namespace",
        "generation",
        "segments",
        "rows in them",
        "unfolded log",
        "bytes",
        "damaged",
    )
    print_table(columns, map(_line, found), title="namespaces")


def _line(one: dict[str, Any]) -> tuple[object, ...]:
    if one["error"]:
        return one["namespace"], None, None, None, None, None, one["error"]
    unfolded = one.get("unfolded_log")
    return (
        one["namespace"],
        one.get("generation"),
        one["objects"]["segments"]["objects"],
        one.get("rows"),
        None if unfolded is None else size_text(unfolded["bytes"]),
        size_text(sum(folder["bytes"] for folder in one["objects"].values())),
        ", ".join(map(str, one["damaged"])) or None,
    )


def _print_one(one: dict[str, Any]) -> None:
    writer = one.get("writer")
    unfolded = one.get("unfolded_log", {"slots": 0, "bytes": 0})
    facts = [(name.replace("_", " "), one[name]) for name in _PLAIN if name in one]
    facts.append(("unfolded log", f"{unfolded['slots']} slots, {size_text(unfolded['bytes'])}"))
    if writer:
        since = time_text(writer["opened_at_us"])
        facts.append(("last writer", f"{writer['holder']} on {writer['host']}, since {since}"))
    if one["damaged"]:
        facts.append(("damaged", "generations " + ", ".join(map(str, one["damaged"]))))
    print_facts(facts)
    print_table(
        ("objects", "count", "bytes"),
        (
            (folder, counts["objects"], size_text(counts["bytes"]))
            for folder, counts in one["objects"].items()
        ),
    )
    if one.get("levels"):
        print_table(
            ("level", "segments", "rows", "bytes"),
            (
                (level, figures["segments"], figures["rows"], size_text(figures["bytes"]))
                for level, figures in one["levels"].items()
            ),
        )


_PLAIN = (
    *("namespace", "state", "generation", "writer_epoch", "compactor_epoch"),
    *("max_parallel_writes", "wal_floor", "last_applied_lsn", "rows", "tombstones"),
    *("snapshots", "pins", "intents", "retention_floor_lsn", "pitr_window_ms"),
)
