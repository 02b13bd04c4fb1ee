"""The run of all checks: their order, what each result means, and leaving nothing behind.

Everything happens under a prefix of its own, `check-store/<ulid>/`. What cannot be shown from
outside is not claimed: a store that loses acknowledged objects in a power failure passes.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from reef.clock import Clock
from reef.errors import InvalidInputError, ReefError, UnsupportedStoreError
from reef.settings import Settings, parse_int
from reef.store._base import Store
from reef.store._check import _requests as requests
from reef.store._check._probe import Probe, ViolationError
from reef.store._check._race import ProcessTeam, Race, ThreadTeam, judge_rounds, run_rounds
from reef.store._file_store import FileStore
from reef.types import new_ulid

FOLDER = "check-store"
RACERS_DEFAULT, RACERS_MAX = 8, 256
ROUNDS_DEFAULT, ROUNDS_MAX = 100, 1_000_000
_DELETERS = 8
_REMOVALS_MAX = 3

_BEFORE_RACES: Mapping[str, Callable[[Probe], str]] = {
    "taken name refused": requests.refuse_taken_name,
    "create after delete": requests.create_after_delete,
    "whole reads": requests.read_whole,
    "ranged reads": requests.read_ranges,
    "several ranges": requests.read_several_ranges,
    "upload in parts": requests.upload_in_parts,
    "read after write": requests.read_after_write,
    "gone after delete": requests.gone_after_delete,
    "ordered list": requests.list_in_order,
    "list start-after": requests.list_start_after,
}
_MEASURES: Mapping[str, Callable[[Probe], str]] = {
    "store's clock": requests.clock_offset,
    "latency": requests.latency,
}


@dataclass(frozen=True)
class Check:
    """What one check saw. `ok` is None where there is nothing to judge."""

    name: str
    ok: bool | None
    seen: str


def _no_progress(_name: str, _done: int, _total: int) -> None:
    pass


class StoreCheck:
    """A run of all checks on one store. Call `remove` afterwards, whatever happened."""

    def __init__(
        self,
        store: Store,
        *,
        racers: int = RACERS_DEFAULT,
        rounds: int = ROUNDS_DEFAULT,
        settings: Settings,
        clock: Clock,
        rng: random.Random,
        on_progress: Callable[[str, int, int], None] = _no_progress,
    ) -> None:
        """Race `racers` creators, half of the rounds as threads and half as processes.

        `on_progress` is called with the name of the race, the rounds done and the rounds in all.
        Raises InvalidInputError for a number of racers or rounds that cannot be.
        """
        self._racers = parse_int("racers", racers, 2, RACERS_MAX)
        self._rounds = parse_int("rounds", rounds, 2, ROUNDS_MAX)
        self._store = store
        self._on_progress = on_progress
        self._one_process = store.url.startswith("memory:")
        self.prefix = f"{FOLDER}/{new_ulid(clock, rng)}/"
        self._probe = Probe(store, self.prefix, settings=settings, clock=clock, rng=rng)

    def run(self) -> Iterator[Check]:
        """Yield what each check saw as soon as it is known.

        Raises InvalidInputError (a missing bucket, a refused credential) and, if the store does
        not answer the very first request, UnavailableError.
        """
        try:
            next(self._store.list(self.prefix), None)
        except UnsupportedStoreError as error:
            yield Check("list", False, str(error))
            return
        first = self._judged("create", requests.create_one)
        yield first
        if not first.ok:
            return  # nothing else can be shown
        for name, check in _BEFORE_RACES.items():
            yield self._judged(name, check)
        yield self._judged("racing threads", self._race_threads)
        if self._one_process:
            yield Check("racing processes", None, "not raced: one process only")
        else:
            yield self._judged("racing processes", self._race_processes)
        yield self._judged("last-modified", requests.last_modified)
        for name, measure in _MEASURES.items():
            yield Check(name, None, self._judged(name, measure).seen)

    def remove(self) -> Sequence[str]:
        """Delete everything that was created; return the keys that may still be there."""
        if not self._probe.made:
            return []
        left = self._probe.made | self._listed()
        with ThreadPoolExecutor(_DELETERS, thread_name_prefix="reef-remove") as pool:
            for _ in range(_REMOVALS_MAX):  # a store that fails the checks may be late with deletes
                failed = {key for key in pool.map(self._failed_to_delete, sorted(left)) if key}
                left = failed | self._listed()
                if not left:
                    break
        if isinstance(self._store, FileStore):
            _remove_folders(self._store.root, self.prefix)
        return sorted(left)

    def _judged(self, name: str, check: Callable[[Probe], str]) -> Check:
        try:
            return Check(name, True, check(self._probe))
        except InvalidInputError as error:
            if not isinstance(error, UnsupportedStoreError):
                raise
            return Check(name, False, str(error))
        except (ViolationError, ReefError) as error:
            return Check(name, False, str(error))

    def _race_threads(self, probe: Probe) -> str:
        rounds = self._rounds if self._one_process else self._rounds - self._rounds // 2
        with ThreadTeam(self._store, self._seeds(), probe.settings, probe.clock) as team:
            return self._race("racing threads", team.race, rounds)

    def _race_processes(self, probe: Probe) -> str:
        with ProcessTeam(self._store, self._seeds(), probe.settings) as team:
            return self._race("racing processes", team.race, self._rounds // 2)

    def _race(self, name: str, race: Race, rounds: int) -> str:
        folder = name.replace(" ", "-")
        # One by one: what was not raced for need not be removed either.
        keys = (self._probe.key(f"{folder}/{number:06}") for number in range(1, rounds + 1))
        self._on_progress(name, 0, rounds)
        result = run_rounds(
            self._store, race, keys, lambda done: self._on_progress(name, done, rounds)
        )
        return judge_rounds(result, self._racers)

    def _seeds(self) -> Sequence[int]:
        return [self._probe.rng.getrandbits(128) for _ in range(self._racers)]

    def _listed(self) -> set[str]:
        try:
            return {self.prefix + name for name in self._probe.listed()}
        except ReefError:
            return set()

    def _failed_to_delete(self, key: str) -> str:
        try:
            self._store.delete(key)
        except ReefError:
            return key
        return ""


def _remove_folders(root: str, prefix: str) -> None:
    """Remove the empty folders that the keys of a `file://` store have left."""
    top = os.path.join(root, prefix.rstrip("/"))
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(top))
