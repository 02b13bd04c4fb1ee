"""Settings: from arguments, then `REEF_*` variables, then `reef.toml`; the first that speaks wins.

Every refusal names the setting, the value and what is allowed.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

from reef.errors import InvalidInputError
from reef.types import ORDINAL_MAX, SLOT_MAX

WRITES_ASKED_MAX = 8  # the format allows more
BYTES_MAX = 1 << 50
_VARIABLE = "REEF_"
_CONFIG = "REEF_CONFIG"
SECONDS_MAX = 100 * 365 * 86400.0  # a century: more is a mistake, and overflows what it is given to
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "B": 1} | {
    f"{unit}{suffix}": base**power
    for suffix, base in (("B", 1000), ("iB", 1024))
    for power, unit in enumerate("KMGT", start=1)
}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_BELOW_MICROSECONDS = re.compile(r"[.,]\d{7}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME_US_MAX = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MICROSECOND

_Parser: TypeAlias = Callable[[str, object], Any]


def parse_int(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`."""
    try:
        number = int(str(value))
    except ValueError:
        number = None
    if number is None or isinstance(value, bool) or not low <= number <= high:
        raise InvalidInputError.of(name, value, f"a whole number from {low} to {high}")
    return number


def parse_seconds(name: str, value: object, low: float = 0.0, high: float = SECONDS_MAX) -> float:
    """Return seconds from a number, or from text such as `5ms`, `1.5s`, `10m`, `2h` or `7d`."""
    seconds = _quantity(value, {"": 1.0, **_SECONDS})
    if seconds is None or not low <= seconds <= high:
        raise InvalidInputError.of(
            name, value, f"a duration from {low:g}s to {high:g}s, such as 5ms or 7d"
        )
    return seconds


def parse_time(name: str, value: object) -> int:
    """Return microseconds since 1970 from such a number, a datetime with a zone, or ISO 8601 text."""
    if type(value) is int:
        at_us: int | None = value
    else:
        at = value
        if isinstance(value, str) and not _BELOW_MICROSECONDS.search(value):
            with suppress(ValueError):
                at = datetime.fromisoformat(value)
        has_zone = isinstance(at, datetime) and at.utcoffset() is not None
        at_us = (at - _EPOCH) // _MICROSECOND if has_zone else None  # type: ignore[operator]
    if at_us is None or not 0 <= at_us <= _TIME_US_MAX:
        raise InvalidInputError.of(
            name,
            value,
            "a time since 1970 with a zone, such as 2026-11-16T23:00:00Z, as text or a datetime",
            "or microseconds since 1970",
        )
    return at_us


def iso_time(at_us: int) -> str:
    """Return microseconds since 1970 as ISO 8601 text, as `parse_time` takes it."""
    if at_us > _TIME_US_MAX:
        return f"{at_us} microseconds since 1970"  # what a store or an object claims
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat().replace("+00:00", "Z")


def parse_bytes(name: str, value: object, low: int, high: int) -> int:
    """Return a size in bytes from a number, or from text such as `64MiB` or `4 MB`."""
    size = _quantity(value, _BYTES)
    if size is None or not low <= size <= high or size != int(size):
        raise InvalidInputError.of(name, value, f"a size from {low} to {high} bytes, such as 64KiB")
    return int(size)


def parse_flag(name: str, value: object) -> bool:
    """Return True for on, true, yes and 1; False for off, false, no and 0."""
    text = str(value).lower()
    if text in ("on", "true", "yes", "1"):
        return True
    if text in ("off", "false", "no", "0"):
        return False
    raise InvalidInputError.of(name, value, "on or off")


