"""The walks of a write and of a read in `docs/architecture.md` are those that a trace finds.

If a walk has changed, the failed test shows the files as they are visited now: correct the list.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import CodeType, FrameType

import pytest

import reef
from reef.documents import Documents

SOURCE = Path(reef.__file__).parent
PAGE = Path(__file__).resolve().parents[3] / "docs" / "architecture.md"
STEP = re.compile(r"\d+\. `(?P<file>[\w/]+\.py)` `(?P<function>[\w.<>]+)`: ")

Place = tuple[str, str]
"""A file below `src/reef`, and a function in it."""


class Walk:
    """What one call visits in Reef: every call of a function, and where that came from."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.places: list[Place] = []
        self.edges: set[tuple[str, str]] = set()
        """From one file into another."""
        self._files: dict[CodeType, str | None] = {}
        sys.setprofile(self._look)
        try:
            call()
        finally:
            sys.setprofile(None)

    @property
    def files(self) -> list[str]:
        """The files in the order of their first visit."""
        return list(dict.fromkeys(file for file, _ in self.places))

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        file = self._file(frame) if event == "call" else None
        if file is None:
            return
        self.places.append((file, frame.f_code.co_qualname))
        caller: FrameType | None = frame.f_back
        while caller is not None and self._file(caller) is None:
            caller = caller.f_back
        before = None if caller is None else self._file(caller)
        if before is not None and before != file:
            self.edges.add((before, file))

    def _file(self, frame: FrameType) -> str | None:
        code = frame.f_code
        if code not in self._files:
            path = Path(code.co_filename)
            inside = path.is_relative_to(SOURCE)
            self._files[code] = path.relative_to(SOURCE).as_posix() if inside else None
        return self._files[code]


def documented(heading: str) -> list[Place]:
    """Return the steps of a numbered list in the page."""
    section = PAGE.read_text().split(f"\n### {heading}\n")[1].split("\n#")[0]
    steps = [match for line in section.splitlines() if (match := STEP.match(line))]
    return [(match["file"], match["function"]) for match in steps]


def write_one(documents: Documents) -> None:
    documents.upsert([{"id": "a", "title": "x", "price": 3}])


def read_one(documents: Documents) -> None:
    assert documents.get("a") is not None


def walk_of(call: Callable[[Documents], None], folder: Path) -> Walk:
    with reef.connect(f"file://{folder}/bucket") as db, db.namespace("ns") as documents:
        write_one(documents)  # adds the attributes, and makes the folders
        read_one(documents)
        return Walk(lambda: call(documents))


@pytest.mark.parametrize(
    ("heading", "call"),
    [("The walk of a write", write_one), ("The walk of a read", read_one)],
    ids=["write", "read"],
)
def test_the_walk_in_the_docs_is_the_one_that_a_trace_finds(
    heading: str, call: Callable[[Documents], None], tmp_path: Path
) -> None:
    walk = walk_of(call, tmp_path)
    steps = documented(heading)
    visited = "\n".join(f"{number}. `{file}`" for number, file in enumerate(walk.files, 1))
    assert [file for file, _ in steps] == walk.files, f"{heading} visits:\n{visited}"
    for step in steps:
        assert step in walk.places, f"{heading} does not call {step}"


def cycle(edges: Iterable[tuple[str, str]]) -> list[str]:
    """Return nodes of which each leads to the next and the last to the first; [] if there are none."""
    graph: dict[str, set[str]] = {}
    for source, target in edges:
        if source != target:
            graph.setdefault(source, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[:0:-1]  # the sorter names predecessors, and the first node twice
    return []


def package_edges(walk: Walk) -> set[tuple[str, str]]:
    return {(a.split("/")[0], b.split("/")[0]) for a, b in walk.edges}


# A memtable is a RowSource: the lookup among sources, which is in `segment`, asks it for a row.
CALLED_BACK = {("segment", "engine")}


@pytest.mark.parametrize(
    ("call", "called_back"), [(write_one, set()), (read_one, CALLED_BACK)], ids=["write", "read"]
)
def test_a_walk_never_comes_back_to_a_package(
    call: Callable[[Documents], None], called_back: set[tuple[str, str]], tmp_path: Path
) -> None:
    edges = package_edges(walk_of(call, tmp_path))
    assert called_back <= edges
    assert cycle(edges - called_back) == []


def test_a_write_goes_through_the_engine_once(tmp_path: Path) -> None:
    walk = walk_of(write_one, tmp_path)
    within = {(a, b) for a, b in walk.edges if a.startswith("engine/") and b.startswith("engine/")}
    assert cycle(within) == []
    entered = [function for _, function in walk.places]
    assert entered.count("CommitPath.commit") == entered.count("Admission.admit") == 1


def test_a_cycle_of_any_length_is_found() -> None:
    assert cycle([("a", "b"), ("b", "c"), ("a", "c"), ("c", "c")]) == []
    assert sorted(cycle([("a", "b"), ("b", "a")])) == ["a", "b"]
    found = cycle([("x", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")])
    assert "".join(found) in ("abc", "bca", "cab")
