"""`reef branch`: copies of a namespace that share its data until they are written to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from reef.cli._report import Report, Table, time_text
from reef.cli.arguments import Namespace, StartAt, Url, connect, group, lsn_of
from reef.cli.pipeline import RunnerOptions
from reef.settings import parse_seconds
from reef.types import namespace_of, split_namespace

if TYPE_CHECKING:
    from reef.engine import Branch

Name: TypeAlias = Annotated[str, typer.Argument(metavar="BRANCH", help="The name of the branch.")]
BranchTtl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--ttl", metavar="DURATION", help="Let `reef gc` drop it after this time. [default: never]"
    ),
]
Source: TypeAlias = Annotated[
    str | None,
    typer.Option("--from", metavar="BRANCH", help="Start from this branch."),
]


def create(
    url: Url,
    namespace: Namespace,
    branch: Name,
    at: StartAt = None,
    source: Source = None,
    ttl: BranchTtl = None,
) -> Report:
    """Create a branch in constant time. Does not disturb the writer of its parent."""
    return branch_report(url, namespace, branch, source, at, ttl)


def branch_report(
    url: str, name: str, branch: str, source: str | None, at: str | None, ttl: str | None
) -> Report:
    """Make a branch of a namespace or, with `source`, of one of its branches."""
    from reef.engine import create_branch

    parent, child = namespace_of(name, source), namespace_of(name, branch)
    ttl_s = None if ttl is None else parse_seconds("--ttl", ttl, low=0.001)
    with connect(url) as db:
        made = create_branch(db.context(), parent, child, lsn_of(db, parent, at), ttl_s=ttl_s)
    return _made_report(made)


def _made_report(made: Branch) -> Report:
    until = f", until {time_text(made.expires_at_us)}" if made.expires_at_us else ""
    return Report(made._asdict(), [f"{made.name} of {made.parent} at LSN {made.lsn}{until}"])


def list_(url: Url, namespace: Namespace) -> Report:
    """List the branches of a namespace, and branches of those branches."""
    from reef.engine import list_branches

    with connect(url) as db:
        found = list(list_branches(db.context(), namespace))
    rows = ((b.name, _parent(b), b.lsn, b.generation, _expiry(b), b.namespace) for b in found)
    return Report(
        {"namespace": namespace, "branches": [one._asdict() for one in found]},
        [Table(("branch", "from", "LSN", "generation", "expires", "namespace"), rows, "branches")],
    )


def drop(url: Url, namespace: Namespace, branch: Name) -> None:
    """Drop a branch. Fences its writer; `reef gc` deletes what only the branch used."""
    with connect(url) as db:
        db.drop(namespace, branch=branch)
    print(f"{branch} is dropped")


def reset(url: Url, namespace: Namespace, branch: Name) -> Report:
    """Drop a branch and make it anew from the head of its parent. It expires as before."""
    from reef.engine import reset_branch

    with connect(url) as db:
        made = reset_branch(db.context(), namespace_of(namespace, branch))
    return _made_report(made)


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
    {"create": create, "list": list_, "reset": reset, "drop": drop, "detach": detach},
)


def _expiry(branch: Branch) -> str:
    return time_text(branch.expires_at_us) if branch.expires_at_us else "never"


def _parent(branch: Branch) -> str:
    if branch.parent is None:
        return "(detached)"
    return split_namespace(branch.parent)[1] or branch.parent
