"""The shape of the code: imports point downward, and time and chance come from outside.

Each rule is a function from a module's source to what is wrong with it, and each is shown to catch
a made-up violation.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
TESTS = SOURCE.parent / "tests"

# From the ground up. A module imports from lower layers and from its own package only.
LAYERS = (
    ("errors", "types", "clock", "threads", "fork"),
    ("metrics", "settings", "maintenance"),
    ("store",),
    ("format",),
    ("log", "manifest", "segment"),
    ("gc",),
    ("context",),
    ("compaction",),
    ("engine",),
    ("doctor",),
    ("documents", "pages", "kv", "tiered"),
    ("database",),
    ("sqlite", "aio", "otel"),
    ("jobs",),
    ("spark",),
    ("cli", "server"),
    ("__main__",),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
GROUND = frozenset(LAYERS[0])
TOP = frozenset({"cli", "server", "__main__"})
TESTING_REACHES = RANK["store"]

# Third-party packages that only some may import.
RESERVED = {
    "pyspark": {"spark"},
    "typer": TOP,
    "click": TOP,
    "rich": TOP,
    "obstore": {"store"},
    "opentelemetry": {"otel"},
    "sqlalchemy": {"store"},
    "apsw": {"sqlite", *TOP},
    "boto3": {"store"},
    "botocore": {"store"},
}

NAMES_THAT_SAY_NOTHING = frozenset({"utils", "util", "helpers", "helper", "manager", "common"})

# What must come from an injected Clock or random.Random.
AMBIENT = (
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.perf_counter_ns",
    "time.clock_gettime",
    "time.clock_gettime_ns",
    "time.sleep",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "random.*",
    "secrets.*",
    "uuid.uuid1",
    "uuid.uuid4",
    "os.urandom",
)
# Classes to be injected, not sources.
INJECTED = frozenset({"random.Random", "random.SystemRandom"})
AMBIENT_ALLOWED = {
    ("reef.clock", "time.time_ns"): "this is the clock",
    ("reef.clock", "time.monotonic"): "this is the clock",
    ("reef.clock", "time.clock_gettime"): "this is the clock",
    ("reef.clock", "time.sleep"): "this is the clock",
    (
        "reef.store._file_store",
        "uuid.uuid4",
    ): "names of temporary files, which no other process may "
    "choose even if it was given the same seed",
}

# What must come from injected Threads, everywhere but in the stores and in `aio`, which have pools of
# their own: what runs in that one are calls of users, like those of their threads.
# A lock that nobody waits under is no business of a scheduler's.
THREADS = (
    "threading.Thread",
    "threading.Timer",
    "threading.Condition",
    "threading.Event",
    "threading.Semaphore",
    "threading.BoundedSemaphore",
    "threading.Barrier",
    "concurrent.futures.*",
    "multiprocessing.*",
    "asyncio.*",
    "queue.*",
)
HAVE_THREADS = frozenset({"threads", "store", "testing", "aio"})

# Folders of tests whose sub-folders are named after the package that they test.
SORTED_BY_PACKAGE = frozenset({"unit", "property", "sim", "crash", "integration", "support"})


def modules() -> Iterator[tuple[str, str]]:
    """Yield the name and the source of every module of Reef."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = list(path.relative_to(SOURCE).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        yield ".".join(parts), path.read_text(encoding="utf-8")


def package_of(module: str) -> str:
    """Return the part of Reef that a module belongs to: "store" of "reef.store._base"."""
    return [*module.split("."), ""][1]


