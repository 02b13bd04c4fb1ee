"""`reef branch`: copies of a namespace that share its data until they are written to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from reef.cli._report import Report, Table
from reef.cli.arguments import Namespace, StartLsn, Url, connect, group
from reef.cli.pipeline import RunnerOptions
from reef.types import namespace_of, split_namespace

if TYPE_CHECKING:
    from reef.engine import Branch

Name: TypeAlias = Annotated[str, typer.Argument(metavar="BRANCH", help="The name of the branch.")]
Source: TypeAlias = Annotated[
    str | None,
    typer.Option("--from", metavar="BRANCH", help="Start from this branch."),
]


def create(
    url: Url,
    namespace: Namespace,
    branch: Name,
    lsn: StartLsn = None,
    source: Source = None,
) -> Report:
    """Create a branch in constant time. Does not disturb the writer of its parent."""
    return branch_report(url, namespace, branch, source, lsn)


def branch_report(url: str, name: str, branch: str, source: str | None, lsn: int | None) -> Report:
    """Make a branch of a namespace or, with `source`, of one of its branches."""
    from reef.engine import create_branch

    parent, child = namespace_of(name, source), namespace_of(name, branch)
    with connect(url) as db:
        made = create_branch(db.context(), parent, child, lsn)
    return Report(made._asdict(), [f"{made.name} of {made.parent} at LSN {made.lsn}"])


def list_(url: Url, namespace: Namespace) -> Report:
    """List the branches of a namespace, and branches of those branches."""
    from reef.engine import list_branches

    with connect(url) as db:
        found = list(list_branches(db.context(), namespace))
    rows = ((b.name, _parent(b), b.lsn, b.generation, b.namespace) for b in found)
    return Report(
        {"namespace": namespace, "branches": [one._asdict() for one in found]},
        [Table(("branch", "from", "LSN", "generation", "namespace"), rows, "branches")],
    )


def drop(url: Url, namespace: Namespace, branch: Name) -> None:
    """Drop a branch. Fences its writer; `reef gc` deletes what only the branch used."""
    with connect(url) as db:
        db.drop(namespace, branch=branch)
    print(f"{branch} is dropped")


def detach(url: Url, namespace: Namespace, branch: Name, runs: RunnerOptions) -> None:
    """Copy what a branch shares with its parent. It then does not need the parent."""
    from reef import jobs

    name = namespace_of(namespace, branch)
    with connect(url) as db:
        generation = jobs.detach(db, name, runner=runs.runner(db.context()))
    print(f"{branch} is detached since generation {generation}")


app = group(
    "branch",
    "Copies of a namespace that share its data. Each has a writer of its own.",
    {"create": create, "list": list_, "drop": drop, "detach": detach},
)


def _parent(branch: Branch) -> str:
    if branch.parent is None:
        return "(detached)"
    return split_namespace(branch.parent)[1] or branch.parent
