"""`reef stats`: figures of what namespaces take in their bucket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reef.cli._report import Part, Report, Table, size_text, time_text
from reef.cli.arguments import Scope, Url, connect, no_namespace_text
from reef.errors import ReefError


def stats(url: Url, scope: Scope) -> Report:
    """Print sizes, counts and state of namespaces. Reads only LISTs and manifests.

    Exit code 2: the newest manifest of some namespace cannot be read, or all of them are gone.
    """
    from reef.doctor import MANIFESTS_GONE, storage_stats

    found: list[dict[str, Any]] = []
    with connect(url) as db:
        for name, one in scope.each(db, lambda name: storage_stats(db.context(), name)):
            error = str(one) if isinstance(one, ReefError) else None
            figures = {"namespace": name} if isinstance(one, ReefError) else one
            found.append({**figures, "error": error})
        where = db.store.url
    return Report(
        {"url": where, "namespaces": found},
        _stats_parts(where, found, scope.every),
        is_problem=any(
            one["error"] or one["damaged"] or one.get("state") == MANIFESTS_GONE for one in found
        ),
    )


def _stats_parts(url: str, found: list[dict[str, Any]], every: bool) -> Iterator[Part]:
    if not found:
        yield no_namespace_text(url)
    elif every:
        columns = ("namespace", "generation", "segments", "rows in them", "unfolded log", "bytes")
        yield Table((*columns, "damaged"), map(_namespace_row, found), "namespaces")
    else:
        yield from _namespace_parts(found[0])


def _namespace_row(one: dict[str, Any]) -> tuple[object, ...]:
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
        ", ".join(map(str, one["damaged"])) or (None if "generation" in one else one.get("state")),
    )


def _namespace_parts(one: dict[str, Any]) -> Iterator[Part]:
    unfolded = one.get("unfolded_log", {"slots": 0, "bytes": 0})
    facts = {name.replace("_", " "): one[name] for name in _PLAIN if name in one}
    facts["unfolded log"] = f"{unfolded['slots']} slots, {size_text(unfolded['bytes'])}"
    if writer := one.get("writer"):
        since = time_text(writer["opened_at_us"])
        facts["last writer"] = f"{writer['holder']} on {writer['host']}, since {since}"
    if kept := one.get("settings"):
        facts["gc_grace"] = f"{kept['gc_grace']:g} s"
    if one["damaged"]:
        facts["damaged"] = "generations " + ", ".join(map(str, one["damaged"]))
    yield facts
    yield Table.of([{"folder": name, **counts} for name, counts in one["objects"].items()])
    if levels := one.get("levels"):
        yield Table.of([{"level": level, **figures} for level, figures in levels.items()])


_PLAIN = (
    *("namespace", "state", "generation", "writer_epoch", "compactor_epoch"),
    *("max_parallel_writes", "wal_floor", "last_applied_lsn", "rows", "tombstones"),
    *("snapshots", "pins", "intents", "retention_floor_lsn", "pitr_window_ms"),
)