def imports(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield (level, module, name) of every import, wherever it stands; name is "" for plain ones."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.level, node.module or "", alias.name


def imported_packages(source: str) -> Iterator[str]:
    """Yield the parts of Reef that are imported; "" is the package `reef` itself."""
    for _, module, name in imports(source):
        if module == "reef":
            yield name if name in RANK or name == "testing" else ""
        elif module.startswith("reef."):
            yield package_of(module)


def upward_imports(module: str, source: str) -> list[str]:
    """Imports that do not point downward."""
    package = package_of(module)
    return [
        f"{module} imports {f'reef.{other}' if other else 'reef itself'}"
        for other in imported_packages(source)
        if other != package and not may_import(package, other)
    ]


def may_import(package: str, other: str) -> bool:
    """Return whether a module of `package` may import one of another package."""
    if package == "":  # reef/__init__.py, the front door
        return other in RANK and other not in {"jobs", "spark", *TOP}
    if other == "":
        return package in TOP
    if other == "testing" or other not in RANK:
        return False
    if package == "testing":
        return RANK[other] <= TESTING_REACHES
    if package not in RANK:
        return False
    if (package, other) == ("format", "store"):
        return False  # bytes <-> objects, no I/O
    return RANK[other] < RANK[package] or {package, other} <= GROUND


def unknown_packages(module: str, _source: str) -> list[str]:
    """Parts of Reef that have no place in the layers."""
    package = package_of(module)
    known = package in RANK or package in ("", "testing")
    return [] if known else [f"{module}: give {package!r} a place in LAYERS"]


def relative_imports(module: str, source: str) -> list[str]:
    """Imports with leading dots."""
    return [
        f"{module} imports {'.' * level}{name}" for level, name, _ in imports(source) if level > 0
    ]


def private_imports(module: str, source: str) -> list[str]:
    """Imports through a wall: a package's `__init__` is its contract, a sub-package's too.

    What is private may be imported from inside the innermost public package that holds it.
    """
    names = (f"{imported}.{name}".rstrip(".") for _, imported, name in imports(source))
    return [
        f"{module} imports {name}"
        for name in names
        if name.startswith("reef.") and not f"{module}.".startswith(f"{public_home(name)}.")
    ]


def public_home(name: str) -> str:
    """Return the innermost public package that holds what a dotted name stands for.

    That of "reef.spark.source._columns.Column" is "reef.spark.source", that of
    "reef.spark._write._stage" is "reef.spark". Of a public name it is "reef": all may import it.
    """
    parts = name.split(".")
    walls = (at for at in range(2, len(parts)) if is_private(".".join(parts[: at + 1])))
    return ".".join(parts[: next(walls, 1)])


def modules_of_tests() -> Iterator[tuple[str, str]]:
    """Yield the name and the source of every module of the tests."""
    for path in sorted(TESTS.rglob("*.py")):
        parts = path.relative_to(TESTS.parent).with_suffix("").parts
        yield ".".join(parts), path.read_text(encoding="utf-8")


def package_under_test(module: str) -> str:
    """Return the package that a test module is about: "store" of "tests.unit.store.test_url".

    A module of Reef that is no package has a file of its own: `tests/unit/test_settings.py`.
    """
    kind, *rest = module.split(".")[1:]
    if kind == "spark":
        return "spark"
    if kind == "unit" and len(rest) == 1:
        return rest[0].removeprefix("test_")
    return rest[0] if kind in SORTED_BY_PACKAGE and len(rest) > 1 else ""


def private_imports_of_tests(module: str, source: str) -> list[str]:
    """Imports, in tests, of private modules or names of a package that they do not test."""
    tested = package_under_test(module)
    names = (f"{imported}.{name}".rstrip(".") for _, imported, name in imports(source))
    return [
        f"{module} imports {name}"
        for name in names
        if name.startswith("reef.") and package_of(name) != tested and is_private(name)
    ]


def is_private(name: str) -> bool:
    """Return whether a part of a dotted name below its package begins with an underscore."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split(".")[2:])


def unexplained_exports(module: str, source: str) -> list[str]:
    """Names in a package's `__all__` that its docstring does not mention."""
    if module.count(".") == 0 or is_private(module) or "from reef." not in source:
        return []
    tree = ast.parse(source)
    about = ast.get_docstring(tree) or ""
    exports = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return [
        f"{module} does not explain {name}"
        for names in exports
        for name in names
        if not re.search(rf"\b{re.escape(name)}\b", about)
    ]


def reserved_imports(module: str, source: str) -> list[str]:
    """Third-party packages in places that must do without them."""
    return [
        f"{module} imports {top}"
        for top in (name.split(".")[0] for _, name, _ in imports(source))
        if top in RESERVED and package_of(module) not in RESERVED[top]
    ]


def empty_names(module: str, _source: str) -> list[str]:
    """Module names that do not say what is inside."""
    return [
        f"{module}: {part!r} says nothing"
        for part in module.split(".")
        if part.strip("_").lower() in NAMES_THAT_SAY_NOTHING
    ]


def ambient_sources(module: str, source: str) -> list[str]:
    """Uses of the machine's time or randomness that nobody passed in."""
    return [
        f"{module} uses {name}"
        for name in sorted(used_names(source))
        if name not in INJECTED
        and any(fnmatch.fnmatchcase(name, pattern) for pattern in AMBIENT)
        and (module, name) not in AMBIENT_ALLOWED
    ]


def ambient_threads(module: str, source: str) -> list[str]:
    """Threads, and waiting for them, that nobody passed in."""
    if package_of(module) in HAVE_THREADS:
        return []
    return [
        f"{module} uses {name}"
        for name in sorted(used_names(source))
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in THREADS)
    ]


