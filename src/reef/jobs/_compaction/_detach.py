"""Detaching a branch: it gets its own copy of what it shares with others.

1. Refuse if other branches depend on it.
2. Compact all of it, as any compaction does: what is     crash: what was rewritten stays rewritten
   rewritten belongs to the branch alone.
3. Publish the manifest that forgets the origin, if no    crash: done
   segment of another namespace is named, and no branch
   depends on it.

The pins that other namespaces have for it are removed by their own collections, when no retained
generation of the branch names their segments any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reef.compaction import CompactionOptions
from reef.engine import refuse_branches
from reef.errors import UnavailableError
from reef.format import Manifest
from reef.jobs._compaction._compact_pass import compact_namespace
from reef.jobs._pass_protocol import Figures, Work
from reef.manifest import Head, no_namespace
from reef.manifest import detach as forget_origin

if TYPE_CHECKING:
    from reef.jobs._driver import PassRun

_ROUNDS_MAX = 5


class DetachPass:
    """Copies what a branch shares with others, and cuts it loose; the result is its generation."""

    kind = "detach"
    recorded_options = None

    def work(self, run: PassRun, namespace: str) -> Work[int]:
        """Detach one branch.

        Safe beside its writer and its readers. Raises NotFoundError, InvalidInputError with the names of
        branches that depend on it, StalePlanError if another compaction begins, UnavailableError if tasks
        fail (call it again: it goes on from there), OutcomeUnknownError.
        """
        context = run.context
        chain = context.chain(namespace)
        head = chain.load()
        if head is None or head.manifest.state != "live":
            raise no_namespace(context.store.url, namespace)
        refuse_branches(context, chain, head)
        for _ in range(_ROUNDS_MAX):
            if head is None or not _shares(head.manifest):
                return chain.publish(_detached).generation
            yield from compact_namespace(context, namespace, CompactionOptions(full=True))
            head = chain.load()
        raise UnavailableError(
            f"namespace {namespace!r} still names segments of other namespaces after {_ROUNDS_MAX} "
            "compactions; run `reef compact --full` to see why, then detach it again"
        )

    def figures(self, result: int) -> Figures:
        """Return the generation that was published."""
        return Figures({}, result)


def _detached(head: Head | None) -> Manifest | None:
    if head is None:
        raise AssertionError("a namespace that was loaded has a manifest")
    return None if head.manifest.origin is None else forget_origin(head.manifest)


def _shares(manifest: Manifest) -> bool:
    return any(segment.namespace for segment in manifest.segments)
