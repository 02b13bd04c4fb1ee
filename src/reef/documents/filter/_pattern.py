"""Patterns over strings: globs, regular expressions, and parts.

A glob matches the whole string: `*` any characters, `?` one, `[abc]` and `[a-z]` one of these,
`[!abc]` one that is none of these; a `[` that nothing closes is itself. A regular expression (RE2:
no look-around or back-references, time linear in the text) matches if it is found anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from reef.errors import InvalidInputError

Matcher: TypeAlias = Callable[[pa.Array], pa.BooleanArray]

_META = frozenset("\\.+*?()|[]{}^$-&~")
_ANY, _ONE = ".*", "."


def matcher(kind: str, *patterns: str) -> Matcher:
    """Return what tells which strings match; nulls stay null. `problem_of` knew no problem."""
    if kind == "Regex":
        return _regex(patterns[0])
    if kind == "ContainsAny":
        if len(patterns) == 1:
            return lambda column: pc.match_substring(column, patterns[0])
        # without patterns nothing contains any: an empty class, which matches nothing
        return _regex("|".join(map(_quoted, patterns)) if patterns else r"[^\x{0}-\x{10FFFF}]")
    return _glob(patterns[0], ignore_case=kind == "IGlob")


def problem_of(kind: str, *patterns: str) -> str:
    """Return what is wrong with patterns, or ""."""
    try:
        matcher(kind, *patterns)(_PROBE)
    except InvalidInputError as error:
        return str(error)
    except pa.ArrowInvalid as error:
        return str(error).removeprefix("Invalid regular expression: ")
    return ""


def glob_prefix(pattern: str) -> str:
    """Return the text that every string starts with that the glob matches."""
    first = next(_glob_pieces(pattern), ("", ""))
    return first[0]


def like_to_glob(pattern: str, escape: str = "") -> str:
    """Return the glob that matches what SQL's LIKE does: `%` any characters, `_` one.

    Raises InvalidInputError if the pattern ends in the escape character.
    """
    glob = []
    chars = iter(pattern)
    for char in chars:
        is_literal = char == escape
        if is_literal:
            char = next(chars, "")
            if not char:
                raise InvalidInputError(
                    f"the pattern {pattern!r} ends in its escape character: add what it escapes"
                )
        if char in "%_" and not is_literal:
            glob.append("*" if char == "%" else "?")
        else:
            glob.append(f"[{char}]" if char in "*?[" else char)
    return "".join(glob)


_PROBE = pa.array([""])  # Arrow compiles a pattern when it has something to match it with


def _regex(pattern: str) -> Matcher:
    options = pc.MatchSubstringOptions(pattern)
    function = pc.get_function("match_substring_regex")
    return lambda column: function.call([column], options)


def _glob(pattern: str, *, ignore_case: bool) -> Matcher:
    pieces = list(_glob_pieces(pattern))
    if not ignore_case:
        match pieces:
            case []:
                return lambda column: pc.equal(column, "")
            case [(text, "")]:
                return lambda column: pc.equal(column, text)
            case [(text, ""), ("", ".*")]:
                return lambda column: pc.starts_with(column, text)
            case [("", ".*"), (text, "")]:
                return lambda column: pc.ends_with(column, text)
            case [("", ".*"), (text, ""), ("", ".*")]:
                return lambda column: pc.match_substring(column, text)
    flags = "(?is)" if ignore_case else "(?s)"
    body = "".join(_quoted(text) + wild for text, wild in pieces)
    return _regex(rf"{flags}\A(?:{body})\z")


def _glob_pieces(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the glob as (text, "") and ("", regular expression), never two texts in a row."""
    text = ""
    at = 0
    while at < len(pattern):
        char, end = pattern[at], at + 1
        wild = {"*": _ANY, "?": _ONE}.get(char, "")
        if char == "[":
            close = pattern.find("]", at + 3 if pattern[at + 1 : at + 2] in ("!", "^") else at + 2)
            if close > 0:
                wild, end = _class(pattern[at + 1 : close]), close + 1
        if wild:
            if text:
                yield text, ""
            yield "", wild
            text = ""
        else:
            text += char
        at = end
    if text:
        yield text, ""


def _class(body: str) -> str:
    """Return the regular expression for what stands between brackets in a glob."""
    is_negated = body[0] in "!^"
    body = body[is_negated:]
    ranges = []
    at = 0
    while at < len(body):
        low = high = body[at]
        if body[at + 1 : at + 2] == "-" and at + 2 < len(body):
            high = body[at + 2]
            at += 2
        if low > high:
            raise InvalidInputError(f"the range {low}-{high} in [{body}] runs backwards")
        ranges.append(_quoted(low) if low == high else f"{_quoted(low)}-{_quoted(high)}")
        at += 1
    return f"[{'^' if is_negated else ''}{''.join(ranges)}]"


def _quoted(text: str) -> str:
    return "".join(f"\\{char}" if char in _META else char for char in text)
