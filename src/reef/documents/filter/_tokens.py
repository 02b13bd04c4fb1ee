"""The words of a filter in SQL: names, values and signs, each with its position."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, TypeAlias

from reef.errors import InvalidInputError

TEXT_BYTES_MAX = 65_536
NUMBER_CHARS_MAX = 400

Kind: TypeAlias = Literal["word", "name", "text", "number", "sign", "end"]

_EXCERPT_CHARS = 40
_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<word>[^\W\d]\w*)
    | (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?!\w)
    | '(?P<text>(?:[^']|'')*)'
    | "(?P<name>(?:[^"]|"")+)"
    | (?P<sign><=|>=|<>|!=|[=<>(),.])
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """What stands at a position: `value` is what it means, `lower` its text for comparing."""

    kind: Kind
    value: str | int | float
    lower: str
    position: int


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of `text`, the last of kind "end". Raises InvalidInputError."""
    if len(text) > TEXT_BYTES_MAX or len(text.encode(errors="replace")) > TEXT_BYTES_MAX:
        raise InvalidInputError(
            f"the filter has more than {TEXT_BYTES_MAX} bytes of text: give it as tuples"
        )
    tokens: list[Token] = []
    at = 0
    while True:
        found = _TOKEN.match(text, at)
        if found is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            raise failure(text, start, _expected_at(text[start]))
        tokens.append(_token(found))
        if tokens[-1].kind == "end":
            return tokens
        at = found.end()


def failure(text: str, position: int, expected: str) -> InvalidInputError:
    """Return the error for text that does not go on as it should at `position` (from 0)."""
    rest = text[position : position + _EXCERPT_CHARS]
    near = repr(rest) if rest else "the end"
    return InvalidInputError(
        f"the filter cannot be read at position {position}: expected {expected}, got {near}"
    )


def _token(found: re.Match[str]) -> Token:
    kind: Kind = found.lastgroup  # type: ignore[assignment]
    text = found[kind]
    value: str | int | float = text
    if kind == "number":
        if len(text) > NUMBER_CHARS_MAX:
            raise failure(found.string, found.start(kind), f"at most {NUMBER_CHARS_MAX} digits")
        value = float(text) if re.search(r"[.eE]", text) else int(text)
    elif kind == "text":
        value = text.replace("''", "'")
    elif kind == "name":
        value = text.replace('""', '"')
    lower = text.lower() if kind in ("word", "sign") else ""
    quote = 1 if kind in ("text", "name") else 0
    return Token(kind, value, lower, found.start(kind) - quote)


def _expected_at(char: str) -> str:
    if char == "'":
        return "text that ends in a single quote"
    if char == '"':
        return "a name that ends in a double quote"
    if char.isdigit() or char in "+-":
        return "a number"
    return "a name, a value or an operator"
