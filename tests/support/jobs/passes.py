"""Passes over one namespace: the result, or the error raised; and ways to meddle with one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

from reef import jobs
from reef.engine import Context
from reef.jobs import (
    CompactionOptions,
    CompactionPlan,
    CompactionResult,
    IndexOptions,
    IndexResult,
    InProcess,
    RebuildOptions,
    RebuildResult,
    Runner,
    TaskOutcome,
)

T = TypeVar("T")


def index(
    context: Context,
    namespace: str,
    runner: Runner | None = None,
    *,
    options: IndexOptions | None = None,
) -> IndexResult:
    result = jobs.index(context, namespace, runner=runner, options=options)
    return result.namespaces[0].returned()


def compact(
    context: Context,
    namespace: str,
    runner: Runner | None = None,
    *,
    options: CompactionOptions | None = None,
    plan: CompactionPlan | None = None,
) -> CompactionResult:
    result = jobs.compact(context, namespace, runner=runner, options=options, plan=plan)
    return result.namespaces[0].returned()


def rebuild(
    context: Context,
    namespace: str,
    runner: Runner | None = None,
    *,
    options: RebuildOptions | None = None,
) -> RebuildResult:
    result = jobs.rebuild(context, namespace, runner=runner, options=options)
    return result.namespaces[0].returned()


class Meddling(InProcess):
    """Takes note of each run of tasks, and does something before or after it, given its number."""

    def __init__(
        self,
        context: Context,
        after: Callable[[int], object] = lambda run: None,
        *,
        before: Callable[[int], object] = lambda run: None,
    ) -> None:
        super().__init__(context)
        self._before, self._after = before, after
        self.runs: list[tuple[str, int]] = []
        """The name of each run, and how many tasks it had."""

    def run(self, task: Any, descriptors: Sequence[Any], result: Any, **how: Any) -> list[Any]:
        self.runs.append((how["name"], len(descriptors)))
        self._before(len(self.runs))
        outcomes = super().run(task, descriptors, result, **how)
        self._after(len(self.runs))
        return outcomes


class Stepped(Generic[T]):
    """The work of a pass in one namespace, of which the first round of tasks waits to be run.

    The work is the generator of a pass: `fold_namespace(context, "ns", options)`.
    """

    def __init__(self, work: Generator[Any, Any, T]) -> None:
        self._work = work
        self.round = next(work)

    @property
    def tasks(self) -> Sequence[Any]:
        return self.round.descriptors  # type: ignore[no-any-return]

    @property
    def job_id(self) -> str:
        return self.tasks[0].job_id  # type: ignore[no-any-return]

    def run(self, runner: Runner) -> list[TaskOutcome[Any]]:
        """Run the tasks of the round."""
        wanted = self.round
        return runner.run(wanted.task, wanted.descriptors, wanted.result, name="stepped")

    def finish(self, outcomes: list[TaskOutcome[Any]], runner: Runner) -> T:
        """Go on from the outcomes of the first round, to the end."""
        try:
            while True:
                self.round = self._work.send(outcomes)
                outcomes = self.run(runner)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
