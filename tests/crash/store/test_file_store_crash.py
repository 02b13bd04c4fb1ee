"""`file://` under kill -9: objects are whole or absent, and what was acknowledged is there."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import struct
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from crc32c import crc32c

from reef.errors import AlreadyExistsError
from reef.store import FileStore

CYCLES = 40
TEMPORARY = ".tmp~"  # where an object is written before it has its name
CYCLES_MAX = 1000
PARTS = 16
PART_BYTES = 32 << 10
_HEAD = struct.Struct("<QQI")


def payload(number: int) -> bytes:
    """Return bytes that tell whether they are whole: number, length and checksum first."""
    body = random.Random(number).randbytes(PARTS * PART_BYTES - _HEAD.size)
    return _HEAD.pack(number, len(body), crc32c(body)) + body


def check_whole(data: bytes) -> int:
    number, length, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    assert (len(body), crc32c(body)) == (length, checksum)
    return int(number)


def write_for_ever(root: str, fsync: bool, first: int, acks: Connection) -> None:
    """Create objects one after another, by put and by upload, and tell of each that returned."""
    store = FileStore(root, fsync=fsync)
    acks.send_bytes(b"")  # ready
    number = first
    while True:
        data = payload(number)
        parts = [data[i : i + PART_BYTES] for i in range(0, len(data), PART_BYTES)]
        if number % 2:
            store.put_if_absent(f"wal/{number:020}.wal", data)
        else:
            store.upload(f"segments/{number:020}.seg", parts)
        acks.send_bytes(struct.pack("<Q", number))
        number += 1


def race_for_ever(root: str, seed: int, acks: Connection) -> None:
    """Create the next free slot again and again, as an author whose name is in the bytes."""
    store = FileStore(root, fsync=False)
    acks.send_bytes(b"")
    slot = 1
    while True:
        try:
            store.put_if_absent(f"wal/{slot:020}.wal", payload(seed << 32 | slot))
            acks.send_bytes(struct.pack("<Q", seed << 32 | slot))
        except AlreadyExistsError:
            pass
        slot += 1


def drain(acks: Connection) -> list[int]:
    """Return everything that was acknowledged before the process died."""
    found: list[int] = []
    while True:
        try:
            message = acks.recv_bytes()
        except EOFError:
            return found
        if message:
            found.append(struct.unpack("<Q", message)[0])


def context() -> multiprocessing.context.ForkServerContext:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["reef.store"])
    return made


@pytest.mark.parametrize("fsync", [True, False], ids=["fsync", "no-fsync"])
def test_kill_9_leaves_only_whole_objects_and_every_acknowledged_one(
    tmp_path: Path, fsync: bool
) -> None:
    rng, start = random.Random(1), context()
    acknowledged: set[int] = set()
    stray = 0
    for cycle in range(CYCLES_MAX):
        if cycle >= CYCLES and stray:  # kills did fall into the middle of a write
            break
        parent, child = start.Pipe(duplex=False)
        arguments = (str(tmp_path / "bucket"), fsync, cycle * 1_000_000 + 1, child)
        writer = start.Process(target=write_for_ever, args=arguments)
        writer.start()
        child.close()
        parent.recv_bytes()
        acknowledged.add(struct.unpack("<Q", parent.recv_bytes())[0])  # it does write
        time.sleep(rng.uniform(0, 0.03))  # any moment will do: each is a crash point
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        acknowledged.update(drain(parent))
        parent.close()
        store = FileStore(tmp_path / "bucket")
        assert not any(TEMPORARY in meta.key for meta in store.list())
        stray += len(store.sweep(2**62))
    found = {check_whole(store.get(meta.key)) for meta in store.list()}
    assert acknowledged <= found
    assert len(found - acknowledged) <= cycle  # at most the one that was on its way
    assert stray > 0
    assert os.listdir(tmp_path / "bucket" / TEMPORARY) == []


def test_racers_killed_at_any_moment_leave_one_whole_object_per_slot(tmp_path: Path) -> None:
    rng, start = random.Random(2), context()
    for cycle in range(8):
        root = tmp_path / f"bucket-{cycle}"
        racers, ends = [], []
        for seed in range(1, 4):
            parent, child = start.Pipe(duplex=False)
            racers.append(start.Process(target=race_for_ever, args=(str(root), seed, child)))
            racers[-1].start()
            child.close()
            ends.append(parent)
        for end in ends:
            end.recv_bytes()
        time.sleep(rng.uniform(0.01, 0.05))
        for racer in racers:
            assert racer.pid is not None
            os.kill(racer.pid, signal.SIGKILL)
            racer.join()
        won = [number for end in ends for number in drain(end)]
        store = FileStore(root)
        held = {meta.key: check_whole(store.get(meta.key)) for meta in store.list()}
        slots = [number & (2**32 - 1) for number in won]
        assert len(slots) == len(set(slots))  # no slot was won twice
        for number in won:
            assert held[f"wal/{number & (2**32 - 1):020}.wal"] == number
