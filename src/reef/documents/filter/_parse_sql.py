"""Filters as SQL text: `price < 10 and (tags contains 'x' or name like 'a%') and not archived`.

    condition   = and-term { "or" and-term }
    and-term    = not-term { "and" not-term }
    not-term    = "not" not-term | "(" condition ")" | "true" | "false" | predicate
    predicate   = name                                        the attribute is true
                | name ( "=" | "!=" | "<>" | "<" | "<=" | ">" | ">=" ) value       or turned round
                | name "is" [ "not" ] "null"
                | name [ "not" ] "in" "(" [ value { "," value } ] ")"
                | name [ "not" ] "between" value "and" value
                | name [ "not" ] ( "like" | "ilike" ) text [ "escape" character ]
                | name [ "not" ] ( "glob" | "iglob" | "regexp" ) text
                | name [ "not" ] "contains" ( value | "any" "(" [ values ] ")" )
    value       = number | 'text' | true | false | null | incoming.name
                | timestamp 'iso' | date 'iso' | uuid 'text' | x'hex'

Words are read in any case, names as they are; names with other characters, or like a word of the
language, stand in "double quotes". The text becomes the same tuples that a caller could have given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias
from uuid import UUID

from reef.documents.filter._nodes import Incoming
from reef.documents.filter._operands import time_of
from reef.documents.filter._pattern import like_to_glob
from reef.documents.filter._tokens import Token, failure, tokens_of
from reef.errors import InvalidInputError

SQL_NESTING_MAX = 64

Tuples: TypeAlias = tuple[Any, ...]

_RESERVED: Final = frozenset(
    ["and", "or", "not", "in", "is", "between", "like", "null", "true", "false"]
)
_COMPARE: Final = {
    "=": "Eq",
    "!=": "NotEq",
    "<>": "NotEq",
    "<": "Lt",
    "<=": "Lte",
    ">": "Gt",
    ">=": "Gte",
}
_TURNED: Final = {"Lt": "Gt", "Lte": "Gte", "Gt": "Lt", "Gte": "Lte"}
_PATTERNS: Final = {"glob": "Glob", "iglob": "IGlob", "regexp": "Regex"}
_CONSTANTS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}
_TYPED: Final[dict[str, tuple[Callable[[str], object], str]]] = {
    "timestamp": (time_of, "a time in ISO 8601, of at most microseconds"),
    "date": (time_of, "a date in ISO 8601"),
    "uuid": (UUID, "the text of a uuid"),
    "x": (bytes.fromhex, "pairs of hexadecimal digits"),
}
_PREDICATE: Final = (
    "=, !=, <, <=, >, >=, [not] in, like, ilike, glob, iglob, regexp, contains, between, or is"
)


def parse_sql(text: str) -> Tuples:
    """Return the tuples that `text` says. Raises InvalidInputError with the position it fails at."""
    parser = _SqlParser(text)
    found = parser.condition(1)
    parser.end()
    return found


class _SqlParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._at = 0

    # -- tokens

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._token
        self._at += 1
        return token

    def _is(self, *words: str) -> bool:
        """Say whether a word of the language, or a sign, comes next."""
        return self._token.kind in ("word", "sign") and self._token.lower in words

    def _take(self, *words: str) -> str:
        return self._next().lower if self._is(*words) else ""

    def _expect(self, *words: str) -> str:
        if not self._is(*words):
            raise self._failure(" or ".join(map(repr, words)))
        return self._next().lower

    def _failure(self, expected: str, token: Token | None = None) -> InvalidInputError:
        return failure(self._text, (token or self._token).position, expected)

    def end(self) -> None:
        if self._token.kind != "end":
            raise self._failure("'and', 'or' or the end of the filter")

    # -- grammar

    def condition(self, depth: int) -> Tuples:
        parts = [self._and_term(depth)]
        while self._take("or"):
            parts.append(self._and_term(depth))
        return parts[0] if len(parts) == 1 else ("Or", parts)

    def _and_term(self, depth: int) -> Tuples:
        parts = [self._not_term(depth)]
        while self._take("and"):
            parts.append(self._not_term(depth))
        return parts[0] if len(parts) == 1 else ("And", parts)

    def _not_term(self, depth: int) -> Tuples:
        if depth > SQL_NESTING_MAX:
            raise self._failure(f"a filter nested at most {SQL_NESTING_MAX} deep")
        if self._take("not"):
            return "Not", self._not_term(depth + 1)
        if self._take("("):
            inner = self.condition(depth + 1)
            self._expect(")")
            return inner
        return self._predicate()

    def _predicate(self) -> Tuples:
        if self._is_name():
            return self._on_attribute(self._name())
        start = self._token
        value = self._value("a name, a value, 'not' or '('")
        if self._token.kind == "sign" and self._token.lower in _COMPARE:
            operator = _COMPARE[self._next().lower]
            return self._name(), _TURNED.get(operator, operator), value
        if isinstance(value, bool):
            return ("And", []) if value else ("Or", [])
        raise self._failure("a comparison, such as price < 10", start)

    def _on_attribute(self, name: str) -> Tuples:
        if self._token.kind == "sign" and self._token.lower in _COMPARE:
            return name, _COMPARE[self._next().lower], self._value("a value")
        if self._take("is"):
            is_negated = self._take("not")
            self._expect("null")
            return ("Not", (name, "IsNull")) if is_negated else (name, "IsNull")
        if self._is("and", "or", ")") or self._token.kind == "end":
            return name, "Eq", True
        is_negated = self._take("not")
        found = self._worded(name)
        return ("Not", found) if is_negated else found

    def _worded(self, name: str) -> Tuples:
        word = self._take("in", "between", "like", "ilike", "contains", *_PATTERNS)
        match word:
            case "in":
                return name, "In", self._list()
            case "between":
                low = self._value("a value")
                self._expect("and")
                return "And", [(name, "Gte", low), (name, "Lte", self._value("a value"))]
            case "like" | "ilike":
                return name, "Glob" if word == "like" else "IGlob", self._like()
            case "contains":
                if self._is("any") and self._tokens[self._at + 1].lower == "(":
                    self._next()
                    return name, "ContainsAny", self._list()
                return name, "Contains", self._value("a value or any (...)")
            case "":
                raise self._failure(_PREDICATE)
        return name, _PATTERNS[word], self._string("a pattern in 'quotes'")

    def _list(self) -> list[object]:
        self._expect("(")
        values: list[object] = []
        if self._take(")"):
            return values
        while True:
            values.append(self._value("a value"))
            if self._expect(",", ")") == ")":
                return values

    def _like(self) -> str:
        pattern = self._token
        text = self._string("a pattern in 'quotes'")
        escape = ""
        if self._take("escape"):
            escape = self._string("a character in 'quotes'")
            if len(escape) != 1:
                raise failure(self._text, self._tokens[self._at - 1].position, "one character")
        try:
            return like_to_glob(text, escape)
        except InvalidInputError as error:
            raise self._failure(f"another pattern: {error}", pattern) from None

    # -- names and values

    def _is_name(self) -> bool:
        token, after = self._token, self._tokens[min(self._at + 1, len(self._tokens) - 1)]
        if token.kind == "name":
            return True
        if token.kind != "word" or token.lower in _RESERVED:
            return False
        is_value = (token.lower in _TYPED and after.kind == "text") or (
            token.lower == "incoming" and after.lower == "."
        )
        return not is_value

    def _name(self) -> str:
        if not self._is_name():
            raise self._failure("the name of an attribute")
        return str(self._next().value)

    def _string(self, expected: str) -> str:
        if self._token.kind != "text":
            raise self._failure(expected)
        return str(self._next().value)

    def _value(self, expected: str) -> object:
        token = self._token
        if token.kind in ("text", "number"):
            return self._next().value
        if token.kind == "word" and token.lower in _CONSTANTS:
            return _CONSTANTS[self._next().lower]
        if token.kind != "word" or self._is_name() or token.lower in _RESERVED:
            raise self._failure(expected)
        self._next()
        if token.lower == "incoming":
            self._expect(".")
            if self._token.kind not in ("word", "name"):
                raise self._failure("the name of an attribute")
            return Incoming(str(self._next().value))
        read, form = _TYPED[token.lower]
        text = self._token
        try:
            return read(self._string("text in 'quotes'"))
        except ValueError:
            raise self._failure(form, text) from None
