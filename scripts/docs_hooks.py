"""Hooks of MkDocs: the pages that are made from the code, so that they cannot go stale.

- `reference/commands.md`: every command and option, as `--help` prints them.
- `reference/<package>.md`: the API, for mkdocstrings, from the names that a package exports.
- `reference/<file>.md`: CHANGELOG.md and SECURITY.md of the repository.
- The performance page shows each SVG that `make bench` has written to `docs/plots`.
"""

from __future__ import annotations

import inspect
import io
import re
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

REPO = Path(__file__).resolve().parents[1]
FOLDER = "reference"
PLOTS_MARKER = "<!-- plots"

PACKAGES = {
    "reef": "The entry points.",
    "reef.documents": "Documents.",
    "reef.kv": "Keys and values.",
    "reef.pages": "Pages.",
    "reef.sqlite": "SQLite.",
    "reef.aio": "Handles for asyncio.",
    "reef.jobs": "Bulk work.",
    "reef.spark": "Spark as a client.",
    "reef.doctor": "Verify, repair, rebuild, inspect.",
    "reef.store": "Object stores.",
    "reef.settings": "Settings.",
    "reef.errors": "Every error.",
    "reef.metrics": "Metrics.",
    "reef.otel": "Spans and metrics for OpenTelemetry.",
    "reef.testing": "For tests of applications and stores.",
}
PROJECT_FILES = {"Changelog": "CHANGELOG.md", "Security": "SECURITY.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the navigation."""
    api = [{name: page_of(name)} for name in packages()]
    nav: list[Any] = config.nav or []
    for section in nav:
        if "Reference" in section:
            pages = section["Reference"]
            at = 1 + next(i for i, page in enumerate(pages) if "Command line" in page)
            pages.insert(at, {"All commands": f"{FOLDER}/commands.md"})
            pages.append({"Python API": api})
    nav.append({"Project": [{title: page_of(file[:-3])} for title, file in PROJECT_FILES.items()]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    pages = {f"{FOLDER}/commands.md": commands_page()}
    pages |= {page_of(name): api_page(name) for name in packages()}
    for file in PROJECT_FILES.values():
        pages[page_of(file[:-3])] = (REPO / file).read_text(encoding="utf-8")
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show the plots that are there in the place of the marker."""
    if PLOTS_MARKER not in markdown:
        return markdown
    plots = sorted(path.name for path in (Path(config.docs_dir) / "plots").glob("*.svg"))
    images = "\n\n".join(f"![{title_of(name)}](plots/{name})" for name in plots)
    start = markdown.index(PLOTS_MARKER)
    end = markdown.index("-->", start) + len("-->")
    return markdown[:start] + images + markdown[end:]


def title_of(name: str) -> str:
    return name.removesuffix(".svg").replace("-", " ").replace("_", " ")


def page_of(name: str) -> str:
    return f"{FOLDER}/{name.lower()}.md"


def packages() -> list[str]:
    """Return the public packages that this version has."""
    return [name for name in PACKAGES if find_spec(name) is not None]


def api_page(name: str) -> str:
    """Return the page of a package: its docstring, then every name that it exports."""
    module = import_module(name)
    lines = [f"# {name}", "", *fenced(inspect.getdoc(module) or PACKAGES[name])]
    for exported in exported_names(module):
        lines += ["", f"::: {exported}"]
    return "\n".join(lines) + "\n"


def exported_names(module: Any) -> list[str]:
    """Return the dotted paths where the names of `__all__` are defined, without repetition."""
    names = getattr(module, "__all__", None) or public_names(module)
    paths = []
    for name in names:
        value = getattr(module, name)
        if inspect.ismodule(value):
            continue
        home = getattr(value, "__module__", None)
        is_own = home is not None and hasattr(value, "__qualname__") and home.startswith("reef")
        paths.append(f"{home}.{value.__qualname__}" if is_own else f"{module.__name__}.{name}")
    if module.__name__ == "reef":  # the errors have a page of their own
        paths = [path for path in paths if not path.startswith("reef.errors.")]
    return list(dict.fromkeys(paths))


def public_names(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def fenced(text: str) -> list[str]:
    """Return a docstring with its columns as they stand: it may hold a map of names."""
    summary, _, rest = text.partition("\n\n")
    lines = [summary.replace("\n", " ")]
    return [*lines, "", "```text", rest.rstrip(), "```"] if rest.strip() else lines


def commands_page() -> str:
    """Return what `--help` prints of every command."""
    lines = ["# All commands", "", "What `reef COMMAND --help` prints, for every command."]
    for words in commands():
        lines += ["", f"## {' '.join(['reef', *words])}", "", "```text", help_of(words), "```"]
    return "\n".join(lines) + "\n"


def commands(words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the words of every command below `words`, in the order of `--help`."""
    _, heading, listed = help_of(words).partition("\nCommands:\n")
    if not heading:
        return [words]
    names = re.findall(r"^  (\S+)", listed.partition("\n\n")[0], re.MULTILINE)
    return [command for name in names for command in commands((*words, name))]


@cache
def help_of(words: tuple[str, ...]) -> str:
    """Return what `reef WORDS --help` prints."""
    from reef.cli import run

    printed = io.StringIO()
    with redirect_stdout(printed):
        code = run([*words, "--help"])
    if code:
        raise RuntimeError(f"reef {' '.join(words)} --help failed with exit code {code}")
    return printed.getvalue().rstrip()
