"""Work in stages: tasks that a namespace wants to be run, and then goes on from.

The work on one namespace is a generator: it yields a Stage, is sent the outcomes, and returns its result
in the end. So the stages of many namespaces are run together, and those of one alone by the same code.
A generator that is closed, or whose stage cannot be run, gives its job up by itself.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from reef.jobs._pass import NamespaceResult, Pass
from reef.jobs._tasks import Outcome, Progress, Runner, Task

T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """Tasks to be run next."""

    task: Task[Any, Any]
    descriptors: Sequence[msgspec.Struct]
    result: type[msgspec.Struct]
    sizes: Sequence[int]
    """In bytes, about, of what each of them reads."""


Steps: TypeAlias = Generator[Stage, list[Outcome[Any]], T]


def run_alone(steps: Steps[T], runner: Runner, *, name: str, progress: Progress | None = None) -> T:
    """Return what the work on one namespace returns, or raise what it raises."""
    try:
        stage = next(steps)
        while True:
            stage = steps.send(_run([stage], runner, name, progress)[0])
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def run_together(run: Pass, steps: Mapping[str, Steps[T]]) -> list[NamespaceResult[T]]:
    """Return what the work on each namespace returns, or its error; stages of one kind in one run.

    Whatever keeps tasks from being run at all ends the work on all of them, and raises.
    """
    done: dict[str, NamespaceResult[T]] = {}
    ready: dict[str, list[Outcome[Any]] | None] = dict.fromkeys(steps)

    def go_on(name: str) -> Stage | _Ended[T]:
        try:
            outcomes = ready[name]
            return next(steps[name]) if outcomes is None else steps[name].send(outcomes)
        except StopIteration as ended:
            return _Ended(ended.value)

    def give_up(name: str) -> None:
        with suppress(BaseException):
            steps[name].close()

    try:
        while ready:
            waiting: dict[str, Stage] = {}
            for one in run.each(list(ready), go_on):
                if isinstance(one.result, Stage):
                    waiting[one.namespace] = one.result
                else:
                    value = None if one.result is None else one.result.value
                    done[one.namespace] = NamespaceResult(one.namespace, value, one.error)
            ready = _run_stages(run, waiting)
    except BaseException:
        run.each(list(steps), give_up)
        raise  # what ended the work, not what giving up has met
    return [done[name] for name in steps]


@dataclass(frozen=True)
class _Ended(Generic[T]):
    value: T


def _run_stages(run: Pass, waiting: Mapping[str, Stage]) -> dict[str, list[Outcome[Any]] | None]:
    """Run the stages of all namespaces, those of one kind of task together."""
    kinds: dict[Task[Any, Any], list[str]] = {}
    for name, stage in waiting.items():
        kinds.setdefault(stage.task, []).append(name)
    found: dict[str, list[Outcome[Any]] | None] = {}
    for names in kinds.values():
        stages = [waiting[name] for name in names]
        about = names[0] if len(names) == 1 else f"{len(names)} namespaces"
        size = sum(sum(stage.sizes) for stage in stages)
        outcomes = _run(stages, run.runner, f"{run.kind} {about}", run.progress(size))
        found.update(zip(names, outcomes, strict=True))
    return found


def _run(
    stages: Sequence[Stage], runner: Runner, name: str, progress: Progress | None
) -> list[list[Outcome[Any]]]:
    """Run stages of one kind of task as one; return the outcomes of each."""
    flat = [descriptor for stage in stages for descriptor in stage.descriptors]
    outcomes = iter(
        runner.run(
            stages[0].task,
            flat,
            stages[0].result,
            name=name,
            weights=[size + 1 for stage in stages for size in stage.sizes],
            progress=progress,
        )
        if flat
        else ()
    )
    return [[next(outcomes) for _ in stage.descriptors] for stage in stages]
