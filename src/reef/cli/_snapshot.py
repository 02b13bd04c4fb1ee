"""`reef snapshot`: versions that stay readable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from reef.cli._report import Report, Table, time_text
from reef.cli.arguments import Namespace, StartAt, Url, connect, given_version, group
from reef.settings import parse_seconds
from reef.types import check_snapshot_id

if TYPE_CHECKING:
    from reef.engine import Context
    from reef.format import Manifest, Snapshot
    from reef.manifest import Head

FOR_GOOD = "none"

Ttl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="How long it lasts: 30m, 2h, 7d, or none to keep it until it is released. "
        "[default: the setting snapshot_ttl]",
    ),
]
Id: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The id of the snapshot.")]


def create(
    url: Url,
    namespace: Namespace,
    ttl: Ttl = None,
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="The id of the snapshot. [default: a new one]"),
    ] = None,
    at: StartAt = None,
    keep_log: Annotated[
        bool,
        typer.Option("--keep-log", help="Keep the changes after it in the log as long."),
    ] = False,
) -> Report:
    """Take a snapshot of a version, and print its id."""
    from reef.engine import face_of, newest_manifest, open_for_reading

    if id is not None:
        check_snapshot_id(id)
    given = given_version(at)
    with connect(url) as db:
        context = db.context()
        face = face_of(newest_manifest(context, namespace))
        reader = open_for_reading(context, namespace, face)
        try:
            lsn = given.get("lsn")
            if "time" in given:
                lsn = reader.version_by_time(given["time"]).lsn
            ttl_s = _ttl_seconds(context, ttl)
            taken = reader.snapshot(ttl_s, id=id, lsn=lsn, keeps_log=keep_log).snapshot
        finally:
            reader.close()
    return Report(
        _snapshot_as_json(taken), [taken.id] if at is None else [f"{taken.id} at LSN {taken.lsn}"]
    )


def list_(url: Url, namespace: Namespace) -> Report:
    """List snapshots. An expired one is listed until `reef gc` removes it."""
    from reef.engine import newest_manifest

    with connect(url) as db:
        found = newest_manifest(db.context(), namespace).snapshots
    rows = [_snapshot_as_json(one) for one in found]
    table_rows = [{**row, "expires_at_us": row["expires_at_us"] or "never"} for row in rows]
    return Report({"namespace": namespace, "snapshots": rows}, [Table.of(table_rows, "snapshots")])


def renew(url: Url, namespace: Namespace, id: Id, ttl: Ttl = None) -> Report:
    """Set how long a snapshot lasts, counted from now."""
    from reef.manifest import renew

    with connect(url) as db:
        context = db.context()
        _, renewed = renew(context.chain(namespace), id=id, ttl_s=_ttl_seconds(context, ttl))
    end = renewed.expires_at_us
    until = time_text(end) if end else "it is released"
    return Report(_snapshot_as_json(renewed), [f"{renewed.id} lasts until {until}"])


def release(url: Url, namespace: Namespace, id: Id) -> None:
    """Remove a snapshot. `reef gc` then deletes what only the snapshot could read."""
    from reef.manifest import no_namespace, release_snapshot

    def released(head: Head | None) -> Manifest:
        if head is None:
            raise no_namespace(where, namespace)
        return release_snapshot(head.manifest, id)

    with connect(url) as db:
        where = db.store.url
        db.context().chain(namespace).publish(released)
    print(f"{id} is released")


app = group(
    "snapshot",
    "Keep versions readable through compaction and collection.",
    {"create": create, "list": list_, "renew": renew, "release": release},
)


def _ttl_seconds(context: Context, ttl: str | None) -> float | None:
    if ttl is None:
        return context.settings.snapshot_ttl
    return None if ttl == FOR_GOOD else parse_seconds("ttl", ttl, low=0.001)


def _snapshot_as_json(snapshot: Snapshot) -> dict[str, object]:
    return {
        "id": snapshot.id,
        "generation": snapshot.generation,
        "lsn": snapshot.lsn,
        "expires_at_us": snapshot.expires_at_us or None,
    }
