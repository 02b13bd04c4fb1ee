"""Taking the log over: a writer's fences.

A writer that has published its epoch puts as many fences in a row as older writers may have
writes in flight, from the first absent slot on. An older writer meets one of them with its
next write. For each slot there are four outcomes: the fence is there; an older writer was faster,
then its object is replayed and the row of fences starts again behind it; the same epoch is there,
which cannot be; a newer epoch is there, and it is this writer that is fenced.

Crash points: after any of the PUTs. A fence without its writer is an empty object.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from reef.clock import Clock
from reef.errors import ConflictError, FencedError, InvariantError
from reef.format import LogKind, LogObject, LogRecord, encode_log, log_checksum, log_key
from reef.log._log_reader import LogReader
from reef.log._replay import Damaged, LogEntry, Replay
from reef.settings import Settings
from reef.store import Store, create
from reef.types import new_nonce


@dataclass(frozen=True)
class Fencing:
    """Who takes the log over, and by what rules."""

    namespace: str
    epoch: int
    writer_id: bytes
    count: int
    """As many as an older writer may have writes in flight."""
    is_collected: Callable[[int], bool]
    """Whether a slot lies below what garbage collection may have deleted."""
    settings: Settings
    clock: Clock
    rng: random.Random


def put_fences(
    store: Store, reader: LogReader, replay: Replay, fencing: Fencing
) -> Iterator[LogEntry]:
    """Put the fences behind `replay`, yielding every object that it decides meanwhile, fences too.

    The last `fencing.count` of them are the fences, in a row. Raises FencedError if a newer writer
    is met, OutcomeUnknownError, CorruptError, UnavailableError.
    """
    in_a_row = 0
    while in_a_row < fencing.count:
        log = _fence(replay, fencing)
        data = encode_log(log)
        try:
            create(
                store,
                log_key(fencing.namespace, log.slot),
                data,
                nonce=log.nonce,
                is_collected=lambda slot=log.slot: fencing.is_collected(slot),  # type: ignore[misc]
                settings=fencing.settings,
                clock=fencing.clock,
                rng=fencing.rng,
            )
        except ConflictError as conflict:
            in_a_row = 0
            yield from _replay_overtaking(reader, replay, log.slot, conflict.found, fencing)
        else:
            in_a_row += 1
            yield replay.add(log, log_checksum(data), len(data))


def check_epoch(entry: LogEntry, epoch: int, namespace: str) -> None:
    """Raise FencedError if a newer writer than `epoch` wrote `entry`."""
    if entry.log.epoch > epoch:
        raise FencedError(
            f"namespace {namespace!r} was taken over by a writer of epoch {entry.log.epoch} (this "
            f"one's is {epoch}), which wrote log object {entry.slot}; open it again to go on"
        )


def _fence(replay: Replay, fencing: Fencing) -> LogObject:
    return LogObject(
        kind=LogKind.FENCE,
        slot=replay.reach,
        epoch=fencing.epoch,
        writer_id=fencing.writer_id,
        nonce=new_nonce(fencing.rng),
        created_at_us=fencing.clock.now_us(),
        prev=replay.point.prev,
        records=(LogRecord(skipped=replay.damaged),),
    )


def _replay_overtaking(
    reader: LogReader, replay: Replay, slot: int, found: bytes, fencing: Fencing
) -> Iterator[LogEntry]:
    """Replay what another writer put where the fence should go, and whatever lies behind it."""
    decoded = reader.decode(slot, found)
    if isinstance(decoded, Damaged):
        replay.add_damaged(decoded)
    else:
        yield _checked(replay.add(*decoded), fencing)
    for entry in reader.read(replay):
        yield _checked(entry, fencing)


def _checked(entry: LogEntry, fencing: Fencing) -> LogEntry:
    check_epoch(entry, fencing.epoch, fencing.namespace)
    if entry.log.epoch == fencing.epoch and entry.log.writer_id != fencing.writer_id:
        raise InvariantError(
            f"two writers have epoch {fencing.epoch} of namespace {fencing.namespace!r}: "
            f"log object {entry.slot} is the other's; nothing was written over it"
        )
    return entry
