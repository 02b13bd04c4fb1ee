"""The command `reef`.

Exit codes: 0 fine; 1 the command line, the URL, a setting or a credential must be fixed; 2 a
problem was found, or the store gave no answer; 3 stdout could not be written; 130 interrupted by Ctrl-C;
143 by SIGTERM.
Errors are one line on stderr.

Only what starting takes is imported here, and by the modules of the commands: what a command works
with is brought in when it runs. So `--help` and `--version` load no engine.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from reef.cli._signals import TERMINATED, end_at_once, interrupted, is_terminated
from reef.cli._streams import discard, failure_of, prepare_streams
from reef.errors import InvalidInputError, ReefError

OK, USAGE, PROBLEM, OUTPUT_LOST = 0, 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process."""
    end_at_once()
    prepare_streams()
    if logging.lastResort is not None:  # warnings of the engine go to stderr
        logging.getLogger("reef").addHandler(logging.lastResort)
    code = run(sys.argv[1:] if arguments is None else arguments)
    end_at_once()  # while Python winds up, too
    if (
        is_terminated()
    ):  # tasks may still run: Python would stop their threads in the midst of C code
        os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; an error is one line on stderr."""
    code = OK
    try:
        code = _attempt(arguments)
        sys.stdout.flush()
    except OSError as error:
        code = _lost_output(error, code)
    except KeyboardInterrupt:
        discard(sys.stdout)  # what is still in there may be what nobody would take
        code = _fail(*interrupted())
    # SIGTERM may have ended the JVM of a command, and so the command with another error.
    return TERMINATED if code and is_terminated() else code


def _attempt(arguments: Sequence[str]) -> int:
    try:
        from reef.cli import _app

        return _app.invoke(arguments or ["--help"])
    except InvalidInputError as error:
        return _fail(str(error), USAGE)
    except ReefError as error:
        return _fail(str(error), PROBLEM)
    except MemoryError as error:
        text = str(error) or "no more of it can be had"
        return _fail(f"out of memory ({text}): use a machine with more", PROBLEM)


def _lost_output(error: OSError, code: int) -> int:
    """Return the exit code for output that could not be written. Raises any other error: a bug."""
    lost = failure_of(sys.stdout)
    if lost is None:
        raise error
    discard(sys.stdout)
    if isinstance(lost, BrokenPipeError):
        return code  # the reader has seen enough: `... | head`
    return _fail(f"stdout could not be written: {lost.strerror}", OUTPUT_LOST)


def _fail(message: str, code: int) -> int:
    line = visible(" ".join(without_credentials(message).split()))
    try:
        print(f"reef: {line}", file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)
    return code


def without_credentials(text: str) -> str:
    """Return `text` with the options and the user of every URL in it left out."""
    import re

    # Word by word: a pattern for the whole of a URL would begin again at each of its letters.
    return re.sub(r"[^\s'\"]+", lambda word: _public(word[0]), text)


def _public(word: str) -> str:
    import re

    scheme, slashes, behind = word.partition("://")
    if not slashes:
        return word
    address, options, _ = behind.partition("?")
    address = re.sub(r"(^|://)[^/@]+@", r"\1...@", address)
    return f"{scheme}://{address}{options and '?...'}"


def visible(text: str) -> str:
    """Return `text` with control characters, but for line breaks and tabs, as escapes.

    What is stored in a bucket could otherwise give commands to the terminal that it is shown on.
    """
    if text.isprintable():
        return text
    return "".join(one if one in "\n\t" or one.isprintable() else ascii(one)[1:-1] for one in text)
