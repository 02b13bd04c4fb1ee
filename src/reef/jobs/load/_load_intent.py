"""The intent of a bulk load: who registers it, and who may end it when.

Invariants:

- The intent stands until the record is durable. The load itself ends it, when its record is durable or
  when none was sent; others end it only after they have opened the namespace for writing, which fences
  a commit that may still be on its way.
- Where tasks register the intent, none does so after `close_load`, which comes before the intent ends. A
  task may be late: nothing would end what it registers then, and segments that were uploaded under an
  intent that has ended may be gone.
"""

from __future__ import annotations

from contextlib import suppress

from reef.engine import Context, open_for_writing
from reef.errors import AlreadyExistsError, NotFoundError, StalePlanError
from reef.format import Manifest
from reef.jobs.load._load_plan import FACES, LOAD_KIND, LoadPlan
from reef.manifest import Head, end_intent, no_namespace, register_intent
from reef.types import check_namespace, check_object_key


def register_load(context: Context, plan: LoadPlan) -> bool:
    """Make sure that the intent of a load stands; return whether this call registered it.

    Raises NotFoundError, OutcomeUnknownError, UnavailableError.
    """
    chain = context.chain(plan.namespace)
    is_new = True

    def registered(head: Head | None) -> Manifest | None:
        nonlocal is_new
        if head is None:
            raise no_namespace(context.store.url, plan.namespace)
        is_new = not _stands(head, plan)
        if not is_new:
            return None
        return register_intent(
            head.manifest,
            id=plan.job,
            kind=LOAD_KIND,
            author=context.author,
            opened_at_us=context.clock.now_us(),
        )

    chain.load()
    chain.publish(registered)
    return is_new


def join_load(context: Context, plan: LoadPlan) -> None:
    """Have the intent of a load stand before a task uploads. Raises StalePlanError if it is over."""
    namespace, job = plan.namespace, plan.job
    is_over = _is_closed(context, namespace, job)
    # Look again after registering: a load closed before is seen here, one closed later ends the intent.
    if not is_over and register_load(context, plan) and _is_closed(context, namespace, job):
        abandon_load(context, plan, may_be_committed=False)
        is_over = True
    if is_over:
        raise StalePlanError(
            f"write {job} to namespace {namespace!r} is over: it was committed or given up, or "
            "`reef jobs end` ended it; nothing was uploaded by this task"
        )


def abandon_load(context: Context, plan: LoadPlan, *, may_be_committed: bool = True) -> None:
    """Give a load up, if its intent stands: collection may take what it has uploaded.

    If it may be committed at this moment, this fences the writer first: the commit gets its slot before
    that or not at all. Raises UnavailableError, OutcomeUnknownError, FencedError.
    """
    head = context.chain(plan.namespace).load()
    if head is None or not _stands(head, plan):
        return
    if may_be_committed:
        open_for_writing(context, plan.namespace, FACES[plan.face]).close()
        end_load(context, plan)
    else:
        _end_intents(context, plan, "")


def end_load(context: Context, plan: LoadPlan) -> None:
    """End the intent of a load, and those that earlier attempts at it have left.

    Call it only after the namespace was opened for writing since the last of them may have been
    committed. Quiet if none stands. Raises UnavailableError, OutcomeUnknownError, NotFoundError.
    """
    _end_intents(context, plan, plan.attempts)


def close_load(context: Context, namespace: str, job: str) -> None:
    """Keep tasks from registering a load from now on. Raises UnavailableError.

    What says so is an object that nothing names: collection takes it, a day later.
    """
    with suppress(AlreadyExistsError):
        context.store.upload(_closed_key(namespace, job), [b"No task may register this load.\n"])


def _is_closed(context: Context, namespace: str, job: str) -> bool:
    """Return whether tasks must not register a load any more."""
    try:
        context.store.head(_closed_key(namespace, job))
    except NotFoundError:
        return False
    return True


def _closed_key(namespace: str, job: str) -> str:
    return check_object_key(f"namespaces/{check_namespace(namespace)}/segments/{job}.closed")


def _stands(head: Head, plan: LoadPlan) -> bool:
    return any(intent.id == plan.job for intent in head.manifest.intents)


def _end_intents(context: Context, plan: LoadPlan, attempts: str) -> None:
    """End the intent of a load, and those whose ids begin with `attempts`."""

    def ended(head: Head | None) -> Manifest | None:
        if head is None:
            raise no_namespace(context.store.url, plan.namespace)
        manifest = head.manifest
        for intent in head.manifest.intents:
            if intent.id == plan.job or (attempts and intent.id.startswith(attempts)):
                manifest = end_intent(manifest, intent.id)
        return None if manifest is head.manifest else manifest

    chain = context.chain(plan.namespace)
    chain.load()  # "ended already" is only believed of the newest head
    chain.publish(ended)