def used_names(source: str) -> set[str]:
    """Return the full names of all that a module imports and then mentions."""
    tree = ast.parse(source)
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return {name for node in ast.walk(tree) if (name := dotted(node, known))}


def dotted(node: ast.AST, known: dict[str, str]) -> str:
    """Return the full name that an expression or an import stands for, or ""."""
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    if isinstance(node, ast.Attribute) and (value := dotted(node.value, known)):
        return f"{value}.{node.attr}"
    return ""


RULES: tuple[Callable[[str, str], list[str]], ...] = (
    upward_imports,
    unknown_packages,
    relative_imports,
    private_imports,
    unexplained_exports,
    reserved_imports,
    empty_names,
    ambient_sources,
    ambient_threads,
)


@pytest.mark.parametrize("rule", RULES)
def test_the_code_keeps_the_rule(rule: Callable[[str, str], list[str]]) -> None:
    assert [problem for module, source in modules() for problem in rule(module, source)] == []


def test_tests_use_private_modules_of_the_package_that_they_test_only() -> None:
    found = [
        problem
        for module, source in modules_of_tests()
        for problem in private_imports_of_tests(module, source)
    ]
    assert found == []


def recurring_names(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Return the modules that share their last name with others, by that name."""
    by_name: dict[str, list[Path]] = {}
    for path in paths:
        if path.stem != "__init__":
            by_name.setdefault(path.stem, []).append(path)
    return {name: found for name, found in by_name.items() if len(found) > 1}


def test_module_names_do_not_recur() -> None:
    # A traceback, a search and an editor's tab show the last name alone. Folders may share a name.
    assert recurring_names(sorted((SOURCE / "reef").rglob("*.py"))) == {}


def test_a_recurring_module_name_is_found() -> None:
    paths = [Path("a/_rows.py"), Path("a/__init__.py"), Path("b/__init__.py"), Path("b/_rows.py")]
    assert recurring_names(paths) == {"_rows": [Path("a/_rows.py"), Path("b/_rows.py")]}
    assert recurring_names(paths[:3]) == {}


def test_there_is_code_to_look_at() -> None:
    found = dict(modules())
    assert {"reef", "reef.errors", "reef.store", "reef.store._base", "reef.cli"} <= found.keys()


def test_every_exception_is_still_needed() -> None:
    used = {(module, name) for module, source in modules() for name in used_names(source)}
    assert AMBIENT_ALLOWED.keys() <= used


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (upward_imports, "reef.store._base", "from reef.format import Manifest"),
        (upward_imports, "reef.store._base", "import reef.engine"),
        (upward_imports, "reef.store._base", "import reef"),
        (upward_imports, "reef.store._base", "from reef import connect"),
        (upward_imports, "reef.store._base", "from reef import cli"),
        (upward_imports, "reef.store._base", "def f():\n    from reef.log import Log"),
        (upward_imports, "reef.store._base", "if TYPE_CHECKING:\n    from reef.kv import Kv"),
        (upward_imports, "reef.format._log_object", "from reef.store import Store"),
        (upward_imports, "reef.log", "from reef.manifest import Manifest"),
        (upward_imports, "reef.manifest", "from reef.segment import SegmentReader"),
        (upward_imports, "reef.manifest", "from reef.gc import collect"),
        (upward_imports, "reef.gc", "from reef.engine import Writer"),
        (upward_imports, "reef.metrics", "from reef.store import Store"),
        (upward_imports, "reef.metrics", "from reef.settings import Settings"),
        (upward_imports, "reef.threads", "from reef.settings import Settings"),
        (upward_imports, "reef.engine", "from reef.documents import Documents"),
        (upward_imports, "reef.pages", "from reef.documents import Documents"),
        (upward_imports, "reef.kv._key_value_views", "from reef.database import Database"),
        (upward_imports, "reef.spark", "from reef.cli import app"),
        (upward_imports, "reef.errors", "from reef.store import Store"),
        (upward_imports, "reef.testing._faulty", "from reef.format import Manifest"),
        (upward_imports, "reef.engine", "from reef.testing import FaultyStore"),
        (upward_imports, "reef.cli", "from reef.testing import FaultyStore"),
        (upward_imports, "reef", "from reef.cli import app"),
        (upward_imports, "reef", "from reef.spark import source"),
        (unknown_packages, "reef.odds._ends", ""),
        (relative_imports, "reef.store._file_store", "from ._base import Store"),
        (relative_imports, "reef.store._file_store", "from . import _base"),
        (relative_imports, "reef.store._file_store", "from ..errors import ReefError"),
        (private_imports, "reef.store._file_store", "from reef.format._log_object import seal"),
        (private_imports, "reef.store._file_store", "from reef.format import _log"),
        (private_imports, "reef.store._file_store", "from reef.format import _seal"),
        (private_imports, "reef.store._file_store", "import reef.format._log_object"),
        (private_imports, "reef.database", "def f():\n    from reef.a.b._c import d"),
        (private_imports, "reef.cli._kv", "from reef.cli.docs._text_cells import printed_row"),
        (private_imports, "reef.cli", "from reef.cli.docs import _text_cells"),
        (private_imports, "reef.cli.health", "import reef.cli.docs._text_cells"),
        (private_imports, "reef.cli.docs2._x", "from reef.cli.docs._text_cells import printed_row"),
        (private_imports, "reef.spark.files._x", "from reef.spark.source import _Column"),
        (private_imports, "reef.jobs._x", "from reef.spark._write._stage import stage"),
        (
            unexplained_exports,
            "reef.log",
            '"""fold"""\nfrom reef.log._x import fold, read\n__all__ = ["fold", "read"]',
        ),
        (
            private_imports_of_tests,
            "tests.unit.kv.test_x",
            "from reef.format._log_object import seal",
        ),
        (private_imports_of_tests, "tests.unit.kv.test_x", "from reef.format import _log"),
        (private_imports_of_tests, "tests.unit.test_types", "from reef.format import _log"),
        (private_imports_of_tests, "tests.property.kv.test_x", "import reef.format._log_object"),
        (
            private_imports_of_tests,
            "tests.property.test_x",
            "from reef.kv._key_value_rows import one_put",
        ),
        (
            private_imports_of_tests,
            "tests.support.kv",
            "from reef.kv._key_value_rows import one_put",
        ),
        (private_imports_of_tests, "tests.spark.test_x", "from reef.jobs._job import Job"),
        (private_imports_of_tests, "tests.crash.test_x", "def f():\n    from reef.kv import _rows"),
        (reserved_imports, "reef", "import pyspark"),
        (reserved_imports, "reef.jobs._x", "def f():\n    import pyspark"),
        (reserved_imports, "reef.store._remote", "from pyspark.sql import SparkSession"),
        (reserved_imports, "reef.format._log_object", "def f():\n    import pyspark.sql"),
        (reserved_imports, "reef.store._check", "import typer"),
        (reserved_imports, "reef.engine", "from rich.table import Table"),
        (reserved_imports, "reef.log", "import obstore"),
        (empty_names, "reef.store._utils", ""),
        (empty_names, "reef.helpers", ""),
        (empty_names, "reef.manager._x", ""),
        (empty_names, "reef.log.common", ""),
        (ambient_sources, "reef.log", "import time\ntime.sleep(1)"),
        (ambient_sources, "reef.log", "import time as t\nx = t.time"),
        (ambient_sources, "reef.log", "from time import sleep as s\ns(1)"),
        (ambient_sources, "reef.log", "from time import monotonic\nmonotonic()"),
        (ambient_sources, "reef.log", "import random\nrandom.random()"),
        (ambient_sources, "reef.log", "import random\nrandom.shuffle([])"),
        (ambient_sources, "reef.log", "from random import choice\nchoice([1])"),
        (ambient_sources, "reef.log", "import datetime\ndatetime.datetime.now()"),
        (ambient_sources, "reef.log", "from datetime import datetime\ndatetime.now(UTC)"),
        (ambient_sources, "reef.log", "from datetime import datetime as d\nd.utcnow()"),
        (ambient_sources, "reef.log", "import uuid\nuuid.uuid4()"),
        (ambient_sources, "reef.log", "import os\nos.urandom(8)"),
        (ambient_sources, "reef.log", "import secrets\nsecrets.token_hex()"),
        (ambient_threads, "reef.log", "import threading\nthreading.Thread(target=f)"),
        (ambient_threads, "reef.engine._x", "from threading import Event\nEvent()"),
        (ambient_threads, "reef.engine", "import threading as t\nt.Condition()"),
        (ambient_threads, "reef.kv", "from concurrent.futures import ThreadPoolExecutor as P\nP()"),
        (ambient_threads, "reef.gc", "import concurrent.futures\nconcurrent.futures.wait([])"),
        (ambient_threads, "reef.gc", "import queue\nqueue.Queue()"),
    ],
)
def test_a_violation_is_caught(
    rule: Callable[[str, str], list[str]], module: str, source: str
) -> None:
    assert rule(module, source) != []


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (upward_imports, "reef.store._file_store", "from reef.store._base import Store"),
        (upward_imports, "reef.types", "from reef.clock import Clock"),
        (upward_imports, "reef.format._log_object", "from reef.types import U32_MAX"),
        (upward_imports, "reef.engine", "from reef.store import Store\nimport reef.log"),
        (upward_imports, "reef.cli", "import reef\nfrom reef.jobs import compact"),
        (upward_imports, "reef.testing._faulty", "from reef.store import Store"),
        (upward_imports, "reef.gc", "from reef.manifest import ManifestChain\nimport reef.log"),
        (upward_imports, "reef.store._metered", "from reef.metrics import Metrics"),
        (upward_imports, "reef.settings", "from reef.types import SLOT_MAX"),
        (upward_imports, "reef", "from reef.engine import connect"),
        (private_imports, "reef.store._file_store", "from reef.store._base import Store"),
        (private_imports, "reef.cli", "from reef.documents.types import Schema"),
        (private_imports, "reef.cli.docs", "from reef.cli.docs._text_cells import printed_row"),
        (private_imports, "reef.cli.docs._x", "from reef.cli._report import Report"),
        (private_imports, "reef.cli._kv", "from reef.cli.docs import Columns"),
        (private_imports, "reef.spark.source._x", "from reef.spark._write._stage import stage"),
        (private_imports, "reef.spark._write._x", "import reef.spark._write._stage"),
        (
            private_imports_of_tests,
            "tests.unit.kv.test_x",
            "from reef.kv._key_value_rows import one_put",
        ),
        (
            private_imports_of_tests,
            "tests.unit.test_settings",
            "from reef.settings import _PARSERS",
        ),
        (private_imports_of_tests, "tests.property.kv.test_x", "from reef.kv import _rows"),
        (private_imports_of_tests, "tests.spark.test_x", "from reef.spark._session import start"),
        (private_imports_of_tests, "tests.support.kv", "from reef.documents.types import Schema"),
        (reserved_imports, "reef.spark", "import pyspark"),
        (reserved_imports, "reef.cli._x", "import typer"),
        (ambient_sources, "reef.log", "import random\ndef f(rng: random.Random): rng.random()"),
        (ambient_sources, "reef.log", "from datetime import timedelta\ntimedelta(1)"),
        (ambient_sources, "reef.log", "def f(clock): clock.sleep(1); clock.time()"),
        (ambient_threads, "reef.engine", "import threading\nthreading.Lock()"),
        (ambient_threads, "reef.engine", "def f(threads): threads.condition().wait()"),
        (ambient_threads, "reef.store._base", "import concurrent.futures as c\nc.Executor"),
    ],
)
def test_what_is_allowed_passes(
    rule: Callable[[str, str], list[str]], module: str, source: str
) -> None:
    assert rule(module, source) == []
