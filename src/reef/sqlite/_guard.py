"""Calls from C that always return a number, whatever is raised, and wherever Ctrl-C comes.

ctypes prints what a callback raises and leaves the number that C gets to chance: SQLite might take a
page for written that was not. A `try` does not help against Ctrl-C alone, which mostly comes between the
call and the first statement, after a wait in C. So the `try` is made to cover the function's entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

Failed = Callable[[BaseException], int]


def guarded(call: Callable[..., int], failed: Failed, *, again: bool = False) -> Callable[..., int]:
    """Return `call` such that what it raises becomes the number that `failed` gives for it.

    With `again` it is called once more if it was interrupted: that is for what must take place.
    """

    def run(*args: Any) -> int:
        try:
            return call(*args)
        except BaseException as error:  # noqa: BLE001 nothing may be raised into C
            number = failed(error)
            return call(*args) if again and not isinstance(error, Exception) else number

    run.__code__ = from_entry(run.__code__)
    return run


def from_entry(code: CodeType) -> CodeType:
    """Return `code` with its first `try` reaching back to its first instruction.

    The format of the table is CPython's since 3.11 (Objects/exception_handling_notes.txt).
    """
    numbers = list(_numbers(code.co_exceptiontable))
    start, length, *rest = numbers
    table = b"".join(
        _number(value, is_first=i % 4 == 0) for i, value in enumerate([0, start + length, *rest])
    )
    return code.replace(co_exceptiontable=table)


def _numbers(table: bytes) -> Iterator[int]:
    value = 0
    for byte in table:
        value = value << 6 | byte & 0x3F
        if not byte & 0x40:
            yield value
            value = 0


def _number(value: int, *, is_first: bool) -> bytes:
    digits = [value & 0x3F]
    while value := value >> 6:
        digits.insert(0, value & 0x3F | 0x40)
    digits[0] |= 0x80 if is_first else 0
    return bytes(digits)