def parse_choice(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """Return `value` if it is one of `allowed`."""
    if value not in allowed:
        raise InvalidInputError.of(name, value, "one of " + ", ".join(allowed))
    return str(value)


def _quantity(value: object, units: Mapping[str, float]) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    match = _QUANTITY.fullmatch(str(value).strip())
    if match is None or match[2] not in units:
        return None
    return float(match[1]) * units[match[2]]


def _parse_backoff(name: str, value: object) -> tuple[float, float]:
    bounds = value if isinstance(value, tuple | list) else str(value).split("-")
    if len(bounds) != 2:
        raise InvalidInputError.of(name, value, "two durations, least and most, such as 1ms-100ms")
    least, most = (parse_seconds(name, bound) for bound in bounds)
    if least > most:
        raise InvalidInputError.of(name, value, "the least wait first, then the most")
    return least, most


def _parse_cadence(name: str, value: object) -> tuple[int, float]:
    parts = value if isinstance(value, tuple | list) else str(value).split("/")
    if len(parts) != 2:
        raise InvalidInputError.of(
            name,
            value,
            "LAYERS/DURATION, such as 4/10m",
            "a look is due after so many delta layers, or so long after the last",
        )
    return parse_int(name, parts[0], 2, 1_000_000), parse_seconds(name, parts[1], low=0.001)


def _parse_folder(name: str, value: object) -> str:
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text:
        raise InvalidInputError.of(name, value, "the path of a folder, or '' for none")
    return text


def _or_none(parse: _Parser) -> _Parser:
    return lambda name, value: None if value is None or value == "none" else parse(name, value)


def _ints(low: int, high: int) -> _Parser:
    return lambda name, value: parse_int(name, value, low, high)


def _seconds(low: float = 0.0, high: float = SECONDS_MAX) -> _Parser:
    return lambda name, value: parse_seconds(name, value, low, high)


def _choices(*allowed: str) -> _Parser:
    return lambda name, value: parse_choice(name, value, allowed)


def _bytes(low: int, high: int = BYTES_MAX) -> _Parser:
    return lambda name, value: parse_bytes(name, value, low, high)


def _setting(default: Any, parse: _Parser) -> Any:
    return field(default=default, metadata={"parse": parse})


_BATCH_BYTES = 2 << 10  # below that, not even an empty batch fits


@dataclass(frozen=True)
class Settings:
    """What can be set, with its defaults. Durations are seconds; `docs/settings.md` tells each."""

    cas_max_retries: int = _setting(8, _ints(0, 1000))
    cas_backoff: tuple[float, float] = _setting((0.001, 0.100), _parse_backoff)

    group_commit_window: float | None = _setting(None, _or_none(_seconds(high=10.0)))
    """None: adaptive, and a lone write never waits."""
    group_commit_max_batches: int = _setting(256, _ints(1, ORDINAL_MAX + 1))
    log_segment_max_bytes: int = _setting(16 << 20, _bytes(_BATCH_BYTES, 1 << 30))
    max_parallel_writes: int | None = _setting(None, _or_none(_ints(1, WRITES_ASKED_MAX)))
    """None: what the manifest says, 1 for a new namespace."""
    write_stall_timeout: float = _setting(30.0, _seconds())
    memtable_max_bytes: int = _setting(256 << 20, _bytes(_BATCH_BYTES))
    unfolded_log_max_bytes: int = _setting(1 << 30, _bytes(1))

    flush_threshold_bytes: int = _setting(64 << 20, _bytes(1))
    flush_threshold_slots: int = _setting(1024, _ints(1, SLOT_MAX))
    flush_interval: float = _setting(60.0, _seconds())
    """0: never by time. Looked at when something commits: an idle writer sends nothing."""
    row_block_bytes: int = _setting(256 << 10, _bytes(1, 1 << 30))
    delta_layer_target_bytes: int = _setting(64 << 20, _bytes(1))
    image_layer_target_bytes: int = _setting(128 << 20, _bytes(1))
    compaction_cadence: tuple[int, float] = _setting((4, 60.0), _parse_cadence)
    """From so many delta layers on they are folded; a worker looks every so many seconds."""

    maintenance: str = _setting("auto", _choices("auto", "off"))
    """auto: an open writer compacts and collects its own namespace; off: workers do."""

    dedup_max_keys: int = _setting(10_000, _ints(0, 10_000_000))
    dedup_max_age: float = _setting(86400.0, _seconds())

    block_cache_bytes: int = _setting(256 << 20, _bytes(0))
    disk_cache_dir: str = _setting("", _parse_folder)
    """"" for none."""
    disk_cache_bytes: int = _setting(1 << 30, _bytes(0))
    max_staleness: float = _setting(1.0, _seconds())
    read_ahead_bytes: int = _setting(4 << 20, _bytes(0))
    """0: never. How much is fetched at once when pages are read one after the other."""

    gc_grace: float | None = _setting(None, _or_none(_seconds()))
    """None: what the manifest says; 15 minutes for a new namespace."""
    retained_generations: int = _setting(10, _ints(1, 1_000_000))
    pitr_window: float | None = _setting(None, _or_none(_seconds()))
    """None: what the manifest says; for a new namespace nothing, but 7 days for pages."""
    snapshot_ttl: float = _setting(3600.0, _seconds(low=0.001))


_PARSERS: Mapping[str, _Parser] = {one.name: one.metadata["parse"] for one in fields(Settings)}


def load_settings(
    arguments: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    path: Path | None = None,
) -> Settings:
    """Return the settings from arguments, then `REEF_*`, then the file.

    The file is `path`, else `$REEF_CONFIG`, else `reef.toml` in the current folder if it is there.
    Raises InvalidInputError for an unknown name, a bad value or a file that is not TOML.
    """
    environ = os.environ if environ is None else environ
    configured = path or environ.get(_CONFIG) or None
    values = _read_toml(Path(configured or "reef.toml"), required=configured is not None)
    values.update(_read_variables(environ))
    values.update(arguments or {})
    return override(Settings(), values)


def override(settings: Settings, arguments: Mapping[str, object]) -> Settings:
    """Return `settings` with what `arguments` name in its place, as `load_settings` reads them.

    Raises InvalidInputError for an unknown name or a bad value.
    """
    for name in arguments:
        if name not in _PARSERS:
            known = sorted(_PARSERS)
            allowed = "one of " + ", ".join(known)
            raise InvalidInputError(
                f"there is no setting {name!r}: expected {allowed}{_hint(name, known)}"
            )
    return replace(
        settings, **{name: _PARSERS[name](name, value) for name, value in arguments.items()}
    )


def _read_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what variables say. Raises InvalidInputError for one that names no setting.

    A misspelled one that nobody mentions would leave a default in place that somebody counts on
    having changed.
    """
    names = {f"{_VARIABLE}{name.upper()}": name for name in _PARSERS}
    values = {}
    for variable, text in environ.items():
        if variable in names:
            values[names[variable]] = text
        elif variable.startswith(_VARIABLE) and variable != _CONFIG:
            allowed = f"{_CONFIG}, or {_VARIABLE} and a setting in capitals"
            known = [name[len(_VARIABLE) :] for name in (*names, _CONFIG)]
            hint = _hint(variable[len(_VARIABLE) :], known, _VARIABLE)
            raise InvalidInputError(
                f"the environment variable {variable} names no setting: expected {allowed}{hint}"
            )
    return values


def _hint(name: str, known: list[str], before: str = "") -> str:
    """Return which of the known names was perhaps meant, as the end of a message; or nothing."""
    folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    return f"; did you mean {before}{folded[near[0]]}?" if near else ""


def _read_toml(path: Path, *, required: bool) -> dict[str, object]:
    if not required and not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{str(path)!r} is not a readable TOML file: {error}") from error
