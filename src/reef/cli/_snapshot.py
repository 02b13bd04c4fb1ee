"""`reef snapshot`: versions that stay readable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from reef.cli._bucket import AsJson, Namespace, Url, connect
from reef.cli._output import print_json, print_table, time_text
from reef.settings import parse_seconds
from reef.types import check_snapshot_id

if TYPE_CHECKING:
    from reef.engine import Context, Reader
    from reef.format import Manifest, Snapshot
    from reef.manifest import Head

FOR_GOOD = "none"

app = typer.Typer(
    name="snapshot",
    help="Keep versions of a namespace readable through compaction and collection.",
    add_completion=False,
    rich_markup_mode=None,
)

Ttl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="How long it lasts: 30m, 2h, 7d, or none to keep it until it is released. "
        "[default: the setting snapshot_ttl]",
    ),
]
Id: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The id of the snapshot.")]


@app.command("create")
def create(
    url: Url,
    namespace: Namespace,
    ttl: Ttl = None,
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="The id of the snapshot. [default: a new one]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take a snapshot of the newest version, and print its id."""
    if id is not None:
        check_snapshot_id(id)
    with connect(url) as db:
        context = db.context()
        reader = _open(context, namespace)
        try:
            taken = reader.snapshot(_seconds(context, ttl), id=id).snapshot
        finally:
            reader.close()
    if as_json:
        print_json(_as_json(taken))
    else:
        print(taken.id)


@app.command("list")
def list_(url: Url, namespace: Namespace, as_json: AsJson = False) -> None:
    """List snapshots. An expired one is listed until `reef gc` removes it."""
    from reef.engine import newest_manifest

    with connect(url) as db:
        manifest = newest_manifest(db.context(), namespace)
    if as_json:
        print_json({"namespace": namespace, "snapshots": [_as_json(s) for s in manifest.snapshots]})
        return
    print_table(
        ("id", "generation", "LSN", "expires (UTC)"),
        (
            (s.id, s.generation, s.lsn, time_text(s.expires_at_us) if s.expires_at_us else "never")
            for s in manifest.snapshots
        ),
        title="snapshots",
    )


@app.command("renew")
def renew_(
    url: Url, namespace: Namespace, id: Id, ttl: Ttl = None, as_json: AsJson = False
) -> None:
    """Set how long a snapshot lasts, counted from now."""
    from reef.manifest import renew

    with connect(url) as db:
        context = db.context()
        _, renewed = renew(context.chain(namespace), id=id, ttl_s=_seconds(context, ttl))
    if as_json:
        print_json(_as_json(renewed))
    else:
        until = time_text(renewed.expires_at_us) if renewed.expires_at_us else "it is released"
        print(f"{renewed.id} lasts until {until}")


@app.command("release")
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


def _seconds(context: Context, ttl: str | None) -> float | None:
    if ttl is None:
        return context.settings.snapshot_ttl
    return None if ttl == FOR_GOOD else parse_seconds("ttl", ttl, low=0.001)


def _open(context: Context, namespace: str) -> Reader:
    """Open a namespace for reading, whatever face it was made as."""
    from reef.engine import face_of, newest_manifest, open_for_reading

    return open_for_reading(context, namespace, face_of(newest_manifest(context, namespace)))


def _as_json(snapshot: Snapshot) -> dict[str, object]:
    return {
        "id": snapshot.id,
        "generation": snapshot.generation,
        "lsn": snapshot.lsn,
        "expires_at_us": snapshot.expires_at_us or None,
    }
