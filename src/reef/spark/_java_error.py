"""Errors of Spark, in one line.

PySpark 4.3 raises the JVM's own errors as they are in many places: a hundred lines of stack, of which
the last cause is the one that says what is wrong.
"""

from __future__ import annotations

import re

_TRACEBACK = "Traceback (most recent call last):"
_CAUSE = "Caused by: "
_FILE = re.compile(r"while reading file (\S+?)\.?(?:\s|$)")
_CLASS = re.compile(
    r"^(?:org\.apache\.spark\.[\w.$]+|(?:[\w$]+\.)+[\w$]+(?=: \[)): "
)  # what follows says more
_STATE = re.compile(r"\s*SQLSTATE: \w{5}\s*$")
_CHARS_MAX = 400


def reason_of(error: BaseException) -> str:
    """Return what went wrong as one line: the last cause, and the file that was read, if known.

    Made for what PySpark raises: PySparkException, Py4JError, ConnectionError.
    """
    text = str(error)
    _, traceback, after = text.rpartition(_TRACEBACK)
    if traceback:
        reason = _paragraph([line for line in after.splitlines() if not line.startswith(" ")])
    else:
        lines = text.splitlines()
        causes = [at for at, line in enumerate(lines) if line.startswith(_CAUSE)]
        thrown = [at for at, line in enumerate(lines) if line.startswith(": ")]
        begin = causes[-1] if causes else thrown[0] if thrown else 0
        reason = _paragraph(lines[begin:])
    reason = _CLASS.sub("", reason.removeprefix(_CAUSE).removeprefix(": "))
    reason = _STATE.sub("", reason) or type(error).__name__
    file = _FILE.search(text)
    if file is not None and file[1] not in reason:
        reason = f"{file[1]}: {reason}"
    return reason if len(reason) <= _CHARS_MAX else f"{reason[:_CHARS_MAX]}..."


def _paragraph(lines: list[str]) -> str:
    """Return the lines of one message, up to the stack that follows it, as one."""
    found: list[str] = []
    for line in lines:
        if line.startswith(("\tat ", "\t... ", _CAUSE)) and found:
            break
        if line.strip():
            found.append(line.strip())
        elif found:
            break
    return " ".join(found)
