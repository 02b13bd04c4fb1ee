"""Taking a guard out of the code, for as long as a test needs to show that it is missed.

with removed(Guard("...", edits=(Edit("reef.gc._judge:judge_slots", "elif ...:", "elif False:"),))):
    ...

The functions themselves are changed, so that whoever has imported them is affected too. An edit
whose text is not there any more is an error: the guard has moved, and its test has to follow.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pkgutil import resolve_name
from types import FunctionType
from typing import Any


@dataclass(frozen=True)
class Edit:
    """A piece of a function's text, once in it, and what stands there without the guard."""

    where: str
    """The module, a colon, and a plain function or a method in it; without `super()`."""
    old: str
    new: str


@dataclass(frozen=True)
class Guard:
    """What keeps a bug out; without all of its edits' text, the bug is there."""

    why: str
    edits: tuple[Edit, ...]

    def __str__(self) -> str:
        return f"{self.why} ({', '.join(edit.where for edit in self.edits)})"


@contextmanager
def removed(guard: Guard) -> Iterator[None]:
    """Run a block without `guard`."""
    with ExitStack() as stack:
        for where in dict.fromkeys(edit.where for edit in guard.edits):
            edits = [edit for edit in guard.edits if edit.where == where]
            stack.enter_context(_edited(resolve_name(where), edits))
        yield


@contextmanager
def _edited(function: Callable[..., Any], edits: Sequence[Edit]) -> Iterator[None]:
    assert isinstance(function, FunctionType), f"{edits[0].where} is no plain function"
    before = function.__code__
    function.__code__ = _mutated(function, edits).__code__
    try:
        yield
    finally:
        function.__code__ = before


def _mutated(function: FunctionType, edits: Sequence[Edit]) -> FunctionType:
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        if source.count(edit.old) != 1:
            raise AssertionError(
                f"{edit.where} has {edit.old!r} {source.count(edit.old)} times: "
                "name the guard as it is now"
            )
        source = source.replace(edit.old, edit.new)
    names: dict[str, Any] = {}
    code = compile(
        source,
        f"<{edits[0].where} without its guard>",
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    exec(code, function.__globals__, names)  # the code under test, a line of it changed
    mutated: FunctionType = names[function.__name__]
    return mutated
