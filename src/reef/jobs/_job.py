"""A job and its intent: what lets a job publish, and what keeps its segments from collection.

Invariants:

- The intent stands in a manifest before the job writes anything, and every segment of the job ends
  in its id: collection spares them as long as it stands, whatever their age.
- Everything that the job publishes is checked against the head it builds on; once anyone has ended the
  intent, the job can publish nothing.
- Only a manifest ends an intent: in the same generation as the job's last change, or alone.

Crash points: before `begin` has returned there may be an intent whose job never ran; after it, an intent
and objects that no manifest names. Nothing of that is visible. `end`, or `reef jobs end`, removes the
intent, and then collection removes the objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reef.engine import Context
from reef.errors import InvariantError, OutcomeUnknownError, ReefError
from reef.format import Manifest
from reef.manifest import (
    Head,
    ManifestChain,
    check_standing,
    end_intent,
    no_namespace,
    open_compactor,
    register_intent,
)
from reef.types import check_namespace, new_ulid

_log = logging.getLogger("reef.jobs")

ManifestChange = Callable[[Manifest], Manifest]
"""Returns the new manifest, made from the head's; raises if that head does not allow it."""


class Job:
    """A job's intent in one namespace's manifest. For one thread."""

    def __init__(self, chain: ManifestChain, id: str, kind: str, head: Head) -> None:
        self.id = id
        """Lower case: the segments of the job are named `<ulid>-<id>`."""
        self.kind = kind
        self.namespace = chain.namespace
        self.head = head
        """The generation that registered the job, then the last one that it published."""
        self.compactor_epoch: int | None = None
        """The epoch that it took, if it began as a compactor."""
        self._chain = chain

    @classmethod
    def begin(
        cls,
        context: Context,
        namespace: str,
        kind: str,
        *,
        compactor: bool = False,
        chain: ManifestChain | None = None,
    ) -> Job:
        """Register a job; as a compactor it takes the next epoch in the same step.

        `chain` is the namespace's, if the caller has one. Raises NotFoundError if there is no
        such namespace, OutcomeUnknownError (then the intent may stand), CorruptError if the manifest
        needs repair, UnavailableError.
        """
        chain = chain or context.chain(check_namespace(namespace))
        id = f"{kind}-{new_ulid(context.clock, context.rng).lower()}"

        def registered(m: Manifest) -> Manifest:
            if compactor:
                m = open_compactor(m)
            return register_intent(
                m,
                id=id,
                kind=kind,
                author=context.author,
                opened_at_us=context.clock.now_us(),
            )

        head = chain.publish(_on_manifest(chain, registered))
        job = cls(chain, id, kind, head)
        if compactor:
            job.compactor_epoch = head.manifest.compactor_epoch
        return job

    @property
    def now_us(self) -> int:
        """The store's time, as of the job's own latest PUT."""
        known = self._chain.now_us
        if known is None:
            raise InvariantError(f"job {self.id} has published nothing yet")
        return known

    def publish(self, change: ManifestChange) -> Head:
        """Publish what `change` makes of the newest manifest; return the new head.

        `change` checks that the job stands, as `advance_floor` and `replace_segments` do. Raises what
        `change` raises (StalePlanError, NotFoundError), and OutcomeUnknownError.
        """
        self.head = self._chain.publish(_on_manifest(self._chain, change))
        return self.head

    def check_standing(self, m: Manifest) -> None:
        """Raise StalePlanError if someone has ended this job, or began another compaction."""
        check_standing(m, self.compactor_epoch, self.id)

    def check_not_ended(self) -> None:
        """Raise StalePlanError if this job was ended for good, by the newest head; UnavailableError.

        A job whose plan is stale asks this first: what was overtaken is planned again, what someone
        has ended is not.
        """
        head = self._chain.load()
        if head is not None and head.manifest.state == "live":
            self.check_standing(head.manifest)

    def end(self) -> None:
        """End the intent: from then on this job can publish nothing.

        Does nothing if it has ended already. Raises OutcomeUnknownError, UnavailableError.
        """

        def ended(head: Head | None) -> Manifest | None:
            if head is None or all(intent.id != self.id for intent in head.manifest.intents):
                return None
            return end_intent(head.manifest, self.id)

        self._chain.load()  # "ended already" is only believed of the newest head
        self.head = self._chain.publish(ended)

    def give_up(self) -> None:
        """End the intent, if that can be done; nothing more will be published. Raises nothing."""
        try:
            self.end()
        except ReefError as error:
            _log.warning("job %s was given up, but its intent may stand: %s", self.id, error)

    @contextmanager
    def given_up_on_error(self) -> Iterator[None]:
        """Give the job up if the body raises.

        But for OutcomeUnknownError: the change may be published, and nothing is cleaned up.
        """
        try:
            yield
        except OutcomeUnknownError:
            raise
        except BaseException:
            self.give_up()
            raise


def new_segment_id(context: Context, job_id: str) -> str:
    """Return a name for one segment of a job, which no other attempt uses."""
    return f"{new_ulid(context.clock, context.rng)}-{job_id}"


def _on_manifest(chain: ManifestChain, change: ManifestChange) -> Callable[[Head | None], Manifest]:
    def changed(head: Head | None) -> Manifest:
        if head is None:
            raise no_namespace(chain.url, chain.namespace)
        return change(head.manifest)

    return changed
