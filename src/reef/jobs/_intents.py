"""Jobs that stand: they may still publish, or their driver was killed; and how to end them."""

from __future__ import annotations

from reef.engine import Context, face_of, newest_manifest, open_for_writing
from reef.errors import NotFoundError
from reef.format import Intent, Manifest, manifest_key
from reef.jobs.load import LOAD_KIND, close_load
from reef.manifest import Head, end_intent
from reef.types import check_namespace


def standing_intents(context: Context, namespace: str) -> tuple[Intent, ...]:
    """Return the intents of jobs that may still publish in a namespace, or were killed.

    Raises NotFoundError if there is no such namespace.
    """
    return newest_manifest(context, namespace).intents


def end_job(context: Context, namespace: str, id: str) -> int:
    """End a job, also another process's, and return the generation that says so.

    It cannot publish from then on, and collection may take what it wrote. A load publishes through the
    log: to end one fences the writer first, so that a commit in flight gets its slot before that or
    not at all, and its tasks do not register it again. Raises NotFoundError.
    """
    manifest = newest_manifest(context, namespace)
    if any(intent.id == id and intent.kind == LOAD_KIND for intent in manifest.intents):
        close_load(context, namespace, id)
        open_for_writing(context, namespace, face_of(manifest)).close()

    def ended(head: Head | None) -> Manifest:
        return end_intent(manifest if head is None else head.manifest, id)

    return context.chain(check_namespace(namespace)).publish(ended).generation


def end_old_jobs(context: Context, namespace: str, seconds: float) -> list[tuple[Intent, int]]:
    """End the jobs that are older than that; return each with the generation that says so.

    The age of a job counts from the generation that registered it, by the store's clock, or from the time
    that it recorded itself, whichever is later; "now" is this machine's. Each is ended as `end_job` does.
    Raises NotFoundError if there is no such namespace.
    """
    before_us = context.clock.now_us() - round(seconds * 1_000_000)
    ended = []
    for intent in standing_intents(context, namespace):
        if _since_us(context, namespace, intent) > before_us:
            continue
        try:
            ended.append((intent, end_job(context, namespace, intent.id)))
        except NotFoundError:
            continue  # it has ended by itself
    return ended


def _since_us(context: Context, namespace: str, intent: Intent) -> int:
    try:
        meta = context.store.head(manifest_key(namespace, intent.generation))
    except NotFoundError:
        return intent.opened_at_us  # collected since
    return max(intent.opened_at_us, meta.last_modified_us)
