"""`reef branch`: copies of a namespace that share its data until they are written to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from reef.cli._bucket import AsJson, Namespace, Url, connect
from reef.cli._output import print_json, print_table
from reef.cli._parameters import grouped
from reef.cli._pass import RunnerOptions
from reef.types import namespace_of, split_namespace

if TYPE_CHECKING:
    from reef.engine import Branch

app = typer.Typer(
    name="branch",
    help="Branches: copies of a namespace that share its data and are written apart.",
    add_completion=False,
    rich_markup_mode=None,
)

Name: TypeAlias = Annotated[str, typer.Argument(metavar="BRANCH", help="The name of the branch.")]


@app.command("create")
def create(
    url: Url,
    namespace: Namespace,
    branch: Name,
    lsn: Annotated[
        int | None,
        typer.Option(min=0, metavar="LSN", help="The version to start from. [default: the newest]"),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="BRANCH", help="Start from this branch of the namespace."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a branch in constant time. Does not disturb the writer of its parent."""
    from reef.engine import create_branch

    parent, child = namespace_of(namespace, source), namespace_of(namespace, branch)
    with connect(url) as db:
        made = create_branch(db.context(), parent, child, lsn)
    if as_json:
        print_json(made._asdict())
    else:
        print(f"{made.name} of {made.parent} at LSN {made.lsn}")


@app.command("list")
def list_(url: Url, namespace: Namespace, as_json: AsJson = False) -> None:
    """List the branches of a namespace, and branches of those branches."""
    from reef.engine import list_branches

    with connect(url) as db:
        found = list(list_branches(db.context(), namespace))
    if as_json:
        print_json({"namespace": namespace, "branches": [one._asdict() for one in found]})
        return
    print_table(
        ("branch", "from", "LSN", "generation", "namespace"),
        (
            (b.name, _parent(b), "" if b.lsn is None else b.lsn, b.generation, b.namespace)
            for b in found
        ),
        title="branches",
    )


@app.command("drop")
def drop(url: Url, namespace: Namespace, branch: Name) -> None:
    """Drop a branch. Fences its writer; `reef gc` deletes what only the branch used."""
    with connect(url) as db:
        db.drop(namespace, branch=branch)
    print(f"{branch} is dropped")


@app.command("detach")
@grouped
def detach(
    url: Url,
    namespace: Namespace,
    branch: Name,
    runs: RunnerOptions,
) -> None:
    """Copy all data that a branch shares with its parent, so that it no longer needs the parent."""
    from reef import jobs

    name = namespace_of(namespace, branch)
    with connect(url) as db:
        generation = jobs.detach(db, name, runner=runs.runner(db.context()))
    print(f"{branch} is detached since generation {generation}")


def _parent(branch: Branch) -> str:
    if branch.parent is None:
        return "(detached)"
    return split_namespace(branch.parent)[1] or branch.parent
