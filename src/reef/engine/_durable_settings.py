"""Durable settings: those that the manifest keeps, so that all processes use the same values.

What an opening writer is given for them takes effect, like a change by hand. Everybody else goes by
the manifest. How many writes may be under way is the writer's, whose fences are as many in a row: so
only an opening writer changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reef.errors import InvalidInputError
from reef.format import Manifest
from reef.manifest import Head, ManifestChain, no_namespace, set_retention
from reef.settings import Settings, override

_CHANGEABLE = ("gc_grace", "pitr_window")
_AT_OPENING = "max_parallel_writes"


def durable_settings(m: Manifest) -> dict[str, Any]:
    """Return the durable settings of a namespace, in the units of `Settings`."""
    window_ms = m.retention.pitr_window_ms
    return {
        "gc_grace": m.gc.grace_ms / 1000,
        "pitr_window": None if window_ms is None else window_ms / 1000,
        "max_parallel_writes": m.max_parallel_writes,
    }


def set_durable(m: Manifest, settings: Settings) -> Manifest:
    """Return the manifest with what an opening writer was given; None leaves what it says."""
    grace_s, window_s = settings.gc_grace, settings.pitr_window
    if window_s is not None:
        m = set_retention(m, pitr_window_ms=_milliseconds(window_s))
    if grace_s is not None and _milliseconds(grace_s) != m.gc.grace_ms:
        m = set_retention(m, grace_ms=_milliseconds(grace_s))
    return m


def change_settings(
    chain: ManifestChain, given: Mapping[str, object], *, born: int | None = None
) -> Head:
    """Change durable settings of a namespace; return the head, the same one if nothing differs.

    `born` is the life that is meant, if not any. Raises InvalidInputError for an unknown name, a bad
    value or a setting that cannot be changed so, NotFoundError if the namespace does not exist, and
    what `publish` raises.
    """
    wanted = _checked(given)

    def changed(head: Head | None) -> Manifest | None:
        m = None if head is None else head.manifest
        if m is None or m.state != "live" or born not in (None, m.born):
            raise no_namespace(chain.url, chain.namespace)
        now = durable_settings(m)
        if all(now[name] == value for name, value in wanted.items()):
            return None
        if "gc_grace" in wanted:
            m = set_retention(m, grace_ms=_milliseconds(wanted["gc_grace"]))
        if "pitr_window" in wanted:
            window_s = wanted["pitr_window"]
            window_ms = None if window_s is None else _milliseconds(window_s)
            m = set_retention(m, pitr_window_ms=window_ms)
        return m

    return chain.publish(changed)


def _checked(given: Mapping[str, object]) -> dict[str, Any]:
    """Return the values as they are read anywhere else. Raises InvalidInputError."""
    read = override(Settings(), given)
    for name in given:
        if name == _AT_OPENING:
            raise InvalidInputError(
                f"{name} changes only when a writer opens the namespace, which fences off the one "
                f"before it: open it with mode='w' and {name}={given[name]}, or with "
                f"REEF_{name.upper()}={given[name]} set"
            )
        if name not in _CHANGEABLE:
            raise InvalidInputError(
                f"{name} is a setting of each process, not of a namespace: expected one of "
                f"{', '.join(_CHANGEABLE)}; give {name} where the database is opened"
            )
    if "gc_grace" in given and read.gc_grace is None:
        raise InvalidInputError.of("gc_grace", given["gc_grace"], "a duration, such as 15m")
    return {name: getattr(read, name) for name in given}


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
